#include "runtime/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "fake_model.h"
#include "support/paths.h"

namespace hadal::runtime {
namespace {

using test::FakeModel;
using testing::HasSubstr;
using text::OutputEvent;

constexpr int64_t kVocab = 1280;

std::shared_ptr<const text::Tokenizer> Tokens() {
  static const auto tokenizer = text::Tokenizer::Load(test::BundledModel());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

std::vector<int32_t> Encode(std::string_view text) { return Tokens()->Encode(text, text::Tokenizer::Special::kMatch); }

// A model that answers a prompt of `prompt` tokens with `answer`.
FakeModel::Script Answer(size_t prompt, std::string_view answer) {
  return [prompt, ids = Encode(answer)](const std::vector<int32_t>& tokens) {
    const size_t i = tokens.size() - prompt;
    return i < ids.size() ? ids[i] : 5;
  };
}

bool IgnoreEvents(const std::vector<OutputEvent>&) { return true; }

GenerateRequest Request(std::vector<int32_t> prompt, int64_t max_tokens) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  request.end_tokens = {1};
  return request;
}

absl::StatusOr<GenerateResult> Generate(FakeModel* model, const GenerateRequest& request, OnEvents on_events,
                                        const std::atomic<bool>* cancel = nullptr) {
  Executor executor(model, Tokens(), {}, {});
  return Generator(&executor).Generate(request, on_events, cancel);
}
absl::StatusOr<GenerateResult> Generate(FakeModel* model, const GenerateRequest& request) {
  return Generate(model, request, IgnoreEvents);
}

models::ModelLimits Limits(int64_t context = 4096, int64_t batch = 64) {
  return {.max_seqs = 1, .max_context = context, .max_batch_tokens = batch};
}

TEST(Generator, TokensDoNotDependOnTheChunkSize) {
  for (const int length : {1, 3, 4, 5, 63, 64, 65, 127, 128, 129, 130, 255, 257, 511, 513}) {
    std::vector<int32_t> prompt(static_cast<size_t>(length));
    for (int i = 0; i < length; ++i) prompt[i] = 3 + (i * 7) % 900;
    for (const double temperature : {0.0, 1.0}) {
      std::vector<int32_t> want;
      for (const int64_t batch : {int64_t{1024}, int64_t{512}, int64_t{64}, int64_t{7}, int64_t{1}}) {
        FakeModel model(kVocab, Limits(4096, batch));
        GenerateRequest request = Request(prompt, 20);
        request.sampling.temperature = temperature;
        request.sampling.seed = 3;
        request.ignore_end = true;
        const absl::StatusOr<GenerateResult> result = Generate(&model, request);
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_EQ(model.steps, (length + batch - 1) / batch + 19);
        if (want.empty()) want = result->token_ids;
        EXPECT_EQ(result->token_ids, want) << length << " in chunks of " << batch;
        EXPECT_EQ(want.size(), 20u);
      }
    }
  }
}

TEST(Generator, EndTokenStops) {
  FakeModel model(kVocab, Limits(), Answer(2, "hello there<｜end▁of▁sentence｜>never"));
  const absl::StatusOr<GenerateResult> result = Generate(&model, Request({0, 7}, 100));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->content, "hello there");
  EXPECT_EQ(result->finish_reason, FinishReason::kStop);
  EXPECT_EQ(result->token_ids.back(), 1);
  EXPECT_EQ(result->prompt_tokens, 2);
  EXPECT_EQ(result->token_ids, Encode("hello there<｜end▁of▁sentence｜>"));
}

TEST(Generator, IgnoreEndGoesOn) {
  FakeModel model(kVocab, Limits(), Answer(1, "a<｜end▁of▁sentence｜>b"));
  GenerateRequest request = Request({0}, 3);
  request.ignore_end = true;
  const absl::StatusOr<GenerateResult> result = Generate(&model, request);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->content, "a<｜end▁of▁sentence｜>b");
  EXPECT_EQ(result->finish_reason, FinishReason::kLength);
}

TEST(Generator, MaxTokensStops) {
  FakeModel model(kVocab, Limits());
  GenerateRequest request = Request({0, 7}, 5);
  request.ignore_end = true;
  const absl::StatusOr<GenerateResult> result = Generate(&model, request);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->token_ids.size(), 5u);
  EXPECT_EQ(result->finish_reason, FinishReason::kLength);
  // The last token is not run through the model.
  EXPECT_EQ(model.tokens().size(), 2u + 4u);
}

