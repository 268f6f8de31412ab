// What a kernel may use: thread numbers, barriers, exchanges between lanes, shared memory, and its launch. One kernel
// source is compiled three times: by nvcc for NVIDIA, by clang for AMD, and by the host's compiler for the emulator,
// which runs every thread of a block as a fiber: kernels are tested by it where there is no GPU.
//
// Rules for kernels:
//  - A group is 32 consecutive lanes, also on wave64 hardware: reductions and exchanges work on groups, so that
//    nothing depends on the width of a wave. Only mma.h knows the wave.
//  - Every lane of a group takes part in an exchange; every thread of a block that has not returned in a barrier.
//  - A product is fused with a sum only by Fma (the compilers' own contraction is off): what a row's bits are does not
//    depend on a compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "platforms/gpu/backend.h"

#if defined(__CUDACC__)
#define HADAL_GPU_CUDA 1
#include <cuda_runtime.h>
#elif defined(__HIP__)
#define HADAL_GPU_HIP 1

#include "platforms/gpu/device_hip.h"
#else
#define HADAL_GPU_EMULATED 1
#include <algorithm>
#include <cmath>

#include "platforms/gpu/emulator.h"
#endif

#if HADAL_GPU_EMULATED
#define HADAL_DEVICE inline
#define HADAL_HOST_DEVICE inline
#define HADAL_GLOBAL(threads) void
#define HADAL_GLOBAL_BLOCKS(threads, blocks) void
// A variable of a block: threads of a block run on one thread of the host.
#define HADAL_SHARED static thread_local
#define HADAL_UNROLL
#else
#define HADAL_DEVICE __device__ __forceinline__
#define HADAL_HOST_DEVICE __host__ __device__ __forceinline__
// A kernel that is launched with at most `threads` threads a block.
#define HADAL_GLOBAL(threads) __global__ void __launch_bounds__(threads)
// The same with registers for so many blocks at a time on a multiprocessor.
#if HADAL_GPU_CUDA
#define HADAL_GLOBAL_BLOCKS(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#else
#define HADAL_GLOBAL_BLOCKS(threads, blocks) HADAL_GLOBAL(threads)
#endif
#define HADAL_SHARED __shared__
// Before a loop over an array that has to stay in registers.
#define HADAL_UNROLL _Pragma("unroll")
#endif

