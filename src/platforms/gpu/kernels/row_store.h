// Rows on their way into a pool: the Hadamard rotation of indexer rows, the roundings that plain pools simulate, and
// the encodings of packed ones, to the bit those of ops/row_format.cc.
//
// A team of neighbouring threads has a row, thread r of it values [8r, 8r + 8). Teams of up to a group's lanes are a
// power of two of them; larger ones are whole groups, and then all threads of the block have to take part.
#pragma once

#include "platforms/gpu/kernels/row_access.h"
#include "platforms/gpu/paged_rows.h"

namespace hadal::gpu::HADAL_GPU_NS {

// Threads for a row of d values, a power of two.
inline int TeamOf(int64_t d) { return d <= kVec ? 1 : static_cast<int>(d / kVec); }

// Over the team of the caller; scratch has a value for each group of the block.
HADAL_DEVICE float TeamMax(float v, int team, float* scratch) {
  v = LanesMax(v, team < kGroup ? team : kGroup);
  if (team <= kGroup) return v;
  if (Lane() == 0) scratch[GroupX()] = v;
  BlockSync();
  const int groups = team / kGroup;
  const int first = GroupX() / groups * groups;
  for (int g = first; g < first + groups; ++g) v = v > scratch[g] ? v : scratch[g];
  BlockSync();
  return v;
}
HADAL_DEVICE float TeamSum(float v, int team, float* scratch) {
  v = LanesSum(v, team < kGroup ? team : kGroup);
  if (team <= kGroup) return v;
  if (Lane() == 0) scratch[GroupX()] = v;
  BlockSync();
  const int groups = team / kGroup;
  const int first = GroupX() / groups * groups;
  float sum = 0;
  for (int g = first; g < first + groups; ++g) sum += scratch[g];
  BlockSync();
  return sum;
}

// Floats of shared memory that Hadamard and RotateHalves exchange a row of a team through.
HADAL_HOST_DEVICE int64_t ExchangeFloats(int threads) { return static_cast<int64_t>(threads) * kVec; }

// v = act(H*v * scale) with the Sylvester matrix of size d, a power of two; scale = d^-0.5. Sums are those of the
// butterfly from neighbours outwards. `exchange` is used by teams of more than a group.
template <typename T>
HADAL_DEVICE void Hadamard(float* v, int64_t d, int team, float scale, float* exchange) {
  HADAL_UNROLL
  for (int half = 1; half < kVec; half *= 2) {
    if (half >= d) break;
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) {
      if ((e & half) != 0) continue;
      const float a = v[e];
      const float b = v[e + half];
      v[e] = a + b;
      v[e + half] = a - b;
    }
  }
  for (int mask = 1; mask < team; mask *= 2) {
    const bool upper = (ThreadX() & mask) != 0;
    float other[kVec];
    if (mask < kGroup) {
      HADAL_UNROLL
      for (int e = 0; e < kVec; ++e) other[e] = ShuffleXor(v[e], mask);
    } else {
      HADAL_UNROLL
      for (int e = 0; e < kVec; ++e) exchange[kVec * ThreadX() + e] = v[e];
      BlockSync();
      HADAL_UNROLL
      for (int e = 0; e < kVec; ++e) other[e] = exchange[kVec * (ThreadX() ^ mask) + e];
      BlockSync();
    }
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) v[e] = upper ? other[e] - v[e] : v[e] + other[e];
  }
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) v[e] = Round<T>(v[e] * scale);
}

// Rotates the pairs (x[i], x[i + half]) of a team's row and rounds them. Every thread of the block calls it.
template <typename T>
HADAL_DEVICE void RotateHalves(float* v, int64_t i, int64_t half, const float* cos, const float* sin, float* exchange) {
  float* mine = exchange + kVec * ThreadX();
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) mine[e] = v[e];
  BlockSync();
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) {
    const int64_t p = i + e;
    if (p >= 2 * half) break;
    // In one order of the operands for both of a pair, as they are defined.
    if (p < half) {
      v[e] = Round<T>(v[e] * cos[p] - mine[e + half] * sin[p]);
    } else {
      v[e] = Round<T>(v[e] * cos[p - half] + mine[e - half] * sin[p - half]);
    }
  }
  BlockSync();
}

// Quantise-dequantise with the scale of the largest magnitude. NaN stays NaN.
HADAL_DEVICE void SimulateE4M3(float* v, float largest) {
  const float scale = E4M3BlockScale(largest);
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) v[e] = RoundE4M3(v[e] / scale) * scale;
}
HADAL_DEVICE void SimulateE2M1(float* v, float largest) {
  const float scale = E2M1BlockScale(largest);
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) v[e] = v[e] != v[e] ? v[e] : RoundE2M1(v[e] / scale) * scale;
}

// Byte of the least power of two that brings amax to at most 448 (E4M3) or 6 (E2M1), from amax's own exponent; 255 for
// what is not finite.
HADAL_DEVICE int ScaleByte(float amax, int exponent_of_top, unsigned mantissa_of_top) {
  const unsigned bits = FloatBits(amax);
  const int exponent = static_cast<int>(bits >> 23);
  if (exponent == 255) return 255;
  const int byte = exponent - exponent_of_top + ((bits & 0x7FFFFFu) > mantissa_of_top ? 1 : 0);
  return byte < 0 ? 0 : byte;
}
HADAL_DEVICE int E4M3ScaleByte(float amax) { return ScaleByte(amax > 1e-4f ? amax : 1e-4f, 8, 0x600000u); }
HADAL_DEVICE int E2M1ScaleByte(float amax) {
  const float least = 6.0f * BitsFloat(1u << 23);
  return ScaleByte(amax > least ? amax : least, 2, 0x400000u);
}
// v / 2^(byte - 127), in two steps that both stay in fp32's range.
HADAL_DEVICE float Unscale(float v, int byte) {
  const int n = 127 - byte;
  const int first = n / 2;
  return v * BitsFloat(static_cast<unsigned>(127 + first) << 23) *
         BitsFloat(static_cast<unsigned>(127 + n - first) << 23);
}

