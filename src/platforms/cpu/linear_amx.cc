// The amx backend.
//
// A weight tile is the A operand: 16 output rows x 32 inputs, as it lies in the file, so weights need no packing. The
// input rows are the B operand, 16 of them (or m when fewer). C holds [16 outputs][group] sums and is kept in `out`
// between chunks of k, which costs nothing beside the decoding and makes the order of the sum the same for every m.
#include "platforms/cpu/linear.h"

#if defined(__x86_64__)

#include <asm/prctl.h>
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/float_formats.h"
#include "platforms/cpu/amx_tiles.h"

HADAL_AMX_BEGIN

namespace hadal::cpu {
namespace {

// Inputs decoded at a time. With many input rows: 32 weight rows x 256 inputs are 16 KiB, which with two groups of
// input rows (16 KiB) stay in L1 (measured on 512 rows: 128, 256, 512, 1024 inputs take 13.3, 11.1, 12.6, 13.0 ns a
// product).
constexpr int64_t kChunk = 256;
constexpr int64_t kTileBytes = 1024;            // 16 rows of 64 bytes
constexpr int64_t kStepBytes = 2 * kTileBytes;  // the two row tiles of one step of 32 inputs
constexpr int64_t kSubBlock = 32;               // weight rows of two row tiles
constexpr int64_t kChunkBytes = kChunk / 32 * kStepBytes;

inline uint16_t ScalarBf16(float v) { return ToBFloat16(v).bits; }

// Asks for memory ahead of its use. Decoding visits 32 rows a chunk of columns at a time; at each visit of a row it
// asks for the columns a little further on in the row, or at the row's end for the start of the row that will be
// visited next. The requests are spread evenly over the visits: a core has 16 line buffers, and a burst of requests
// fills them and holds everything up.
class Lookahead {
 public:
  // For the block that ends before row n1. `far`: false where products take longer than memory, requests would only
  // cost.
  Lookahead(const ops::LinearWeight& w, int64_t n1, NextRows next, bool far)
      : w_(w), n1_(n1), next_(next), distance_(far ? w.dtype == DType::kBF16 ? 128 : 256 : 0) {
    if (w.dtype == DType::kF4E2M1 && n1 < w.n) Scales(w, n1);
    if (next.weight != nullptr && next.weight->dtype == DType::kF4E2M1) Scales(*next.weight, next.row);
  }

  // The visits that follow are to the bytes from `at` on of the rows from `row` on.
  void Aim(int64_t row, int64_t at) {
    const ops::LinearWeight* w = &w_;
    at += distance_;
    if (at >= w_.row_bytes()) {
      at -= w_.row_bytes();
      row += kSubBlock;
      if (row >= n1_ && next_.weight != nullptr) {
        w = next_.weight;
        row = next_.row;
        at = std::min(at, w->row_bytes() - 1);
      }
    }
    stride_ = w->row_bytes();
    base_ = static_cast<const char*>(w->data) + row * stride_ + at;  // may lie behind the weight: a hint cannot fault
  }
  // Visit of row r.
  template <int64_t kLines>
  void Row(int64_t r) const {
    for (int64_t i = 0; i < kLines; ++i) _mm_prefetch(base_ + r * stride_ + 64 * i, _MM_HINT_T0);
  }

 private:
  // Those of the next block: small beside the weights.
  static void Scales(const ops::LinearWeight& w, int64_t row) {
    const int64_t row_bytes = w.k / 32;
    const auto* scales = static_cast<const char*>(w.scale) + row * row_bytes;
    for (int64_t i = 0; i < std::min(kRowBlock, w.n - row) * row_bytes; i += 64) _mm_prefetch(scales + i, _MM_HINT_T1);
  }

