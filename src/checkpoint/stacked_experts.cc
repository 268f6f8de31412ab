// Cutting stacked experts into views.
#include "checkpoint/stacked_experts.h"

#include <optional>

#include "base/status.h"

namespace hadal::checkpoint {
namespace {

constexpr int64_t kMaxStacked = 1 << 14;  // experts in one tensor

// What follows "gate_up_proj"/"down_proj" in the spellings of weights and scales, after canonicalisation of suffixes.
std::optional<bool> IsScaleSuffix(std::string_view tail) {
  if (tail.empty() || tail == ".weight") return false;
  for (std::string_view suffix : {".scale", "_scale", "_scale_inv", ".weight_scale_inv"}) {
    if (tail == suffix) return true;
  }
  return std::nullopt;
}

// Rows [first, first + rows) of expert `expert`.
TensorEntry Slice(const TensorEntry& tensor, std::string name, int64_t expert, int64_t first, int64_t rows) {
  TensorEntry slice = tensor;
  slice.name = std::move(name);
  slice.shape.erase(slice.shape.begin());
  const int64_t row_bytes = tensor.bytes / (tensor.shape[0] * tensor.shape[1]);
  slice.shape[0] = rows;
  slice.bytes = rows * row_bytes;
  slice.data = tensor.data + (expert * tensor.shape[1] + first) * row_bytes;
  return slice;
}

}  // namespace

absl::StatusOr<bool> SplitStackedExperts(ModelFamily family, const TensorEntry& tensor, std::vector<TensorEntry>* out) {
  const bool v4 = family == ModelFamily::kV4;
  const std::string_view name = tensor.name;
  const std::string_view mark = v4 ? ".ffn.experts." : ".mlp.experts.";
  const size_t at = name.find(mark);
  if (at == std::string_view::npos) return false;
  std::string_view tail = name.substr(at + mark.size());
  const bool gate_up = tail.substr(0, 12) == "gate_up_proj";
  const bool down = tail.substr(0, 9) == "down_proj";
  if (!gate_up && !down) return false;
  const std::optional<bool> scale = IsScaleSuffix(tail.substr(gate_up ? 12 : 9));
  if (!scale.has_value()) return false;

  const int64_t parts = gate_up ? 2 : 1;
  if (tensor.shape.size() != 3 || tensor.shape[0] < 1 || tensor.shape[0] > kMaxStacked || tensor.shape[1] < parts ||
      tensor.shape[1] % parts != 0 || tensor.shape[2] < 1 || tensor.bytes % (tensor.shape[0] * tensor.shape[1]) != 0) {
    return InvalidArgument("{}: tensor \"{}\": expected stacked experts [E, {}, in], found {}", tensor.file, name,
                           gate_up ? "2F" : "d", ShapeText(tensor.shape));
  }
  const std::string base = std::string(name.substr(0, at + mark.size()));
  const std::string_view suffix = !*scale ? ".weight" : v4 ? ".scale" : ".weight_scale_inv";
  const std::string_view first = v4 ? "w1" : "gate_proj", second = v4 ? "w3" : "up_proj",
                         last = v4 ? "w2" : "down_proj";
  const int64_t rows = tensor.shape[1] / parts;
  for (int64_t e = 0; e < tensor.shape[0]; ++e) {
    if (gate_up) {
      out->push_back(Slice(tensor, fmt::format("{}{}.{}{}", base, e, first, suffix), e, 0, rows));
      out->push_back(Slice(tensor, fmt::format("{}{}.{}{}", base, e, second, suffix), e, rows, rows));
    } else {
      out->push_back(Slice(tensor, fmt::format("{}{}.{}{}", base, e, last, suffix), e, 0, rows));
    }
  }
  return true;
}

}  // namespace hadal::checkpoint
