// A required tool as a form of the answer (spec serving-runtime 5.7): the calls in the markup of the model.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "serving/openai/request_parts.h"
#include "text/dsml.h"

namespace hadal::serving {

using text::Json;

guided::CallForm CallFormOf(text::ChatFormat format) {
  const auto control = guided::Control;
  if (text::MarkupOf(format) == text::CallMarkup::kDsml) {
    const std::string dsml = control(text::kDsmlText);
    const std::string_view block =
        text::CallBlockName(format == text::ChatFormat::kV4 ? text::Dialect::kV4 : text::Dialect::kV32);
    return {.begin = fmt::format("\n\n<{}{}>\n", dsml, block),
            .end = fmt::format("</{}{}>", dsml, block),
            .call = fmt::format("<{}invoke name=\"", dsml),
            .name_end = "\">\n",
            .call_end = fmt::format("</{}invoke>\n", dsml),
            .parameter = fmt::format("<{}parameter name=", dsml),
            .as_text = " string=\"true\">",
            .as_json = " string=\"false\">",
            .parameter_end = fmt::format("</{}parameter>\n", dsml),
            .no_parameters = "\n"};
  }
  const bool fenced = text::MarkupOf(format) == text::CallMarkup::kFencedTokens;
  const std::string call = control(text::kCallBeginText), separator = control(text::kCallSepText);
  return {.begin = control(text::kCallsBeginText),
          .end = control(text::kCallsEndText),
          .call = fenced ? call + "function" + separator : call,
          .name_end = fenced ? "\n```json\n" : separator,
          .call_end = (fenced ? "\n```" : "") + control(text::kCallEndText),
          .separator = fenced ? "\n" : ""};
}

absl::StatusOr<std::shared_ptr<const guided::Grammar>> ReadCallGrammar(const ToolUse& use, bool one_call,
                                                                       const runtime::Engine& engine) {
  std::vector<guided::CallableTool> tools;
  for (const Json& tool : use.callable) {
    const Json& function = tool["function"];
    const auto parameters = function.find("parameters");
    const bool given = parameters != function.end() && !parameters->is_null();
    tools.push_back({.name = function["name"].get<std::string>(), .schema = given ? text::DumpJson(*parameters) : ""});
  }
  const guided::GuidedSpec spec =
      guided::ToolCallsSpec(CallFormOf(engine.chat_format()), tools, use.one_call || one_call);
  absl::StatusOr<std::shared_ptr<const guided::Grammar>> grammar = engine.CompileGrammar(spec);
  if (!grammar.ok()) return InvalidArgument("tool_choice: {}", Message(grammar.status()));
  return grammar;
}

}  // namespace hadal::serving
