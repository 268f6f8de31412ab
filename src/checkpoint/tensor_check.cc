// Comparing what the files hold with the table of the model.
#include <algorithm>
#include <charconv>
#include <map>

#include "base/status.h"
#include "checkpoint/tensor_table.h"

namespace hadal::checkpoint {
namespace {

std::string Mismatch(const TensorSpec& spec, const TensorEntry& entry) {
  return fmt::format("tensor \"{}\": expected {} {}, found {} {} in {}", spec.name, spec.dtypes.ToString(),
                     ShapeText(spec.shape), DTypeName(entry.dtype), ShapeText(entry.shape), entry.file);
}

// "layers.43" if the name belongs to a layer that the configuration does not have.
std::string LayerBeyond(const ModelConfig& config, std::string_view name) {
  const int64_t layer = LayerOf(name, "layers");
  const bool v4 = config.family == ModelFamily::kV4;
  const int64_t layers = config.num_hidden_layers + (v4 ? 0 : config.num_mtp_layers);
  if (layer >= layers) return fmt::format("layers.{}", layer);
  const int64_t block = LayerOf(name, "mtp");
  const int64_t blocks = config.dspark.has_value() ? config.dspark->stages : config.num_mtp_layers;
  if (v4 && block >= blocks) return fmt::format("mtp.{}", block);
  return "";
}

}  // namespace

int64_t LayerOf(std::string_view name, std::string_view stem) {
  if (name.size() <= stem.size() || name.substr(0, stem.size()) != stem || name[stem.size()] != '.') return -1;
  const char* begin = name.data() + stem.size() + 1;
  const char* end = name.data() + name.size();
  int64_t layer = -1;
  const auto [rest, error] = std::from_chars(begin, end, layer);
  if (error != std::errc() || rest == end || *rest != '.' || layer < 0) return -1;
  return layer;
}

std::string NameList(const std::vector<std::string>& names, size_t shown) {
  std::string text;
  for (size_t i = 0; i < std::min(shown, names.size()); ++i) {
    if (i > 0) text += ", ";
    text += names[i];
  }
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

void NormaliseEntry(const TensorSpec& spec, TensorEntry* entry) {
  const bool bytes = entry->dtype == DType::kI8 || entry->dtype == DType::kU8;
  if (spec.dtypes.contains(DType::kF4E2M1) && bytes && !entry->shape.empty()) {
    if (entry->shape.back() > INT64_MAX / 4) return;
    entry->dtype = DType::kF4E2M1;
    entry->shape.back() *= 2;
  } else if (spec.is_scale() && entry->dtype == DType::kU8) {
    entry->dtype = DType::kF8E8M0;
  }
}

TableCheck CheckTensors(const ModelConfig& config, const TensorTable& table, const std::vector<TensorEntry>& entries) {
  TableCheck check;
  std::map<std::string, int64_t> beyond;
  std::vector<bool> seen(table.specs().size(), false);
  for (const TensorEntry& entry : entries) {
    const TensorSpec* spec = table.Find(entry.name);
    if (spec == nullptr) {
      const std::string layer = LayerBeyond(config, entry.name);
      if (layer.empty()) {
        check.unexpected.push_back(entry.name);
      } else {
        ++beyond[layer];
      }
      continue;
    }
    seen[spec - table.specs().data()] = true;
    if (!spec->dtypes.contains(entry.dtype) || entry.shape != spec->shape) {
      check.mismatched.push_back(Mismatch(*spec, entry));
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    if (!seen[i]) check.missing.push_back(table.specs()[i].name);
  }
  check.layers_beyond.assign(beyond.begin(), beyond.end());
  return check;
}

}  // namespace hadal::checkpoint
