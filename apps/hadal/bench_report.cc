#include "bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cli.h"

namespace hadal::cli {
namespace {

using text::Json;

void AddRows(const std::string& name, const Json& value, std::string* out) {
  if (value.is_object() && value.contains("p50")) {
    *out += fmt::format("{:<40} mean {:>9.4f}   p50 {:>9.4f}   p90 {:>9.4f}   p99 {:>9.4f}   max {:>9.4f}\n", name,
                        value["mean"].get<double>(), value["p50"].get<double>(), value["p90"].get<double>(),
                        value["p99"].get<double>(), value["max"].get<double>());
  } else if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) AddRows(fmt::format("{}.{}", name, key), inner, out);
  } else if (value.is_number_float()) {
    *out += fmt::format("{:<40} {:.4f}\n", name, value.get<double>());
  } else {
    *out += fmt::format("{:<40} {}\n", name, text::DumpJson(value));
  }
}

}  // namespace

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(p / 100 * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

void AddDistribution(const std::string& name, const std::vector<double>& values, Json* report) {
  if (values.empty()) return;
  Json out;
  out["mean"] = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  for (const int p : {50, 90, 99}) out[fmt::format("p{}", p)] = Percentile(values, p);
  out["max"] = *std::max_element(values.begin(), values.end());
  (*report)[name] = std::move(out);
}

int PrintReport(const Json& report, bool json) {
  std::string out;
  if (json) {
    out = text::DumpJson(report) + "\n";
  } else {
    for (const auto& [name, value] : report.items()) AddRows(name, value, &out);
  }
  WriteOut(out);
  return OutputResult();
}

}  // namespace hadal::cli
