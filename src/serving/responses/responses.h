// The Responses API: POST /v1/responses (spec serving-runtime 6.10). Requests are read as the chats that they are
// (serving/chat_body.h), so that a conversation has the same prompt in every protocol.
//
// Answers are stored, and earlier ones continued, where the server has a ResponseStore; without one `store` is answered
// with false and every previous_response_id is unknown. An item of the input is a message, a function_call, a
// function_call_output or reasoning; an assistant's reasoning, text and calls that follow one another are one message.
// Images in a function's output follow it as a part of the user's turn. reasoning.summary and text.verbosity have no
// effect. `truncation: auto` leaves out the oldest turns of a conversation that does not fit.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine.h"
#include "serving/openai/job.h"
#include "serving/responses/response_store.h"
#include "serving/stream.h"
#include "text/json_text.h"

namespace hadal::serving {

// `json`: the body of POST /v1/responses. `store` may be null; `owner`: whose request it is, for the store. The job has
// one request. Errors: InvalidArgument, as ParseChatCompletion, beginning with the path of the field at fault; NotFound
// for an unknown previous_response_id; Unimplemented for background, prompt and conversation.
absl::StatusOr<Job> ParseResponses(const text::Json& json, const runtime::Engine& engine,
                                   const ParseOptions& options = {}, ResponseStore* store = nullptr,
                                   const std::string& owner = "");

// The answer's body. `result`: of the job's request.
text::Json BuildResponse(const Job& job, const runtime::GenerateResult& result);
// Puts an answer into the store if its request said so and it did not fail; `store` may be null.
void KeepResponse(const Job& job, const text::Json& response, ResponseStore* store);

// The streamed answer of a job, which must outlive the encoder, as must `store` (may be null): a stream that comes to
// its end keeps its answer there. The items that its events make are those of BuildResponse, but for calls that were
// cut off: they are incomplete items, in the stream alone.
//
// The content of reasoning begins and ends with response.content_part events, as OpenAI has it. The
// response.reasoning_part events of spec 6.10 are another server's: OpenAI's client for JavaScript (6.49) fails on
// them.
std::unique_ptr<StreamEncoder> MakeResponsesStream(const Job& job, ResponseStore* store = nullptr);

// As HttpStatus and ErrorBody; Unimplemented is 501.
int ResponsesHttpStatus(const absl::Status& status);
text::Json ResponsesErrorBody(const absl::Status& status);

}  // namespace hadal::serving
