#include "platforms/cpu/attention_amx.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>

#include "base/float_formats.h"
#include "platforms/cpu/amx_tiles.h"

HADAL_AMX_BEGIN

namespace hadal::cpu {
namespace {

constexpr int64_t kTileWords = 512;  // bf16 values of a 16 x 32 tile

int64_t RoundUp(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

// Pieces of the scratch buffer.
struct Layout {
  int64_t rows;      // n rounded up to a pair of key tiles
  int64_t heads;     // rounded up to a tile
  uint16_t* keys;    // [rows][dim], gathered
  uint16_t* values;  // [rows/32][dim/16][16 pairs][16][2]
  uint16_t* query;   // [heads/16][dim/32][16][16][2]
  float* scores;     // [rows][heads]
  uint16_t* high;    // [heads][rows] probabilities, bf16
  uint16_t* low;     // [heads][rows] what bf16 left of them
  float* totals;     // [heads]
  size_t bytes;
};

Layout MakeLayout(std::byte* base, int64_t n, int64_t heads, int64_t dim) {
  Layout l = {};
  l.rows = RoundUp(n, 32);
  l.heads = RoundUp(heads, 16);
  size_t at = 0;
  const auto take = [&](size_t bytes) {
    std::byte* p = base == nullptr ? nullptr : base + at;  // null only counts
    at += (bytes + 63) / 64 * 64;
    return p;
  };
  l.keys = reinterpret_cast<uint16_t*>(take(l.rows * dim * 2));
  l.values = reinterpret_cast<uint16_t*>(take(l.rows * dim * 2));
  l.query = reinterpret_cast<uint16_t*>(take(l.heads * dim * 2));
  l.scores = reinterpret_cast<float*>(take(l.rows * l.heads * 4));
  l.high = reinterpret_cast<uint16_t*>(take(l.rows * l.heads * 2));
  l.low = reinterpret_cast<uint16_t*>(take(l.rows * l.heads * 2));
  l.totals = reinterpret_cast<float*>(take(l.heads * 4));
  l.bytes = at;
  return l;
}

// Any codes under any scale: fp32 arithmetic on 16 values at a time.
[[gnu::noinline]] void UnpackAnyE4M3(const uint8_t* codes, uint8_t scale, int64_t n, uint16_t* out) {
  const __m512 factor = _mm512_set1_ps(E8M0ToFloat(scale));
  for (int64_t i = 0; i < n; i += 16) {
    const auto present = static_cast<__mmask16>((1u << std::min<int64_t>(16, n - i)) - 1u);
    const __m512i code = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(present, codes + i));
    const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7F));
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
    const __m512i normal = _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32(120 << 23));
    const __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(0x1p-9f));
    __m512i v = _mm512_mask_mov_epi32(normal, _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8)),
                                      _mm512_castps_si512(small));
    v = _mm512_mask_mov_epi32(v, _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F)),
                              _mm512_set1_epi32(0x7FC00000));
    const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(v, sign)), factor);
    _mm256_mask_storeu_epi16(out + i, present, _mm512_cvtepi32_epi16(Bf16Bits(value)));
  }
}

