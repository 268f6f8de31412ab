#include "base/status.h"
#include "platforms/gpu/gpu_ops_impl.h"

namespace hadal::gpu::HADAL_GPU_NS {

void GpuOps::IndexerTopk(const ops::IndexerTopkArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::SparseAttention(const ops::SparseAttentionArgs& /*args*/) { HADAL_CHECK(false); }

}  // namespace hadal::gpu::HADAL_GPU_NS
