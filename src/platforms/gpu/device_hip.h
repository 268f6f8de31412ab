// What device.h takes from HIP, without ROCm's headers: the language (clang's own wrapper header, which -x hip
// includes, and device libraries for mathematics), builtins of amdgcn, and the one function that launches a kernel.
// ROCm's headers of Debian 12 are older than the compiler and do not know gfx942; those of a user are not needed.
//
// runtime_hip.cc defines hipLaunchKernel and what clang's start-up code calls.
#pragma once

#if !defined(__HIP__) || !defined(__CLANG_HIP_RUNTIME_WRAPPER_INCLUDED__)
#error "kernels for AMD are compiled by clang with -x hip (src/platforms/amd/CMakeLists.txt)"
#endif

// clang's start-up code passes these by value, and looks them up by name in the global namespace.
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
using hipStream_t = struct ihipStream_t*;
using hipError_t = int;
extern "C" hipError_t hipLaunchKernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments,
                                      size_t shared_bytes, hipStream_t stream);

// The C library's, which nvcc has on the device by itself. Sizes are constants where kernels call it: moves of
// registers.
extern "C" inline __attribute__((device, always_inline)) void* memcpy(void* to, const void* from, size_t bytes) {
  return __builtin_memcpy(to, from, bytes);
}
namespace std {
using ::memcpy;
}

// The compiler may count on no more threads, and gives a kernel the registers that so many leave.
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
