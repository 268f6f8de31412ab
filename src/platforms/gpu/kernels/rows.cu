#include "platforms/gpu/device.h"
#include "platforms/gpu/formats.h"
#include "platforms/gpu/kernels/rows.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

constexpr int kRowThreads = 256;

// A block a row.
template <typename T>
HADAL_GLOBAL(kRowThreads)
RmsNormKernel(ops::Tensor x, ops::Vector weight, float eps, ops::Tensor out) {
  HADAL_SHARED float sums[kRowThreads / kGroup];
  const auto* from = static_cast<const T*>(x.data) + BlockX() * x.stride;
  auto* to = static_cast<T*>(out.data) + BlockX() * out.stride;
  float squares = 0;
  for (int64_t i = ThreadX(); i < x.cols; i += ThreadsX()) {
    const float v = ToFloat(from[i]);
    squares = Fma(v, v, squares);
  }
  const float rms = 1.0f / sqrtf(BlockSum(squares, sums) / static_cast<float>(x.cols) + eps);
  for (int64_t i = ThreadX(); i < x.cols; i += ThreadsX()) {
    to[i] = FromFloat<T>(VectorAt(weight.data, weight.dtype == DType::kBF16, i) * (ToFloat(from[i]) * rms));
  }
}

}  // namespace

void RowsScratch::Carve(const ops::WorkspaceSpec& /*spec*/, ops::Numerics /*numerics*/, Carver& /*carver*/) {}

void LaunchRmsNorm(Stream stream, const ops::Tensor& x, const ops::Vector& weight, float eps, const ops::Tensor& out) {
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(x.rows), .threads = kRowThreads};
  if (x.dtype == DType::kF32) {
    Launch<RmsNormKernel<float>>(shape, stream, x, weight, eps, out);
  } else {
    Launch<RmsNormKernel<Bf16>>(shape, stream, x, weight, eps, out);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
