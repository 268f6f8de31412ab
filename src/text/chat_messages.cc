#include "text/chat_messages.h"

#include <algorithm>
#include <map>
#include <utility>

namespace hadal::text {
namespace {

absl::Status Collect(const Json& list, std::string_view name, bool in_context, std::vector<ListedMessage>* out) {
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

absl::Status OrderGroup(const ResultGroup& group, std::vector<ListedMessage>* messages) {
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
  std::vector<std::pair<size_t, ListedMessage>> ranked;
  size_t with_id = 0;
  for (size_t i = 0; i < results; ++i) {
    const ListedMessage& message = *(first + i);
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

}  // namespace

absl::StatusOr<std::vector<ListedMessage>> ListMessages(const Json& messages, const ChatOptions& options) {
  if (messages.is_array() && messages.empty()) return InvalidArgument("messages: expected at least one message");
  std::vector<ListedMessage> all;
  if (options.context != nullptr) HADAL_RETURN_IF_ERROR(Collect(*options.context, "context", true, &all));
  HADAL_RETURN_IF_ERROR(Collect(messages, "messages", false, &all));
  return all;
}

absl::StatusOr<std::vector<ResultPlace>> OrderResults(std::vector<ListedMessage>* messages) {
  std::vector<ResultPlace> places(messages->size());
  for (size_t i = 0; i < messages->size();) {
    const ListedMessage& message = (*messages)[i];
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
    HADAL_RETURN_IF_ERROR(OrderGroup(group, messages));
    for (; i < group.end; ++i) places[i] = {i - group.begin + 1, group.calls->size()};
  }
  return places;
}

}  // namespace hadal::text