  const ops::LinearWeight& w_;
  int64_t n1_;
  NextRows next_;
  int64_t distance_;  // bytes (measured: 128, 256, 512, 1024; beyond 512 short rows lose)
  const char* base_ = nullptr;
  int64_t stride_ = 0;
};

// What decoding E4M3 under one scale needs. bf16 has the exponent range to take the scale in: the exponent field is
// moved, and the seven subnormal codes come from a table.
struct E4M3Decoder {
  __m512i bias = {};
  __m512i table = {};
};

inline E4M3Decoder MakeE4M3Decoder(int scale_exponent) {
  alignas(16) static constexpr uint16_t kSubnormal[8] = {0,      0x3B00, 0x3B80, 0x3BC0,
                                                         0x3C00, 0x3C20, 0x3C40, 0x3C60};  // m * 2^-9
  const __m512i base = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kSubnormal)));
  const __m512i shift = _mm512_set1_epi16(static_cast<int16_t>(scale_exponent * 128));
  return {_mm512_add_epi16(_mm512_set1_epi16(120 * 128), shift), _mm512_mask_add_epi16(base, 0xFEFEFEFEu, base, shift)};
}

inline std::byte* RowInTiles(std::byte* tiles, int64_t r) { return tiles + r / 16 * kTileBytes + r % 16 * 64; }

// n weights (a multiple of 32, at most 128) of the rows [r0, r1) that lie `stride` bytes apart.
inline void DecodeE4M3(const E4M3Decoder& decoder, const uint8_t* src, int64_t stride, int64_t r0, int64_t r1,
                       int64_t n, std::byte* dst, const Lookahead& ahead) {
  const __m512i magnitude_and_sign = _mm512_set1_epi16(static_cast<int16_t>(0x87F0));
  const __m512i exponent_field = _mm512_set1_epi16(0x78);
  const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
  const __m512i bias = decoder.bias;
  const __m512i table = decoder.table;
  const auto decode = [&](const uint8_t* from, std::byte* to) {
    const __m512i code = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const __m512i shifted = _mm512_and_si512(_mm512_slli_epi16(code, 4), magnitude_and_sign);
    __m512i value = _mm512_add_epi16(shifted, bias);
    const __mmask32 subnormal = _mm512_testn_epi16_mask(code, exponent_field);
    value = _mm512_mask_permutexvar_epi16(value, subnormal, code, table);
    value = _mm512_ternarylogic_epi32(value, code, sign, 0xF8);  // value | (code & sign)
    _mm512_store_si512(to, value);
  };
  if (n == 128) {
    for (int64_t r = r0; r < r1; ++r) {
      const uint8_t* from = src + r * stride;
      std::byte* to = RowInTiles(dst, r);
      ahead.Row<2>(r);
      decode(from, to);
      decode(from + 32, to + kStepBytes);
      decode(from + 64, to + 2 * kStepBytes);
      decode(from + 96, to + 3 * kStepBytes);
    }
    return;
  }
  for (int64_t r = r0; r < r1; ++r) {
    for (int64_t i = 0; i < n; i += 32) decode(src + r * stride + i, RowInTiles(dst, r) + i / 32 * kStepBytes);
  }
}

// n E2M1 weights (a multiple of 128) of one row. A 16-bit word holds four codes; four looked-up registers take one code
// of each of 32 words, so that all four share the scales. The values carry an exponent of +125; the scale is applied by
// a saturating subtraction on the exponent field, which leaves zero at zero.
inline void DecodeE2M1(const uint8_t* src, const uint8_t* scales, int64_t n, std::byte* dst) {
  // The lookup takes five bits of a word: the code and one bit of its neighbour, so the table is there twice.
  alignas(64) static constexpr uint16_t kTable[16] = {
      0, 0x7D80, 0x7E00, 0x7E40, 0x7E80, 0x7EC0, 0x7F00, 0x7F40,  // .5 1 1.5 2 3 4 6 times 2^125
      0, 0xFD80, 0xFE00, 0xFE40, 0xFE80, 0xFEC0, 0xFF00, 0xFF40};
  const __m512i table = _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(kTable)));
  // Byte l of the four scales goes to the eight words of 128-bit lane l: those of inputs 32l ... 32l+31.
  const __m512i spread = _mm512_inserti64x4(
      _mm512_castsi256_si512(
          _mm256_set_m128i(_mm_set1_epi16(static_cast<int16_t>(0x8001)), _mm_set1_epi16(static_cast<int16_t>(0x8000)))),
      _mm256_set_m128i(_mm_set1_epi16(static_cast<int16_t>(0x8003)), _mm_set1_epi16(static_cast<int16_t>(0x8002))), 1);
  const __m512i bias = _mm512_set1_epi16(252);
  for (int64_t i = 0; i < n; i += 128) {
    const __m512i words = _mm512_loadu_si512(src + i / 2);
    int32_t four = 0;
    std::memcpy(&four, scales + i / 32, 4);
    const __m512i bytes = _mm512_shuffle_epi8(_mm512_set1_epi32(four), spread);
    const __m512i down = _mm512_slli_epi16(_mm512_sub_epi16(bias, bytes), 7);
    std::byte* out = dst + i / 32 * kStepBytes;
    const auto code = [&](const __m512i& at) { return _mm512_subs_epu16(_mm512_permutexvar_epi16(at, table), down); };
    _mm512_store_si512(out, code(words));
    _mm512_store_si512(out + kStepBytes, code(_mm512_srli_epi16(words, 4)));
    _mm512_store_si512(out + 2 * kStepBytes, code(_mm512_srli_epi16(words, 8)));
    _mm512_store_si512(out + 3 * kStepBytes, code(_mm512_srli_epi16(words, 12)));
  }
}

