// Reads the members of a JSON object that came from outside, strictly: a value of another type is an error that names
// the member's path, what was expected and what was found. null counts as absent, which leaves the value alone (spec
// serving-runtime 6.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "text/json_text.h"

namespace hadal::serving {

// A value in an error message: scalars as they are written, long ones cut; "an array", "an object".
std::string Describe(const text::Json& value);

// Characters (code points) of UTF-8 text.
size_t CountChars(std::string_view utf8);

class Fields {
 public:
  // `object` must be an object and outlive this; `path` is empty for the body itself.
  explicit Fields(const text::Json& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  // The member; null if absent.
  const text::Json& operator[](const char* name) const;
  bool Has(const char* name) const { return !(*this)[name].is_null(); }
  // "messages[0].role".
  std::string Path(std::string_view name) const;
  // "PATH: expected WHAT, found VALUE".
  absl::Status Expected(const char* name, std::string_view what) const;

  absl::Status Read(const char* name, bool* value) const;
  absl::Status Read(const char* name, double* value) const;  // finite
  absl::Status Read(const char* name, std::string* value) const;
  // An integer of 64 bits; 1.0 is none.
  absl::Status Read(const char* name, int64_t* value) const;
  template <typename T>
  absl::Status Read(const char* name, std::optional<T>* value) const;

  // An integer from `least` on; what is larger than `most` counts as that, however many digits it has.
  absl::Status ReadCount(const char* name, int64_t least, int64_t most, int64_t* value) const;
  // An integer from `least` to `most`.
  absl::Status ReadRange(const char* name, int64_t least, int64_t most, int64_t* value) const;
  // A list of token ids, at least one, each below `vocab`.
  absl::Status ReadIds(const char* name, int64_t vocab, std::vector<int32_t>* ids) const;
  // A list of strings.
  absl::Status ReadStrings(const char* name, std::vector<std::string>* strings) const;
  // Whether the member is an object, if there is one.
  absl::Status CheckObject(const char* name) const;

 private:
  const text::Json& object_;
  std::string path_;
};

// The ids of a JSON array at `path`.
absl::Status ReadIdList(const text::Json& list, const std::string& path, int64_t vocab, std::vector<int32_t>* ids);

template <typename T>
absl::Status Fields::Read(const char* name, std::optional<T>* value) const {
  if (!Has(name)) return absl::OkStatus();
  T read{};
  if (absl::Status status = Read(name, &read); !status.ok()) return status;
  *value = std::move(read);
  return absl::OkStatus();
}

}  // namespace hadal::serving
