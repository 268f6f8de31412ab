// Products of activations with weights in their published formats, for the kernels of linear.cu and moe.cu: what a
// block does. Two ways, for few and for many rows, with the same bits:
//
//  - The inputs are cut into chunks of 128. A chunk's sum is made by the matrix unit, sixteen inputs at a time in an
//    order that depends on the weight's format alone; times the scale of the FP8 block it is added to the total, chunk
//    after chunk. Neither the number of rows nor the split of the work over waves and blocks shows in a result.
//  - Codes are decoded to bf16 in registers, where a lane needs them: each quarter of the lanes that share an output
//    takes 16 consecutive bytes of its row, and the inputs that fall together in a step of the matrix unit follow from
//    that (the activations' fragments take the same ones). Products are exact, so that only this order matters.
#pragma once

#include "platforms/gpu/kernels/linear.h"
#include "platforms/gpu/mma.h"

namespace hadal::gpu::HADAL_GPU_NS {

enum class WeightFormat { kFp8, kFp4, kBf16, kF32 };

inline constexpr int kChunk = 128;  // inputs whose sum is made at once: a block of FP8 scales

struct Matrix {
  const void* data = nullptr;
  const void* scale = nullptr;
};

// Rows of activations times rows of a weight, or of two weights of one shape.
struct Problem {
  const void* x = nullptr;  // bf16, or fp32 in f32 numerics
  int64_t x_stride = 0;
  const int32_t* x_rows = nullptr;  // which row of x row i is; null: i
  int rows = 0;
  Matrix weights[2];
  int weight_row = 0;  // row of the weight that output 0 is
  int n = 0;
  int k = 0;
  bool float_scales = false;  // FP8: fp32 instead of E8M0

  // Of tile t of a pair; a choice and no index, which would move the problem out of registers.
  HADAL_DEVICE const void* PairData(int t) const { return t % 2 != 0 ? weights[1].data : weights[0].data; }

