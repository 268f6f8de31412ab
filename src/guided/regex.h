// Regular expressions to expressions (expression.h). The dialect is what JavaScript (JSON Schema's `pattern`) and
// Python have in common; characters are Unicode characters.
//
//   literals, .                        . is any character but \n and \r
//   [a-z_] [^"]                        classes; inside them \b is the backspace
//   \d \w \s \D \W \S                  as in JavaScript: digits and word characters are ASCII, spaces Unicode's
//   \n \r \t \f \v \0 \xHH \uHHHH \u{H...} \cX, \ before punctuation
//   x* x+ x? x{2} x{2,} x{2,5}         also with a lazy `?`, which changes no language
//   (x) (?:x) (?<name>x) (?P<name>x)   groups, |
//   ^ $ \A \z \Z                       only where the text begins or ends
//
// InvalidArgument, naming the construct and its byte: back references, lookaround, word boundaries, possessive and
// atomic groups, flags, \p{...}, POSIX classes, surrogate escapes, empty classes.
#pragma once

#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "guided/budget.h"
#include "guided/char_set.h"
#include "guided/expression.h"

namespace hadal::guided {

struct RegexOptions {
  // The pattern may match anywhere (JSON Schema); else it must match the whole text.
  bool search = false;
  // How one character of a set is written; empty: in UTF-8.
  std::function<Expr(const CharSet&)> spell;
};

absl::StatusOr<Expr> ParseRegex(std::string_view pattern, const RegexOptions& options, Expressions* expressions,
                                Budget* budget);

}  // namespace hadal::guided
