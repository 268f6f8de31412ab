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

#include "base/float_formats.h"
#include "platforms/cpu/amx_tiles.h"

HADAL_AMX_BEGIN

namespace hadal::cpu {
namespace {

// Inputs decoded at a time: 32 rows x 512 inputs as bf16 are 32 KiB, in L1 beside the streamed input tiles.
constexpr int64_t kChunk = 512;
constexpr int64_t kTileBytes = 1024;            // 16 rows of 64 bytes
constexpr int64_t kStepBytes = 2 * kTileBytes;  // the two row tiles of one step of 32 inputs

inline uint16_t ScalarBf16(float v) { return ToBFloat16(v).bits; }

// 128 E4M3 weights (or fewer, a multiple of 32) under one scale. bf16 has the exponent range to take the scale in: the
// exponent field is moved, and the seven subnormal codes come from a table.
inline void DecodeE4M3(const uint8_t* src, int64_t n, int scale_exponent, std::byte* dst) {
  alignas(64) static constexpr uint16_t kSubnormal[8] = {0,      0x3B00, 0x3B80, 0x3BC0,
                                                         0x3C00, 0x3C20, 0x3C40, 0x3C60};  // m * 2^-9
  const __m512i bias = _mm512_set1_epi16(static_cast<int16_t>((120 + scale_exponent) * 128));
  const __m512i table_base = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kSubnormal)));
  const __m512i table = _mm512_mask_add_epi16(table_base, 0xFEFEFEFEu, table_base,
                                              _mm512_set1_epi16(static_cast<int16_t>(scale_exponent * 128)));
  const __m512i magnitude_and_sign = _mm512_set1_epi16(static_cast<int16_t>(0x87F0));
  const __m512i exponent_field = _mm512_set1_epi16(0x78);
  const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
  for (int64_t i = 0; i < n; i += 32) {
    const __m512i code = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i)));
    const __m512i shifted = _mm512_and_si512(_mm512_slli_epi16(code, 4), magnitude_and_sign);
    __m512i value = _mm512_add_epi16(shifted, bias);
    const __mmask32 subnormal = _mm512_testn_epi16_mask(code, exponent_field);
    value = _mm512_mask_permutexvar_epi16(value, subnormal, code, table);
    value = _mm512_ternarylogic_epi32(value, code, sign, 0xF8);  // value | (code & sign)
    _mm512_store_si512(dst + i / 32 * kStepBytes, value);
  }
}

// n E2M1 weights (a multiple of 64) of one row. The looked-up values carry an exponent of +125; the scale is applied by
// a saturating subtraction on the exponent field, which leaves zero at zero.
inline void DecodeE2M1(const uint8_t* src, const uint8_t* scales, int64_t n, std::byte* dst) {
  alignas(64) static constexpr uint16_t kTable[16] = {
      0, 0x7D80, 0x7E00, 0x7E40, 0x7E80, 0x7EC0, 0x7F00, 0x7F40,  // .5 1 1.5 2 3 4 6 times 2^125
      0, 0xFD80, 0xFE00, 0xFE40, 0xFE80, 0xFEC0, 0xFF00, 0xFF40};
  const __m512i table = _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(kTable)));
  alignas(64) std::array<uint32_t, kChunk / 32> shift;
  const int64_t blocks = n / 32;
  const __mmask16 present = static_cast<__mmask16>((1u << blocks) - 1u);
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(present, scales));
  const __m512i steps = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(252), bytes), 7);
  _mm512_store_si512(shift.data(), _mm512_or_si512(steps, _mm512_slli_epi32(steps, 16)));
  for (int64_t i = 0; i < n; i += 64) {
    const __m512i pairs = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i / 2)));
    const __m512i down = _mm512_mask_set1_epi32(_mm512_set1_epi32(static_cast<int>(shift[i / 32])), 0xFF00,
                                                static_cast<int>(shift[i / 32 + 1]));
    const __m512i even = _mm512_subs_epu16(_mm512_permutexvar_epi16(pairs, table), down);
    const __m512i odd = _mm512_subs_epu16(_mm512_permutexvar_epi16(_mm512_srli_epi16(pairs, 4), table), down);
    _mm512_store_si512(dst + i / 32 * kStepBytes, even);
    _mm512_store_si512(dst + (i / 32 + 1) * kStepBytes, odd);
  }
}

// Scales that the fast decoders cannot take into the exponent (all-zero blocks of some exporters have byte 0).
void DecodeE4M3Slow(const uint8_t* src, int64_t n, float scale, std::byte* dst) {
  for (int64_t i = 0; i < n; ++i) {
    reinterpret_cast<uint16_t*>(dst + i / 32 * kStepBytes)[i % 32] = ScalarBf16(E4M3ToFloat(src[i]) * scale);
  }
}
void DecodeE2M1Slow(const uint8_t* src, const uint8_t* scales, int64_t n, std::byte* dst) {
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t code = (src[i / 2] >> (i % 2 * 4)) & 15;
    const int64_t tile = i / 64 * 2 + i % 2;
    reinterpret_cast<uint16_t*>(dst + tile * kStepBytes)[i % 64 / 2] =
        ScalarBf16(E2M1ToFloat(code) * E8M0ToFloat(scales[i / 32]));
  }
}