// Eight bytes, of which the first `count` belong to the row.
HADAL_DEVICE void StoreCodes(unsigned char* at, int64_t count, const uint8_t* codes) {
  if (count >= kVec && IsAligned(at, 8)) {
    uint64_t word = 0;
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) word |= static_cast<uint64_t>(codes[e]) << (8 * e);
    *reinterpret_cast<uint64_t*>(at) = word;
    return;
  }
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) {
    if (e < count) at[e] = codes[e];
  }
}
HADAL_DEVICE void StoreWord(unsigned char* at, uint32_t word) {
  if (IsAligned(at, 4)) {
    *reinterpret_cast<uint32_t*>(at) = word;
    return;
  }
  HADAL_UNROLL
  for (int b = 0; b < 4; ++b) at[b] = static_cast<unsigned char>(word >> (8 * b));
}

// The values of v behind the e4m3 ones, as bf16.
HADAL_DEVICE void StoreTail(unsigned char* tail_bytes, int64_t i, int64_t wide, int64_t cols, const float* v) {
  auto* tail = reinterpret_cast<Bf16*>(tail_bytes);
  if (i >= wide) {
    StoreVec(tail + (i - wide), cols - i, v);
    return;
  }
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) {
    if (i + e >= wide && i + e < cols) tail[i + e - wide] = ToBf16(v[e]);
  }
}

HADAL_DEVICE void StorePlain(const ops::PagedRows& pool, RowAddress at, int64_t i, const float* v) {
  if (pool.dtype == DType::kF32) {
    StoreVec(reinterpret_cast<float*>(at.values) + i, pool.cols - i, v);
  } else {
    StoreVec(reinterpret_cast<Bf16*>(at.values) + i, pool.cols - i, v);
  }
}

// A latent row (window or compressed KV): values [i, i + 8) of it. Whole groups of lanes call it, with neighbouring i
// from a multiple of 256; `simulated` leading values of a plain row are rounded as packed ones are.
HADAL_DEVICE void StoreLatent(const ops::PagedRows& pool, const RowSizes& sizes, RowAddress at, int64_t i,
                              int64_t simulated, float* v) {
  const int64_t wide = pool.format == ops::RowFormat::kPlain ? simulated : pool.cols - pool.tail;
  float quantised[kVec];
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) quantised[e] = i + e < wide ? v[e] : 0.0f;
  const bool wide_groups = pool.format == ops::RowFormat::kFp8DsMla656;
  const float largest = LanesMax(LargestMagnitude(quantised), (wide_groups ? kFp8WideGroup : kFp8RowGroup) / kVec);
  if (pool.format == ops::RowFormat::kPlain) {
    SimulateE4M3(quantised, largest);
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) v[e] = i + e < wide ? quantised[e] : v[e];
    StorePlain(pool, at, i, v);
    return;
  }
  uint8_t codes[kVec];
  if (wide_groups) {
    const float least = BitsFloat(1u << 23);
    const float amax = largest * (1.0f / 448.0f);
    const float scale = amax > least ? amax : least;
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) codes[e] = FloatToE4M3(quantised[e] / scale);
    if (i < wide && i % kFp8WideGroup == 0) StoreWord(at.scales + i / kFp8WideGroup * 4, FloatBits(scale));
    StoreTail(at.scales + CeilDiv(wide, kFp8WideGroup) * 4, i, wide, pool.cols, v);
  } else {
    const int byte = E4M3ScaleByte(largest);
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) codes[e] = FloatToE4M3(Unscale(quantised[e], byte));
    if (i < wide && i % kFp8RowGroup == 0) at.scales[i / kFp8RowGroup] = static_cast<unsigned char>(byte);
    if (i == 0) {
      for (int64_t s = CeilDiv(wide, kFp8RowGroup); s < sizes.scale_bytes; ++s) at.scales[s] = 0;
    }
    StoreTail(at.values + wide, i, wide, pool.cols, v);
  }
  StoreCodes(at.values + i, wide - i, codes);
}

// A V4 indexer key, on the same terms; kPlain or kMxfp4.
HADAL_DEVICE void StoreFp4Key(const ops::PagedRows& pool, RowAddress at, int64_t i, bool simulate, float* v) {
  constexpr int kLanes = kFp4RowGroup / kVec;
  const float largest = LanesMax(LargestMagnitude(v), kLanes);
  if (pool.format == ops::RowFormat::kPlain) {
    if (simulate) SimulateE2M1(v, largest);
    StorePlain(pool, at, i, v);
    return;
  }
  float nan = 0;
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) nan = v[e] != v[e] ? 1.0f : nan;
  nan = LanesMax(nan, kLanes);
  const int byte = nan > 0 ? 255 : E2M1ScaleByte(largest);
  uint32_t word = 0;
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) word |= (nan > 0 ? 0u : FloatToE2M1(Unscale(v[e], byte))) << (4 * e);
  if (i >= pool.cols) return;
  if (i % kFp4RowGroup == 0) at.scales[i / kFp4RowGroup] = static_cast<unsigned char>(byte);
  StoreWord(at.values + i / 2, word);
}

}  // namespace hadal::gpu::HADAL_GPU_NS
