#include "serving/protocol.h"

#include "serving/anthropic/messages.h"
#include "serving/openai/stream.h"
#include "serving/openai/tokenize.h"
#include "serving/responses/responses.h"

namespace hadal::serving {
namespace {

using runtime::GenerateResult;

// The protocols whose jobs have one request, in the table's form.
text::Json BuildMessageOf(const Job& job, const std::vector<GenerateResult>& results, const Vocabulary& /*unused*/) {
  return BuildMessage(job, results.front());
}
std::unique_ptr<StreamEncoder> EncodeMessage(const Job& job, const Vocabulary& /*unused*/) {
  return MakeMessagesStream(job);
}
text::Json BuildResponseOf(const Job& job, const std::vector<GenerateResult>& results, const Vocabulary& /*unused*/) {
  text::Json response = BuildResponse(job, results.front());
  KeepResponse(job, response);
  return response;
}
std::unique_ptr<StreamEncoder> EncodeResponse(const Job& job, const Vocabulary& /*unused*/) {
  return MakeResponsesStream(job);
}

constexpr Endpoint kEndpoints[] = {
    {.path = "/v1/chat/completions",
     .parse = ParseChatCompletion,
     .build = BuildChatCompletion,
     .encode = MakeOpenAiStream,
     .error = ErrorBody},
    {.path = "/v1/completions",
     .parse = ParseCompletion,
     .build = BuildCompletion,
     .encode = MakeOpenAiStream,
     .error = ErrorBody},
    {.path = "/v1/responses",
     .parse = ParseResponses,
     .build = BuildResponseOf,
     .encode = EncodeResponse,
     .status = ResponsesHttpStatus,
     .error = ErrorBody},
    {.path = "/v1/messages",
     .parse = ParseMessages,
     .build = BuildMessageOf,
     .encode = EncodeMessage,
     .error = MessagesErrorBody,
     .keep_alive = "event: ping\ndata: {\"type\": \"ping\"}\n\n",
     .takes_x_api_key = true},
    {.path = "/v1/messages/count_tokens",
     .answer = CountMessageTokens,
     .error = MessagesErrorBody,
     .takes_x_api_key = true},
    {.path = "/tokenize", .answer = Tokenize, .error = ErrorBody},
    {.path = "/v1/tokenize", .answer = Tokenize, .error = ErrorBody},
    {.path = "/detokenize", .answer = Detokenize, .error = ErrorBody},
    {.path = "/v1/detokenize", .answer = Detokenize, .error = ErrorBody},
};

}  // namespace

std::span<const Endpoint> Endpoints() { return kEndpoints; }

}  // namespace hadal::serving
