// The keywords of JSON Schema that are supported, and the checks of a schema's own words.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "guided/json_syntax.h"

namespace hadal::guided {

struct Keyword {
  // What its value must be.
  enum class Value {
    kIgnored,  // anything: an annotation
    kSchema,
    kSchemas,
    kNamedSchemas,
    kType,
    kArray,
    kAny,
    kStrings,
    kString,
    kCount,
    kNumber,
    kBool,
  };
  // The type of values that it says something about.
  enum class Concerns { kAny, kObject, kArray, kString, kNumber };

  const char* name;
  Value value;
  Concerns concerns = Concerns::kAny;

  bool ignored() const { return value == Value::kIgnored; }
};

// Null for what is not supported.
const Keyword* FindKeyword(std::string_view name);

inline bool IsSchema(const Json& value) { return value.is_object() || value.is_boolean(); }

// InvalidArgument for keywords that are not supported, values of the wrong kind and types that there are not.
absl::Status CheckKeywords(const Json& schema, const std::string& path);

// A path into a schema with one more token, as a JSON pointer.
std::string Pointer(const std::string& path, std::string_view token);

// The beginning of a value, for messages.
std::string Excerpt(const Json& value);

// An error at a place of the schema.
template <typename... Args>
absl::Status SchemaError(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  return InvalidArgument("{}: {}", path, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace hadal::guided
