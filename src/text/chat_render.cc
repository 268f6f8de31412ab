#include "text/chat_render.h"

#include <utility>

namespace hadal::text {
namespace {

const Json kNull;

constexpr std::string_view kToolsHeadV4 =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kToolsTailV4 =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

constexpr std::string_view kToolsHeadV32 =
    R"(## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:

<｜DSML｜function_calls>
...
</｜DSML｜function_calls>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
)";
constexpr std::string_view kToolsTailV32 = "\n</functions>\n";

constexpr std::string_view kResponseFormat =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

absl::Status WriteParameters(const Json& arguments, PromptWriter* writer) {
  bool first = true;
  for (const auto& [key, value] : arguments.get_ref<const Json::object_t&>()) {
    if (!first) writer->Trusted("\n");
    first = false;
    writer->Trusted("<｜DSML｜parameter name=\"");
    writer->Plain(key);
    if (value.is_string()) {
      writer->Trusted("\" string=\"true\">");
      writer->Plain(value.get_ref<const std::string&>());
    } else {
      writer->Trusted("\" string=\"false\">");
      writer->Plain(DumpJson(value));
    }
    writer->Trusted("</｜DSML｜parameter>");
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ReadArguments(const Json& arguments, Dialect dialect, std::string_view where) {
  if (arguments.is_object()) return arguments;
  if (!arguments.is_string()) {
    return InvalidArgument("{}.function.arguments: expected a string holding a JSON object, found {}", where,
                           arguments.type_name());
  }
  absl::StatusOr<Json> parsed = ParseJson(arguments.get_ref<const std::string&>());
  if (!parsed.ok()) {
    if (dialect == Dialect::kV4) return Json{{"arguments", arguments}};
    return InvalidArgument("{}.function.arguments: {}", where, Message(parsed.status()));
  }
  if (!parsed->is_object()) {
    return InvalidArgument("{}.function.arguments: expected a JSON object, found {}", where, parsed->type_name());
  }
  return parsed;
}

absl::Status WriteCall(const Json& call, Dialect dialect, std::string_view where, PromptWriter* writer) {
  const Json& function = Field(call, "function");
  if (!function.is_object()) return InvalidArgument("{}.function: expected an object", where);
  const Json& name = Field(function, "name");
  if (!name.is_string()) return InvalidArgument("{}.function.name: expected a string", where);
  HADAL_ASSIGN_OR_RETURN(const Json arguments, ReadArguments(Field(function, "arguments"), dialect, where));
  writer->Trusted("<｜DSML｜invoke name=\"");
  writer->Plain(name.get_ref<const std::string&>());
  writer->Trusted("\">\n");
  HADAL_RETURN_IF_ERROR(WriteParameters(arguments, writer));
  writer->Trusted("\n</｜DSML｜invoke>\n");
  return absl::OkStatus();
}

absl::Status WriteTools(const Json& tools, Dialect dialect, std::string_view where, PromptWriter* writer) {
  if (!tools.is_array()) return InvalidArgument("{}.tools: expected an array, found {}", where, tools.type_name());
  writer->Trusted(dialect == Dialect::kV4 ? kToolsHeadV4 : kToolsHeadV32);
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& function = Field(tools[i], "function");
    if (!function.is_object()) return InvalidArgument("{}.tools[{}].function: expected an object", where, i);
    if (i > 0) writer->Trusted("\n");
    writer->Plain(DumpJson(function));
  }
  writer->Trusted(dialect == Dialect::kV4 ? kToolsTailV4 : kToolsTailV32);
  return absl::OkStatus();
}

absl::Status WritePart(const Json& part, const ContentStyle& style, ImageRef ref, std::string_view where,
                       PromptWriter* writer) {
  if (part.is_string()) {
    writer->Plain(part.get_ref<const std::string&>());
    return absl::OkStatus();
  }
  if (!part.is_object()) return InvalidArgument("{}: expected an object, found {}", where, part.type_name());
  HADAL_ASSIGN_OR_RETURN(const std::string_view type, StringField(part, "type", where));
  if (type == "text") {
    HADAL_ASSIGN_OR_RETURN(const std::string_view text, StringField(part, "text", where));
    writer->Plain(text);
  } else if (style.unsupported_as_text) {
    writer->Plain(fmt::format("[Unsupported {}]", type));
  } else if (type == "image_url" || type == "image") {
    if (!style.images) return InvalidArgument("{}: images are not accepted here", where);
    writer->Image(ref);
  } else {
    return InvalidArgument("{}: unknown content type \"{}\"", where, type);
  }
  return absl::OkStatus();
}

}  // namespace

void PromptWriter::Add(std::string_view text, bool trusted) {
  if (text.empty()) return;
  if (prompt_.spans.empty() || prompt_.spans.back().trusted != trusted) prompt_.spans.push_back({"", trusted});
  prompt_.spans.back().text += text;
}

void PromptWriter::Image(ImageRef image) {
  Trusted(kImageText);
  prompt_.images.push_back(image);
}

Prompt PromptWriter::Take() {
  const auto& spans = prompt_.spans;
  if (!spans.empty() && spans.back().trusted) prompt_.starts_in_reasoning = OpensReasoning(spans.back().text);
  return std::move(prompt_);
}

absl::StatusOr<Role> RoleOf(const Json& message, std::string_view where) {
  HADAL_ASSIGN_OR_RETURN(const std::string_view role, StringField(message, "role", where));
  if (role == "system") return Role::kSystem;
  if (role == "developer") return Role::kDeveloper;
  if (role == "user") return Role::kUser;
  if (role == "assistant") return Role::kAssistant;
  if (role == "tool") return Role::kTool;
  if (role == "latest_reminder") return Role::kLatestReminder;
  return InvalidArgument("{}.role: unknown role \"{}\"", where, role);
}

absl::Status CheckMessages(const Json& messages, std::string_view where) {
  if (!messages.is_array()) return InvalidArgument("{}: expected an array, found {}", where, messages.type_name());
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) {
      return InvalidArgument("{}[{}]: expected an object, found {}", where, i, messages[i].type_name());
    }
  }
  return absl::OkStatus();
}

