#include "serving/chat_body.h"

#include "base/status.h"

namespace hadal::serving {
namespace {

using text::Json;

constexpr const char* kCommon[] = {"model", "stream", "temperature", "top_p"};
// What concerns the form of a chat's answer (n, logprobs, echo, ...) is not among them: other answers have no place for
// it.
constexpr const char* kExtensions[] = {"top_k",
                                       "min_p",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "repetition_penalty",
                                       "seed",
                                       "logit_bias",
                                       "stop_token_ids",
                                       "allowed_token_ids",
                                       "bad_words",
                                       "min_tokens",
                                       "ignore_eos",
                                       "priority",
                                       "cache_salt",
                                       "thinking_token_budget",
                                       "chat_template_kwargs",
                                       "include_reasoning",
                                       "request_id",
                                       "structured_outputs"};

// Whether `path` is `prefix` or inside of it.
bool IsInside(std::string_view path, std::string_view prefix) {
  if (path.substr(0, prefix.size()) != prefix) return false;
  return path.size() == prefix.size() || path[prefix.size()] == '.' || path[prefix.size()] == '[';
}

}  // namespace

ChatBody::ChatBody(const Fields& source) {
  for (const char* name : kCommon) Copy(source, name, name);
  for (const char* name : kExtensions) Copy(source, name, name);
}

void ChatBody::Copy(const Fields& source, const char* from, const char* name) {
  if (source.Has(from)) Set(name, source[from], source.Path(from));
}

void ChatBody::Set(const char* name, Json value, std::string path) {
  chat_[name] = std::move(value);
  if (path != name) Map(name, std::move(path));
}

std::string ChatBody::AddMessage(Json message, std::string path) {
  std::string at = fmt::format("messages[{}]", messages_.size());
  messages_.push_back(std::move(message));
  Map(at, std::move(path));
  return at;
}

std::string ChatBody::AddTool(Json tool, std::string path) {
  std::string at = fmt::format("tools[{}]", tools_.size());
  tools_.push_back(std::move(tool));
  Map(at, std::move(path));
  return at;
}

absl::Status ChatBody::Translate(const absl::Status& error) const {
  const std::string_view message = Message(error);
  const std::string_view path = message.substr(0, message.find(": "));
  const std::pair<std::string, std::string>* best = nullptr;
  for (const auto& entry : paths_) {
    // The last one counts: what is set again has a new origin.
    if (IsInside(path, entry.first) && (best == nullptr || entry.first.size() >= best->first.size())) best = &entry;
  }
  if (best == nullptr) return error;
  absl::Status translated(error.code(), fmt::format("{}{}", best->second, message.substr(best->first.size())));
  error.ForEachPayload([&](const auto& name, const absl::Cord& value) { translated.SetPayload(name, value); });
  return translated;
}

const Json& ChatBody::Assemble() {
  chat_["messages"] = std::move(messages_);
  if (!tools_.empty()) chat_["tools"] = std::move(tools_);
  return chat_;
}

absl::StatusOr<Job> ChatBody::Parse(const runtime::Engine& engine, const ParseOptions& options) {
  absl::StatusOr<Job> job = ParseChatCompletion(Assemble(), engine, options);
  if (!job.ok()) return Translate(job.status());
  return job;
}

absl::StatusOr<ChatPrompt> ChatBody::Prompt(const runtime::Engine& engine, const ParseOptions& options) {
  absl::StatusOr<ChatPrompt> prompt = ReadChatPrompt(Fields(Assemble()), engine, options);
  if (!prompt.ok()) return Translate(prompt.status());
  return prompt;
}

bool IsContextOverflow(const absl::Status& error) {
  const auto code = error.GetPayload(kCodePayload);
  return code.has_value() && *code == "context_length_exceeded";
}

}  // namespace hadal::serving
