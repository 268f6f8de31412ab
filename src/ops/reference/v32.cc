// Operators that DeepSeek V3.2 has and V4 has not (spec deepseek-v32).
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status.h"
#include "ops/reference/reference_ops.h"
#include "ops/reference/rows.h"

namespace hadal::ops {

void ReferenceOps::AddRmsNorm(const AddRmsNormArgs& args) {
  const int64_t d = args.x.cols;
  HADAL_CHECK(args.residual.cols == d && args.out.cols == d && args.norm.size == d);
  const std::vector<float> norm = reference::LoadVector(args.norm);
  for (int64_t t = 0; t < args.x.rows; ++t) {
    std::vector<float> sum = reference::LoadRow(args.x, t);
    const std::vector<float> residual = reference::LoadRow(args.residual, t);
    for (int64_t i = 0; i < d; ++i) sum[i] += residual[i];
    reference::StoreRow(args.residual, t, sum.data());
    Normalize(sum.data(), norm.data(), d, args.rms_eps);
    reference::StoreRow(args.out, t, sum.data());
  }
}

void ReferenceOps::RopeTail(const RopeTailArgs& args) {
  const int64_t half = args.rope.half;
  HADAL_CHECK(args.q.cols == args.heads * args.head_dim && args.out.cols == args.heads * args.out_dim);
  HADAL_CHECK(2 * half <= args.head_dim && 2 * half <= args.out_dim);
  for (int64_t t = 0; t < args.q.rows; ++t) {
    std::vector<float> q = reference::LoadRow(args.q, t);
    std::vector<float> out = reference::LoadRow(args.out, t);
    for (int64_t h = 0; h < args.heads; ++h) {
      float* tail = q.data() + (h + 1) * args.head_dim - 2 * half;
      Rotate(tail, args.rope.cos + t * half, args.rope.sin + t * half, half, false);
      std::copy(tail, tail + 2 * half, out.data() + (h + 1) * args.out_dim - 2 * half);
    }
    reference::StoreRow(args.out, t, out.data());
  }
}

void ReferenceOps::IndexerKeyStore(const IndexerKeyStoreArgs& args) {
  const int64_t d = args.k.cols;
  const int64_t half = args.rope.half;
  HADAL_CHECK(args.keys.cols == d && args.norm.size == d && args.bias.size == d && 2 * half <= d);
  const std::vector<float> norm = reference::LoadVector(args.norm);
  const std::vector<float> bias = reference::LoadVector(args.bias);
  for (int64_t t = 0; t < args.k.rows; ++t) {
    std::vector<float> k = reference::LoadRow(args.k, t);
    float mean = 0;
    for (const float v : k) mean += v;
    mean /= static_cast<float>(d);
    float variance = 0;
    for (const float v : k) variance += (v - mean) * (v - mean);
    const float inverse = 1.0f / std::sqrt(variance / static_cast<float>(d) + args.eps);
    for (int64_t i = 0; i < d; ++i) k[i] = Act((k[i] - mean) * inverse * norm[i] + bias[i]);
    RotateHalves(k.data(), args.rope.cos + t * half, args.rope.sin + t * half, half);
    HadamardAct(k.data(), d);
    // A packed pool quantises by itself.
    if (args.keys.format == RowFormat::kPlain && published()) reference::SimulateFp8(k.data(), d, d);
    reference::StoreRow(args.keys, args.batch.seqs[t], args.batch.positions[t], k.data());
  }
}

void ReferenceOps::MtpNorm(const MtpNormArgs& args) {
  const int64_t d = args.e.cols;
  HADAL_CHECK(args.h.cols == d && args.out.cols == 2 * d && args.enorm.size == d && args.hnorm.size == d);
  const std::vector<float> enorm = reference::LoadVector(args.enorm);
  const std::vector<float> hnorm = reference::LoadVector(args.hnorm);
  std::vector<float> out(static_cast<size_t>(2 * d));
  for (int64_t t = 0; t < args.e.rows; ++t) {
    reference::LoadRow(args.e, t, out.data());
    reference::LoadRow(args.h, t, out.data() + d);
    // By position, not by id: the first row carries the second token.
    if (args.batch.positions[t] == 0) std::fill(out.begin(), out.begin() + d, 0.0f);
    Normalize(out.data(), enorm.data(), d, args.rms_eps);
    Normalize(out.data() + d, hnorm.data(), d, args.rms_eps);
    reference::StoreRow(args.out, t, out.data());
  }
}

}  // namespace hadal::ops
