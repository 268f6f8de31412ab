#include "base/status.h"
#include "platforms/gpu/gpu_ops_impl.h"

namespace hadal::gpu::HADAL_GPU_NS {

void GpuOps::Linear(ops::Tensor /*x*/, std::span<const ops::LinearTarget> /*targets*/) { HADAL_CHECK(false); }
void GpuOps::GroupedLinear(const ops::GroupedLinearArgs& /*args*/) { HADAL_CHECK(false); }

}  // namespace hadal::gpu::HADAL_GPU_NS
