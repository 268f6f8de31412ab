// Which chat encoding a checkpoint speaks, and how to tell from the template that it ships. Templates are recognised by
// the control tokens they mention, never run: a template is a program, and the encoders know what the published ones
// do.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/dsml.h"

namespace hadal::text {

enum class ChatFormat {
  kV4,           // deepseek-v4-text 6.1 to 6.3
  kV32,          // deepseek-v32 7.2
  kV31Terminus,  // V3.1-Terminus and V3.2-Exp: V3.1, and an answer is opened behind anything but a tool result
  kV31,          // deepseek-v32 7.5: <think> or </think> after <｜Assistant｜>, tools only without thinking
  kV3,           // V3 and V3-0324: no thinking, calls as fenced JSON
  kR1,           // R1 and R1-0528: as V3, and every answer begins with reasoning
};

std::string_view ChatFormatName(ChatFormat format);  // "V4", "V3.2", "V3.1-Terminus", ...

// How the model writes tool calls.
CallMarkup MarkupOf(ChatFormat format);

// Whether an answer is thought about when the request says nothing: what the published templates do.
bool ThinksByDefault(ChatFormat format);

// The encoding of a Jinja template, if it has the structure of a published one. Tools sections that others have added
// to a published template do not matter: the encoders write the vendor's.
std::optional<ChatFormat> RecogniseChatTemplate(std::string_view jinja);

// `chat_template` of a tokenizer_config.json: a string, or a list of {name, template}, of which "default" counts.
// Nothing if there is none. InvalidArgument where it is something else.
absl::StatusOr<std::optional<std::string>> ChatTemplateOfConfig(std::string_view tokenizer_config);

}  // namespace hadal::text