inline void PrefetchBytes(const void* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(static_cast<const char*>(p) + i, _MM_HINT_T0);
}

// Decodes inputs [k0, k0 + n) of one weight row into tile order at dst, and asks for the row's next chunk.
inline void DecodeRow(const ops::LinearWeight& w, int64_t row, int64_t k0, int64_t n, std::byte* dst) {
  const auto* bytes = static_cast<const uint8_t*>(w.data) + row * w.row_bytes();
  const int64_t next = std::min(kChunk, w.k - k0 - n);
  switch (w.dtype) {
    case DType::kF8E4M3: {
      const int64_t scale_cols = (w.k + 127) / 128;
      PrefetchBytes(bytes + k0 + n, next);
      for (int64_t i = 0; i < n; i += 128) {
        const int64_t at = row / 128 * scale_cols + (k0 + i) / 128;
        const float scale = w.scale_dtype == DType::kF32 ? static_cast<const float*>(w.scale)[at]
                                                         : E8M0ToFloat(static_cast<const uint8_t*>(w.scale)[at]);
        const int exponent = static_cast<int>(std::bit_cast<uint32_t>(scale) >> 23) - 127;
        const int64_t count = std::min<int64_t>(128, n - i);
        if (exponent < -100 || exponent > 100) {
          DecodeE4M3Slow(bytes + k0 + i, count, scale, dst + i / 32 * kStepBytes);
        } else {
          DecodeE4M3(bytes + k0 + i, count, exponent, dst + i / 32 * kStepBytes);
        }
      }
      break;
    }
    case DType::kF4E2M1: {
      const auto* scales = static_cast<const uint8_t*>(w.scale) + row * (w.k / 32) + k0 / 32;
      PrefetchBytes(bytes + (k0 + n) / 2, next / 2);
      bool usual = true;
      for (int64_t i = 0; i < n / 32; ++i) usual &= scales[i] >= 16 && scales[i] <= 250;
      if (usual) {
        DecodeE2M1(bytes + k0 / 2, scales, n, dst);
      } else {
        DecodeE2M1Slow(bytes + k0 / 2, scales, n, dst);
      }
      break;
    }
    default: {  // kBF16
      const auto* src = static_cast<const uint16_t*>(w.data) + row * w.k + k0;
      PrefetchBytes(src + n, next * 2);
      for (int64_t i = 0; i < n; i += 32) {
        _mm512_store_si512(dst + i / 32 * kStepBytes, _mm512_loadu_si512(src + i));
      }
      break;
    }
  }
}

inline void DecodeRows(const ops::LinearWeight& w, int64_t n0, int64_t rows, int64_t k0, int64_t n, std::byte* dst) {
  for (int64_t r = 0; r < rows; ++r) DecodeRow(w, n0 + r, k0, n, dst + r / 16 * kTileBytes + r % 16 * 64);
}

// Sums of one or two groups of input rows over a decoded chunk of `steps` x 32 inputs. kPair: two groups.
template <bool kPair>
inline void Multiply(const std::byte* weights, const std::byte* in0, const std::byte* in1, int64_t steps,
                     int64_t in_row_bytes, bool first, float* sum0, float* sum1) {
  const int64_t in_tile = 16 * in_row_bytes;
  const int64_t row_tile = 4 * in_row_bytes;  // floats of the 16 outputs of one row tile
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
}

// Sums of one group from [32 outputs][group] to [group][32 outputs], in place.
void TransposeSums(float* sums, int64_t group) {
  if (group == 1) return;
  if (group < 16) {
    std::array<float, kRowBlock * 16> copy;
    std::copy_n(sums, kRowBlock * group, copy.data());
    for (int64_t m = 0; m < group; ++m) {
      for (int64_t r = 0; r < kRowBlock; ++r) sums[m * kRowBlock + r] = copy[r * group + m];
    }
    return;
  }
  __m512i halves[2][16];
  for (int half = 0; half < 2; ++half) {
    for (int r = 0; r < 16; ++r) halves[half][r] = _mm512_loadu_si512(sums + (half * 16 + r) * 16);
    Transpose16(halves[half]);
  }
  for (int m = 0; m < 16; ++m) {
    _mm512_storeu_si512(sums + m * kRowBlock, halves[0][m]);
    _mm512_storeu_si512(sums + m * kRowBlock + 16, halves[1][m]);
  }
}

