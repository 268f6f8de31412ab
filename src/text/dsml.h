// The words of the chat protocols: control tokens as text, and the DSML markup of tool calls (spec deepseek-v4-text 5
// and 6.2, deepseek-v32 7.1 and 7.2), with the strict parser of a completion. The tolerant, streaming parser is
// output_parser.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/json_text.h"

namespace hadal::text {

// The two encodings with DSML (chat_format.h lists all). They differ in the name of the call block, in the tools text
// and in how tool results are rendered.
enum class Dialect { kV32, kV4 };

// How tool calls are written.
enum class CallMarkup {
  kDsml,          // V3.2, V4: a DSML block
  kTokens,        // V3.1: control tokens around a name and a JSON object
  kFencedTokens,  // V3, R1: "function" and the name between the tokens, the object in a fence of Markdown
};

enum class ThinkingMode { kChat, kThinking };

// The bar is U+FF5C, the space mark U+2581.
inline constexpr std::string_view kBosText = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEosText = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUserText = "<｜User｜>";
inline constexpr std::string_view kAssistantText = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminderText = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkText = "<think>";
inline constexpr std::string_view kThinkEndText = "</think>";
inline constexpr std::string_view kDsmlText = "｜DSML｜";
inline constexpr std::string_view kImageText = "<｜deepseek_image｜>";
// Tool calls of V3.1 and before (spec deepseek-v32 7.5).
inline constexpr std::string_view kCallsBeginText = "<｜tool▁calls▁begin｜>";
inline constexpr std::string_view kCallsEndText = "<｜tool▁calls▁end｜>";
inline constexpr std::string_view kCallBeginText = "<｜tool▁call▁begin｜>";
inline constexpr std::string_view kCallSepText = "<｜tool▁sep｜>";
inline constexpr std::string_view kCallEndText = "<｜tool▁call▁end｜>";
inline constexpr std::string_view kOutputsBeginText = "<｜tool▁outputs▁begin｜>";
inline constexpr std::string_view kOutputsEndText = "<｜tool▁outputs▁end｜>";
inline constexpr std::string_view kOutputBeginText = "<｜tool▁output▁begin｜>";
inline constexpr std::string_view kOutputEndText = "<｜tool▁output▁end｜>";
inline constexpr std::string_view kExtractedUrlText = "<｜extracted_url｜>";

// "tool_calls" (V4) or "function_calls" (V3.2): the name of the block that holds the calls.
std::string_view CallBlockName(Dialect dialect);

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON object text
  int index = 0;          // order of appearance in the completion, from 0
};

// What a completion says once markup is taken off.
struct ParsedMessage {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;
};

// Strict grammar (deepseek-v4-text 6.4, deepseek-v32 7.4): `completion` is the text generated after the prompt, with
// the end token unless a call block ends the text. InvalidArgument for any deviation. `arguments` splices values of
// string="false" in verbatim: it is JSON only if the model wrote JSON.
absl::StatusOr<ParsedMessage> ParseStrict(std::string_view completion, ThinkingMode mode, Dialect dialect);

}  // namespace hadal::text
