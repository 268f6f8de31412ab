// The conversation of a Messages request, block by block, as the messages of a chat (spec serving-runtime 6.9).
#include <utility>

#include "base/status.h"
#include "serving/anthropic/message_parts.h"

namespace hadal::serving {
namespace {

using text::Json;

Json TextPart(const Json& text) { return {{"type", "text"}, {"text", text}}; }

// An image block as a part of a chat's message, and where its data stands.
struct ImagePart {
  Json part;
  std::string path;
};

absl::StatusOr<ImagePart> ReadImage(const Fields& block) {
  HADAL_RETURN_IF_ERROR(block.CheckObject("source"));
  if (!block.Has("source")) return block.Expected("source", "an object");
  const Fields source(block["source"], block.Path("source"));
  std::string url, path;
  if (source["type"] == "base64") {
    HADAL_RETURN_IF_ERROR(source.Read("media_type", &url));
    if (!source["data"].is_string()) return source.Expected("data", "a string");
    url = fmt::format("data:{};base64,{}", url, source["data"].get_ref<const std::string&>());
    path = source.Path("data");
  } else if (source["type"] == "url") {
    HADAL_RETURN_IF_ERROR(source.Read("url", &url));
    path = source.Path("url");
  } else {
    return source.Expected("type", "\"base64\" or \"url\"");
  }
  return ImagePart{{{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}}, std::move(path)};
}

absl::Status CheckBlock(const Json& block, const std::string& path) {
  return block.is_object() ? absl::OkStatus()
                           : InvalidArgument("{}: expected an object, found {}", path, Describe(block));
}

// Parts of a user's message, with the places that they came from.
class Parts {
 public:
  void Add(Json part, std::string path, std::string image_path = "") {
    parts_.push_back(std::move(part));
    places_.push_back({std::move(path), std::move(image_path)});
  }
  void Append(Parts more) {
    for (Json& part : more.parts_) parts_.push_back(std::move(part));
    for (Place& place : more.places_) places_.push_back(std::move(place));
  }
  bool empty() const { return parts_.empty(); }

  // As a message of the chat, which leaves none.
  void AddTo(ChatBody* chat, const std::string& path) {
    const std::string at = chat->AddMessage({{"role", "user"}, {"content", std::move(parts_)}}, path);
    for (size_t i = 0; i < places_.size(); ++i) {
      const std::string part = fmt::format("{}.content[{}]", at, i);
      if (!places_[i].image.empty()) chat->Map(part + ".image_url.url", std::move(places_[i].image));
      chat->Map(part, std::move(places_[i].block));
    }
    parts_ = Json::array();
    places_.clear();
  }

 private:
  struct Place {
    std::string block, image;
  };
  Json parts_ = Json::array();
  std::vector<Place> places_;
};

// One message of the user: results of tools become messages of their own.
class UserMessage {
 public:
  UserMessage(std::string path, ChatBody* chat) : path_(std::move(path)), chat_(chat) {}

  absl::Status Add(const Json& json, const std::string& path) {
    HADAL_RETURN_IF_ERROR(CheckBlock(json, path));
    const Fields block(json, path);
    if (block["type"] == "text") {
      parts_.Add(TextPart(block["text"]), path);
    } else if (block["type"] == "image") {
      HADAL_ASSIGN_OR_RETURN(ImagePart image, ReadImage(block));
      parts_.Add(std::move(image.part), path, std::move(image.path));
    } else if (block["type"] == "tool_result") {
      if (!parts_.empty()) Flush();
      return AddResult(block, path);
    } else {
      return block.Expected("type", "\"text\", \"image\" or \"tool_result\" in a message of the user");
    }
    return absl::OkStatus();
  }

  void Flush() {
    // The results that images belong to stand before them; results of one turn stay together.
    Parts all = std::exchange(images_, {});
    all.Append(std::exchange(parts_, {}));
    all.AddTo(chat_, path_);
  }
  void Finish() {
    if (!parts_.empty() || !images_.empty()) Flush();
  }

 private:
  absl::Status AddResult(const Fields& block, const std::string& path) {
    bool is_error = false;
    HADAL_RETURN_IF_ERROR(block.Read("is_error", &is_error));
    Json content = block["content"];
    if (content.is_array()) {
      HADAL_ASSIGN_OR_RETURN(content, ReadResultBlocks(content, block.Path("content")));
    } else if (content.is_null()) {
      content = "";
    }
    const std::string at = chat_->AddMessage(
        {{"role", "tool"}, {"tool_call_id", block["tool_use_id"]}, {"content", std::move(content)}}, path);
    chat_->Map(at + ".tool_call_id", block.Path("tool_use_id"));
    return absl::OkStatus();
  }

  absl::StatusOr<Json> ReadResultBlocks(const Json& blocks, const std::string& path) {
    Json texts = Json::array();
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", path, i);
      HADAL_RETURN_IF_ERROR(CheckBlock(blocks[i], at));
      const Fields block(blocks[i], at);
      if (block["type"] == "text") {
        if (!block["text"].is_string()) return block.Expected("text", "a string");
        texts.push_back(TextPart(block["text"]));
      } else if (block["type"] == "image") {
        HADAL_ASSIGN_OR_RETURN(ImagePart image, ReadImage(block));
        images_.Add(std::move(image.part), at, std::move(image.path));
      } else {
        return block.Expected("type", "\"text\" or \"image\" in the result of a tool");
      }
    }
    return texts.empty() ? Json("") : texts;
  }

