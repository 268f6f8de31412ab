#include "models/weight_binder.h"

#include <cmath>

#include "absl/status/statusor.h"
#include "base/float_formats.h"
#include "base/status.h"
#include "checkpoint/model_config.h"
#include "checkpoint/weight_map.h"

namespace hadal::models {

using checkpoint::TensorEntry;

const TensorEntry* WeightBinder::Get(const std::string& name) {
  if (!ok()) return nullptr;
  absl::StatusOr<const TensorEntry*> entry = source_.Get(name);
  if (entry.ok()) return *entry;
  status_ = entry.status();
  return nullptr;
}

absl::Status WeightBinder::CheckScales(const TensorEntry& entry, ops::LinearWeight& out) const {
  // 448 * 2^100 and sums of it stay finite in bf16.
  constexpr float kMostExponent = 0x1p100f;
  for (int64_t i = 0; i < entry.elements(); ++i) {
    const float scale = entry.dtype == DType::kF32 ? entry.as<float>()[i] : E8M0ToFloat(entry.as<uint8_t>()[i]);
    int exponent = 0;
    if (scale > 0 && scale <= kMostExponent && std::frexp(scale, &exponent) == 0.5f) continue;
    if (scales_ == Scales::kExponents) {
      return InvalidArgument("{}: scale [{}] is {}; expected a power of two of at most 2^100 (file {})", entry.name, i,
                             scale, entry.file);
    }
    if (!(scale > 0) || !std::isfinite(scale)) {
      return InvalidArgument("{}: scale [{}] is {}; expected a finite number above 0 (file {})", entry.name, i, scale,
                             entry.file);
    }
    out.exponent_scales = false;
  }
  return absl::OkStatus();
}

const void* WeightBinder::PlaceBytes(const void* host, int64_t bytes) {
  if (!ok()) return nullptr;
  absl::StatusOr<const void*> place = store_.Place(host, static_cast<size_t>(bytes));
  if (place.ok()) return *place;
  status_ = place.status();
  return nullptr;
}

void WeightBinder::HostLinear(const std::string& module, ops::LinearWeight& out) {
  const TensorEntry* weight = Get(module + ".weight");
  if (weight == nullptr) return;
  out.n = weight->shape[0];
  out.k = weight->shape[1];
  out.dtype = weight->dtype;
  out.data = weight->data;
  if (weight->dtype != DType::kF8E4M3 && weight->dtype != DType::kF4E2M1) return;
  const TensorEntry* scale = Get(checkpoint::ScaleName(source_.config().family, module));
  if (scale == nullptr) return;
  if (weight->dtype == DType::kF4E2M1 && scale->dtype != DType::kF8E8M0) {
    return Fail(InvalidArgument("{}: expected scales of {} for FP4 weights, found {} (file {})", scale->name,
                                DTypeName(DType::kF8E8M0), DTypeName(scale->dtype), scale->file));
  }
  out.scale_dtype = scale->dtype;
  out.scale = scale->data;
  status_ = CheckScales(*scale, out);
}

void WeightBinder::Linear(const std::string& module, ops::LinearWeight& out) {
  HostLinear(module, out);
  if (!ok()) return;
  out.data = PlaceBytes(out.data, out.n * out.row_bytes());
  if (out.scale == nullptr) return;
  const TensorEntry* scale = Get(checkpoint::ScaleName(source_.config().family, module));
  out.scale = PlaceBytes(out.scale, DTypeBytes(scale->dtype, scale->elements()));
}

void WeightBinder::Norm(const std::string& name, ops::Vector& out) {
  const TensorEntry* entry = Get(name);
  if (entry == nullptr) return;
  out = {PlaceBytes(entry->data, DTypeBytes(entry->dtype, entry->elements())), entry->dtype, entry->elements()};
}

void WeightBinder::Floats(const std::string& name, const float*& out) {
  if (const TensorEntry* entry = Get(name)) out = Place(entry->as<float>(), entry->elements());
}

}  // namespace hadal::models
