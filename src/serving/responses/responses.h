// The Responses API: POST /v1/responses (spec serving-runtime 6.10). Requests are read as the chats that they are
// (serving/chat_body.h), so that a conversation has the same prompt in every protocol.
//
// Answers are stored, and earlier ones continued, where the server has a ResponseStore; without one `store` is answered
// with false and every previous_response_id is unknown. An item of the input is a message, a function_call, a
// function_call_output or reasoning; an assistant's reasoning, text and calls that follow one another are one message.
// Images in a function's output follow it as a part of the user's turn. reasoning.summary and text.verbosity have no
// effect. `truncation: auto` leaves out the oldest turns of a conversation that does not fit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine.h"
#include "serving/openai/job.h"
#include "serving/responses/response_store.h"
#include "serving/stream.h"
#include "text/json_text.h"

namespace hadal::serving {

// The body of POST /v1/responses. The job has one request. Errors: InvalidArgument, as ParseChatCompletion, beginning
// with the path of the field at fault; NotFound for a previous_response_id that options.store does not have for
// options.owner; Unimplemented for background, prompt and conversation.
absl::StatusOr<Job> ParseResponses(const text::Json& body, const runtime::Engine& engine,
                                   const ParseOptions& options = {});

// The answer's body. `result`: of the job's request.
text::Json BuildResponse(const Job& job, const runtime::GenerateResult& result);
// Puts an answer into the job's store, if it has one and the answer did not fail.
void KeepResponse(const Job& job, const text::Json& response);

// The streamed answer of a job, which must outlive the encoder. A stream that comes to its end keeps its answer. The
// items that its events make are those of BuildResponse, but for calls that were cut off: they are incomplete items, in
// the stream alone.
//
// The content of reasoning begins and ends with response.content_part events, as OpenAI has it. The
// response.reasoning_part events of spec 6.10 are another server's: OpenAI's client for JavaScript (6.49) fails on
// them.
std::unique_ptr<StreamEncoder> MakeResponsesStream(const Job& job);

// The page of a list that a query asks for.
struct ItemPage {
  int64_t limit = 20;      // items, 1 to 100
  bool ascending = false;  // the first first
  std::string after = {};  // the id of the item before the page's first, in its order; empty: from the beginning
};
// `limit`, `order` and `after` of a query ("limit=5&order=asc"), still encoded. InvalidArgument, naming the parameter.
absl::StatusOr<ItemPage> ParseItemPage(std::string_view query);
// GET /v1/responses/{id}/input_items: the conversation that a stored answer was given to, that of earlier responses
// included: {"object": "list", "data", "first_id", "last_id", "has_more"}. InvalidArgument if `after` is none of them.
absl::StatusOr<text::Json> ListInputItems(const StoredResponse& stored, const ItemPage& page);

// As HttpStatus and ErrorBody; Unimplemented is 501.
int ResponsesHttpStatus(const absl::Status& status);
text::Json ResponsesErrorBody(const absl::Status& status);

}  // namespace hadal::serving
