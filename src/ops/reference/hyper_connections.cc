// Manifold-constrained hyper-connections (spec deepseek-v4-text 3.3). All arithmetic is fp32.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status.h"
#include "ops/reference/reference_ops.h"
#include "ops/reference/rows.h"

namespace hadal::ops {
namespace {

float Sigmoid(float v) { return 1.0f / (1.0f + std::exp(-v)); }

// Softmax of every row of c [hc, hc], then eps on top.
void RowSoftmax(float* c, int64_t hc, float eps) {
  for (int64_t j = 0; j < hc; ++j) {
    float* row = c + j * hc;
    const float largest = *std::max_element(row, row + hc);
    float sum = 0;
    for (int64_t k = 0; k < hc; ++k) sum += row[k] = std::exp(row[k] - largest);
    for (int64_t k = 0; k < hc; ++k) row[k] = row[k] / sum + eps;
  }
}

void RowStep(float* c, int64_t hc, float eps) {
  for (int64_t j = 0; j < hc; ++j) {
    float sum = 0;
    for (int64_t k = 0; k < hc; ++k) sum += c[j * hc + k];
    for (int64_t k = 0; k < hc; ++k) c[j * hc + k] /= sum + eps;
  }
}

void ColumnStep(float* c, int64_t hc, float eps) {
  for (int64_t k = 0; k < hc; ++k) {
    float sum = 0;
    for (int64_t j = 0; j < hc; ++j) sum += c[j * hc + k];
    for (int64_t j = 0; j < hc; ++j) c[j * hc + k] /= sum + eps;
  }
}

// The column step comes last in every round, the first round has no row step: the softmax stands for it.
void Sinkhorn(float* c, int64_t hc, int iterations, float eps) {
  RowSoftmax(c, hc, eps);
  ColumnStep(c, hc, eps);
  for (int i = 1; i < iterations; ++i) {
    RowStep(c, hc, eps);
    ColumnStep(c, hc, eps);
  }
}

}  // namespace

void ReferenceOps::HcMix(const float* x, int64_t n, const float* fn, int64_t outputs, float eps, float* mix) const {
  const float rho = reference::InverseRms(x, n, eps);
  for (int64_t i = 0; i < outputs; ++i) mix[i] = reference::Dot(fn + i * n, x, n) * rho;
}

void ReferenceOps::HcCollapse(const float* streams, const float* pre, int64_t hc, int64_t d, float* out) const {
  for (int64_t i = 0; i < d; ++i) {
    float sum = 0;
    for (int64_t s = 0; s < hc; ++s) sum += pre[s] * streams[s * d + i];
    out[i] = Act(sum);
  }
}

void ReferenceOps::HcPre(const HcPreArgs& args) {
  const int64_t hc = args.hc;
  const int64_t d = args.out.cols;
  const int64_t outputs = (2 + hc) * hc;
  HADAL_CHECK(args.streams.cols == hc * d && args.norm.size == d && args.out.rows == args.streams.rows);
  const HcWeights& w = args.weights;
  const std::vector<float> norm = reference::LoadVector(args.norm);
  std::vector<float> mix(static_cast<size_t>(outputs));
  std::vector<float> pre(static_cast<size_t>(hc));
  std::vector<float> u(static_cast<size_t>(d));
  for (int64_t t = 0; t < args.streams.rows; ++t) {
    const std::vector<float> x = reference::LoadRow(args.streams, t);
    HcMix(x.data(), hc * d, w.fn, outputs, args.rms_eps, mix.data());
    float* post = args.post + t * hc;
    float* comb = args.comb + t * hc * hc;
    for (int64_t s = 0; s < hc; ++s) {
      pre[s] = Sigmoid(mix[s] * w.scale[0] + w.base[s]) + args.hc_eps;
      post[s] = 2.0f * Sigmoid(mix[hc + s] * w.scale[1] + w.base[hc + s]);
    }
    for (int64_t i = 0; i < hc * hc; ++i) comb[i] = mix[2 * hc + i] * w.scale[2] + w.base[2 * hc + i];
    Sinkhorn(comb, hc, args.sinkhorn_iters, args.hc_eps);
    HcCollapse(x.data(), pre.data(), hc, d, u.data());
    Normalize(u.data(), norm.data(), d, args.rms_eps);
    reference::StoreRow(args.out, t, u.data());
  }
}

void ReferenceOps::HcPost(const HcPostArgs& args) {
  const int64_t hc = args.hc;
  const int64_t d = args.layer_out.cols;
  HADAL_CHECK(args.streams.cols == hc * d && args.layer_out.rows == args.streams.rows);
  std::vector<float> updated(static_cast<size_t>(hc * d));
  for (int64_t t = 0; t < args.streams.rows; ++t) {
    const std::vector<float> x = reference::LoadRow(args.streams, t);
    const std::vector<float> o = reference::LoadRow(args.layer_out, t);
    const float* post = args.post + t * hc;
    const float* comb = args.comb + t * hc * hc;
    for (int64_t k = 0; k < hc; ++k) {
      for (int64_t i = 0; i < d; ++i) {
        float sum = 0;
        for (int64_t j = 0; j < hc; ++j) sum += comb[j * hc + k] * x[j * d + i];  // over the first index: column k
        updated[k * d + i] = post[k] * o[i] + sum;
      }
    }
    reference::StoreRow(args.streams, t, updated.data());
  }
}

void ReferenceOps::HcHead(const HcHeadArgs& args) {
  const int64_t hc = args.hc;
  const int64_t d = args.out.cols;
  HADAL_CHECK(args.streams.cols == hc * d && args.norm.size == d);
  HADAL_CHECK(args.out.rows == static_cast<int64_t>(args.row_index.size()));
  const HcWeights& w = args.weights;
  const std::vector<float> norm = reference::LoadVector(args.norm);
  std::vector<float> pre(static_cast<size_t>(hc));
  std::vector<float> y(static_cast<size_t>(d));
  for (int64_t r = 0; r < args.out.rows; ++r) {
    HADAL_CHECK(args.row_index[r] >= 0 && args.row_index[r] < args.streams.rows);
    const std::vector<float> x = reference::LoadRow(args.streams, args.row_index[r]);
    HcMix(x.data(), hc * d, w.fn, hc, args.rms_eps, pre.data());
    for (int64_t s = 0; s < hc; ++s) pre[s] = Sigmoid(pre[s] * w.scale[0] + w.base[s]) + args.hc_eps;
    HcCollapse(x.data(), pre.data(), hc, d, y.data());
    Normalize(y.data(), norm.data(), d, args.rms_eps);
    reference::StoreRow(args.out, r, y.data());
  }
}

}  // namespace hadal::ops