void LinearBlock(const PackedInput& x, const ops::LinearWeight& w, int64_t n0, int64_t n1, float* out,
                 std::byte* scratch) {
  const int64_t rows = n1 - n0;
  const int64_t groups = x.groups();
  const int64_t in_row_bytes = x.group * 4;
  const int64_t group_bytes = x.k * x.group * 2;  // bf16
  ConfigureTiles(x.group);
  auto* weights = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t{63});
  // A short last block: the missing rows stay zero, and the sums go to a full-sized buffer first when `out` has no
  // room.
  const bool full = rows == kRowBlock;
  if (!full) std::memset(weights, 0, kChunk / 32 * kStepBytes);
  const auto* input = static_cast<const std::byte*>(x.data);
  const int64_t sums = kRowBlock * x.group;
  float* spare = reinterpret_cast<float*>(weights + kChunk / 32 * kStepBytes);

  if (full) {
    for (int64_t k0 = 0; k0 < x.k; k0 += kChunk) {
      const int64_t chunk = std::min(kChunk, x.k - k0);
      DecodeRows(w, n0, rows, k0, chunk, weights);
      const std::byte* in = input + k0 / 32 * (16 * in_row_bytes);
      int64_t g = 0;
      for (; g + 2 <= groups; g += 2) {
        Multiply<true>(weights, in + g * group_bytes, in + (g + 1) * group_bytes, chunk / 32, in_row_bytes, k0 == 0,
                       out + g * sums, out + (g + 1) * sums);
      }
      if (g < groups) {
        Multiply<false>(weights, in + g * group_bytes, nullptr, chunk / 32, in_row_bytes, k0 == 0, out + g * sums,
                        nullptr);
      }
    }
    for (int64_t g = 0; g < groups; ++g) TransposeSums(out + g * sums, x.group);
    return;
  }
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t k0 = 0; k0 < x.k; k0 += kChunk) {
      const int64_t chunk = std::min(kChunk, x.k - k0);
      DecodeRows(w, n0, rows, k0, chunk, weights);
      Multiply<false>(weights, input + g * group_bytes + k0 / 32 * (16 * in_row_bytes), nullptr, chunk / 32,
                      in_row_bytes, k0 == 0, spare, nullptr);
    }
    for (int64_t m = g * x.group; m < std::min(x.m, (g + 1) * x.group); ++m) {
      for (int64_t r = 0; r < rows; ++r) out[m * rows + r] = spare[r * x.group + m % x.group];
    }
  }
}

inline uint32_t Bf16Bits(float exact) { return std::bit_cast<uint32_t>(exact) >> 16; }

// Sixteen rows: 64 inputs of each become two registers of bf16 pairs, transposed into the two tiles' order.
void PackFullGroup(const float* const* rows, int64_t k, InputLayout layout, uint32_t* dst) {
  alignas(64) std::array<uint16_t, 32> order;
  for (int i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(2 * i + 1);  // upper halves of 2 x 16 floats
  const __m512i upper = _mm512_load_si512(order.data());
  // FP4 order: of the 64 values the even ones first. Words 2i of (a, b), then words 2i+1.
  for (int i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(2 * i);
  const __m512i even = _mm512_load_si512(order.data());
  const __m512i odd = upper;
  int64_t i = 0;
  for (; i + 64 <= k; i += 64) {
    __m512i first[16];
    __m512i second[16];
    for (int m = 0; m < 16; ++m) {
      const float* row = rows[m] + i;
      const __m512i a = _mm512_permutex2var_epi16(_mm512_loadu_si512(row), upper, _mm512_loadu_si512(row + 16));
      const __m512i b = _mm512_permutex2var_epi16(_mm512_loadu_si512(row + 32), upper, _mm512_loadu_si512(row + 48));
      const bool fp4 = layout == InputLayout::kTilesFp4;
      first[m] = fp4 ? _mm512_permutex2var_epi16(a, even, b) : a;
      second[m] = fp4 ? _mm512_permutex2var_epi16(a, odd, b) : b;
    }
    Transpose16(first);
    Transpose16(second);
    for (int j = 0; j < 16; ++j) {
      _mm512_storeu_si512(dst + (i / 2 + j) * 16, first[j]);
      _mm512_storeu_si512(dst + (i / 2 + 16 + j) * 16, second[j]);
    }
  }
  for (; i < k; i += 2) {  // k is a multiple of 32
    for (int m = 0; m < 16; ++m) dst[i / 2 * 16 + m] = Bf16Bits(rows[m][i]) | Bf16Bits(rows[m][i + 1]) << 16;
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
    for (int64_t block = 0; block < k; block += 64) {
      for (int64_t j = 0; j < 16; ++j) {
        const float* four = row + block + 4 * j;
        column[(block / 2 + j) * group] = Bf16Bits(four[0]) | Bf16Bits(four[2]) << 16;
        column[(block / 2 + 16 + j) * group] = Bf16Bits(four[1]) | Bf16Bits(four[3]) << 16;
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
