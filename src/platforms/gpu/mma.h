// The matrix unit, one wave at a time: C[16, 16] += A[16, 16] * B[16, 16]^T in bf16 with fp32 sums. Both operands lie
// in shared memory with k contiguous: A by rows, B by its output (as weights lie).
//
// NVIDIA: mma.sync m16n8k16, twice. AMD: v_mfma_f32_16x16x16_bf16. The emulator computes both layouts (a wave of 32
// lanes as NVIDIA's, of 64 as AMD's). Which lane holds which element is asked of Tile and not assumed.
//
// AMD's mapping, from its Matrix Instruction Calculator (github.com/ROCm/amd_matrix_instruction_calculator, cdna3,
// v_mfma_f32_16x16x16_bf16): A[i][k] is element k % 4 of lane 16 * (k / 4) + i, B[k][j] element k % 4 of lane
// 16 * (k / 4) + j, C[i][j] element i % 4 of lane 16 * (i / 4) + j.
#pragma once

#include "platforms/gpu/formats.h"

namespace hadal::gpu::HADAL_GPU_NS {

#if HADAL_GPU_CUDA
HADAL_DEVICE constexpr int WaveLanes() { return 32; }
#elif HADAL_GPU_HIP
HADAL_DEVICE constexpr int WaveLanes() { return 64; }
#else
HADAL_DEVICE int WaveLanes() { return emulator::Wave(); }
#endif
// Most lanes that a wave of this backend has.
#if HADAL_GPU_CUDA
inline constexpr int kMostWaveLanes = 32;
#else
inline constexpr int kMostWaveLanes = 64;
#endif
HADAL_DEVICE int WaveLane() { return ThreadX() % WaveLanes(); }
HADAL_DEVICE int WaveX() { return ThreadX() / WaveLanes(); }

struct Tile {
  static constexpr int kM = 16, kN = 16, kK = 16;

#if HADAL_GPU_CUDA
  static constexpr int kSums = 8;  // elements of C that a lane holds
  struct A {
    uint32_t r[4];
  };
  struct B {
    uint32_t r[4];
  };
#elif HADAL_GPU_HIP
  static constexpr int kSums = 4;
  using Four = __attribute__((__vector_size__(4 * sizeof(short)))) short;
  struct A {
    Four r;
  };
  using B = A;
#else
  static constexpr int kSums = 8;        // of which a wave of 64 lanes uses 4
  static constexpr int kMostWaves = 32;  // of a block
  struct A {
    Bf16 r[8];
  };
  using B = A;
#endif
  struct C {
    float v[kSums];
  };

  // How many elements of C.v are used, and where they are.
  HADAL_DEVICE static int Sums() {
#if HADAL_GPU_EMULATED
    return WaveLanes() == 64 ? 4 : 8;
#else
    return kSums;
#endif
  }
  HADAL_DEVICE static int Row(int i) {
#if HADAL_GPU_CUDA
    return WaveLane() / 4 + (i % 4) / 2 * 8;
#elif HADAL_GPU_HIP
    return WaveLane() / 16 * 4 + i;
#else
    return WaveLanes() == 64 ? WaveLane() / 16 * 4 + i : WaveLane() / 4 + (i % 4) / 2 * 8;
#endif
  }
  HADAL_DEVICE static int Col(int i) {
#if HADAL_GPU_CUDA
    return i / 4 * 8 + WaveLane() % 4 * 2 + i % 2;
#elif HADAL_GPU_HIP
    return WaveLane() % 16;
#else
    return WaveLanes() == 64 ? WaveLane() % 16 : i / 4 * 8 + WaveLane() % 4 * 2 + i % 2;
#endif
  }

  // Sums of C along its rows, the same in all lanes that hold elements of a row: first a lane's own elements, then
  // lanes as a butterfly. A lane has Rows() rows, the r-th of them is RowAt(r).
  static constexpr int kMostRows = 4;
  HADAL_DEVICE static int Rows() {
#if HADAL_GPU_CUDA
    return 2;
#elif HADAL_GPU_HIP
    return 4;
#else
    return WaveLanes() == 64 ? 4 : 2;
#endif
  }
  HADAL_DEVICE static int RowAt(int r) { return Row(Rows() == 2 ? 2 * r : r); }
  HADAL_DEVICE static void SumRows(const C& c, float* sums) {
    for (int r = 0; r < Rows(); ++r) {
      if (Rows() == 2) {
        sums[r] = (c.v[2 * r] + c.v[2 * r + 1]) + (c.v[(2 * r + 4) % kSums] + c.v[(2 * r + 5) % kSums]);
      } else {
        sums[r] = c.v[r];
      }
      for (int mask = 1; mask < (Rows() == 2 ? 4 : 16); mask *= 2) sums[r] += ShuffleXor(sums[r], mask);
    }
  }

