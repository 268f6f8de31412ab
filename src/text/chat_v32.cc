// The V3.2 chat encoder (spec deepseek-v32 7.2 and 7.3).
#include <utility>
#include <vector>

#include "text/chat.h"
#include "text/chat_messages.h"
#include "text/chat_render.h"

namespace hadal::text {
namespace {

class Encoder {
 public:
  Encoder(const ChatOptions& options, std::vector<ListedMessage> messages)
      : options_(options), messages_(std::move(messages)) {}

  absl::StatusOr<Prompt> Encode() {
    last_turn_ = static_cast<ptrdiff_t>(messages_.size()) - 1;
    while (last_turn_ >= 0 && !OpensTurn(messages_[last_turn_].role)) --last_turn_;
    HADAL_RETURN_IF_ERROR(CheckDropped());
    HADAL_ASSIGN_OR_RETURN(places_, OrderResults(&messages_));
    if (options_.context == nullptr && options_.add_bos) writer_.Trusted(kBosText);
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (!messages_[i].in_context) HADAL_RETURN_IF_ERROR(WriteMessage(i));
    }
    return writer_.Take();
  }

 private:
  static bool OpensTurn(Role role) { return role == Role::kUser || role == Role::kDeveloper; }
  bool thinking() const { return options_.mode == ThinkingMode::kThinking; }
  std::string_view ThinkTag(bool open) const { return open ? kThinkText : kThinkEndText; }

  // Dropping a developer message makes the reference fail; so does this encoder, with a reason.
  absl::Status CheckDropped() const {
    if (!thinking() || !options_.drop_thinking) return absl::OkStatus();
    for (ptrdiff_t i = 0; i < last_turn_; ++i) {
      if (messages_[i].role == Role::kDeveloper) {
        return InvalidArgument("{}: a developer message before the last user turn needs drop_thinking=false",
                               messages_[i].where);
      }
    }
    return absl::OkStatus();
  }

  absl::Status WriteMessage(size_t i) {
    const ListedMessage& message = messages_[i];
    switch (message.role) {
      case Role::kSystem:
        HADAL_RETURN_IF_ERROR(WriteText(message));
        return WriteExtras(*message.source, Dialect::kV32, message.where, &writer_);
      case Role::kDeveloper:
        if (IsEmpty(Field(*message.source, "content"))) {
          return InvalidArgument("{}.content: a developer message needs content", message.where);
        }
        writer_.Trusted(kUserText);
        HADAL_RETURN_IF_ERROR(WriteExtras(*message.source, Dialect::kV32, message.where, &writer_));
        writer_.Trusted("\n\n# The user's message is: ");
        HADAL_RETURN_IF_ERROR(WriteText(message));
        return WriteTurnEnd(i);
      case Role::kUser:
        writer_.Trusted(kUserText);
        HADAL_RETURN_IF_ERROR(WriteText(message));
        return WriteTurnEnd(i);
      case Role::kAssistant:
        return WriteAssistant(i);
      default:
        return WriteResult(i);
    }
  }

  absl::Status WriteText(const ListedMessage& message) {
    return WriteContent(Field(*message.source, "content"), ContentStyle{}, message.index, message.where, &writer_);
  }

  absl::Status WriteTurnEnd(size_t i) {
    writer_.Trusted(kAssistantText);
    writer_.Trusted(ThinkTag(thinking() && static_cast<ptrdiff_t>(i) == last_turn_));
    return absl::OkStatus();
  }

  absl::Status WriteAssistant(size_t i) {
    const ListedMessage& message = messages_[i];
    if (thinking() && static_cast<ptrdiff_t>(i) > last_turn_) {
      HADAL_ASSIGN_OR_RETURN(const std::string_view reasoning, Reasoning(*message.source, message.where));
      if (reasoning.empty() && !HasCalls(*message.source)) {
        return InvalidArgument("{}.reasoning_content: needed in thinking mode on an answer without tool calls",
                               message.where);
      }
      writer_.Plain(reasoning);
      writer_.Trusted(kThinkEndText);
    }
    HADAL_RETURN_IF_ERROR(WriteAssistantContent(*message.source, options_, message.index, message.where, &writer_));
    if (HasCalls(*message.source)) {
      HADAL_RETURN_IF_ERROR(WriteCalls(Field(*message.source, "tool_calls"), Dialect::kV32, message.where, &writer_));
    }
    if (IsEmpty(Field(*message.source, "wo_eos"))) writer_.Trusted(kEosText);
    return absl::OkStatus();
  }

  absl::Status WriteResult(size_t i) {
    if (places_[i].number == 1) writer_.Trusted("\n\n<function_results>");
    writer_.Trusted("\n<result>");
    HADAL_RETURN_IF_ERROR(WriteText(messages_[i]));
    writer_.Trusted("</result>");
    if (places_[i].number == places_[i].count) {
      writer_.Trusted("\n</function_results>\n\n");
      writer_.Trusted(ThinkTag(thinking() && static_cast<ptrdiff_t>(i) >= last_turn_));
    }
    return absl::OkStatus();
  }

  const ChatOptions& options_;
  std::vector<ListedMessage> messages_;
  std::vector<ResultPlace> places_;
  ptrdiff_t last_turn_ = -1;
  PromptWriter writer_;
};

}  // namespace

absl::StatusOr<Prompt> EncodeChatV32(const Json& messages, const ChatOptions& options) {
  HADAL_ASSIGN_OR_RETURN(std::vector<ListedMessage> all, ListMessages(messages, options));
  return Encoder(options, std::move(all)).Encode();
}

}  // namespace hadal::text
