// Shared by the AMX translation units. Include after <immintrin.h>, inside HADAL_AMX_BEGIN ... HADAL_AMX_END.
//
// Functions between the two macros are compiled for AMX and AVX-512 whatever the build targets, and entered only after
// AmxLinear() has seen the CPU and the kernel grant them. (Targets are set by pragma, not by compiler flags: flags
// would also compile inline functions of headers for AVX-512, and the linker might keep those copies.)
#pragma once

#include <cstdint>

// clang-format off
#if defined(__clang__)
#define HADAL_AMX_BEGIN \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-bf16\"))), apply_to = function)")
#define HADAL_AMX_END _Pragma("clang attribute pop")
// clang-format on
#else
// GCC 12 takes the undefined pass-through operands inside its own AVX-512 headers for uninitialised variables.
#define HADAL_AMX_BEGIN                                                                   \
  _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"") _Pragma("GCC push_options") \
      _Pragma("GCC target(\"avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-bf16\")")
#define HADAL_AMX_END _Pragma("GCC pop_options")
#endif

namespace hadal::cpu {

// Makes memory written so far visible to the tile instructions that follow. GCC's tile intrinsics are inline assembly
// that does not say which memory it reads, so the compiler might move or drop the stores before them.
inline void TileFence(const void* written) { asm volatile("" : : "r"(written) : "memory"); }

// Sets this thread's tile registers up: 0-3 sums [16][group] fp32, 4-5 A operands [16][32] bf16, 6-7 B operands
// [16][group] pairs of bf16. A thread keeps its configuration between calls; setting another takes about a hundred
// cycles and clears the tiles.
void ConfigureTiles(int64_t group);

#if defined(__x86_64__)
HADAL_AMX_BEGIN
// Transposes 16 x 16 dwords held one row a register, in place.
inline void Transpose16(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // r[4q + c] now holds, in 128-bit lane l, the values of rows 4q ... 4q+3 in column 4l + c.
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD);
    t[8 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
  }
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xDD);
    r[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
    r[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xDD);
  }
}

// e^x for x <= 0, within 2 ulp; -inf and very negative values give 0. Taylor on [-ln2/2, ln2/2], degree 7.
inline __m512 Exp(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-126.0f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.0f / 5040);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

// The upper half of fp32 values rounded to bf16, ties to even, in the low words of the lanes.
inline __m512i Bf16Bits(__m512 v) {
  const __m512i u = _mm512_castps_si512(v);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  return _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), lsb), 16);
}
HADAL_AMX_END
#endif

}  // namespace hadal::cpu
