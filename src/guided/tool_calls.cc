#include "guided/tool_calls.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "guided/json_schema.h"
#include "guided/json_text.h"

namespace hadal::guided {
namespace {

constexpr char kMark = '\x01';
constexpr std::string_view kNoArguments = R"({"type":"object","properties":{}})";

// The markup's texts by their names in a spec.
constexpr std::pair<const char*, std::string CallForm::*> kTexts[] = {{"begin", &CallForm::begin},
                                                                      {"end", &CallForm::end},
                                                                      {"call", &CallForm::call},
                                                                      {"name_end", &CallForm::name_end},
                                                                      {"call_end", &CallForm::call_end},
                                                                      {"separator", &CallForm::separator},
                                                                      {"parameter", &CallForm::parameter},
                                                                      {"as_text", &CallForm::as_text},
                                                                      {"as_json", &CallForm::as_json},
                                                                      {"parameter_end", &CallForm::parameter_end},
                                                                      {"no_parameters", &CallForm::no_parameters}};

class Parser {
 public:
  Parser(const Json& spec, const TokenVocabulary& vocabulary, Expressions* expressions, Budget* budget)
      : spec_(spec), vocabulary_(vocabulary), e_(*expressions), budget_(budget) {}

  absl::StatusOr<Expr> Parse() {
    HADAL_RETURN_IF_ERROR(ReadMarkup());
    const Json& tools = Member("tools");
    if (!tools.is_array() || tools.empty()) return InvalidArgument("tools: expected at least one");
    std::vector<Expr> options;
    for (const Json& tool : tools) {
      HADAL_ASSIGN_OR_RETURN(const Expr option, ParseTool(tool));
      options.push_back(option);
    }
    const Expr call = e_.Sequence({Text("call"), e_.Choice(options), Text("call_end")});
    const Expr more = e_.Sequence({Text("separator"), call});
    const Expr calls = Member("one_call") == Json(true) ? call : e_.Sequence({call, e_.Repeat(more, 0, kUnlimited)});
    return e_.Sequence({Text("begin"), calls, Text("end")});
  }

 private:
  const Json& Member(const char* name) const {
    static const Json* const null = new Json();
    const auto found = spec_.find(name);
    return found == spec_.end() ? *null : *found;
  }

  absl::Status ReadMarkup() {
    for (const auto& [name, unused] : kTexts) {
      const Json& text = Member(name);
      if (!text.is_string()) return InvalidArgument("{}: expected a string", name);
      HADAL_ASSIGN_OR_RETURN(texts_[name], ParseText(text.get_ref<const std::string&>()));
    }
    return absl::OkStatus();
  }

  // Text and control tokens to what stands for them in the vocabulary.
  absl::StatusOr<Expr> ParseText(std::string_view text) {
    std::string bytes;
    while (true) {
      const size_t begin = text.find(kMark);
      bytes += text.substr(0, begin);
      if (begin == text.npos) return e_.Literal(bytes);
      text.remove_prefix(begin + 1);
      const size_t end = text.find(kMark);
      if (end == text.npos) return InvalidArgument("a control token's spelling has no end");
      const std::string_view spelling = text.substr(0, end);
      if (!vocabulary_.HasControl(spelling)) return InvalidArgument("the tokenizer has no control token {}", spelling);
      bytes += TokenVocabulary::ControlBytes(spelling);
      text.remove_prefix(end + 1);
    }
  }

  Expr Text(const char* name) const { return texts_.at(name); }

  // A call between what all of them begin and end with.
  absl::StatusOr<Expr> ParseTool(const Json& tool) {
    if (!tool.is_object() || !tool.contains("name") || !tool["name"].is_string() || !tool.contains("schema") ||
        !tool["schema"].is_string()) {
      return InvalidArgument("tools: expected names and schemas as strings");
    }
    const std::string& name = tool["name"].get_ref<const std::string&>();
    const std::string& schema = tool["schema"].get_ref<const std::string&>();
    const ParameterForm form = {.begin = Text("parameter"),
                                .as_text = Text("as_text"),
                                .as_json = Text("as_json"),
                                .end = Text("parameter_end"),
                                .none = Text("no_parameters")};
    const ParameterForm* const used = form.begin == kEmptyText ? nullptr : &form;
    const absl::StatusOr<Expr> arguments =
        ParseArgumentsSchema(schema.empty() ? kNoArguments : schema, used, &e_, budget_);
    if (!arguments.ok()) return InvalidArgument("tool {}: {}", name, Message(arguments.status()));
    if (*arguments == kNoText) return InvalidArgument("tool {}: no arguments can satisfy its schema", name);
    return e_.Sequence({e_.Literal(name), Text("name_end"), *arguments});
  }

  const Json& spec_;
  const TokenVocabulary& vocabulary_;
  Expressions& e_;
  Budget* budget_;
  absl::flat_hash_map<std::string, Expr> texts_;
};

}  // namespace

std::string Control(std::string_view spelling) {
  std::string text(1, kMark);
  text += spelling;
  return text += kMark;
}

GuidedSpec ToolCallsSpec(const CallForm& markup, const std::vector<CallableTool>& tools, bool one_call) {
  Json spec = Json::object();
  for (const auto& [name, text] : kTexts) spec[name] = markup.*text;
  spec["one_call"] = one_call;
  Json& list = spec["tools"] = Json::array();
  for (const CallableTool& tool : tools) list.push_back({{"name", tool.name}, {"schema", tool.schema}});
  return {.kind = GuidedSpec::Kind::kToolCalls, .text = spec.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

absl::StatusOr<Expr> ParseToolCalls(std::string_view text, const TokenVocabulary& vocabulary, Expressions* expressions,
                                    Budget* budget) {
  // Each schema is held to the limit of a text by itself: programs that use tools list many.
  HADAL_ASSIGN_OR_RETURN(const Json spec, ParseJsonText("tool calls", text, budget->limits().depth));
  if (!spec.is_object()) return InvalidArgument("tool calls: expected an object");
  absl::StatusOr<Expr> calls = Parser(spec, vocabulary, expressions, budget).Parse();
  if (!calls.ok()) return InvalidArgument("tool calls: {}", Message(calls.status()));
  return calls;
}

}  // namespace hadal::guided
