// The operators on a GPU: ops::Ops over the kernels of kernels/, the same for every backend.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ops/ops.h"
#include "platforms/gpu/backend.h"

namespace hadal::gpu::HADAL_GPU_NS {

struct GpuOptions {
  ops::Numerics numerics = ops::Numerics::kPublished;
  int device = 0;
  // A row has the same bits whatever it is computed with, as on the CPU: kernels are chosen by a layer's shape alone,
  // and not by the number of rows.
  bool deterministic = false;
};

// Fails as Device::Open.
absl::StatusOr<std::unique_ptr<ops::Ops>> MakeGpuOps(const GpuOptions& options);

// "NVIDIA H200, sm_90, 132 multiprocessors".
absl::StatusOr<std::string> DescribeGpu(const GpuOptions& options);

}  // namespace hadal::gpu::HADAL_GPU_NS
