// Checks of values: NaN scales (field report B73) and expert ids out of range.
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace hadal::checkpoint {
namespace {

absl::Status BadScale(const TensorEntry& entry, int64_t element, const std::string& found) {
  return InvalidArgument("tensor \"{}\" in {}: element {} of scale {} is {}, expected a positive finite number",
                         entry.name, entry.file, element, ShapeText(entry.shape), found);
}

}  // namespace

absl::Status CheckScale(const TensorEntry& entry) {
  if (entry.dtype == DType::kF8E8M0) {
    const void* nan = entry.bytes == 0 ? nullptr : std::memchr(entry.data, 0xFF, static_cast<size_t>(entry.bytes));
    if (nan == nullptr) return absl::OkStatus();
    return BadScale(entry, static_cast<const std::byte*>(nan) - entry.data, "E8M0 byte 255 (NaN)");
  }
  if (entry.dtype != DType::kF32) {
    return InvalidArgument("tensor \"{}\" in {}: expected a scale of F8_E8M0 or F32, found {}", entry.name, entry.file,
                           DTypeName(entry.dtype));
  }
  for (int64_t i = 0; i < entry.elements(); ++i) {
    float value;
    std::memcpy(&value, entry.data + 4 * i, 4);
    if (!(value > 0.0f) || !std::isfinite(value)) return BadScale(entry, i, fmt::format("{}", value));
  }
  return absl::OkStatus();
}

absl::Status CheckTokenExperts(const TensorEntry& entry, int64_t experts) {
  const bool wide = entry.dtype == DType::kI64;
  if ((!wide && entry.dtype != DType::kI32) || entry.shape.size() != 2) {
    return InvalidArgument("tensor \"{}\" in {}: expected I64 or I32 [vocab, k], found {} {}", entry.name, entry.file,
                           DTypeName(entry.dtype), ShapeText(entry.shape));
  }
  for (int64_t i = 0; i < entry.elements(); ++i) {
    int64_t id = 0;
    if (wide) {
      std::memcpy(&id, entry.data + 8 * i, 8);
    } else {
      int32_t narrow;
      std::memcpy(&narrow, entry.data + 4 * i, 4);
      id = narrow;
    }
    if (id < 0 || id >= experts) {
      return InvalidArgument("tensor \"{}\" in {}: row {} holds expert {}, expected ids in [0, {})", entry.name,
                             entry.file, i / entry.shape[1], id, experts);
    }
  }
  return absl::OkStatus();
}

}  // namespace hadal::checkpoint
