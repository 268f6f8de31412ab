#include "serving/protocol.h"

#include "serving/openai/stream.h"
#include "serving/openai/tokenize.h"

namespace hadal::serving {
namespace {

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
    {.path = "/tokenize", .answer = Tokenize, .error = ErrorBody},
    {.path = "/v1/tokenize", .answer = Tokenize, .error = ErrorBody},
    {.path = "/detokenize", .answer = Detokenize, .error = ErrorBody},
    {.path = "/v1/detokenize", .answer = Detokenize, .error = ErrorBody},
};

}  // namespace

std::span<const Endpoint> Endpoints() { return kEndpoints; }

}  // namespace hadal::serving
