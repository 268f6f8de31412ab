// Reading fields of a JSON object with checks: ranges, types, spellings. Errors are collected, so that code that reads
// fields is straight-line and one message names everything that is wrong.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hadal::checkpoint {

// Parses a JSON object of at most `max_bytes` bytes and `kMaxJsonDepth` levels. InvalidArgument says what and where.
inline constexpr int kMaxJsonDepth = 32;
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view source, size_t max_bytes);

// Short text of a value for messages.
std::string ValueText(const nlohmann::json& value);

class JsonFields {
 public:
  using Names = std::initializer_list<const char*>;  // spellings of one field, the usual one first

  // `object` and `errors` must outlive this; `path` precedes field names in messages ("rope_scaling.").
  JsonFields(const nlohmann::json& object, std::string path, std::vector<std::string>* errors)
      : object_(object), path_(std::move(path)), errors_(errors) {}

  // The value under any spelling, null counting as absent. Two spellings with different values are an error.
  const nlohmann::json* Lookup(Names names);

  // Required fields: absence is an error, and 0/"" comes back.
  int64_t Int(Names names, int64_t low, int64_t high);
  double Real(Names names, double low, double high);

  // Optional fields: a wrong type or range is an error still.
  int64_t IntOr(Names names, int64_t low, int64_t high, int64_t fallback);
  double RealOr(Names names, double low, double high, double fallback);
  bool BoolOr(Names names, bool fallback);
  std::string StringOr(Names names, std::string fallback);
  std::optional<std::vector<int64_t>> IntList(Names names, int64_t low, int64_t high);
  std::optional<std::vector<std::string>> StringList(Names names);
  const nlohmann::json* Object(Names names);

  void AddError(std::string text) { errors_->push_back(std::move(text)); }
  std::string Path(Names names) const { return path_ + *names.begin(); }

 private:
  std::optional<int64_t> ReadInt(Names names, int64_t low, int64_t high);
  std::optional<double> ReadReal(Names names, double low, double high);
  void Expected(Names names, const std::string& what, const nlohmann::json* found);

  const nlohmann::json& object_;
  std::string path_;
  std::vector<std::string>* errors_;
};

// The integer that a JSON number holds, if it is one (4096 or 4096.0).
std::optional<int64_t> ExactInt(const nlohmann::json& value);

}  // namespace hadal::checkpoint
