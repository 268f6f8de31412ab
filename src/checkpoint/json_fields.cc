// Checked reading of JSON objects.
#include "checkpoint/json_fields.h"

#include <cmath>

#include "base/status.h"

namespace hadal::checkpoint {
namespace {

using nlohmann::json;

// Depth of nesting outside of strings, found before the parser allocates anything.
int NestingDepth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

absl::StatusOr<json> ParseJsonObject(std::string_view text, std::string_view source, size_t max_bytes) {
  if (text.size() > max_bytes) {
    return InvalidArgument("{}: {} bytes, expected at most {}", source, text.size(), max_bytes);
  }
  const int depth = NestingDepth(text);
  if (depth > kMaxJsonDepth) {
    return InvalidArgument("{}: nested {} levels deep, expected at most {}", source, depth, kMaxJsonDepth);
  }
  json value;
  try {
    value = json::parse(text.begin(), text.end());
  } catch (const std::exception& error) {
    return InvalidArgument("{}: not valid JSON: {}", source, error.what());
  }
  if (!value.is_object()) return InvalidArgument("{}: expected a JSON object, found {}", source, ValueText(value));
  return value;
}

std::string ValueText(const json& value) {
  constexpr size_t kShown = 80;
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

std::optional<int64_t> ExactInt(const json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t v = value.get<uint64_t>();
    if (v > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(v);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double v = value.get<double>();
    if (std::abs(v) <= 0x1p53 && v == std::floor(v)) return static_cast<int64_t>(v);
  }
  return std::nullopt;
}

const json* JsonFields::Lookup(Names names) {
  const json* found = nullptr;
  const char* found_name = nullptr;
  for (const char* name : names) {
    const auto it = object_.find(name);
    if (it == object_.end() || it->is_null()) continue;
    if (found != nullptr && *found != *it) {
      AddError(fmt::format("fields \"{}{}\" ({}) and \"{}{}\" ({}) disagree", path_, found_name, ValueText(*found),
                           path_, name, ValueText(*it)));
    }
    if (found == nullptr) {
      found = &*it;
      found_name = name;
    }
  }
  return found;
}

void JsonFields::Expected(Names names, const std::string& what, const json* found) {
  if (found == nullptr) {
    AddError(fmt::format("field \"{}\" is missing, expected {}", Path(names), what));
  } else {
    AddError(fmt::format("field \"{}\": expected {}, found {}", Path(names), what, ValueText(*found)));
  }
}

std::optional<int64_t> JsonFields::ReadInt(Names names, int64_t low, int64_t high) {
  const json* value = Lookup(names);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = ExactInt(*value);
  if (!number.has_value() || *number < low || *number > high) {
    Expected(names, fmt::format("an integer in [{}, {}]", low, high), value);
    return low;
  }
  return number;
}

std::optional<double> JsonFields::ReadReal(Names names, double low, double high) {
  const json* value = Lookup(names);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= low && number <= high)) {
    Expected(names, fmt::format("a number in [{}, {}]", low, high), value);
    return low;
  }
  return number;
}

int64_t JsonFields::Int(Names names, int64_t low, int64_t high) {
  const std::optional<int64_t> value = ReadInt(names, low, high);
  if (!value.has_value()) Expected(names, fmt::format("an integer in [{}, {}]", low, high), nullptr);
  return value.value_or(0);
}

double JsonFields::Real(Names names, double low, double high) {
  const std::optional<double> value = ReadReal(names, low, high);
  if (!value.has_value()) Expected(names, fmt::format("a number in [{}, {}]", low, high), nullptr);
  return value.value_or(0.0);
}

int64_t JsonFields::IntOr(Names names, int64_t low, int64_t high, int64_t fallback) {
  return ReadInt(names, low, high).value_or(fallback);
}

double JsonFields::RealOr(Names names, double low, double high, double fallback) {
  return ReadReal(names, low, high).value_or(fallback);
}

bool JsonFields::BoolOr(Names names, bool fallback) {
  const json* value = Lookup(names);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Expected(names, "true or false", value);
    return fallback;
  }
  return value->get<bool>();
}

std::string JsonFields::StringOr(Names names, std::string fallback) {
  const json* value = Lookup(names);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    Expected(names, "a string", value);
    return fallback;
  }
  return value->get<std::string>();
}

std::optional<std::vector<int64_t>> JsonFields::IntList(Names names, int64_t low, int64_t high) {
  const json* value = Lookup(names);
  if (value == nullptr) return std::nullopt;
  std::vector<int64_t> list;
  if (!value->is_array()) {
    Expected(names, "a list of integers", value);
    return list;
  }
  for (const json& item : *value) {
    const std::optional<int64_t> number = ExactInt(item);
    if (!number.has_value() || *number < low || *number > high) {
      AddError(fmt::format("field \"{}[{}]\": expected an integer in [{}, {}], found {}", Path(names), list.size(), low,
                           high, ValueText(item)));
      return list;
    }
    list.push_back(*number);
  }
  return list;
}

std::optional<std::vector<std::string>> JsonFields::StringList(Names names) {
  const json* value = Lookup(names);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> list;
  if (!value->is_array()) {
    Expected(names, "a list of strings", value);
    return list;
  }
  for (const json& item : *value) {
    if (!item.is_string()) {
      AddError(fmt::format("field \"{}[{}]\": expected a string, found {}", Path(names), list.size(), ValueText(item)));
      return list;
    }
    list.push_back(item.get<std::string>());
  }
  return list;
}

const json* JsonFields::Object(Names names) {
  const json* value = Lookup(names);
  if (value != nullptr && !value->is_object()) {
    Expected(names, "an object", value);
    return nullptr;
  }
  return value;
}

}  // namespace hadal::checkpoint
