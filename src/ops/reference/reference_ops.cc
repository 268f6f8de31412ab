// Factory, the operators that are a line or two, and the row helpers that several topics share.
#include "ops/reference/reference_ops.h"

#include <vector>

#include "base/status.h"
#include "ops/reference/rows.h"

namespace hadal::ops {

using reference::LoadRow;
using reference::StoreRow;

std::unique_ptr<Ops> MakeReferenceOps(Numerics numerics) { return std::make_unique<ReferenceOps>(numerics); }

void ReferenceOps::Normalize(float* x, const float* weight, int64_t n, float eps) const {
  const float inverse_rms = reference::InverseRms(x, n, eps);
  for (int64_t i = 0; i < n; ++i) x[i] = Act(weight[i] * (x[i] * inverse_rms));
}

void ReferenceOps::Rotate(float* x, const float* cos, const float* sin, int64_t half, bool inverse) const {
  for (int64_t j = 0; j < half; ++j) {
    const float s = inverse ? -sin[j] : sin[j];
    const float a = x[2 * j];
    const float b = x[2 * j + 1];
    x[2 * j] = Act(a * cos[j] - b * s);
    x[2 * j + 1] = Act(a * s + b * cos[j]);
  }
}

void ReferenceOps::SimulateKv(float* x, int64_t n) const {
  constexpr int64_t kKvBlock = 64;
  if (published()) reference::SimulateFp8(x, n, kKvBlock);
}

void ReferenceOps::Embed(const BatchRows& batch, const LinearWeight& table, int64_t hc, Tensor streams) {
  const int64_t d = table.k;
  HADAL_CHECK(streams.cols == hc * d);
  std::vector<float> row(static_cast<size_t>(hc * d));
  for (int64_t t = 0; t < batch.tokens; ++t) {
    HADAL_CHECK(batch.ids[t] >= 0 && batch.ids[t] < table.n);
    for (int64_t s = 0; s < hc; ++s) reference::DecodeWeightRow(table, batch.ids[t], row.data() + s * d);
    StoreRow(streams, t, row.data());
  }
}

void ReferenceOps::RmsNorm(Tensor x, Vector weight, float eps, Tensor out) {
  HADAL_CHECK(weight.size == x.cols && out.cols == x.cols && out.rows == x.rows);
  const std::vector<float> w = reference::LoadVector(weight);
  for (int64_t r = 0; r < x.rows; ++r) {
    std::vector<float> row = LoadRow(x, r);
    Normalize(row.data(), w.data(), x.cols, eps);
    StoreRow(out, r, row.data());
  }
}

void ReferenceOps::MtpCombine(const MtpCombineArgs& args) {
  const int64_t d = args.e.cols;
  HADAL_CHECK(args.h.cols == d && args.h.rows == args.e.rows * args.hc && args.streams.cols == args.hc * d);
  std::vector<float> sum(static_cast<size_t>(args.hc * d));
  for (int64_t t = 0; t < args.e.rows; ++t) {
    const std::vector<float> e = LoadRow(args.e, t);
    for (int64_t s = 0; s < args.hc; ++s) {
      const std::vector<float> h = LoadRow(args.h, t * args.hc + s);
      for (int64_t i = 0; i < d; ++i) sum[s * d + i] = e[i] + h[i];
    }
    StoreRow(args.streams, t, sum.data());
  }
}

}  // namespace hadal::ops