const Json& Field(const Json& object, const char* key) {
  if (!object.is_object()) return kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

absl::StatusOr<std::string_view> StringField(const Json& object, const char* key, std::string_view where) {
  const Json& value = Field(object, key);
  if (value.is_null()) return std::string_view();
  if (value.is_string()) return std::string_view(value.get_ref<const std::string&>());
  return InvalidArgument("{}.{}: expected a string, found {}", where, key, value.type_name());
}

bool IsEmpty(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return true;
    case Json::value_t::boolean:
      return !value.get<bool>();
    case Json::value_t::string:
      return value.get_ref<const std::string&>().empty();
    case Json::value_t::array:
    case Json::value_t::object:
      return value.empty();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return value.get<double>() == 0;
    default:
      return false;
  }
}

bool HasTools(const Json& message) { return !IsEmpty(Field(message, "tools")); }
bool HasCalls(const Json& message) { return !IsEmpty(Field(message, "tool_calls")); }

absl::Status WriteContent(const Json& content, const ContentStyle& style, size_t index, std::string_view where,
                          PromptWriter* writer) {
  if (content.is_null()) return absl::OkStatus();
  if (content.is_string()) {
    writer->Plain(content.get_ref<const std::string&>());
    return absl::OkStatus();
  }
  if (!content.is_array()) {
    return InvalidArgument("{}.content: expected a string, null or an array of parts, found {}", where,
                           content.type_name());
  }
  for (size_t i = 0; i < content.size(); ++i) {
    if (i > 0) writer->Plain(style.joint);
    HADAL_RETURN_IF_ERROR(WritePart(content[i], style, {index, i}, fmt::format("{}.content[{}]", where, i), writer));
  }
  return absl::OkStatus();
}

absl::Status WriteExtras(const Json& message, Dialect dialect, std::string_view where, PromptWriter* writer) {
  if (HasTools(message)) {
    writer->Trusted("\n\n");
    HADAL_RETURN_IF_ERROR(WriteTools(Field(message, "tools"), dialect, where, writer));
  }
  const Json& format = Field(message, "response_format");
  if (!IsEmpty(format)) {
    writer->Trusted("\n\n");
    writer->Trusted(kResponseFormat);
    writer->Plain(DumpJson(format));
  }
  return absl::OkStatus();
}

absl::Status WriteCalls(const Json& calls, Dialect dialect, std::string_view where, PromptWriter* writer) {
  if (!calls.is_array()) {
    return InvalidArgument("{}.tool_calls: expected an array, found {}", where, calls.type_name());
  }
  const std::string_view block = CallBlockName(dialect);
  writer->Trusted(fmt::format("\n\n<{}{}>\n", kDsmlText, block));
  for (size_t i = 0; i < calls.size(); ++i) {
    HADAL_RETURN_IF_ERROR(WriteCall(calls[i], dialect, fmt::format("{}.tool_calls[{}]", where, i), writer));
  }
  writer->Trusted(fmt::format("</{}{}>", kDsmlText, block));
  return absl::OkStatus();
}

absl::StatusOr<std::string_view> Reasoning(const Json& message, std::string_view where) {
  HADAL_ASSIGN_OR_RETURN(const std::string_view reasoning, StringField(message, "reasoning_content", where));
  if (!reasoning.empty()) return reasoning;
  return StringField(message, "reasoning", where);
}

absl::Status WriteAssistantContent(const Json& message, const ChatOptions& options, size_t index,
                                   std::string_view where, PromptWriter* writer) {
  const Json& content = Field(message, "content");
  if (options.trim_content_before_calls && content.is_string() && HasCalls(message)) {
    std::string_view text = content.get_ref<const std::string&>();
    while (text.ends_with('\n')) text.remove_suffix(1);
    writer->Plain(text);
    return absl::OkStatus();
  }
  return WriteContent(content, ContentStyle{}, index, where, writer);
}

}  // namespace hadal::text
