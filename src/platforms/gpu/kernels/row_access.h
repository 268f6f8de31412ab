// How kernels take the rows of a step: eight values a thread, sixteen bytes at a time where the address allows it and
// one by one where not, so that which thread has which value, and with it the order of every sum, is a matter of the
// row's width alone.
#pragma once

#include "ops/tensor.h"
#include "platforms/gpu/formats.h"

namespace hadal::gpu::HADAL_GPU_NS {

inline constexpr int kVec = 8;  // values that a thread takes at a time
inline constexpr int kMostRowThreads = 1024;
inline constexpr int kMostRowGroups = kMostRowThreads / kGroup;

// Threads for a row of n values: one for each kVec of them, in whole groups.
inline unsigned RowThreads(int64_t n) {
  const int64_t groups = CeilDiv(n, kVec * kGroup);
  return static_cast<unsigned>(groups < 1 ? 1 : groups > kMostRowGroups ? kMostRowGroups : groups) * kGroup;
}

HADAL_DEVICE bool IsAligned(const void* at, unsigned bytes) {
  return (reinterpret_cast<uintptr_t>(at) & (bytes - 1)) == 0;
}

// v[e] = at[e] for the first `count` values (any number), zero behind them.
HADAL_DEVICE void LoadVec(const float* at, int64_t count, float* v) {
  if (count >= kVec && IsAligned(at, 16)) {
    const Bytes16 a = reinterpret_cast<const Bytes16*>(at)[0];
    const Bytes16 b = reinterpret_cast<const Bytes16*>(at)[1];
    HADAL_UNROLL
    for (int e = 0; e < 4; ++e) {
      v[e] = BitsFloat(a.words[e]);
      v[4 + e] = BitsFloat(b.words[e]);
    }
    return;
  }
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) v[e] = e < count ? at[e] : 0.0f;
}
HADAL_DEVICE void LoadVec(const Bf16* at, int64_t count, float* v) {
  if (count >= kVec && IsAligned(at, 16)) {
    const Bytes16 raw = *reinterpret_cast<const Bytes16*>(at);
    HADAL_UNROLL
    for (int e = 0; e < 4; ++e) {
      v[2 * e] = BitsFloat(raw.words[e] << 16);
      v[2 * e + 1] = BitsFloat(raw.words[e] & 0xFFFF0000u);
    }
    return;
  }
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) v[e] = e < count ? ToFloat(at[e]) : 0.0f;
}
// The same of a weight vector from element i.
HADAL_DEVICE void LoadVec(const ops::Vector& vector, int64_t i, float* v) {
  if (vector.dtype == DType::kBF16) {
    LoadVec(static_cast<const Bf16*>(vector.data) + i, vector.size - i, v);
  } else {
    LoadVec(static_cast<const float*>(vector.data) + i, vector.size - i, v);
  }
}

// at[e] = v[e], rounded once, for the first `count` values.
HADAL_DEVICE void StoreVec(float* at, int64_t count, const float* v) {
  if (count >= kVec && IsAligned(at, 16)) {
    Bytes16 a, b;
    HADAL_UNROLL
    for (int e = 0; e < 4; ++e) {
      a.words[e] = FloatBits(v[e]);
      b.words[e] = FloatBits(v[4 + e]);
    }
    reinterpret_cast<Bytes16*>(at)[0] = a;
    reinterpret_cast<Bytes16*>(at)[1] = b;
    return;
  }
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) {
    if (e < count) at[e] = v[e];
  }
}
HADAL_DEVICE void StoreVec(Bf16* at, int64_t count, const float* v) {
  if (count >= kVec && IsAligned(at, 16)) {
    Bytes16 raw;
    HADAL_UNROLL
    for (int e = 0; e < 4; ++e) {
      raw.words[e] = ToBf16(v[2 * e]).bits | static_cast<uint32_t>(ToBf16(v[2 * e + 1]).bits) << 16;
    }
    *reinterpret_cast<Bytes16*>(at) = raw;
    return;
  }
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) {
    if (e < count) at[e] = ToBf16(v[e]);
  }
}

template <typename T>
HADAL_DEVICE T* RowOf(const ops::Tensor& t, int64_t row) {
  return static_cast<T*>(t.data) + row * t.stride;
}

// A row that a block goes over more than once: the first values of each thread stay in registers, which are all values
// of a row of up to kVec * kMostRowThreads.
template <typename T>
class BlockRow {
 public:
  HADAL_DEVICE BlockRow(const T* row, int64_t n) : row_(row), n_(n) {
    LoadVec(row + kVec * ThreadX(), n - kVec * ThreadX(), first_);
  }
  HADAL_DEVICE void Load(int64_t i, float* v) const {
    if (i < kVec * ThreadsX()) {
      HADAL_UNROLL
      for (int e = 0; e < kVec; ++e) v[e] = first_[e];
    } else {
      LoadVec(row_ + i, n_ - i, v);
    }
  }

 private:
  const T* row_;
  int64_t n_;
  float first_[kVec];
};

HADAL_DEVICE float AddSquares(const float* v, float sum) {
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) sum = Fma(v[e], v[e], sum);
  return sum;
}
HADAL_DEVICE float InverseRms(float squares, int64_t n, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
}

// NaN is passed over: it stays NaN in the row without spoiling the scale of its neighbours.
HADAL_DEVICE float LargestMagnitude(const float* v) {
  float largest = 0;
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) {
    const float a = BitsFloat(FloatBits(v[e]) & 0x7FFFFFFFu);
    largest = a > largest ? a : largest;
  }
  return largest;
}

// Of `lanes` neighbouring lanes of a group, a power of two up to kGroup; the order is that of a butterfly.
HADAL_DEVICE float LanesMax(float v, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    const float other = ShuffleXor(v, mask);
    v = v > other ? v : other;
  }
  return v;
}
HADAL_DEVICE float LanesSum(float v, int lanes) {
  for (int mask = lanes / 2; mask > 0; mask /= 2) v += ShuffleXor(v, mask);
  return v;
}

// Rotates the adjacent pairs among v, values [i, i + kVec) of a row whose rotary values are [start, start + 2*half),
// and rounds them. i and start are even.
template <typename T>
HADAL_DEVICE void RotatePairs(float* v, int64_t i, int64_t start, int64_t half, const float* cos, const float* sin) {
  HADAL_UNROLL
  for (int e = 0; e < kVec; e += 2) {
    const int64_t p = i + e - start;
    if (p < 0 || p >= 2 * half) continue;
    const float c = cos[p / 2];
    const float s = sin[p / 2];
    const float a = v[e];
    const float b = v[e + 1];
    v[e] = Round<T>(a * c - b * s);
    v[e + 1] = Round<T>(a * s + b * c);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