// The first n values of a packed row as bf16, exactly. bf16 has the exponent range to take the scale in: a normal
// number's bits are moved and the exponent field is added to. Subnormal numbers, zero and NaN take their way one by one
// to a table; with values of any usual distribution one group in a hundred has some.
void UnpackE4M3(const ops::RowPlace& place, int64_t n, uint16_t* out) {
  const auto* codes = reinterpret_cast<const uint8_t*>(place.values);
  const __m512i magnitude_and_sign = _mm512_set1_epi16(static_cast<int16_t>(0x87F0));
  for (int64_t g = 0; g < n; g += ops::kFp8RowGroup) {
    const auto scale = static_cast<uint8_t>(place.scales[g / ops::kFp8RowGroup]);
    if (n - g >= ops::kFp8RowGroup && scale >= 7 && scale <= 246) {
      // 127 (NaN) and 0 ... 7 are the numbers 0 ... 8 behind it, counted modulo 128.
      const __m512i next =
          _mm512_and_si512(_mm512_add_epi8(_mm512_loadu_si512(codes + g), _mm512_set1_epi8(1)), _mm512_set1_epi8(0x7F));
      if (_mm512_cmplt_epu8_mask(next, _mm512_set1_epi8(9)) == 0) {
        const __m512i bias = _mm512_set1_epi16(static_cast<int16_t>((scale - 7) * 128));
        for (int64_t i = g; i < g + ops::kFp8RowGroup; i += 32) {
          const __m512i code = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
          const __m512i bits = _mm512_and_si512(_mm512_slli_epi16(code, 4), magnitude_and_sign);
          _mm512_storeu_si512(out + i, _mm512_add_epi16(bits, bias));
        }
        continue;
      }
    }
    UnpackAnyE4M3(codes + g, scale, std::min(n - g, ops::kFp8RowGroup), out + g);
  }
}

// Gathers the rows, and interleaves pairs of them as the value product wants them.
void GatherRows(const ops::RowPlace* rows, int64_t tail, int64_t n, int64_t dim, int64_t value_dim, const Layout& l) {
  alignas(64) uint16_t first[32];
  alignas(64) uint16_t second[32];
  for (int i = 0; i < 32; ++i) {
    first[i] = static_cast<uint16_t>(i / 2 + (i % 2 == 0 ? 0 : 32));
    second[i] = static_cast<uint16_t>(first[i] + 16);
  }
  const __m512i lower = _mm512_load_si512(first);
  const __m512i upper = _mm512_load_si512(second);
  const int64_t blocks = value_dim / 16;
  for (int64_t j = 0; j < l.rows; ++j) {
    uint16_t* key = l.keys + j * dim;
    if (j < n && rows[j].scales == nullptr) {
      std::memcpy(key, rows[j].values, dim * 2);
    } else if (j < n) {
      UnpackE4M3(rows[j], dim - tail, key);
      std::memcpy(key + dim - tail, rows[j].values + dim - tail, tail * 2);
    } else {
      std::memset(key, 0, dim * 2);
    }
    if (j % 2 == 0) continue;
    const uint16_t* even = key - dim;
    uint16_t* out = l.values + j / 32 * (blocks * kTileWords) + j % 32 / 2 * 32;
    for (int64_t c = 0; c < value_dim; c += 32) {
      const __m512i a = _mm512_loadu_si512(even + c);
      const __m512i b = _mm512_loadu_si512(key + c);
      _mm512_storeu_si512(out + c / 16 * kTileWords, _mm512_permutex2var_epi16(a, lower, b));
      _mm512_storeu_si512(out + (c / 16 + 1) * kTileWords, _mm512_permutex2var_epi16(a, upper, b));
    }
  }
}

void PackQuery(const uint16_t* q, int64_t heads, int64_t dim, const Layout& l) {
  std::memset(l.query, 0, l.heads * dim * 2);
  for (int64_t h = 0; h < heads; ++h) {
    auto* out = reinterpret_cast<uint32_t*>(l.query + h / 16 * (16 * dim)) + h % 16;
    const auto* pairs = reinterpret_cast<const uint32_t*>(q + h * dim);
    for (int64_t i = 0; i < dim / 2; ++i) out[i * 16] = pairs[i];
  }
}

