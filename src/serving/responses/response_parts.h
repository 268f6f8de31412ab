// What the pieces of the Responses API have in common. Internal to the library.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "serving/chat_body.h"
#include "serving/openai/fields.h"
#include "serving/openai/job.h"
#include "text/json_text.h"

namespace hadal::serving {

// Where a part of an item went.
struct ItemPlace {
  std::string chat, client;  // the former behind the message's path
};
struct AssistantTurn {
  std::string path;
  std::string reasoning;
  std::optional<text::Json> content;
  text::Json calls = text::Json::array();
  std::vector<ItemPlace> places;
};

// Items of a conversation to messages of a chat, one after the other.
class ItemReader {
 public:
  explicit ItemReader(ChatBody* chat) : chat_(chat) {}

  // `path`: of the item `json` in the client's body. InvalidArgument for what has no place in a chat.
  absl::Status Add(const text::Json& json, const std::string& path);
  void Finish();

 private:
  absl::Status AddMessage(const Fields& item, const std::string& path);
  absl::Status AddCall(const Fields& item, const std::string& path);
  absl::Status AddOutput(const Fields& item, const std::string& path);
  absl::Status AddReasoning(const Fields& item, const std::string& path);
  void FinishAssistant();
  void FinishOutputs();

  ChatBody* chat_;
  // The assistant's message that is being put together.
  std::optional<AssistantTurn> assistant_;
  // Images of the outputs since the last other item.
  text::Json images_ = text::Json::array();
  std::vector<ItemPlace> image_places_;
  std::string images_path_;
};

enum class ItemStatus { kInProgress, kCompleted, kIncomplete };

text::Json ReasoningItem(const std::string& id, const text::Json& content, ItemStatus status);
text::Json MessageItem(const std::string& id, const text::Json& content, ItemStatus status);
text::Json CallItem(const std::string& id, const std::string& call_id, const std::string& name,
                    const std::string& arguments, ItemStatus status);
text::Json ReasoningPart(const std::string& text);
text::Json TextPart(const std::string& text);

// The answer with these items; `result` null: it is being made.
text::Json ResponseJson(const Job& job, text::Json output, const runtime::GenerateResult* result);

}  // namespace hadal::serving
