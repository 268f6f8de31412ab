#include "guided/json_objects.h"

#include <algorithm>

namespace hadal::guided {
namespace {

// An expression that is used in several places and should be compiled once per following state, not at once: a rule, so
// that long chains do not nest.
Expr Link(Expr body, Expressions* expressions) {
  const RuleId rule = expressions->DeclareRule("", true);
  expressions->DefineRule(rule, body);
  return expressions->Call(rule);
}

uint32_t Minus(uint32_t count, uint32_t taken) {
  if (count == kUnlimited) return kUnlimited;
  return count > taken ? count - taken : 0;
}

// `min` to `max` of `element` with separators between them.
Expr List(Expr element, uint32_t min, uint32_t max, Expr separator, Expressions* expressions) {
  if (max == 0 || (min == 0 && element == kNoText)) return kEmptyText;
  const Expr next = expressions->Sequence({separator, element});
  const Expr list = expressions->Sequence({element, expressions->Repeat(next, Minus(min, 1), Minus(max, 1))});
  return min == 0 ? expressions->Optional(list) : list;
}

}  // namespace

Expr ObjectExpr(const ObjectShape& shape, const ObjectBrackets& brackets, Expressions* expressions) {
  Expressions& e = *expressions;
  const Expr more = e.Sequence({brackets.separator, shape.more});
  // What follows the members so far if there were some, and if there were none.
  Expr rest = Link(e.Sequence({e.Repeat(more, shape.min_more, shape.max_more), brackets.close}), &e);
  const uint32_t least = std::max<uint32_t>(shape.min_more, 1);
  const Expr some = least > shape.max_more ? kNoText : List(shape.more, least, shape.max_more, brackets.separator, &e);
  const Expr some_closed = e.Sequence({some, brackets.close});
  Expr first = Link(shape.min_more > 0 ? some_closed : e.Choice({some_closed, brackets.close_none}), &e);
  for (size_t i = shape.members.size(); i-- > 0;) {
    const Member& member = shape.members[i];
    const Expr next = e.Sequence({brackets.separator, member.text});
    const Expr begin = e.Sequence({member.text, rest});
    first = Link(member.required ? begin : e.Choice({begin, first}), &e);
    rest = Link(e.Sequence({member.required ? next : e.Optional(next), rest}), &e);
  }
  return e.Sequence({brackets.open, first});
}

Expr ArrayExpr(const ArrayShape& shape, const JsonSyntax& syntax, Expressions* expressions) {
  Expressions& e = *expressions;
  if (shape.min > shape.max) return kNoText;
  const Expr close = syntax.Close(']');
  const auto prefix = static_cast<uint32_t>(shape.prefix.size());
  if (prefix == 0) {
    return e.Sequence({syntax.Open('['), List(shape.rest, shape.min, shape.max, syntax.Comma(), &e), close});
  }
  // What follows the first `count` elements.
  const Expr more = e.Sequence({syntax.Comma(), shape.rest});
  Expr tail = kNoText;
  if (prefix <= shape.max) {
    tail = Link(e.Sequence({e.Repeat(more, Minus(shape.min, prefix), Minus(shape.max, prefix)), close}), &e);
  }
  for (uint32_t count = prefix; count-- > 0;) {
    std::vector<Expr> options;
    if (count >= shape.min && count <= shape.max) options.push_back(close);
    const Expr separator = count == 0 ? kEmptyText : syntax.Comma();
    if (count < shape.max) options.push_back(e.Sequence({separator, shape.prefix[count], tail}));
    tail = Link(e.Choice(options), &e);
  }
  return e.Sequence({syntax.Open('['), tail});
}

}  // namespace hadal::guided
