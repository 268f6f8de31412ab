// Speculative decoding (spec serving-runtime 1.3 to 1.6): with drafts from anywhere, matching emits the very tokens of
// decoding without, and rejection emits tokens of the same distribution.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/sampler.h"
#include "unit/runtime/distribution.h"

namespace hadal::runtime {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kTargetModel = 1, kDraftModel = 2;

Sampler Make(size_t vocab, SamplingParams params, const std::vector<int32_t>& prompt = {}) {
  absl::StatusOr<Sampler> sampler =
      Sampler::Create(static_cast<int64_t>(vocab), std::move(params), prompt, std::vector<int32_t>());
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

// A grammar that changes with the text.
std::vector<uint32_t> MaskBehind(const std::vector<int32_t>& text) {
  return {text.size() % 3 == 0 ? 0x5555AAAAu : text.size() % 3 == 1 ? 0xFFFFFFFFu : 0x0F0FF0F3u};
}

// --- Matching ---

constexpr size_t kVocab = 32;
const std::vector<int32_t> kPrompt = {3, 1, 4, 1, 5};
constexpr size_t kTokens = 200;

// What drafts follow a text.
using Drafter = std::function<std::vector<int32_t>(Sampler*, const std::vector<int32_t>&, size_t)>;

absl::StatusOr<SampledToken> TargetToken(Sampler* sampler, const std::vector<int32_t>& text) {
  const std::vector<uint32_t> mask = MaskBehind(text);
  RowOptions options{.mask = mask};
  if (text.size() % 50 == 40) options.forced = 7;
  return sampler->Next(LogitsBehind(text, kVocab, kTargetModel), static_cast<int64_t>(text.size()), options);
}

struct Emitted {
  std::vector<int32_t> text = kPrompt;
  std::vector<float> logprobs = {};
  int accepted = 0;
};

Emitted Matching(const SamplingParams& params, size_t k, const Drafter& drafter) {
  Sampler sampler = Make(kVocab, params, kPrompt);
  Emitted out;
  while (out.text.size() < kPrompt.size() + kTokens) {
    const std::vector<int32_t> drafts = drafter(&sampler, out.text, k);
    for (size_t i = 0; i <= drafts.size(); ++i) {
      const absl::StatusOr<SampledToken> token = TargetToken(&sampler, out.text);
      EXPECT_TRUE(token.ok()) << token.status();
      if (!token.ok()) return out;
      sampler.Accept(token->id);
      out.text.push_back(token->id);
      out.logprobs.push_back(token->logprob);
      if (i < drafts.size() && token->id != drafts[i]) break;
      out.accepted += i < drafts.size() ? 1 : 0;
    }
  }
  out.text.resize(kPrompt.size() + kTokens);
  out.logprobs.resize(kTokens);
  return out;
}

TEST(SpeculativeMatching, EmitsTheTokensOfDecodingWithoutDrafts) {
  const Drafter none = [](Sampler*, const auto&, size_t) { return std::vector<int32_t>(); };
  const Drafter adversarial = [](Sampler*, const auto& text, size_t k) {
    std::mt19937 random(static_cast<uint32_t>(text.size()));
    std::vector<int32_t> drafts(k);
    for (int32_t& d : drafts) d = static_cast<int32_t>(random() % (kVocab + 4)) - 2;  // some are no tokens
    return drafts;
  };
  const auto from_model = [](uint32_t model, bool soft) -> Drafter {
    return [model, soft](Sampler* sampler, std::vector<int32_t> text, size_t k) {
      std::vector<float> scaled(soft ? kVocab : 0);
      std::vector<int32_t> drafts;
      for (size_t i = 0; i < k; ++i) {
        drafts.push_back(
            sampler->DrawDraft(LogitsBehind(text, kVocab, model), static_cast<int64_t>(text.size()), scaled));
        text.push_back(drafts.back());
      }
      return drafts;
    };
  };
  const std::vector<SamplingParams> settings = {
      {.temperature = 0, .repetition_penalty = 1.1, .logprobs = 0},
      {.seed = 1, .logprobs = 3},
      {.temperature = 0.5, .top_p = 0.9, .seed = 2, .logprobs = 0, .logprobs_processed = true},
      {.top_k = 6, .min_p = 0.01, .frequency_penalty = 0.5, .seed = 3},
      {.repetition_penalty = 1.3,
       .presence_penalty = 0.7,
       .min_tokens = 100,
       .stop_token_ids = {2, 9},
       .bad_words = {{4}, {1, 6}, {7, 1, 12}},
       .seed = 4},
  };
  for (const SamplingParams& params : settings) {
    SCOPED_TRACE(testing::Message() << "seed " << params.seed);
    const Emitted plain = Matching(params, 0, none);
    const Drafter oracle = [&](Sampler*, const auto& text, size_t k) {
      const size_t end = std::min(plain.text.size(), text.size() + k);
      return std::vector<int32_t>(plain.text.begin() + static_cast<std::ptrdiff_t>(std::min(text.size(), end)),
                                  plain.text.begin() + static_cast<std::ptrdiff_t>(end));
    };
    const std::pair<const char*, Drafter> drafters[] = {{"adversarial", adversarial},
                                                        {"soft", from_model(kDraftModel, true)},
                                                        {"one-hot", from_model(kDraftModel, false)},
                                                        {"target itself", from_model(kTargetModel, true)},
                                                        {"oracle", oracle}};
    for (const auto& [name, drafter] : drafters) {
      for (size_t k = 1; k <= 5; ++k) {
        SCOPED_TRACE(testing::Message() << name << ", k = " << k);
        const Emitted drafted = Matching(params, k, drafter);
        EXPECT_EQ(drafted.text, plain.text);
        EXPECT_EQ(drafted.logprobs, plain.logprobs);
        if (std::string(name) == "oracle") {
          EXPECT_GE(drafted.accepted * (k + 1), kTokens * k - k);
        }
      }
    }
  }
}

// --- Rejection: one position ---

struct Case {
  std::string name;
  std::vector<float> target;
  SamplingParams params;
  std::vector<float> draft_logits = {};  // empty: the draft is `chosen`
  int32_t chosen = -2;                   // other than -2 with draft_logits: not drawn, for what should not happen
  History history = {};
  std::vector<uint32_t> mask = {};
  int draws = kManyDraws;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

// Every finite element moved by something of the order of `distance`.
std::vector<float> Moved(std::vector<float> row, float distance) {
  for (size_t i = 0; i < row.size(); ++i) row[i] += distance * std::sin(static_cast<float>(3 * i + 1));
  return row;
}

std::vector<float> Without(std::vector<float> row, const std::vector<size_t>& ids) {
  for (const size_t id : ids) row[id] = -kInf;
  return row;
}

class SpeculativeRejection : public testing::TestWithParam<Case> {};

TEST_P(SpeculativeRejection, EmitsTheTargetsDistribution) {
  const Case& c = GetParam();
  const size_t vocab = c.target.size();
  Sampler sampler = Make(vocab, c.params, c.history.prompt);
  for (const int32_t id : c.history.output) sampler.Accept(id);
  const std::vector<double> p = ExactDistribution(c.target, c.params, c.history, c.mask);
  std::vector<int> counts(vocab), accepted(2);
  std::vector<float> row(c.draft_logits.empty() ? 0 : vocab);
  for (int position = 0; position < c.draws; ++position) {
    int32_t draft = c.chosen;
    if (!row.empty()) {
      const int32_t drawn = sampler.DrawDraft(c.draft_logits, position, row);
      if (draft == -2) draft = drawn;
    }
    const absl::StatusOr<VerifiedToken> token = sampler.Verify(c.target, position, draft, row, {.mask = c.mask});
    ASSERT_TRUE(token.ok()) << token.status();
    if (token->accepted) {
      ASSERT_EQ(token->token.id, draft);
    }
    ++counts[token->token.id];
    ++accepted[token->accepted ? 1 : 0];
  }
  ExpectDistribution(counts, p);
  // A draft is accepted with probability sum(min(p, q)), a chosen one with p.
  double rate = 0;
  if (c.chosen == -2) {
    SamplingParams q_params;
    q_params.temperature = c.params.temperature;
    const std::vector<double> q = ExactDistribution(c.draft_logits, q_params);
    for (size_t i = 0; i < vocab; ++i) rate += std::min(p[i], q[i]);
  } else if (c.draft_logits.empty() && c.chosen >= 0 && static_cast<size_t>(c.chosen) < vocab) {
    rate = p[c.chosen];
  }
  // Sums of min(p, q) that are 1 up to rounding in double are 1.
  if (rate > 1 - 1e-12) rate = 1;
  ExpectDistribution(accepted, {1 - rate, rate});
}

const std::vector<float> kRow16 = LogitsBehind({1}, 16, kTargetModel);
const std::vector<float> kRow40 = LogitsBehind({2}, 40, kTargetModel);
const SamplingParams kFilters = {.temperature = 0.7, .top_p = 0.9, .top_k = 20, .min_p = 0.01, .seed = 21};
const SamplingParams kPenalties = {.temperature = 1.4,
                                   .top_p = 0.95,
                                   .repetition_penalty = 1.3,
                                   .presence_penalty = 0.5,
                                   .frequency_penalty = -0.2,
                                   .bad_words = {{5}, {2, 1}},
                                   .seed = 22};
const History kHistory = {.prompt = {0, 9, 9}, .output = {4, 8, 4, 2}};

INSTANTIATE_TEST_SUITE_P(
    Cases, SpeculativeRejection,
    testing::Values(
        Case{"soft", kRow16, {.seed = 11}, Moved(kRow16, 1)},
        Case{"soft_far", kRow16, {.seed = 12}, LogitsBehind({5}, 16, kDraftModel)},
        Case{"soft_hot", kRow40, {.temperature = 2, .seed = 13}, Moved(kRow40, 2), -2, {}, {}, kManyDraws / 5},
        Case{"soft_equal", kRow16, {.temperature = 0.8, .seed = 14}, kRow16},
        Case{"soft_zero_where_p_is_not", kRow16, {.seed = 15}, Without(kRow16, {0, 3, 4, 5, 11})},
        Case{"soft_nothing_in_common",
             Without(kRow16, {0, 1, 2, 3, 4, 5, 6, 7}),
             {.seed = 16},
             Without(kRow16, {8, 9, 10, 11, 12, 13, 14, 15})},
        Case{"soft_target_filtered", kRow40, kFilters, Moved(kRow40, 1)},
        Case{"soft_target_filtered_equal", kRow40, kFilters, kRow40, -2, {}, {}, kManyDraws / 5},
        Case{"soft_penalties_mask", kRow40, kPenalties, Moved(kRow40, 0.5f), -2, kHistory, {0xFF5FFFFF, 0xF7}},
        Case{"one_hot_likely",
             kRow16,
             {.seed = 17},
             {},
             static_cast<int32_t>(std::max_element(kRow16.begin(), kRow16.end()) - kRow16.begin())},
        Case{"one_hot_unlikely",
             kRow16,
             {.seed = 18},
             {},
             static_cast<int32_t>(std::min_element(kRow16.begin(), kRow16.end()) - kRow16.begin()),
             {},
             {},
             kManyDraws / 5},
        Case{"one_hot_impossible", Without(kRow16, {6}), {.seed = 19}, {}, 6, {}, {}, kManyDraws / 5},
        Case{"one_hot_penalties_mask", kRow40, kPenalties, {}, 4, kHistory, {0xFF5FFFFF, 0xF7}},
        Case{"none", kRow16, {.seed = 20}, {}, -1, {}, {}, kManyDraws / 5},
        Case{"beyond_vocabulary", kRow16, {.seed = 23}, {}, 16, {}, {}, kManyDraws / 5},
        // Rejected as q has nothing there; then p - q has no mass, and the token is one of p.
        Case{"no_residual", Without(kRow16, {6}), {.seed = 24}, Without(kRow16, {6}), 6, {}, {}, kManyDraws / 5}),
    [](const auto& param_info) { return param_info.param.name; });

// --- Rejection: a sequence ---

// Four tokens with two drafts a step: the joint distribution of all four, so that what a step leaves behind (thrown
// away drafts, whose noise is used again; penalties) cannot bias a later one. 250 thousand sequences are a million
// tokens.
TEST(SpeculativeRejectionSequence, EmitsTheTargetsJointDistribution) {
  constexpr size_t kSmall = 5, kLength = 4, kDrafts = 2;
  const std::vector<int32_t> prompt = {2};
  SamplingParams params = {.temperature = 1.2, .top_k = 4, .presence_penalty = 0.6, .frequency_penalty = 0.3};
  std::vector<int> counts(625);
  std::vector<std::vector<float>> rows(kDrafts, std::vector<float>(kSmall));
  for (int i = 0; i < kManyDraws / 4; ++i) {
    params.seed = static_cast<uint64_t>(i);
    Sampler sampler = Make(kSmall, params, prompt);
    std::vector<int32_t> text = prompt;
    while (text.size() < prompt.size() + kLength) {
      std::vector<int32_t> drafted = text;
      for (std::vector<float>& row : rows) {
        const auto position = static_cast<int64_t>(drafted.size());
        drafted.push_back(sampler.DrawDraft(LogitsBehind(drafted, kSmall, kDraftModel), position, row));
      }
      const size_t begin = text.size();
      for (size_t j = 0; j <= kDrafts; ++j) {
        const auto position = static_cast<int64_t>(text.size());
        const std::vector<float> logits = LogitsBehind(text, kSmall, kTargetModel);
        VerifiedToken token;
        if (j < kDrafts) {
          token = *sampler.Verify(logits, position, drafted[begin + j], rows[j]);
        } else {
          token.token = *sampler.Next(logits, position);
        }
        sampler.Accept(token.token.id);
        text.push_back(token.token.id);
        if (!token.accepted) break;
      }
    }
    size_t cell = 0;
    for (size_t j = 0; j < kLength; ++j) cell = cell * kSmall + static_cast<size_t>(text[prompt.size() + j]);
    ++counts[cell];
  }
  std::vector<double> p(counts.size(), 1);
  for (size_t cell = 0; cell < p.size(); ++cell) {
    History history{.prompt = prompt};
    for (size_t divisor = 125; divisor > 0; divisor /= kSmall) {
      std::vector<int32_t> text = prompt;
      text.insert(text.end(), history.output.begin(), history.output.end());
      const auto id = static_cast<int32_t>(cell / divisor % kSmall);
      p[cell] *= ExactDistribution(LogitsBehind(text, kSmall, kTargetModel), params, history)[id];
      history.output.push_back(id);
    }
  }
  ExpectDistribution(counts, p);
}

// --- Rejection: what is decided without a draw, and errors ---

TEST(SpeculativeVerify, GreedyAcceptsWhatItWouldTake) {
  Sampler sampler = Make(4, {.temperature = 0, .logprobs = 1});
  const std::vector<float> logits = {0, 3, 3, 1}, draft_row = {0, -9, -9, -9};
  absl::StatusOr<VerifiedToken> token = sampler.Verify(logits, 5, 1);
  EXPECT_TRUE(token->accepted);
  EXPECT_EQ(token->token.id, 1);
  EXPECT_EQ(token->token.top[0].id, 1);
  for (const int32_t draft : {-1, 0, 2, 4}) {
    token = sampler.Verify(logits, 5, draft, draft_row);
    EXPECT_FALSE(token->accepted) << draft;
    EXPECT_EQ(token->token.id, 1);
  }
}

TEST(SpeculativeVerify, MaskAndForcedTokenDecideOverTheDraft) {
  const std::vector<float> logits = {5, 0, 0, 0};
  const std::vector<uint32_t> mask = {0b1000};
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler = Make(4, {.temperature = temperature});
    EXPECT_FALSE(sampler.Verify(logits, 0, 0, {}, {.forced = 2})->accepted);
    EXPECT_EQ(sampler.Verify(logits, 0, 0, {}, {.forced = 2})->token.id, 2);
    EXPECT_TRUE(sampler.Verify(logits, 0, 2, {}, {.forced = 2})->accepted);
    EXPECT_FALSE(sampler.Verify(logits, 0, 0, {}, {.mask = mask})->accepted);
    EXPECT_EQ(sampler.Verify(logits, 0, 0, {}, {.mask = mask})->token.id, 3);
    EXPECT_TRUE(sampler.Verify(logits, 0, 3, {}, {.mask = mask})->accepted);
  }
}

// A drafter's fault costs its draft and nothing else; the target's is an error as without drafts.
TEST(SpeculativeVerify, RowsThatAreNoDistribution) {
  const std::vector<float> logits = {1, 0, 2, 0};
  Sampler sampler = Make(4, {.seed = 3});
  std::vector<float> scaled(4, 77.0f);
  for (const std::vector<float>& bad :
       {std::vector<float>{0, kNaN, 0, 0}, {0, 0, kInf, 0}, {-kInf, -kInf, -kInf, -kInf}}) {
    EXPECT_EQ(sampler.DrawDraft(bad, 3, scaled), -1);
    EXPECT_EQ(sampler.DrawDraft(bad, 3), -1);
    const absl::StatusOr<VerifiedToken> token = sampler.Verify(logits, 3, 0, bad);
    ASSERT_TRUE(token.ok());
    EXPECT_FALSE(token->accepted);
    EXPECT_EQ(token->token.id, sampler.Verify(logits, 3, -1)->token.id);
    EXPECT_TRUE(absl::IsInternal(sampler.Verify(bad, 3, 0, logits).status()));
  }
  EXPECT_EQ(scaled, std::vector<float>(4, 77.0f));
}

TEST(SpeculativeDraft, LikeliestOrDrawnNeverBanned) {
  const std::vector<float> logits = {0, 4, 4, 9};
  const std::vector<int32_t> banned = {3};
  absl::StatusOr<Sampler> sampler = Sampler::Create(4, {.temperature = 0.5}, {}, banned);
  EXPECT_EQ(sampler->DrawDraft(logits, 0), 1);  // the lowest id among equals
  std::vector<float> scaled(4);
  for (int position = 0; position < 200; ++position) {
    EXPECT_NE(sampler->DrawDraft(logits, position, scaled), 3);
    EXPECT_EQ(scaled, (std::vector<float>{-8, 0, 0, -kInf}));
  }
  absl::StatusOr<Sampler> greedy = Sampler::Create(4, {.temperature = 0}, {}, banned);
  EXPECT_EQ(greedy->DrawDraft(logits, 0, scaled), 1);
}

}  // namespace
}  // namespace hadal::runtime
