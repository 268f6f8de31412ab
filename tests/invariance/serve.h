// Serves requests on an engine and keeps what has to be the same however they are served.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine.h"

namespace hadal::test {

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(value.status().ToString());
  return *std::move(value);
}

// What has to be the same.
struct Answer {
  std::vector<int32_t> ids;
  std::vector<std::vector<std::pair<int32_t, float>>> logprobs;  // the token, then the likeliest
  std::string content, reasoning;
  runtime::FinishReason reason = runtime::FinishReason::kStop;

  bool operator==(const Answer&) const = default;
};

inline Answer AnswerOf(const runtime::GenerateResult& result) {
  Answer answer = {result.token_ids, {}, result.content, result.reasoning, result.finish_reason};
  for (const runtime::TokenStep& step : result.logprobs) {
    auto& row = answer.logprobs.emplace_back();
    row.emplace_back(step.id, step.logprob);
    for (const runtime::TokenLogprob& top : step.top) row.emplace_back(top.id, top.logprob);
  }
  return answer;
}

// Serves the chosen requests, submitted in that order; all must end well and leave the cache as it was. `cached` takes
// their cached tokens.
inline std::vector<Answer> Serve(runtime::Engine* engine, const std::vector<runtime::GenerateRequest>& requests,
                                 const std::vector<size_t>& order, int64_t* cached = nullptr) {
  std::vector<Answer> answers(requests.size());
  size_t done = 0;
  for (const size_t i : order) {
    runtime::RequestCallbacks callbacks;
    callbacks.on_events = [](const auto&) { return true; };
    callbacks.on_done = [&, i](absl::StatusOr<runtime::GenerateResult> result) {
      ASSERT_TRUE(result.ok()) << result.status();
      answers[i] = AnswerOf(*result);
      if (cached != nullptr) *cached += result->cached_tokens;
      ++done;
    };
    Value(engine->executor().Submit(requests[i], std::move(callbacks)));
  }
  while (engine->executor().Step()) {
  }
  EXPECT_EQ(done, order.size());
  EXPECT_EQ(engine->executor().cache().available(), engine->executor().cache().slabs());
  EXPECT_TRUE(engine->executor().cache().Consistent());
  return answers;
}

inline std::vector<size_t> All(size_t count) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  return order;
}

inline void ExpectSame(const std::vector<Answer>& got, const std::vector<Answer>& want,
                       const std::vector<size_t>& order, const std::string& what) {
  for (const size_t i : order) {
    EXPECT_EQ(got[i].ids, want[i].ids) << what << ", request " << i;
    EXPECT_TRUE(got[i] == want[i]) << what << ", request " << i << ": other log-probabilities or text";
  }
}

// From now on each step preempts every running request with a chance of 1 in `one_in`.
inline void PreemptAtRandom(runtime::Engine* engine, uint32_t seed, uint32_t one_in) {
  engine->executor().SetPreemptionSource([random = std::mt19937(seed), one_in](const auto& running) mutable {
    std::vector<int64_t> some;
    for (const int64_t id : running) {
      if (random() % one_in == 0) some.push_back(id);
    }
    return some;
  });
}

}  // namespace hadal::test
