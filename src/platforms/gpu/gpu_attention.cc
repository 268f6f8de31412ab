#include "base/status.h"
#include "platforms/gpu/gpu_ops_impl.h"

namespace hadal::gpu::HADAL_GPU_NS {

void GpuOps::IndexerTopk(const ops::IndexerTopkArgs& args) {
  HADAL_CHECK(args.q.cols == args.heads * args.head_dim && args.weights.cols == args.heads &&
              args.keys.cols == args.head_dim);
  HADAL_CHECK(!published() || (args.heads <= kMostIndexHeads && args.head_dim <= kMostIndexDim));
  HADAL_CHECK(attention_.score_tokens > 0);
  LaunchIndexerTopk(device_->stream(), {device_->info().multiprocessors}, attention_, args);
}

void GpuOps::SparseAttention(const ops::SparseAttentionArgs& args) {
  const int64_t value_dim = args.value_dim > 0 ? args.value_dim : args.head_dim;
  HADAL_CHECK(args.q.cols == args.heads * args.head_dim && args.out.cols == args.heads * value_dim &&
              value_dim <= args.head_dim);
  HADAL_CHECK(args.window.empty() || args.window.cols == args.head_dim);
  HADAL_CHECK(args.compressed.empty() || args.compressed.cols == args.head_dim);
  HADAL_CHECK(args.heads <= spec_.heads && args.head_dim <= spec_.head_dim);
  HADAL_CHECK(!published() || (args.head_dim <= kMostAttentionDim && value_dim <= kMostAttentionValues));
  LaunchSparseAttention(device_->stream(), {device_->info().multiprocessors}, attention_, args);
}

void GpuOps::VisionAttention(const ops::VisionAttentionArgs& args) {
  const int64_t width = args.heads * args.head_dim;
  HADAL_CHECK(args.qkv.cols == 3 * width && args.out.cols == width && args.out.rows == args.qkv.rows &&
              2 * args.rope.half == args.head_dim && args.head_dim <= kMostVisionDim);
  LaunchVisionAttention(device_->stream(), args);
}

}  // namespace hadal::gpu::HADAL_GPU_NS
