// The body of /v1/messages (spec serving-runtime 6.9).
#include <utility>

#include "base/status.h"
#include "serving/anthropic/message_parts.h"
#include "serving/anthropic/messages.h"

namespace hadal::serving {
namespace {

using text::Json;

absl::Status AddTools(const Fields& body, ChatBody* chat) {
  const Json& tools = body["tools"];
  if (tools.is_null()) return absl::OkStatus();
  if (!tools.is_array()) return body.Expected("tools", "an array of tools");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) return InvalidArgument("{}: expected an object, found {}", path, Describe(tools[i]));
    const Fields tool(tools[i], path);
    if (tool.Has("type") && tool["type"] != "custom") {
      return tool.Expected("type", "\"custom\": there are no tools of the server's own");
    }
    Json function = {{"name", tool["name"]}};
    if (tool.Has("description")) function["description"] = tool["description"];
    if (tool.Has("input_schema")) function["parameters"] = tool["input_schema"];
    const std::string at = chat->AddTool({{"type", "function"}, {"function", std::move(function)}}, path);
    chat->Map(at + ".function", path);
    chat->Map(at + ".function.parameters", path + ".input_schema");
  }
  return absl::OkStatus();
}

absl::Status AddToolChoice(const Fields& body, ChatBody* chat) {
  HADAL_RETURN_IF_ERROR(body.CheckObject("tool_choice"));
  if (!body.Has("tool_choice")) return absl::OkStatus();
  const Fields choice(body["tool_choice"], "tool_choice");
  bool one_call = false;
  HADAL_RETURN_IF_ERROR(choice.Read("disable_parallel_tool_use", &one_call));
  if (one_call) chat->Set("parallel_tool_calls", false, "tool_choice.disable_parallel_tool_use");
  Json value;
  if (choice["type"] == "auto" || choice["type"] == "none") {
    // What a client may say without tools, too.
    if (!body.Has("tools") || body["tools"].empty()) return absl::OkStatus();
    value = choice["type"];
  } else if (choice["type"] == "any") {
    value = "required";
  } else if (choice["type"] == "tool") {
    value = {{"type", "function"}, {"function", {{"name", choice["name"]}}}};
    chat->Map("tool_choice.function", "tool_choice");
  } else {
    return choice.Expected("type", "\"auto\", \"any\", \"tool\" or \"none\"");
  }
  chat->Set("tool_choice", std::move(value), "tool_choice");
  return absl::OkStatus();
}

absl::Status AddThinking(const Fields& body, ChatBody* chat) {
  HADAL_RETURN_IF_ERROR(body.CheckObject("thinking"));
  if (!body.Has("thinking")) return absl::OkStatus();
  const Fields thinking(body["thinking"], "thinking");
  const Json& type = thinking["type"];
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return thinking.Expected("type", "\"enabled\", \"disabled\" or \"adaptive\"");
  }
  chat->Set("thinking", {{"type", type == "disabled" ? "disabled" : "enabled"}}, "thinking");
  if (type == "enabled") chat->Copy(thinking, "budget_tokens", "thinking_token_budget");
  return absl::OkStatus();
}

absl::Status AddOutputConfig(const Fields& body, ChatBody* chat) {
  HADAL_RETURN_IF_ERROR(body.CheckObject("output_config"));
  if (!body.Has("output_config")) return absl::OkStatus();
  const Fields config(body["output_config"], "output_config");
  chat->Copy(config, "effort", "reasoning_effort");
  HADAL_RETURN_IF_ERROR(config.CheckObject("format"));
  if (!config.Has("format")) return absl::OkStatus();
  const Fields format(config["format"], "output_config.format");
  if (format["type"] != "json_schema") return format.Expected("type", "\"json_schema\"");
  chat->Set("response_format",
            {{"type", "json_schema"}, {"json_schema", {{"name", "output"}, {"schema", format["schema"]}}}},
            "output_config.format");
  chat->Map("response_format.json_schema", "output_config.format");
  return absl::OkStatus();
}

// All but max_tokens, which counting does without.
absl::StatusOr<ChatBody> ReadBody(const Json& json) {
  if (!json.is_object()) return InvalidArgument("expected an object, found {}", Describe(json));
  const Fields body(json);
  if (body.Has("thread")) {
    // Taken for a conversation of its own, what continues one would be answered without what was said before.
    absl::Status status = InvalidArgument("thread: conversations are not kept here; send all messages");
    status.SetPayload(kCodePayload, absl::Cord("thread_unsupported_request"));
    return status;
  }
  ChatBody chat(body);
  HADAL_RETURN_IF_ERROR(AddMessages(body, &chat));
  HADAL_RETURN_IF_ERROR(AddTools(body, &chat));
  HADAL_RETURN_IF_ERROR(AddToolChoice(body, &chat));
  HADAL_RETURN_IF_ERROR(AddThinking(body, &chat));
  HADAL_RETURN_IF_ERROR(AddOutputConfig(body, &chat));
  HADAL_RETURN_IF_ERROR(body.CheckObject("metadata"));
  if (body.Has("metadata")) chat.Copy(Fields(body["metadata"], "metadata"), "user_id", "user");
  chat.Copy(body, "stop_sequences", "stop");
  if (chat.messages().back()["role"] == "assistant") chat.Set("continue_final_message", true, "messages");
  return chat;
}

}  // namespace

absl::StatusOr<Job> ParseMessages(const Json& body, const runtime::Engine& engine, const ParseOptions& options) {
  HADAL_ASSIGN_OR_RETURN(ChatBody chat, ReadBody(body));
  const Fields fields(body);
  if (!fields.Has("max_tokens")) return fields.Expected("max_tokens", "an integer of at least 1");
  chat.Copy(fields, "max_tokens", "max_tokens");
  HADAL_ASSIGN_OR_RETURN(Job job, chat.Parse(engine, options));
  job.kind = Job::Kind::kMessages;
  job.id = RandomId("msg_");
  return job;
}

absl::StatusOr<Json> CountMessageTokens(const Json& body, const runtime::Engine& engine, const ParseOptions& options) {
  HADAL_ASSIGN_OR_RETURN(ChatBody chat, ReadBody(body));
  HADAL_ASSIGN_OR_RETURN(const ChatPrompt prompt, chat.Prompt(engine, options));
  return Json{{"input_tokens", prompt.prompt.ids.size()}};
}

}  // namespace hadal::serving
