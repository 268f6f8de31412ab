// tools and tool_choice (spec serving-runtime 6.2).
#include <string>
#include <string_view>

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

// tool_choice as "none", "auto", "required" or "named".
absl::StatusOr<std::string> ReadChoice(const Fields& body, const absl::flat_hash_set<std::string>& names) {
  constexpr std::string_view kExpected =
      "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
  const Json& choice = body["tool_choice"];
  if (choice.is_null()) return std::string("auto");
  if (choice == "none" || choice == "auto" || choice == "required") return choice.get<std::string>();
  if (!choice.is_object()) return body.Expected("tool_choice", kExpected);
  const Fields fields(choice, "tool_choice");
  if (fields["type"] != "function" || !fields["function"].is_object()) return body.Expected("tool_choice", kExpected);
  const Fields function(fields["function"], "tool_choice.function");
  if (!function["name"].is_string()) return function.Expected("name", "a string");
  if (!names.contains(function["name"].get<std::string>())) {
    return function.Expected("name", "the name of one of the tools");
  }
  return std::string("named");
}

}  // namespace

absl::StatusOr<Json> ReadTools(const Fields& body) {
  const Json& tools = body["tools"];
  absl::flat_hash_set<std::string> names;
  if (!tools.is_null()) {
    if (!tools.is_array() || tools.empty()) return body.Expected("tools", "an array of at least one tool");
    for (size_t i = 0; i < tools.size(); ++i) {
      const std::string path = fmt::format("tools[{}]", i);
      HADAL_ASSIGN_OR_RETURN(const std::string name, CheckTool(tools[i], path));
      if (!names.insert(name).second) {
        return InvalidArgument("{}.function.name: expected different names, found \"{}\" again", path, name);
      }
    }
  }
  HADAL_ASSIGN_OR_RETURN(const std::string choice, ReadChoice(body, names));
  if (tools.is_null()) {
    if (body.Has("tool_choice") && choice != "none") {
      return InvalidArgument("tool_choice: expected only together with tools");
    }
    return Json();
  }
  if (choice == "required" || choice == "named") {
    if (body.Has("structured_outputs") || (body.Has("response_format") && body["response_format"].is_object() &&
                                           body["response_format"].value("type", Json()) != "text")) {
      return InvalidArgument("tool_choice: expected no guided decoding beside a required or named tool");
    }
    return InvalidArgument("tool_choice: expected \"none\" or \"auto\": that a tool is called cannot be demanded yet");
  }
  return choice == "none" ? Json() : tools;
}

}  // namespace hadal::serving
