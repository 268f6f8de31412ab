#include "guided/json_schema_keywords.h"

#include <algorithm>

#include "guided/json_schema_merge.h"

namespace hadal::guided {
namespace {

using Value = Keyword::Value;
using Concerns = Keyword::Concerns;

constexpr Keyword kKeywords[] = {
    {"title", Value::kIgnored},
    {"description", Value::kIgnored},
    {"default", Value::kIgnored},
    {"examples", Value::kIgnored},
    {"example", Value::kIgnored},
    {"deprecated", Value::kIgnored},
    {"readOnly", Value::kIgnored},
    {"writeOnly", Value::kIgnored},
    {"discriminator", Value::kIgnored},  // OpenAPI: a hint beside oneOf
    {"contentMediaType", Value::kIgnored},
    {"contentEncoding", Value::kIgnored},
    {"$comment", Value::kIgnored},
    {"$schema", Value::kIgnored},
    {"$id", Value::kIgnored},
    {"$defs", Value::kIgnored},  // looked at where they are referred to
    {"definitions", Value::kIgnored},
    {"$ref", Value::kString},
    {"allOf", Value::kSchemas},
    {"anyOf", Value::kSchemas},
    {"oneOf", Value::kSchemas},
    {"type", Value::kType},
    {"enum", Value::kArray},
    {"const", Value::kAny},
    {"nullable", Value::kBool},
    {"properties", Value::kNamedSchemas, Concerns::kObject},
    {"patternProperties", Value::kNamedSchemas, Concerns::kObject},
    {"additionalProperties", Value::kSchema, Concerns::kObject},
    {"propertyNames", Value::kSchema, Concerns::kObject},
    {"required", Value::kStrings, Concerns::kObject},
    {"minProperties", Value::kCount, Concerns::kObject},
    {"maxProperties", Value::kCount, Concerns::kObject},
    {"items", Value::kSchema, Concerns::kArray},
    {"prefixItems", Value::kSchemas, Concerns::kArray},
    {"minItems", Value::kCount, Concerns::kArray},
    {"maxItems", Value::kCount, Concerns::kArray},
    {"uniqueItems", Value::kBool, Concerns::kArray},
    {"minLength", Value::kCount, Concerns::kString},
    {"maxLength", Value::kCount, Concerns::kString},
    {"pattern", Value::kString, Concerns::kString},
    {"format", Value::kString, Concerns::kString},
    {kPatternsKey, Value::kStrings, Concerns::kString},
    {"minimum", Value::kNumber, Concerns::kNumber},
    {"maximum", Value::kNumber, Concerns::kNumber},
    {"exclusiveMinimum", Value::kNumber, Concerns::kNumber},
    {"exclusiveMaximum", Value::kNumber, Concerns::kNumber},
};

// What the keyword's value should have been; null if it is that.
const char* Expected(Value kind, const Json& value) {
  const auto all = [&](auto test) { return std::all_of(value.begin(), value.end(), test); };
  const auto is_string = [](const Json& element) { return element.is_string(); };
  switch (kind) {
    case Value::kIgnored:
    case Value::kAny:
      return nullptr;
    case Value::kSchema:
      return IsSchema(value) ? nullptr : "a schema";
    case Value::kSchemas:
      return value.is_array() && !value.empty() && all(IsSchema) ? nullptr : "a non-empty array of schemas";
    case Value::kNamedSchemas:
      return value.is_object() && all(IsSchema) ? nullptr : "an object of schemas";
    case Value::kType:
      return value.is_string() || (value.is_array() && !value.empty() && all(is_string))
                 ? nullptr
                 : "a type or a non-empty array of types";
    case Value::kArray:
      return value.is_array() ? nullptr : "an array";
    case Value::kStrings:
      return value.is_array() && all(is_string) ? nullptr : "an array of strings";
    case Value::kString:
      return value.is_string() ? nullptr : "a string";
    case Value::kCount:
      return value.is_number_unsigned() ? nullptr : "an integer of at least 0";
    case Value::kNumber:
      return value.is_number() ? nullptr : "a number";
    case Value::kBool:
      return value.is_boolean() ? nullptr : "true or false";
  }
  return nullptr;
}

absl::Status CheckTypes(const Json& schema, const std::string& path) {
  const Json types = TypesOf(schema);
  for (const Json& type : types) {
    static constexpr std::string_view kTypes[] = {"object", "array", "string", "integer", "number", "boolean", "null"};
    if (std::find(std::begin(kTypes), std::end(kTypes), type.get_ref<const std::string&>()) == std::end(kTypes)) {
      return SchemaError(path, "there is no type {}", type.dump());
    }
  }
  return absl::OkStatus();
}

}  // namespace

const Keyword* FindKeyword(std::string_view name) {
  for (const Keyword& keyword : kKeywords) {
    if (keyword.name == name) return &keyword;
  }
  return nullptr;
}

absl::Status CheckKeywords(const Json& schema, const std::string& path) {
  for (const auto& [key, value] : schema.items()) {
    if (key == kPatternsKey || key == kChoicesKey) continue;
    const Keyword* keyword = FindKeyword(key);
    if (keyword == nullptr) return SchemaError(path, "keyword '{}' is not supported", key);
    const char* expected = Expected(keyword->value, value);
    if (expected != nullptr) return SchemaError(path, "'{}': expected {}, found {}", key, expected, Excerpt(value));
  }
  if (schema.contains("uniqueItems") && schema["uniqueItems"] == Json(true)) {
    return SchemaError(path, "keyword 'uniqueItems' is not supported");
  }
  return CheckTypes(schema, path);
}

std::string Pointer(const std::string& path, std::string_view token) {
  std::string escaped;
  for (const char c : token) {
    if (c == '~') {
      escaped += "~0";
    } else if (c == '/') {
      escaped += "~1";
    } else {
      escaped += c;
    }
  }
  return path + "/" + escaped;
}

std::string Excerpt(const Json& value) {
  constexpr size_t kMaxBytes = 40;
  std::string text = value.dump();
  if (text.size() <= kMaxBytes) return text;
  size_t end = kMaxBytes;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // not inside a character
  return text.substr(0, end) + "...";
}

}  // namespace hadal::guided
