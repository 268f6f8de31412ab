// Products that the hardware of one backend does better than the shared kernels: asked before those, and free to
// decline. A backend without any links fast_paths_none.cc. They add in another order than the shared kernels and keep
// fewer bits: they are asked where GpuOptions::fp8_products is set, and never under GpuOptions::deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
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

// Tokens of a step, and choices of an expert on average, from which on FastExperts is worth asking.
inline constexpr int64_t kFastExpertTokens = 512;
inline constexpr int64_t kFastExpertChoices = 12;

// What FastExperts has to know of a layer's experts, in device memory; empty where it cannot take them, among them FP4
// rows that e4m3 does not express. Waits for the device. Fails where memory is missing.
absl::StatusOr<ops::Buffer> PrepareFastExperts(Device& device, std::span<const ops::ExpertWeights> experts);

// Scratch for FastExperts under steps within `spec`.
size_t FastExpertsBytes(const ops::WorkspaceSpec& spec, ops::Numerics numerics);

// MoeExperts, if it is done here: false, and nothing is launched, where it is not. prepared: of args.routed.
bool FastExperts(Device& device, const ops::MoeExpertsArgs& args, const ops::Buffer& prepared, void* scratch,
                 size_t scratch_bytes);

}  // namespace hadal::gpu::HADAL_GPU_NS