// scores[j][h] for two key tiles and one or two head tiles.
template <bool kPair>
inline void ScoreTiles(const Layout& l, int64_t dim, int64_t j, int64_t h) {
  const uint16_t* k0 = l.keys + j * dim;
  const uint16_t* k1 = k0 + 16 * dim;
  const uint16_t* q0 = l.query + h / 16 * (16 * dim);
  const uint16_t* q1 = q0 + 16 * dim;
  const size_t key_stride = dim * 2;
  _tile_zero(0);
  _tile_zero(2);
  if constexpr (kPair) {
    _tile_zero(1);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < dim / 32; ++step) {
    _tile_loadd(4, k0 + step * 32, key_stride);
    _tile_loadd(6, q0 + step * kTileWords, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, k1 + step * 32, key_stride);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kPair) {
      _tile_loadd(7, q1 + step * kTileWords, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  const size_t stride = l.heads * 4;
  float* out = l.scores + j * l.heads + h;
  _tile_stored(0, out, stride);
  _tile_stored(2, out + 16 * l.heads, stride);
  if constexpr (kPair) {
    _tile_stored(1, out + 16, stride);
    _tile_stored(3, out + 16 * l.heads + 16, stride);
  }
}

// Softmax of sixteen heads in lanes: unnormalised probabilities as two bf16 numbers, and their sum with the sink's.
// kRound: normalised ones as one number, with a sum of 1.
template <bool kRound>
void Softmax(const Layout& l, int64_t n, int64_t h, float scale, __m512 sink) {
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 peak = sink;
  float* column = l.scores + h;
  for (int64_t j = 0; j < n; ++j) {
    const __m512 s = _mm512_mul_ps(_mm512_loadu_ps(column + j * l.heads), factor);
    _mm512_storeu_ps(column + j * l.heads, s);
    peak = _mm512_max_ps(peak, s);
  }
  __m512 total = Exp(_mm512_sub_ps(sink, peak));
  __m512 inverse = _mm512_set1_ps(1.0f);
  if constexpr (kRound) {
    for (int64_t j = 0; j < n; ++j) {
      const __m512 p = Exp(_mm512_sub_ps(_mm512_loadu_ps(column + j * l.heads), peak));
      _mm512_storeu_ps(column + j * l.heads, p);
      total = _mm512_add_ps(total, p);
    }
    inverse = _mm512_div_ps(inverse, total);
  }
  const __m512i low_words = _mm512_set1_epi32(0xFFFF);
  alignas(64) uint32_t pairs[2][16][16];
  for (int64_t j0 = 0; j0 < l.rows; j0 += 32) {
    // Two keys of a head side by side in a dword, then a transposition through memory to [head][key].
    for (int64_t i = 0; i < 16; ++i) {
      __m512i high[2];
      __m512i low[2];
      for (int64_t s = 0; s < 2; ++s) {
        const int64_t j = j0 + 2 * i + s;
        if constexpr (kRound) {
          const __m512 q = j < n ? _mm512_mul_ps(_mm512_loadu_ps(column + j * l.heads), inverse) : _mm512_setzero_ps();
          high[s] = Bf16Bits(q);
          low[s] = _mm512_setzero_si512();
          continue;
        }
        const __m512 p = j < n ? Exp(_mm512_sub_ps(_mm512_loadu_ps(column + j * l.heads), peak)) : _mm512_setzero_ps();
        total = _mm512_add_ps(total, p);
        high[s] = Bf16Bits(p);
        low[s] = Bf16Bits(_mm512_sub_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(high[s], 16))));
      }
      _mm512_store_si512(pairs[0][i],
                         _mm512_or_si512(_mm512_and_si512(high[0], low_words), _mm512_slli_epi32(high[1], 16)));
      _mm512_store_si512(pairs[1][i],
                         _mm512_or_si512(_mm512_and_si512(low[0], low_words), _mm512_slli_epi32(low[1], 16)));
    }
    const __m512i steps = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                             _mm512_set1_epi32(16));
    for (int64_t head = 0; head < 16; ++head) {
      const __m512i index = _mm512_add_epi32(steps, _mm512_set1_epi32(static_cast<int>(head)));
      _mm512_storeu_si512(l.high + (h + head) * l.rows + j0, _mm512_i32gather_epi32(index, &pairs[0][0][0], 4));
      if constexpr (kRound) continue;
      _mm512_storeu_si512(l.low + (h + head) * l.rows + j0, _mm512_i32gather_epi32(index, &pairs[1][0][0], 4));
    }
  }
  _mm512_storeu_ps(l.totals + h, kRound ? _mm512_set1_ps(1.0f) : total);
}

