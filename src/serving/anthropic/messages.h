// The Messages API: POST /v1/messages and /v1/messages/count_tokens (spec serving-runtime 6.9). Requests are read as
// the chats that they are (serving/chat_body.h), so that a conversation has the same prompt in every protocol.
//
// What has no counterpart: redacted_thinking blocks and cache_control are taken and ignored, is_error of a tool's
// result too. Images in a tool's result follow it as a part of the user's turn, the only place that the models have for
// them. A last message of the assistant is continued. `thinking` of type "adaptive" is "enabled" without a budget.
// Tools are those with an input_schema.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine.h"
#include "serving/openai/job.h"
#include "serving/stream.h"
#include "text/json_text.h"

namespace hadal::serving {

// The body of POST /v1/messages. The job has one request. Errors: InvalidArgument, as ParseChatCompletion, beginning
// with the path of the field at fault; HttpStatus has the number for them.
absl::StatusOr<Job> ParseMessages(const text::Json& body, const runtime::Engine& engine,
                                  const ParseOptions& options = {});
// The body of POST /v1/messages/count_tokens to that of its answer, {"input_tokens": tokens}: those that ParseMessages
// would give the model, also where they do not fit. Errors: the same.
absl::StatusOr<text::Json> CountMessageTokens(const text::Json& body, const runtime::Engine& engine,
                                              const ParseOptions& options = {});

// The answer's body. `result`: of the job's request. Input tokens do not count those found in the cache, which
// cache_read_input_tokens are.
text::Json BuildMessage(const Job& job, const runtime::GenerateResult& result);

// The streamed answer of a job, which must outlive the encoder. The blocks that its events make are those of
// BuildMessage, but for calls that were cut off: they are blocks without the rest of their input, in the stream alone.
std::unique_ptr<StreamEncoder> MakeMessagesStream(const Job& job);
// What keeps a connection open while nothing happens. Any time after the first frame.
StreamFrame MessagesPing();

// {"type": "error", "error": {"type", "message"}}.
text::Json MessagesErrorBody(const absl::Status& status);
text::Json MessagesErrorBody(int http_status, const absl::Status& status);
text::Json MessagesErrorBody(int http_status, std::string_view message);

}  // namespace hadal::serving