  const std::string path_;
  ChatBody* chat_;
  Parts parts_;
  Parts images_;  // of results
};

// One message of the assistant: what it thought, said and called.
class AssistantMessage {
 public:
  absl::Status Add(const Json& json, const std::string& path) {
    HADAL_RETURN_IF_ERROR(CheckBlock(json, path));
    const Fields block(json, path);
    if (block["type"] == "text") {
      texts_.push_back(TextPart(block["text"]));
      text_paths_.push_back(path);
    } else if (block["type"] == "thinking") {
      std::string thinking, signature;
      HADAL_RETURN_IF_ERROR(block.Read("thinking", &thinking));
      HADAL_RETURN_IF_ERROR(block.Read("signature", &signature));
      if (!reasoning_.empty() && !thinking.empty()) reasoning_ += '\n';
      reasoning_ += thinking;
    } else if (block["type"] == "tool_use") {
      HADAL_RETURN_IF_ERROR(block.CheckObject("input"));
      const std::string input = block.Has("input") ? text::DumpJson(block["input"]) : "{}";
      calls_.push_back(
          {{"id", block["id"]}, {"type", "function"}, {"function", {{"name", block["name"]}, {"arguments", input}}}});
      call_paths_.push_back(path);
    } else if (block["type"] != "redacted_thinking") {
      return block.Expected("type",
                            "\"text\", \"thinking\", \"redacted_thinking\" or \"tool_use\" in a message of the "
                            "assistant");
    }
    return absl::OkStatus();
  }

  void AddTo(ChatBody* chat, const std::string& path) {
    Json message = {{"role", "assistant"}, {"content", ""}};
    if (!texts_.empty()) message["content"] = std::move(texts_);
    if (!reasoning_.empty()) message["reasoning_content"] = std::move(reasoning_);
    if (!calls_.empty()) message["tool_calls"] = std::move(calls_);
    const std::string at = chat->AddMessage(std::move(message), path);
    for (size_t i = 0; i < text_paths_.size(); ++i) {
      chat->Map(fmt::format("{}.content[{}]", at, i), std::move(text_paths_[i]));
    }
    for (size_t i = 0; i < call_paths_.size(); ++i) {
      const std::string call = fmt::format("{}.tool_calls[{}]", at, i);
      chat->Map(call, call_paths_[i]);
      chat->Map(call + ".function", std::move(call_paths_[i]));
    }
  }

 private:
  std::string reasoning_;
  Json texts_ = Json::array(), calls_ = Json::array();
  std::vector<std::string> text_paths_, call_paths_;
};

absl::Status AddSystem(const Fields& body, ChatBody* chat) {
  Json system = body["system"];
  if (system.is_null() || (system.is_string() && system.get_ref<const std::string&>().empty())) return absl::OkStatus();
  if (!system.is_string() && !system.is_array()) return body.Expected("system", "a string or an array of text blocks");
  if (system.is_array()) {
    if (system.empty()) return absl::OkStatus();
    for (size_t i = 0; i < system.size(); ++i) {
      const std::string path = fmt::format("system[{}]", i);
      HADAL_RETURN_IF_ERROR(CheckBlock(system[i], path));
      const Fields block(system[i], path);
      if (block["type"] != "text") return block.Expected("type", "\"text\"");
      system[i] = TextPart(Json(block["text"]));
    }
  }
  const std::string at = chat->AddMessage({{"role", "system"}, {"content", std::move(system)}}, "system");
  chat->Map(at + ".content", "system");
  return absl::OkStatus();
}

absl::Status AddMessage(const Json& json, const std::string& path, ChatBody* chat) {
  if (!json.is_object()) return InvalidArgument("{}: expected an object, found {}", path, Describe(json));
  const Fields message(json, path);
  const Json& role = message["role"];
  if (role != "user" && role != "assistant" && role != "system") {
    return message.Expected("role", "\"user\" or \"assistant\"");
  }
  const Json& content = message["content"];
  if (!content.is_array() || content.empty() || role == "system") {
    chat->AddMessage({{"role", role}, {"content", content}}, path);
    return absl::OkStatus();
  }
  if (role == "user") {
    UserMessage user(path, chat);
    for (size_t i = 0; i < content.size(); ++i) {
      HADAL_RETURN_IF_ERROR(user.Add(content[i], fmt::format("{}.content[{}]", path, i)));
    }
    user.Finish();
    return absl::OkStatus();
  }
  AssistantMessage assistant;
  for (size_t i = 0; i < content.size(); ++i) {
    HADAL_RETURN_IF_ERROR(assistant.Add(content[i], fmt::format("{}.content[{}]", path, i)));
  }
  assistant.AddTo(chat, path);
  return absl::OkStatus();
}

}  // namespace

absl::Status AddMessages(const Fields& body, ChatBody* chat) {
  const Json& messages = body["messages"];
  if (!messages.is_array() || messages.empty()) return body.Expected("messages", "an array of at least one message");
  HADAL_RETURN_IF_ERROR(AddSystem(body, chat));
  for (size_t i = 0; i < messages.size(); ++i) {
    HADAL_RETURN_IF_ERROR(AddMessage(messages[i], fmt::format("messages[{}]", i), chat));
  }
  return absl::OkStatus();
}

}  // namespace hadal::serving
