#include "ops/reference/rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "ops/row_format.h"

namespace hadal::ops::reference {
namespace {

void Load(const void* data, DType dtype, int64_t offset, int64_t n, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, static_cast<const float*>(data) + offset, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  HADAL_CHECK(dtype == DType::kBF16);
  const BFloat16* in = static_cast<const BFloat16*>(data) + offset;
  for (int64_t i = 0; i < n; ++i) out[i] = ToFloat(in[i]);
}

void Store(void* data, DType dtype, int64_t offset, int64_t n, const float* values) {
  if (dtype == DType::kF32) {
    std::memcpy(static_cast<float*>(data) + offset, values, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  HADAL_CHECK(dtype == DType::kBF16);
  BFloat16* out = static_cast<BFloat16*>(data) + offset;
  for (int64_t i = 0; i < n; ++i) out[i] = ToBFloat16(values[i]);
}

float ScaleAt(const LinearWeight& w, int64_t index) {
  if (w.scale_dtype == DType::kF32) return static_cast<const float*>(w.scale)[index];
  HADAL_CHECK(w.scale_dtype == DType::kF8E8M0);
  return E8M0ToFloat(static_cast<const uint8_t*>(w.scale)[index]);
}

// One scale per 128 rows and 128 inputs.
void DecodeFp8Row(const LinearWeight& w, int64_t row, float* out) {
  constexpr int64_t kBlock = 128;
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> values{};
    for (int code = 0; code < 256; ++code) values[code] = E4M3ToFloat(static_cast<uint8_t>(code));
    return values;
  }();
  const uint8_t* codes = static_cast<const uint8_t*>(w.data) + row * w.k;
  const int64_t blocks = (w.k + kBlock - 1) / kBlock;
  for (int64_t block = 0; block < blocks; ++block) {
    const float scale = ScaleAt(w, row / kBlock * blocks + block);
    const int64_t end = std::min(w.k, (block + 1) * kBlock);
    for (int64_t i = block * kBlock; i < end; ++i) out[i] = kValues[codes[i]] * scale;
  }
}

// One scale per row and 32 inputs; the even input is in the low nibble.
void DecodeFp4Row(const LinearWeight& w, int64_t row, float* out) {
  constexpr int64_t kBlock = 32;
  static const std::array<float, 16> kValues = [] {
    std::array<float, 16> values{};
    for (int code = 0; code < 16; ++code) values[code] = E2M1ToFloat(static_cast<uint8_t>(code));
    return values;
  }();
  HADAL_CHECK(w.k % kBlock == 0);
  const uint8_t* bytes = static_cast<const uint8_t*>(w.data) + row * (w.k / 2);
  const int64_t blocks = w.k / kBlock;
  for (int64_t block = 0; block < blocks; ++block) {
    const float scale = ScaleAt(w, row * blocks + block);
    for (int64_t i = block * kBlock; i < (block + 1) * kBlock; i += 2) {
      out[i] = kValues[bytes[i / 2] & 15] * scale;
      out[i + 1] = kValues[bytes[i / 2] >> 4] * scale;
    }
  }
}

// NaN is passed over: it stays NaN in the row without spoiling the scale of its neighbours.
float LargestMagnitude(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > largest) largest = std::fabs(x[i]);
  }
  return largest;
}

}  // namespace

void LoadRow(const Tensor& t, int64_t row, float* out) { Load(t.data, t.dtype, row * t.stride, t.cols, out); }

std::vector<float> LoadRow(const Tensor& t, int64_t row) {
  std::vector<float> values(static_cast<size_t>(t.cols));
  LoadRow(t, row, values.data());
  return values;
}

void StoreRow(const Tensor& t, int64_t row, const float* values) {
  Store(t.data, t.dtype, row * t.stride, t.cols, values);
}

void LoadRow(const PagedRows& pool, int32_t seq, int64_t position, float* out) { DecodeRow(pool, seq, position, out); }

void StoreRow(const PagedRows& pool, int32_t seq, int64_t position, const float* values) {
  EncodeRow(pool, seq, position, values);
}

std::vector<float> LoadVector(const Vector& v) {
  std::vector<float> values(static_cast<size_t>(v.size));
  Load(v.data, v.dtype, 0, v.size, values.data());
  return values;
}

void DecodeWeightRow(const LinearWeight& w, int64_t row, float* out) {
  switch (w.dtype) {
    case DType::kF8E4M3:
      return DecodeFp8Row(w, row, out);
    case DType::kF4E2M1:
      return DecodeFp4Row(w, row, out);
    default:
      return Load(w.data, w.dtype, row * w.k, w.k, out);
  }
}

float InverseRms(const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(Dot(x, x, n) / static_cast<float>(n) + eps);
}

void SimulateFp8(float* x, int64_t n, int64_t block) {
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t end = std::min(n, begin + block);
    const float scale = E4M3BlockScale(LargestMagnitude(x + begin, end - begin));
    for (int64_t i = begin; i < end; ++i) x[i] = RoundE4M3(x[i] / scale) * scale;
  }
}

void QuantiseInput(InputQuant quant, float* x, int64_t n) {
  constexpr int64_t kBlock = 128;
  if (quant == InputQuant::kNone) return;
  if (quant == InputQuant::kFp8) return SimulateFp8(x, n, kBlock);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    const float scale = E4M3AnyScale(LargestMagnitude(x + begin, end - begin));
    for (int64_t i = begin; i < end; ++i) x[i] = RoundE4M3(x[i] / scale) * scale;
  }
}

void SimulateFp4(float* x, int64_t n, int64_t block) {
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t end = std::min(n, begin + block);
    const float scale = E2M1BlockScale(LargestMagnitude(x + begin, end - begin));
    for (int64_t i = begin; i < end; ++i) x[i] = RoundE2M1(x[i] / scale) * scale;
  }
}

}  // namespace hadal::ops::reference
