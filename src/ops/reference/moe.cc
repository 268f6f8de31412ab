// Routing and experts (spec deepseek-v4-text 3.8; vision spec 4.2).
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/status.h"
#include "ops/reference/reference_ops.h"
#include "ops/reference/rows.h"

namespace hadal::ops {
namespace {

// log1p keeps what log(1 + e^v) loses below v = -16.
float Softplus(float v) { return v > 20.0f ? v : std::log1p(std::exp(v)); }

constexpr int32_t kImageTokenKinds = 5;

bool IsImageToken(const MoeRouteArgs& args, int32_t id) {
  return args.bias_vl != nullptr && args.image_first > 0 && id >= args.image_first &&
         id < args.image_first + kImageTokenKinds;
}

// scores[e] + bias[e]; NaN ranks last.
std::vector<float> SelectionKeys(const std::vector<float>& scores, const float* bias) {
  std::vector<float> keys(scores);
  for (size_t e = 0; e < keys.size(); ++e) {
    if (bias != nullptr) keys[e] += bias[e];
    if (std::isnan(keys[e])) keys[e] = -std::numeric_limits<float>::infinity();
  }
  return keys;
}

// The k experts with the largest keys, best first; equal ones keep the lower index.
void SelectExperts(const std::vector<float>& keys, int64_t k, int32_t* out) {
  const auto experts = static_cast<int64_t>(keys.size());
  std::vector<bool> taken(keys.size(), false);
  for (int64_t i = 0; i < k; ++i) {
    int64_t best = -1;
    for (int64_t e = 0; e < experts; ++e) {
      if (!taken[e] && (best < 0 || keys[e] > keys[best])) best = e;
    }
    taken[best] = true;
    out[i] = static_cast<int32_t>(best);
  }
}

// V3.2's group limit: the keys of experts outside the best groups become -infinity. A group counts as the sum of its
// two best keys; equal groups keep the lower index.
void LimitGroups(int64_t groups, int64_t kept, std::vector<float>* keys) {
  const auto size = static_cast<int64_t>(keys->size()) / groups;
  std::vector<float> sums(static_cast<size_t>(groups));
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<float> group(keys->begin() + g * size, keys->begin() + (g + 1) * size);
    std::partial_sort(group.begin(), group.begin() + std::min<int64_t>(2, size), group.end(), std::greater<>());
    sums[g] = group[0] + (size > 1 ? group[1] : 0.0f);
  }
  std::vector<bool> taken(sums.size(), false);
  for (int64_t i = 0; i < kept; ++i) {
    int64_t best = -1;
    for (int64_t g = 0; g < groups; ++g) {
      if (!taken[g] && (best < 0 || sums[g] > sums[best])) best = g;
    }
    taken[best] = true;
  }
  for (int64_t g = 0; g < groups; ++g) {
    if (!taken[g]) {
      std::fill(keys->begin() + g * size, keys->begin() + (g + 1) * size, -std::numeric_limits<float>::infinity());
    }
  }
}

float Score(RouterScores kind, float logit) {
  return kind == RouterScores::kSigmoid ? 1.0f / (1.0f + std::exp(-logit)) : std::sqrt(Softplus(logit));
}

float SwiGlu(float gate, float up, float limit) {
  if (limit > 0) {
    if (gate > limit) gate = limit;  // the gate has no lower clamp
    if (up > limit) up = limit;
    if (up < -limit) up = -limit;
  }
  return gate * (1.0f / (1.0f + std::exp(-gate))) * up;
}

bool IsQuantised(const LinearWeight& w) { return w.dtype == DType::kF8E4M3 || w.dtype == DType::kF4E2M1; }

// y [rows, n] = x [rows, k] * w^T; x is quantised first as `quant` says.
std::vector<float> QuantisedLinear(std::vector<float> x, int64_t rows, const LinearWeight& w, InputQuant quant) {
  if (IsQuantised(w)) {
    for (int64_t r = 0; r < rows; ++r) reference::QuantiseInput(quant, x.data() + r * w.k, w.k);
  }
  std::vector<float> y(static_cast<size_t>(rows * w.n));
  std::vector<float> weight_row(static_cast<size_t>(w.k));
  for (int64_t o = 0; o < w.n; ++o) {
    reference::DecodeWeightRow(w, o, weight_row.data());
    for (int64_t r = 0; r < rows; ++r) y[r * w.n + o] = reference::Dot(x.data() + r * w.k, weight_row.data(), w.k);
  }
  return y;
}

}  // namespace