// Scales that the fast decoder cannot take into the exponent.
void DecodeE2M1Slow(const uint8_t* src, const uint8_t* scales, int64_t n, std::byte* dst) {
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t code = (src[i / 2] >> (i % 2 * 4)) & 15;
    const int64_t tile = i / 128 * 4 + i % 4;
    reinterpret_cast<uint16_t*>(dst + tile * kStepBytes)[i % 128 / 4] =
        ScalarBf16(E2M1ToFloat(code) * E8M0ToFloat(scales[i / 32]));
  }
}

// The rows of a weight, decoded 32 (a sub-block) at a time into the two row tiles of each step. Select() names what
// comes next: rows n0 ... n0+31 and inputs [k0, k0 + n), n <= kMost; Decode() does some of those rows.
class Fp8Rows {
 public:
  static constexpr int64_t kMost = 128;  // inputs that share a scale

  Fp8Rows(const ops::LinearWeight& w, Lookahead& ahead) : w_(w), ahead_(ahead), scale_cols_((w.k + 127) / 128) {}

  void CheckScales(int64_t /*n0*/, int64_t /*rows*/) {}

  void Select(int64_t n0, int64_t k0, int64_t n) {
    n0_ = n0;
    k0_ = k0;
    n_ = n;
    src_ = static_cast<const uint8_t*>(w_.data) + n0 * w_.k + k0;
    ahead_.Aim(n0, k0);
    const int exponent = Exponent(Scale(n0));
    fast_ = n0 / 128 == (n0 + kSubBlock - 1) / 128 && exponent >= -100 && exponent <= 100;
    if (fast_) decoder_ = MakeE4M3Decoder(exponent);
  }

  void Decode(int64_t r0, int64_t r1, std::byte* dst) const {
    if (fast_) {
      DecodeE4M3(decoder_, src_, w_.k, r0, r1, n_, dst, ahead_);
    } else {
      DecodeOneByOne(r0, r1, dst);
    }
  }

 private:
  static int Exponent(float scale) { return static_cast<int>(std::bit_cast<uint32_t>(scale) >> 23) - 127; }

  float Scale(int64_t row) const {
    const int64_t at = row / 128 * scale_cols_ + k0_ / 128;
    return w_.scale_dtype == DType::kF32 ? static_cast<const float*>(w_.scale)[at]
                                         : E8M0ToFloat(static_cast<const uint8_t*>(w_.scale)[at]);
  }

  // Rows under several scales, or scales that the fast decoder cannot take into the exponent (all-zero blocks of some
  // exporters have byte 0).
  void DecodeOneByOne(int64_t r0, int64_t r1, std::byte* dst) const {
    for (int64_t r = r0; r < r1; ++r) {
      const float scale = Scale(n0_ + r);
      const int exponent = Exponent(scale);
      if (exponent >= -100 && exponent <= 100) {
        DecodeE4M3(MakeE4M3Decoder(exponent), src_, w_.k, r, r + 1, n_, dst, ahead_);
        continue;
      }
      for (int64_t i = 0; i < n_; ++i) {
        reinterpret_cast<uint16_t*>(RowInTiles(dst, r) + i / 32 * kStepBytes)[i % 32] =
            ScalarBf16(E4M3ToFloat(src_[r * w_.k + i]) * scale);
      }
    }
  }

