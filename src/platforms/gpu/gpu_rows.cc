#include "base/status.h"
#include "platforms/gpu/gpu_ops_impl.h"

namespace hadal::gpu::HADAL_GPU_NS {

void GpuOps::Embed(const ops::BatchRows& /*batch*/, const ops::LinearWeight& /*table*/, int64_t /*hc*/,
                   ops::Tensor /*streams*/) {
  HADAL_CHECK(false);
}
void GpuOps::RmsNorm(ops::Tensor x, ops::Vector weight, float eps, ops::Tensor out) {
  LaunchRmsNorm(device_->stream(), x, weight, eps, out);
}
void GpuOps::HcPre(const ops::HcPreArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::HcPost(const ops::HcPostArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::HcHead(const ops::HcHeadArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::ComputeRopeAngles(const ops::BatchRows& /*batch*/, std::span<const float> /*freqs*/, float* /*cos*/,
                               float* /*sin*/) {
  HADAL_CHECK(false);
}
void GpuOps::QNormRope(const ops::QNormRopeArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::KvNormRopeStore(const ops::KvNormRopeStoreArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::Compress(const ops::CompressArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::IndexerQuery(const ops::IndexerQueryArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::MtpCombine(const ops::MtpCombineArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::AddRmsNorm(const ops::AddRmsNormArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::RopeTail(const ops::RopeTailArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::IndexerKeyStore(const ops::IndexerKeyStoreArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::MtpNorm(const ops::MtpNormArgs& /*args*/) { HADAL_CHECK(false); }
void GpuOps::GatherRows(ops::Tensor /*from*/, std::span<const int32_t> /*rows*/, ops::Tensor /*out*/) {
  HADAL_CHECK(false);
}
void GpuOps::PlaceEmbeddings(std::span<const void* const> /*rows*/, int64_t /*hc*/, ops::Tensor /*streams*/) {
  HADAL_CHECK(false);
}

}  // namespace hadal::gpu::HADAL_GPU_NS
