// The messages of a chat (spec serving-runtime 6.2, "Messages", and 6.11).
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "serving/openai/data_uri.h"
#include "serving/openai/request_parts.h"

namespace hadal::serving {
namespace {

using text::Json;

constexpr size_t kMaxCallName = 128;  // as the output parser has it

// A name that a model can have produced, and that stays inside its quotes in the prompt.
bool GoodCallName(std::string_view name) {
  const auto bad = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '"' || c == '<' || c == '>'; };
  return !name.empty() && name.size() <= kMaxCallName && std::none_of(name.begin(), name.end(), bad);
}

absl::StatusOr<Json> ReadCall(const Json& call, const std::string& path) {
  if (!call.is_object()) return InvalidArgument("{}: expected an object, found {}", path, Describe(call));
  const Fields fields(call, path);
  std::string id;
  HADAL_RETURN_IF_ERROR(fields.Read("id", &id));
  if (fields.Has("type") && fields["type"] != "function") return fields.Expected("type", "\"function\"");
  if (!fields["function"].is_object()) return fields.Expected("function", "an object");
  const Fields function(fields["function"], fields.Path("function"));
  std::string name, arguments;
  HADAL_RETURN_IF_ERROR(function.Read("name", &name));
  if (!GoodCallName(name)) return function.Expected("name", "the name of a function");
  HADAL_RETURN_IF_ERROR(function.Read("arguments", &arguments));
  // A call without arguments. What is no JSON at all is for the encoder to show as it is.
  if (arguments.empty()) arguments = "{}";
  if (const absl::StatusOr<Json> parsed = text::ParseJson(arguments); parsed.ok() && !parsed->is_object()) {
    return function.Expected("arguments", "the text of a JSON object");
  }
  return Json{{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

class MessageReader {
 public:
  MessageReader(const runtime::Engine& engine, const ParseOptions& options) : engine_(engine), options_(options) {}

  absl::Status Add(const Json& message, const std::string& path) {
    if (!message.is_object()) return InvalidArgument("{}: expected an object, found {}", path, Describe(message));
    const Fields fields(message, path);
    if (!fields["role"].is_string()) return fields.Expected("role", kRoles);
    const std::string role = fields["role"].get<std::string>();
    Json out = {{"role", role}};
    if (role == "system" || role == "developer") {
      // The encoder's developer role is another thing.
      out["role"] = "system";
    } else if (role == "assistant") {
      HADAL_RETURN_IF_ERROR(ReadAssistant(fields, &out));
    } else if (role == "tool") {
      std::string id;
      HADAL_RETURN_IF_ERROR(fields.Read("tool_call_id", &id));
      out["tool_call_id"] = id;
    } else if (role != "user") {
      return fields.Expected("role", kRoles);
    }
    HADAL_ASSIGN_OR_RETURN(out["content"], ReadContent(fields, role));
    messages_.push_back(std::move(out));
    return absl::OkStatus();
  }

  // Images are decoded last, once everything else is known to be right.
  absl::StatusOr<Conversation> Take() {
    if (uris_.size() > options_.max_images) {
      return InvalidArgument("messages: expected at most {} images, found {}", options_.max_images, uris_.size());
    }
    if (const absl::Status status = engine_.CheckImages(uris_.size()); !status.ok()) {
      return InvalidArgument("{}: {}", uris_.front().path, Message(status));
    }
    Conversation out;
    for (const Uri& uri : uris_) {
      const absl::StatusOr<std::vector<uint8_t>> bytes = DecodeImageUri(*uri.text, options_.max_image_bytes);
      if (!bytes.ok()) return InvalidArgument("{}: {}", uri.path, Message(bytes.status()));
      absl::StatusOr<std::shared_ptr<const vision::PreparedImage>> image = engine_.PrepareImage(*bytes);
      if (!image.ok()) {
        return absl::Status(image.status().code(), fmt::format("{}: {}", uri.path, Message(image.status())));
      }
      out.images.push_back(*std::move(image));
    }
    out.messages = std::move(messages_);
    return out;
  }

  Json& messages() { return messages_; }

 private:
  static constexpr std::string_view kRoles = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";

  struct Uri {
    const std::string* text;  // of the body
    std::string path;
  };

  static absl::Status ReadAssistant(const Fields& fields, Json* out) {
    std::string reasoning;
    HADAL_RETURN_IF_ERROR(fields.Read("reasoning", &reasoning));
    HADAL_RETURN_IF_ERROR(fields.Read("reasoning_content", &reasoning));
    if (!reasoning.empty()) (*out)["reasoning_content"] = reasoning;
    const Json& calls = fields["tool_calls"];
    if (calls.is_null()) return absl::OkStatus();
    if (!calls.is_array()) return fields.Expected("tool_calls", "an array");
    for (size_t i = 0; i < calls.size(); ++i) {
      HADAL_ASSIGN_OR_RETURN(Json call, ReadCall(calls[i], fmt::format("{}[{}]", fields.Path("tool_calls"), i)));
      (*out)["tool_calls"].push_back(std::move(call));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Json> ReadContent(const Fields& fields, const std::string& role) {
    const Json& content = fields["content"];
    if (content.is_string()) return content;
    // An answer may have been all reasoning or calls.
    if (content.is_null() && role == "assistant") return Json("");
    if (!content.is_array() || content.empty()) return fields.Expected("content", "a string or an array of parts");
    Json parts = Json::array();
    for (size_t i = 0; i < content.size(); ++i) {
      HADAL_ASSIGN_OR_RETURN(Json part, ReadPart(content[i], fmt::format("{}[{}]", fields.Path("content"), i), role));
      parts.push_back(std::move(part));
    }
    return parts;
  }

  absl::StatusOr<Json> ReadPart(const Json& part, const std::string& path, const std::string& role) {
    if (!part.is_object()) return InvalidArgument("{}: expected an object, found {}", path, Describe(part));
    const Fields fields(part, path);
    if (fields["type"] == "text") {
      if (!fields["text"].is_string()) return fields.Expected("text", "a string");
      return Json{{"type", "text"}, {"text", fields["text"]}};
    }
    if (fields["type"] != "image_url") return fields.Expected("type", "\"text\" or \"image_url\"");
    if (role != "user") return InvalidArgument("{}: expected images in messages of the user only", path);
    if (!fields["image_url"].is_object()) return fields.Expected("image_url", "an object with a url");
    const Fields image(fields["image_url"], fields.Path("image_url"));
    std::string detail;  // every image is taken at the size that the model's rules give it
    HADAL_RETURN_IF_ERROR(image.Read("detail", &detail));
    if (!image["url"].is_string()) return image.Expected("url", "a string");
    uris_.push_back({&image["url"].get_ref<const std::string&>(), image.Path("url")});
    return Json{{"type", "image"}};
  }

  const runtime::Engine& engine_;
  const ParseOptions& options_;
  Json messages_ = Json::array();
  std::vector<Uri> uris_;
};

std::string TextOf(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string out;
  for (size_t i = 0; i < content.size(); ++i) {
    if (i > 0) out += '\n';
    out += content[i]["text"].get_ref<const std::string&>();
  }
  return out;
}

// What the prompt ends with: the encoder opens an answer behind a user's turn, and continues an assistant's only if it
// is told to. Behind anything else a model would talk nonsense.
absl::StatusOr<std::string> FinishTurn(const Fields& body, Json* messages) {
  bool add_prompt = true, go_on = false;
  HADAL_RETURN_IF_ERROR(body.Read("continue_final_message", &go_on));
  add_prompt = !go_on;
  HADAL_RETURN_IF_ERROR(body.Read("add_generation_prompt", &add_prompt));
  if (go_on && add_prompt) {
    return InvalidArgument("continue_final_message: expected not to be true together with add_generation_prompt");
  }
  if (!go_on && !add_prompt) {
    return InvalidArgument("add_generation_prompt: expected true, unless continue_final_message is");
  }
  Json& last = messages->back();
  const std::string path = fmt::format("messages[{}].role", messages->size() - 1);
  if (go_on) {
    if (last["role"] != "assistant" || last.contains("tool_calls")) {
      return InvalidArgument("{}: expected an assistant's message without calls, for continue_final_message, found {}",
                             path, Describe(last["role"]));
    }
    last["wo_eos"] = true;
    return TextOf(last["content"]);
  }
  if (last["role"] == "user" || last["role"] == "tool") return std::string();
  return InvalidArgument(
      "{}: expected the last message to be a user's or a tool's (or an assistant's, with continue_final_message), "
      "found "
      "{}",
      path, Describe(last["role"]));
}

}  // namespace

absl::StatusOr<Conversation> ReadMessages(const Fields& body, const runtime::Engine& engine,
                                          const ParseOptions& options) {
  const Json& messages = body["messages"];
  if (!messages.is_array() || messages.empty()) return body.Expected("messages", "an array of at least one message");
  MessageReader reader(engine, options);
  for (size_t i = 0; i < messages.size(); ++i) {
    HADAL_RETURN_IF_ERROR(reader.Add(messages[i], fmt::format("messages[{}]", i)));
  }
  HADAL_ASSIGN_OR_RETURN(std::string continued, FinishTurn(body, &reader.messages()));
  HADAL_ASSIGN_OR_RETURN(Conversation conversation, reader.Take());
  conversation.continued = std::move(continued);
  return conversation;
}

}  // namespace hadal::serving
