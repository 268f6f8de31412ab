// Results as bodies of answers, field by field (spec serving-runtime 5.4, 6.1, 6.6, 6.8).
#include <limits>

#include "serving_fixture.h"

namespace hadal::serving {
namespace {

using runtime::GenerateResult;
using testing::MatchesRegex;
using text::Json;

const std::shared_ptr<const text::Tokenizer>& Vocabulary() { return BundledEngine().tokenizer(); }
int32_t Id(std::string_view token) {
  const std::optional<int32_t> id = Vocabulary()->TokenId(token);
  EXPECT_TRUE(id.has_value()) << token;
  return id.value_or(0);
}

GenerateResult Answer(std::string content) {
  GenerateResult result;
  result.content = std::move(content);
  result.token_ids = {Id("4"), Id("2"), 1};
  result.prompt_tokens = 7;
  return result;
}

Json Build(const Job& job, const std::vector<GenerateResult>& results) {
  return BuildAnswer(job, results, Vocabulary());
}

TEST(BuildChat, EveryField) {
  const Job job = Accepted(Chat("\"model\": \"m\", \"seed\": 1"));
  GenerateResult result = Answer("42");
  result.reasoning = "Ones.";
  result.reasoning_tokens = 2;
  result.cached_tokens = 3;
  Json body = Build(job, {result});
  EXPECT_EQ(body["id"], job.id);
  const auto prompt = static_cast<int64_t>(job.prompts[0].ids.size());
  const Json want = {
      {"id", job.id},
      {"object", "chat.completion"},
      {"created", job.created},
      {"model", "m"},
      {"system_fingerprint", nullptr},
      {"choices",
       Json::array(
           {{{"index", 0},
             {"message",
              {{"role", "assistant"}, {"content", "42"}, {"reasoning_content", "Ones."}, {"reasoning", "Ones."}}},
             {"logprobs", nullptr},
             {"finish_reason", "stop"},
             {"stop_reason", nullptr}}})},
      {"usage",
       {{"prompt_tokens", prompt},
        {"completion_tokens", 3},
        {"total_tokens", prompt + 3},
        {"prompt_tokens_details", {{"cached_tokens", 3}}},
        {"completion_tokens_details", {{"reasoning_tokens", 2}}},
        {"prompt_cache_hit_tokens", 3},
        {"prompt_cache_miss_tokens", prompt - 3}}},
  };
  EXPECT_EQ(body, want) << text::DumpJson(body);
  EXPECT_GT(job.created, 1'600'000'000);
}

TEST(BuildChat, WhatIsThereAndWhatIsNot) {
  const auto message = [](const Job& job, const GenerateResult& result) {
    return Build(job, {result})["choices"][0]["message"];
  };
  GenerateResult result = Answer("42");
  result.reasoning = "Ones.";
  EXPECT_EQ(message(Accepted(Chat("\"include_reasoning\": false")), result),
            Json({{"role", "assistant"}, {"content", "42"}}));
  EXPECT_EQ(message(Accepted(Chat("")), Answer("")), Json({{"role", "assistant"}, {"content", ""}}));
  result = Answer("42");
  result.stop_string = "END";
  const Job with_stop = Accepted(Chat("\"stop\": \"END\", \"include_stop_str_in_output\": true"));
  EXPECT_EQ(message(with_stop, result)["content"], "42END");
  EXPECT_EQ(Build(with_stop, {result})["choices"][0]["stop_reason"], "END");
  EXPECT_EQ(message(Accepted(Chat("\"stop\": \"END\"")), result)["content"], "42");
  result = Answer("42");
  result.stop_token = 0;
  EXPECT_EQ(Build(Accepted(Chat("")), {result})["choices"][0]["stop_reason"], 0);
  result.finish_reason = runtime::FinishReason::kCancelled;
  EXPECT_EQ(Build(Accepted(Chat("")), {result})["choices"][0]["finish_reason"], "abort");
  result.finish_reason = runtime::FinishReason::kLength;
  EXPECT_EQ(Build(Accepted(Chat("")), {result})["choices"][0]["finish_reason"], "length");
}

TEST(BuildChat, ToolCalls) {
  const char* const tools = R"("tools": [{"type": "function", "function": {"name": "add"}}])";
  GenerateResult result = Answer("");
  result.finish_reason = runtime::FinishReason::kToolCalls;
  result.tool_calls = {{"add", "{\"a\": 1}", 0}, {"add", "{}", 1}};
  Json choice = Build(Accepted(Chat(tools)), {result})["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  Json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_THAT(calls[0]["id"].get<std::string>(), MatchesRegex("call_[0-9a-f]{24,}"));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
  calls[0].erase("id");
  EXPECT_EQ(calls[0], Json({{"type", "function"}, {"function", {{"name", "add"}, {"arguments", "{\"a\": 1}"}}}}));
  result.content = "Let me see.";
  const Job one = Accepted(Chat(fmt::format("{}, \"parallel_tool_calls\": false", tools)));
  choice = Build(one, {result})["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(choice["message"]["content"], "Let me see.");
}

TEST(BuildChat, Logprobs) {
  const float nothing = -std::numeric_limits<float>::infinity();
  const int32_t broken = 0;
  GenerateResult result = Answer("42");
  const int32_t four = Id("4"), two = Id("2");
  result.logprobs = {{four, -0.5f, {{four, -0.5f}, {two, -1.5f}}}, {two, nothing, {{four, 0.0f}, {two, nothing}}}};
  result.prompt_logprobs = {{two, -2.0f, {{four, -0.25f}, {two, -2.0f}}},
                            {two, -9.0f, {{four, -0.25f}, {broken, -1.0f}}}};
  const Json body = Build(
      Accepted(Chat("\"logprobs\": true, \"top_logprobs\": 2, \"prompt_logprobs\": 2, \"return_token_ids\": true")),
      {result});
  const Json& content = body["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  const Json first = {{"token", "4"}, {"logprob", -0.5}, {"bytes", {52}}};
  const Json second = {{"token", "2"}, {"logprob", -1.5}, {"bytes", {50}}};
  Json want = first;
  want["top_logprobs"] = {first, second};
  EXPECT_EQ(content[0], want);
  EXPECT_EQ(content[1]["logprob"], -9999.0);
  EXPECT_EQ(content[1]["top_logprobs"][1]["logprob"], -9999.0);
  const Json& prompt = body["prompt_logprobs"];
  ASSERT_EQ(prompt.size(), 3u);
  EXPECT_TRUE(prompt[0].is_null());
  const std::string two_key = std::to_string(two);
  EXPECT_EQ(prompt[1].size(), 2u);
  EXPECT_EQ(prompt[1][two_key], Json({{"logprob", -2.0}, {"rank", 2}, {"decoded_token", "2"}}));
  EXPECT_EQ(prompt[2].size(), 3u);
  EXPECT_EQ(prompt[2][two_key], Json({{"logprob", -9.0}, {"rank", nullptr}, {"decoded_token", "2"}}));
  EXPECT_EQ(body["choices"][0]["token_ids"], Json({four, two, 1}));
  EXPECT_EQ(body["prompt_token_ids"][0], 0);
  // Asked for without the likeliest.
  const Json bare = Build(Accepted(Chat("\"logprobs\": true")), {result});
  EXPECT_FALSE(bare.contains("prompt_logprobs"));
  EXPECT_TRUE(Build(Accepted(Chat("")), {result})["choices"][0]["logprobs"].is_null());
}

TEST(BuildChat, SeveralAnswersShareThePromptInUsage) {
  const Job job = Accepted(Chat("\"n\": 2, \"temperature\": 1"));
  GenerateResult second = Answer("43");
  second.cached_tokens = 5;
  Json body = Build(job, {Answer("42"), second});
  EXPECT_EQ(body["choices"][1]["message"]["content"], "43");
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["usage"]["prompt_tokens"], job.prompts[0].ids.size());
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  body = Build(Accepted(Chat("\"n\": 3, \"temperature\": 0")), {Answer("42")});
  EXPECT_EQ(body["choices"].size(), 3u);
  EXPECT_EQ(body["choices"][2]["message"]["content"], "42");
  EXPECT_EQ(body["choices"][2]["index"], 2);
  EXPECT_EQ(body["usage"]["completion_tokens"], 9);
}

TEST(BuildCompletion, EveryField) {
  const Job job = Accepted(Prompt("[[65, 66], [67]]", "\"model\": \"m\""));
  const Json body = Build(job, {Answer("a"), Answer("b")});
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_THAT(body["id"].get<std::string>(), MatchesRegex("cmpl-[0-9a-f]{32}"));
  EXPECT_EQ(
      body["choices"][1],
      Json({{"index", 1}, {"text", "b"}, {"logprobs", nullptr}, {"finish_reason", "stop"}, {"stop_reason", nullptr}}));
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
}

TEST(BuildCompletion, EchoAndLegacyLogprobs) {
  const int32_t four = Id("4"), two = Id("2");
  const Job job = Accepted(Prompt(fmt::format("[{}, {}]", two, four), "\"echo\": true, \"logprobs\": 1"));
  GenerateResult result = Answer("42");
  result.prompt_logprobs = {{four, -0.5f, {{two, -0.25f}}}};
  result.logprobs = {{four, -0.125f, {{four, -0.125f}}},
                     {two, -std::numeric_limits<float>::infinity(), {{four, 0.0f}}}};
  const Json choice = Build(job, {result})["choices"][0];
  EXPECT_EQ(choice["text"], "2442");
  EXPECT_EQ(choice["logprobs"],
            Json({{"tokens", {"2", "4", "4", "2"}},
                  {"token_logprobs", {nullptr, -0.5, -0.125, -9999.0}},
                  {"top_logprobs", Json::array({nullptr, Json({{"2", -0.25}, {"4", -0.5}}), Json({{"4", -0.125}}),
                                                Json({{"4", 0.0}, {"2", -9999.0}})})},
                  {"text_offset", {0, 1, 2, 3}}}));
  EXPECT_FALSE(choice.contains("prompt_logprobs"));
}

// A character of several tokens: each is part of it, and the text counts it once.
TEST(BuildCompletion, TokensInsideACharacter) {
  const std::vector<int32_t> ids = Vocabulary()->Encode("🦊a");
  ASSERT_GT(ids.size(), 2u);
  GenerateResult result;
  result.content = "🦊a";
  result.token_ids = ids;
  for (const int32_t id : ids) result.logprobs.push_back({id, -1.0f, {}});
  const Json completion = Build(Accepted(Prompt("\"x\"", "\"logprobs\": 0")), {result})["choices"][0]["logprobs"];
  EXPECT_EQ(completion["text_offset"].back(), 1);
  EXPECT_EQ(completion["tokens"].back(), "a");
  const Json chat = Build(Accepted(Chat("\"logprobs\": true")), {result})["choices"][0]["logprobs"]["content"];
  std::string bytes;
  for (const Json& token : chat) {
    for (const Json& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(bytes, "🦊a");
}

TEST(ErrorBody, StatusTypeParamAndCode) {
  const auto error = [](const absl::Status& status) { return ErrorBody(status)["error"]; };
  EXPECT_EQ(error(InvalidArgument("messages[0].role: expected x")), Json({{"message", "messages[0].role: expected x"},
                                                                          {"type", "BadRequestError"},
                                                                          {"param", "messages[0].role"},
                                                                          {"code", 400}}));
  EXPECT_TRUE(error(InvalidArgument("Expected this: that"))["param"].is_null());
  EXPECT_TRUE(error(InvalidArgument("no colon"))["param"].is_null());
  EXPECT_EQ(error(absl::InternalError("x"))["type"], "InternalServerError");
  EXPECT_EQ(error(absl::InternalError("x"))["code"], 500);
  EXPECT_EQ(HttpStatus(absl::UnavailableError("")), 429);
  EXPECT_EQ(HttpStatus(absl::ResourceExhaustedError("")), 400);
  EXPECT_EQ(HttpStatus(absl::FailedPreconditionError("")), 400);
  EXPECT_EQ(HttpStatus(absl::NotFoundError("")), 404);
  EXPECT_EQ(HttpStatus(absl::OkStatus()), 200);
  EXPECT_EQ(ErrorBody(501, "no", "a", "b")["error"]["type"], "NotImplementedError");
}

}  // namespace
}  // namespace hadal::serving
