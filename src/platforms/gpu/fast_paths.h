// Products that the hardware of one backend does better than the shared kernels: asked before those, and free to
// decline. A backend without any links fast_paths_none.cc. They add in another order than the shared kernels and keep
// fewer bits: they are asked where GpuOptions::fp8_products is set, and never under GpuOptions::deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/ops.h"
#include "platforms/gpu/backend.h"
#include "platforms/gpu/runtime.h"

namespace hadal::gpu::HADAL_GPU_NS {

// Rows from which on FastLinear is worth asking.
inline constexpr int64_t kFastLinearRows = 128;

// Scratch for FastLinear under steps within `spec`.
size_t FastLinearBytes(const ops::WorkspaceSpec& spec, ops::Numerics numerics);

// Whether one of these products is done by FastLinear: out = AQ(x) * W^T, without a bias.
bool FastLinearTakes(const DeviceInfo& device, const ops::Tensor& x, const ops::LinearTarget& target);

// All of `targets`, which FastLinearTakes; scratch as FastLinearBytes says.
void FastLinear(Stream stream, const ops::Tensor& x, std::span<const ops::LinearTarget* const> targets, void* scratch,
                size_t scratch_bytes);

}  // namespace hadal::gpu::HADAL_GPU_NS