namespace hadal::gpu::HADAL_GPU_NS {

inline constexpr int kGroup = 32;  // lanes of a group

struct LaunchShape {
  unsigned blocks_x = 1, blocks_y = 1, blocks_z = 1;
  unsigned threads = 1;
  size_t shared_bytes = 0;  // dynamic shared memory, above 48 KiB too where the device has it
};

// A launch hands over the addresses of its arguments: one of another type than the kernel's parameter would be read as
// if it were of that type.
template <typename... Args>
struct KernelTakes {
  template <typename... Params>
  static constexpr bool Of(void (*)(Params...)) {
    if constexpr (sizeof...(Params) == sizeof...(Args)) {
      return ((std::is_same_v<Params, Args> || (std::is_pointer_v<Params> && std::is_pointer_v<Args>)) && ...);
    } else {
      return false;
    }
  }
};

#if HADAL_GPU_EMULATED

HADAL_DEVICE int ThreadX() { return emulator::Thread(); }
HADAL_DEVICE int ThreadsX() { return emulator::Threads(); }
HADAL_DEVICE int BlockX() { return emulator::Block(0); }
HADAL_DEVICE int BlockY() { return emulator::Block(1); }
HADAL_DEVICE int BlockZ() { return emulator::Block(2); }
HADAL_DEVICE int BlocksX() { return emulator::Blocks(0); }
HADAL_DEVICE int BlocksY() { return emulator::Blocks(1); }
HADAL_DEVICE void BlockSync() { emulator::BlockBarrier(); }
HADAL_DEVICE void GroupSync() { emulator::GroupBarrier(); }
template <typename T>
HADAL_DEVICE T* DynamicShared() {
  return static_cast<T*>(emulator::DynamicShared());
}
// The value of `lane` of the caller's group.
template <typename T>
HADAL_DEVICE T Shuffle(T value, int lane) {
  return emulator::Exchange(value, lane);
}
template <typename T>
HADAL_DEVICE T ShuffleXor(T value, int mask) {
  return emulator::Exchange(value, (emulator::Thread() % kGroup) ^ mask);
}
HADAL_DEVICE float Fma(float a, float b, float c) { return std::fmaf(a, b, c); }
HADAL_DEVICE int AtomicAdd(int* at, int value) {
  const int old = *at;
  *at += value;
  return old;
}
HADAL_DEVICE unsigned FloatBits(float v) {
  unsigned bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return bits;
}
HADAL_DEVICE float BitsFloat(unsigned bits) {
  float v;
  std::memcpy(&v, &bits, sizeof(v));
  return v;
}

// Runs kKernel over the shape; returns when it is done.
template <auto kKernel, typename... Args>
void Launch(const LaunchShape& shape, Stream stream, const Args&... args) {
  static_assert(KernelTakes<Args...>::Of(kKernel), "an argument is not of its parameter's type");
  if (shape.blocks_x == 0 || shape.blocks_y == 0 || shape.blocks_z == 0) return;
  emulator::Run(stream.wave, {shape.blocks_x, shape.blocks_y, shape.blocks_z}, shape.threads, shape.shared_bytes,
                [&] { kKernel(args...); });
}

#else  // CUDA, HIP

template <typename T>
HADAL_DEVICE T* DynamicShared() {
  extern __shared__ __align__(1024) unsigned char hadal_dynamic_shared[];
  return reinterpret_cast<T*>(hadal_dynamic_shared);
}
HADAL_DEVICE float Fma(float a, float b, float c) { return fmaf(a, b, c); }

#if HADAL_GPU_CUDA

HADAL_DEVICE int ThreadX() { return static_cast<int>(threadIdx.x); }
HADAL_DEVICE int ThreadsX() { return static_cast<int>(blockDim.x); }
HADAL_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
HADAL_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }
HADAL_DEVICE int BlockZ() { return static_cast<int>(blockIdx.z); }
HADAL_DEVICE int BlocksX() { return static_cast<int>(gridDim.x); }
HADAL_DEVICE int BlocksY() { return static_cast<int>(gridDim.y); }
HADAL_DEVICE void BlockSync() { __syncthreads(); }
HADAL_DEVICE void GroupSync() { __syncwarp(); }
template <typename T>
HADAL_DEVICE T Shuffle(T value, int lane) {
  return __shfl_sync(0xFFFFFFFFu, value, lane);
}
template <typename T>
HADAL_DEVICE T ShuffleXor(T value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
HADAL_DEVICE int AtomicAdd(int* at, int value) { return atomicAdd(at, value); }
HADAL_DEVICE unsigned FloatBits(float v) { return __float_as_uint(v); }
HADAL_DEVICE float BitsFloat(unsigned bits) { return __uint_as_float(bits); }

#else  // HIP

HADAL_DEVICE int ThreadX() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
HADAL_DEVICE int ThreadsX() { return __builtin_amdgcn_workgroup_size_x(); }
HADAL_DEVICE int BlockX() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
HADAL_DEVICE int BlockY() { return static_cast<int>(__builtin_amdgcn_workgroup_id_y()); }
HADAL_DEVICE int BlockZ() { return static_cast<int>(__builtin_amdgcn_workgroup_id_z()); }
HADAL_DEVICE int BlocksX() {
  return static_cast<int>(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x());
}
HADAL_DEVICE int BlocksY() {
  return static_cast<int>(__builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y());
}
// A barrier orders no memory by itself: the fences do, and keep the compiler from moving accesses over it.
HADAL_DEVICE void BlockSync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// The lanes of a group are lanes of one wave, which has one program counter, and the LDS serves a wave in order: what
// is left to hold back is the compiler. wave_barrier keeps code in its place, the fence keeps loads behind stores.
HADAL_DEVICE void GroupSync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
// Word by word; lanes of a wave are consecutive threads, so a group is a half of the 64.
template <typename T>
HADAL_DEVICE T FromWaveLane(T value, int lane) {
  static_assert(sizeof(T) <= 16);
  constexpr int kWords = (sizeof(T) + 3) / 4;
  int words[kWords] = {};
  __builtin_memcpy(words, &value, sizeof(T));
  for (int& word : words) word = __builtin_amdgcn_ds_bpermute(4 * lane, word);
  __builtin_memcpy(&value, words, sizeof(T));
  return value;
}
HADAL_DEVICE int LaneOfWave() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
template <typename T>
HADAL_DEVICE T Shuffle(T value, int lane) {
  return FromWaveLane(value, LaneOfWave() / kGroup * kGroup + lane % kGroup);
}
template <typename T>
HADAL_DEVICE T ShuffleXor(T value, int mask) {
  return FromWaveLane(value, LaneOfWave() ^ mask);
}
HADAL_DEVICE int AtomicAdd(int* at, int value) {
  return __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
HADAL_DEVICE unsigned FloatBits(float v) { return __builtin_bit_cast(unsigned, v); }
HADAL_DEVICE float BitsFloat(unsigned bits) { return __builtin_bit_cast(float, bits); }

#endif  // HIP

// Enqueues kKernel. An error of the launch shows at the next Synchronize of the device.
template <auto kKernel, typename... Args>
void Launch(const LaunchShape& shape, Stream stream, const Args&... args) {
  static_assert(KernelTakes<Args...>::Of(kKernel), "an argument is not of its parameter's type");
  if (shape.blocks_x == 0 || shape.blocks_y == 0 || shape.blocks_z == 0) return;
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))..., nullptr};
  const auto* kernel = reinterpret_cast<const void*>(kKernel);
  const dim3 blocks = {shape.blocks_x, shape.blocks_y, shape.blocks_z};
  const dim3 threads = {shape.threads, 1, 1};
