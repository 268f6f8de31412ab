#include "platforms/gpu/fast_paths.h"

namespace hadal::gpu::HADAL_GPU_NS {

size_t FastLinearBytes(const ops::WorkspaceSpec& /*spec*/, ops::Numerics /*numerics*/) { return 0; }
bool FastLinearTakes(const DeviceInfo& /*device*/, const ops::Tensor& /*x*/, const ops::LinearTarget& /*target*/) {
  return false;
}
void FastLinear(Stream /*stream*/, const ops::Tensor& /*x*/, std::span<const ops::LinearTarget* const> /*targets*/,
                void* /*scratch*/, size_t /*scratch_bytes*/) {}

absl::StatusOr<ops::Buffer> PrepareFastExperts(Device& /*device*/, std::span<const ops::ExpertWeights> /*experts*/) {
  return ops::Buffer();
}
size_t FastExpertsBytes(const ops::WorkspaceSpec& /*spec*/, ops::Numerics /*numerics*/) { return 0; }
bool FastExperts(Device& /*device*/, const ops::MoeExpertsArgs& /*args*/, const ops::Buffer& /*prepared*/,
                 void* /*scratch*/, size_t /*scratch_bytes*/) {
  return false;
}

}  // namespace hadal::gpu::HADAL_GPU_NS