  HADAL_DEVICE int64_t XRow(int row) const { return x_rows == nullptr ? row : x_rows[row]; }
};

HADAL_DEVICE constexpr bool HasScaledChunks(WeightFormat format) { return format == WeightFormat::kFp8; }

// Bytes of n consecutive weights of a row.
template <WeightFormat kFormat>
HADAL_HOST_DEVICE int64_t CodeBytes(int64_t n) {
  return kFormat == WeightFormat::kFp8    ? n
         : kFormat == WeightFormat::kFp4  ? n / 2
         : kFormat == WeightFormat::kBf16 ? 2 * n
                                          : 4 * n;
}
// How often a lane reads 16 bytes of one row in a chunk; 64 bytes lie between two of them.
template <WeightFormat kFormat>
HADAL_HOST_DEVICE constexpr int Units() {
  return kFormat == WeightFormat::kFp8 ? 2 : kFormat == WeightFormat::kFp4 ? 1 : 4;
}

// A chunk is four pairs of steps. The eight inputs that a quarter of the lanes holds in both steps of a pair.
template <WeightFormat kFormat>
HADAL_DEVICE int PairInput(int pair, int quarter) {
  return kFormat == WeightFormat::kFp8   ? pair / 2 * 64 + quarter * 16 + pair % 2 * 8
         : kFormat == WeightFormat::kFp4 ? quarter * 32 + pair * 8
                                         : pair * 32 + quarter * 8;
}
// Eight inputs as they follow in a row, as the words of the pair's steps.
template <WeightFormat kFormat>
HADAL_DEVICE void ArrangeInputs(Bytes16* x) {
  if constexpr (kFormat == WeightFormat::kFp4) {  // as DecodeE2M1 gives weights
    const Bytes16 in = *x;
    x->words[0] = BytePermute(in.words[0], in.words[2], 0x5410);
    x->words[1] = BytePermute(in.words[0], in.words[2], 0x7632);
    x->words[2] = BytePermute(in.words[1], in.words[3], 0x5410);
    x->words[3] = BytePermute(in.words[1], in.words[3], 0x7632);
  }
}
// The weights of a pair of steps from what a lane read of a row's chunk (units).
template <WeightFormat kFormat>
HADAL_DEVICE void DecodePair(const Bytes16* units, int pair, const E2M1Factor& factor, uint32_t* words) {
  if constexpr (kFormat == WeightFormat::kFp8) {
    const uint32_t* codes = units[pair / 2].words + pair % 2 * 2;
    DecodeE4M3(codes[0], words, words + 1);
    DecodeE4M3(codes[1], words + 2, words + 3);
  } else if constexpr (kFormat == WeightFormat::kFp4) {
    DecodeE2M1(units[0].words[pair], factor, words);
  } else {
    HADAL_UNROLL for (int i = 0; i < 4; ++i) words[i] = units[pair].words[i];
  }
}

// The bytes from `at` on of a row of row_bytes, zero behind its end; kAligned: wholly in or behind it, on 16 bytes.
template <bool kAligned, bool kOnce>
HADAL_DEVICE Bytes16 LoadUnit(const unsigned char* row, int at, int row_bytes) {
  Bytes16 out = {};
  if (row == nullptr || at >= row_bytes) return out;
  if constexpr (kAligned) {
    out = kOnce ? LoadOnce16(row + at) : *reinterpret_cast<const Bytes16*>(row + at);
  } else {
    for (int i = 0; i < 16 && at + i < row_bytes; ++i) {
      out.words[i / 4] |= static_cast<uint32_t>(row[at + i]) << (i % 4 * 8);
    }
  }
  return out;
}

HADAL_DEVICE float Fp8Scale(const Problem& p, const Matrix& w, int row, int chunk) {
  const int64_t at = static_cast<int64_t>(row / kChunk) * CeilDiv(p.k, kChunk) + chunk;
  return p.float_scales ? static_cast<const float*>(w.scale)[at]
                        : E8M0ToFloat(static_cast<const uint8_t*>(w.scale)[at]);
}
// The scale byte of the 32 inputs of a chunk that the lane's quarter reads.
HADAL_DEVICE uint8_t Fp4Scale(const Problem& p, const Matrix& w, int row, int chunk) {
  const int block = chunk * 4 + Tile::Quarter();
  if (block >= p.k / 32) return 127;
  return static_cast<const uint8_t*>(w.scale)[static_cast<int64_t>(row) * (p.k / 32) + block];
}

// Output of column j of tile t of a strip that begins at n0: of two weights, even tiles are of the first.
template <bool kPaired>
HADAL_DEVICE int TileOutput(int n0, int t, int j) {
  return n0 + (kPaired ? t / 2 : t) * Tile::kN + j;
}

// total += sum of a chunk, times the scales of FP8 blocks.
template <WeightFormat kFormat>
HADAL_DEVICE void AddChunk(const Tile::C& sum, const float* scales, Tile::C* total) {
  HADAL_UNROLL for (int i = 0; i < Tile::Sums(); ++i) {
    total->v[i] += HasScaledChunks(kFormat) ? sum.v[i] * scales[i] : sum.v[i];
  }
}
template <WeightFormat kFormat, bool kPaired>
HADAL_DEVICE void LoadScales(const Problem& p, int n0, int t, int chunk, float* scales) {
  if constexpr (HasScaledChunks(kFormat)) {
    HADAL_UNROLL for (int i = 0; i < Tile::Sums(); ++i) {
      const int output = TileOutput<kPaired>(n0, t, Tile::Col(i));
      scales[i] = output < p.n ? Fp8Scale(p, p.weights[kPaired ? t % 2 : 0], p.weight_row + output, chunk) : 0.0f;
    }
  }
}

// ---- Few rows: the weights are read once, from memory to the wave that multiplies them, and waited for as little as
// possible. A block takes every BlocksX()-th strip of outputs; its waves share out the chunks of all its strips in turn
// (an item is a chunk of a strip), and each runs ahead of itself through a ring of asynchronous copies that strips do
// not end. Memory of 4.8 TB/s and 800 ns keeps 29 KB under way on each of 132 multiprocessors; the rings of two blocks
// ask for twice that and more. Items' sums go to shared memory, where a round of them is added in order while the waves
// are at the next round.

// Most waves of a block, and how many leave room for a second block.
inline constexpr int kStripWaves = 16;
inline constexpr int kSharingWaves = 8;

// The ring of a wave: a lane copies what it will read itself, so that nobody else has to wait for it. Where there are
// no asynchronous copies codes go to registers, an item ahead where they fit.
template <WeightFormat kFormat, bool kAligned, int kNT>
struct StripRing {
  static constexpr bool kUsed = kAligned && kAsyncCopies;
  static constexpr int kCodeBytes = kNT * Tile::kN * Units<kFormat>() * 64;  // of an item
  static constexpr int kSlots = kCodeBytes <= 1024 ? 6 : kCodeBytes <= 2048 ? 3 : 2;
  // Words around the scales that a lane needs of a tile, E8M0 or fp32.
  static constexpr int kScales = kFormat == WeightFormat::kBf16 ? 0 : 2;
  HADAL_HOST_DEVICE static int SlotBytes(int lanes) {
    return kCodeBytes + kNT * kScales * lanes * static_cast<int>(sizeof(uint32_t));
  }
  static int Bytes(int lanes) { return kUsed ? kSlots * SlotBytes(lanes) : 0; }
};

struct StripShape {
  int blocks = 1;
  int waves = 1;
  int rows = 1;         // most rows of a problem
  int ring_bytes = 0;   // of a wave
  int round_items = 1;  // whose sums are added at a time, a multiple of the waves
  size_t shared_bytes = 0;
};

struct StripNeeds {
  int rows = 1;   // most rows of a problem
  int width = 1;  // columns of sums of a strip
  int chunks = 1;
  int64_t strips = 1;
  int ring_bytes = 0;
  int most_waves = kStripWaves;
};

inline StripShape MakeStripShape(const StripNeeds& needs, const ProductDevice& device) {
  constexpr int kRoundBytes = 8 * 1024;
  StripShape shape;
  shape.rows = needs.rows;
  shape.ring_bytes = needs.ring_bytes;
  shape.blocks =
      static_cast<int>(needs.strips < 2 * device.multiprocessors ? needs.strips : 2 * device.multiprocessors);
  const int64_t items = CeilDiv(needs.strips, shape.blocks) * needs.chunks;
  const bool alone = needs.strips <= device.multiprocessors;
  shape.waves = alone || needs.most_waves < kSharingWaves ? needs.most_waves : kSharingWaves;
  if (shape.waves > items) shape.waves = static_cast<int>(items);
  const int sum_bytes = needs.rows * needs.width * static_cast<int>(sizeof(float));
  const auto bytes = [&](int round_items) {
    return static_cast<size_t>(shape.waves) * shape.ring_bytes + static_cast<size_t>(2 * round_items + 2) * sum_bytes;
  };
  while (shape.waves > 1 && bytes(shape.waves) > device.shared_bytes) --shape.waves;
  const int64_t turns = CeilDiv(items, shape.waves), fit = kRoundBytes / (shape.waves * sum_bytes);
  shape.round_items = shape.waves * static_cast<int>(fit < 1 ? 1 : fit < turns ? fit : turns);
  shape.shared_bytes = bytes(shape.round_items);
  return shape;
}

// A strip of a problem and where its results go. Store is called with (row, output, value) or, of a pair of weights,
// (row, output, value of the first, value of the second).
template <typename Store>
struct Strip {
  Problem problem;
  int n0 = 0;  // its first output
  Store store;
};

// Where a lane reads a strip's weights. Outputs behind the last one are taken to be that one; nobody stores them.
template <WeightFormat kFormat, bool kPaired, int kNT>
struct StripWeights {
  const unsigned char* codes[kNT] = {};   // of the row that it holds first
  const unsigned char* scales[kNT] = {};  // FP4: of that row; FP8: of the block that the tile's first output is in
  int to_second[kNT] = {};                // bytes from there to the second row that it holds
  int to_second_scales[kNT] = {};         // FP4: the same; FP8: to the block that the tile's last output is in
  int split[kNT] = {};                    // FP8: column from which on outputs are in that block

