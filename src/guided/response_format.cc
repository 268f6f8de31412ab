#include "guided/response_format.h"

#include <algorithm>
#include <string>
#include <utility>

#include "guided/json_syntax.h"

namespace hadal::guided {
namespace {

using MaybeSpec = std::optional<GuidedSpec>;

// The member, or null.
const Json& Member(const Json& object, const char* key) {
  static const Json* const null = new Json();
  const auto found = object.find(key);
  return found == object.end() ? *null : *found;
}

absl::Status CheckMembers(const char* what, const Json& object, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (!value.is_null() && std::find(known.begin(), known.end(), key) == known.end()) {
      return InvalidArgument("{}.{}: not supported", what, key);
    }
  }
  return absl::OkStatus();
}

// Numbers that no machine type holds, as the server's JSON reader keeps them.
bool HoldsRawNumber(const Json& value) {
  if (value.is_binary()) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(), HoldsRawNumber);
}

absl::StatusOr<GuidedSpec> Schema(const char* where, const Json& schema) {
  if (!schema.is_object() && !schema.is_boolean()) return InvalidArgument("{}: expected a JSON schema", where);
  if (HoldsRawNumber(schema)) return InvalidArgument("{}: holds a number that is out of range", where);
  return GuidedSpec{.kind = GuidedSpec::Kind::kJsonSchema, .text = schema.dump()};
}

absl::StatusOr<MaybeSpec> FromResponseFormat(const Json& format) {
  if (!format.is_object()) return InvalidArgument("response_format: expected an object");
  const Json& type = Member(format, "type");
  if (!type.is_string()) return InvalidArgument("response_format.type: expected text, json_object or json_schema");
  if (type == "text" || type == "json_object") {
    HADAL_RETURN_IF_ERROR(CheckMembers("response_format", format, {"type"}));
    if (type == "text") return std::nullopt;
    return GuidedSpec{.kind = GuidedSpec::Kind::kJsonObject};
  }
  if (type != "json_schema") {
    return InvalidArgument("response_format.type: expected text, json_object or json_schema, found '{}'",
                           type.get<std::string>());
  }
  HADAL_RETURN_IF_ERROR(CheckMembers("response_format", format, {"type", "json_schema"}));
  const Json& named = Member(format, "json_schema");
  if (!named.is_object()) return InvalidArgument("response_format.json_schema: expected an object");
  HADAL_RETURN_IF_ERROR(
      CheckMembers("response_format.json_schema", named, {"name", "schema", "strict", "description"}));
  if (!Member(named, "name").is_string()) return InvalidArgument("response_format.json_schema.name: expected a string");
  const Json& strict = Member(named, "strict");
  if (!strict.is_null() && !strict.is_boolean()) {
    return InvalidArgument("response_format.json_schema.strict: expected true or false");
  }
  return Schema("response_format.json_schema.schema", Member(named, "schema"));
}

absl::StatusOr<MaybeSpec> FromText(GuidedSpec::Kind kind, const char* where, const Json& text) {
  if (!text.is_string()) return InvalidArgument("{}: expected a string", where);
  return GuidedSpec{.kind = kind, .text = text.get<std::string>()};
}

absl::StatusOr<MaybeSpec> FromStructuredOutputs(const Json& outputs) {
  static constexpr const char* kKinds[] = {"json", "regex", "choice", "grammar", "json_object"};
  if (!outputs.is_object()) return InvalidArgument("structured_outputs: expected an object");
  HADAL_RETURN_IF_ERROR(
      CheckMembers("structured_outputs", outputs, {"json", "regex", "choice", "grammar", "json_object"}));
  std::string given;
  for (const char* kind : kKinds) {
    if (Member(outputs, kind).is_null()) continue;
    if (!given.empty())
      return InvalidArgument("structured_outputs: both {} and {} are given, at most one may be", given, kind);
    given = kind;
  }
  if (given.empty())
    return InvalidArgument("structured_outputs: expected one of json, regex, choice, grammar, json_object");
  const Json& value = Member(outputs, given.c_str());
  if (given == "regex") return FromText(GuidedSpec::Kind::kRegex, "structured_outputs.regex", value);
  if (given == "grammar") return FromText(GuidedSpec::Kind::kGrammar, "structured_outputs.grammar", value);
  if (given == "json" && value.is_string()) {
    return FromText(GuidedSpec::Kind::kJsonSchema, "structured_outputs.json", value);
  }
  if (given == "json") return Schema("structured_outputs.json", value);
  if (given == "choice") {
    const bool strings = value.is_array() && !value.empty() &&
                         std::all_of(value.begin(), value.end(), [](const Json& choice) { return choice.is_string(); });
    if (!strings) return InvalidArgument("structured_outputs.choice: expected a non-empty array of strings");
    return GuidedSpec{.kind = GuidedSpec::Kind::kChoice, .text = value.dump()};
  }
  if (!value.is_boolean()) return InvalidArgument("structured_outputs.json_object: expected true or false");
  if (value == Json(false)) return std::nullopt;
  return GuidedSpec{.kind = GuidedSpec::Kind::kJsonObject};
}

}  // namespace

absl::StatusOr<MaybeSpec> ParseResponseFormat(const nlohmann::ordered_json& body) {
  if (!body.is_object()) return InvalidArgument("expected an object as the request's body");
  MaybeSpec spec, other;
  const Json& format = Member(body, "response_format");
  const Json& outputs = Member(body, "structured_outputs");
  if (!format.is_null()) {
    HADAL_ASSIGN_OR_RETURN(spec, FromResponseFormat(format));
  }
  if (!outputs.is_null()) {
    HADAL_ASSIGN_OR_RETURN(other, FromStructuredOutputs(outputs));
  }
  if (spec.has_value() && other.has_value()) {
    return InvalidArgument("response_format and structured_outputs are both given, at most one may be");
  }
  return spec.has_value() ? spec : other;
}

}  // namespace hadal::guided
