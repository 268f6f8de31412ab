#include "runtime/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/status.h"
#include "unit/runtime/distribution.h"

namespace hadal::runtime {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Sampler Make(int64_t vocab, SamplingParams params, std::vector<int32_t> prompt = {}, std::vector<int32_t> banned = {}) {
  absl::StatusOr<Sampler> sampler = Sampler::Create(vocab, std::move(params), prompt, banned);
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

int32_t Token(Sampler* sampler, const std::vector<float>& logits, int64_t position = 0) {
  const absl::StatusOr<SampledToken> token = sampler->Next(logits, position);
  EXPECT_TRUE(token.ok()) << token.status();
  return token.ok() ? token->id : -1;
}

SamplingParams Greedily() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

TEST(Sampler, MinTokensHoldsEndsBack) {
  SamplingParams params = Greedily();
  params.min_tokens = 2;
  params.stop_token_ids = {3};
  const std::vector<int32_t> prompt = {1, 1, 1}, ends = {0, 99};
  absl::StatusOr<Sampler> sampler = Sampler::Create(5, params, prompt, {}, ends);
  ASSERT_TRUE(sampler.ok());
  const std::vector<float> logits = {9, 1, 2, 8, 0};
  EXPECT_EQ(Token(&*sampler, logits, 3), 2);
  EXPECT_EQ(Token(&*sampler, logits, 4), 2);
  EXPECT_EQ(Token(&*sampler, logits, 5), 0);
}

TEST(Sampler, OnlyAllowedTokensAreDrawn) {
  SamplingParams params = Greedily();
  params.allowed_token_ids = {1, 4};
  Sampler sampler = Make(5, params);
  EXPECT_EQ(Token(&sampler, {9, 1, 2, 8, 0}), 1);
  params.temperature = 1;
  Sampler drawing = Make(5, params);
  for (int position = 0; position < 100; ++position) {
    const int32_t id = Token(&drawing, {9, 1, 2, 8, 0}, position);
    EXPECT_TRUE(id == 1 || id == 4) << id;
  }
  // Nothing would be left.
  EXPECT_TRUE(absl::IsInvalidArgument(Sampler::Create(5, params, {}, std::vector<int32_t>{1, 4}).status()));
  params.min_tokens = 1;
  params.stop_token_ids = {1};
  EXPECT_TRUE(absl::IsInvalidArgument(Sampler::Create(5, params, {}, {}, std::vector<int32_t>{4}).status()));
  EXPECT_TRUE(Sampler::Create(5, params, {}, {}).ok());
}

TEST(Sampler, BadWordsAreNeverCompleted) {
  SamplingParams params = Greedily();
  params.bad_words = {{4}, {1, 2, 3}, {2, 2}};
  Sampler sampler = Make(5, params);
  const std::vector<float> three = {0, 1, 2, 8, 9}, two = {0, 1, 8, 2, 9};
  EXPECT_EQ(Token(&sampler, three), 3);  // 4 never
  sampler.Accept(1);
  EXPECT_EQ(Token(&sampler, two), 2);
  sampler.Accept(2);
  EXPECT_EQ(Token(&sampler, three), 1);  // neither 3 behind 1 2, nor 2 behind 2
  sampler.Accept(1);
  EXPECT_EQ(Token(&sampler, three), 3);
  // Nothing is left behind 1 2: the request's own rules, not a fault.
  SamplingParams impossible = Greedily();
  impossible.allowed_token_ids = {1, 2};
  impossible.bad_words = {{1, 1}, {1, 2}};
  Sampler stuck = Make(5, impossible);
  stuck.Accept(1);
  EXPECT_TRUE(absl::IsInvalidArgument(stuck.Next(two, 1).status()));
  impossible.bad_words = {{1}, {2}};
  EXPECT_TRUE(absl::IsInvalidArgument(Sampler::Create(5, impossible, {}, {}).status()));
  // The prompt does not count.
  Sampler behind_prompt = Make(5, params, {1, 2});
  EXPECT_EQ(Token(&behind_prompt, three), 3);
}

TEST(Sampler, BadIdsAndWordsAreNamed) {
  const auto error = [](auto&& change) {
    SamplingParams params;
    change(params);
    return std::string(Message(Sampler::Create(10, params, {}, {}).status()));
  };
  EXPECT_THAT(error([](auto& p) { p.min_tokens = -1; }), HasSubstr("min_tokens"));
  EXPECT_THAT(error([](auto& p) { p.min_tokens = INT64_MAX; }), HasSubstr("min_tokens"));
  EXPECT_THAT(error([](auto& p) { p.stop_token_ids = {10}; }),
              HasSubstr("stop_token_ids: expected token ids from 0 to 9"));
  EXPECT_THAT(error([](auto& p) { p.allowed_token_ids = {-1}; }), HasSubstr("allowed_token_ids"));
  EXPECT_THAT(error([](auto& p) { p.bad_words = {{1}, {}}; }), HasSubstr("found an empty one"));
  EXPECT_THAT(error([](auto& p) { p.bad_words = {{12}}; }), HasSubstr("bad_words"));
  EXPECT_THAT(error([](auto& p) { p.bad_words.assign(257, {1}); }), HasSubstr("at most 256"));
  EXPECT_THAT(error([](auto& p) { p.bad_words.assign(2, std::vector<int32_t>(600, 1)); }), HasSubstr("1024 tokens"));
}

std::vector<int> Histogram(SamplingParams params, const std::vector<float>& logits, int draws) {
  Sampler sampler = Make(static_cast<int64_t>(logits.size()), std::move(params));
  std::vector<int> counts(logits.size());
  for (int position = 0; position < draws; ++position) ++counts[Token(&sampler, logits, position)];
  return counts;
}

std::set<int32_t> Support(SamplingParams params, const std::vector<float>& logits, int draws = 3000) {
  const std::vector<int> counts = Histogram(std::move(params), logits, draws);
  std::set<int32_t> ids;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) ids.insert(static_cast<int32_t>(i));
  }
  return ids;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  Sampler sampler = Make(5, {.temperature = 0});
  EXPECT_EQ(Token(&sampler, {0, 3, -1, 3, 2}), 1);
  EXPECT_EQ(Token(&sampler, {0, 0, 0, 0, 0}), 0);
  EXPECT_EQ(Token(&sampler, {-kInf, -kInf, -5, -kInf, -5}), 2);
}

