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

// ---- Few rows: the weights are read once, from memory to registers; waves share out the chunks.

// Most waves of a block.
inline constexpr int kStripWaves = 16;

struct StripShape {
  int waves = 1;
  int round_chunks = 1;  // chunks whose sums are in shared memory at once, a multiple of the waves
  size_t shared_bytes = 0;
};

// For blocks of `rows` rows and `width` columns of sums. few_blocks: they do not fill the device.
inline StripShape MakeStripShape(int rows, int width, int k, bool few_blocks) {
  constexpr int kSumBytes = 48 * 1024;
  const int chunks = static_cast<int>(CeilDiv(k, kChunk));
  const int chunk_bytes = rows * width * static_cast<int>(sizeof(float));
  StripShape shape;
  const int most = few_blocks ? kStripWaves : kStripWaves / 2;
  shape.waves = chunks < most ? chunks : most;
  while (shape.waves > 1 && shape.waves * chunk_bytes > kSumBytes) --shape.waves;
  const int64_t rounds = CeilDiv(chunks, shape.waves);
  const int64_t fit = kSumBytes / (static_cast<int64_t>(shape.waves) * chunk_bytes);
  shape.round_chunks = shape.waves * static_cast<int>(fit < 1 ? 1 : fit < rounds ? fit : rounds);
  shape.shared_bytes = static_cast<size_t>(shape.round_chunks + 1) * chunk_bytes;
  return shape;
}

