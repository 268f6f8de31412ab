// What the encoders share: reading message objects, and writing prompts in spans. Internal to the library.
#pragma once

#include <string>
#include <string_view>

#include "text/chat.h"

namespace hadal::text {

enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool, kLatestReminder };

// Appends spans, joining neighbours of the same kind.
class PromptWriter {
 public:
  void Trusted(std::string_view text) { Add(text, true); }
  void Plain(std::string_view text) { Add(text, false); }
  // A placeholder of an image.
  void Image(ImageRef image);
  Prompt Take();

 private:
  void Add(std::string_view text, bool trusted);

  Prompt prompt_;
};

// How the parts of list content are put together.
struct ContentStyle {
  std::string_view joint = "\n";
  bool unsupported_as_text = false;  // "[Unsupported TYPE]" for parts other than text, instead of an error
  bool images = false;               // image parts become placeholders
};

// Checks that the list is an array of objects with a known role. `where` is the name of the list in error messages.
absl::Status CheckMessages(const Json& messages, std::string_view where);
absl::StatusOr<Role> RoleOf(const Json& message, std::string_view where);

// The field, or null where it is absent.
const Json& Field(const Json& object, const char* key);
// A string field; null and absent read as empty. Anything else is an error.
absl::StatusOr<std::string_view> StringField(const Json& object, const char* key, std::string_view where);
// null, false, 0, "", [] and {} are empty, as in the reference's truth tests.
bool IsEmpty(const Json& value);
bool HasTools(const Json& message);
bool HasCalls(const Json& message);

// Writes the content of a message as untrusted text. `index`: of the message, for image references.
absl::Status WriteContent(const Json& content, const ContentStyle& style, size_t index, std::string_view where,
                          PromptWriter* writer);

// The system and developer extras: "\n\n" and the block, for each of tools and response_format that is there.
absl::Status WriteExtras(const Json& message, Dialect dialect, std::string_view where, PromptWriter* writer);

// The call block of an assistant message with its two leading newlines. V4 wraps arguments that are not JSON in one
// string parameter, V3.2 refuses them; JSON that is not an object is refused by both.
absl::Status WriteCalls(const Json& calls, Dialect dialect, std::string_view where, PromptWriter* writer);

// reasoning_content, or its alias reasoning.
absl::StatusOr<std::string_view> Reasoning(const Json& message, std::string_view where);

// Content of an assistant message, trimmed if calls follow and the options ask for it.
absl::Status WriteAssistantContent(const Json& message, const ChatOptions& options, size_t index,
                                   std::string_view where, PromptWriter* writer);

}  // namespace hadal::text