  HADAL_DEVICE void Find(const Problem& p, int n0) {
    HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
      const Matrix& w = p.weights[kPaired ? t % 2 : 0];
      const int first = TileOutput<kPaired>(n0, t, 0);
      const auto row_of = [&](int column) { return p.weight_row + (first + column < p.n ? first + column : p.n - 1); };
      const int row = row_of(Tile::HeldRow(0));
      const int rows = row_of(Tile::HeldRow(Tile::Held() - 1)) - row;
      const auto row_bytes = static_cast<int>(CodeBytes<kFormat>(p.k));
      codes[t] = static_cast<const unsigned char*>(w.data) + static_cast<int64_t>(row) * row_bytes;
      to_second[t] = rows * row_bytes;
      const auto* base = static_cast<const unsigned char*>(w.scale);
      if constexpr (kFormat == WeightFormat::kFp8) {
        const int block = row_of(0) / kChunk;
        const int64_t block_bytes = CeilDiv(p.k, kChunk) * (p.float_scales ? 4 : 1);
        scales[t] = base + block * block_bytes;
        to_second_scales[t] = (row_of(Tile::kN - 1) / kChunk - block) * static_cast<int>(block_bytes);
        split[t] = (block + 1) * kChunk - p.weight_row - first;
      } else if constexpr (kFormat == WeightFormat::kFp4) {
        scales[t] = base + static_cast<int64_t>(row) * (p.k / 32) + Tile::Quarter();
        to_second_scales[t] = rows * (p.k / 32);
      }
    }
  }
  HADAL_DEVICE const unsigned char* Scale(int t, int i, int chunk, bool wide) const {
    return scales[t] + i * to_second_scales[t] + chunk * (kFormat == WeightFormat::kFp4 || wide ? 4 : 1);
  }
};

// An item's weights as a lane holds them. scales: FP8 the bits of the two blocks' scales, FP4 the bytes of its rows.
template <WeightFormat kFormat, int kNT>
struct StripCodes {
  Bytes16 units[kNT][2][Units<kFormat>()];
  uint32_t scales[kNT][2];
};