// Field report B109: default and huge lengths end at the context.
TEST(Generator, ContextEndStops) {
  for (const int64_t max_tokens : {int64_t{0}, int64_t{1000000000}, std::numeric_limits<int64_t>::max()}) {
    FakeModel model(kVocab, Limits(16));
    GenerateRequest request = Request({0, 7, 8}, max_tokens);
    request.ignore_end = true;
    const absl::StatusOr<GenerateResult> result = Generate(&model, request);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->token_ids.size(), 13u);
    EXPECT_EQ(result->finish_reason, FinishReason::kLength);
  }
}

TEST(Generator, PromptLengthsAtTheEdge) {
  for (const size_t length : {size_t{15}, size_t{16}, size_t{17}}) {
    FakeModel model(kVocab, Limits(16));
    GenerateRequest request = Request(std::vector<int32_t>(length, 7), 0);
    request.ignore_end = true;
    const absl::StatusOr<GenerateResult> result = Generate(&model, request);
    if (length == 15) {
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->token_ids.size(), 1u);
      continue;
    }
    ASSERT_TRUE(absl::IsInvalidArgument(result.status()));
    EXPECT_THAT(std::string(Message(result.status())), HasSubstr(fmt::format("{} tokens, the context 16", length)));
    EXPECT_EQ(model.steps, 0);
  }
}

TEST(Generator, BadRequestsAreRefusedBeforeAnythingRuns) {
  FakeModel model(kVocab, Limits());
  EXPECT_TRUE(absl::IsInvalidArgument(Generate(&model, Request({}, 5)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Generate(&model, Request({-1}, 5)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Generate(&model, Request({1280}, 5)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Generate(&model, Request({1}, -1)).status()));
  GenerateRequest stop = Request({1}, 5);
  stop.stop = {""};
  EXPECT_TRUE(absl::IsInvalidArgument(Generate(&model, stop).status()));
  GenerateRequest sampling = Request({1}, 5);
  sampling.sampling.top_p = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(Generate(&model, sampling).status()));
  Executor executor(&model, Tokens(), ImageTokenIds{1279, 1272}, {});
  Generator with_tokens(&executor);
  for (const int32_t id : {1272, 1276, 1279}) {
    const absl::Status image = with_tokens.Generate(Request({0, id}, 5), IgnoreEvents).status();
    EXPECT_TRUE(absl::IsInvalidArgument(image)) << image;
    EXPECT_THAT(std::string(Message(image)), HasSubstr("no image was given for it"));
  }
  GenerateRequest misplaced = Request({0, 1, 2}, 5);
  misplaced.images = {{nullptr, {7, 4}}};
  EXPECT_TRUE(absl::IsInvalidArgument(with_tokens.Generate(misplaced, IgnoreEvents).status()));
  misplaced.images = {{nullptr, {0, 2}}};
  EXPECT_TRUE(absl::IsFailedPrecondition(Generate(&model, misplaced, IgnoreEvents).status()));
  EXPECT_EQ(model.steps, 0);
}

TEST(Generator, NothingEndsAnAnswerBeforeMinTokens) {
  FakeModel model(kVocab, Limits(), Answer(1, "one two three two four<｜end▁of▁sentence｜>"));
  GenerateRequest request = Request({0}, 100);
  request.stop = {"two"};
  EXPECT_EQ(Generate(&model, request)->content, "one ");
  const size_t tokens = Encode("one two three").size();
  request.sampling.min_tokens = static_cast<int64_t>(tokens);
  const auto later = Generate(&model, request);
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(later->content, "one two three ");
  EXPECT_EQ(later->stop_string, "two");
  // The end token comes no earlier either: the model wants it and gets something else.
  request.stop.clear();
  request.sampling.min_tokens = 30;
  const auto longer = Generate(&model, request);
  ASSERT_TRUE(longer.ok());
  EXPECT_GE(longer->token_ids.size(), 30u);
}

TEST(Generator, StopTokensEndTheAnswer) {
  FakeModel model(kVocab, Limits(), Answer(1, "one two three<｜end▁of▁sentence｜>"));
  GenerateRequest request = Request({0}, 100);
  const std::vector<int32_t> ids = Encode("one two three");
  request.sampling.stop_token_ids = {ids[ids.size() - 2], 7};
  const auto result = Generate(&model, request);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->finish_reason, FinishReason::kStop);
  EXPECT_EQ(result->stop_token, ids[ids.size() - 2]);
  EXPECT_EQ(result->token_ids, std::vector<int32_t>(ids.begin(), ids.end() - 1));
  EXPECT_EQ(Generate(&model, Request({0}, 100))->stop_token, -1);
}

TEST(Generator, BadWordsAtTheStartAndBehindASpace) {
  const auto words = BadWordTokens(*Tokens(), {"two"});
  ASSERT_EQ(words.size(), 2u);
  EXPECT_EQ(words[0], Tokens()->Encode("two", text::Tokenizer::Special::kPlain));
  EXPECT_EQ(words[1], Tokens()->Encode(" two", text::Tokenizer::Special::kPlain));
  FakeModel model(kVocab, Limits(), Answer(1, "one two three<｜end▁of▁sentence｜>"));
  GenerateRequest request = Request({0}, 6);
  request.sampling.bad_words = words;
  const auto result = Generate(&model, request);
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->content, testing::Not(HasSubstr("two")));
}

