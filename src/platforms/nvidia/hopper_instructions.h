// Hopper's own instructions as functions: mbarriers, the bulk copy engine, warpgroup matrix products. Only for device
// code of sm_90a; kernels that use them are empty elsewhere (HADAL_SM90A).
#pragma once

#include <cuda.h>

#include <cstdint>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HADAL_SM90A 1
#else
#define HADAL_SM90A 0
#endif

#if HADAL_SM90A

namespace hadal::gpu::cuda::hopper {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of the cluster; what was written to shared memory before is seen behind it.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <int kRegisters>
__device__ __forceinline__ void MoreRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void FewerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// mbarriers, by shared address.
__device__ __forceinline__ void BarrierInit(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierExpect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives at the barrier of the same place in block `rank` of the cluster.
__device__ __forceinline__ void BarrierArriveAt(uint32_t bar, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(bar),
      "r"(rank)
      : "memory");
}
__device__ __forceinline__ void BarrierWait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni end;\nbra.uni again;\nend:\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}

// The bulk copy engine. A box of a tensor map to shared memory; bytes are counted at `bar`.
__device__ __forceinline__ void CopyBox(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(map), "r"(x), "r"(y), "r"(bar)
      : "memory");
}
// To the same place of both blocks of a cluster, counted at the barrier of each.
__device__ __forceinline__ void CopyBoxToPair(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(bar), "h"(static_cast<uint16_t>(3))
      : "memory");
}
__device__ __forceinline__ void CopyBytes(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(bar)
               : "memory");
}
__device__ __forceinline__ void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Warpgroup products.
__device__ __forceinline__ void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until no more than kPending committed groups are under way.
template <int kPending = 0>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses of accumulators across a product that is under way.
template <int kCount>
__device__ __forceinline__ void Pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// An operand in shared memory: rows of 128 bytes of k, as a tensor map with the 128-byte swizzle lays them down; groups
// of 8 rows lie 1024 bytes apart. Its next 32 bytes of k: +2.
__device__ __forceinline__ uint64_t Operand(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// d[64, N] (+)= a[64, 32] * b[N, 32]^T in e4m3: thread 32*w + 4*g + t holds rows 16*w + g (d[4*i], d[4*i+1]) and 16*w +
// g + 8 (d[4*i+2], d[4*i+3]), columns 8*i + 2*t and one more. kAdd false: d is overwritten.
template <int kN, bool kAdd>
struct Wgmma;

#define HADAL_D8(i)                                                                                       \
  "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), \
      "+f"(d[(i) + 6]), "+f"(d[(i) + 7])

#define HADAL_LIST_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define HADAL_OUT_32 HADAL_D8(0), HADAL_D8(8)
#define HADAL_LIST_64                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HADAL_OUT_64 HADAL_D8(0), HADAL_D8(8), HADAL_D8(16), HADAL_D8(24)
#define HADAL_LIST_128                                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HADAL_OUT_128 \
  HADAL_D8(0), HADAL_D8(8), HADAL_D8(16), HADAL_D8(24), HADAL_D8(32), HADAL_D8(40), HADAL_D8(48), HADAL_D8(56)

#define HADAL_WGMMA(n, a0, a1, a2)                                                                                  \
  template <bool kAdd>                                                                                              \
  struct Wgmma<n, kAdd> {                                                                                           \
    static __device__ __forceinline__ void Multiply(float (&d)[(n) / 2], uint64_t a, uint64_t b) {                  \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" HADAL_LIST_##n "}, %" #a0 ", %" #a1 \
                                                                                               ", %" #a2 ", 1, 1;"  \
                   : HADAL_OUT_##n                                                                                  \
                   : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));                                                            \
    }                                                                                                               \
  };

HADAL_WGMMA(32, 16, 17, 18)
HADAL_WGMMA(64, 32, 33, 34)
HADAL_WGMMA(128, 64, 65, 66)
#undef HADAL_WGMMA
#undef HADAL_D8
#undef HADAL_LIST_32
#undef HADAL_OUT_32
#undef HADAL_LIST_64
#undef HADAL_OUT_64
#undef HADAL_LIST_128
#undef HADAL_OUT_128

// Four 8x8 matrices of 16-bit values to rows of 16 bytes: lane 8*i + r gives the address of row r of matrix i.
__device__ __forceinline__ void StoreMatrices(uint32_t to, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(m0), "r"(m1), "r"(m2),
               "r"(m3)
               : "memory");
}

// What this thread has written to shared memory, for the tensor cores.
__device__ __forceinline__ void FenceForProducts() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Two values to nearest even, `low` in the lower half.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
// Two values to e4m3, to nearest even, saturating, `low` in the lower byte.
__device__ __forceinline__ uint32_t PackE4M3(float low, float high) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace hadal::gpu::cuda::hopper

#endif  // HADAL_SM90A
