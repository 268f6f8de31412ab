// What the pieces of the Messages API have in common. Internal to the library.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "serving/chat_body.h"
#include "serving/openai/fields.h"
#include "serving/openai/job.h"
#include "text/json_text.h"

namespace hadal::serving {

// Adds `system` and `messages` of a body to the chat. InvalidArgument for what has no place in a chat.
absl::Status AddMessages(const Fields& body, ChatBody* chat);

// stop_reason, stop_sequence and usage of an answer.
text::Json MessageStopReason(const runtime::GenerateResult& result);
text::Json MessageStopSequence(const runtime::GenerateResult& result);
text::Json MessageUsage(const Job& job, const runtime::GenerateResult& result);
// A message without content: what every answer begins with.
text::Json MessageHead(const Job& job);
// What stands under thinking. Clients that get none drop the block instead of sending it back; it is not looked at
// again.
std::string ThinkingSignature(std::string_view thinking);

}  // namespace hadal::serving
