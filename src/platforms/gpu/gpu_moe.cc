#include "base/status.h"
#include "platforms/gpu/gpu_ops_impl.h"

namespace hadal::gpu::HADAL_GPU_NS {

void GpuOps::MoeRoute(const ops::MoeRouteArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::MoeExperts(const ops::MoeExpertsArgs& /*args*/) { HADAL_CHECK(false); }
absl::Status GpuOps::PrepareExperts(std::span<const ops::ExpertWeights> /*experts*/) {
  HADAL_CHECK(false);
  return absl::OkStatus();
}

}  // namespace hadal::gpu::HADAL_GPU_NS
