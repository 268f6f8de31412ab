// The operators on a GPU: ops::Ops over the kernels of kernels/, the same for every backend. Which backends there are
// depends on the build (HADAL_HAS_CUDA, HADAL_HAS_HIP; tests have the emulated one).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ops/ops.h"

#ifndef HADAL_HAS_CUDA
#define HADAL_HAS_CUDA 0
#endif
#ifndef HADAL_HAS_HIP
#define HADAL_HAS_HIP 0
#endif

namespace hadal::gpu {

struct GpuOptions {
  ops::Numerics numerics = ops::Numerics::kPublished;
  int device = 0;
  // A row has the same bits whatever it is computed with, as on the CPU: kernels are chosen by a layer's shape alone,
  // and not by the number of rows.
  bool deterministic = false;
  // Linears and experts of many rows multiply FP8 by FP8 where the hardware can (fast_paths.h): up to six times as
  // fast, with sums that keep fewer bits. Not with `deterministic`.
  bool fp8_products = false;
};

// MakeGpuOps fails as Device::Open. DescribeGpu: "NVIDIA H200, sm_90, 132 multiprocessors".
#define HADAL_DECLARE_GPU_BACKEND(ns)                                              \
  namespace ns {                                                                   \
  using gpu::GpuOptions;                                                           \
  absl::StatusOr<std::unique_ptr<ops::Ops>> MakeGpuOps(const GpuOptions& options); \
  absl::StatusOr<std::string> DescribeGpu(const GpuOptions& options);              \
  }
HADAL_DECLARE_GPU_BACKEND(cuda)
HADAL_DECLARE_GPU_BACKEND(hip)
HADAL_DECLARE_GPU_BACKEND(emulated)
#undef HADAL_DECLARE_GPU_BACKEND

}  // namespace hadal::gpu
