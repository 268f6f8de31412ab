// What the attention kernels on the matrix unit share: a tile of queries in shared memory against a chunk of rows.
//
// A query's rows are taken in chunks of kChunk. Each chunk is summed by itself, with its own largest score, and then
// merged into what came before, so that a sum over chunks has the same bits whether one block takes them in turn or
// each has its own. A score is the sum over even steps of 16 dimensions plus the sum over odd ones, whatever number of
// waves computes it. A probability is two bf16 numbers, 16 bits together (docs/numerics.md).
#pragma once

#include "platforms/gpu/mma.h"

// Before a loop whose index must be known when it is compiled, so that what it indexes stays in registers.
#if HADAL_GPU_EMULATED
#define HADAL_UNROLL
#else
#define HADAL_UNROLL _Pragma("unroll")
#endif

namespace hadal::gpu::HADAL_GPU_NS {

inline constexpr int kAttentionWaves = 8;
#if HADAL_GPU_HIP
inline constexpr int kAttentionThreads = kAttentionWaves * 64;
#else
inline constexpr int kAttentionThreads = kAttentionWaves * 32;
#endif

HADAL_DEVICE float MinusInfinity() { return BitsFloat(0xFF800000u); }

// a in the lower half.
HADAL_DEVICE uint32_t PackBf16(float a, float b) {
#if HADAL_GPU_CUDA
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(b), "f"(a));
  return packed;
#else
  return static_cast<uint32_t>(ToBf16(a).bits) | static_cast<uint32_t>(ToBf16(b).bits) << 16;
#endif
}

// How a sum with the largest score `top` takes up another: sum = sum*kept + other*added.
struct Merge {
  float top, kept, added;
};
HADAL_DEVICE Merge MergeOf(float top, float other) {
  if (other == MinusInfinity()) return {top, 1.0f, 0.0f};
  const float largest = top > other ? top : other;
  return {largest, expf(top - largest), expf(other - largest)};
}

// Sums of even and of odd steps lie apart where waves divide them.
HADAL_HOST_DEVICE constexpr int ScorePlanes(int query_tiles) { return query_tiles == 1 ? 2 : 1; }
HADAL_HOST_DEVICE constexpr int ScoreStride(int chunk) { return chunk + 4; }
HADAL_HOST_DEVICE constexpr int ProbabilityStride(int chunk) { return chunk + 8; }

// scores[16*kQueryTiles, kChunk] = q * rows^T over 16*steps dimensions, of the first 16*row_tiles rows.
template <int kQueryTiles, int kChunk>
HADAL_DEVICE void ComputeScores(const Bf16* q, const Bf16* rows, int row_tiles, int stride, int steps, float* scores) {
  constexpr int kRowTiles = kChunk / 16;
  constexpr int kStride = ScoreStride(kChunk);
  if constexpr (kQueryTiles == 1) {
    for (int task = WaveX(); task < 2 * kRowTiles; task += kAttentionWaves) {
      const int tile = task % kRowTiles;
      const int parity = task / kRowTiles;
      if (tile >= row_tiles) continue;
      Tile::C sum;
      Tile::Zero(&sum);
      for (int k = parity; k < steps; k += 2) {
        Tile::A a;
        Tile::B b;
        Tile::LoadA(&a, q + k * 16, stride);
        Tile::LoadB(&b, rows + tile * 16 * stride + k * 16, stride);
        Tile::Multiply(&sum, a, b);
      }
      float* out = scores + parity * 16 * kStride + tile * 16;
      for (int i = 0; i < Tile::Sums(); ++i) out[Tile::Row(i) * kStride + Tile::Col(i)] = sum.v[i];
    }
  } else {
    static_assert(kQueryTiles % 2 == 0);
    for (int task = WaveX(); task < kQueryTiles / 2 * kRowTiles; task += kAttentionWaves) {
      const int tile = task % kRowTiles;
      const int query = task / kRowTiles * 2;
      if (tile >= row_tiles) continue;
      Tile::C sums[2][2];  // [query tile][parity]
      for (auto& pair : sums) {
        for (Tile::C& c : pair) Tile::Zero(&c);
      }
      for (int k = 0; k < steps; k += 2) {
        HADAL_UNROLL
        for (int parity = 0; parity < 2; ++parity) {
          if (k + parity >= steps) break;
          Tile::A a[2];
          Tile::B b;
          Tile::LoadB(&b, rows + tile * 16 * stride + (k + parity) * 16, stride);
          for (int m = 0; m < 2; ++m) Tile::LoadA(&a[m], q + (query + m) * 16 * stride + (k + parity) * 16, stride);
          for (int m = 0; m < 2; ++m) Tile::Multiply(&sums[m][parity], a[m], b);
        }
      }
      for (int m = 0; m < 2; ++m) {
        float* out = scores + (query + m) * 16 * kStride + tile * 16;
        for (int i = 0; i < Tile::Sums(); ++i) {
          out[Tile::Row(i) * kStride + Tile::Col(i)] = sums[m][0].v[i] + sums[m][1].v[i];
        }
      }
    }
  }
}

