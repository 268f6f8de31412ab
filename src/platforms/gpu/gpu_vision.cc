#include "base/status.h"
#include "ops/combine_indices.h"
#include "platforms/gpu/gpu_ops_impl.h"

namespace hadal::gpu::HADAL_GPU_NS {

void GpuOps::NormalisePixels(const uint8_t* pixels, ops::Tensor out) {
  LaunchNormalisePixels(device_->stream(), pixels, out);
}
void GpuOps::Add(ops::Tensor x, ops::Tensor y) { LaunchAdd(device_->stream(), x, y); }
void GpuOps::SiluMul(ops::Tensor gate_up, ops::Tensor out) { LaunchSiluMul(device_->stream(), gate_up, out); }
void GpuOps::Gelu(ops::Tensor x) { LaunchGelu(device_->stream(), x); }
void GpuOps::UnfoldGrid(ops::Tensor x, int64_t rows, int64_t cols, int64_t edge, ops::Tensor out) {
  LaunchUnfoldGrid(device_->stream(), x, rows, cols, edge, out);
}
absl::Status GpuOps::CombineTopkSwaIndices(const ops::CombineIndicesArgs& args) {
  HADAL_RETURN_IF_ERROR(ops::CheckCombineIndices(args));
  for (int64_t t = 0; t < ops::CombinedQueries(args); ++t) ops::CombineIndicesOfQuery(args, t);
  return absl::OkStatus();
}

}  // namespace hadal::gpu::HADAL_GPU_NS
