#include "golden/v4/vectors.h"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/float_formats.h"
#include "support/paths.h"

namespace hadal::test {

namespace {

void ReadManifest(const std::string& dir, const std::string& set, const std::string& model, bool full,
                  std::vector<VectorCase>& out) {
  std::ifstream in(dir + "/manifest.json");
  if (!in) throw std::runtime_error("cannot read " + dir + "/manifest.json");
  const nlohmann::json manifest = nlohmann::json::parse(in);
  for (const auto& c : manifest.at("cases")) {
    VectorCase entry;
    entry.model = model;
    entry.set = set;
    entry.name = c.at("name");
    entry.file = dir + "/" + c.at("file").get<std::string>();
    entry.full = full;
    entry.tokens = c.at("n_tokens");
    entry.images = static_cast<int64_t>(c.at("images").size());
    entry.logit_std = c.at("logit_std");
    entry.noise_mean = c.at("rounding_noise").at("mean");
    out.push_back(entry);
  }
}

}  // namespace

const std::vector<VectorCase>& AllCases() {
  static const std::vector<VectorCase> kAll = [] {
    std::vector<VectorCase> all;
    const std::pair<std::string, std::string> sets[] = {{"v4", BundledModel()},
                                                        {"random-v4", DataPath("models/random-v4")}};
    for (const auto& [set, model] : sets) ReadManifest(DataPath(set), set, model, false, all);
    for (const auto& [set, model] : sets) {
      const std::optional<std::string> full = FullVectors(set);
      if (full.has_value()) ReadManifest(*full, set, model, true, all);
    }
    return all;
  }();
  return kAll;
}

Vectors::Vectors(const std::string& path) {
  auto file = checkpoint::SafetensorsFile::Open(path);
  if (!file.ok()) throw std::runtime_error(file.status().ToString());
  file_ = *std::move(file);
  for (const auto& entry : file_->entries()) entries_[entry.name] = &entry;
}

const checkpoint::TensorEntry& Vectors::At(const std::string& name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) throw std::runtime_error("no tensor " + name + " in " + file_->path());
  return *it->second;
}

std::vector<int64_t> Vectors::Shape(const std::string& name) const { return At(name).shape; }

std::vector<float> Vectors::Floats(const std::string& name) const {
  const auto& entry = At(name);
  std::vector<float> out(entry.elements());
  if (entry.dtype == DType::kF32) {
    std::memcpy(out.data(), entry.data, entry.bytes);
  } else {
    std::vector<uint16_t> bits(out.size());
    std::memcpy(bits.data(), entry.data, entry.bytes);
    for (size_t i = 0; i < out.size(); ++i) out[i] = ToFloat(BFloat16{bits[i]});
  }
  return out;
}

std::vector<int32_t> Vectors::Ints(const std::string& name) const {
  const auto& entry = At(name);
  std::vector<int32_t> out(entry.elements());
  if (entry.dtype == DType::kI32) {
    std::memcpy(out.data(), entry.data, entry.bytes);
  } else {
    std::vector<int64_t> wide(out.size());
    std::memcpy(wide.data(), entry.data, entry.bytes);
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(wide[i]);
  }
  return out;
}

std::vector<uint8_t> Vectors::Bytes(const std::string& name) const {
  const auto& entry = At(name);
  const auto* data = reinterpret_cast<const uint8_t*>(entry.data);
  return {data, data + entry.bytes};
}

}  // namespace hadal::test
