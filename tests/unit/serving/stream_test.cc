// Chunks of streamed answers, from deltas made by hand: what the tests of the server cannot bring about.
#include "serving/openai/stream.h"

#include <utility>

#include "serving/openai/tokenize.h"
#include "serving_fixture.h"

namespace hadal::serving {
namespace {

using runtime::GenerateResult;
using text::Json;
using text::OutputEvent;
using Kind = OutputEvent::Kind;

const std::shared_ptr<const text::Tokenizer>& Vocabulary() { return BundledEngine().tokenizer(); }

// The choices of frames; every frame is a chunk of one choice.
std::vector<Json> ChoicesOf(const std::vector<StreamFrame>& frames) {
  std::vector<Json> choices;
  for (const StreamFrame& frame : frames) {
    EXPECT_EQ(frame.event, "");
    EXPECT_EQ(frame.data.find('\n'), std::string::npos);
    const Json body = Body(frame.data);
    EXPECT_EQ(body["choices"].size(), 1u) << frame.data;
    choices.push_back(body["choices"][0]);
  }
  return choices;
}

std::vector<Json> DeltasOf(const std::vector<StreamFrame>& frames) {
  std::vector<Json> deltas;
  for (const Json& choice : ChoicesOf(frames)) deltas.push_back(choice["delta"]);
  return deltas;
}

StreamDelta Tokens(std::vector<int32_t> ids, std::vector<OutputEvent> events = {}) {
  StreamDelta delta;
  for (const int32_t id : ids) delta.tokens.push_back({.id = id, .logprob = -1});
  delta.events = std::move(events);
  return delta;
}

TEST(ChatStream, EventsInTheirOrder) {
  const Job job = Accepted(Chat(R"("tools": [{"type": "function", "function": {"name": "f"}}], "stream": true)"));
  const auto encoder = MakeOpenAiStream(job, Vocabulary());
  EXPECT_EQ(DeltasOf(encoder->Begin()), std::vector<Json>({Json({{"role", "assistant"}, {"content", ""}})}));
  const std::vector<Json> deltas = DeltasOf(encoder->Add(0, Tokens({5, 6}, {{Kind::kReasoning, "why"},
                                                                            {Kind::kContent, "so"},
                                                                            {Kind::kCallBegin, "f", 0},
                                                                            {Kind::kCallArguments, "{\"a\":", 0},
                                                                            {Kind::kCallArguments, " 1}", 0},
                                                                            {Kind::kCallEnd, "", 0, true}})));
  ASSERT_EQ(deltas.size(), 5u);
  EXPECT_EQ(deltas[0], Json({{"reasoning_content", "why"}, {"reasoning", "why"}}));
  EXPECT_EQ(deltas[1], Json({{"content", "so"}}));
  const Json& call = deltas[2]["tool_calls"][0];
  EXPECT_EQ(call["index"], 0);
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"], Json({{"name", "f"}, {"arguments", ""}}));
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(deltas[4], Json({{"tool_calls", Json::array({{{"index", 0}, {"function", {{"arguments", " 1}"}}}}})}}));
  EXPECT_EQ(encoder->Add(0, Tokens({7})).size(), 0u) << "a token without text says nothing";

  GenerateResult result;
  result.finish_reason = runtime::FinishReason::kToolCalls;
  const std::vector<Json> last = ChoicesOf(encoder->Finish(0, result));
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0]["delta"], Json::object());
  EXPECT_EQ(last[0]["finish_reason"], "tool_calls");
  const std::vector<StreamFrame> end = encoder->End();
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end[0].data, "[DONE]");
}

TEST(ChatStream, OneCallWhereOneIsAskedFor) {
  const Job job = Accepted(Chat(
      R"("tools": [{"type": "function", "function": {"name": "f"}}], "stream": true, "parallel_tool_calls": false)"));
  const auto encoder = MakeOpenAiStream(job, Vocabulary());
  const StreamDelta delta = Tokens({}, {{Kind::kCallBegin, "f", 0},
                                        {Kind::kCallEnd, "", 0, true},
                                        {Kind::kCallBegin, "f", 1},
                                        {Kind::kCallArguments, "{}", 1}});
  EXPECT_EQ(encoder->Add(0, delta).size(), 1u);
}

TEST(ChatStream, EveryTokenIsToldOf) {
  const Job job = Accepted(Chat(R"("stream": true, "logprobs": true, "top_logprobs": 0, "return_token_ids": true)"));
  const auto encoder = MakeOpenAiStream(job, Vocabulary());
  EXPECT_EQ(ChoicesOf(encoder->Begin())[0]["prompt_token_ids"], Json(job.prompts[0].ids));
  std::vector<int32_t> ids;
  const auto take = [&](const std::vector<StreamFrame>& frames) {
    for (const Json& choice : ChoicesOf(frames)) {
      if (!choice.contains("token_ids")) continue;
      EXPECT_EQ(choice["logprobs"]["content"].size(), choice["token_ids"].size());
      for (const Json& id : choice["token_ids"]) ids.push_back(id);
    }
  };
  take(encoder->Add(0, Tokens({5})));  // held back text
  EXPECT_EQ(ids.size(), 0u);
  take(encoder->Add(0, Tokens({6}, {{Kind::kContent, "ab"}})));
  EXPECT_EQ(ids, std::vector<int32_t>({5, 6}));
  // Those behind an end have none ever: they do not pile up.
  for (int32_t id = 7; id < 60; ++id) take(encoder->Add(0, Tokens({id})));
  EXPECT_GT(ids.size(), 30u);
  take(encoder->Finish(0, GenerateResult()));
  ASSERT_EQ(ids.size(), 55u);
  for (int32_t i = 0; i < 55; ++i) EXPECT_EQ(ids[i], 5 + i);
}

