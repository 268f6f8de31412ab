// The body of /v1/responses (spec serving-runtime 6.10).
#include <algorithm>
#include <utility>

#include "base/status.h"
#include "serving/responses/response_parts.h"
#include "serving/responses/responses.h"

namespace hadal::serving {
namespace {

using text::Json;

constexpr size_t kMaxMetadata = 16, kMaxMetadataKey = 64, kMaxMetadataValue = 512;
constexpr int64_t kMaxTopLogprobs = 20;

absl::Status CheckUnsupported(const Fields& body) {
  bool background = false;
  HADAL_RETURN_IF_ERROR(body.Read("background", &background));
  if (background) return Unimplemented("background: expected false: answers are made while the client waits");
  if (body.Has("prompt")) return Unimplemented("prompt: there are no stored prompts: expected instructions and input");
  if (body.Has("conversation")) {
    return Unimplemented("conversation: there are no stored conversations: expected input, or previous_response_id");
  }
  int64_t top_logprobs = 0;
  HADAL_RETURN_IF_ERROR(body.ReadRange("top_logprobs", 0, kMaxTopLogprobs, &top_logprobs));
  if (top_logprobs > 0) return InvalidArgument("top_logprobs: not supported here, as /v1/chat/completions does");
  std::vector<std::string> include;
  HADAL_RETURN_IF_ERROR(body.ReadStrings("include", &include));
  if (std::find(include.begin(), include.end(), "message.output_text.logprobs") != include.end()) {
    return InvalidArgument("include: log-probabilities are not supported here, as /v1/chat/completions does");
  }
  return absl::OkStatus();
}

absl::Status CheckMetadata(const Fields& body) {
  HADAL_RETURN_IF_ERROR(body.CheckObject("metadata"));
  const Json& metadata = body["metadata"];
  if (metadata.is_null()) return absl::OkStatus();
  if (metadata.size() > kMaxMetadata) {
    return InvalidArgument("metadata: expected at most {} entries, found {}", kMaxMetadata, metadata.size());
  }
  for (const auto& [key, value] : metadata.get_ref<const Json::object_t&>()) {
    const bool good = CountChars(key) <= kMaxMetadataKey && value.is_string() &&
                      CountChars(value.get_ref<const std::string&>()) <= kMaxMetadataValue;
    if (!good) {
      return InvalidArgument("metadata: expected strings of at most {} characters under keys of at most {}",
                             kMaxMetadataValue, kMaxMetadataKey);
    }
  }
  return absl::OkStatus();
}

absl::Status AddTools(const Fields& body, ChatBody* chat) {
  const Json& tools = body["tools"];
  if (tools.is_null()) return absl::OkStatus();
  if (!tools.is_array()) return body.Expected("tools", "an array of tools");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) return InvalidArgument("{}: expected an object, found {}", path, Describe(tools[i]));
    const Fields tool(tools[i], path);
    if (tool["type"] != "function") {
      return tool.Expected("type", "\"function\": there are no tools of the server's own");
    }
    Json function = {{"name", tool["name"]}};
    if (tool.Has("description")) function["description"] = tool["description"];
    if (tool.Has("parameters")) function["parameters"] = tool["parameters"];
    const std::string at = chat->AddTool({{"type", "function"}, {"function", std::move(function)}}, path);
    chat->Map(at + ".function", path);
  }
  return absl::OkStatus();
}

// {"type": "allowed_tools", "mode", "tools": [{"type": "function", "name"}, ...]}
absl::Status AddAllowedTools(const Fields& choice, ChatBody* chat) {
  Json tools = choice["tools"];
  chat->Map("tool_choice.allowed_tools", "tool_choice");
  for (size_t i = 0; tools.is_array() && i < tools.size(); ++i) {
    if (!tools[i].is_object()) continue;  // for the chat's reader
    tools[i] = {{"type", tools[i].value("type", Json())}, {"function", {{"name", tools[i].value("name", Json())}}}};
    chat->Map(fmt::format("tool_choice.allowed_tools.tools[{}].function", i), fmt::format("tool_choice.tools[{}]", i));
  }
  chat->Set("tool_choice",
            {{"type", "allowed_tools"}, {"allowed_tools", {{"mode", choice["mode"]}, {"tools", std::move(tools)}}}},
            "tool_choice");
  return absl::OkStatus();
}

