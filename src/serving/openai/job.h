// A request of the OpenAI API as the runtime takes it, and its results as the API gives them back (spec serving-runtime
// 5.2, 5.4, 6.1 to 6.8). Nothing here knows a socket: a server and `hadal run --batch` use the same functions.
//
// Errors are InvalidArgument for everything that is wrong with a body, also for what is not supported: clients try
// again after an answer of the 500 class. A message begins with the path of the field at fault: "messages[0].role:
// expected ..., found ...".
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine.h"
#include "runtime/request.h"
#include "text/json_text.h"

namespace hadal::serving {

class ResponseStore;  // responses/response_store.h

// What whoever serves lays down; a request can go no further.
struct ParseOptions {
  std::string model = "hadal";  // the name in answers to requests that give none
  // What counts where a request says nothing: sampling, max_tokens, stop and ignore_end are read, and the seed if
  // has_seed. Absent: Engine::default_sampling().
  std::optional<runtime::GenerateRequest> defaults;
  bool has_seed = false;
  int64_t max_n = 16;                         // answers to a prompt
  size_t max_prompts = 1024;                  // of a completion
  size_t max_images = 16;                     // of a request, beside the engine's own limit
  size_t max_image_bytes = size_t{20} << 20;  // of the file
  // Rows times the entries of a row that prompt_logprobs may ask for.
  int64_t max_prompt_logprobs = int64_t{1} << 20;
  // Lower ones of requests count as this: whoever may not go before all others.
  int64_t best_priority = std::numeric_limits<int64_t>::min();
  // Where answers of /v1/responses are kept, which outlives the job; null: nowhere. Of each request: whose it is, for
  // the store.
  ResponseStore* store = nullptr;
  std::string owner = {};
};

// One choice of the answer.
struct Choice {
  size_t request = 0;  // of Job::requests; greedy copies of an answer share one
  size_t prompt = 0;   // of Job::prompts
};

struct PromptInfo {
  std::vector<int32_t> ids;  // images expanded
  std::string echo;          // stands before the answer; empty unless the request asks for it
  size_t request = 0;        // the first of Job::requests that answers it
};

// What /v1/responses needs to know of its request beside the chat that it is (responses/responses.h).
struct ResponsesRequest {
  text::Json repeated;             // the request's settings, which the answer repeats
  text::Json items;                // input, that of earlier responses included; only with `store`
  ResponseStore* store = nullptr;  // where the answer is to be kept; null: it is not
  std::string owner;               // who may see it
};

struct Job {
  enum class Kind { kChat, kCompletion, kMessages, kResponses };
  Kind kind = Kind::kChat;
  std::string id;          // "chatcmpl-...", "cmpl-...", "msg_..." or "resp_..."
  std::string model;       // as the request gave it: every name is served by the one model that there is
  std::string request_id;  // the client's own; may be empty
  std::string user;
  int64_t created = 0;  // seconds since 1970

  std::vector<runtime::GenerateRequest> requests;  // to be run; of one prompt side by side
  std::vector<PromptInfo> prompts;
  std::vector<Choice> choices;  // of the answer, in order

  bool stream = false;
  bool include_usage = false;           // stream_options
  bool continuous_usage_stats = false;  // stream_options
  bool echo = false;
  bool include_reasoning = true;
  bool parallel_tool_calls = true;  // false: the first call alone is given
  bool include_stop = false;        // include_stop_str_in_output
  bool prompt_logprobs = false;     // are part of the answer
  bool return_token_ids = false;
  ResponsesRequest responses;  // of kResponses
};

// The body of POST /v1/chat/completions.
absl::StatusOr<Job> ParseChatCompletion(const text::Json& body, const runtime::Engine& engine,
                                        const ParseOptions& options = {});
// The body of POST /v1/completions. Control tokens that a prompt's text spells are matched, as in every raw prompt;
// nothing is added, BOS included.
absl::StatusOr<Job> ParseCompletion(const text::Json& body, const runtime::Engine& engine,
                                    const ParseOptions& options = {});

// The answer's body. `results`: one for each of job.requests.
text::Json BuildChatCompletion(const Job& job, const std::vector<runtime::GenerateResult>& results,
                               const std::shared_ptr<const text::Tokenizer>& tokenizer);
text::Json BuildCompletion(const Job& job, const std::vector<runtime::GenerateResult>& results,
                           const std::shared_ptr<const text::Tokenizer>& tokenizer);
// Whichever the job is of.
text::Json BuildAnswer(const Job& job, const std::vector<runtime::GenerateResult>& results,
                       const std::shared_ptr<const text::Tokenizer>& tokenizer);

// Of a status whose error has a code of its own, and of one whose message does not begin with the field at fault.
inline constexpr char kCodePayload[] = "hadal.serving/code";
inline constexpr char kParamPayload[] = "hadal.serving/param";

// The status line's number for an error: 400 for what is wrong with a request (a prompt that never fits into the cache
// included), 429 when too many are waiting, 499 for one that was given up, 404, 500.
int HttpStatus(const absl::Status& status);
// {"error": {"message", "type", "param", "code"}}. `param` is the path that the message begins with; `code` the number,
// or "context_length_exceeded".
text::Json ErrorBody(const absl::Status& status);
// The same where the number is another one than HttpStatus gives.
text::Json ErrorBody(int http_status, const absl::Status& status);
text::Json ErrorBody(int http_status, std::string_view message, const text::Json& param = nullptr,
                     const text::Json& code = nullptr);

// "chatcmpl-" and the like, with 32 random hexadecimal digits behind.
std::string RandomId(std::string_view prefix);

}  // namespace hadal::serving