TEST(Sampler, TemperatureBelowTheThresholdIsGreedy) {
  Sampler sampler = Make(3, {.temperature = 9e-6});
  for (int position = 0; position < 100; ++position) EXPECT_EQ(Token(&sampler, {1.0f, 1.0f, 0.9f}, position), 0);
}

TEST(Sampler, DistributionWithFilters) {
  const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  constexpr int kDraws = 100000;
  // The smallest set with mass >= 0.6 is {0, 1}.
  ExpectDistribution(Histogram({.top_p = 0.6}, logits, kDraws), {4. / 7, 3. / 7, 0, 0});
  ExpectDistribution(Histogram({.top_k = 3}, logits, kDraws), {4. / 9, 3. / 9, 2. / 9, 0});
  // 0.2 >= 0.45 * 0.4, 0.1 is not.
  ExpectDistribution(Histogram({.min_p = 0.45}, logits, kDraws), {4. / 9, 3. / 9, 2. / 9, 0});
  // top_p works on what top_k leaves: of {4/9, 3/9, 2/9} the first two hold 7/9.
  ExpectDistribution(Histogram({.top_p = 0.75, .top_k = 3}, logits, kDraws), {4. / 7, 3. / 7, 0, 0});
  ExpectDistribution(Histogram({.temperature = 0.5, .top_k = 2}, logits, kDraws), {16. / 25, 9. / 25, 0, 0});
}