  HADAL_DEVICE static void Zero(C* c) {
    for (float& v : c->v) v = 0;
  }

  // A[16, 16] at `at` with rows `ld` elements apart; at and ld are multiples of 8 elements.
  HADAL_DEVICE static void LoadA(A* a, const Bf16* at, int ld) {
#if HADAL_GPU_CUDA
    const Bf16* row = at + (WaveLane() % 16) * ld + WaveLane() / 16 * 8;
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(a->r[0]), "=r"(a->r[1]), "=r"(a->r[2]), "=r"(a->r[3])
                 : "r"(address));
#elif HADAL_GPU_HIP
    a->r = *reinterpret_cast<const Four*>(at + (WaveLane() % 16) * ld + WaveLane() / 16 * 4);
#else
    if (WaveLanes() == 64) {
      for (int i = 0; i < 4; ++i) a->r[i] = at[(WaveLane() % 16) * ld + WaveLane() / 16 * 4 + i];
    } else {
      for (int i = 0; i < 8; ++i) {
        const int row = WaveLane() / 4 + i / 2 % 2 * 8;
        a->r[i] = at[row * ld + i / 4 * 8 + WaveLane() % 4 * 2 + i % 2];
      }
    }
#endif
  }
  // B[n = 16, k = 16], the same way.
  HADAL_DEVICE static void LoadB(B* b, const Bf16* at, int ld) {
#if HADAL_GPU_CUDA
    // r[0], r[1]: columns 0-7, k 0-7 and 8-15; r[2], r[3]: columns 8-15.
    const Bf16* row = at + (WaveLane() % 8 + WaveLane() / 16 * 8) * ld + WaveLane() / 8 % 2 * 8;
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(b->r[0]), "=r"(b->r[1]), "=r"(b->r[2]), "=r"(b->r[3])
                 : "r"(address));
#elif HADAL_GPU_HIP
    LoadA(b, at, ld);
#else
    if (WaveLanes() == 64) {
      LoadA(b, at, ld);
    } else {
      for (int i = 0; i < 8; ++i) {
        const int col = i / 4 * 8 + WaveLane() / 4;
        b->r[i] = at[col * ld + i / 2 % 2 * 8 + WaveLane() % 4 * 2 + i % 2];
      }
    }
#endif
  }
  // B given as [k = 16, n = 16] in shared memory, n contiguous (values of attention).
  HADAL_DEVICE static void LoadBTransposed(B* b, const Bf16* at, int ld) {
#if HADAL_GPU_CUDA
    const Bf16* row = at + (WaveLane() % 16) * ld + WaveLane() / 16 * 8;
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(b->r[0]), "=r"(b->r[1]), "=r"(b->r[2]), "=r"(b->r[3])
                 : "r"(address));
#elif HADAL_GPU_HIP
    for (int i = 0; i < 4; ++i) {
      b->r[i] = static_cast<short>(at[(WaveLane() / 16 * 4 + i) * ld + WaveLane() % 16].bits);
    }
#else
    if (WaveLanes() == 64) {
      for (int i = 0; i < 4; ++i) b->r[i] = at[(WaveLane() / 16 * 4 + i) * ld + WaveLane() % 16];
    } else {
      for (int i = 0; i < 8; ++i) {
        const int col = i / 4 * 8 + WaveLane() / 4;
        b->r[i] = at[(i / 2 % 2 * 8 + WaveLane() % 4 * 2 + i % 2) * ld + col];
      }
    }
