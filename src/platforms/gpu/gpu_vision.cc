#include "base/status.h"
#include "platforms/gpu/gpu_ops_impl.h"

namespace hadal::gpu::HADAL_GPU_NS {

void GpuOps::NormalisePixels(const uint8_t* /*pixels*/, ops::Tensor /*out*/) { HADAL_CHECK(false); }
void GpuOps::Add(ops::Tensor /*x*/, ops::Tensor /*y*/) { HADAL_CHECK(false); }
void GpuOps::SiluMul(ops::Tensor /*gate_up*/, ops::Tensor /*out*/) { HADAL_CHECK(false); }
void GpuOps::Gelu(ops::Tensor /*x*/) { HADAL_CHECK(false); }
void GpuOps::UnfoldGrid(ops::Tensor /*x*/, int64_t /*rows*/, int64_t /*cols*/, int64_t /*edge*/, ops::Tensor /*out*/) {
  HADAL_CHECK(false);
}
absl::Status GpuOps::CombineTopkSwaIndices(const ops::CombineIndicesArgs& /*args*/) {
  HADAL_CHECK(false);
  return absl::OkStatus();
}

}  // namespace hadal::gpu::HADAL_GPU_NS
