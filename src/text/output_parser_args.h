// The arguments of one tool call, written as JSON text while its parameters arrive (spec deepseek-v4-text 6.5,
// serving-runtime 6.5). Internal to the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

#include "text/json_text.h"

namespace hadal::text {

class ArgumentWriter {
 public:
  // What the parameter's `string` attribute says about its value.
  enum class Claim { kString, kJson, kNone };

  // `schema`: the tool's parameters, or null if unknown. It must outlive the writer.
  explicit ArgumentWriter(const Json* schema) : schema_(schema) {}

  // Each appends the JSON text that is now certain. All text is valid UTF-8.
  void BeginParameter(std::string_view key, Claim claim, std::string* out);
  void Value(std::string_view text, std::string* out);
  void EndParameter(std::string* out);
  // Text between parameters; some models write the whole object there.
  void Body(std::string_view text) { body_ += text; }
  // Closes the object. Everything appended is then one JSON object. False, and nothing appended, if the call had no
  // parameters but text that cannot be read as arguments.
  bool Finish(std::string* out);

 private:
  enum class Mode {
    kStream,   // a string, escaped and passed on as it comes
    kBuffer,   // read whole before it is written
    kWrapper,  // a first parameter "arguments" or "input" that the tool does not have: written at the end
    kDiscard,  // a second parameter of the same name: the first wins
  };

  const Json* Properties() const;
  void OpenKey(std::string_view key, std::string* out);
  void FlushWrapper(std::string* out);
  bool Unwrap(std::string_view text, Claim claim, std::string* out) const;
  bool SingleProperty(std::string_view text, Claim claim, std::string* out) const;

  const Json* schema_;
  Mode mode_ = Mode::kDiscard;
  Claim claim_ = Claim::kNone;
  unsigned types_ = 0;
  std::string buffer_;
  std::string wrapper_key_;  // not empty: buffer_ holds the value of a parameter of mode kWrapper
  std::unordered_set<std::string> keys_;
  bool open_ = false;  // "{" is written
  std::string body_;
};

// Arguments that the model writes as one JSON object, passed on as they come. What JSON forbids in a string, a newline
// foremost, is escaped; everything else is as written, so the whole may still be no JSON.
class ObjectStream {
 public:
  // Text from the opening brace on. Appends what it gives to `out`; nothing behind the closing brace.
  void Push(std::string_view text, std::string* out);
  // The brace that closes the object was met.
  bool closed() const { return started_ && depth_ == 0; }

 private:
  bool started_ = false;
  int64_t depth_ = 0;  // of brackets
  bool in_string_ = false;
  bool escaped_ = false;  // behind a backslash
};

bool IsJsonObject(std::string_view text);

}  // namespace hadal::text