void ReferenceOps::MoeRoute(const MoeRouteArgs& args) {
  const int64_t k = args.experts_per_token;
  HADAL_CHECK(k <= args.logits.cols);
  for (int64_t t = 0; t < args.batch.tokens; ++t) {
    std::vector<float> scores = reference::LoadRow(args.logits, t);
    for (float& s : scores) s = Score(args.scores, s);
    int32_t* experts = args.experts + t * k;
    float* weights = args.weights + t * k;
    const bool image = args.bias_vl != nullptr && IsImageToken(args, args.batch.ids[t]);
    if (args.token_to_expert != nullptr && !image) {
      for (int64_t i = 0; i < k; ++i) experts[i] = args.token_to_expert[args.batch.ids[t] * k + i];
    } else {
      std::vector<float> keys = SelectionKeys(scores, image ? args.bias_vl : args.bias);
      if (args.groups > 1) LimitGroups(args.groups, args.topk_groups, &keys);
      SelectExperts(keys, k, experts);
    }
    float sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += weights[i] = scores[experts[i]];  // never biased
    for (int64_t i = 0; i < k; ++i) {
      if (args.normalise && sum != 0) weights[i] /= sum;  // scores underflow to 0 below logits of about -104
      weights[i] *= args.scale;
    }
  }
}

void ReferenceOps::MoeExperts(const MoeExpertsArgs& args) {
  const int64_t k = args.experts_per_token;
  const int64_t d = args.x.cols;
  const int64_t tokens = args.x.rows;
  const InputQuant quant = published() ? args.quant : InputQuant::kNone;
  std::vector<float> sum(static_cast<size_t>(tokens * d));

  // Adds the output of one expert for the given rows.
  const auto add_expert = [&](const ExpertWeights& expert, const std::vector<int64_t>& rows,
                              const std::vector<float>& row_weights) {
    const auto count = static_cast<int64_t>(rows.size());
    std::vector<float> x(static_cast<size_t>(count * d));
    for (int64_t r = 0; r < count; ++r) reference::LoadRow(args.x, rows[r], x.data() + r * d);
    std::vector<float> hidden = QuantisedLinear(x, count, expert.w1, quant);
    const std::vector<float> up = QuantisedLinear(std::move(x), count, expert.w3, quant);
    const int64_t width = expert.w1.n;
    for (int64_t i = 0; i < count * width; ++i) {
      const float weight = args.weigh_outputs ? 1.0f : row_weights[i / width];
      hidden[i] = Act(weight * SwiGlu(Act(hidden[i]), Act(up[i]), args.swiglu_limit));
    }
    const std::vector<float> out = QuantisedLinear(std::move(hidden), count, expert.w2, quant);
    for (int64_t r = 0; r < count; ++r) {
      const float weight = args.weigh_outputs ? row_weights[r] : 1.0f;
      for (int64_t i = 0; i < d; ++i) sum[rows[r] * d + i] += weight * Act(out[r * d + i]);
    }
  };

  // Expert by expert, so that every row adds its experts in ascending order.
  for (size_t e = 0; e < args.routed.size(); ++e) {
    std::vector<int64_t> rows;
    std::vector<float> row_weights;
    for (int64_t i = 0; i < tokens * k; ++i) {
      if (args.experts[i] != static_cast<int32_t>(e)) continue;
      rows.push_back(i / k);
      row_weights.push_back(args.weights[i]);
    }
    if (!rows.empty()) add_expert(args.routed[e], rows, row_weights);
  }
  if (args.shared != nullptr) {
    std::vector<int64_t> rows(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) rows[t] = t;
    add_expert(*args.shared, rows, std::vector<float>(static_cast<size_t>(tokens), 1.0f));
  }
  for (int64_t t = 0; t < tokens; ++t) reference::StoreRow(args.out, t, sum.data() + t * d);
}

}  // namespace hadal::ops
