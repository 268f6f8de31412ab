#include "text/chat_format.h"

#include <initializer_list>

#include "text/chat_render.h"

namespace hadal::text {
namespace {

bool HasAll(std::string_view text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) {
    if (text.find(word) == text.npos) return false;
  }
  return true;
}

bool Has(std::string_view text, std::string_view word) { return text.find(word) != text.npos; }

// Whether each <think> of an R1 template is the one that opens an answer: it stands behind <｜Assistant｜>, and nothing
// but a newline (Jinja's escape or the character) before the end of the string. Others write an empty thought there.
bool ThinkOnlyOpensAnswers(std::string_view jinja) {
  for (size_t at = jinja.find(kThinkText); at != jinja.npos; at = jinja.find(kThinkText, at + 1)) {
    if (!jinja.substr(0, at).ends_with(kAssistantText)) return false;
    std::string_view rest = jinja.substr(at + kThinkText.size());
    if (rest.starts_with("\\n")) rest.remove_prefix(2);
    if (rest.starts_with('\n')) rest.remove_prefix(1);
    if (!rest.starts_with('\'') && !rest.starts_with('"')) return false;
  }
  return true;
}

}  // namespace

std::string_view ChatFormatName(ChatFormat format) {
  switch (format) {
    case ChatFormat::kV4:
      return "V4";
    case ChatFormat::kV32:
      return "V3.2";
    case ChatFormat::kV31Terminus:
      return "V3.1-Terminus";
    case ChatFormat::kV31:
      return "V3.1";
    case ChatFormat::kV3:
      return "V3";
    case ChatFormat::kR1:
      return "R1";
  }
  return "";
}

CallMarkup MarkupOf(ChatFormat format) {
  switch (format) {
    case ChatFormat::kV4:
    case ChatFormat::kV32:
      return CallMarkup::kDsml;
    case ChatFormat::kV31Terminus:
    case ChatFormat::kV31:
      return CallMarkup::kTokens;
    case ChatFormat::kV3:
    case ChatFormat::kR1:
      return CallMarkup::kFencedTokens;
  }
  return CallMarkup::kDsml;
}

bool ThinksByDefault(ChatFormat format) { return format == ChatFormat::kV4 || format == ChatFormat::kR1; }

std::optional<ChatFormat> RecogniseChatTemplate(std::string_view jinja) {
  if (!HasAll(jinja, {kUserText, kAssistantText})) return std::nullopt;
  if (Has(jinja, kDsmlText)) {
    const bool v32 = Has(jinja, "function_calls"), v4 = Has(jinja, "tool_calls>");
    if (v32 == v4) return std::nullopt;
    return v32 ? ChatFormat::kV32 : ChatFormat::kV4;
  }
  if (!HasAll(jinja, {kCallsBeginText, kCallBeginText, kCallSepText, kCallEndText, kCallsEndText, kOutputBeginText,
                      kOutputEndText})) {
    return std::nullopt;
  }
  const bool thinks = Has(jinja, kThinkText), drops_thoughts = Has(jinja, kThinkEndText);
  const bool fenced = Has(jinja, "```json");
  if (fenced != HasAll(jinja, {kOutputsBeginText, kOutputsEndText})) return std::nullopt;
  if (!fenced) {
    if (!thinks || !drops_thoughts || !Has(jinja, "thinking")) return std::nullopt;
    // The variables in which Terminus keeps what makes it open an answer more often.
    return HasAll(jinja, {"is_only_sys", "is_prefix"}) ? ChatFormat::kV31Terminus : ChatFormat::kV31;
  }
  if (!thinks && !drops_thoughts) return ChatFormat::kV3;
  if (drops_thoughts && ThinkOnlyOpensAnswers(jinja)) return ChatFormat::kR1;
  return std::nullopt;
}

absl::StatusOr<std::optional<std::string>> ChatTemplateOfConfig(std::string_view tokenizer_config) {
  HADAL_ASSIGN_OR_RETURN(const Json config, ParseJson(tokenizer_config));
  if (!config.is_object()) return InvalidArgument("expected an object, found {}", config.type_name());
  const Json& found = Field(config, "chat_template");
  if (found.is_null()) return std::optional<std::string>();
  if (found.is_string()) return std::optional<std::string>(found.get<std::string>());
  if (!found.is_array()) {
    return InvalidArgument("chat_template: expected a string or an array, found {}", found.type_name());
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string where = fmt::format("chat_template[{}]", i);
    HADAL_ASSIGN_OR_RETURN(const std::string_view name, StringField(found[i], "name", where));
    HADAL_ASSIGN_OR_RETURN(const std::string_view text, StringField(found[i], "template", where));
    if (name == "default") return std::optional<std::string>(text);
  }
  return std::optional<std::string>();
}

}  // namespace hadal::text
