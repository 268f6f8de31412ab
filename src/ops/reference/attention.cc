// Rotary angles, query and KV preparation, and the attention core (spec deepseek-v4-text 3.1, 3.4, 3.7; vision spec
// 5.2).
#include <cmath>
#include <limits>
#include <vector>

#include "base/status.h"
#include "ops/reference/reference_ops.h"
#include "ops/reference/rows.h"

namespace hadal::ops {
namespace {

// The rows that query t sees, [count, cols], in the order window, compressed.
class VisibleRows {
 public:
  explicit VisibleRows(int64_t cols) : cols_(cols) {}

  void Add(const PagedRows& pool, int32_t seq, int64_t position) {
    values_.resize(static_cast<size_t>((count_ + 1) * cols_));
    reference::LoadRow(pool, seq, position, values_.data() + count_ * cols_);
    ++count_;
  }
  int64_t count() const { return count_; }
  const float* row(int64_t i) const { return values_.data() + i * cols_; }

 private:
  const int64_t cols_;
  int64_t count_ = 0;
  std::vector<float> values_;
};

VisibleRows GatherVisible(const SparseAttentionArgs& args, int64_t t) {
  VisibleRows rows(args.head_dim);
  const int32_t seq = args.batch.seqs[t];
  if (!args.window.empty()) {
    for (int64_t p = args.window_begin[t]; p < args.window_end[t]; ++p) rows.Add(args.window, seq, p);
  }
  if (args.compressed.empty() || args.ratio == 0) return rows;
  const int64_t existing = (static_cast<int64_t>(args.batch.positions[t]) + 1) / args.ratio;
  if (args.topk == nullptr) {
    for (int64_t j = 0; j < existing; ++j) rows.Add(args.compressed, seq, j);
  } else {
    for (int64_t i = 0; i < args.topk_stride; ++i) {
      const int64_t j = args.topk[t * args.topk_stride + i];
      if (j >= 0 && j < existing) rows.Add(args.compressed, seq, j);
    }
  }
  return rows;
}

// One head of one query: softmax over the rows with the sink in the denominator only; zero where no row is seen.
void Attend(const float* q, const VisibleRows& rows, int64_t d, int64_t value_dim, float scale, float sink, bool round,
            float* out) {
  std::vector<float> p(static_cast<size_t>(rows.count()));
  float largest = sink;
  for (int64_t i = 0; i < rows.count(); ++i) {
    p[i] = reference::Dot(q, rows.row(i), d) * scale;
    if (p[i] > largest) largest = p[i];
  }
  float sum = 0;
  for (float& v : p) sum += v = std::exp(v - largest);
  if (sink > -std::numeric_limits<float>::infinity()) sum += std::exp(sink - largest);
  for (int64_t c = 0; c < value_dim; ++c) out[c] = 0;
  for (int64_t i = 0; i < rows.count(); ++i) {
    const float weight = round ? RoundBF16(p[i] / sum) : p[i] / sum;
    for (int64_t c = 0; c < value_dim; ++c) out[c] += weight * rows.row(i)[c];
  }
}

}  // namespace

void ReferenceOps::ComputeRopeAngles(const BatchRows& batch, std::span<const float> freqs, float* cos, float* sin) {
  const auto half = static_cast<int64_t>(freqs.size());
  for (int64_t t = 0; t < batch.tokens; ++t) {
    for (int64_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(batch.positions[t]) * freqs[j];  // the product is fp32
      cos[t * half + j] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin[t * half + j] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
}

void ReferenceOps::QNormRope(const QNormRopeArgs& args) {
  const int64_t d = args.head_dim;
  const int64_t half = args.rope.half;
  HADAL_CHECK(args.q.cols == args.heads * d && 2 * half <= d);
  for (int64_t t = 0; t < args.q.rows; ++t) {
    std::vector<float> row = reference::LoadRow(args.q, t);
    for (int64_t h = 0; h < args.heads; ++h) {
      float* q = row.data() + h * d;
      if (args.normalize) {
        // The published inference code evaluates this norm in elementwise bf16 operations: the square, its mean, the
        // mean plus eps and the reciprocal root are each rounded (spec 3.4 step 2; docs/numerics.md says why we
        // follow).
        float sum = 0;
        for (int64_t i = 0; i < d; ++i) sum += Act(q[i] * q[i]);
        const float mean = Act(Act(sum / static_cast<float>(d)) + args.rms_eps);
        const float inverse_rms = Act(1.0f / std::sqrt(mean));
        for (int64_t i = 0; i < d; ++i) q[i] = Act(q[i] * inverse_rms);
      }
      Rotate(q + d - 2 * half, args.rope.cos + t * half, args.rope.sin + t * half, half, false);
    }
    reference::StoreRow(args.q, t, row.data());
  }
}

void ReferenceOps::KvNormRopeStore(const KvNormRopeStoreArgs& args) {
  const int64_t d = args.kv.cols;
  const int64_t half = args.rope.half;
  HADAL_CHECK(args.cache.cols == d && args.norm.size <= d && 2 * half <= d);
  const std::vector<float> norm = reference::LoadVector(args.norm);
  for (int64_t t = 0; t < args.batch.tokens; ++t) {
    std::vector<float> kv = reference::LoadRow(args.kv, t);
    Normalize(kv.data(), norm.data(), args.norm.size, args.rms_eps);
    Rotate(kv.data() + d - 2 * half, args.rope.cos + t * half, args.rope.sin + t * half, half, false);
    // A packed pool quantises by itself.
    if (args.cache.format == RowFormat::kPlain && args.simulate) SimulateKv(kv.data(), d - 2 * half);
    reference::StoreRow(args.cache, args.batch.seqs[t], args.batch.positions[t], kv.data());
  }
}

void ReferenceOps::SparseAttention(const SparseAttentionArgs& args) {
  const int64_t d = args.head_dim;
  const int64_t half = args.rope.half;
  const int64_t value_dim = args.value_dim > 0 ? args.value_dim : d;
  HADAL_CHECK(args.q.cols == args.heads * d && args.out.cols == args.heads * value_dim && value_dim <= d);
  HADAL_CHECK(args.window.empty() || args.window.cols == d);
  HADAL_CHECK(args.compressed.empty() || args.compressed.cols == d);
  std::vector<float> out(static_cast<size_t>(args.heads * value_dim));
  for (int64_t t = 0; t < args.batch.tokens; ++t) {
    const std::vector<float> q = reference::LoadRow(args.q, t);
    const VisibleRows rows = GatherVisible(args, t);
    for (int64_t h = 0; h < args.heads; ++h) {
      float* o = out.data() + h * value_dim;
      const float sink = args.sink == nullptr ? -std::numeric_limits<float>::infinity() : args.sink[h];
      Attend(q.data() + h * d, rows, d, value_dim, args.softmax_scale, sink, args.round_probabilities && published(),
             o);
      Act(o, value_dim);
      Rotate(o + value_dim - 2 * half, args.rope.cos + t * half, args.rope.sin + t * half, half, true);
    }
    reference::StoreRow(args.out, t, out.data());
  }
}

}  // namespace hadal::ops
