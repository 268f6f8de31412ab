// Grammars in the EBNF that llama.cpp (GBNF) and XGrammar share:
//
//   # a comment, to the end of the line
//   root ::= greeting (", " name)* "!"
//   greeting ::= "Hello" | 'Good ' [a-z]+
//   name ::= [A-Z] [a-z]{1,20}
//
// A rule's right side goes on over line ends until the next `name ::=`. Pieces: literals in " or ', classes [a-z] and
// [^"\n], `.` (any character), rule names, groups (empty ones too), and after any of them * + ? {m} {m,} {m,n}. Escapes
// in literals and classes: \n \r \t \f \v \0 \xHH \uHHHH \UHHHHHHHH and \ before punctuation. Literals and classes are
// in characters, which are UTF-8 in the output.
//
// Left recursion, ambiguity and rules that match the empty text are all fine.
//
// InvalidArgument, with the line, for anything else; for rules that are missing, defined twice, or called `root` and
// absent.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "guided/budget.h"
#include "guided/expression.h"

namespace hadal::guided {

absl::StatusOr<Expr> ParseEbnf(std::string_view grammar, Expressions* expressions, Budget* budget);

}  // namespace hadal::guided