TEST(Generator, StopStringsCutTheTextAndHoldItBack) {
  FakeModel model(kVocab, Limits(), Answer(1, "one two three four<｜end▁of▁sentence｜>"));
  GenerateRequest request = Request({0}, 100);
  request.stop = {"two t", "zzz"};
  std::string streamed;
  const absl::StatusOr<GenerateResult> result = Generate(&model, request, [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) streamed += event.text;
    EXPECT_TRUE(std::string_view("one ").starts_with(streamed));
    return true;
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->content, "one ");
  EXPECT_EQ(streamed, "one ");
  EXPECT_EQ(result->stop_string, "two t");
  EXPECT_EQ(result->finish_reason, FinishReason::kStop);
}

TEST(Generator, HeldTextComesAtTheEnd) {
  FakeModel model(kVocab, Limits(), Answer(1, "the EN<｜end▁of▁sentence｜>"));
  GenerateRequest request = Request({0}, 100);
  request.stop = {"END"};
  const absl::StatusOr<GenerateResult> result = Generate(&model, request);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->content, "the EN");
  EXPECT_EQ(result->stop_string, "");
}

TEST(Generator, StreamIsTheTextAndNeverEndsInsideACharacter) {
  const std::string answer = "👋🏽 ďábelské 社区";
  FakeModel model(kVocab, Limits(), Answer(1, answer + "<｜end▁of▁sentence｜>"));
  for (const bool parse : {false, true}) {
    GenerateRequest request = Request({0}, 100);
    if (parse) request.parser.emplace();
    std::string streamed;
    const absl::StatusOr<GenerateResult> result =
        Generate(&model, request, [&](const std::vector<OutputEvent>& events) {
          for (const OutputEvent& event : events) streamed += event.text;
          EXPECT_TRUE(std::string_view(answer).starts_with(streamed));
          return true;
        });
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(streamed, answer);
    EXPECT_EQ(result->content, answer);
    EXPECT_GT(result->token_ids.size(), 10u);
  }
}

// Field report B11: cut inside a character by max_tokens.
TEST(Generator, TruncationInsideACharacterDropsIt) {
  FakeModel model(kVocab, Limits(), Answer(1, "a👋"));
  for (const bool parse : {false, true}) {
    GenerateRequest request = Request({0}, 3);
    if (parse) request.parser.emplace();
    const absl::StatusOr<GenerateResult> result = Generate(&model, request);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->content, "a");
  }
}

TEST(Generator, ReasoningAndContentAreTakenApart) {
  FakeModel model(kVocab, Limits(), Answer(1, "I think so.</think>Yes.<｜end▁of▁sentence｜>"));
  GenerateRequest request = Request({0}, 100);
  request.parser.emplace();
  request.parser->starts_in_reasoning = true;
  request.stop = {"think"};  // stop strings are for visible content
  const absl::StatusOr<GenerateResult> result = Generate(&model, request);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->reasoning, "I think so.");
  EXPECT_EQ(result->content, "Yes.");
  EXPECT_EQ(result->reasoning_tokens, static_cast<int64_t>(Encode("I think so.</think>").size()));
  EXPECT_EQ(result->finish_reason, FinishReason::kStop);
}

