#include "base/status.h"
#include "platforms/gpu/gpu_ops_impl.h"

namespace hadal::gpu::HADAL_GPU_NS {

void GpuOps::IndexerTopk(const ops::IndexerTopkArgs& args) {
  HADAL_CHECK(args.q.cols == args.heads * args.head_dim && args.weights.cols == args.heads &&
              args.keys.cols == args.head_dim);
  const DeviceInfo& info = device_->info();
  LaunchIndexerTopk(device_->stream(), {info.multiprocessors, info.shared_per_block}, attention_, args);
}

void GpuOps::SparseAttention(const ops::SparseAttentionArgs& args) {
  const int64_t value_dim = args.value_dim > 0 ? args.value_dim : args.head_dim;
  HADAL_CHECK(args.q.cols == args.heads * args.head_dim && args.out.cols == args.heads * value_dim &&
              value_dim <= args.head_dim);
  HADAL_CHECK(args.window.empty() || args.window.cols == args.head_dim);
  HADAL_CHECK(args.compressed.empty() || args.compressed.cols == args.head_dim);
  const DeviceInfo& info = device_->info();
  LaunchSparseAttention(device_->stream(), {info.multiprocessors, info.shared_per_block}, attention_, args);
}

void GpuOps::VisionAttention(const ops::VisionAttentionArgs& args) {
  const int64_t width = args.heads * args.head_dim;
  HADAL_CHECK(args.qkv.cols == 3 * width && args.out.cols == width && args.out.rows == args.qkv.rows &&
              2 * args.rope.half == args.head_dim && args.head_dim <= 128);
  LaunchVisionAttention(device_->stream(), args);
}

}  // namespace hadal::gpu::HADAL_GPU_NS
