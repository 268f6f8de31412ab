// The output parser against arbitrary completions: cuts at random places must give the same events' concatenation as
// the whole, complete calls must carry JSON objects, and nothing may crash. The strict parser and the JSON reader run
// over the same text.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/chat_format.h"
#include "text/output_parser.h"

namespace {

using hadal::text::EndCause;
using hadal::text::Json;
using hadal::text::OutputEvent;
using hadal::text::OutputParser;
using hadal::text::ParserOptions;

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

// Everything a client would have put together from the events.
struct Result {
  std::string reasoning, content, calls;
  bool operator==(const Result&) const = default;
};

void Collect(const std::vector<OutputEvent>& events, Result* result) {
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        result->reasoning += event.text;
        break;
      case OutputEvent::Kind::kContent:
        result->content += event.text;
        break;
      case OutputEvent::Kind::kCallBegin:
        result->calls += "\n\x01" + std::to_string(event.call) + event.text + "\x02";
        break;
      case OutputEvent::Kind::kCallArguments:
        result->calls += event.text;
        break;
      case OutputEvent::Kind::kCallEnd:
        result->calls += event.complete ? "\x03" : "\x04";
    }
  }
}

ParserOptions Options(uint8_t flags) {
  ParserOptions options;
  options.starts_in_reasoning = (flags & 1) != 0;
  options.tools_allowed = (flags & 6) != 6;
  options.pass_unknown_tools = (flags & 8) == 0;
  using hadal::text::CallMarkup;
  if ((flags & 128) != 0) options.markup = (flags & 64) != 0 ? CallMarkup::kFencedTokens : CallMarkup::kTokens;
  if ((flags & 16) != 0) {
    static const auto* const kTools =
        new std::vector<hadal::text::ToolSpec>(hadal::text::ReadToolSpecs(hadal::text::ParseJson(R"([
            {"function": {"name": "f", "parameters": {"properties": {"path": {"type": "string"}}}}},
            {"function": {"name": "g", "parameters": {"properties": {"n": {"type": "integer"}, "o": {"type": "object"}}}}}
        ])")
                                                                              .value())
                                                   .value());
    options.tools = *kTools;
  }
  return options;
}

}  // namespace

// Input: a byte of options, a seed of the cuts, the completion.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const uint8_t flags = data[0];
  uint32_t random = data[1] * 2654435761u + 1;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const EndCause cause = (flags & 32) != 0 ? EndCause::kLength : EndCause::kStop;

  OutputParser whole(Options(flags));
  Result expected;
  Collect(whole.Push(text), &expected);
  Collect(whole.Finish(cause), &expected);

  OutputParser pieces(Options(flags));
  Result actual;
  for (size_t at = 0; at < text.size();) {
    random = random * 1664525 + 1013904223;
    const size_t length = 1 + (random >> 24) % (data[1] < 128 ? 4 : 32);
    Collect(pieces.Push(text.substr(at, length)), &actual);
    at += length;
  }
  Collect(pieces.Finish(cause), &actual);
  Require(actual == expected, "stream equals batch");

  Require(whole.message().reasoning == expected.reasoning, "message holds the reasoning deltas");
  Require(whole.message().content == expected.content, "message holds the content deltas");
  for (const hadal::text::ToolCall& call : whole.message().tool_calls) {
    const auto arguments = hadal::text::ParseJson(call.arguments);
    Require(arguments.ok() && arguments->is_object(), "arguments of a complete call are a JSON object");
  }
  const auto dumped = hadal::text::ParseJson(hadal::text::JsonQuoted(expected.content + expected.reasoning));
  Require(dumped.ok(), "visible text is valid UTF-8");

  using hadal::text::Dialect, hadal::text::ThinkingMode;
  const auto mode = (flags & 1) != 0 ? ThinkingMode::kThinking : ThinkingMode::kChat;
  (void)hadal::text::ParseStrict(text, mode, (flags & 64) != 0 ? Dialect::kV32 : Dialect::kV4);
  (void)hadal::text::RecogniseChatTemplate(text);
  (void)hadal::text::ChatTemplateOfConfig(text);
  const auto json = hadal::text::ParseJson(text);
  if (json.ok()) {
    const std::string printed = hadal::text::DumpJson(*json);
    Require(hadal::text::DumpJson(hadal::text::ParseJson(printed).value()) == printed, "printing is stable");
  }
  return 0;
}