#if HADAL_GPU_CUDA
  constexpr size_t kPlainShared = 48 * 1024;  // more has to be asked for, once a kernel
  static size_t granted = kPlainShared;
  if (shape.shared_bytes > granted) {
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shape.shared_bytes)) == cudaSuccess) {
      granted = shape.shared_bytes;
    }
  }
  (void)cudaLaunchKernel(kernel, blocks, threads, pointers, shape.shared_bytes,
                         static_cast<cudaStream_t>(stream.handle));
#else
  (void)hipLaunchKernel(kernel, blocks, threads, pointers, shape.shared_bytes, static_cast<hipStream_t>(stream.handle));
#endif
}

#endif  // CUDA, HIP

HADAL_DEVICE int Lane() { return ThreadX() % kGroup; }
HADAL_DEVICE int GroupX() { return ThreadX() / kGroup; }

// Sums and maxima over a group, the same in every lane; the order is that of a butterfly whatever the hardware.
HADAL_DEVICE float GroupSum(float v) {
  for (int mask = kGroup / 2; mask > 0; mask /= 2) v += ShuffleXor(v, mask);
  return v;
}
HADAL_DEVICE float GroupMax(float v) {
  for (int mask = kGroup / 2; mask > 0; mask /= 2) {
    const float other = ShuffleXor(v, mask);
    v = v > other ? v : other;
  }
  return v;
}

// The same over a block of whole groups; `scratch` has a value for each of them, and is free again behind the call.
HADAL_DEVICE float BlockSum(float v, float* scratch) {
  v = GroupSum(v);
  if (Lane() == 0) scratch[GroupX()] = v;
  BlockSync();
  float sum = 0;
  for (int g = 0; g < ThreadsX() / kGroup; ++g) sum += scratch[g];
  BlockSync();
  return sum;
}
HADAL_DEVICE float BlockMax(float v, float* scratch) {
  v = GroupMax(v);
  if (Lane() == 0) scratch[GroupX()] = v;
  BlockSync();
  float most = scratch[0];
  for (int g = 1; g < ThreadsX() / kGroup; ++g) most = most > scratch[g] ? most : scratch[g];
  BlockSync();
  return most;
}

HADAL_HOST_DEVICE int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Byte i of the result is byte (selector >> 4i) & 7 of the eight bytes of b (high) and a (low).
HADAL_DEVICE uint32_t BytePermute(uint32_t a, uint32_t b, uint32_t selector) {
#if HADAL_GPU_CUDA
  return __byte_perm(a, b, selector);
#elif HADAL_GPU_HIP
  return __builtin_amdgcn_perm(
      b, a, (selector & 7u) | (selector & 0x70u) << 4 | (selector & 0x700u) << 8 | (selector & 0x7000u) << 12);
#else
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= (static_cast<uint32_t>(bytes >> (8 * ((selector >> (4 * i)) & 7u))) & 0xFFu) << (8 * i);
  }
  return out;
#endif
}

// Copies of 16 bytes from global to shared memory behind the back of the registers. A thread's copies since its last
// CommitAsync are a batch; WaitAsync<N> waits until all but its N newest batches are there, for this thread: others see
// them behind a barrier. Where there is no such engine the copy is made at once. Not `present`: zeros, and `from` is
// not read.
HADAL_DEVICE void CopyAsync16(void* to, const void* from, bool present) {
#if HADAL_GPU_CUDA
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from), "r"(bytes) : "memory");
#else
  struct alignas(16) Sixteen {
    uint32_t words[4];
  };
  // Two stores: a choice between two values would be made in memory.
  if (present) {
    *static_cast<Sixteen*>(to) = *static_cast<const Sixteen*>(from);
  } else {
    *static_cast<Sixteen*>(to) = {};
  }
#endif
}
HADAL_DEVICE void CommitAsync() {
#if HADAL_GPU_CUDA
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}
template <int kNewest>
HADAL_DEVICE void WaitAsync() {
#if HADAL_GPU_CUDA
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kNewest) : "memory");
#endif
}

}  // namespace hadal::gpu::HADAL_GPU_NS
