// The body of /v1/chat/completions (spec serving-runtime 6.2 to 6.4).
#include <chrono>
#include <utility>

#include "base/status.h"
#include "serving/openai/request_parts.h"

namespace hadal::serving {
namespace {

using text::Json;

constexpr int64_t kMaxTopLogprobs = 20;

absl::Status ReadLogprobs(const Fields& body, runtime::SamplingParams* sampling) {
  bool wanted = sampling->logprobs >= 0;
  int64_t top = std::max(sampling->logprobs, 0);
  HADAL_RETURN_IF_ERROR(body.Read("logprobs", &wanted));
  HADAL_RETURN_IF_ERROR(body.ReadRange("top_logprobs", 0, kMaxTopLogprobs, &top));
  if (body.Has("top_logprobs") && top > 0 && !wanted) {
    return InvalidArgument("top_logprobs: expected only together with logprobs: true");
  }
  sampling->logprobs = wanted ? static_cast<int>(top) : -1;
  return absl::OkStatus();
}

absl::Status ReadThinkingField(const Fields& body, std::optional<bool>* thinking) {
  constexpr const char* kExpected = "{\"type\": \"enabled\"} or {\"type\": \"disabled\"}";
  const Json& json = body["thinking"];
  if (json.is_null()) return absl::OkStatus();
  if (json.is_boolean()) {
    *thinking = json.get<bool>();
    return absl::OkStatus();
  }
  if (!json.is_object()) return body.Expected("thinking", kExpected);
  const Fields fields(json, "thinking");
  if (fields["type"] != "enabled" && fields["type"] != "disabled") {
    return fields.Expected("type", "\"enabled\" or \"disabled\"");
  }
  *thinking = fields["type"] == "enabled";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<text::ThinkingChoice> ReadThinking(const Fields& body, const runtime::Engine& engine) {
  text::ThinkingRequest request;
  HADAL_RETURN_IF_ERROR(body.CheckObject("chat_template_kwargs"));
  if (body.Has("chat_template_kwargs")) {
    const Fields kwargs(body["chat_template_kwargs"], "chat_template_kwargs");
    HADAL_RETURN_IF_ERROR(kwargs.Read("enable_thinking", &request.template_thinking));
    HADAL_RETURN_IF_ERROR(kwargs.Read("thinking", &request.template_thinking));
    HADAL_RETURN_IF_ERROR(kwargs.Read("reasoning_effort", &request.effort));
  }
  HADAL_RETURN_IF_ERROR(ReadThinkingField(body, &request.thinking));
  HADAL_RETURN_IF_ERROR(body.Read("reasoning_effort", &request.effort));
  const bool on = text::ThinksByDefault(engine.chat_format());
  absl::StatusOr<text::ThinkingChoice> choice =
      text::ResolveThinking(request, engine.effort_profile(), text::EffortTable::kService, on);
  if (!choice.ok()) return InvalidArgument("reasoning_effort: {}", Message(choice.status()));
  return choice;
}

absl::StatusOr<ChatPrompt> ReadChatPrompt(const Fields& body, const runtime::Engine& engine,
                                          const ParseOptions& options) {
  ChatPrompt chat;
  HADAL_ASSIGN_OR_RETURN(chat.tools, ReadTools(body));
  HADAL_ASSIGN_OR_RETURN(const text::ThinkingChoice thinking, ReadThinking(body, engine));
  HADAL_ASSIGN_OR_RETURN(Conversation conversation, ReadMessages(body, engine, options));
  HADAL_RETURN_IF_ERROR(text::AttachToRequest(chat.tools.offered, nullptr, &conversation.messages).status());
  HADAL_ASSIGN_OR_RETURN(chat.prompt, engine.EncodeChat(conversation.messages, thinking, conversation.images));
  chat.continued = std::move(conversation.continued);
  return chat;
}

absl::StatusOr<Job> ParseChatCompletion(const Json& body, const runtime::Engine& engine, const ParseOptions& options) {
  if (!body.is_object()) return InvalidArgument("expected an object, found {}", Describe(body));
  const Fields fields(body);
  Job job;
  job.kind = Job::Kind::kChat;
  HADAL_ASSIGN_OR_RETURN(Common common, ReadCommon(fields, engine, options, &job));
  HADAL_RETURN_IF_ERROR(ReadLogprobs(fields, &common.request.sampling));
  job.prompt_logprobs = common.request.sampling.prompt_logprobs >= 0;
  HADAL_RETURN_IF_ERROR(fields.Read("include_reasoning", &job.include_reasoning));
  HADAL_RETURN_IF_ERROR(fields.Read("parallel_tool_calls", &job.parallel_tool_calls));
  HADAL_ASSIGN_OR_RETURN(common.request.grammar, ReadGrammar(fields, engine));
  HADAL_ASSIGN_OR_RETURN(ChatPrompt chat, ReadChatPrompt(fields, engine, options));

  text::ParserOptions& parser = common.request.parser.emplace();
  parser.tools_allowed = !chat.tools.offered.is_null();
  HADAL_ASSIGN_OR_RETURN(parser.tools, text::ReadToolSpecs(chat.tools.callable));
  parser.pass_unknown_tools = chat.tools.callable == chat.tools.offered;
  if (chat.tools.required) {
    HADAL_ASSIGN_OR_RETURN(common.request.grammar, ReadCallGrammar(chat.tools, !job.parallel_tool_calls, engine));
  }
  HADAL_RETURN_IF_ERROR(AddPrompt(common, std::move(chat.prompt), "messages", engine, options, &job));
  if (job.echo) job.prompts[0].echo = std::move(chat.continued);
  job.id = RandomId("chatcmpl-");
  job.created = UnixSeconds();
  return job;
}

}  // namespace hadal::serving