  const ops::LinearWeight& w_;
  Lookahead& ahead_;
  int64_t scale_cols_;
  int64_t n0_ = 0, k0_ = 0, n_ = 0;
  const uint8_t* src_ = nullptr;
  bool fast_ = false;
  E4M3Decoder decoder_ = {};
};

class Fp4Rows {
 public:
  static constexpr int64_t kMost = 128;

  Fp4Rows(const ops::LinearWeight& w, Lookahead& ahead) : w_(w), ahead_(ahead), scale_cols_(w.k / 32) {}

  // To be called for rows before they are selected.
  void CheckScales(int64_t n0, int64_t rows) {
    const uint8_t* scales = static_cast<const uint8_t*>(w_.scale) + n0 * scale_cols_;
    const int64_t bytes = rows * scale_cols_;
    // Scale bytes 16 ... 250 fit the exponent arithmetic.
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < bytes; i += 64) {
      const __mmask64 present = bytes - i >= 64 ? ~__mmask64{0} : (__mmask64{1} << (bytes - i)) - 1;
      const __m512i some = _mm512_maskz_loadu_epi8(present, scales + i);
      most = _mm512_max_epu8(most, _mm512_maskz_sub_epi8(present, some, _mm512_set1_epi8(16)));
    }
    fast_ = _mm512_cmpgt_epu8_mask(most, _mm512_set1_epi8(static_cast<char>(234))) == 0;
  }

  void Select(int64_t n0, int64_t k0, int64_t n) {
    n_ = n;
    src_ = static_cast<const uint8_t*>(w_.data) + (n0 * w_.k + k0) / 2;
    ahead_.Aim(n0, k0 / 2);
    scales_ = static_cast<const uint8_t*>(w_.scale) + n0 * scale_cols_ + k0 / 32;
  }

  void Decode(int64_t r0, int64_t r1, std::byte* dst) const {
    if (fast_) {
      for (int64_t r = r0; r < r1; ++r) {
        ahead_.Row<1>(r);
        DecodeE2M1(src_ + r * w_.k / 2, scales_ + r * scale_cols_, n_, RowInTiles(dst, r));
      }
      return;
    }
    for (int64_t r = r0; r < r1; ++r) {
      DecodeE2M1Slow(src_ + r * w_.k / 2, scales_ + r * scale_cols_, n_, RowInTiles(dst, r));
    }
  }

 private:
  const ops::LinearWeight& w_;
  Lookahead& ahead_;
  int64_t scale_cols_;
  int64_t n_ = 0;
  const uint8_t* src_ = nullptr;
  const uint8_t* scales_ = nullptr;
  bool fast_ = false;
};

class Bf16Rows {
 public:
  static constexpr int64_t kMost = 128;

  Bf16Rows(const ops::LinearWeight& w, Lookahead& ahead) : w_(w), ahead_(ahead) {}
  void CheckScales(int64_t /*n0*/, int64_t /*rows*/) {}
  void Select(int64_t n0, int64_t k0, int64_t n) {
    n_ = n;
    src_ = static_cast<const uint16_t*>(w_.data) + n0 * w_.k + k0;
    ahead_.Aim(n0, 2 * k0);
  }
  void Decode(int64_t r0, int64_t r1, std::byte* dst) const {
    for (int64_t r = r0; r < r1; ++r) {
      ahead_.Row<4>(r);
      std::byte* out = RowInTiles(dst, r);
      const uint16_t* src = src_ + r * w_.k;
      for (int64_t i = 0; i < n_; i += 32) _mm512_store_si512(out + i / 32 * kStepBytes, _mm512_loadu_si512(src + i));
    }
  }

 private:
  const ops::LinearWeight& w_;
  Lookahead& ahead_;
  int64_t n_ = 0;
  const uint16_t* src_ = nullptr;
};