absl::Status AddToolChoice(const Fields& body, ChatBody* chat) {
  const Json& choice = body["tool_choice"];
  if (choice == "auto" || choice == "none") {
    // What a client may say without tools, too.
    if (body.Has("tools") && !body["tools"].empty()) chat->Copy(body, "tool_choice", "tool_choice");
    return absl::OkStatus();
  }
  if (!choice.is_object()) {
    chat->Copy(body, "tool_choice", "tool_choice");
    return absl::OkStatus();
  }
  const Fields fields(choice, "tool_choice");
  if (fields["type"] == "allowed_tools") return AddAllowedTools(fields, chat);
  if (fields["type"] != "function") return fields.Expected("type", "\"function\" or \"allowed_tools\"");
  chat->Set("tool_choice", {{"type", "function"}, {"function", {{"name", fields["name"]}}}}, "tool_choice");
  chat->Map("tool_choice.function", "tool_choice");
  return absl::OkStatus();
}

absl::Status AddReasoning(const Fields& body, ChatBody* chat) {
  HADAL_RETURN_IF_ERROR(body.CheckObject("reasoning"));
  if (!body.Has("reasoning")) return absl::OkStatus();
  const Fields reasoning(body["reasoning"], "reasoning");
  std::string ignored;
  HADAL_RETURN_IF_ERROR(reasoning.Read("summary", &ignored));
  chat->Copy(reasoning, "effort", "reasoning_effort");
  return absl::OkStatus();
}

absl::Status AddFormat(const Fields& body, ChatBody* chat) {
  HADAL_RETURN_IF_ERROR(body.CheckObject("text"));
  if (!body.Has("text")) return absl::OkStatus();
  const Fields text(body["text"], "text");
  std::string ignored;
  HADAL_RETURN_IF_ERROR(text.Read("verbosity", &ignored));
  HADAL_RETURN_IF_ERROR(text.CheckObject("format"));
  if (!text.Has("format")) return absl::OkStatus();
  Json format = text["format"];
  if (format.value("type", Json()) == "json_schema") {
    format.erase("type");
    format = {{"type", "json_schema"}, {"json_schema", std::move(format)}};
  }
  chat->Set("response_format", std::move(format), "text.format");
  chat->Map("response_format.json_schema", "text.format");
  return absl::OkStatus();
}

// A request's conversation: what was stored of it, and what the body adds.
struct History {
  Json items = Json::array();
  size_t stored = 0;
  bool text_only = false;  // the input is a string

  std::string Path(size_t i) const {
    if (i < stored) return "previous_response_id";
    return text_only ? "input" : fmt::format("input[{}]", i - stored);
  }
};

absl::StatusOr<History> ReadHistory(const Fields& body, ResponseStore* store, const std::string& owner) {
  History history;
  std::string previous;
  HADAL_RETURN_IF_ERROR(body.Read("previous_response_id", &previous));
  if (body.Has("previous_response_id")) {
    const auto stored = store == nullptr ? nullptr : store->Get(owner, previous);
    if (stored == nullptr) {
      return NotFound("previous_response_id: no response {} is stored{}", Describe(Json(previous)),
                      store == nullptr ? ": storing them is off" : "");
    }
    HADAL_ASSIGN_OR_RETURN(history.items, text::ParseJson(stored->items));
    history.stored = history.items.size();
  }
  const Json& input = body["input"];
  if (input.is_string()) {
    history.text_only = true;
    history.items.push_back({{"type", "message"}, {"role", "user"}, {"content", input}});
    return history;
  }
  if (!input.is_array() || input.empty()) {
    return body.Expected("input", "a string or an array of at least one item");
  }
  for (const Json& item : input) history.items.push_back(item);
  return history;
}

bool HasRole(const Json& item, std::string_view role) { return item.is_object() && item.value("role", Json()) == role; }

// Reads the request with the items from `first` on, and all instructions before it.
absl::StatusOr<Job> ParseFrom(const Fields& body, const History& history, size_t first, const runtime::Engine& engine,
                              const ParseOptions& options) {
  ChatBody chat(body);
  chat.Map("messages", "input");
  if (body.Has("instructions")) {
    const std::string at = chat.AddMessage({{"role", "system"}, {"content", body["instructions"]}}, "instructions");
    chat.Map(at + ".content", "instructions");
  }
  ItemReader reader(&chat);
  for (size_t i = 0; i < history.items.size(); ++i) {
    const Json& item = history.items[i];
    if (i < first && !HasRole(item, "system") && !HasRole(item, "developer")) continue;
    HADAL_RETURN_IF_ERROR(reader.Add(item, history.Path(i)));
  }
  reader.Finish();
  HADAL_RETURN_IF_ERROR(AddTools(body, &chat));
  HADAL_RETURN_IF_ERROR(AddToolChoice(body, &chat));
  HADAL_RETURN_IF_ERROR(AddReasoning(body, &chat));
  HADAL_RETURN_IF_ERROR(AddFormat(body, &chat));
  chat.Copy(body, "max_output_tokens", "max_tokens");
  chat.Copy(body, "parallel_tool_calls", "parallel_tool_calls");
  chat.Copy(body, "user", "user");
  return chat.Parse(engine, options);
}

