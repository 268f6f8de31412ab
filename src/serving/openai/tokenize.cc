#include "serving/openai/tokenize.h"

#include <utility>

#include "base/status.h"
#include "serving/openai/fields.h"
#include "serving/openai/request_parts.h"
#include "serving/openai/response_parts.h"

namespace hadal::serving {
namespace {

using text::Json;

absl::StatusOr<runtime::EncodedPrompt> EncodeBody(const Fields& body, const runtime::Engine& engine,
                                                  const ParseOptions& options) {
  if (body.Has("messages")) {
    HADAL_ASSIGN_OR_RETURN(ChatPrompt chat, ReadChatPrompt(body, engine, options));
    return std::move(chat.prompt);
  }
  bool ignored = true;  // nothing is added to a prompt
  HADAL_RETURN_IF_ERROR(body.Read("add_special_tokens", &ignored));
  if (!body["prompt"].is_string()) return body.Expected("prompt", "a string (or messages)");
  absl::StatusOr<runtime::EncodedPrompt> prompt = engine.EncodeRaw(body["prompt"].get_ref<const std::string&>());
  if (!prompt.ok()) return InvalidArgument("prompt: {}", Message(prompt.status()));
  return prompt;
}

}  // namespace

absl::StatusOr<Json> Tokenize(const Json& body, const runtime::Engine& engine, const ParseOptions& options) {
  if (!body.is_object()) return InvalidArgument("expected an object, found {}", Describe(body));
  const Fields fields(body);
  bool strings = false;
  HADAL_RETURN_IF_ERROR(fields.Read("return_token_strs", &strings));
  HADAL_ASSIGN_OR_RETURN(const runtime::EncodedPrompt prompt, EncodeBody(fields, engine, options));
  Json texts;
  if (strings) {
    texts = Json::array();
    for (const int32_t id : prompt.ids) texts.push_back(TokenText(*engine.tokenizer(), id));
  }
  return Json{{"count", prompt.ids.size()},
              {"max_model_len", engine.max_model_len()},
              {"tokens", prompt.ids},
              {"token_strs", std::move(texts)}};
}

absl::StatusOr<Json> Detokenize(const Json& body, const runtime::Engine& engine, const ParseOptions& /*options*/) {
  if (!body.is_object()) return InvalidArgument("expected an object, found {}", Describe(body));
  const Fields fields(body);
  std::vector<int32_t> ids;
  if (!fields["tokens"].is_array()) return fields.Expected("tokens", "an array of token ids");
  HADAL_RETURN_IF_ERROR(ReadIdList(fields["tokens"], "tokens", engine.config().vocab_size, &ids));
  return Json{{"prompt", engine.tokenizer()->Decode(ids)}};
}

}  // namespace hadal::serving
