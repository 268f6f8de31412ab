// Which GPU backend a translation unit is compiled for. Host and kernel sources of this folder are compiled once for
// each of them, into hadal::gpu::cuda, hadal::gpu::hip and hadal::gpu::emulated (HADAL_GPU_NS, set by CMake).
#pragma once

#ifndef HADAL_GPU_NS
#define HADAL_GPU_NS emulated
#endif

namespace hadal::gpu::HADAL_GPU_NS {

// The queue that kernels are launched on.
struct Stream {
  void* handle = nullptr;  // cudaStream_t, hipStream_t
  int wave = 32;           // lanes of a wave
  bool early = false;      // kernels may begin before their turn (LaunchShape::early)
};

}  // namespace hadal::gpu::HADAL_GPU_NS
