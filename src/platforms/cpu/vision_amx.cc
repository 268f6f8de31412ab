#include "platforms/cpu/vision_amx.h"

#include <algorithm>
#include <cstring>

namespace hadal::cpu {

void PackTileBlock(const uint16_t* keys, const uint16_t* values, int64_t count, int64_t dim, uint16_t* key_block,
                   uint16_t* value_block) {
  if (count < kTileKeys) {
    std::fill(key_block, key_block + kTileKeys * dim, uint16_t{0});
    std::fill(value_block, value_block + kTileKeys * dim, uint16_t{0});
  }
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t c = 0; c < dim; c += 2) {
      const int64_t tile = j / 16 * (dim / 32) + c / 32;
      std::memcpy(key_block + (tile * 16 + c % 32 / 2) * 32 + j % 16 * 2, keys + j * dim + c, 2 * sizeof(uint16_t));
    }
    for (int64_t c = 0; c < dim; ++c) {
      value_block[(c / 16 * 16 + j / 2) * 32 + c % 16 * 2 + j % 2] = values[j * dim + c];
    }
  }
}

}  // namespace hadal::cpu

#if defined(__x86_64__)
#include <immintrin.h>

#include "platforms/cpu/amx_tiles.h"

HADAL_AMX_BEGIN

namespace hadal::cpu {
namespace {

constexpr int64_t kTileWords = 512;  // bf16 values of a tile

// Pieces of the scratch buffer.
struct Layout {
  int64_t rows;     // n rounded up to a block
  uint16_t* query;  // [kTileQueries][dim]
  uint16_t* keys;   // the last block, if it is not full
  uint16_t* values;
  // [kTileQueries][rows] scores; then in each 32 of a row the upper halves of its probabilities, and what bf16 left of
  // them: as many bytes.
  float* scores;
};

// Where they lie, in bytes.
struct Offsets {
  int64_t rows;
  size_t keys, values, scores, end;
};

Offsets MakeOffsets(int64_t n, int64_t dim) {
  const auto lines = [](int64_t bytes) { return static_cast<size_t>(bytes + 63) / 64 * 64; };
  Offsets o = {};
  o.rows = (n + kTileKeys - 1) / kTileKeys * kTileKeys;
  o.keys = lines(kTileQueries * dim * 2);
  o.values = o.keys + lines(kTileKeys * dim * 2);
  o.scores = o.values + lines(kTileKeys * dim * 2);
  o.end = o.scores + lines(kTileQueries * o.rows * 4);
  return o;
}

Layout MakeLayout(std::byte* base, int64_t n, int64_t dim) {
  const Offsets o = MakeOffsets(n, dim);
  return {o.rows, reinterpret_cast<uint16_t*>(base), reinterpret_cast<uint16_t*>(base + o.keys),
          reinterpret_cast<uint16_t*>(base + o.values), reinterpret_cast<float*>(base + o.scores)};
}

// scores[i][j, j + 32) of all queries.
void ScoreBlock(const Layout& l, int64_t dim, const uint16_t* block, int64_t j) {
  const size_t query_stride = dim * 2;
  const uint16_t* second = block + dim / 32 * kTileWords;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < dim / 32; ++step) {
    _tile_loadd(4, l.query + step * 32, query_stride);
    _tile_loadd(6, block + step * kTileWords, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, second + step * kTileWords, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, l.query + 16 * dim + step * 32, query_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  const size_t stride = l.rows * 4;
  _tile_stored(0, l.scores + j, stride);
  _tile_stored(1, l.scores + j + 16, stride);
  _tile_stored(2, l.scores + 16 * l.rows + j, stride);
  _tile_stored(3, l.scores + 16 * l.rows + j + 16, stride);
}

// GCC 12 warns of its own reductions.
float Largest(__m512 v) {
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, v);
  return *std::max_element(lanes, lanes + 16);
}
float Sum(__m512 v) {
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, v);
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

// 32 scores to probabilities as two bf16 numbers, in their place. The upper half of p is cut off, what is left of it
// rounded: p is met within 2^-16 of it.
inline __m512 SplitBlock(float* scores, __mmask16 first, __mmask16 second, __m512 scale, __m512 peak, __m512i upper) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
  const __m512i round = _mm512_set1_epi32(0x8000);
  const __mmask16 exist[2] = {first, second};
  __m512 p[2];
  __m512i rest[2];
  for (int s = 0; s < 2; ++s) {
    p[s] = _mm512_maskz_mov_ps(exist[s], Exp(_mm512_fmsub_ps(_mm512_loadu_ps(scores + 16 * s), scale, peak)));
    const __m512 cut = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(p[s]), high));
    rest[s] = _mm512_add_epi32(_mm512_castps_si512(_mm512_sub_ps(p[s], cut)), round);
  }
  const __m512i words = _mm512_permutex2var_epi16(_mm512_castps_si512(p[0]), upper, _mm512_castps_si512(p[1]));
  _mm512_storeu_si512(scores, words);
  _mm512_storeu_si512(scores + 16, _mm512_permutex2var_epi16(rest[0], upper, rest[1]));
  return _mm512_add_ps(p[0], p[1]);
}