// The scores of one query of a chunk, those of rows that it does not see minus infinity; a group works on it, and a
// lane holds columns lane, lane + 32, ...
template <int kQueryTiles, int kChunk>
struct QueryScores {
  static constexpr int kColumns = kChunk / kGroup;
  float v[kColumns];
  float top;  // the largest

  HADAL_DEVICE QueryScores(const float* scores, int query, float scale, const uint8_t* seen) {
    constexpr int kStride = ScoreStride(kChunk);
    top = MinusInfinity();
    for (int i = 0; i < kColumns; ++i) {
      const int c = Lane() + kGroup * i;
      float sum = scores[query * kStride + c];
      if constexpr (kQueryTiles == 1) sum += scores[(16 + query) * kStride + c];
      v[i] = seen[c] != 0 ? sum * scale : MinusInfinity();
      top = top > v[i] ? top : v[i];
    }
    top = GroupMax(top);
  }

  // v = e^(v - top); returns their sum.
  HADAL_DEVICE float Exponentiate() {
    float sum = 0;
    for (int i = 0; i < kColumns; ++i) sum += v[i] = top == MinusInfinity() ? 0.0f : expf(v[i] - top);
    return GroupSum(sum);
  }

  HADAL_DEVICE void Store(int query, Bf16* high, Bf16* low) const {
    constexpr int kStride = ProbabilityStride(kChunk);
    for (int i = 0; i < kColumns; ++i) {
      const int at = query * kStride + Lane() + kGroup * i;
      high[at] = ToBf16(v[i]);
      if (low != nullptr) low[at] = ToBf16(v[i] - ToFloat(high[at]));
    }
  }
};

// The probabilities of 16 queries, in registers.
template <int kChunk, bool kLow>
struct Probabilities {
  static constexpr int kSteps = kChunk / 16;
  Tile::A high[kSteps];
  Tile::A low[kLow ? kSteps : 1];
  int row_tiles;  // those behind are 0

  HADAL_DEVICE Probabilities(const Bf16* high_at, const Bf16* low_at, int tiles) : row_tiles(tiles) {
    constexpr int kStride = ProbabilityStride(kChunk);
    HADAL_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      if (k >= row_tiles) break;
      Tile::LoadA(&high[k], high_at + k * 16, kStride);
      if constexpr (kLow) Tile::LoadA(&low[k], low_at + k * 16, kStride);
    }
  }

  // The chunk's sum of 16 columns of values [kChunk, 16].
  HADAL_DEVICE Tile::C Multiply(const Bf16* values, int stride) const {
    Tile::C sum;
    Tile::Zero(&sum);
    HADAL_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      if (k >= row_tiles) break;
      Tile::B b;
      Tile::LoadBTransposed(&b, values + k * 16 * stride, stride);
      Tile::Multiply(&sum, high[k], b);
      if constexpr (kLow) Tile::Multiply(&sum, low[k], b);
    }
    return sum;
  }
};

}  // namespace hadal::gpu::HADAL_GPU_NS