#endif
  }

  // Operands that are made in registers. A lane holds, of each of its Held() rows of A (columns of B), four values of
  // the 16 along k: those of its quarter. Which four inputs those are is the caller's choice as long as A and B agree.
  HADAL_DEVICE static int Held() {
#if HADAL_GPU_CUDA
    return 2;
#elif HADAL_GPU_HIP
    return 1;
#else
    return WaveLanes() == 64 ? 1 : 2;
#endif
  }
  HADAL_DEVICE static int HeldRow(int i) {
#if HADAL_GPU_CUDA
    return WaveLane() / 4 + 8 * i;
#elif HADAL_GPU_HIP
    return WaveLane() % 16;
#else
    return WaveLanes() == 64 ? WaveLane() % 16 : WaveLane() / 4 + 8 * i;
#endif
  }
  HADAL_DEVICE static int Quarter() {
#if HADAL_GPU_CUDA
    return WaveLane() % 4;
#elif HADAL_GPU_HIP
    return WaveLane() / 16;
#else
    return WaveLanes() == 64 ? WaveLane() / 16 : WaveLane() % 4;
#endif
  }
  // The quarter's values of row HeldRow(i): two pairs of bf16, the first of a pair in the low half.
  HADAL_DEVICE static void SetA(A* a, int i, uint32_t first, uint32_t second) {
#if HADAL_GPU_CUDA
    a->r[i] = first;
    a->r[2 + i] = second;
#else
    const uint32_t words[2] = {first, second};
    SetQuarter(a, 2 * i, 4, words);
#endif
  }
  HADAL_DEVICE static void SetB(B* b, int i, uint32_t first, uint32_t second) {
#if HADAL_GPU_CUDA
    b->r[2 * i] = first;
    b->r[2 * i + 1] = second;
#else
    const uint32_t words[2] = {first, second};
    SetQuarter(b, 4 * i, 2, words);
#endif
  }
#if !HADAL_GPU_CUDA
  // Words at elements `at` and `at + step` of a narrow wave's operand; a wide one has but these two.
  HADAL_DEVICE static void SetQuarter(A* a, int at, int step, const uint32_t* words) {
#if HADAL_GPU_HIP
    std::memcpy(&a->r, words, sizeof(a->r));
#else
    if (WaveLanes() == 64) at = 0, step = 2;
    std::memcpy(a->r + at, words, 4);
    std::memcpy(a->r + at + step, words + 1, 4);
#endif
  }
#endif

  HADAL_DEVICE static void Multiply(C* c, const A& a, const B& b) {
#if HADAL_GPU_CUDA
    for (int half = 0; half < 2; ++half) {
      float* v = c->v + 4 * half;
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};\n"
          : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
          : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[2 * half]), "r"(b.r[2 * half + 1]));
    }
#elif HADAL_GPU_HIP
    using Sums4 = __attribute__((__vector_size__(4 * sizeof(float)))) float;
    Sums4 sums = {c->v[0], c->v[1], c->v[2], c->v[3]};
    sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a.r, b.r, sums, 0, 0, 0);
    for (int i = 0; i < 4; ++i) c->v[i] = sums[i];
#else
    // Each lane shows what it holds; the last one computes for all, which is many times faster than 32 fibers.
    struct Wave {
      float a[kM][kK];
      float b[kK][kN];
      float* sums[64];
      int shown = 0;
    };
    static thread_local Wave waves[kMostWaves];
    Wave& wave = waves[WaveX()];
    const int lanes = WaveLanes();
    const bool wide = lanes == 64;
    const int lane = WaveLane();
    for (int i = 0; i < (wide ? 4 : 8); ++i) {
      const int k = wide ? lane / 16 * 4 + i : i / 4 * 8 + lane % 4 * 2 + i % 2;
      wave.a[wide ? lane % 16 : lane / 4 + i / 2 % 2 * 8][k] = ToFloat(a.r[i]);
      const int k_b = wide ? k : i / 2 % 2 * 8 + lane % 4 * 2 + i % 2;
      wave.b[k_b][wide ? lane % 16 : i / 4 * 8 + lane / 4] = ToFloat(b.r[i]);
    }
    wave.sums[lane] = c->v;
    if (++wave.shown == lanes) {
      wave.shown = 0;
      for (int row = 0; row < kM; ++row) {
        float* at[kN];
        float sums[kN];
        for (int col = 0; col < kN; ++col) {
          at[col] = wide ? wave.sums[row / 4 * 16 + col] + row % 4
                         : wave.sums[row % 8 * 4 + col % 8 / 2] + col / 8 * 4 + row / 8 * 2 + col % 2;
          sums[col] = *at[col];
        }
        for (int k = 0; k < kK; ++k) {
          for (int col = 0; col < kN; ++col) sums[col] += wave.a[row][k] * wave.b[k][col];
        }
        for (int col = 0; col < kN; ++col) *at[col] = sums[col];
      }
    }
    emulator::WaveBarrier();
#endif
  }
};

}  // namespace hadal::gpu::HADAL_GPU_NS
