// The V4 chat encoder (spec deepseek-v4-text 6.1 and 6.2).
#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "text/chat.h"
#include "text/chat_render.h"

namespace hadal::text {
namespace {

constexpr std::string_view kEffortHighB =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";
constexpr std::string_view kEffortMaxA = kEffortHighB;
constexpr std::string_view kEffortMaxB =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n";

absl::StatusOr<std::string_view> EffortPrefix(EffortProfile profile, Effort effort) {
  if (profile == EffortProfile::kFirstRelease) {
    if (effort == Effort::kLow) return InvalidArgument("reasoning effort: this encoder knows high and max, not low");
    return effort == Effort::kMax ? kEffortMaxA : std::string_view();
  }
  if (effort == Effort::kHigh) return kEffortHighB;
  return effort == Effort::kMax ? kEffortMaxB : std::string_view();
}

// Token written after a message with this task. "action" has a form of its own.
absl::StatusOr<std::string_view> TaskToken(std::string_view task, std::string_view where) {
  if (task == "action") return std::string_view("<｜action｜>");
  if (task == "query") return std::string_view("<｜query｜>");
  if (task == "authority") return std::string_view("<｜authority｜>");
  if (task == "domain") return std::string_view("<｜domain｜>");
  if (task == "title") return std::string_view("<｜title｜>");
  if (task == "read_url") return std::string_view("<｜read_url｜>");
  return InvalidArgument("{}.task: unknown task \"{}\"", where, task);
}

// One piece of a user turn: a text or a tool result.
struct Block {
  const Json* content;
  size_t index;  // of the message it came from
  bool is_result;
  std::string_view id;
};

struct Message {
  Role role;
  const Json* source;  // first message it was made from
  size_t index;        // of that message in its list
  std::string where;
  bool in_context;
  std::vector<Block> blocks;  // user turns only
  std::string_view task;
  bool wo_eos = false;
};

bool OpensTurn(const Message& message) { return message.role == Role::kUser || message.role == Role::kDeveloper; }

// 6.1 step 1: runs of user and tool messages become one user turn.
absl::Status Merge(const Json& list, std::string_view name, bool in_context, std::vector<Message>* out) {
  HADAL_RETURN_IF_ERROR(CheckMessages(list, name));
  const size_t first = out->size();
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& message = list[i];
    std::string where = fmt::format("{}[{}]", name, i);
    HADAL_ASSIGN_OR_RETURN(const Role role, RoleOf(message, where));
    HADAL_ASSIGN_OR_RETURN(const std::string_view task, StringField(message, "task", where));
    if (!task.empty()) HADAL_RETURN_IF_ERROR(TaskToken(task, where).status());
    const bool turn = role == Role::kUser || role == Role::kTool;
    const bool last_is_user = out->size() > first && out->back().role == Role::kUser;
    Block block{&Field(message, "content"), i, role == Role::kTool, {}};
    if (block.is_result) {
      HADAL_ASSIGN_OR_RETURN(block.id, StringField(message, "tool_call_id", where));
    }
    if (turn && last_is_user && (block.is_result || out->back().task.empty())) {
      out->back().blocks.push_back(block);
      continue;
    }
    Message merged{turn ? Role::kUser : role, &message, i, std::move(where), in_context, {}, {}, false};
    if (turn) merged.blocks.push_back(block);
    if (role != Role::kTool) {
      merged.task = task;
      merged.wo_eos = !IsEmpty(Field(message, "wo_eos"));
    }
    out->push_back(std::move(merged));
  }
  return absl::OkStatus();
}

using CallOrder = std::map<std::string_view, size_t>;

// Ids of an assistant's calls in order.
absl::StatusOr<CallOrder> OrderOfCalls(const Message& message) {
  CallOrder order;
  const Json& calls = Field(*message.source, "tool_calls");
  if (!calls.is_array()) return InvalidArgument("{}.tool_calls: expected an array", message.where);
  for (size_t i = 0; i < calls.size(); ++i) {
    HADAL_ASSIGN_OR_RETURN(const std::string_view id,
                           StringField(calls[i], "id", fmt::format("{}.tool_calls[{}]", message.where, i)));
    if (!id.empty()) order[id] = i;
  }
  return order;
}

absl::Status CheckResults(const Message& message, const CallOrder& order) {
  std::map<std::string_view, bool> seen;
  for (const Block& block : message.blocks) {
    if (!block.is_result) continue;
    if (!order.contains(block.id)) {
      return InvalidArgument("messages[{}].tool_call_id: \"{}\" matches no tool call of the assistant before it",
                             block.index, block.id);
    }
    if (std::exchange(seen[block.id], true)) {
      return InvalidArgument("messages[{}].tool_call_id: a second result for \"{}\"", block.index, block.id);
    }
  }
  return absl::OkStatus();
}

// 6.1 step 2: the results of a turn in the order of the calls; texts keep their slots.
absl::Status SortResults(const ChatOptions& options, std::vector<Message>* messages) {
  CallOrder order;
  for (Message& message : *messages) {
    if (message.role == Role::kAssistant && HasCalls(*message.source)) {
      HADAL_ASSIGN_OR_RETURN(order, OrderOfCalls(message));
      continue;
    }
    if (message.role != Role::kUser) continue;
    if (options.strict_tool_results && !message.in_context) HADAL_RETURN_IF_ERROR(CheckResults(message, order));
    std::vector<Block> results;
    for (const Block& block : message.blocks) {
      if (block.is_result) results.push_back(block);
    }
    if (results.size() < 2 || order.empty()) continue;
    const auto rank = [&](const Block& block) {
      const auto it = order.find(block.id);
      return it == order.end() ? size_t{0} : it->second;
    };
    std::stable_sort(results.begin(), results.end(), [&](const Block& a, const Block& b) { return rank(a) < rank(b); });
    size_t next = 0;
    for (Block& block : message.blocks) {
      if (block.is_result) block = results[next++];
    }
  }
  return absl::OkStatus();
}

// Index of the last user or developer message, -1 if there is none.
ptrdiff_t LastTurn(const std::vector<Message>& messages) {
  ptrdiff_t last = static_cast<ptrdiff_t>(messages.size()) - 1;
  while (last >= 0 && !OpensTurn(messages[last])) --last;
  return last;
}

class Encoder {
 public:
  Encoder(const ChatOptions& options, std::vector<Message> messages)
      : options_(options), messages_(std::move(messages)) {}