// Robustness 34: cut before the reasoning has ended, all of the answer is reasoning.
TEST(Generator, ReasoningThatNeverEndsIsAllReasoning) {
  FakeModel model(kVocab, Limits(), Answer(1, "on and on and on and on and on and on and on and on and on and on"));
  GenerateRequest request = Request({0}, 12);
  request.parser.emplace();
  request.parser->starts_in_reasoning = true;
  std::string streamed;
  const absl::StatusOr<GenerateResult> result = Generate(&model, request, [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      EXPECT_EQ(event.kind, OutputEvent::Kind::kReasoning);
      streamed += event.text;
    }
    return true;
  });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->finish_reason, FinishReason::kLength);
  EXPECT_EQ(result->content, "");
  EXPECT_EQ(result->reasoning, streamed);
  EXPECT_NE(streamed, "");
  EXPECT_EQ(result->token_ids.size(), 12u);
  EXPECT_EQ(result->reasoning_tokens, 12);
}

TEST(Generator, ToolCallsAreReported) {
  FakeModel model(kVocab, Limits(),
                  Answer(1,
                         "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"add\">\n<｜DSML｜parameter name=\"a\" "
                         "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
                         "<｜end▁of▁sentence｜>"));
  GenerateRequest request = Request({0}, 200);
  request.parser.emplace();
  const absl::StatusOr<GenerateResult> result = Generate(&model, request);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->tool_calls.size(), 1u);
  EXPECT_EQ(result->tool_calls[0].name, "add");
  EXPECT_EQ(result->tool_calls[0].arguments, "{\"a\": 1}");
  EXPECT_EQ(result->finish_reason, FinishReason::kToolCalls);
  EXPECT_EQ(result->content, "");
}

TEST(Generator, CallbackAndFlagCancel) {
  FakeModel model(kVocab, Limits());
  GenerateRequest request = Request({0, 5, 6}, 100);
  request.ignore_end = true;
  int calls = 0;
  absl::StatusOr<GenerateResult> result = Generate(&model, request, [&](const auto&) { return ++calls < 4; });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(result->token_ids.size(), 4u);
  std::atomic<bool> cancel{true};
  result = Generate(&model, request, IgnoreEvents, &cancel);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(result->token_ids.empty());
}

TEST(Generator, LogitsThatAreNotFiniteEndTheRequestWithAnError) {
  FakeModel model(kVocab, Limits());
  model.poison = std::numeric_limits<float>::quiet_NaN();
  model.poison_after = 5;
  GenerateRequest request = Request({0, 5}, 100);
  request.ignore_end = true;
  const absl::StatusOr<GenerateResult> result = Generate(&model, request);
  ASSERT_TRUE(absl::IsInternal(result.status()));
  EXPECT_THAT(std::string(Message(result.status())), HasSubstr("position 5"));
}

TEST(Generator, LogprobsComeWithEveryToken) {
  FakeModel model(kVocab, Limits());
  GenerateRequest request = Request({0, 5}, 6);
  request.ignore_end = true;
  request.sampling.logprobs = 2;
  const absl::StatusOr<GenerateResult> result = Generate(&model, request);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->logprobs.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(result->logprobs[i].id, result->token_ids[i]);
    ASSERT_EQ(result->logprobs[i].top.size(), 2u);
    EXPECT_EQ(result->logprobs[i].top[0].id, result->token_ids[i]);
    EXPECT_EQ(result->logprobs[i].top[0].logprob, result->logprobs[i].logprob);
    EXPECT_LT(result->logprobs[i].logprob, 0);
  }
}

TEST(Generator, PenaltiesSeePromptAndOutput) {
  // The script always wants token 5, whose logit halved is below the best of the others.
  FakeModel model(kVocab, Limits(), [](const auto&) { return 5; });
  model.wanted_logit = 5;
  for (const bool in_prompt : {false, true}) {
    GenerateRequest request = Request(in_prompt ? std::vector<int32_t>{0, 5} : std::vector<int32_t>{0, 6}, 2);
    request.sampling.repetition_penalty = 2;
    request.ignore_end = true;
    const absl::StatusOr<GenerateResult> result = Generate(&model, request);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->token_ids[0] == 5, !in_prompt);
    EXPECT_NE(result->token_ids[1], 5);
  }
}

}  // namespace
}  // namespace hadal::runtime
