// A JSON Schema validator for the keywords that the tests use. It knows nothing of grammars.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace hadal::guided::test {

using Json = nlohmann::ordered_json;

class SchemaValidator {
 public:
  explicit SchemaValidator(const Json& root) : root_(root) {}

  bool Valid(const Json& value) const { return Valid(value, root_); }
  bool Valid(const Json& value, const Json& schema) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.contains("nullable") && schema["nullable"] == Json(true) && value.is_null()) return true;
    return ValidType(value, schema) && ValidCombination(value, schema) &&
           (!value.is_number() || ValidNumber(value, schema)) && (!value.is_string() || ValidString(value, schema)) &&
           (!value.is_array() || ValidArray(value, schema)) && (!value.is_object() || ValidObject(value, schema));
  }

 private:
  static bool HasType(const Json& value, const std::string& type) {
    if (type == "integer") return value.is_number() && value.get<double>() == std::floor(value.get<double>());
    if (type == "number") return value.is_number();
    return value.type_name() == type;
  }
  static bool ValidType(const Json& value, const Json& schema) {
    if (!schema.contains("type")) return true;
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    return std::any_of(types.begin(), types.end(), [&](const Json& type) { return HasType(value, type); });
  }
  bool ValidCombination(const Json& value, const Json& schema) const {
    if (schema.contains("enum") &&
        std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) {
      return false;
    }
    if (schema.contains("const") && value != schema["const"]) return false;
    const auto valid = [&](const Json& sub) { return Valid(value, sub); };
    if (schema.contains("$ref")) {
      const Json& target = root_.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1)));
      if (!Valid(value, target)) return false;
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      if (schema.contains(key) && std::none_of(schema[key].begin(), schema[key].end(), valid)) return false;
    }
    return !schema.contains("allOf") || std::all_of(schema["allOf"].begin(), schema["allOf"].end(), valid);
  }
  static bool ValidNumber(const Json& value, const Json& schema) {
    const double number = value.get<double>();
    return (!schema.contains("minimum") || number >= schema["minimum"].get<double>()) &&
           (!schema.contains("maximum") || number <= schema["maximum"].get<double>()) &&
           (!schema.contains("exclusiveMinimum") || number > schema["exclusiveMinimum"].get<double>()) &&
           (!schema.contains("exclusiveMaximum") || number < schema["exclusiveMaximum"].get<double>());
  }
  static bool ValidString(const Json& value, const Json& schema) {
    const auto text = value.get<std::string>();
    const auto length = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    if (schema.contains("minLength") && length < schema["minLength"].get<int>()) return false;
    if (schema.contains("maxLength") && length > schema["maxLength"].get<int>()) return false;
    return !schema.contains("pattern") || std::regex_search(text, std::regex(schema["pattern"].get<std::string>()));
  }
  bool ValidArray(const Json& value, const Json& schema) const {
    const size_t prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < prefix ? !Valid(value[i], schema["prefixItems"][i])
                     : schema.contains("items") && !Valid(value[i], schema["items"])) {
        return false;
      }
    }
    return (!schema.contains("minItems") || value.size() >= schema["minItems"].get<size_t>()) &&
           (!schema.contains("maxItems") || value.size() <= schema["maxItems"].get<size_t>());
  }
  bool ValidObject(const Json& value, const Json& schema) const {
    for (const auto& [name, member] : value.items()) {
      bool listed = schema.contains("properties") && schema["properties"].contains(name);
      if (listed && !Valid(member, schema["properties"][name])) return false;
      if (schema.contains("patternProperties")) {
        for (const auto& [pattern, sub] : schema["patternProperties"].items()) {
          if (!std::regex_search(name, std::regex(pattern))) continue;
          listed = true;
          if (!Valid(member, sub)) return false;
        }
      }
      if (!listed && schema.contains("additionalProperties") && !Valid(member, schema["additionalProperties"]))
        return false;
    }
    if (!schema.contains("required")) return true;
    return std::all_of(schema["required"].begin(), schema["required"].end(),
                       [&](const Json& name) { return value.contains(name.get<std::string>()); });
  }

  const Json& root_;
};

}  // namespace hadal::guided::test
