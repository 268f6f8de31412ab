// Answers without a model: a text as it would have been generated, cut into pieces, through the real parser.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serving/stream.h"
#include "serving_fixture.h"

namespace hadal::serving {

struct CannedAnswer {
  std::vector<std::vector<text::OutputEvent>> events;  // of each piece, and of the end
  runtime::GenerateResult result;
};

inline CannedAnswer Answer(const Job& job, const std::vector<std::string>& pieces,
                           text::EndCause cause = text::EndCause::kStop) {
  CannedAnswer answer;
  text::OutputParser parser(*job.requests[0].parser);
  for (const std::string& piece : pieces) answer.events.push_back(parser.Push(piece));
  answer.events.push_back(parser.Finish(cause));
  runtime::GenerateResult& result = answer.result;
  result.content = parser.message().content;
  result.reasoning = parser.message().reasoning;
  result.tool_calls = parser.message().tool_calls;
  result.finish_reason = !result.tool_calls.empty()       ? runtime::FinishReason::kToolCalls
                         : cause == text::EndCause::kStop ? runtime::FinishReason::kStop
                                                          : runtime::FinishReason::kLength;
  result.token_ids.assign(9, 65);
  result.reasoning_tokens = result.reasoning.empty() ? 0 : 4;
  result.cached_tokens = 3;
  return answer;
}

// All frames of a stream that comes to its end.
inline std::vector<StreamFrame> Stream(StreamEncoder* encoder, const CannedAnswer& answer) {
  std::vector<StreamFrame> all = encoder->Begin();
  const auto add = [&](std::vector<StreamFrame> frames) {
    for (StreamFrame& frame : frames) all.push_back(std::move(frame));
  };
  for (const auto& events : answer.events) add(encoder->Add(0, {events, {}}));
  add(encoder->Finish(0, answer.result));
  add(encoder->End());
  return all;
}

// What a frame carries; its event is the type of its data.
inline text::Json Data(const StreamFrame& frame) {
  EXPECT_EQ(frame.data.find('\n'), std::string::npos);
  text::Json data = Body(frame.data);
  EXPECT_EQ(data.value("type", ""), frame.event);
  return data;
}

inline std::string Call(std::string_view name, std::string_view key, std::string_view value) {
  return fmt::format(
      "<｜DSML｜invoke name=\"{}\">\n<｜DSML｜parameter name=\"{}\" string=\"true\">{}</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n",
      name, key, value);
}
inline std::string Calls(std::string_view calls) {
  return fmt::format("\n\n<｜DSML｜tool_calls>\n{}</｜DSML｜tool_calls>", calls);
}

// Outputs that have one of everything, with how they end. All of a thinking model.
struct Output {
  const char* what;
  std::string text;
  text::EndCause cause = text::EndCause::kStop;
};
inline std::vector<Output> Outputs() {
  const std::string two = Calls(Call("run", "cmd", "ls 2>&1 \"x\"\n") + Call("add", "a", "1"));
  return {
      {"text", "One, two.</think>Three, é社."},
      {"text without reasoning", "</think>Four."},
      {"calls", "Hm.</think>Let me see." + two},
      {"calls alone", "</think>" + two},
      {"calls out of the reasoning", "Hm." + two},
      {"empty", "</think>"},
      {"reasoning and nothing else", "Hm.</think>"},
      {"reasoning that is the answer", "Good morning!"},
      {"cut in the reasoning", "One, tw", text::EndCause::kLength},
      {"cut in the text", "One.</think>Tw", text::EndCause::kLength},
      {"cut at once", "", text::EndCause::kLength},
  };
}

// An output in two pieces at each of its bytes, and byte by byte.
inline std::vector<std::vector<std::string>> Splits(const std::string& text) {
  std::vector<std::vector<std::string>> all;
  for (size_t i = 0; i <= text.size(); ++i) all.push_back({text.substr(0, i), text.substr(i)});
  std::vector<std::string>& bytes = all.emplace_back();
  for (const char c : text) bytes.emplace_back(1, c);
  return all;
}

}  // namespace hadal::serving
