// The indexer that chooses compressed rows (spec deepseek-v4-text 3.6).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/status.h"
#include "ops/reference/reference_ops.h"
#include "ops/reference/rows.h"

namespace hadal::ops {
namespace {

// x = H*x with the Sylvester matrix of size n, a power of two.
void Hadamard(float* x, int64_t n) {
  HADAL_CHECK(n > 0 && (n & (n - 1)) == 0);
  for (int64_t half = 1; half < n; half *= 2) {
    for (int64_t begin = 0; begin < n; begin += 2 * half) {
      for (int64_t i = begin; i < begin + half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
}

// The `count` rows with the largest scores, ascending; equal scores keep the lower row, NaN ranks last.
std::vector<int32_t> SelectLargest(std::vector<float> scores, int64_t count) {
  for (float& score : scores) {
    if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  }
  std::vector<int32_t> rows(scores.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  rows.resize(static_cast<size_t>(std::min<int64_t>(count, static_cast<int64_t>(rows.size()))));
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace

void ReferenceOps::HadamardAct(float* x, int64_t n) const {
  Hadamard(x, n);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (int64_t i = 0; i < n; ++i) x[i] = Act(x[i] * scale);
}

void ReferenceOps::SimulateKey(float* x, int64_t n) const {
  constexpr int64_t kFp4Block = 32;
  if (published()) reference::SimulateFp4(x, n, kFp4Block);
}

void ReferenceOps::IndexerQuery(const IndexerQueryArgs& args) {
  const int64_t d = args.head_dim;
  const int64_t half = args.rope.half;
  HADAL_CHECK(args.q.cols == args.heads * d && 2 * half <= d);
  for (int64_t t = 0; t < args.q.rows; ++t) {
    std::vector<float> row = reference::LoadRow(args.q, t);
    for (int64_t h = 0; h < args.heads; ++h) {
      float* q = row.data() + h * d;
      const float* cos = args.rope.cos + t * half;
      const float* sin = args.rope.sin + t * half;
      if (args.style == IndexerStyle::kV32) {
        RotateHalves(q, cos, sin, half);
        HadamardAct(q, d);
        if (published()) reference::SimulateFp8(q, d, d);
        continue;
      }
      Rotate(q + d - 2 * half, cos, sin, half, false);
      HadamardAct(q, d);
      SimulateKey(q, d);
    }
    reference::StoreRow(args.q, t, row.data());
  }
}

void ReferenceOps::IndexerTopk(const IndexerTopkArgs& args) {
  const int64_t d = args.head_dim;
  HADAL_CHECK(args.q.cols == args.heads * d && args.weights.cols == args.heads && args.keys.cols == d);
  const auto scale =
      static_cast<float>(1.0 / (std::sqrt(static_cast<double>(d)) * std::sqrt(static_cast<double>(args.heads))));
  std::vector<float> key(static_cast<size_t>(d));
  for (int64_t t = 0; t < args.batch.tokens; ++t) {
    const int64_t visible = (static_cast<int64_t>(args.batch.positions[t]) + 1) / args.ratio;
    const std::vector<float> q = reference::LoadRow(args.q, t);
    std::vector<float> weights = reference::LoadRow(args.weights, t);
    const bool exact = args.style == IndexerStyle::kV32;
    const auto round = [&](float v) { return exact ? v : Act(v); };
    for (float& w : weights) w = round(w * scale);
    std::vector<float> scores(static_cast<size_t>(visible));
    for (int64_t j = 0; j < visible; ++j) {
      reference::LoadRow(args.keys, args.batch.seqs[t], j, key.data());
      float sum = 0;
      for (int64_t h = 0; h < args.heads; ++h) {
        const float dot = round(reference::Dot(q.data() + h * d, key.data(), d));
        sum += round((dot < 0 ? 0.0f : dot) * weights[h]);  // the ReLU comes before the weight, which may be negative
      }
      scores[j] = round(sum);
    }
    if (args.scores != nullptr) std::copy(scores.begin(), scores.end(), args.scores + t * args.scores_stride);
    const std::vector<int32_t> chosen = SelectLargest(std::move(scores), args.top_k);
    int32_t* out = args.out + t * args.top_k;
    std::fill(std::copy(chosen.begin(), chosen.end(), out), out + args.top_k, -1);
  }
}

}  // namespace hadal::ops
