#include "ops/row_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/float_formats.h"
#include "base/status.h"

namespace hadal::ops {
namespace {

constexpr int kScaleBias = 127;
constexpr uint8_t kScaleNaN = 255;

// NaN is passed over.
float LargestMagnitude(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::fmax(largest, std::fabs(x[i]));
  return largest;
}

// Byte of 2^ceil(log2(amax / (top * 2^top_exponent))), `top` in [0.5, 1), from amax's own exponent: no logarithm that
// may be an ulp off where the quotient is a power of two.
uint8_t ScaleByte(float amax, float top, int top_exponent) {
  if (!std::isfinite(amax)) return kScaleNaN;
  int exponent = 0;
  const float fraction = std::frexp(amax, &exponent);
  const int e = exponent - top_exponent + (fraction > top ? 1 : 0);
  return static_cast<uint8_t>(std::clamp(e + kScaleBias, 0, 255));
}
// The largest E4M3 value is 448 = 0.875 * 2^9, the largest E2M1 value 6 = 0.75 * 2^3.
uint8_t Fp8ScaleByte(float amax) { return ScaleByte(std::max(amax, 1e-4f), 0.875f, 9); }
uint8_t Fp4ScaleByte(float amax) { return ScaleByte(std::max(amax, 6 * 0x1p-126f), 0.75f, 3); }

void StoreByte(std::byte* at, int64_t i, uint8_t v) { at[i] = static_cast<std::byte>(v); }
uint8_t LoadByte(const std::byte* at, int64_t i) { return static_cast<uint8_t>(at[i]); }

void EncodeBf16(const float* values, int64_t n, std::byte* out) {
  for (int64_t i = 0; i < n; ++i) {
    const BFloat16 v = ToBFloat16(values[i]);
    std::memcpy(out + 2 * i, &v, sizeof(v));
  }
}
void DecodeBf16(const std::byte* in, int64_t n, float* values) {
  for (int64_t i = 0; i < n; ++i) {
    BFloat16 v;
    std::memcpy(&v, in + 2 * i, sizeof(v));
    values[i] = ToFloat(v);
  }
}

void EncodeFp8(const float* values, int64_t cols, int64_t tail, RowPlace place) {
  const int64_t n = cols - tail;
  std::memset(place.scales, 0, static_cast<size_t>(RowScaleBytes(RowFormat::kFp8DsMla, cols, tail)));
  for (int64_t begin = 0; begin < n; begin += kFp8RowGroup) {
    const int64_t end = std::min(n, begin + kFp8RowGroup);
    const uint8_t scale = Fp8ScaleByte(LargestMagnitude(values + begin, end - begin));
    StoreByte(place.scales, begin / kFp8RowGroup, scale);
    for (int64_t i = begin; i < end; ++i) {
      StoreByte(place.values, i, FloatToE4M3(std::ldexp(values[i], kScaleBias - scale)));
    }
  }
  EncodeBf16(values + n, tail, place.values + n);
}

void DecodeFp8(RowPlace place, int64_t cols, int64_t tail, float* values) {
  const int64_t n = cols - tail;
  for (int64_t i = 0; i < n; ++i) {
    values[i] = E4M3ToFloat(LoadByte(place.values, i)) * E8M0ToFloat(LoadByte(place.scales, i / kFp8RowGroup));
  }
  DecodeBf16(place.values + n, tail, values + n);
}

void EncodeFp4(const float* values, int64_t cols, RowPlace place) {
  HADAL_CHECK(cols % kFp4RowGroup == 0);
  for (int64_t begin = 0; begin < cols; begin += kFp4RowGroup) {
    const float* group = values + begin;
    const bool nan = std::any_of(group, group + kFp4RowGroup, [](float v) { return std::isnan(v); });
    const uint8_t scale = nan ? kScaleNaN : Fp4ScaleByte(LargestMagnitude(group, kFp4RowGroup));
    StoreByte(place.scales, begin / kFp4RowGroup, scale);
    const auto code = [&](int64_t i) { return nan ? 0 : FloatToE2M1(std::ldexp(group[i], kScaleBias - scale)); };
    for (int64_t i = 0; i < kFp4RowGroup; i += 2) {
      StoreByte(place.values, (begin + i) / 2, static_cast<uint8_t>(code(i) | code(i + 1) << 4));
    }
  }
}

void DecodeFp4(RowPlace place, int64_t cols, float* values) {
  for (int64_t i = 0; i < cols; ++i) {
    const int code = LoadByte(place.values, i / 2) >> (i % 2 * 4) & 15;
    values[i] = E2M1ToFloat(static_cast<uint8_t>(code)) * E8M0ToFloat(LoadByte(place.scales, i / kFp4RowGroup));
  }
}

void StoreFloat(std::byte* at, int64_t i, float v) { std::memcpy(at + 4 * i, &v, sizeof(v)); }
float LoadFloat(const std::byte* at, int64_t i) {
  float v = 0;
  std::memcpy(&v, at + 4 * i, sizeof(v));
  return v;
}

// The scale is amax/448 as it comes, not rounded to a power of two, and at least the smallest normal number.
void EncodeWide(const float* values, int64_t cols, int64_t tail, RowPlace place) {
  const int64_t n = cols - tail;
  for (int64_t begin = 0; begin < n; begin += kFp8WideGroup) {
    const int64_t end = std::min(n, begin + kFp8WideGroup);
    const float scale = WideScale(LargestMagnitude(values + begin, end - begin));
    StoreFloat(place.scales, begin / kFp8WideGroup, scale);
    for (int64_t i = begin; i < end; ++i) StoreByte(place.values, i, FloatToE4M3(values[i] / scale));
  }
  EncodeBf16(values + n, tail, WideTail(place, cols, tail));
}

// Products of a code and a scale of 24 bits are rounded to bf16: what attention computes with.
void DecodeWide(RowPlace place, int64_t cols, int64_t tail, float* values) {
  const int64_t n = cols - tail;
  for (int64_t i = 0; i < n; ++i) {
    values[i] = RoundBF16(E4M3ToFloat(LoadByte(place.values, i)) * LoadFloat(place.scales, i / kFp8WideGroup));
  }
  DecodeBf16(WideTail(place, cols, tail), tail, values + n);
}

void EncodeKey(const float* values, int64_t cols, RowPlace place) {
  const float scale = E8M0ToFloat(Fp8ScaleByte(LargestMagnitude(values, cols)));
  StoreFloat(place.scales, 0, scale);
  for (int64_t i = 0; i < cols; ++i) StoreByte(place.values, i, FloatToE4M3(values[i] / scale));
}
void DecodeKey(RowPlace place, int64_t cols, float* values) {
  const float scale = LoadFloat(place.scales, 0);
  for (int64_t i = 0; i < cols; ++i) values[i] = E4M3ToFloat(LoadByte(place.values, i)) * scale;
}

}  // namespace

float WideScale(float amax) {
  constexpr float kLeast = 1.1754944e-38f;
  return std::max(amax * (1.0f / 448.0f), kLeast);
}

int64_t PageBytes(RowFormat format, DType dtype, int64_t cols, int64_t tail, int64_t rows) {
  return rows * (RowValueBytes(format, dtype, cols, tail) + RowScaleBytes(format, cols, tail));
}

void EncodeRow(const PagedRows& pool, int32_t seq, int64_t position, const float* values) {
  const RowPlace place = RowPlaces(pool).At(seq, position);
  switch (pool.format) {
    case RowFormat::kPlain:
      if (pool.dtype == DType::kF32) {
        std::memcpy(place.values, values, static_cast<size_t>(pool.cols) * sizeof(float));
      } else {
        HADAL_CHECK(pool.dtype == DType::kBF16);
        EncodeBf16(values, pool.cols, place.values);
      }
      return;
    case RowFormat::kFp8DsMla:
      return EncodeFp8(values, pool.cols, pool.tail, place);
    case RowFormat::kMxfp4:
      return EncodeFp4(values, pool.cols, place);
    case RowFormat::kFp8DsMla656:
      return EncodeWide(values, pool.cols, pool.tail, place);
    case RowFormat::kFp8Key:
      return EncodeKey(values, pool.cols, place);
  }
}

void DecodeRow(const PagedRows& pool, int32_t seq, int64_t position, float* values) {
  const RowPlace place = RowPlaces(pool).At(seq, position);
  switch (pool.format) {
    case RowFormat::kPlain:
      if (pool.dtype == DType::kF32) {
        std::memcpy(values, place.values, static_cast<size_t>(pool.cols) * sizeof(float));
      } else {
        HADAL_CHECK(pool.dtype == DType::kBF16);
        DecodeBf16(place.values, pool.cols, values);
      }
      return;
    case RowFormat::kFp8DsMla:
      return DecodeFp8(place, pool.cols, pool.tail, values);
    case RowFormat::kMxfp4:
      return DecodeFp4(place, pool.cols, values);
    case RowFormat::kFp8DsMla656:
      return DecodeWide(place, pool.cols, pool.tail, values);
    case RowFormat::kFp8Key:
      return DecodeKey(place, pool.cols, values);
  }
}

}  // namespace hadal::ops
