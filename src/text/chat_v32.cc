// The V3.2 chat encoder (spec deepseek-v32 7.2 and 7.3).
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "text/chat.h"
#include "text/chat_render.h"

namespace hadal::text {
namespace {

struct Message {
  Role role;
  const Json* source;
  size_t index;  // in the list it came from
  std::string where;
  bool in_context;
};

absl::Status Collect(const Json& list, std::string_view name, bool in_context, std::vector<Message>* out) {
  HADAL_RETURN_IF_ERROR(CheckMessages(list, name));
  for (size_t i = 0; i < list.size(); ++i) {
    std::string where = fmt::format("{}[{}]", name, i);
    HADAL_ASSIGN_OR_RETURN(const Role role, RoleOf(list[i], where));
    if (role == Role::kLatestReminder) {
      return InvalidArgument("{}.role: this encoding has no role \"latest_reminder\"", where);
    }
    out->push_back({role, &list[i], i, std::move(where), in_context});
  }
  return absl::OkStatus();
}

// A run of tool messages after an assistant message with calls.
struct ResultGroup {
  size_t begin, end;  // messages [begin, end) are the results
  const Json* calls;
};

// Results are positional in the prompt: brings those of one group into the order of the calls. Without any ids the
// order given is taken as right. Results may be missing only at the end of the conversation, and only the last ones.
absl::Status OrderResults(const ResultGroup& group, std::vector<Message>* messages) {
  const auto first = messages->begin() + group.begin;
  const size_t results = group.end - group.begin;
  if (results > group.calls->size()) {
    return InvalidArgument("{}: {} results for {} tool calls", (first + group.calls->size())->where, results,
                           group.calls->size());
  }
  std::map<std::string_view, size_t> order;
  for (size_t i = 0; i < group.calls->size(); ++i) {
    HADAL_ASSIGN_OR_RETURN(const std::string_view id, StringField((*group.calls)[i], "id", "tool_calls[]"));
    if (!id.empty()) order[id] = i;
  }
  std::vector<std::pair<size_t, Message>> ranked;
  size_t with_id = 0;
  for (size_t i = 0; i < results; ++i) {
    const Message& message = *(first + i);
    HADAL_ASSIGN_OR_RETURN(const std::string_view id, StringField(*message.source, "tool_call_id", message.where));
    size_t rank = i;
    if (!id.empty()) {
      ++with_id;
      const auto it = order.find(id);
      if (it == order.end()) {
        return InvalidArgument("{}.tool_call_id: \"{}\" matches no tool call of the assistant before it", message.where,
                               id);
      }
      rank = it->second;
    }
    ranked.emplace_back(rank, message);
  }
  if (with_id != 0 && with_id != results) {
    return InvalidArgument("{}.tool_call_id: some results of this group have an id and some have none", first->where);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < results; ++i) {
    if (ranked[i].first < i) {
      return InvalidArgument("{}.tool_call_id: a second result for the same call", ranked[i].second.where);
    }
    if (ranked[i].first > i) return InvalidArgument("{}: the result of tool call {} is missing", first->where, i);
    *(first + i) = std::move(ranked[i].second);
  }
  if (results < group.calls->size() && group.end < messages->size()) {
    return InvalidArgument("{}: {} tool calls but {} results before the next turn", first->where, group.calls->size(),
                           results);
  }
  return absl::OkStatus();
}

// Finds the groups; fills call_number[i] with the 1-based place of result i and call_count[i] with the calls it
// answers.
absl::Status PlaceResults(std::vector<Message>* messages, std::vector<size_t>* number, std::vector<size_t>* count) {
  number->assign(messages->size(), 0);
  count->assign(messages->size(), 0);
  for (size_t i = 0; i < messages->size();) {
    const Message& message = (*messages)[i];
    if (message.role != Role::kTool) {
      ++i;
      continue;
    }
    if (i == 0 || (*messages)[i - 1].role != Role::kAssistant || !HasCalls(*(*messages)[i - 1].source)) {
      return InvalidArgument("{}: a tool result without an assistant message with tool_calls before it", message.where);
    }
    ResultGroup group{i, i, &Field(*(*messages)[i - 1].source, "tool_calls")};
    if (!group.calls->is_array()) return InvalidArgument("{}.tool_calls: expected an array", (*messages)[i - 1].where);
    while (group.end < messages->size() && (*messages)[group.end].role == Role::kTool) ++group.end;
    HADAL_RETURN_IF_ERROR(OrderResults(group, messages));
    for (; i < group.end; ++i) {
      (*number)[i] = i - group.begin + 1;
      (*count)[i] = group.calls->size();
    }
  }
  return absl::OkStatus();
}

class Encoder {
 public:
  Encoder(const ChatOptions& options, std::vector<Message> messages)
      : options_(options), messages_(std::move(messages)) {}

  absl::StatusOr<Prompt> Encode() {
    last_turn_ = static_cast<ptrdiff_t>(messages_.size()) - 1;
    while (last_turn_ >= 0 && !OpensTurn(messages_[last_turn_].role)) --last_turn_;
    HADAL_RETURN_IF_ERROR(CheckDropped());
    HADAL_RETURN_IF_ERROR(PlaceResults(&messages_, &number_, &count_));
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
    const Message& message = messages_[i];
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

  absl::Status WriteText(const Message& message) {
    return WriteContent(Field(*message.source, "content"), ContentStyle{}, message.index, message.where, &writer_);
  }

  absl::Status WriteTurnEnd(size_t i) {
    writer_.Trusted(kAssistantText);
    writer_.Trusted(ThinkTag(thinking() && static_cast<ptrdiff_t>(i) == last_turn_));
    return absl::OkStatus();
  }

  absl::Status WriteAssistant(size_t i) {
    const Message& message = messages_[i];
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
    if (number_[i] == 1) writer_.Trusted("\n\n<function_results>");
    writer_.Trusted("\n<result>");
    HADAL_RETURN_IF_ERROR(WriteText(messages_[i]));
    writer_.Trusted("</result>");
    if (number_[i] == count_[i]) {
      writer_.Trusted("\n</function_results>\n\n");
      writer_.Trusted(ThinkTag(thinking() && static_cast<ptrdiff_t>(i) >= last_turn_));
    }
    return absl::OkStatus();
  }

  const ChatOptions& options_;
  std::vector<Message> messages_;
  std::vector<size_t> number_, count_;  // of tool results: place in their group, and the group's number of calls
  ptrdiff_t last_turn_ = -1;
  PromptWriter writer_;
};

}  // namespace

absl::StatusOr<Prompt> EncodeChatV32(const Json& messages, const ChatOptions& options) {
  if (messages.is_array() && messages.empty()) return InvalidArgument("messages: expected at least one message");
  std::vector<Message> all;
  if (options.context != nullptr) HADAL_RETURN_IF_ERROR(Collect(*options.context, "context", true, &all));
  HADAL_RETURN_IF_ERROR(Collect(messages, "messages", false, &all));
  return Encoder(options, std::move(all)).Encode();
}

}  // namespace hadal::text
