#include "guided/json_schema_merge.h"

#include <algorithm>
#include <string_view>

#include "base/status.h"

namespace hadal::guided {
namespace {

bool Contains(const Json& array, const Json& value) {
  return std::find(array.begin(), array.end(), value) != array.end();
}

bool IsOneOf(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

Json AllOf(const Json& a, const Json& b) {
  if (a == b || b == Json(true)) return a;
  if (a == Json(true)) return b;
  return {{"allOf", Json::array({a, b})}};
}

Json MergeTypes(const Json& a, const Json& b) {
  Json types = Json::array();
  for (const Json& type : a) {
    if (Contains(b, type) || (type == "integer" && Contains(b, "number"))) {
      types.push_back(type);
    } else if (type == "number" && Contains(b, "integer")) {
      types.push_back("integer");
    }
  }
  return types;
}

Json Union(Json a, const Json& b) {
  for (const Json& value : b) {
    if (!Contains(a, value)) a.push_back(value);
  }
  return a;
}

Json Intersection(const Json& a, const Json& b) {
  Json both = Json::array();
  for (const Json& value : a) {
    if (Contains(b, value)) both.push_back(value);
  }
  return both;
}

// What `schema` demands of a property that it does not list.
Json Unlisted(const Json& schema) {
  const auto found = schema.find("additionalProperties");
  return found == schema.end() ? Json(true) : *found;
}

Json MergeProperties(const Json& a, const Json& b) {
  const Json none = Json::object();
  const Json& left = a.contains("properties") ? a["properties"] : none;
  const Json& right = b.contains("properties") ? b["properties"] : none;
  Json merged = Json::object();
  for (const auto& [name, schema] : left.items()) {
    const auto other = right.find(name);
    merged[name] = AllOf(schema, other == right.end() ? Unlisted(b) : *other);
  }
  for (const auto& [name, schema] : right.items()) {
    if (!left.contains(name)) merged[name] = AllOf(schema, Unlisted(a));
  }
  return merged;
}

// The value of a keyword that both have.
absl::StatusOr<Json> MergeKeyword(const std::string& key, const Json& a, const Json& b, const std::string& path) {
  if (a == b) return a;
  if (IsOneOf(key, {"required", kPatternsKey})) return Union(a, b);
  if (key == "enum") return Intersection(a, b);
  if (IsOneOf(key, {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})) return std::max(a, b);
  if (IsOneOf(key, {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})) return std::min(a, b);
  if (IsOneOf(key, {"items", "additionalProperties", "propertyNames"})) return AllOf(a, b);
  if (key == kChoicesKey) {
    Json both = a;
    both.insert(both.end(), b.begin(), b.end());
    return both;
  }
  if (key == "nullable" || key == "uniqueItems") return a == Json(true) && b == Json(true);
  return InvalidArgument("{}: two different values of '{}' cannot be merged", path, key);
}

absl::Status CheckMergeable(const Json& a, const Json& b, const std::string& path) {
  for (const auto& [with, without] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const char* key : {"properties", "additionalProperties", "required", "patternProperties"}) {
      if (with->contains("patternProperties") && without->contains(key)) {
        return InvalidArgument("{}: 'patternProperties' cannot be merged with '{}' of another schema", path, key);
      }
    }
    for (const char* key : {"items", "prefixItems"}) {
      if (with->contains("prefixItems") && without->contains(key)) {
        return InvalidArgument("{}: 'prefixItems' cannot be merged with '{}' of another schema", path, key);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

Json TypesOf(const Json& schema) {
  const auto type = schema.find("type");
  if (type == schema.end()) return nullptr;
  return type->is_array() ? *type : Json::array({*type});
}

absl::StatusOr<Json> MergeSchemas(const Json& a, const Json& b, const std::string& path) {
  if (a == Json(false) || b == Json(false)) return Json(false);
  if (a == Json(true)) return b;
  if (b == Json(true)) return a;
  HADAL_RETURN_IF_ERROR(CheckMergeable(a, b, path));
  Json merged = a;
  // Only together do two schemas say what may be null.
  if (a.contains("nullable") != b.contains("nullable")) merged.erase("nullable");
  for (const auto& [key, value] : b.items()) {
    if (key == "properties" || key == "type") continue;
    if (key == "nullable" && !a.contains(key)) continue;
    const auto found = a.find(key);
    if (found == a.end()) {
      merged[key] = value;
      continue;
    }
    HADAL_ASSIGN_OR_RETURN(merged[key], MergeKeyword(key, *found, value, path));
  }
  if (a.contains("properties") || b.contains("properties")) merged["properties"] = MergeProperties(a, b);
  const Json types_a = TypesOf(a), types_b = TypesOf(b);
  if (types_a.is_null() && !types_b.is_null()) merged["type"] = types_b;
  if (!types_a.is_null() && !types_b.is_null()) merged["type"] = MergeTypes(types_a, types_b);
  return merged;
}

}  // namespace hadal::guided
