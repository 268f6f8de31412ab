#include "guided/json_schema_flatten.h"

#include <algorithm>
#include <string_view>

#include "guided/json_schema_keywords.h"
#include "guided/json_schema_merge.h"

namespace hadal::guided {
namespace {

constexpr size_t kMaxSchemas = 20'000;
constexpr size_t kMaxSchemaBytes = 16u << 20;
constexpr size_t kMaxRefs = 64;

// A token of a JSON pointer in a URI fragment.
std::string DecodeToken(std::string_view token) {
  std::string text;
  const auto hex = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '%' && i + 2 < token.size() && hex(token[i + 1]) >= 0 && hex(token[i + 2]) >= 0) {
      text += static_cast<char>(hex(token[i + 1]) * 16 + hex(token[i + 2]));
      i += 2;
    } else {
      text += token[i];
    }
  }
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '~' && i + 1 < text.size() && (text[i + 1] == '0' || text[i + 1] == '1');
    decoded += escape ? (text[++i] == '0' ? '~' : '/') : text[i];
  }
  return decoded;
}

const Json* Child(const Json& value, const std::string& token) {
  if (value.is_object()) {
    const auto found = value.find(token);
    return found == value.end() ? nullptr : &*found;
  }
  if (!value.is_array() || token.empty() || token.size() > 5) return nullptr;
  if (token.find_first_not_of("0123456789") != std::string::npos) return nullptr;
  const auto index = static_cast<size_t>(std::stoi(token));
  return index < value.size() ? &value[index] : nullptr;
}

}  // namespace

absl::Status SchemaFlattener::CheckGrowth(size_t bytes, const std::string& path) {
  schema_bytes_ += bytes;
  if (++schemas_ > kMaxSchemas) return SchemaError(path, "expands to more than {} schemas", kMaxSchemas);
  if (schema_bytes_ > kMaxSchemaBytes) return SchemaError(path, "expands to more than {} bytes", kMaxSchemaBytes);
  return budget_->CheckTimeNow();
}

absl::StatusOr<Json> SchemaFlattener::Flatten(const Json& schema, const std::string& path, const Refs& refs) {
  if (schema.is_boolean()) return schema;
  if (!schema.is_object()) return SchemaError(path, "expected a schema, found {}", Excerpt(schema));
  HADAL_RETURN_IF_ERROR(CheckKeywords(schema, path));
  HADAL_RETURN_IF_ERROR(CheckGrowth(0, path));
  Json own = Json::object();
  for (const auto& [key, value] : schema.items()) {
    if (key == "anyOf" || key == "oneOf") {
      own[kChoicesKey].push_back(value);
    } else if (key == "pattern") {
      own[kPatternsKey].push_back(value);
    } else if (key == kPatternsKey || key == kChoicesKey) {
      own[key].insert(own[key].end(), value.begin(), value.end());
    } else if (key != "$ref" && key != "allOf" && !FindKeyword(key)->ignored()) {
      own[key] = value;
    }
  }
  Json merged = own.empty() ? Json(true) : own;
  if (schema.contains("$ref")) {
    HADAL_ASSIGN_OR_RETURN(const Json target, FlattenRef(schema["$ref"].get<std::string>(), path, refs));
    HADAL_ASSIGN_OR_RETURN(merged, MergeSchemas(target, merged, path));
  }
  if (!schema.contains("allOf")) return merged;
  for (size_t i = 0; i < schema["allOf"].size(); ++i) {
    const std::string sub_path = fmt::format("{}/allOf/{}", path, i);
    HADAL_ASSIGN_OR_RETURN(const Json part, Flatten(schema["allOf"][i], sub_path, refs));
    HADAL_ASSIGN_OR_RETURN(merged, MergeSchemas(merged, part, sub_path));
  }
  return merged;
}

absl::StatusOr<Json> SchemaFlattener::FlattenRef(const std::string& ref, const std::string& path, const Refs& refs) {
  if (std::find(refs.begin(), refs.end(), ref) != refs.end()) {
    return SchemaError(path, "'$ref': {} refers to itself without anything in between", ref);
  }
  HADAL_ASSIGN_OR_RETURN(const Json* target, Lookup(ref, path));
  if (refs.size() == kMaxRefs) return SchemaError(path, "'$ref': more than {} references in a row", kMaxRefs);
  Refs longer = refs;
  longer.push_back(ref);
  return Flatten(*target, ref, longer);
}

absl::StatusOr<const Json*> SchemaFlattener::Lookup(const std::string& ref, const std::string& path) const {
  if (ref.empty() || ref[0] != '#') {
    return SchemaError(path, "'$ref': only references into the schema itself (#...) are supported, found {}", ref);
  }
  if (ref.size() > 1 && ref[1] != '/') return SchemaError(path, "'$ref': anchors are not supported, found {}", ref);
  const Json* at = &root_;
  for (size_t begin = 1; begin < ref.size();) {
    const size_t end = std::min(ref.find('/', begin + 1), ref.size());
    const std::string token = DecodeToken(std::string_view(ref).substr(begin + 1, end - begin - 1));
    at = Child(*at, token);
    if (at == nullptr) return SchemaError(path, "'$ref': there is no {}", ref);
    begin = end;
  }
  if (!IsSchema(*at)) return SchemaError(path, "'$ref': {} is no schema", ref);
  return at;
}

}  // namespace hadal::guided