// As much of the conversation as fits: its beginning is left out up to a message of the user.
absl::StatusOr<Job> ParseWhatFits(const Fields& body, const History& history, const runtime::Engine& engine,
                                  const ParseOptions& options) {
  absl::StatusOr<Job> job = ParseFrom(body, history, 0, engine, options);
  if (job.ok() || !IsContextOverflow(job.status())) return job;
  std::vector<size_t> turns;
  for (size_t i = 1; i < history.items.size(); ++i) {
    if (HasRole(history.items[i], "user")) turns.push_back(i);
  }
  // The more is left out, the shorter it is.
  for (size_t begin = 0, end = turns.size(); begin < end;) {
    const size_t middle = begin + (end - begin) / 2;
    absl::StatusOr<Job> shorter = ParseFrom(body, history, turns[middle], engine, options);
    if (!shorter.ok() && !IsContextOverflow(shorter.status())) return shorter;
    if (shorter.ok()) {
      end = middle;
      job = std::move(shorter);
    } else {
      begin = middle + 1;
    }
  }
  return job;
}

Json Repeated(const Fields& body, const Job& job, const std::string& truncation) {
  const auto given = [&](const char* name, const Json& otherwise) { return body.Has(name) ? body[name] : otherwise; };
  const auto inside = [&](const char* name, const char* member) {
    return body.Has(name) ? body[name].value(member, Json()) : Json();
  };
  const Json format = inside("text", "format");
  const runtime::SamplingParams& sampling = job.requests[0].sampling;
  return {{"background", false},
          {"instructions", body["instructions"]},
          {"max_output_tokens", body["max_output_tokens"]},
          {"metadata", given("metadata", Json::object())},
          {"parallel_tool_calls", job.parallel_tool_calls},
          {"previous_response_id", body["previous_response_id"]},
          {"reasoning", {{"effort", inside("reasoning", "effort")}, {"summary", nullptr}}},
          {"store", job.responses.store != nullptr},
          {"temperature", sampling.temperature},
          {"text", {{"format", format.is_null() ? Json{{"type", "text"}} : format}}},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_p", sampling.top_p},
          {"truncation", truncation},
          {"user", body["user"]}};
}

}  // namespace

absl::StatusOr<Job> ParseResponses(const Json& body, const runtime::Engine& engine, const ParseOptions& options) {
  if (!body.is_object()) return InvalidArgument("expected an object, found {}", Describe(body));
  const Fields fields(body);
  HADAL_RETURN_IF_ERROR(CheckUnsupported(fields));
  HADAL_RETURN_IF_ERROR(CheckMetadata(fields));
  std::string truncation = "disabled";
  HADAL_RETURN_IF_ERROR(fields.Read("truncation", &truncation));
  if (truncation != "auto" && truncation != "disabled")
    return fields.Expected("truncation", "\"auto\" or \"disabled\"");
  bool keep = true;
  HADAL_RETURN_IF_ERROR(fields.Read("store", &keep));
  HADAL_ASSIGN_OR_RETURN(History history, ReadHistory(fields, options.store, options.owner));
  absl::StatusOr<Job> job = truncation == "auto" ? ParseWhatFits(fields, history, engine, options)
                                                 : ParseFrom(fields, history, 0, engine, options);
  if (!job.ok()) return job.status();
  job->kind = Job::Kind::kResponses;
  job->id = RandomId("resp_");
  job->responses.owner = options.owner;
  if (keep && options.store != nullptr) {
    job->responses.store = options.store;
    job->responses.items = std::move(history.items);
  }
  job->responses.repeated = Repeated(fields, *job, truncation);
  return job;
}

int ResponsesHttpStatus(const absl::Status& status) { return absl::IsUnimplemented(status) ? 501 : HttpStatus(status); }

Json ResponsesErrorBody(const absl::Status& status) {
  Json body = ErrorBody(status);
  if (!absl::IsUnimplemented(status)) return body;
  return ErrorBody(501, Message(status), body["error"]["param"]);
}

}  // namespace hadal::serving