// The lanes of 16 keys from j on that exist.
__mmask16 Existing(int64_t j, int64_t n) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(n - j, 0, 16)) - 1u);
}

// One row of scores to unnormalised probabilities; returns their sum.
float Softmax(float* row, int64_t n, float scale) {
  const __m512 factor = _mm512_set1_ps(scale);
  const int64_t whole = n / kTileKeys * kTileKeys;
  __m512 peaks = _mm512_set1_ps(-__builtin_huge_valf());
  for (int64_t j = 0; j < whole; j += 16) peaks = _mm512_max_ps(peaks, _mm512_loadu_ps(row + j));
  for (int64_t j = whole; j < n; j += 16) {
    peaks = _mm512_mask_max_ps(peaks, Existing(j, n), peaks, _mm512_loadu_ps(row + j));
  }
  const __m512 peak = _mm512_set1_ps(Largest(peaks) * scale);
  alignas(64) uint16_t odd_words[32];
  for (int i = 0; i < 32; ++i) odd_words[i] = static_cast<uint16_t>(2 * i + 1);
  const __m512i upper = _mm512_load_si512(odd_words);
  __m512 total = _mm512_setzero_ps();
  for (int64_t j = 0; j < whole; j += kTileKeys) {
    total = _mm512_add_ps(total, SplitBlock(row + j, 0xFFFF, 0xFFFF, factor, peak, upper));
  }
  if (whole < n) {
    const __m512 last = SplitBlock(row + whole, Existing(whole, n), Existing(whole + 16, n), factor, peak, upper);
    total = _mm512_add_ps(total, last);
  }
  return Sum(total);
}

// Adds the rows of one block to the sums of all queries, two times sixteen dims: tiles 0, 1 of the first sixteen
// queries and 2, 3 of the others.
inline void AddValues(const Layout& l, const uint16_t* block, int64_t j) {
  const size_t stride = l.rows * 4;
  const float* first = l.scores + j;
  const float* second = first + 16 * l.rows;
  _tile_loadd(6, block, 64);
  _tile_loadd(7, block + kTileWords, 64);
  _tile_loadd(4, first, stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, second, stride);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
  _tile_loadd(4, first + 16, stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, second + 16, stride);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Columns [c, c + 32) of the result.
void ValueColumns(const Layout& l, int64_t n, int64_t dim, const uint16_t* values, int64_t c, float out[4][16][16]) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const int64_t offset = c / 16 * kTileWords;
  const int64_t whole = n / kTileKeys * kTileKeys;
  for (int64_t j = 0; j < whole; j += kTileKeys) AddValues(l, values + j * dim + offset, j);
  if (whole < n) AddValues(l, l.values + offset, whole);
  _tile_stored(0, out[0], 64);
  _tile_stored(1, out[1], 64);
  _tile_stored(2, out[2], 64);
  _tile_stored(3, out[3], 64);
}

}  // namespace

size_t AttendAllAmxScratch(int64_t n, int64_t dim) { return MakeOffsets(n, dim).end; }

void AttendAllAmx(const uint16_t* q, int64_t count, int64_t dim, const uint16_t* keys, const uint16_t* values,
                  int64_t n, float scale, std::byte* scratch, float* out) {
  const Layout l = MakeLayout(scratch, n, dim);
  const int64_t whole = n / kTileKeys * kTileKeys;
  ConfigureTiles(16);
  std::memcpy(l.query, q, count * dim * 2);
  std::memset(l.query + count * dim, 0, (kTileQueries - count) * dim * 2);
  if (whole < n) PackTileBlock(keys + whole * dim, values + whole * dim, n - whole, dim, l.keys, l.values);
  TileFence(scratch);
  for (int64_t j = 0; j < whole; j += kTileKeys) ScoreBlock(l, dim, keys + j * dim, j);
  if (whole < n) ScoreBlock(l, dim, l.keys, whole);
  TileFence(scratch);
  float factors[kTileQueries];
  for (int64_t i = 0; i < kTileQueries; ++i) factors[i] = 1.0f / Softmax(l.scores + i * l.rows, n, scale);
  TileFence(scratch);
  alignas(64) float block[4][16][16];
  for (int64_t c = 0; c < dim; c += 32) {
    ValueColumns(l, n, dim, values, c, block);
    TileFence(block);
    for (int64_t i = 0; i < count; ++i) {
      const __m512 factor = _mm512_set1_ps(factors[i]);
      const int64_t tile = i / 16 * 2;
      for (int64_t half = 0; half < 2; ++half) {
        const __m512 sum = _mm512_load_ps(block[tile + half][i % 16]);
        _mm512_storeu_ps(out + i * dim + c + 16 * half, _mm512_mul_ps(sum, factor));
      }
    }
  }
}

}  // namespace hadal::cpu

HADAL_AMX_END

#else

namespace hadal::cpu {
size_t AttendAllAmxScratch(int64_t, int64_t) { return 0; }
void AttendAllAmx(const uint16_t*, int64_t, int64_t, const uint16_t*, const uint16_t*, int64_t, float, std::byte*,
                  float*) {}
}  // namespace hadal::cpu

#endif
