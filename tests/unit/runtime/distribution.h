// What distribution a row is drawn from, in double and step by step as spec serving-runtime 5.1 has it, and whether
// draws follow a distribution.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/sampler.h"

namespace hadal::runtime {

// A sanitizer makes a draw fifteen times slower; it looks for other things than a bias.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kManyDraws = 20'000;
#else
inline constexpr int kManyDraws = 1'000'000;
#endif

// What a chi-square variate with `freedom` degrees exceeds once in a million times: by the transformation of Wilson and
// Hilferty, whose cube root of it is normal, and the normal's quantile of 1 - 1e-6. With one degree, where it is least
// exact, that is 27.5 for 23.9, the harmless side. Seeds are fixed: a case that passes keeps passing.
//
// What it finds: a distribution that is off by d(i) adds n * sum(d(i)^2 / p(i)) to the statistic. With a million draws
// and one token of p = 0.1 drawn 4 % too often, others less, that is 160 and more; the bound lies 50 above the mean
// with 16 tokens, 80 with 64.
inline double ChiSquareBound(double freedom) {
  constexpr double kQuantile = 4.753;
  const double v = 2 / (9 * freedom);
  return freedom * std::pow(1 - v + kQuantile * std::sqrt(v), 3);
}

// Pearson's statistic of counts against probabilities. Cells where less than five are expected count as one.
inline void ExpectDistribution(const std::vector<int>& counts, const std::vector<double>& p) {
  ASSERT_EQ(counts.size(), p.size());
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  double statistic = 0, rare = 0, rare_expected = 0;
  int cells = 0;
  const auto add = [&](double observed, double expected) {
    statistic += (observed - expected) * (observed - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << "cell " << i;
    } else if (p[i] * draws >= 5) {
      add(counts[i], p[i] * draws);
    } else {
      rare += counts[i];
      rare_expected += p[i] * draws;
    }
  }
  if (rare_expected >= 5) {
    add(rare, rare_expected);
  } else {
    // A Poisson count with a mean below 5 is above 24 once in a billion times.
    EXPECT_LE(rare, 24);
  }
  if (cells > 1) {
    EXPECT_LT(statistic, ChiSquareBound(cells - 1));
  }
}

// Whether the rows and the columns of a table of counts are independent of each other.
inline void ExpectIndependent(const std::vector<std::vector<int>>& table) {
  std::vector<double> rows(table.size()), columns(table.front().size());
  double draws = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < columns.size(); ++j) {
      rows[i] += table[i][j];
      columns[j] += table[i][j];
      draws += table[i][j];
    }
  }
  double statistic = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < columns.size(); ++j) {
      const double expected = rows[i] * columns[j] / draws;
      ASSERT_GE(expected, 5) << "the test needs more draws";
      statistic += (table[i][j] - expected) * (table[i][j] - expected) / expected;
    }
  }
  EXPECT_LT(statistic, ChiSquareBound(static_cast<double>((rows.size() - 1) * (columns.size() - 1))));
}

// What came before a row.
struct History {
  std::vector<int32_t> prompt = {};
  std::vector<int32_t> output = {};
};

inline bool HasBit(const std::vector<uint32_t>& mask, size_t id) { return (mask[id / 32] >> id % 32 & 1) != 0; }

// Whether `word` would be completed by its last token.
inline bool Completes(const std::vector<int32_t>& word, const std::vector<int32_t>& output) {
  return word.size() <= output.size() + 1 &&
         std::equal(word.begin(), word.end() - 1, output.end() - static_cast<std::ptrdiff_t>(word.size() - 1));
}

// The scores before temperature; -infinity is what cannot be.
inline std::vector<double> ExactScores(const std::vector<float>& logits, const SamplingParams& p,
                                       const History& history, const std::vector<uint32_t>& mask = {}) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  std::vector<double> l(logits.begin(), logits.end());
  for (const auto& [id, bias] : p.logit_bias) l[id] += std::clamp(bias, -100.0f, 100.0f);
  const auto contains = [](const std::vector<int32_t>& ids, size_t id) {
    return std::find(ids.begin(), ids.end(), static_cast<int32_t>(id)) != ids.end();
  };
  for (size_t id = 0; id < l.size(); ++id) {
    const auto count = std::count(history.output.begin(), history.output.end(), static_cast<int32_t>(id));
    if (count > 0 || contains(history.prompt, id)) {
      l[id] = l[id] > 0 ? l[id] / p.repetition_penalty : l[id] * p.repetition_penalty;
    }
    l[id] -= p.frequency_penalty * static_cast<double>(count) + (count > 0 ? p.presence_penalty : 0);
    if (!p.allowed_token_ids.empty() && !contains(p.allowed_token_ids, id)) l[id] = -kInf;
    if (!mask.empty() && !HasBit(mask, id)) l[id] = -kInf;
    if (static_cast<int64_t>(history.output.size()) < p.min_tokens && contains(p.stop_token_ids, id)) l[id] = -kInf;
  }
  for (const std::vector<int32_t>& word : p.bad_words) {
    if (Completes(word, history.output)) l[word.back()] = -kInf;
  }
  return l;
}

// p of every token.
inline std::vector<double> ExactDistribution(const std::vector<float>& logits, const SamplingParams& p,
                                             const History& history = {}, const std::vector<uint32_t>& mask = {}) {
  std::vector<double> weight = ExactScores(logits, p, history, mask);
  const double highest = *std::max_element(weight.begin(), weight.end());
  for (double& w : weight) w = std::exp((w - highest) / p.temperature);  // the likeliest: 1
  std::vector<size_t> order(weight.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return weight[a] > weight[b]; });
  const auto drop = [&](auto&& condition) {
    for (double& w : weight) w = condition(w) ? 0 : w;
  };
  drop([&](double w) { return w < p.min_p; });
  if (p.top_k > 0 && p.top_k < static_cast<int64_t>(order.size())) {
    drop([kth = weight[order[p.top_k - 1]]](double w) { return w < kth; });
  }
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  double mass = 0;
  for (const size_t id : order) {
    if (p.top_p < 1 && mass >= p.top_p * total) weight[id] = 0;
    mass += weight[id];
  }
  const double left = std::accumulate(weight.begin(), weight.end(), 0.0);
  for (double& w : weight) w /= left;
  return weight;
}

// Logits of a model that looks at the last two tokens: spread over about +-3, different for every context.
inline std::vector<float> LogitsBehind(const std::vector<int32_t>& context, size_t vocab, uint32_t model) {
  uint32_t state = model * 2654435761u + 12345;
  for (size_t i = context.size() - std::min<size_t>(2, context.size()); i < context.size(); ++i) {
    state = (state ^ static_cast<uint32_t>(context[i] + 1)) * 2246822519u;
  }
  std::vector<float> logits(vocab);
  for (float& l : logits) {
    state = state * 1664525u + 1013904223u;
    l = static_cast<float>(state >> 8) * 0x1p-24f * 6 - 3;
  }
  return logits;
}

}  // namespace hadal::runtime
