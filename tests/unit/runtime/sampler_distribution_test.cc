// What the sampler draws is distributed as spec serving-runtime 5.1 says: a million draws against the exact
// probabilities for each way of drawing, and the four streams of random numbers against each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "runtime/philox.h"
#include "runtime/sampler.h"
#include "unit/runtime/distribution.h"

namespace hadal::runtime {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  std::string name;
  size_t vocab;
  SamplingParams params;
  History history = {};
  std::vector<uint32_t> mask = {};
  int draws = kManyDraws;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class SamplerDistribution : public testing::TestWithParam<Case> {};

TEST_P(SamplerDistribution, IsTheExactOne) {
  const Case& c = GetParam();
  const std::vector<float> logits = LogitsBehind({}, c.vocab, 1);
  absl::StatusOr<Sampler> sampler =
      Sampler::Create(static_cast<int64_t>(c.vocab), c.params, c.history.prompt, std::vector<int32_t>());
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  for (const int32_t id : c.history.output) sampler->Accept(id);
  std::vector<int> counts(c.vocab);
  for (int position = 0; position < c.draws; ++position) {
    const absl::StatusOr<SampledToken> token = sampler->Next(logits, position, {.mask = c.mask});
    ASSERT_TRUE(token.ok()) << token.status();
    ++counts[token->id];
  }
  ExpectDistribution(counts, ExactDistribution(logits, c.params, c.history, c.mask));
}

const History kHistory = {.prompt = {0, 3, 5, 5, 9}, .output = {1, 2, 2, 7, 5, 1, 2}};

INSTANTIATE_TEST_SUITE_P(
    Cases, SamplerDistribution,
    testing::Values(Case{"plain", 16, {.seed = 1}},
                    Case{"temperature_low", 16, {.temperature = 0.4, .seed = 3}, {}, {}, kManyDraws / 4},
                    Case{"temperature_high", 64, {.temperature = 2, .seed = 0xFFFFFFFFFFFFFFFF}},
                    Case{"top_k", 64, {.top_k = 9, .seed = 4}}, Case{"top_p", 64, {.top_p = 0.8, .seed = 5}},
                    Case{"min_p", 64, {.min_p = 0.1, .seed = 6}},
                    Case{"all_filters", 64, {.temperature = 1.3, .top_p = 0.9, .top_k = 30, .min_p = 0.02, .seed = 7}},
                    Case{"repetition", 16, {.repetition_penalty = 1.4, .seed = 8}, kHistory},
                    Case{"presence", 16, {.presence_penalty = 0.8, .seed = 9}, kHistory},
                    Case{"frequency", 16, {.frequency_penalty = -0.5, .seed = 10}, kHistory},
                    Case{"penalties_filters",
                         48,
                         {.temperature = 0.8,
                          .top_p = 0.95,
                          .top_k = 20,
                          .repetition_penalty = 1.2,
                          .presence_penalty = -0.4,
                          .frequency_penalty = 0.3,
                          .logit_bias = {{3, 1.5f}, {40, -2.0f}},
                          .seed = 11},
                         kHistory},
                    Case{"rules_mask",
                         40,
                         {.temperature = 1.5,
                          .min_tokens = INT32_MAX,
                          .stop_token_ids = {4},
                          .bad_words = {{6}, {1, 2, 8}, {2, 2, 9}},
                          .seed = 12},
                         kHistory,
                         {0xFFFF0FFF, 0x35}}),
    [](const auto& param_info) { return param_info.param.name; });

TEST(SamplerStreams, TargetDraftAcceptAndResidualAreIndependent) {
  // Token 0, whose random bits the accept test would share if it shared a stream, is likely.
  const std::vector<float> logits = {1.5f, 0.5f, 1, -0.5f, 0};
  constexpr size_t kVocab = 5;
  const std::vector<double> p = ExactDistribution(logits, {});
  absl::StatusOr<Sampler> sampler = Sampler::Create(kVocab, {.seed = 99}, {}, {});
  ASSERT_TRUE(sampler.ok());
  // Per position: the target's token, the draft, whether draft 0 is accepted, and what replaces a draft that is none.
  constexpr size_t kKinds = 4;
  const char* const names[kKinds] = {"target", "draft", "accept", "residual"};
  std::vector<std::vector<std::vector<std::vector<int>>>> tables(
      kKinds, std::vector(kKinds, std::vector(kVocab, std::vector<int>(kVocab))));
  std::vector<float> scaled(kVocab);
  for (int position = 0; position < kManyDraws; ++position) {
    const size_t outcome[kKinds] = {static_cast<size_t>(sampler->Next(logits, position)->id),
                                    static_cast<size_t>(sampler->DrawDraft(logits, position, scaled)),
                                    sampler->Verify(logits, position, 0)->accepted ? size_t{1} : size_t{0},
                                    static_cast<size_t>(sampler->Verify(logits, position, -1)->token.id)};
    for (size_t a = 0; a < kKinds; ++a) {
      for (size_t b = a + 1; b < kKinds; ++b) ++tables[a][b][outcome[a]][outcome[b]];
    }
  }
  for (size_t a = 0; a < kKinds; ++a) {
    for (size_t b = a + 1; b < kKinds; ++b) {
      SCOPED_TRACE(std::string(names[a]) + " and " + names[b]);
      std::vector<std::vector<int>>& table = tables[a][b];
      if (a == 2) table.resize(2);
      if (b == 2) {
        for (std::vector<int>& row : table) row.resize(2);
      }
      ExpectIndependent(table);
    }
  }
  // Each of them alone is what it should be.
  std::vector<int> residual(kVocab), accepted(2);
  for (size_t i = 0; i < kVocab; ++i) {
    for (size_t j = 0; j < kVocab; ++j) residual[j] += tables[0][3][i][j];
    for (size_t j = 0; j < 2; ++j) accepted[j] += tables[0][2][i][j];
  }
  ExpectDistribution(residual, p);
  ExpectDistribution(accepted, {1 - p[0], p[0]});
}

// Over seeds instead of positions: children of one request are unrelated too.
TEST(SamplerStreams, ChildSeedsAreUnrelated) {
  const std::vector<float> logits = {1, 0, -1, 1.5f};
  constexpr uint64_t kSeed = 0xFFFFFFFFFFFFFFFF - 1000;  // runs over the end
  constexpr int kSeeds = 100'000;
  std::vector<int> counts(4);
  std::vector<std::vector<int>> pairs(4, std::vector<int>(4));
  int32_t last = -1;
  for (int i = 0; i < kSeeds; ++i) {
    absl::StatusOr<Sampler> sampler = Sampler::Create(4, {.seed = ChildSeed(kSeed, i)}, {}, {});
    const int32_t id = sampler->Next(logits, 17)->id;
    ++counts[id];
    if (i % 2 == 1) ++pairs[last][id];
    last = id;
  }
  ExpectDistribution(counts, ExactDistribution(logits, {}));
  ExpectIndependent(pairs);
}

// The token that the definition gives: everything in order, every token's noise computed.
int32_t ByDefinition(const std::vector<float>& logits, const SamplingParams& p, int64_t position) {
  const std::vector<double> weights = ExactDistribution(logits, p);
  const float highest = *std::max_element(logits.begin(), logits.end());
  const auto inverse = static_cast<float>(1 / p.temperature);
  int32_t best = -1;
  double best_score = -kInf;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (weights[i] == 0) continue;
    const uint32_t bits = Philox4x32(p.seed, {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0,
                                              static_cast<uint32_t>(i / 4)})[i % 4];
    const float l = (logits[i] - highest) * inverse;
    const double score = l - std::log(-std::log((bits + 0.5) * 0x1p-32));
    if (score > best_score) {
      best_score = score;
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

// What is left out of the work (tokens that cannot win, sorting) must not show in long rows either, with and without
// equal logits.
TEST(SamplerShortcuts, GiveTheTokensOfTheDefinition) {
  constexpr size_t kVocab = 4099;  // a last block that is not full
  const std::vector<SamplingParams> settings = {
      {.seed = 1},
      {.temperature = 0.3, .seed = 2},
      {.temperature = 2, .seed = 3},
      {.top_k = 7, .seed = 4},
      {.top_k = 1024, .seed = 5},
      {.top_k = 1025, .seed = 6},
      {.top_k = 4098, .seed = 7},
      {.top_p = 0.3, .seed = 8},
      {.top_p = 0.97, .seed = 9},
      {.top_p = 0.9999, .seed = 10},
      {.temperature = 0.7, .top_p = 0.9, .top_k = 200, .min_p = 0.001, .seed = 11},
      {.min_p = 0.3, .seed = 12},
  };
  const int positions = std::max(kManyDraws / 50'000, 2);
  for (const float spread : {0.1f, 1.0f, 5.0f, 30.0f}) {
    for (const float step : {0.0f, 0.25f}) {  // of equal logits
      for (const SamplingParams& params : settings) {
        SCOPED_TRACE(testing::Message() << "spread " << spread << " step " << step << " seed " << params.seed);
        absl::StatusOr<Sampler> sampler = Sampler::Create(kVocab, params, {}, {});
        for (int64_t position = 0; position < positions; ++position) {
          std::vector<float> logits = LogitsBehind({static_cast<int32_t>(position)}, kVocab, 5);
          for (float& l : logits) {
            l *= spread;
            if (step > 0) l = std::round(l / step) * step;
          }
          ASSERT_EQ(sampler->Next(logits, position)->id, ByDefinition(logits, params, position)) << position;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hadal::runtime