// Work: `strips` strips of `chunks` chunks, inputs k and scales as float_scales says in all of them; At(i) is strip i.
// `skipped` strips went before them in another call: blocks go on where they were.
template <WeightFormat kFormat, bool kAligned, bool kPaired, int kMT, int kNT, typename Work>
HADAL_DEVICE void StripProducts(const Work& work, int skipped, const StripShape& shape, unsigned char* shared) {
  using Ring = StripRing<kFormat, kAligned, kNT>;
  using Weights = StripWeights<kFormat, kPaired, kNT>;
  using Codes = StripCodes<kFormat, kNT>;
  constexpr int kUnits = Units<kFormat>();
  constexpr int kWidth = Tile::kN * kNT;
  constexpr bool kAhead = !Ring::kUsed && kUnits * kNT * kMT <= 2;  // the next item's codes fit into registers
  const int waves = ThreadsX() / WaveLanes();
  const int wave = WaveX();
  const int quarter = Tile::Quarter();
  const int k = work.k, chunks = work.chunks;
  const bool wide_scales = work.float_scales;
  const int row_bytes = static_cast<int>(CodeBytes<kFormat>(k));
  const int first_strip = (BlockX() + BlocksX() - skipped % BlocksX()) % BlocksX();
  const int strips = work.strips > first_strip ? (work.strips - first_strip - 1) / BlocksX() + 1 : 0;  // of this block
  const int items = strips * chunks;
  const auto strip_at = [&](int i) { return work.At(first_strip + i * BlocksX()); };
  const auto move = [&](int by, int* strip, int* chunk) {
    for (*chunk += by; *chunk >= chunks; ++*strip) *chunk -= chunks;
  };

  // The ring's end that is filled.
  unsigned char* const ring = shared + wave * shape.ring_bytes;
  const int slot_bytes = Ring::SlotBytes(WaveLanes());
  Weights ahead_weights;
  Codes next;
  int ahead_strip = 0, ahead_chunk = 0, ahead_found = -1, ahead_slot = 0;
  move(wave, &ahead_strip, &ahead_chunk);
  const auto each_unit = [&](int chunk, const auto& visit) {
    HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
      HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) {
        HADAL_UNROLL for (int u = 0; u < kUnits; ++u) visit(t, i, u, (chunk * kUnits + u) * 64 + quarter * 16);
      }
    }
  };
  const auto each_scale = [&](int chunk, const auto& visit) {  // present: in the row
    HADAL_UNROLL for (int t = 0; t < (Ring::kScales > 0 ? kNT : 0); ++t) {
      const int count = kFormat == WeightFormat::kFp4 ? Tile::Held() : 2;
      const bool present = kFormat != WeightFormat::kFp4 || chunk * 4 + quarter < k / 32;
      HADAL_UNROLL for (int i = 0; i < count; ++i) visit(t, i, present);
    }
  };
  const auto code_slot = [&](int t, int i, int u) {
    return (((t * Tile::Held() + i) * kUnits + u) * WaveLanes() + WaveLane()) * 16;
  };
  const auto scale_slot = [&](int t, int i) {
    return Ring::kCodeBytes + ((t * 2 + i) * WaveLanes() + WaveLane()) * static_cast<int>(sizeof(uint32_t));
  };
  const auto copy = [&](const Weights& w, int chunk, unsigned char* slot) {
    each_unit(chunk, [&](int t, int i, int u, int at) {
      const bool present = at < row_bytes;
      CopyAsync16(slot + code_slot(t, i, u), w.codes[t] + i * w.to_second[t] + (present ? at : 0), present);
    });
    // Bytes are copied with the word that they lie in.
    each_scale(chunk, [&](int t, int i, bool present) {
      const auto at = reinterpret_cast<uintptr_t>(w.Scale(t, i, present ? chunk : 0, wide_scales));
      CopyAsync4(slot + scale_slot(t, i), reinterpret_cast<const void*>(at - at % 4), present);
    });
  };
  const auto take = [&](const Weights& w, int chunk, const unsigned char* slot, Codes* codes) {
    each_unit(chunk, [&](int t, int i, int u, int) {
      codes->units[t][i][u] = *reinterpret_cast<const Bytes16*>(slot + code_slot(t, i, u));
    });
    each_scale(chunk, [&](int t, int i, bool) {
      const uint32_t word = *reinterpret_cast<const uint32_t*>(slot + scale_slot(t, i));
      const auto byte = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(w.Scale(t, i, chunk, wide_scales)) % 4);
      codes->scales[t][i] = kFormat == WeightFormat::kFp8 && wide_scales ? word : BytePermute(word, 0, 0x4440u | byte);
    });
  };
  const auto load = [&](const Weights& w, int chunk, Codes* codes) {
    each_unit(chunk, [&](int t, int i, int u, int at) {
      codes->units[t][i][u] = LoadUnit<kAligned, true>(w.codes[t] + i * w.to_second[t], at, row_bytes);
    });
    each_scale(chunk, [&](int t, int i, bool present) {
      const unsigned char* at = w.Scale(t, i, present ? chunk : 0, wide_scales);
      codes->scales[t][i] = kFormat == WeightFormat::kFp8 && wide_scales
                                ? FloatBits(*reinterpret_cast<const float*>(at))
                            : present ? *at
                                      : 0u;
    });
  };
  const auto fetch = [&] {
    if (ahead_strip < strips) {
      if (ahead_found != ahead_strip) {
        const auto strip = strip_at(ahead_strip);
        ahead_weights.Find(strip.problem, strip.n0);
        ahead_found = ahead_strip;
      }
      if constexpr (Ring::kUsed) {
        copy(ahead_weights, ahead_chunk, ring + ahead_slot * slot_bytes);
        ahead_slot = ahead_slot + 1 < Ring::kSlots ? ahead_slot + 1 : 0;
      } else {
        load(ahead_weights, ahead_chunk, &next);
      }
      move(waves, &ahead_strip, &ahead_chunk);
    }
    CommitAsync();
  };
  if constexpr (Ring::kUsed || kAhead) {
    HADAL_UNROLL for (int i = 0; i < (Ring::kUsed ? Ring::kSlots - 1 : 1); ++i) fetch();
  }

  const int sums = shape.rows * kWidth;
  auto* const partial = reinterpret_cast<float*>(shared + waves * shape.ring_bytes);
  float* const carried = partial + 2 * shape.round_items * sums;  // of a strip that a round ends in, [2][sums]
  // Adds the sums of items [first, end).
  const auto combine = [&](int first, int end, int round) {
    constexpr int kOutputs = kPaired ? kWidth / 2 : kWidth;
    const int before = first / chunks, count = static_cast<int>(CeilDiv(end, chunks)) - before;
    const float* from_round = partial + round % 2 * shape.round_items * sums;
    for (int i = ThreadX(); i < count * shape.rows * kOutputs; i += ThreadsX()) {
      const int s = before + i / (shape.rows * kOutputs), row = i / kOutputs % shape.rows, j = i % kOutputs;
      const auto strip = strip_at(s);
      if (row >= strip.problem.rows || strip.n0 + j >= strip.problem.n) continue;
      const int begin = s * chunks > first ? s * chunks : first, last = (s + 1) * chunks < end ? (s + 1) * chunks : end;
      const int at = row * kWidth + (kPaired ? j / Tile::kN * 2 * Tile::kN + j % Tile::kN : j);
      float totals[2] = {};
      HADAL_UNROLL for (int w = 0; w < (kPaired ? 2 : 1); ++w) {
        float total = begin == s * chunks ? 0.0f : carried[(round + 1) % 2 * sums + at + w * Tile::kN];
        const float* from = from_round + (begin - first) * sums + at + w * Tile::kN;
        for (int item = begin; item < last; ++item, from += sums) total += *from;
        totals[w] = total;
        if (last < (s + 1) * chunks) carried[round % 2 * sums + at + w * Tile::kN] = total;
      }
      if (last < (s + 1) * chunks) continue;
      if constexpr (kPaired) {
        strip.store(row, strip.n0 + j, totals[0], totals[1]);
      } else {
        strip.store(row, strip.n0 + j, totals[0]);
      }
    }
  };

  Weights weights;
  const unsigned char* x_row[kMT][2] = {};
  int rows = 0, strip = 0, chunk = 0, found = -1, slot = 0;
  move(wave, &strip, &chunk);
  int item = wave;
  for (int first = 0, round = 0; first < items; first += shape.round_items, ++round) {
    const int end = first + shape.round_items < items ? first + shape.round_items : items;
    for (; item < end; item += waves, move(waves, &strip, &chunk)) {
      if (found != strip) {
        found = strip;
        const auto now = strip_at(strip);
        const Problem& p = now.problem;
        weights.Find(p, now.n0);
        rows = p.rows;
        HADAL_UNROLL for (int m = 0; m < kMT; ++m) {
          HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) {
            const int row = m * Tile::kM + Tile::HeldRow(i);
            x_row[m][i] = row < rows ? static_cast<const unsigned char*>(p.x) + p.XRow(row) * p.x_stride * 2 : nullptr;
          }
        }
      }
      // Inputs of 16 rows are all asked for before the first product; of more, a pair of steps ahead.
      constexpr int kPairsAhead = kMT == 1 ? 4 : 2;
      Bytes16 inputs[kPairsAhead][kMT][2];
      const auto load_inputs = [&](int pair) {
        HADAL_UNROLL for (int m = 0; m < kMT; ++m) {
          HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) {
            inputs[pair % kPairsAhead][m][i] =
                LoadUnit<kAligned, false>(x_row[m][i], (chunk * kChunk + PairInput<kFormat>(pair, quarter)) * 2, k * 2);
          }
        }
      };
      HADAL_UNROLL for (int pair = 0; pair < kPairsAhead; ++pair) load_inputs(pair);
      Codes codes;
      if constexpr (Ring::kUsed) {
        fetch();  // into the slot of the item before, which is in registers
        WaitAsync<Ring::kSlots - 1>();
        take(weights, chunk, ring + slot * slot_bytes, &codes);
        slot = slot + 1 < Ring::kSlots ? slot + 1 : 0;
      } else if constexpr (kAhead) {
        codes = next;
        fetch();
      } else {
        load(weights, chunk, &codes);
      }
      E2M1Factor factors[kNT][2] = {};
      if constexpr (kFormat == WeightFormat::kFp4) {
        HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
          HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) factors[t][i] =
              MakeE2M1Factor(static_cast<uint8_t>(codes.scales[t][i]));
        }
      }
      Tile::C sum[kMT][kNT];
      HADAL_UNROLL for (int m = 0; m < kMT; ++m) { HADAL_UNROLL for (int t = 0; t < kNT; ++t) Tile::Zero(&sum[m][t]); }
      HADAL_UNROLL for (int pair = 0; pair < 4; ++pair) {
        Tile::B b[kNT][2];
        HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
          HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) {
            uint32_t words[4];
            DecodePair<kFormat>(codes.units[t][i], pair, factors[t][i], words);
            HADAL_UNROLL for (int step = 0; step < 2; ++step)
                Tile::SetB(&b[t][step], i, words[2 * step], words[2 * step + 1]);
          }
        }
        HADAL_UNROLL for (int m = 0; m < kMT; ++m) {
          Tile::A a[2];
          HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) {
            Bytes16 in = inputs[pair % kPairsAhead][m][i];
            ArrangeInputs<kFormat>(&in);
            HADAL_UNROLL for (int step = 0; step < 2; ++step)
                Tile::SetA(&a[step], i, in.words[2 * step], in.words[2 * step + 1]);
          }
          HADAL_UNROLL for (int step = 0; step < 2; ++step) {
            HADAL_UNROLL for (int t = 0; t < kNT; ++t) Tile::Multiply(&sum[m][t], a[step], b[t][step]);
          }
        }
        if (pair + kPairsAhead < 4) load_inputs(pair + kPairsAhead);
      }
      float* to = partial + (round % 2 * shape.round_items + item - first) * sums;
      HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
        HADAL_UNROLL for (int i = 0; i < Tile::Sums(); ++i) {
          const int column = Tile::Col(i);
          float scale = 1.0f;
          if constexpr (HasScaledChunks(kFormat)) {
            const uint32_t bits = column < weights.split[t] ? codes.scales[t][0] : codes.scales[t][1];
            scale = wide_scales ? BitsFloat(bits) : E8M0ToFloat(static_cast<uint8_t>(bits));
          }
          HADAL_UNROLL for (int m = 0; m < kMT; ++m) {
            const int row = m * Tile::kM + Tile::Row(i);
            if (row >= rows) continue;
            const float v = sum[m][t].v[i];
            to[row * kWidth + t * Tile::kN + column] = HasScaledChunks(kFormat) ? v * scale : v;
          }
        }
      }
    }
    BlockSync();
    combine(first, end, round);
  }
}

