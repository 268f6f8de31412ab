// tools and tool_choice (spec serving-runtime 6.2).
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "serving/openai/request_parts.h"

namespace hadal::serving {
namespace {

using text::Json;

constexpr size_t kMaxName = 64;

bool GoodName(std::string_view name) {
  const auto good = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '-';
  };
  return !name.empty() && name.size() <= kMaxName && std::all_of(name.begin(), name.end(), good);
}

// The tool's name.
absl::StatusOr<std::string> CheckTool(const Json& tool, const std::string& path) {
  if (!tool.is_object()) return InvalidArgument("{}: expected an object, found {}", path, Describe(tool));
  const Fields fields(tool, path);
  if (fields.Has("type") && fields["type"] != "function") return fields.Expected("type", "\"function\"");
  if (!fields["function"].is_object()) return fields.Expected("function", "an object");
  const Fields function(fields["function"], fields.Path("function"));
  std::string name, description;
  HADAL_RETURN_IF_ERROR(function.Read("name", &name));
  if (!GoodName(name)) {
    return function.Expected("name", fmt::format("1 to {} letters, digits, \"_\", \".\" and \"-\"", kMaxName));
  }
  HADAL_RETURN_IF_ERROR(function.Read("description", &description));
  HADAL_RETURN_IF_ERROR(function.CheckObject("parameters"));
  return name;
}

constexpr std::string_view kExpectedChoice =
    "\"none\", \"auto\", \"required\", {\"type\": \"function\", \"function\": {\"name\": ...}} or {\"type\": "
    "\"allowed_tools\", \"allowed_tools\": {\"mode\": ..., \"tools\": [...]}}";

// The tools of that name, of which there is one.
absl::StatusOr<Json> FindTool(const Json& tools, const Fields& function) {
  if (!function["name"].is_string()) return function.Expected("name", "a string");
  for (const Json& tool : tools) {
    if (tool["function"]["name"] == function["name"]) return Json::array({tool});
  }
  return function.Expected("name", "the name of one of the tools");
}

// {"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name"}}, ...]}
absl::Status ReadAllowedTools(const Fields& choice, ToolUse* use) {
  if (!choice["allowed_tools"].is_object()) return choice.Expected("allowed_tools", "an object");
  const Fields allowed(choice["allowed_tools"], "tool_choice.allowed_tools");
  const Json& mode = allowed["mode"];
  if (mode != "auto" && mode != "required") return allowed.Expected("mode", "\"auto\" or \"required\"");
  use->required = mode == "required";
  const Json& names = allowed["tools"];
  if (!names.is_array() || names.empty()) return allowed.Expected("tools", "an array of at least one tool");
  use->callable = Json::array();
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string path = fmt::format("tool_choice.allowed_tools.tools[{}]", i);
    if (!names[i].is_object()) return InvalidArgument("{}: expected an object, found {}", path, Describe(names[i]));
    const Fields tool(names[i], path);
    if (tool["type"] != "function") return tool.Expected("type", "\"function\"");
    if (!tool["function"].is_object()) return tool.Expected("function", "an object");
    HADAL_ASSIGN_OR_RETURN(const Json found, FindTool(use->offered, Fields(tool["function"], path + ".function")));
    if (std::find(use->callable.begin(), use->callable.end(), found[0]) == use->callable.end()) {
      use->callable.push_back(found[0]);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadChoice(const Fields& body, ToolUse* use) {
  const Json& choice = body["tool_choice"];
  if (choice.is_null() || choice == "auto") return absl::OkStatus();
  if (choice == "none") {
    *use = {};
    return absl::OkStatus();
  }
  if (choice == "required") {
    use->required = true;
    return absl::OkStatus();
  }
  if (!choice.is_object()) return body.Expected("tool_choice", kExpectedChoice);
  const Fields fields(choice, "tool_choice");
  if (fields["type"] == "allowed_tools") return ReadAllowedTools(fields, use);
  if (fields["type"] != "function" || !fields["function"].is_object()) {
    return body.Expected("tool_choice", kExpectedChoice);
  }
  HADAL_ASSIGN_OR_RETURN(use->callable, FindTool(use->offered, Fields(fields["function"], "tool_choice.function")));
  use->required = use->one_call = true;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ToolUse> ReadTools(const Fields& body) {
  const Json& tools = body["tools"];
  ToolUse use;
  if (tools.is_null()) {
    if (!body.Has("tool_choice") || body["tool_choice"] == "none") return use;
    // Whatever is wrong with a choice comes first.
    if (!body["tool_choice"].is_object() && body["tool_choice"] != "auto" && body["tool_choice"] != "required") {
      return body.Expected("tool_choice", kExpectedChoice);
    }
    return InvalidArgument("tool_choice: expected only together with tools");
  }
  if (!tools.is_array() || tools.empty()) return body.Expected("tools", "an array of at least one tool");
  absl::flat_hash_set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    HADAL_ASSIGN_OR_RETURN(const std::string name, CheckTool(tools[i], path));
    if (!names.insert(name).second) {
      return InvalidArgument("{}.function.name: expected different names, found \"{}\" again", path, name);
    }
  }
  use.offered = use.callable = tools;
  HADAL_RETURN_IF_ERROR(ReadChoice(body, &use));
  const bool guided =
      body.Has("structured_outputs") || (body.Has("response_format") && body["response_format"].is_object() &&
                                         body["response_format"].value("type", Json()) != "text");
  if (use.required && guided) {
    return InvalidArgument("tool_choice: expected no guided decoding beside a required or named tool");
  }
  return use;
}

}  // namespace hadal::serving