// Sums of a head tile over all rows for four blocks of sixteen channels. kRound: there is no low part.
template <bool kRound>
void ValueTiles(const Layout& l, int64_t dim, int64_t h, int64_t block, float out[4][16][16]) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const size_t stride = l.rows * 2;
  for (int64_t j = 0; j < l.rows; j += 32) {
    const uint16_t* v = l.values + j / 32 * (dim / 16 * kTileWords) + block * kTileWords;
    _tile_loadd(4, l.high + h * l.rows + j, stride);
    if constexpr (!kRound) _tile_loadd(5, l.low + h * l.rows + j, stride);
    _tile_loadd(6, v, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (!kRound) _tile_dpbf16ps(0, 5, 6);
    _tile_loadd(7, v + kTileWords, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (!kRound) _tile_dpbf16ps(1, 5, 7);
    _tile_loadd(6, v + 2 * kTileWords, 64);
    _tile_dpbf16ps(2, 4, 6);
    if constexpr (!kRound) _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, v + 3 * kTileWords, 64);
    _tile_dpbf16ps(3, 4, 7);
    if constexpr (!kRound) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out[0], 64);
  _tile_stored(1, out[1], 64);
  _tile_stored(2, out[2], 64);
  _tile_stored(3, out[3], 64);
}

}  // namespace

size_t AttendAmxScratch(int64_t n, int64_t heads, int64_t dim) { return MakeLayout(nullptr, n, heads, dim).bytes; }

void AttendAmx(const uint16_t* q, int64_t heads, int64_t dim, int64_t value_dim, const ops::RowPlace* rows,
               int64_t tail, int64_t n, float scale, const float* sink, bool round, std::byte* scratch, float* out) {
  if (n == 0) {
    std::memset(out, 0, heads * value_dim * sizeof(float));
    return;
  }
  const Layout l = MakeLayout(scratch, n, heads, dim);
  ConfigureTiles(16);
  GatherRows(rows, tail, n, dim, value_dim, l);
  PackQuery(q, heads, dim, l);
  TileFence(scratch);
  for (int64_t j = 0; j < l.rows; j += 32) {
    int64_t h = 0;
    for (; h + 32 <= l.heads; h += 32) ScoreTiles<true>(l, dim, j, h);
    if (h < l.heads) ScoreTiles<false>(l, dim, j, h);
  }
  TileFence(scratch);
  for (int64_t h = 0; h < l.heads; h += 16) {
    const int64_t count = std::min<int64_t>(16, heads - h);
    const auto present = static_cast<__mmask16>((1u << count) - 1u);
    const __m512 sinks = _mm512_maskz_loadu_ps(present, sink + h);
    if (round) {
      Softmax<true>(l, n, h, scale, sinks);
    } else {
      Softmax<false>(l, n, h, scale, sinks);
    }
    TileFence(scratch);
    alignas(64) float block[4][16][16];
    for (int64_t c = 0; c < value_dim / 16; c += 4) {
      if (round) {
        ValueTiles<true>(l, value_dim, h, c, block);
      } else {
        ValueTiles<false>(l, value_dim, h, c, block);
      }
      TileFence(block);
      for (int64_t i = 0; i < count; ++i) {
        const __m512 inverse = _mm512_set1_ps(1.0f / l.totals[h + i]);
        for (int64_t b = 0; b < 4; ++b) {
          _mm512_storeu_ps(out + (h + i) * value_dim + (c + b) * 16,
                           _mm512_mul_ps(_mm512_load_ps(block[b][i]), inverse));
        }
      }
    }
  }
}

}  // namespace hadal::cpu

HADAL_AMX_END

#else

namespace hadal::cpu {
size_t AttendAmxScratch(int64_t, int64_t, int64_t) { return 0; }
void AttendAmx(const uint16_t*, int64_t, int64_t, int64_t, const ops::RowPlace*, int64_t, int64_t, float, const float*,
               bool, std::byte*, float*) {}
}  // namespace hadal::cpu

#endif
