// Chat messages to prompt text, for DeepSeek V4 (both effort profiles), V3.2, V3.1, V3 and R1. No template is run: the
// encoders are the vendor's, byte for byte (spec deepseek-v4-text 6.1-6.3, deepseek-v32 7.2, 7.3 and 7.5);
// chat_format.h says which one a checkpoint wants.
//
// A prompt is a list of spans. Trusted spans are protocol text that the encoder wrote: the tokenizer matches control
// tokens in them. Everything that came in with the request (system text, user text, tool schemas, tool results, earlier
// answers) is untrusted and never becomes a control token, whatever it spells. A tokenizer must join neighbouring plain
// text of both kinds before it splits words, so that span borders do not move token borders.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat_format.h"
#include "text/dsml.h"
#include "text/json_text.h"

namespace hadal::text {

struct PromptSpan {
  std::string text;
  bool trusted = false;
};

// One <｜deepseek_image｜> of the prompt: content part `part` of message `message` of the encoded list.
struct ImageRef {
  size_t message = 0;
  size_t part = 0;
};

struct Prompt {
  std::vector<PromptSpan> spans;  // neighbours differ in `trusted`
  std::vector<ImageRef> images;   // in the order of their placeholders
  // The prompt ends with <think> (R1: and a newline): the completion starts inside the reasoning. The output parser,
  // the grammar and the token counting take it from here, so that they cannot disagree with the encoder.
  bool starts_in_reasoning = false;

  std::string Text() const;
};

// Which reasoning-effort texts the checkpoint's encoder knows (deepseek-v4-text 6.3).
enum class EffortProfile {
  kFirstRelease,  // profile A: V4-Flash and V4-Pro
  kTiered,        // profile B: V4-Flash-0731 and later
};

enum class Effort { kUnset, kLow, kHigh, kMax };

struct ChatOptions {
  ThinkingMode mode = ThinkingMode::kChat;
  // V4 in thinking mode only. kFirstRelease takes kUnset, kHigh and kMax.
  EffortProfile effort_profile = EffortProfile::kFirstRelease;
  Effort effort = Effort::kUnset;
  // Drop the reasoning of earlier turns. V4 keeps it whenever a message has tools. V3.2 never renders reasoning before
  // the last user turn; there the option only decides about developer messages (an error when it would drop one).
  // Older encodings never render it.
  bool drop_thinking = true;
  bool add_bos = true;
  // Messages that were encoded before: they count for every rule but are not rendered, nor is BOS.
  const Json* context = nullptr;
  // Image parts of user content become placeholders; otherwise they are an error.
  bool allow_images = false;
  // V4: refuse tool results whose tool_call_id matches no call before them or repeats one. (V3.2 always does, because
  // its results are positional.)
  bool strict_tool_results = false;
  // Take trailing newlines off assistant content that is followed by calls: rendering adds its own two, so a replayed
  // answer then has the bytes that were generated (deepseek-v4-text 6.5, end).
  bool trim_content_before_calls = false;
};

// `messages`: array of OpenAI-style message objects. Read fields: role, content, reasoning_content (or reasoning),
// tool_calls, tool_call_id, tools, response_format, task, wo_eos. Roles: system, user, assistant, tool, developer
// (the vendor's internal one) and, in V4, latest_reminder. Content: a string, null (empty) or a list of parts; text
// parts are joined by a newline, in V4 tool results by two, where other parts become "[Unsupported TYPE]".
// Unknown fields are ignored. InvalidArgument names the message and field at fault.
//
// `wo_eos` on the last assistant message leaves its end token out, so that the model continues it. `task` and the
// developer role are for callers inside the house: a server must not pass them on from a public request.
absl::StatusOr<Prompt> EncodeChatV4(const Json& messages, const ChatOptions& options);
absl::StatusOr<Prompt> EncodeChatV32(const Json& messages, const ChatOptions& options);
// V3.1, V3.1-Terminus, V3 and R1. System texts are gathered at the front. There is no developer role, no response
// format, and no switch where the published template has none: V3 never thinks, R1 always does, V3.1 not with tools.
absl::StatusOr<Prompt> EncodeChatV3(ChatFormat format, const Json& messages, const ChatOptions& options);
absl::StatusOr<Prompt> EncodeChat(ChatFormat format, const Json& messages, const ChatOptions& options);

// Puts a request's tools and response format where the encoders look for them: on message 0 if that is a system or
// developer message, overriding what it has, else on a new system message without content in front (deepseek-v4-text
// 6.2, last paragraph). V3.2 uses the same place: it is the vendor's, who attaches tools to the first system message.
// `tools` and `response_format` may be null; with tool_choice "none" pass null tools. Returns the number of messages
// inserted (0 or 1), to be subtracted from ImageRef::message.
absl::StatusOr<size_t> AttachToRequest(const Json& tools, const Json& response_format, Json* messages);

// Whether a prompt ends with the tag that opens the reasoning.
bool OpensReasoning(std::string_view prompt);

// "chat" or "thinking".
absl::StatusOr<ThinkingMode> ParseThinkingMode(std::string_view name);
// The encoder's own names: "low", "high", "max"; "" is kUnset. Anything else is an error, as in the reference.
absl::StatusOr<Effort> ParseEffort(std::string_view name);

// How the effort names of an API map to tiers. The sources differ about medium and xhigh.
enum class EffortTable {
  kService,  // documented service (serving-runtime 6.3): minimal, low: low; medium, high, xhigh: high; max, ultra: max
  kEncoder,  // deepseek-v4-text 6.3: profile A xhigh: max, others high; profile B minimal, medium: low, xhigh: high
};

struct ThinkingChoice {
  ThinkingMode mode = ThinkingMode::kChat;
  Effort effort = Effort::kUnset;
};

// What a request says about thinking; absent means not given.
struct ThinkingRequest {
  std::optional<bool> template_thinking;  // chat_template_kwargs.thinking or .enable_thinking
  std::optional<bool> thinking;           // thinking: {type: enabled|disabled}, true, false
  std::optional<std::string> effort;      // reasoning_effort, reasoning.effort, output_config.effort
};

// The single decision about thinking (serving-runtime 6.3). Effort "none" always means chat mode; otherwise the first
// of template_thinking, thinking decides; otherwise a given effort means thinking; otherwise `default_on`
// (ThinksByDefault). The effort is never a tier the profile lacks. InvalidArgument for an unknown effort name.
absl::StatusOr<ThinkingChoice> ResolveThinking(const ThinkingRequest& request, EffortProfile profile, EffortTable table,
                                               bool default_on);

}  // namespace hadal::text