TEST(Sampler, TopKEdges) {
  const std::vector<float> logits = {1, 3, 2, 2, 0};
  EXPECT_EQ(Support({.top_k = 1}, logits), (std::set<int32_t>{1}));
  // Ties with the k-th stay.
  EXPECT_EQ(Support({.top_k = 2}, logits), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(Support({.top_k = 3}, logits), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(Support({.top_k = 100}, logits).size(), 5u);
  EXPECT_EQ(Support({.top_k = 0}, logits).size(), 5u);
  EXPECT_EQ(Support({.top_k = -1}, logits).size(), 5u);
}

TEST(Sampler, TopPEdges) {
  const std::vector<float> logits = {0, 0, 0, 0};
  // Never empty, and among equals the lowest ids.
  EXPECT_EQ(Support({.top_p = 1e-9}, logits), (std::set<int32_t>{0}));
  EXPECT_EQ(Support({.top_p = 0.5}, logits), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(Support({.top_p = 0.51}, logits), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(Support({.top_p = 1}, logits).size(), 4u);
}

TEST(Sampler, MinPEdges) {
  const std::vector<float> logits = {1, 1, 0.999f, -50};
  EXPECT_EQ(Support({.min_p = 1}, logits), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(Support({.min_p = 0.5}, logits), (std::set<int32_t>{0, 1, 2}));
}

TEST(Sampler, ImpossibleTokensAreNeverDrawn) {
  const std::vector<float> logits = {-kInf, 0, -kInf, 0, -kInf};
  EXPECT_EQ(Support({}, logits), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(Support({.top_p = 0.9999}, logits), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(Support({.top_k = 4}, logits), (std::set<int32_t>{1, 3}));
}

TEST(Sampler, BannedTokensAreNeverProduced) {
  Sampler greedy = Make(4, {.temperature = 0}, {}, {2, 99, -1});
  EXPECT_EQ(Token(&greedy, {0, 1, 9, 1}), 1);
  // No bias brings them back.
  Sampler biased = Make(4, {.temperature = 0, .logit_bias = {{2, 100.0f}}}, {}, {2});
  EXPECT_EQ(Token(&biased, {0, 1, 9, 1}), 1);
}

TEST(Sampler, DrawDependsOnSeedAndPositionOnly) {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  SamplingParams params{.seed = 42};
  Sampler forward = Make(1000, params), backward = Make(1000, params);
  std::vector<int32_t> a(64), b(64);
  for (int i = 0; i < 64; ++i) a[i] = Token(&forward, logits, i);
  for (int i = 63; i >= 0; --i) b[i] = Token(&backward, logits, i);
  EXPECT_EQ(a, b);
  // An object made for one position alone draws the same.
  Sampler alone = Make(1000, params);
  EXPECT_EQ(Token(&alone, logits, 40), a[40]);
  // And there is variety between positions and between seeds.
  EXPECT_GT(std::set<int32_t>(a.begin(), a.end()).size(), 40u);
  Sampler other = Make(1000, {.seed = 43});
  int equal = 0;
  for (int i = 0; i < 64; ++i) equal += Token(&other, logits, i) == a[i] ? 1 : 0;
  EXPECT_LT(equal, 8);
}

TEST(Sampler, PositionsBeyond32BitsDiffer) {
  const std::vector<float> logits(1000, 0.0f);
  Sampler sampler = Make(1000, {});
  EXPECT_NE(Token(&sampler, logits, 5), Token(&sampler, logits, 5 + (int64_t{1} << 32)));
}

TEST(Sampler, NaNIsAnErrorAndNeverAToken) {
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler = Make(4, {.temperature = temperature});
    for (const float bad : {kNaN, -kNaN, kInf}) {
      const absl::StatusOr<SampledToken> token = sampler.Next(std::vector<float>{0, 1, bad, 5}, 9);
      ASSERT_TRUE(absl::IsInternal(token.status()));
      EXPECT_THAT(std::string(Message(token.status())), HasSubstr("position 9"));
      EXPECT_THAT(std::string(Message(token.status())), HasSubstr("token 2"));
    }
    EXPECT_TRUE(absl::IsInternal(sampler.Next(std::vector<float>(4, -kInf), 0).status()));
    // The sampler is as good as before.
    EXPECT_EQ(Token(&sampler, {0, 100, 0, 0}), 1);
  }
}

TEST(Sampler, ExtremeLogits) {
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const double temperature : {0.0, 1e-5, 0.01, 1.0, 2.0}) {
    Sampler sampler = Make(4, {.temperature = temperature});
    EXPECT_EQ(Token(&sampler, {-kMax, kMax, 0, -kMax}), 1);
    Sampler penalised = Make(4, {.temperature = temperature, .repetition_penalty = 1e-30}, {1});
    EXPECT_EQ(Token(&penalised, {-kMax, kMax, 0, -kMax}), 1);
    Sampler filtered = Make(4, {.temperature = temperature, .top_p = 0.5, .min_p = 0.1});
    EXPECT_EQ(Token(&filtered, {-kMax, kMax, 0, -kMax}), 1);
  }
}

TEST(Sampler, LogitBias) {
  Sampler sampler = Make(3, {.temperature = 0, .logit_bias = {{0, 5.0f}, {1, -1000.0f}}});
  EXPECT_EQ(Token(&sampler, {0, 50, 4}), 0);
  // -1000 counts as -100.
  EXPECT_EQ(Token(&sampler, {0, 106, 4}), 1);
  // Every token at -100: still the distribution that it was.
  SamplingParams params;
  for (int32_t id = 0; id < 4; ++id) params.logit_bias.emplace_back(id, -100.0f);
  const std::vector<float> logits = {0, 1, 2, 1};
  EXPECT_EQ(Histogram(params, logits, 1000), Histogram({}, logits, 1000));
}

TEST(Sampler, RepetitionPenaltyCountsPromptAndOutput) {
  Sampler sampler = Make(3, {.temperature = 0, .repetition_penalty = 2}, {0});
  EXPECT_EQ(Token(&sampler, {3, 2, 1}), 1);  // 3/2 < 2
  sampler.Accept(1);
  EXPECT_EQ(Token(&sampler, {3, 2, 1}), 0);  // 3/2 > 2/2
  // Negative logits move down too.
  EXPECT_EQ(Token(&sampler, {-1, -1, -1.5f}), 2);
}

TEST(Sampler, FrequencyAndPresenceCountTheOutputOnly) {
  Sampler frequency = Make(2, {.temperature = 0, .frequency_penalty = 0.5}, {0, 0, 0, 0});
  EXPECT_EQ(Token(&frequency, {1, 0.2f}), 0);
  frequency.Accept(0);
  EXPECT_EQ(Token(&frequency, {1, 0.2f}), 0);
  frequency.Accept(0);
  EXPECT_EQ(Token(&frequency, {1, 0.2f}), 1);  // 1 - 2 * 0.5
  Sampler presence = Make(2, {.temperature = 0, .presence_penalty = 0.5}, {0});
  presence.Accept(0);
  presence.Accept(0);
  EXPECT_EQ(Token(&presence, {1, 0.4f}), 0);  // 1 - 0.5, once
  EXPECT_EQ(Token(&presence, {1, 0.6f}), 1);
}

TEST(Sampler, LogprobsAreOfTheRawRow) {
  const std::vector<float> logits = {2, 1, 0, 1, -kInf};
  Sampler sampler = Make(5, {.temperature = 0, .logit_bias = {{0, -50.0f}}, .logprobs = 3});
  const absl::StatusOr<SampledToken> token = sampler.Next(logits, 0);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->id, 1);
  const double log_sum = std::log(std::exp(2.0) + 2 * std::exp(1.0) + 1);
  EXPECT_NEAR(token->logprob, 1 - log_sum, 1e-6);
  ASSERT_EQ(token->top.size(), 3u);
  EXPECT_EQ(token->top[0].id, 0);
  EXPECT_EQ(token->top[1].id, 1);  // lower id first among equals
  EXPECT_EQ(token->top[2].id, 3);
  EXPECT_NEAR(token->top[0].logprob, 2 - log_sum, 1e-6);
  Sampler all = Make(5, {.temperature = 0, .logprobs = 20});
  EXPECT_EQ(all.Next(logits, 0)->top.size(), 5u);
  EXPECT_EQ(all.Next(logits, 0)->top[4].logprob, -kInf);
  Sampler zero = Make(5, {.temperature = 0, .logprobs = 0});
  EXPECT_TRUE(zero.Next(logits, 0)->top.empty());
  EXPECT_NEAR(zero.Next(logits, 0)->logprob, 2 - log_sum, 1e-6);
}

TEST(Sampler, LogprobsOfTheProcessedRow) {
  const std::vector<float> logits = {2, 1, 0, 1, -kInf, 4};
  SamplingParams params{.temperature = 0.5, .top_k = 3, .logit_bias = {{5, -100.0f}}, .logprobs = 4};
  params.logprobs_processed = true;
  params.seed = 5;
  const std::vector<double> p = ExactDistribution(logits, params);  // of tokens 0, 1 and 3
  Sampler sampler = Make(6, params);
  std::set<int32_t> drawn;
  for (int position = 0; position < 100; ++position) {
    const absl::StatusOr<SampledToken> token = sampler.Next(logits, position);
    ASSERT_TRUE(token.ok());
    drawn.insert(token->id);
    EXPECT_NEAR(token->logprob, std::log(p[token->id]), 1e-6);
    EXPECT_EQ(token->rank, token->id == 0 ? 1 : 2);
    ASSERT_EQ(token->top.size(), 4u);
    EXPECT_EQ(token->top[0].id, 0);
    EXPECT_EQ(token->top[2].id, 3);
    EXPECT_NEAR(token->top[2].logprob, std::log(p[3]), 1e-6);
    EXPECT_EQ(token->top[3].logprob, -kInf);
  }
  EXPECT_EQ(drawn, (std::set<int32_t>{0, 1, 3}));
  // Greedily no temperature; what is ruled out does not count.
  params.temperature = 0;
  Sampler greedy = Make(6, params);
  EXPECT_NEAR(greedy.Next(logits, 0)->logprob, 2 - std::log(std::exp(2) + 2 * std::exp(1) + 1), 1e-6);
  const std::vector<uint32_t> mask = {0b1010};
  EXPECT_NEAR(greedy.Next(logits, 0, {.mask = mask})->logprob, -std::log(2), 1e-6);
}

TEST(Sampler, MaskRulesOutWhatAGrammarDoes) {
  // More than one word, the last not full.
  std::vector<float> logits(70);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i) / 10;
  for (const std::vector<int32_t>& ids :
       {std::vector<int32_t>{0}, {31, 32}, {5, 63, 64}, {69}, {1, 2, 3, 40, 41, 65, 69}}) {
    std::vector<uint32_t> mask(3);
    for (const int32_t id : ids) mask[id / 32] |= 1u << id % 32;
    for (const SamplingParams& params :
         {SamplingParams{.temperature = 0}, {.temperature = 2}, {.top_p = 0.99}, {.top_k = 3}}) {
      Sampler sampler = Make(70, params);
      for (int position = 0; position < 50; ++position) {
        const absl::StatusOr<SampledToken> token = sampler.Next(logits, position, {.mask = mask});
        ASSERT_TRUE(token.ok()) << token.status();
        EXPECT_THAT(ids, testing::Contains(token->id));
        if (params.greedy()) {
          EXPECT_EQ(token->id, ids.back());
        }
      }
    }
  }
  // Words of ones, and no mask, change nothing.
  Sampler sampler = Make(70, {});
  const std::vector<uint32_t> all(3, UINT32_MAX);
  for (int position = 0; position < 50; ++position) {
    EXPECT_EQ(sampler.Next(logits, position, {.mask = all})->id, sampler.Next(logits, position)->id);
  }
}

TEST(Sampler, MaskThatLeavesNothingIsAnInternalError) {
  const std::vector<float> logits = {1, 2, 3, -kInf};
  const std::vector<uint32_t> none = {0}, impossible = {0b1000}, second = {0b0010};
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler = Make(4, {.temperature = temperature});
    for (const std::vector<uint32_t>* mask : {&none, &impossible}) {
      const absl::Status status = sampler.Next(logits, 12, {.mask = *mask}).status();
      EXPECT_TRUE(absl::IsInternal(status)) << status;
      EXPECT_THAT(std::string(Message(status)), HasSubstr("position 12: the grammar"));
    }
    // The mask wins over what the request allows, and what is left of both is nothing.
    Sampler allowed = Make(4, {.temperature = temperature, .allowed_token_ids = {0, 2}});
    EXPECT_TRUE(absl::IsInternal(allowed.Next(logits, 12, {.mask = second}).status()));
    EXPECT_TRUE(absl::IsInternal(allowed.Verify(logits, 12, 1, {}, {.mask = second}).status()));
    // Here nothing was left before the mask.
    Sampler stuck = Make(4, {.temperature = temperature, .allowed_token_ids = {3}});
    EXPECT_TRUE(absl::IsInvalidArgument(stuck.Next(logits, 12, {.mask = second}).status()));
    // The samplers are as good as before.
    EXPECT_EQ(sampler.Next(logits, 12, {.mask = second})->id, 1);
    EXPECT_THAT(Token(&allowed, logits), testing::AnyOf(0, 2));
  }
}

TEST(Sampler, ForcedTokenIsTheResult) {
  const std::vector<float> logits = {2, 1, -kInf, 1};
  const std::vector<uint32_t> mask = {0b0001};
  const double log_sum = std::log(std::exp(2.0) + 2 * std::exp(1.0));
  for (const double temperature : {0.0, 1.0}) {
    for (const bool processed : {false, true}) {
      Sampler sampler = Make(4,
                             {.temperature = temperature,
                              .allowed_token_ids = {0},
                              .bad_words = {{3}},
                              .logprobs = 1,
                              .logprobs_processed = processed},
                             {}, {3});
      absl::StatusOr<SampledToken> token = sampler.Next(logits, 4, {.mask = mask, .forced = 3});
      ASSERT_TRUE(token.ok()) << token.status();
      EXPECT_EQ(token->id, 3);
      EXPECT_NEAR(token->logprob, 1 - log_sum, 1e-6);
      EXPECT_EQ(token->rank, 2);
      EXPECT_EQ(token->top[0].id, 0);
      EXPECT_EQ(sampler.Next(logits, 4, {.forced = 2})->logprob, -kInf);
      EXPECT_EQ(sampler.Next(std::vector<float>(4, -kInf), 4, {.forced = 2})->logprob, -kInf);
      EXPECT_TRUE(absl::IsInternal(sampler.Next(logits, 4, {.forced = 4}).status()));
      // A row that is no row is an error all the same.
      EXPECT_TRUE(absl::IsInternal(sampler.Next(std::vector<float>{0, kNaN, 0, 0}, 4, {.forced = 1}).status()));
      EXPECT_EQ(Token(&sampler, logits), 0);
    }
  }
}

// Against a softmax in double. The sum's terms are rounded in the exponent, by 2^-24 of their distance d from the
// largest logit, and in the exponential, by 2^-23. The error of its logarithm is at most the mean of those under p; the
// mean of d is at most the entropy, and that ln(V). The result is then rounded to fp32 once.
TEST(Sampler, PromptLogprobsAreThoseOfASoftmaxInDouble) {
  constexpr size_t kVocab = 10'007;
  for (const float spread : {0.01f, 1.0f, 10.0f}) {
    std::vector<float> logits = LogitsBehind({}, kVocab, 9);
    for (float& l : logits) l = spread * l + 3;
    logits[77] = -kInf;
    double sum = 0;
    const float highest = *std::max_element(logits.begin(), logits.end());
    for (const float l : logits) sum += std::exp(static_cast<double>(l) - highest);
    std::vector<std::pair<float, int32_t>> order;
    for (size_t i = 0; i < kVocab; ++i) order.emplace_back(-logits[i], static_cast<int32_t>(i));
    std::sort(order.begin(), order.end());
    const auto expect = [&](int32_t id, float logprob) {
      const double exact = logits[id] - highest - std::log(sum);
      const double tolerance = std::log(kVocab) * 0x1p-24 + 0x1p-23 + std::abs(exact) * 0x1p-24;
      if (id == 77) {
        EXPECT_EQ(logprob, -kInf);
      } else {
        EXPECT_NEAR(logprob, exact, tolerance) << id;
      }
    };
    Sampler sampler = Make(kVocab, {.logprobs = -1, .prompt_logprobs = 20});
    for (const size_t rank : {size_t{1}, size_t{2}, size_t{20}, size_t{21}, size_t{5000}, kVocab}) {
      const int32_t id = order[rank - 1].second;
      const absl::StatusOr<SampledToken> token = sampler.ReportPrompt(logits, id);
      ASSERT_TRUE(token.ok());
      EXPECT_EQ(token->id, id);
      expect(id, token->logprob);
      EXPECT_EQ(token->rank, 1 + std::count_if(logits.begin(), logits.end(), [&](float l) { return l > logits[id]; }));
      ASSERT_EQ(token->top.size(), 20u);
      for (size_t i = 0; i < 20; ++i) {
        EXPECT_EQ(token->top[i].id, order[i].second);
        expect(order[i].second, token->top[i].logprob);
      }
    }
    logits[5] = kNaN;
    EXPECT_TRUE(absl::IsInternal(sampler.ReportPrompt(logits, 0).status()));
  }
  // None of the likeliest, and a row without a token.
  Sampler none = Make(3, {.prompt_logprobs = 0});
  EXPECT_TRUE(none.ReportPrompt(std::vector<float>{0, 1, 0}, 0)->top.empty());
  EXPECT_EQ(none.ReportPrompt(std::vector<float>(3, -kInf), 0)->logprob, -kInf);
}

TEST(Sampler, RepetitionPenaltyOfAnySizeLeavesNumbers) {
  const std::vector<float> logits = {2, -2, 0, -kInf};
  for (const double penalty : {1e-300, 1e-30, 1e30, 1e300}) {
    Sampler sampler = Make(4, {.temperature = 0, .repetition_penalty = penalty}, {0, 1, 2, 3});
    EXPECT_EQ(Token(&sampler, logits), 0) << penalty;
    Sampler only = Make(4, {.repetition_penalty = penalty, .allowed_token_ids = {1}}, {0, 1, 2, 3});
    EXPECT_EQ(Token(&only, logits), 1) << penalty;
  }
}

TEST(Sampler, ParametersOutOfRangeAreNamed) {
  const std::vector<std::pair<SamplingParams, std::string>> cases = {
      {{.temperature = -0.1}, "temperature"},
      {{.temperature = 2.1}, "temperature"},
      {{.temperature = std::nan("")}, "temperature"},
      {{.top_p = 0}, "top_p"},
      {{.top_p = 1.01}, "top_p"},
      {{.top_p = std::nan("")}, "top_p"},
      {{.top_k = -5}, "top_k"},
      {{.min_p = 2}, "min_p"},
      {{.repetition_penalty = 0}, "repetition_penalty"},
      {{.repetition_penalty = std::nan("")}, "repetition_penalty"},
      {{.repetition_penalty = INFINITY}, "repetition_penalty"},
      {{.presence_penalty = 99}, "presence_penalty"},
      {{.frequency_penalty = -3}, "frequency_penalty"},
      {{.logit_bias = {{10, 1.0f}}}, "logit_bias"},
      {{.logit_bias = {{-1, 1.0f}}}, "logit_bias"},
      {{.logit_bias = {{1, kNaN}}}, "logit_bias"},
      {{.logprobs = 21}, "logprobs"},
      {{.logprobs = -2}, "logprobs"},
      {{.prompt_logprobs = 21}, "prompt_logprobs"},
      {{.prompt_logprobs = -2}, "prompt_logprobs"},
      {{.n = 0}, "n: expected 1 to 128, found 0"},
      {{.n = 129}, "n: expected 1 to 128, found 129"},
      {{.thinking_token_budget = -2}, "thinking_token_budget"},
  };
  for (const auto& [params, name] : cases) {
    const absl::Status status = Sampler::Create(10, params, {}, {}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    EXPECT_THAT(std::string(Message(status)), HasSubstr(name));
  }
}

}  // namespace
}  // namespace hadal::runtime