// ---- Many rows: tiles of activations and of codes go through shared memory.

// kStages of them are under way: the AMD backend has too little shared memory for more than one.
#if HADAL_GPU_HIP
inline constexpr int kTileStages = 1;
#else
inline constexpr int kTileStages = 3;
#endif

// A block of kWavesM x kWavesN waves, each of which has 16*kMT rows and two tiles of columns.
template <int kTilesM, int kAcrossM, int kAcrossN>
struct TileShape {
  static constexpr int kMT = kTilesM, kNT = 2, kWavesM = kAcrossM, kWavesN = kAcrossN;
  static constexpr int kWaves = kWavesM * kWavesN;
  static constexpr int kRows = Tile::kM * kMT * kWavesM;
  static constexpr int kCols = Tile::kN * kNT * kWavesN;  // of a pair of weights half as many of each
  template <WeightFormat kFormat>
  static constexpr size_t SharedBytes() {
    return kTileStages * (kRows * kChunk * 2 + kCols * Units<kFormat>() * 64) + kRows * sizeof(int64_t);
  }
};
using LargeTile = TileShape<4, 2, 4>;  // 128 x 128
using SmallTile = TileShape<2, 2, 2>;  // 64 x 64

// Where 16 bytes of a row lie in shared memory, so that the eight lanes that read at once meet all banks.
template <WeightFormat kFormat>
HADAL_DEVICE int InputSlot(int row, int unit) {
  const int odd = row & 1;
  const int flip = kFormat == WeightFormat::kFp8   ? odd
                   : kFormat == WeightFormat::kFp4 ? (unit >> 3 & 1) ^ (odd << 1)
                                                   : odd << 2;
  return row * 16 + (unit ^ flip);
}
template <WeightFormat kFormat>
HADAL_DEVICE int CodeSlot(int row, int unit) {
  const int at = row * Units<kFormat>() * 4;
  return at + (kFormat == WeightFormat::kFp4 ? unit : unit ^ (row & 1) << 2);
}

