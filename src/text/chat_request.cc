// What a request says beside its messages: tools, response format, thinking.
#include <utility>

#include "text/chat.h"
#include "text/chat_render.h"

namespace hadal::text {

std::string Prompt::Text() const {
  std::string out;
  for (const PromptSpan& span : spans) out += span.text;
  return out;
}

absl::StatusOr<Prompt> EncodeChat(ChatFormat format, const Json& messages, const ChatOptions& options) {
  if (format == ChatFormat::kV4) return EncodeChatV4(messages, options);
  if (format == ChatFormat::kV32) return EncodeChatV32(messages, options);
  return EncodeChatV3(format, messages, options);
}

absl::StatusOr<size_t> AttachToRequest(const Json& tools, const Json& response_format, Json* messages) {
  HADAL_RETURN_IF_ERROR(CheckMessages(*messages, "messages"));
  if (IsEmpty(tools) && IsEmpty(response_format)) return size_t{0};
  auto& list = messages->get_ref<Json::array_t&>();
  size_t inserted = 0;
  const Json& role = list.empty() ? Field(*messages, "role") : Field(list[0], "role");
  if (!role.is_string() ||
      (role.get_ref<const std::string&>() != "system" && role.get_ref<const std::string&>() != "developer")) {
    Json system = Json::object();
    system["role"] = "system";
    list.insert(list.begin(), std::move(system));
    inserted = 1;
  }
  if (!IsEmpty(tools)) list[0]["tools"] = tools;
  if (!IsEmpty(response_format)) list[0]["response_format"] = response_format;
  return inserted;
}

bool OpensReasoning(std::string_view prompt) {
  if (prompt.ends_with('\n')) prompt.remove_suffix(1);
  return prompt.ends_with(kThinkText);
}

absl::StatusOr<ThinkingMode> ParseThinkingMode(std::string_view name) {
  if (name == "chat") return ThinkingMode::kChat;
  if (name == "thinking") return ThinkingMode::kThinking;
  return InvalidArgument("thinking mode: expected \"chat\" or \"thinking\", found \"{}\"", name);
}

absl::StatusOr<Effort> ParseEffort(std::string_view name) {
  if (name.empty()) return Effort::kUnset;
  if (name == "low") return Effort::kLow;
  if (name == "high") return Effort::kHigh;
  if (name == "max") return Effort::kMax;
  return InvalidArgument("reasoning effort: expected low, high or max, found \"{}\"", name);
}

namespace {

absl::StatusOr<Effort> MapEffort(std::string_view name, EffortProfile profile, EffortTable table) {
  const bool tiered = profile == EffortProfile::kTiered;
  const Effort low = tiered ? Effort::kLow : Effort::kHigh;
  const bool service = table == EffortTable::kService;
  if (name == "minimal" || name == "low") return low;
  if (name == "medium") return service ? Effort::kHigh : low;
  if (name == "high") return Effort::kHigh;
  if (name == "xhigh") return service || tiered ? Effort::kHigh : Effort::kMax;
  if (name == "max" || name == "ultra") return Effort::kMax;
  return InvalidArgument(
      "reasoning effort: expected none, minimal, low, medium, high, xhigh, max or ultra, found \"{}\"", name);
}

}  // namespace

absl::StatusOr<ThinkingChoice> ResolveThinking(const ThinkingRequest& request, EffortProfile profile, EffortTable table,
                                               bool default_on) {
  ThinkingChoice choice;
  if (request.effort == "none") return choice;
  bool on = default_on;
  if (request.effort.has_value()) {
    HADAL_ASSIGN_OR_RETURN(choice.effort, MapEffort(*request.effort, profile, table));
    on = true;
  }
  on = request.template_thinking.value_or(request.thinking.value_or(on));
  if (!on) return ThinkingChoice{};
  // "Default on, effort high" (serving-runtime 6.3).
  choice.mode = ThinkingMode::kThinking;
  if (choice.effort == Effort::kUnset && table == EffortTable::kService) choice.effort = Effort::kHigh;
  return choice;
}

}  // namespace hadal::text
