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
HADAL_AMX_END
#endif

}  // namespace hadal::cpu
