// The inside of JSON objects and arrays as expressions: which members, in which order, with commas between them.
#pragma once

#include <vector>

#include "guided/expression.h"
#include "guided/json_syntax.h"

namespace hadal::guided {

struct Member {
  Expr text;  // key, colon and value, or how else it is written
  bool required = false;
};

// What stands around members.
struct ObjectBrackets {
  Expr open = kEmptyText;
  Expr separator = kEmptyText;
  Expr close = kEmptyText;       // behind the last member
  Expr close_none = kEmptyText;  // behind `open`, where there is no member
};

// An object with these members, in this order, and then `min_more` to `max_more` of the kind `more` (kNoText for none,
// which then counts as 0 of them).
struct ObjectShape {
  std::vector<Member> members;
  Expr more = kNoText;
  uint32_t min_more = 0, max_more = kUnlimited;
};
Expr ObjectExpr(const ObjectShape& shape, const ObjectBrackets& brackets, Expressions* expressions);

// An array of `min` to `max` elements: the first as in `prefix`, all behind those as `rest` (kNoText: there are none).
struct ArrayShape {
  std::vector<Expr> prefix = {};
  Expr rest = kNoText;
  uint32_t min = 0, max = kUnlimited;
};
Expr ArrayExpr(const ArrayShape& shape, const JsonSyntax& syntax, Expressions* expressions);

}  // namespace hadal::guided
