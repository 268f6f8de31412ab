// The body of another protocol as the body of a chat completion, which is what all of them are read through: there is
// one set of rules about messages, tools, sampling and thinking, and one prompt for one conversation (spec
// serving-runtime 6.2 to 6.4). A translator sees to the shape of what it takes apart and leaves every rule about values
// to the chat's readers; their errors come back with the paths of the body that the client sent.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "serving/openai/fields.h"
#include "serving/openai/job.h"
#include "serving/openai/request_parts.h"
#include "text/json_text.h"

namespace hadal::serving {

class ChatBody {
 public:
  // Takes over what all protocols call the same (model, stream, temperature, top_p), and the extensions of spec 6.2
  // that say how the answer is made: sampling, limits, thinking, caching.
  explicit ChatBody(const Fields& source);

  // `name` of the chat is `source[from]`, whatever that is. An absent one stays absent.
  void Copy(const Fields& source, const char* from, const char* name);
  // `name` of the chat, made from what stands at `path` of the client's body.
  void Set(const char* name, text::Json value, std::string path);

  // Adds a message or a tool, made from what stands at `path`; returns its path in the chat.
  std::string AddMessage(text::Json message, std::string path);
  std::string AddTool(text::Json tool, std::string path);
  // A place inside of them that has another name in the client's body: "messages[0].tool_calls[1]".
  void Map(std::string chat_path, std::string path) { paths_.emplace_back(std::move(chat_path), std::move(path)); }

  text::Json& messages() { return messages_; }

  // The error with the path of the client's body in front.
  absl::Status Translate(const absl::Status& error) const;

  // Reads the chat. The kind and the id of the job are the caller's to set. Errors: those of ParseChatCompletion.
  absl::StatusOr<Job> Parse(const runtime::Engine& engine, const ParseOptions& options);
  // The prompt alone, however long it is.
  absl::StatusOr<ChatPrompt> Prompt(const runtime::Engine& engine, const ParseOptions& options);

 private:
  const text::Json& Assemble();

  text::Json chat_ = text::Json::object();
  text::Json messages_ = text::Json::array(), tools_ = text::Json::array();
  std::vector<std::pair<std::string, std::string>> paths_;  // of the chat, and of the client's body
};

// Whether a prompt was refused for its length alone.
bool IsContextOverflow(const absl::Status& error);

}  // namespace hadal::serving
