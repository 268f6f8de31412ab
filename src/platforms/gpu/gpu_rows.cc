#include "base/status.h"
#include "platforms/gpu/gpu_ops_impl.h"

namespace hadal::gpu::HADAL_GPU_NS {

void GpuOps::Embed(const ops::BatchRows& batch, const ops::LinearWeight& table, int64_t hc, ops::Tensor streams) {
  LaunchEmbed(device_->stream(), batch, table, hc, streams);
}
void GpuOps::RmsNorm(ops::Tensor x, ops::Vector weight, float eps, ops::Tensor out) {
  LaunchRmsNorm(device_->stream(), x, weight, eps, out);
}
void GpuOps::HcPre(const ops::HcPreArgs& args) {
  LaunchHcPre(device_->stream(), args, rows_, device_->info().multiprocessors);
}
void GpuOps::HcPost(const ops::HcPostArgs& args) { LaunchHcPost(device_->stream(), args); }
void GpuOps::HcHead(const ops::HcHeadArgs& args) {
  LaunchHcHead(device_->stream(), args, rows_, device_->info().multiprocessors);
}
void GpuOps::ComputeRopeAngles(const ops::BatchRows& batch, std::span<const float> freqs, float* cos, float* sin) {
  LaunchRopeAngles(device_->stream(), batch, freqs, cos, sin);
}
void GpuOps::QNormRope(const ops::QNormRopeArgs& args) { LaunchQNormRope(device_->stream(), args); }
void GpuOps::KvNormRopeStore(const ops::KvNormRopeStoreArgs& args) {
  LaunchKvNormRopeStore(device_->stream(), args, published());
}
void GpuOps::Compress(const ops::CompressArgs& args) {
  HADAL_CHECK(args.rope_freqs.size() <= kCompressFreqs && args.width <= kMostCompressWidth);
  LaunchCompress(device_->stream(), args, published());
}
void GpuOps::IndexerQuery(const ops::IndexerQueryArgs& args) {
  LaunchIndexerQuery(device_->stream(), args, published());
}
void GpuOps::MtpCombine(const ops::MtpCombineArgs& args) { LaunchMtpCombine(device_->stream(), args); }
void GpuOps::AddRmsNorm(const ops::AddRmsNormArgs& args) { LaunchAddRmsNorm(device_->stream(), args); }
void GpuOps::RopeTail(const ops::RopeTailArgs& args) { LaunchRopeTail(device_->stream(), args); }
void GpuOps::IndexerKeyStore(const ops::IndexerKeyStoreArgs& args) {
  LaunchIndexerKeyStore(device_->stream(), args, published());
}
void GpuOps::MtpNorm(const ops::MtpNormArgs& args) { LaunchMtpNorm(device_->stream(), args); }
void GpuOps::GatherRows(ops::Tensor from, std::span<const int32_t> rows, ops::Tensor out) {
  LaunchGatherRows(device_->stream(), from, rows, out);
}
void GpuOps::PlaceEmbeddings(std::span<const void* const> rows, int64_t hc, ops::Tensor streams) {
  LaunchPlaceEmbeddings(device_->stream(), rows, hc, streams);
}

}  // namespace hadal::gpu::HADAL_GPU_NS
