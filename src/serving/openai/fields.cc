#include "serving/openai/fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status.h"

namespace hadal::serving {
namespace {

using text::Json;

constexpr size_t kMostShown = 60;  // bytes of a value in a message

// At most `most` bytes, never half a character.
std::string Cut(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return std::string(text.substr(0, most)) + "...";
}

// The integer, whatever its size: what 64 bits do not hold becomes the nearest that they do.
std::optional<int64_t> ClippedInteger(const Json& value) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  if (value.is_number_unsigned()) {
    return static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), static_cast<uint64_t>(kMost)));
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  const std::string_view raw = text::RawNumber(value);
  if (raw.empty() || raw.find_first_of(".eE") != raw.npos) return std::nullopt;
  return raw.front() == '-' ? std::numeric_limits<int64_t>::min() : kMost;
}

bool FitsInt64(const Json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  return value.is_number_integer();
}

}  // namespace

std::string Describe(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  if (value.is_string()) return text::JsonQuoted(Cut(value.get_ref<const std::string&>(), kMostShown));
  return Cut(text::DumpJson(value), kMostShown);
}

size_t CountChars(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

const Json& Fields::operator[](const char* name) const {
  static const auto* const kNull = new Json();
  const auto it = object_.find(name);
  return it == object_.end() ? *kNull : *it;
}

std::string Fields::Path(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

absl::Status Fields::Expected(const char* name, std::string_view what) const {
  return InvalidArgument("{}: expected {}, found {}", Path(name), what, Describe((*this)[name]));
}

absl::Status Fields::Read(const char* name, bool* value) const {
  const Json& json = (*this)[name];
  if (json.is_null()) return absl::OkStatus();
  if (!json.is_boolean()) return Expected(name, "true or false");
  *value = json.get<bool>();
  return absl::OkStatus();
}

absl::Status Fields::Read(const char* name, double* value) const {
  const Json& json = (*this)[name];
  if (json.is_null()) return absl::OkStatus();
  if (!json.is_number() || !std::isfinite(json.get<double>())) return Expected(name, "a finite number");
  *value = json.get<double>();
  return absl::OkStatus();
}

absl::Status Fields::Read(const char* name, std::string* value) const {
  const Json& json = (*this)[name];
  if (json.is_null()) return absl::OkStatus();
  if (!json.is_string()) return Expected(name, "a string");
  *value = json.get_ref<const std::string&>();
  return absl::OkStatus();
}

absl::Status Fields::Read(const char* name, int64_t* value) const {
  const Json& json = (*this)[name];
  if (json.is_null()) return absl::OkStatus();
  if (!FitsInt64(json)) return Expected(name, "an integer of 64 bits");
  *value = json.get<int64_t>();
  return absl::OkStatus();
}

absl::Status Fields::ReadCount(const char* name, int64_t least, int64_t most, int64_t* value) const {
  const Json& json = (*this)[name];
  if (json.is_null()) return absl::OkStatus();
  const std::optional<int64_t> number = ClippedInteger(json);
  if (!number.has_value() || *number < least) return Expected(name, fmt::format("an integer of at least {}", least));
  *value = std::min(*number, most);
  return absl::OkStatus();
}

absl::Status Fields::ReadRange(const char* name, int64_t least, int64_t most, int64_t* value) const {
  const Json& json = (*this)[name];
  if (json.is_null()) return absl::OkStatus();
  const std::optional<int64_t> number = ClippedInteger(json);
  if (!number.has_value() || *number < least || *number > most) {
    return Expected(name, fmt::format("an integer from {} to {}", least, most));
  }
  *value = *number;
  return absl::OkStatus();
}

absl::Status ReadIdList(const Json& list, const std::string& path, int64_t vocab, std::vector<int32_t>* ids) {
  ids->clear();
  ids->reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::optional<int64_t> id = ClippedInteger(list[i]);
    if (!id.has_value() || *id < 0 || *id >= vocab) {
      return InvalidArgument("{}[{}]: expected a token id from 0 to {}, found {}", path, i, vocab - 1,
                             Describe(list[i]));
    }
    ids->push_back(static_cast<int32_t>(*id));
  }
  return absl::OkStatus();
}

absl::Status Fields::ReadIds(const char* name, int64_t vocab, std::vector<int32_t>* ids) const {
  const Json& json = (*this)[name];
  if (json.is_null()) return absl::OkStatus();
  if (!json.is_array()) return Expected(name, "an array of token ids");
  if (json.empty()) return InvalidArgument("{}: expected at least one token id, found none", Path(name));
  return ReadIdList(json, Path(name), vocab, ids);
}

absl::Status Fields::ReadStrings(const char* name, std::vector<std::string>* strings) const {
  const Json& json = (*this)[name];
  if (json.is_null()) return absl::OkStatus();
  if (!json.is_array()) return Expected(name, "an array of strings");
  strings->clear();
  for (size_t i = 0; i < json.size(); ++i) {
    if (!json[i].is_string()) {
      return InvalidArgument("{}[{}]: expected a string, found {}", Path(name), i, Describe(json[i]));
    }
    strings->push_back(json[i].get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status Fields::CheckObject(const char* name) const {
  return Has(name) && !(*this)[name].is_object() ? Expected(name, "an object") : absl::OkStatus();
}

}  // namespace hadal::serving
