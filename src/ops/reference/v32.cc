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

void ReferenceOps::ExpandedAttention(const ExpandedAttentionArgs& args) {
  const int64_t tokens = args.q.rows, heads = args.heads, value = args.value_dim;
  const int64_t latent = args.kv_b->k, tail = args.latent.cols - latent;
  const int64_t key = args.q.cols / heads, nope = key - tail, width = nope + value;
  HADAL_CHECK(args.kv_b->n == heads * width && args.out.cols == heads * value && args.out.rows == tokens);
  if (tokens == 0) return;
  const int32_t seq = args.batch.seqs[0];
  const int64_t rows = args.batch.positions[tokens - 1] + 1;
  // kv_b of every latent, and the rotary key behind it, which all heads share.
  std::vector<float> latents(static_cast<size_t>(rows * latent)), tails(static_cast<size_t>(rows * tail));
  std::vector<float> kv(static_cast<size_t>(rows * heads * width)), row(static_cast<size_t>(args.latent.cols));
  for (int64_t j = 0; j < rows; ++j) {
    reference::LoadRow(args.latent, seq, j, row.data());
    std::copy(row.begin() + latent, row.end(), tails.begin() + j * tail);
    if (published()) reference::QuantiseInput(args.quant, row.data(), latent);
    std::copy(row.begin(), row.begin() + latent, latents.begin() + j * latent);
  }
  std::vector<float> weight(static_cast<size_t>(latent));
  for (int64_t o = 0; o < heads * width; ++o) {
    reference::DecodeWeightRow(*args.kv_b, o, weight.data());
    for (int64_t j = 0; j < rows; ++j) {
      kv[j * heads * width + o] = Act(reference::Dot(latents.data() + j * latent, weight.data(), latent));
    }
  }
  std::vector<float> out(static_cast<size_t>(heads * value)), p(static_cast<size_t>(rows));
  for (int64_t t = 0; t < tokens; ++t) {
    const std::vector<float> q = reference::LoadRow(args.q, t);
    const int64_t seen = args.batch.positions[t] + 1;
    for (int64_t h = 0; h < heads; ++h) {
      const float* query = q.data() + h * key;
      float largest = -HUGE_VALF;
      for (int64_t j = 0; j < seen; ++j) {
        p[j] = (reference::Dot(query, kv.data() + (j * heads + h) * width, nope) +
                reference::Dot(query + nope, tails.data() + j * tail, tail)) *
               args.softmax_scale;
        if (p[j] > largest) largest = p[j];
      }
      float sum = 0;
      for (int64_t j = 0; j < seen; ++j) sum += p[j] = std::exp(p[j] - largest);
      float* o = out.data() + h * value;
      std::fill(o, o + value, 0.0f);
      for (int64_t j = 0; j < seen; ++j) {
        const float share = args.round_probabilities ? Act(p[j] / sum) : p[j] / sum;
        const float* values = kv.data() + (j * heads + h) * width + nope;
        for (int64_t c = 0; c < value; ++c) o[c] += share * values[c];
      }
    }
    reference::StoreRow(args.out, t, out.data());
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