// Columns n0 ... n0+16*kNT-1 (of a pair of weights half as many of each) for up to 16*kMT rows. Calls
// store(row, output, value) or, paired, store(row, output, value of the first, value of the second).
template <WeightFormat kFormat, bool kAligned, bool kPaired, int kMT, int kNT, typename Store>
HADAL_DEVICE void StripProduct(const Problem& p, int n0, int round_chunks, float* shared, const Store& store) {
  constexpr int kUnits = Units<kFormat>();
  constexpr int kWidth = Tile::kN * kNT;
  constexpr bool kAhead = kUnits * kNT * kMT <= 2;  // the next chunk's codes fit into registers as well
  const int waves = ThreadsX() / WaveLanes();
  const int wave = WaveX();
  const int quarter = Tile::Quarter();
  const int chunks = static_cast<int>(CeilDiv(p.k, kChunk));
  const int row_bytes = static_cast<int>(CodeBytes<kFormat>(p.k));
  const int sums = p.rows * kWidth;
  float* totals = shared;
  float* partial = shared + sums;

  const unsigned char* x_row[kMT][2] = {};
  HADAL_UNROLL for (int m = 0; m < kMT; ++m) {
    HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) {
      const int row = m * Tile::kM + Tile::HeldRow(i);
      if (row < p.rows) x_row[m][i] = static_cast<const unsigned char*>(p.x) + p.XRow(row) * p.x_stride * 2;
    }
  }
  const unsigned char* w_row[kNT][2] = {};
  HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
    HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) {
      const int output = TileOutput<kPaired>(n0, t, Tile::HeldRow(i));
      if (output >= p.n) continue;
      w_row[t][i] = static_cast<const unsigned char*>(p.weights[kPaired ? t % 2 : 0].data) +
                    static_cast<int64_t>(p.weight_row + output) * row_bytes;
    }
  }

  struct Codes {
    Bytes16 units[kNT][2][kUnits];
    uint8_t scales[kNT][2];
  };
  const auto load = [&](int chunk, Codes* codes) {
    HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
      HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) {
        HADAL_UNROLL for (int u = 0; u < kUnits; ++u) {
          codes->units[t][i][u] =
              LoadUnit<kAligned, true>(w_row[t][i], (chunk * kUnits + u) * 64 + quarter * 16, row_bytes);
        }
        if constexpr (kFormat == WeightFormat::kFp4) {
          const int output = TileOutput<kPaired>(n0, t, Tile::HeldRow(i));
          codes->scales[t][i] =
              output < p.n ? Fp4Scale(p, p.weights[kPaired ? t % 2 : 0], p.weight_row + output, chunk) : uint8_t{127};
        }
      }
    }
  };

  int chunk = wave;
  Codes codes, next;
  if (kAhead && chunk < chunks) load(chunk, &codes);
  for (int first = 0; first < chunks; first += round_chunks) {
    const int end = first + round_chunks < chunks ? first + round_chunks : chunks;
    for (; chunk < end; chunk += waves) {
      if constexpr (kAhead) {
        if (chunk + waves < chunks) load(chunk + waves, &next);
      } else {
        load(chunk, &codes);
      }
      float scales[kNT][Tile::kSums];
      HADAL_UNROLL for (int t = 0; t < kNT; ++t) LoadScales<kFormat, kPaired>(p, n0, t, chunk, scales[t]);
      const auto load_x = [&](int m, int i, int pair) {
        return LoadUnit<kAligned, false>(x_row[m][i], (chunk * kChunk + PairInput<kFormat>(pair, quarter)) * 2,
                                         p.k * 2);
      };
      // Of 16 rows everything is asked for before the first product; of more there is no room for it.
      Bytes16 early[kMT == 1 ? 4 : 1][2];
      if constexpr (kMT == 1) {
        HADAL_UNROLL for (int pair = 0; pair < 4; ++pair) {
          HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) early[pair][i] = load_x(0, i, pair);
        }
      }
      E2M1Factor factors[kNT][2] = {};
      if constexpr (kFormat == WeightFormat::kFp4) {
        HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
          HADAL_UNROLL for (int i = 0; i < Tile::Held(); ++i) factors[t][i] = MakeE2M1Factor(codes.scales[t][i]);
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
            Bytes16 in = kMT == 1 ? early[pair % (kMT == 1 ? 4 : 1)][i] : load_x(m, i, pair);
            ArrangeInputs<kFormat>(&in);
            HADAL_UNROLL for (int step = 0; step < 2; ++step)
                Tile::SetA(&a[step], i, in.words[2 * step], in.words[2 * step + 1]);
          }
          HADAL_UNROLL for (int step = 0; step < 2; ++step) {
            HADAL_UNROLL for (int t = 0; t < kNT; ++t) Tile::Multiply(&sum[m][t], a[step], b[t][step]);
          }
        }
      }
      float* to = partial + (chunk - first) * sums;
      HADAL_UNROLL for (int m = 0; m < kMT; ++m) {
        HADAL_UNROLL for (int t = 0; t < kNT; ++t) {
          HADAL_UNROLL for (int i = 0; i < Tile::Sums(); ++i) {
            const int row = m * Tile::kM + Tile::Row(i);
            if (row >= p.rows) continue;
            const float v = sum[m][t].v[i];
            to[row * kWidth + t * Tile::kN + Tile::Col(i)] = HasScaledChunks(kFormat) ? v * scales[t][i] : v;
          }
        }
      }
      if constexpr (kAhead) codes = next;
    }
    BlockSync();
    for (int i = ThreadX(); i < sums; i += ThreadsX()) {
      float total = first == 0 ? 0.0f : totals[i];
      for (int c = 0; c < end - first; ++c) total += partial[c * sums + i];
      totals[i] = total;
    }
    BlockSync();
  }
  constexpr int kOutputs = kPaired ? kWidth / 2 : kWidth;
  for (int i = ThreadX(); i < p.rows * kOutputs; i += ThreadsX()) {
    const int row = i / kOutputs, j = i % kOutputs;
    if (n0 + j >= p.n) continue;
    if constexpr (kPaired) {
      const float* at = totals + row * kWidth + j / Tile::kN * 2 * Tile::kN + j % Tile::kN;
      store(row, n0 + j, at[0], at[Tile::kN]);
    } else {
      store(row, n0 + j, totals[i]);
    }
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

// Rows m0 ... and columns n0 ... of one tile; store as StripProduct.
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

// Outputs n0 ... n0+kFmaOutputs-1 of rows m0 ... m0+kFmaRows-1; T: of x. store as StripProduct.
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