  absl::StatusOr<Prompt> Encode() {
    // 6.1 steps 3 and 4.
    drop_ = options_.drop_thinking && std::none_of(messages_.begin(), messages_.end(), [](const Message& m) {
              return m.role != Role::kUser && HasTools(*m.source);
            });
    last_turn_ = LastTurn(messages_);
    if (thinking() && drop_) {
      ptrdiff_t i = 0;
      std::erase_if(messages_, [&](const Message& m) { return i++ < last_turn_ && m.role == Role::kDeveloper; });
      last_turn_ = LastTurn(messages_);
    }
    if (options_.context == nullptr && options_.add_bos) writer_.Trusted(kBosText);
    HADAL_ASSIGN_OR_RETURN(const std::string_view prefix, EffortPrefix(options_.effort_profile, options_.effort));
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i].in_context) continue;
      if (i == 0 && thinking()) writer_.Trusted(prefix);
      HADAL_RETURN_IF_ERROR(WriteMessage(i));
      HADAL_RETURN_IF_ERROR(WriteTransition(i));
    }
    return writer_.Take();
  }

 private:
  bool thinking() const { return options_.mode == ThinkingMode::kThinking; }

  absl::Status WriteMessage(size_t i) {
    const Message& message = messages_[i];
    const Json& content = Field(*message.source, "content");
    switch (message.role) {
      case Role::kSystem:
        HADAL_RETURN_IF_ERROR(WriteContent(content, ContentStyle{}, message.index, message.where, &writer_));
        return WriteExtras(*message.source, Dialect::kV4, message.where, &writer_);
      case Role::kDeveloper:
        if (IsEmpty(content)) return InvalidArgument("{}.content: a developer message needs content", message.where);
        writer_.Trusted(kUserText);
        HADAL_RETURN_IF_ERROR(WriteContent(content, ContentStyle{}, message.index, message.where, &writer_));
        return WriteExtras(*message.source, Dialect::kV4, message.where, &writer_);
      case Role::kLatestReminder:
        writer_.Trusted(kLatestReminderText);
        return WriteContent(content, ContentStyle{}, message.index, message.where, &writer_);
      case Role::kAssistant:
        return WriteAssistant(i);
      default:
        return WriteUser(message);
    }
  }

  absl::Status WriteUser(const Message& message) {
    writer_.Trusted(kUserText);
    for (size_t b = 0; b < message.blocks.size(); ++b) {
      const Block& block = message.blocks[b];
      const std::string where =
          fmt::format("{}[{}]", std::string_view(message.where).substr(0, message.where.find('[')), block.index);
      if (b > 0) writer_.Trusted("\n\n");
      if (block.is_result) {
        writer_.Trusted("<tool_result>");
        HADAL_RETURN_IF_ERROR(WriteContent(*block.content, {"\n\n", true, false}, block.index, where, &writer_));
        writer_.Trusted("</tool_result>");
      } else if (message.task == "read_url" && block.content->is_string()) {
        WriteReadUrl(block.content->get_ref<const std::string&>());
      } else {
        HADAL_RETURN_IF_ERROR(
            WriteContent(*block.content, {"\n", false, options_.allow_images}, block.index, where, &writer_));
      }
    }
    return absl::OkStatus();
  }

  // The text of this task carries one control token of its own, before the address.
  void WriteReadUrl(std::string_view text) {
    const size_t at = text.rfind(kExtractedUrlText);
    if (at == text.npos) return writer_.Plain(text);
    writer_.Plain(text.substr(0, at));
    writer_.Trusted(kExtractedUrlText);
    writer_.Plain(text.substr(at + kExtractedUrlText.size()));
  }

  absl::Status WriteAssistant(size_t i) {
    const Message& message = messages_[i];
    const bool after_task = i > 0 && !messages_[i - 1].task.empty();
    if (thinking() && !after_task && (!drop_ || static_cast<ptrdiff_t>(i) > last_turn_)) {
      HADAL_ASSIGN_OR_RETURN(const std::string_view reasoning, Reasoning(*message.source, message.where));
      writer_.Plain(reasoning);
      writer_.Trusted(kThinkEndText);
    }
    HADAL_RETURN_IF_ERROR(WriteAssistantContent(*message.source, options_, message.index, message.where, &writer_));
    if (HasCalls(*message.source)) {
      HADAL_RETURN_IF_ERROR(WriteCalls(Field(*message.source, "tool_calls"), Dialect::kV4, message.where, &writer_));
    }
    if (!message.wo_eos) writer_.Trusted(kEosText);
    return absl::OkStatus();
  }

  // What stands between a message and the assistant's next word.
  absl::Status WriteTransition(size_t i) {
    const Message& message = messages_[i];
    if (i + 1 < messages_.size()) {
      const Role next = messages_[i + 1].role;
      if (next != Role::kAssistant && next != Role::kLatestReminder) return absl::OkStatus();
    }
    if (!message.task.empty()) {
      HADAL_ASSIGN_OR_RETURN(const std::string_view token, TaskToken(message.task, message.where));
      if (message.task == "action") {
        writer_.Trusted(kAssistantText);
        writer_.Trusted(thinking() ? kThinkText : kThinkEndText);
      }
      writer_.Trusted(token);
    } else if (OpensTurn(message)) {
      const bool think = thinking() && (!drop_ || static_cast<ptrdiff_t>(i) >= last_turn_);
      writer_.Trusted(kAssistantText);
      writer_.Trusted(think ? kThinkText : kThinkEndText);
    }
    return absl::OkStatus();
  }

  const ChatOptions& options_;
  std::vector<Message> messages_;
  bool drop_ = false;
  ptrdiff_t last_turn_ = -1;
  PromptWriter writer_;
};

}  // namespace

absl::StatusOr<Prompt> EncodeChatV4(const Json& messages, const ChatOptions& options) {
  if (messages.is_array() && messages.empty()) return InvalidArgument("messages: expected at least one message");
  std::vector<Message> merged;
  if (options.context != nullptr) HADAL_RETURN_IF_ERROR(Merge(*options.context, "context", true, &merged));
  HADAL_RETURN_IF_ERROR(Merge(messages, "messages", false, &merged));
  HADAL_RETURN_IF_ERROR(SortResults(options, &merged));
  return Encoder(options, std::move(merged)).Encode();
}

}  // namespace hadal::text
