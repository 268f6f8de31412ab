// Calls of tools as a grammar: the output is one or more calls, each of a tool that is listed and with arguments that
// satisfy its schema, in the markup of whoever asks (the chat formats are none of this library's business).
//
// The arguments are those of json_schema.h, in its order and with its limits; a schema that is not supported there is
// not supported here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "guided/budget.h"
#include "guided/expression.h"
#include "guided/grammar.h"
#include "guided/json_syntax.h"
#include "guided/vocabulary.h"

namespace hadal::guided {

// A control token in a text of the markup; a text holds any number of them. Text may not hold U+0001 otherwise.
std::string Control(std::string_view spelling);

// begin (call NAME name_end ARGUMENTS call_end), separator (...), ... end
struct CallForm {
  std::string begin = {}, end = {};
  std::string call = {}, name_end = {}, call_end = {};
  std::string separator = {};
  // Each argument as parameter "NAME" as_text STRING parameter_end or parameter "NAME" as_json JSON parameter_end, and
  // no_parameters where there is none (json_schema.h, ParameterForm). `parameter` empty: the arguments are a JSON
  // object.
  std::string parameter = {}, as_text = {}, as_json = {}, parameter_end = {}, no_parameters = {};
};

struct CallableTool {
  std::string name;
  std::string schema = {};  // of its arguments; empty: it takes none
};

// What Compile takes for at least one call of `tools`, in whatever order, or for exactly one.
GuidedSpec ToolCallsSpec(const CallForm& markup, const std::vector<CallableTool>& tools, bool one_call);

// The text of such a spec. InvalidArgument for a schema that is not supported or plainly takes no object, naming the
// tool, and for a control token that is not there. A tool whose schema nothing turns out to satisfy is never called.
absl::StatusOr<Expr> ParseToolCalls(std::string_view text, const TokenVocabulary& vocabulary, Expressions* expressions,
                                    Budget* budget);

}  // namespace hadal::guided
