#include "guided/grammar.h"

#include <utility>
#include <vector>

#include "guided/ebnf.h"
#include "guided/json_schema.h"
#include "guided/json_syntax.h"
#include "guided/json_text.h"
#include "guided/regex.h"
#include "guided/tool_calls.h"

namespace hadal::guided {
namespace {

absl::StatusOr<Expr> ParseChoices(std::string_view text, Expressions* expressions, Budget* budget) {
  HADAL_RETURN_IF_ERROR(budget->CheckText("choice", text));
  HADAL_ASSIGN_OR_RETURN(const Json choices, ParseJsonText("choice", text, budget->limits().depth));
  if (!choices.is_array() || choices.empty()) return InvalidArgument("choice: expected a non-empty array of strings");
  std::vector<Expr> options;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!choices[i].is_string()) return InvalidArgument("choice: [{}]: expected a string", i);
    options.push_back(expressions->Literal(choices[i].get_ref<const std::string&>()));
  }
  return expressions->Choice(options);
}

absl::StatusOr<Expr> Parse(const GuidedSpec& spec, const TokenVocabulary& vocabulary, Expressions* expressions,
                           Budget* budget) {
  switch (spec.kind) {
    case GuidedSpec::Kind::kJsonObject:
      return JsonSyntax(expressions).AnyObject();
    case GuidedSpec::Kind::kJsonSchema:
      return ParseJsonSchema(spec.text, expressions, budget);
    case GuidedSpec::Kind::kRegex:
      return ParseRegex(spec.text, {}, expressions, budget);
    case GuidedSpec::Kind::kChoice:
      return ParseChoices(spec.text, expressions, budget);
    case GuidedSpec::Kind::kGrammar:
      return ParseEbnf(spec.text, expressions, budget);
    case GuidedSpec::Kind::kToolCalls:
      return ParseToolCalls(spec.text, vocabulary, expressions, budget);
  }
  return InvalidArgument("guided decoding: unknown kind {}", static_cast<int>(spec.kind));
}

const char* KindName(GuidedSpec::Kind kind) {
  switch (kind) {
    case GuidedSpec::Kind::kJsonObject:
      return "json object";
    case GuidedSpec::Kind::kJsonSchema:
      return "json schema";
    case GuidedSpec::Kind::kRegex:
      return "regex";
    case GuidedSpec::Kind::kChoice:
      return "choice";
    case GuidedSpec::Kind::kGrammar:
      return "grammar";
    case GuidedSpec::Kind::kToolCalls:
      return "tool calls";
  }
  return "?";
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const GuidedSpec& spec,
                                                       std::shared_ptr<const TokenVocabulary> vocabulary,
                                                       const CompileLimits& limits) {
  Budget budget(limits);
  Expressions expressions;
  HADAL_ASSIGN_OR_RETURN(const Expr root, Parse(spec, *vocabulary, &expressions, &budget));
  absl::StatusOr<Automaton> automaton = BuildAutomaton(expressions, root, &budget);
  if (!automaton.ok()) return InvalidArgument("{}: {}", KindName(spec.kind), Message(automaton.status()));
  return std::make_shared<const Grammar>(*std::move(automaton), std::move(vocabulary));
}

}  // namespace hadal::guided