// Rows m0 ... and columns n0 ... of one tile; store as a Strip's.
template <WeightFormat kFormat, bool kAligned, bool kPaired, typename Shape, typename Store>
HADAL_DEVICE void TileProduct(const Problem& p, int m0, int n0, unsigned char* shared, const Store& store) {
  constexpr int kUnits = Units<kFormat>(), kMT = Shape::kMT, kNT = Shape::kNT;
  constexpr int kInputUnits = Shape::kRows * 16, kCodeUnits = Shape::kCols * kUnits * 4;
  constexpr int kStages = kTileStages;
  const int chunks = static_cast<int>(CeilDiv(p.k, kChunk));
  const int row_bytes = static_cast<int>(CodeBytes<kFormat>(p.k));
  const int wave_m = WaveX() / Shape::kWavesN, wave_n = WaveX() % Shape::kWavesN;
  const int quarter = Tile::Quarter();
  auto* units = reinterpret_cast<Bytes16*>(shared);
  auto* x_offset = reinterpret_cast<int64_t*>(units + kStages * (kInputUnits + kCodeUnits));
  const auto* x = static_cast<const unsigned char*>(p.x);

  for (int row = ThreadX(); row < Shape::kRows; row += ThreadsX()) {
    x_offset[row] = m0 + row < p.rows ? p.XRow(m0 + row) * p.x_stride * 2 : -1;
  }
  BlockSync();

  // First output of the two tiles of the waves `across`, and column j's output: a wave has both tiles of a pair.
  const auto first_output = [&](int across) { return n0 + across * Tile::kN * (kPaired ? 1 : kNT); };
  const auto load = [&](int chunk, Bytes16* to) {
    for (int i = ThreadX(); i < kInputUnits; i += ThreadsX()) {
      const int row = i / 16, unit = i % 16;
      const int64_t offset = x_offset[row];
      Bytes16* slot = to + InputSlot<kFormat>(row, unit);
      const int at = chunk * kChunk * 2 + unit * 16;
      if constexpr (kAligned) {
        const bool present = offset >= 0 && at < p.k * 2;
        CopyAsync16(slot, present ? x + offset + at : x, present);
      } else {
        *slot = LoadUnit<false, false>(offset < 0 ? nullptr : x + offset, at, p.k * 2);
      }
    }
    for (int i = ThreadX(); i < kCodeUnits; i += ThreadsX()) {
      const int col = i / (kUnits * 4), unit = i % (kUnits * 4);
      const int t = col / Tile::kN % kNT;
      const int output = TileOutput<kPaired>(first_output(col / (Tile::kN * kNT)), t, col % Tile::kN);
      const auto* data = static_cast<const unsigned char*>(kPaired ? p.PairData(t) : p.weights[0].data);
      Bytes16* slot = to + kInputUnits + CodeSlot<kFormat>(col, unit);
      const int at = chunk * kUnits * 64 + unit * 16;
      const unsigned char* from = data + static_cast<int64_t>(p.weight_row + output) * row_bytes;
      if constexpr (kAligned) {
        const bool present = output < p.n && at < row_bytes;
        CopyAsync16(slot, present ? from + at : data, present);
      } else {
        *slot = LoadUnit<false, false>(output < p.n ? from : nullptr, at, row_bytes);
      }
    }
  };
  const auto load_fp4_scales = [&](int chunk, uint8_t(*scales)[2]) {
    if constexpr (kFormat == WeightFormat::kFp4) {
      HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
        HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) {
          const int output = TileOutput<kPaired>(first_output(wave_n), t, Tile::HeldRow(i));
          const bool present = output < p.n && chunk < chunks;
          scales[t][i] = present ? Fp4Scale(p, p.weights[kPaired ? t : 0], p.weight_row + output, chunk) : uint8_t{127};
        }
      }
    }
  };

  for (int s = 0; s < kStages - 1; ++s) {
    if (s < chunks) load(s, units + s * (kInputUnits + kCodeUnits));
    CommitAsync();
  }
  uint8_t fp4_scales[kNT][2] = {};
  load_fp4_scales(0, fp4_scales);

  Tile::C total[kMT][kNT];
  HADAL_UNROLL for (int m = 0; m < kMT; ++m) { HADAL_UNROLL for (int t = 0; t < kNT; ++t) Tile::Zero(&total[m][t]); }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int ahead = chunk + kStages - 1;
    if constexpr (kStages == 1) {
      BlockSync();
      load(chunk, units);
      CommitAsync();
      WaitAsync<0>();
      BlockSync();
    } else {
      WaitAsync<kStages - 2>();
      BlockSync();
      // Everyone is done with chunk - 1, whose stage this is.
      if (ahead < chunks) load(ahead, units + ahead % kStages * (kInputUnits + kCodeUnits));
      CommitAsync();
    }
    const Bytes16* inputs = units + chunk % kStages * (kInputUnits + kCodeUnits);
    const Bytes16* codes = inputs + kInputUnits;
    float scales[kNT][Tile::kSums];
    HADAL_UNROLL for (int t = 0; t < kNT; ++t)
        LoadScales<kFormat, kPaired>(p, first_output(wave_n), t, chunk, scales[t]);
    E2M1Factor factors[kNT][2] = {};
    if constexpr (kFormat == WeightFormat::kFp4) {
      HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
        HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) factors[t][i] = MakeE2M1Factor(fp4_scales[t][i]);
      }
      load_fp4_scales(chunk + 1, fp4_scales);
    }

    Tile::C sum[kMT][kNT];
    HADAL_UNROLL for (int m = 0; m < kMT; ++m) { HADAL_UNROLL for (int t = 0; t < kNT; ++t) Tile::Zero(&sum[m][t]); }
    Bytes16 held[kNT][2][kUnits];
    HADAL_UNROLL for (int pair = 0; pair < 4; ++pair) {
      Tile::B b[kNT][2];
      HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
        HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) {
          const int col = (wave_n * kNT + t) * Tile::kN + Tile::HeldRow(i);
          const int unit = pair * kUnits / 4;
          if (pair * kUnits % 4 == 0) held[t][i][unit] = codes[CodeSlot<kFormat>(col, unit * 4 + quarter)];
          uint32_t words[4];
          DecodePair<kFormat>(held[t][i], pair, factors[t][i], words);
          HADAL_UNROLL for (int step = 0; step < 2; ++step)
              Tile::SetB(&b[t][step], i, words[2 * step], words[2 * step + 1]);
        }
      }
      HADAL_UNROLL for (int m = 0; m < kMT; ++m) {
        Tile::A a[2];
        HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) {
          const int row = (wave_m * kMT + m) * Tile::kM + Tile::HeldRow(i);
          Bytes16 in = inputs[InputSlot<kFormat>(row, PairInput<kFormat>(pair, quarter) / 8)];
          ArrangeInputs<kFormat>(&in);
          HADAL_UNROLL for (int step = 0; step < 2; ++step)
              Tile::SetA(&a[step], i, in.words[2 * step], in.words[2 * step + 1]);
        }
        HADAL_UNROLL for (int step = 0; step < 2; ++step) {
          HADAL_UNROLL for (int t = 0; t < kNT; ++t) Tile::Multiply(&sum[m][t], a[step], b[t][step]);
        }
      }
    }
    HADAL_UNROLL for (int m = 0; m < kMT; ++m) {
      HADAL_UNROLL for (int t = 0; t < kNT; ++t) AddChunk<kFormat>(sum[m][t], scales[t], &total[m][t]);
    }
  }
  HADAL_UNROLL for (int m = 0; m < kMT; ++m) {
    HADAL_UNROLL for (int i = 0; i < Tile::Sums(); ++i) {
      const int row = m0 + (wave_m * kMT + m) * Tile::kM + Tile::Row(i);
      if (row >= p.rows) continue;
      HADAL_UNROLL for (int t = 0; t < (kPaired ? 1 : kNT); ++t) {
        const int output = TileOutput<kPaired>(first_output(wave_n), t, Tile::Col(i));
        if (output >= p.n) continue;
        if constexpr (kPaired) {
          store(row, output, total[m][0].v[i], total[m][1].v[i]);
        } else {
          store(row, output, total[m][t].v[i]);
        }
      }
    }
  }
}