// A whole chunk of `rows` <= 32 rows.
template <class Rows>
void DecodeChunk(Rows& source, int64_t n0, int64_t rows, int64_t k0, int64_t n, std::byte* dst) {
  for (int64_t i = 0; i < n; i += Rows::kMost) {
    source.Select(n0, k0 + i, std::min(Rows::kMost, n - i));
    source.Decode(0, rows, dst + i / 32 * kStepBytes);
  }
}

// Sums of one or two groups of input rows over a decoded chunk of `steps` x 32 inputs. kPair: two groups.
template <bool kPair>
inline void Multiply(const std::byte* weights, const std::byte* in0, const std::byte* in1, int64_t steps,
                     int64_t in_row_bytes, bool first, float* sum0, float* sum1) {
  const int64_t in_tile = 16 * in_row_bytes;
  const int64_t row_tile = 4 * in_row_bytes;  // floats of the 16 outputs of one row tile
  TileFence(weights);
  const size_t stride = in_row_bytes;
  if (first) {
    _tile_zero(0);
    _tile_zero(2);
    if constexpr (kPair) {
      _tile_zero(1);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, sum0, stride);
    _tile_loadd(2, sum0 + row_tile, stride);
    if constexpr (kPair) {
      _tile_loadd(1, sum1, stride);
      _tile_loadd(3, sum1 + row_tile, stride);
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, weights + step * kStepBytes, 64);
    _tile_loadd(6, in0 + step * in_tile, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, weights + step * kStepBytes + kTileBytes, 64);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kPair) {
      _tile_loadd(7, in1 + step * in_tile, stride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sum0, stride);
  _tile_stored(2, sum0 + row_tile, stride);
  if constexpr (kPair) {
    _tile_stored(1, sum1, stride);
    _tile_stored(3, sum1 + row_tile, stride);
  }
  TileFence(sum0);
}

// Sums of one group from [32 outputs][group] to rows of outputs, `stride` apart.
void WriteSums(const float* sums, int64_t group, float* out, int64_t stride) {
  if (group < 16) {
    for (int64_t m = 0; m < group; ++m) {
      for (int64_t r = 0; r < kSubBlock; ++r) out[m * stride + r] = sums[r * group + m];
    }
    return;
  }
  for (int half = 0; half < 2; ++half) {
    __m512i tile[16];
    for (int r = 0; r < 16; ++r) tile[r] = _mm512_loadu_si512(sums + (half * 16 + r) * 16);
    Transpose16(tile);
    for (int m = 0; m < 16; ++m) _mm512_storeu_si512(out + m * stride + half * 16, tile[m]);
  }
}

// Rows that share a decoded chunk when there are many input rows: 128 x 256 bf16 weights are 64 KiB, in L2. Every
// input tile that comes from L3 then meets eight weight tiles instead of two; L3 gives a core about 30 GB/s, a tile
// each 35 ns, and a product takes 5 ns.
template <class Rows>
void ManyRows(const PackedInput& x, Rows source, int64_t n0, int64_t rows, float* out, std::byte* weights) {
  const int64_t groups = x.groups();
  const int64_t in_row_bytes = x.group * 4;
  const int64_t group_bytes = x.k * x.group * 2;  // bf16
  const auto* input = static_cast<const std::byte*>(x.data);
  const int64_t sums = kSubBlock * x.group;
  const int64_t blocks = rows / kSubBlock;
  source.CheckScales(n0, rows);
  for (int64_t k0 = 0; k0 < x.k; k0 += kChunk) {
    const int64_t chunk = std::min(kChunk, x.k - k0);
    for (int64_t b = 0; b < blocks; ++b) {
      DecodeChunk(source, n0 + b * kSubBlock, kSubBlock, k0, chunk, weights + b * kChunkBytes);
    }
    const std::byte* in = input + k0 / 32 * (16 * in_row_bytes);
    for (int64_t g = 0; g < groups; g += 2) {
      for (int64_t b = 0; b < blocks; ++b) {
        float* sum = out + (b * groups + g) * sums;
        if (g + 1 < groups) {
          Multiply<true>(weights + b * kChunkBytes, in + g * group_bytes, in + (g + 1) * group_bytes, chunk / 32,
                         in_row_bytes, k0 == 0, sum, sum + sums);
        } else {
          Multiply<false>(weights + b * kChunkBytes, in + g * group_bytes, nullptr, chunk / 32, in_row_bytes, k0 == 0,
                          sum, nullptr);
        }
      }
    }
  }
}

// One group: 32 rows at a time, their sums kept in the tile registers. While a chunk is multiplied step by step, the
// rows of the next chunk are decoded between the steps into a second buffer: neither the vector units nor the tile unit
// then waits for the other, and no tile load meets stores under way (one right behind them takes three times as long).
template <class Rows>
void OneGroup(const PackedInput& x, Rows source, int64_t n0, int64_t rows, float* out, std::byte* weights) {
  constexpr int64_t kMost = Rows::kMost;
  const int64_t in_row_bytes = x.group * 4;
  const int64_t in_tile = 16 * in_row_bytes;
  const auto* input = static_cast<const std::byte*>(x.data);
  std::byte* tiles = weights;
  std::byte* other = weights + kMost / 32 * kStepBytes;
  source.CheckScales(n0, rows);
  source.Select(n0, 0, std::min(kMost, x.k));
  source.Decode(0, kSubBlock, tiles);
  for (int64_t b = 0; b < rows; b += kSubBlock) {
    _tile_zero(0);
    _tile_zero(2);
    for (int64_t k0 = 0; k0 < x.k; k0 += kMost) {
      const int64_t steps = std::min(kMost, x.k - k0) / 32;
      // The chunk behind this one, in these rows or the next 32.
      const int64_t next_k0 = k0 + kMost < x.k ? k0 + kMost : 0;
      const int64_t next_b = next_k0 > 0 ? b : b + kSubBlock;
      const bool more = next_b < rows;
      if (more) source.Select(n0 + next_b, next_k0, std::min(kMost, x.k - next_k0));
      const int64_t rows_a_step = (kSubBlock + steps - 1) / steps;
      const std::byte* in = input + k0 / 32 * in_tile;
      TileFence(weights);
      for (int64_t step = 0; step < steps; ++step) {
        _tile_loadd(4, tiles + step * kStepBytes, 64);
        _tile_loadd(6, in + step * in_tile, in_row_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, tiles + step * kStepBytes + kTileBytes, 64);
        _tile_dpbf16ps(2, 5, 6);
        const int64_t r = step * rows_a_step;
        if (more) source.Decode(r, std::min(r + rows_a_step, kSubBlock), other);
      }
      std::swap(tiles, other);
    }
    float* sum = out + b * x.group;
    _tile_stored(0, sum, in_row_bytes);
    _tile_stored(2, sum + 4 * in_row_bytes, in_row_bytes);
    TileFence(sum);
  }
}

// The same for BF16 weights, which need no decoding: tiles are loaded from where they lie.
void OneGroupBf16(const PackedInput& x, const ops::LinearWeight& w, int64_t n0, int64_t rows, float* out,
                  Lookahead& ahead) {
  const int64_t in_row_bytes = x.group * 4;
  const int64_t in_tile = 16 * in_row_bytes;
  const int64_t stride = w.row_bytes();
  const auto* input = static_cast<const std::byte*>(x.data);
  TileFence(input);
  for (int64_t b = 0; b < rows; b += kSubBlock) {
    const std::byte* upper = static_cast<const std::byte*>(w.data) + (n0 + b) * stride;
    const std::byte* lower = upper + 16 * stride;
    _tile_zero(0);
    _tile_zero(2);
    for (int64_t step = 0; step < x.k / 32; ++step) {
      ahead.Aim(n0 + b, step * 64);
      for (int64_t r = 0; r < kSubBlock; ++r) ahead.Row<1>(r);
      _tile_loadd(4, upper + step * 64, stride);
      _tile_loadd(6, input + step * in_tile, in_row_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, lower + step * 64, stride);
      _tile_dpbf16ps(2, 5, 6);
    }
    float* sum = out + b * x.group;
    _tile_stored(0, sum, in_row_bytes);
    _tile_stored(2, sum + 4 * in_row_bytes, in_row_bytes);
    TileFence(sum);
  }
}

// Fewer than 32 rows at the end of a weight: the missing ones are zero.
template <class Rows>
void ShortBlock(const PackedInput& x, Rows source, int64_t n0, int64_t rows, float* out, int64_t out_stride,
                std::byte* weights, float* spare) {
  const int64_t in_row_bytes = x.group * 4;
  const int64_t group_bytes = x.k * x.group * 2;
  const auto* input = static_cast<const std::byte*>(x.data);
  std::memset(weights, 0, kChunkBytes);
  source.CheckScales(n0, rows);
  for (int64_t g = 0; g < x.groups(); ++g) {
    for (int64_t k0 = 0; k0 < x.k; k0 += kChunk) {
      const int64_t chunk = std::min(kChunk, x.k - k0);
      DecodeChunk(source, n0, rows, k0, chunk, weights);
      Multiply<false>(weights, input + g * group_bytes + k0 / 32 * (16 * in_row_bytes), nullptr, chunk / 32,
                      in_row_bytes, k0 == 0, spare, nullptr);
    }
    for (int64_t m = g * x.group; m < std::min(x.m, (g + 1) * x.group); ++m) {
      for (int64_t r = 0; r < rows; ++r) out[m * out_stride + r] = spare[r * x.group + m % x.group];
    }
  }
}

template <class Rows>
void BlockOf(const PackedInput& x, const ops::LinearWeight& w, int64_t n0, int64_t n1, NextRows next, float* out,
             std::byte* scratch) {
  ConfigureTiles(x.group);
  const int64_t groups = x.groups();
  Lookahead ahead(w, n1, next, groups == 1);
  std::byte* weights = scratch + (64 - reinterpret_cast<uintptr_t>(scratch) % 64) % 64;
  auto* sums = reinterpret_cast<float*>(weights + kRowBlock / kSubBlock * kChunkBytes);
  const int64_t rows = n1 - n0;
  const int64_t whole = rows / kSubBlock * kSubBlock;
  if (whole > 0) {
    // Sums by sub-block and group; then every row's outputs side by side.
    if (groups > 1) {
      ManyRows(x, Rows(w, ahead), n0, whole, sums, weights);
    } else if constexpr (std::is_same_v<Rows, Bf16Rows>) {
      OneGroupBf16(x, w, n0, whole, sums, ahead);
    } else {
      OneGroup(x, Rows(w, ahead), n0, whole, sums, weights);
    }
    for (int64_t b = 0; b < whole / kSubBlock; ++b) {
      for (int64_t g = 0; g < groups; ++g) {
        WriteSums(sums + (b * groups + g) * kSubBlock * x.group, x.group, out + g * x.group * rows + b * kSubBlock,
                  rows);
      }
    }
  }
  if (whole < rows) ShortBlock(x, Rows(w, ahead), n0 + whole, rows - whole, out + whole, rows, weights, sums);
}

void LinearBlock(const PackedInput& x, const ops::LinearWeight& w, int64_t n0, int64_t n1, NextRows next, float* out,
                 std::byte* scratch) {
  if (w.dtype == DType::kF8E4M3) {
    BlockOf<Fp8Rows>(x, w, n0, n1, next, out, scratch);
  } else if (w.dtype == DType::kF4E2M1) {
    BlockOf<Fp4Rows>(x, w, n0, n1, next, out, scratch);
  } else {
    BlockOf<Bf16Rows>(x, w, n0, n1, next, out, scratch);
  }
}

inline uint32_t Bf16Bits(float exact) { return std::bit_cast<uint32_t>(exact) >> 16; }

// Sixteen rows: 32 inputs of each become a register of bf16 pairs, transposed into a tile's order. k is a multiple
// of 32.
void PackFullGroup(const float* const* rows, int64_t k, InputLayout layout, uint32_t* dst) {
  alignas(64) std::array<uint16_t, 32> order;
  for (int i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(2 * i + 1);  // upper halves of 2 x 16 floats
  const __m512i upper = _mm512_load_si512(order.data());
  for (int i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(2 * i);
  const __m512i even = _mm512_load_si512(order.data());
  const __m512i odd = upper;
  const auto words = [&](const float* at) {  // 32 inputs
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(at), upper, _mm512_loadu_si512(at + 16));
  };
  const auto put = [&](__m512i(&tile)[16], int64_t first_input) {
    Transpose16(tile);
    for (int j = 0; j < 16; ++j) _mm512_storeu_si512(dst + (first_input / 2 + j) * 16, tile[j]);
  };
  int64_t i = 0;
  if (layout == InputLayout::kTilesFp4) {  // k is a multiple of 128
    for (; i < k; i += 128) {
      __m512i tiles[4][16];
      for (int m = 0; m < 16; ++m) {
        const float* row = rows[m] + i;
        const __m512i a = words(row), b = words(row + 32), c = words(row + 64), d = words(row + 96);
        const __m512i even_low = _mm512_permutex2var_epi16(a, even, b),
                      even_high = _mm512_permutex2var_epi16(c, even, d);
        const __m512i odd_low = _mm512_permutex2var_epi16(a, odd, b), odd_high = _mm512_permutex2var_epi16(c, odd, d);
        tiles[0][m] = _mm512_permutex2var_epi16(even_low, even, even_high);
        tiles[1][m] = _mm512_permutex2var_epi16(odd_low, even, odd_high);
        tiles[2][m] = _mm512_permutex2var_epi16(even_low, odd, even_high);
        tiles[3][m] = _mm512_permutex2var_epi16(odd_low, odd, odd_high);
      }
      for (int s = 0; s < 4; ++s) put(tiles[s], i + 32 * s);
    }
    return;
  }
  for (; i + 32 <= k; i += 32) {
    __m512i tile[16];
    for (int m = 0; m < 16; ++m) tile[m] = words(rows[m] + i);
    put(tile, i);
  }
}

// One group of rows to bf16 tiles. The values are exact in bf16: they are bf16 activations, quantised or not.
void PackTiles(const float* const* rows, int64_t count, int64_t k, int64_t group, InputLayout layout, void* out) {
  auto* dst = static_cast<uint32_t*>(out);
  if (count == 16 && group == 16) {
    PackFullGroup(rows, k, layout, dst);
    return;
  }
  if (count < group) std::memset(out, 0, static_cast<size_t>(k) * group * 2);
  for (int64_t i = 0; i < count; ++i) {
    const float* row = rows[i];
    uint32_t* column = dst + i;
    if (layout == InputLayout::kTiles) {
      for (int64_t j = 0; j < k / 2; ++j) column[j * group] = Bf16Bits(row[2 * j]) | Bf16Bits(row[2 * j + 1]) << 16;
      continue;
    }
    for (int64_t block = 0; block < k; block += 128) {
      for (int64_t j = 0; j < 16; ++j) {
        const float* eight = row + block + 8 * j;
        for (int64_t s = 0; s < 4; ++s) {
          column[(block / 2 + s * 16 + j) * group] = Bf16Bits(eight[s]) | Bf16Bits(eight[4 + s]) << 16;
        }
      }
    }
  }
}

}  // namespace

void ConfigureTiles(int64_t group) {
  struct alignas(64) {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    std::array<uint8_t, 14> reserved = {};
    std::array<uint16_t, 16> bytes_per_row = {};
    std::array<uint8_t, 16> rows = {};
  } config;
  static thread_local int64_t configured = 0;
  if (configured == group) return;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = 16;
    config.bytes_per_row[tile] = static_cast<uint16_t>(tile == 4 || tile == 5 ? 64 : group * 4);
  }
  TileFence(&config);
  _tile_loadconfig(&config);
  configured = group;
}

}  // namespace hadal::cpu

HADAL_AMX_END

namespace hadal::cpu {
namespace {

bool Granted() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  const bool amx = (d >> 22 & 1) != 0 && (d >> 24 & 1) != 0;  // AMX-BF16, AMX-TILE
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  if (!amx || !avx512) return false;
  constexpr int kTileData = 18;  // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, kTileData) == 0;
}

}  // namespace

const LinearBackend* AmxLinear() {
  static constexpr LinearBackend kBackend = {"amx", true, LinearBlock, PackTiles};
  static const bool granted = Granted();
  return granted ? &kBackend : nullptr;
}

}  // namespace hadal::cpu

#else

namespace hadal::cpu {
const LinearBackend* AmxLinear() { return nullptr; }
}  // namespace hadal::cpu

#endif
