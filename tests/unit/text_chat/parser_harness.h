// Runs a completion through the output parser whole, at every cut, and byte by byte, and demands the same result.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/output_parser.h"

namespace hadal::text {

// "R[..]C[..]call f{..}": what a client saw; calls that were not completed as "open f{..".
inline std::string Seen(const std::vector<OutputEvent>& events) {
  std::string reasoning, content, calls;
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        reasoning += event.text;
        break;
      case OutputEvent::Kind::kContent:
        content += event.text;
        break;
      case OutputEvent::Kind::kCallBegin:
        calls += " call " + event.text;
        break;
      case OutputEvent::Kind::kCallArguments:
        calls += event.text;
        break;
      case OutputEvent::Kind::kCallEnd:
        if (!event.complete) calls += " (open)";
    }
  }
  return (reasoning.empty() ? "" : "R[" + reasoning + "]") + (content.empty() ? "" : "C[" + content + "]") + calls;
}

inline std::vector<OutputEvent> Run(const std::vector<std::string_view>& pieces, const ParserOptions& options,
                                    EndCause cause, ParsedMessage* message) {
  OutputParser parser(options);
  std::vector<OutputEvent> events;
  for (const std::string_view piece : pieces) {
    for (OutputEvent& event : parser.Push(piece)) events.push_back(std::move(event));
  }
  for (OutputEvent& event : parser.Finish(cause)) events.push_back(std::move(event));
  EXPECT_TRUE(parser.Push("more").empty());
  EXPECT_TRUE(parser.Finish(cause).empty());
  *message = parser.message();
  return events;
}

// What comes of `text`, however it is cut.
inline std::string Parsed(std::string_view text, const ParserOptions& options = {}, EndCause cause = EndCause::kStop) {
  ParsedMessage message;
  const std::string whole = Seen(Run({text}, options, cause, &message));
  for (const ToolCall& call : message.tool_calls) {
    EXPECT_TRUE(ParseJson(call.arguments).ok()) << call.arguments;
  }
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    bytes.push_back(text.substr(i, 1));
    EXPECT_EQ(Seen(Run({text.substr(0, i), text.substr(i)}, options, cause, &message)), whole) << "cut at " << i;
  }
  EXPECT_EQ(Seen(Run(bytes, options, cause, &message)), whole) << "byte by byte";
  return whole;
}

inline ParserOptions InReasoning() {
  ParserOptions options;
  options.starts_in_reasoning = true;
  return options;
}

inline ParserOptions WithTools(std::string_view tools) {
  ParserOptions options;
  options.tools = ReadToolSpecs(ParseJson(tools).value()).value();
  return options;
}

}  // namespace hadal::text