TEST(ChatStream, CopiesOfAGreedyAnswer) {
  const Job job = Accepted(Chat(R"("stream": true, "n": 3, "temperature": 0)"));
  ASSERT_EQ(job.requests.size(), 1u);
  const auto encoder = MakeOpenAiStream(job, Vocabulary());
  EXPECT_EQ(encoder->Begin().size(), 3u);
  const std::vector<Json> choices = ChoicesOf(encoder->Add(0, Tokens({5}, {{Kind::kContent, "a"}})));
  ASSERT_EQ(choices.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(choices[i]["index"], i);
}

TEST(ChatStream, UsageIsThatOfTheWholeAnswer) {
  const Job job = Accepted(Chat(R"("stream": true, "stream_options": {"include_usage": true})"));
  const auto encoder = MakeOpenAiStream(job, Vocabulary());
  EXPECT_EQ(Body(encoder->Begin()[0].data)["usage"], nullptr);
  encoder->Add(0, Tokens({5, 6, 1}));
  GenerateResult result;
  result.token_ids = {5, 6, 1};
  result.cached_tokens = 4;
  result.reasoning_tokens = 2;
  result.draft_tokens = 3;
  result.accepted_tokens = 1;
  encoder->Finish(0, result);
  const Json last = Body(encoder->End()[0].data);
  EXPECT_EQ(last["choices"], Json::array());
  EXPECT_EQ(last["usage"], BuildAnswer(job, {result}, Vocabulary())["usage"]);
}

TEST(ChatStream, AFaultIsSaid) {
  const Job job = Accepted(Chat("\"stream\": true"));
  const auto encoder = MakeOpenAiStream(job, Vocabulary());
  const std::vector<StreamFrame> frames = encoder->Fail(absl::InternalError("broken"));
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(Body(frames[0].data)["error"]["message"], "broken");
  EXPECT_EQ(Body(frames[0].data)["error"]["code"], 500);
  EXPECT_EQ(frames[1].data, "[DONE]");
}

TEST(CompletionStream, TextAndColumns) {
  const Job job = Accepted(Prompt("\"Once\"", R"("stream": true, "logprobs": 1)"));
  const auto encoder = MakeOpenAiStream(job, Vocabulary());
  EXPECT_TRUE(encoder->Begin().empty());
  const std::vector<int32_t> ids = Vocabulary()->Encode("ab cd");
  ASSERT_GE(ids.size(), 2u);
  const std::vector<Json> choices = ChoicesOf(encoder->Add(0, Tokens(ids, {{Kind::kContent, "ab cd"}})));
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_EQ(choices[0]["text"], "ab cd");
  EXPECT_EQ(choices[0]["logprobs"]["tokens"].size(), ids.size());
  EXPECT_EQ(choices[0]["logprobs"]["text_offset"][0], 0);
  // Offsets go on in the next chunk.
  const std::vector<Json> next = ChoicesOf(encoder->Add(0, Tokens({ids[0]}, {{Kind::kContent, "x"}})));
  EXPECT_EQ(next[0]["logprobs"]["text_offset"][0], 5);
  EXPECT_NE(Refusal(Prompt("\"Once\"", R"("stream": true, "logprobs": 1, "echo": true)")), "accepted");
}

TEST(Tokenize, BothWays) {
  const auto tokenize = [](std::string_view body) { return Tokenize(Body(body), BundledEngine()); };
  const absl::StatusOr<Json> ids = tokenize(R"({"prompt": "What is"})");
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ((*ids)["max_model_len"], kContext);
  const absl::StatusOr<Json> text = Detokenize({{"tokens", (*ids)["tokens"]}}, BundledEngine());
  ASSERT_TRUE(text.ok());
  EXPECT_EQ((*text)["prompt"], "What is");
  for (const char* bad : {"5", "{}", R"({"prompt": 5})", R"({"prompt": "a", "return_token_strs": 1})",
                          R"({"messages": []})", R"({"messages": [{"role": "user"}]})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(tokenize(bad).status())) << bad;
  }
  for (const char* bad : {"5", "{}", R"({"tokens": 5})", R"({"tokens": ["a"]})", R"({"tokens": [99999999]})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Detokenize(Body(bad), BundledEngine()).status())) << bad;
  }
}

}  // namespace
}  // namespace hadal::serving
