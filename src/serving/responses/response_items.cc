// The conversation of a Responses request, item by item, as the messages of a chat (spec serving-runtime 6.10).
#include <utility>

#include "base/status.h"
#include "serving/responses/response_parts.h"

namespace hadal::serving {
namespace {

using text::Json;

// A part of a message's content as a chat has it.
absl::StatusOr<Json> ReadPart(const Fields& part) {
  const Json& type = part["type"];
  if (type == "input_text" || type == "output_text" || type == "refusal") {
    const char* text = type == "refusal" ? "refusal" : "text";
    if (!part[text].is_string()) return part.Expected(text, "a string");
    return Json{{"type", "text"}, {"text", part[text]}};
  }
  if (type == "input_image") {
    if (!part["image_url"].is_string()) {
      return part.Expected("image_url", "a data: URI as a string: there are no files to name");
    }
    return Json{{"type", "image_url"}, {"image_url", {{"url", part["image_url"]}, {"detail", part["detail"]}}}};
  }
  return part.Expected("type", "\"input_text\", \"input_image\", \"output_text\" or \"refusal\"");
}

}  // namespace

absl::Status ItemReader::Add(const Json& json, const std::string& path) {
  if (!json.is_object()) return InvalidArgument("{}: expected an object, found {}", path, Describe(json));
  const Fields item(json, path);
  const Json& type = item["type"];
  if (type != "function_call_output") FinishOutputs();
  if (type.is_null() || type == "message") return AddMessage(item, path);
  if (type == "function_call") return AddCall(item, path);
  if (type == "function_call_output") return AddOutput(item, path);
  if (type == "reasoning") return AddReasoning(item, path);
  return item.Expected("type", "\"message\", \"function_call\", \"function_call_output\" or \"reasoning\"");
}

absl::Status ItemReader::AddMessage(const Fields& item, const std::string& path) {
  const Json& role = item["role"];
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    return item.Expected("role", "\"user\", \"assistant\", \"system\" or \"developer\"");
  }
  Json content = item["content"];
  std::vector<ItemPlace> places;
  if (content.is_array()) {
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string inside = fmt::format(".content[{}]", i), at = path + inside;
      if (!content[i].is_object()) return InvalidArgument("{}: expected an object, found {}", at, Describe(content[i]));
      HADAL_ASSIGN_OR_RETURN(Json part, ReadPart(Fields(content[i], at)));
      if (part["type"] == "image_url") {
        places.push_back({inside + ".image_url", at});
        places.push_back({inside + ".image_url.url", at + ".image_url"});
      }
      content[i] = std::move(part);
    }
  }
  if (role == "assistant") {
    // A second text, or one behind calls, is a message of its own.
    if (assistant_.has_value() && (assistant_->content.has_value() || !assistant_->calls.empty())) FinishAssistant();
    if (!assistant_.has_value()) assistant_.emplace();
    assistant_->path = path;
    assistant_->content = std::move(content);
    assistant_->places = std::move(places);
    return absl::OkStatus();
  }
  FinishAssistant();
  const std::string at = chat_->AddMessage({{"role", role}, {"content", std::move(content)}}, path);
  for (ItemPlace& place : places) chat_->Map(at + place.chat, std::move(place.client));
  return absl::OkStatus();
}

absl::Status ItemReader::AddCall(const Fields& item, const std::string& path) {
  if (!assistant_.has_value()) assistant_.emplace().path = path;
  const std::string call = fmt::format(".tool_calls[{}]", assistant_->calls.size());
  assistant_->calls.push_back({{"id", item["call_id"]},
                               {"type", "function"},
                               {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}});
  assistant_->places.push_back({call, path});
  assistant_->places.push_back({call + ".id", path + ".call_id"});
  assistant_->places.push_back({call + ".function", path});
  return absl::OkStatus();
}

absl::Status ItemReader::AddOutput(const Fields& item, const std::string& path) {
  FinishAssistant();
  Json output = item["output"];
  if (!output.is_string() && !output.is_array()) return item.Expected("output", "a string or an array of parts");
  if (output.is_array()) {
    Json texts = Json::array();
    for (size_t i = 0; i < output.size(); ++i) {
      const std::string at = fmt::format("{}.output[{}]", path, i);
      if (!output[i].is_object()) return InvalidArgument("{}: expected an object, found {}", at, Describe(output[i]));
      HADAL_ASSIGN_OR_RETURN(Json part, ReadPart(Fields(output[i], at)));
      if (part["type"] == "text") {
        texts.push_back(std::move(part));
        continue;
      }
      if (images_.empty()) images_path_ = path;
      const std::string image = fmt::format(".content[{}]", images_.size());
      image_places_.push_back({image, at});
      image_places_.push_back({image + ".image_url", at});
      image_places_.push_back({image + ".image_url.url", at + ".image_url"});
      images_.push_back(std::move(part));
    }
    output = texts.empty() ? Json("") : std::move(texts);
  }
  const std::string at =
      chat_->AddMessage({{"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", std::move(output)}}, path);
  chat_->Map(at + ".tool_call_id", path + ".call_id");
  return absl::OkStatus();
}

absl::Status ItemReader::AddReasoning(const Fields& item, const std::string& path) {
  const Json& content = item["content"];
  std::string text;
  if (!content.is_null() && !content.is_array()) return item.Expected("content", "an array of parts");
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}.content[{}]", path, i);
    if (!content[i].is_object()) return InvalidArgument("{}: expected an object, found {}", at, Describe(content[i]));
    const Fields part(content[i], at);
    if (part["type"] != "reasoning_text") return part.Expected("type", "\"reasoning_text\"");
    if (!part["text"].is_string()) return part.Expected("text", "a string");
    if (i > 0) text += '\n';
    text += part["text"].get_ref<const std::string&>();
  }
  if (assistant_.has_value() && (assistant_->content.has_value() || !assistant_->calls.empty())) FinishAssistant();
  if (!assistant_.has_value()) assistant_.emplace().path = path;
  if (!assistant_->reasoning.empty() && !text.empty()) assistant_->reasoning += '\n';
  assistant_->reasoning += text;
  return absl::OkStatus();
}

void ItemReader::FinishAssistant() {
  if (!assistant_.has_value()) return;
  Json message = {{"role", "assistant"}, {"content", ""}};
  if (assistant_->content.has_value()) message["content"] = *std::move(assistant_->content);
  if (!assistant_->reasoning.empty()) message["reasoning_content"] = std::move(assistant_->reasoning);
  if (!assistant_->calls.empty()) message["tool_calls"] = std::move(assistant_->calls);
  const std::string at = chat_->AddMessage(std::move(message), assistant_->path);
  for (ItemPlace& place : assistant_->places) chat_->Map(at + place.chat, std::move(place.client));
  assistant_.reset();
}

void ItemReader::FinishOutputs() {
  if (images_.empty()) return;
  const std::string at = chat_->AddMessage({{"role", "user"}, {"content", std::move(images_)}}, images_path_);
  for (ItemPlace& place : image_places_) chat_->Map(at + place.chat, std::move(place.client));
  images_ = Json::array();
  image_places_.clear();
}

void ItemReader::Finish() {
  FinishOutputs();
  FinishAssistant();
}

}  // namespace hadal::serving