// ---- fp32: a group an output, eight rows at a time; lanes take every 32nd input and are added as GroupSum does.

inline constexpr int kFmaThreads = 256;
inline constexpr int kFmaOutputs = kFmaThreads / kGroup;  // of a block
inline constexpr int kFmaRows = 8;

template <WeightFormat kFormat>
HADAL_DEVICE float WeightAt(const Problem& p, const Matrix& w, int row, int i) {
  const int64_t at = static_cast<int64_t>(row) * p.k + i;
  if constexpr (kFormat == WeightFormat::kFp8) {
    return E4M3ToFloat(static_cast<const uint8_t*>(w.data)[at]) * Fp8Scale(p, w, row, i / kChunk);
  } else if constexpr (kFormat == WeightFormat::kFp4) {
    const unsigned code = static_cast<const uint8_t*>(w.data)[at / 2] >> (i % 2 * 4) & 15u;
    return E2M1ToFloat(code) * E8M0ToFloat(static_cast<const uint8_t*>(w.scale)[at / 32]);
  } else if constexpr (kFormat == WeightFormat::kBf16) {
    return ToFloat(static_cast<const Bf16*>(w.data)[at]);
  } else {
    return static_cast<const float*>(w.data)[at];
  }
}

// Outputs n0 ... n0+kFmaOutputs-1 of rows m0 ... m0+kFmaRows-1; T: of x. store as a Strip's.
template <WeightFormat kFormat, typename T, bool kPaired, typename Store>
HADAL_DEVICE void FmaProduct(const Problem& p, int m0, int n0, const Store& store) {
  const int output = n0 + GroupX();
  if (output >= p.n) return;
  const T* x[kFmaRows];
  const int rows = p.rows - m0 < kFmaRows ? p.rows - m0 : kFmaRows;
  HADAL_UNROLL for (int r = 0; r < kFmaRows; ++r) x[r] =
      static_cast<const T*>(p.x) + p.XRow(m0 + (r < rows ? r : 0)) * p.x_stride;
  float sums[kPaired ? 2 : 1][kFmaRows] = {};
  for (int i = Lane(); i < p.k; i += kGroup) {
    float in[kFmaRows];
    HADAL_UNROLL for (int r = 0; r < kFmaRows; ++r) in[r] = r < rows ? ToFloat(x[r][i]) : 0.0f;
    HADAL_UNROLL for (int w = 0; w < (kPaired ? 2 : 1); ++w) {
      const float weight = WeightAt<kFormat>(p, p.weights[w], p.weight_row + output, i);
      HADAL_UNROLL for (int r = 0; r < kFmaRows; ++r) sums[w][r] = Fma(in[r], weight, sums[w][r]);
    }
  }
  HADAL_UNROLL for (int r = 0; r < kFmaRows; ++r) {
    if (r >= rows) break;
    const float first = GroupSum(sums[0][r]);
    if constexpr (kPaired) {
      const float second = GroupSum(sums[1][r]);
      if (Lane() == 0) store(m0 + r, output, first, second);
    } else {
      if (Lane() == 0) store(m0 + r, output, first);
    }
  }
}

// ---- AQ(x, 128) (spec deepseek-v4-text 3.1): the one place where activations are quantised. A group a block of 128
// inputs; values come out as bf16, in which code * scale is exact. `to` may be `from`.
inline constexpr int kQuantThreads = 256;
HADAL_DEVICE void QuantiseBlock(const Bf16* from, Bf16* to, int64_t k, int64_t block) {
  float v[4];
  float amax = 0;
  HADAL_UNROLL for (int i = 0; i < 4; ++i) {
    const int64_t at = block * kChunk + i * kGroup + Lane();
    v[i] = at < k ? ToFloat(from[at]) : 0.0f;
    const float a = v[i] < 0 ? -v[i] : v[i];
    if (a > amax) amax = a;  // NaN is passed over
  }
  const float scale = E4M3BlockScale(GroupMax(amax));
  const float inverse = 1.0f / scale;  // exact, as is the product with it
  HADAL_UNROLL for (int i = 0; i < 4; ++i) {
    const int64_t at = block * kChunk + i * kGroup + Lane();
    if (at < k) to[at] = ToBf16(RoundE4M3(v[i] * inverse) * scale);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
