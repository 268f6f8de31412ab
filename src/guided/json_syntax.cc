#include "guided/json_syntax.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"
#include "guided/json_numbers.h"

namespace hadal::guided {
namespace {

// A string's content as its one spelling.
std::string EscapeChar(uint32_t c) {
  static constexpr std::string_view kNamed("\b\f\n\r\t\"\\"), kNames = "bfnrt\"\\";
  const size_t named = c < 0x80 ? kNamed.find(static_cast<char>(c)) : std::string_view::npos;
  if (named != std::string_view::npos) return {'\\', kNames[named]};
  if (c < 0x20) return fmt::format("\\u{:04x}", c);
  return ToUtf8(c);
}

}  // namespace

JsonSyntax::JsonSyntax(Expressions* expressions) : expressions_(*expressions) {
  Expressions& e = expressions_;
  const Expr indentation = e.Choice({e.Repeat(e.Literal(" "), 0, 16), e.Repeat(e.Literal("\t"), 1, 8)});
  whitespace_ = e.Choice({kEmptyText, e.Literal(" "), e.Sequence({e.Literal("\n"), indentation})});
  colon_ = e.Sequence({e.Literal(":"), whitespace_});
  comma_ = e.Sequence({e.Literal(","), whitespace_});
}

Expr JsonSyntax::Open(char bracket) const {
  return expressions_.Sequence({expressions_.Literal({&bracket, 1}), whitespace_});
}
Expr JsonSyntax::Close(char bracket) const {
  return expressions_.Sequence({whitespace_, expressions_.Literal({&bracket, 1})});
}

Expr JsonSyntax::AnyString(uint32_t min, uint32_t max) const {
  Expressions& e = expressions_;
  const auto hex = [&](std::string_view allowed) {
    std::vector<Expr> digits;
    for (const char c : allowed) digits.push_back(e.Literal({&c, 1}));
    return e.Choice(digits);
  };
  const Expr digit = e.Choice({e.ByteRange('0', '9'), e.ByteRange('A', 'F'), e.ByteRange('a', 'f')});
  const Expr not_d = e.Choice({e.ByteRange('0', '9'), hex("ABCEFabcef")});
  const Expr d = hex("Dd");
  const Expr single =
      e.Choice({e.Sequence({not_d, digit, digit, digit}), e.Sequence({d, e.ByteRange('0', '7'), digit, digit})});
  const Expr pair = e.Sequence({d, hex("89ABab"), digit, digit, e.Literal("\\u"), d, hex("CDEFcdef"), digit, digit});
  const Expr escape = e.Choice({hex("\"\\/bfnrt"), e.Sequence({e.Literal("u"), e.Choice({single, pair})})});
  const Expr plain = Utf8Expr(CharSet({{0x20, '!'}, {'#', '['}, {']', kMaxChar}}), &e);
  return Quoted(e.Repeat(e.Choice({plain, e.Sequence({e.Literal("\\"), escape})}), min, max));
}

Expr JsonSyntax::Char(const CharSet& set) const {
  std::vector<Expr> options = {Utf8Expr(set.And(CharSet({{0x20, '!'}, {'#', '['}, {']', kMaxChar}})), &expressions_)};
  const CharSet escaped = set.And(CharSet({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}));
  for (const auto& [lo, hi] : escaped.ranges()) {
    for (uint32_t c = lo; c <= hi; ++c) options.push_back(expressions_.Literal(EscapeChar(c)));
  }
  return expressions_.Choice(options);
}

Expr JsonSyntax::Quoted(Expr content) const {
  const Expr quote = expressions_.Literal("\"");
  return expressions_.Sequence({quote, content, quote});
}

Expr JsonSyntax::StringLiteral(std::string_view utf8) const {
  std::string spelled;
  uint32_t c = 0;
  while (TakeUtf8(&utf8, &c)) spelled += EscapeChar(c);
  return Quoted(expressions_.Literal(spelled));
}

// Strings that leave the tree of the excluded ones at some character, or end inside it.
Expr JsonSyntax::StringExcept(std::vector<std::string> excluded) const {
  std::sort(excluded.begin(), excluded.end());
  excluded.erase(std::unique(excluded.begin(), excluded.end()), excluded.end());
  const Expr rest = expressions_.Repeat(Char(CharSet::All()), 0, kUnlimited);
  // Of the strings first..last, which agree in their first `at` bytes: what may follow those.
  const auto except = [&](const auto& self, size_t first, size_t last, size_t at) -> Expr {
    if (first == last) return rest;
    std::vector<Expr> options;
    if (excluded[first].size() > at) {
      options.push_back(kEmptyText);
    } else {
      ++first;
    }
    CharSet continued;
    while (first < last) {
      std::string_view tail = std::string_view(excluded[first]).substr(at);
      uint32_t c = 0;
      if (!TakeUtf8(&tail, &c)) break;
      const std::string prefix = excluded[first].substr(0, excluded[first].size() - tail.size());
      size_t end = first;
      while (end < last && excluded[end].starts_with(prefix)) ++end;
      options.push_back(expressions_.Sequence({Char(CharSet::Of(c)), self(self, first, end, prefix.size())}));
      continued = continued.Or(CharSet::Of(c));
      first = end;
    }
    options.push_back(expressions_.Sequence({Char(continued.Not()), rest}));
    return expressions_.Choice(options);
  };
  return Quoted(except(except, 0, excluded.size(), 0));
}

Expr JsonSyntax::Value(const Json& value) const {
  if (value.is_string()) return StringLiteral(value.get_ref<const std::string&>());
  if (!value.is_structured()) return expressions_.Literal(value.dump());
  const bool is_object = value.is_object();
  std::vector<Expr> parts = {Open(is_object ? '{' : '[')};
  bool first = true;
  for (const auto& [key, element] : value.items()) {
    if (!std::exchange(first, false)) parts.push_back(Comma());
    if (is_object) parts.insert(parts.end(), {StringLiteral(key), Colon()});
    parts.push_back(Value(element));
  }
  parts.push_back(Close(is_object ? '}' : ']'));
  return expressions_.Sequence(std::move(parts));
}

Expr JsonSyntax::AnyInteger() const {
  Expressions& e = expressions_;
  return e.Sequence({e.Optional(e.Literal("-")), AnyDigits(&e)});
}

Expr JsonSyntax::AnyNumber() const {
  Expressions& e = expressions_;
  const Expr digit = e.ByteRange('0', '9');
  const Expr sign = e.Optional(e.Choice({e.Literal("+"), e.Literal("-")}));
  const Expr exponent = e.Sequence({e.Choice({e.Literal("e"), e.Literal("E")}), sign, e.Repeat(digit, 1, 2)});
  return e.Sequence({AnyInteger(), AnyFraction(&e), e.Optional(exponent)});
}

void JsonSyntax::DefineAnyValue() {
  Expressions& e = expressions_;
  const RuleId rule = e.DeclareRule("any JSON value");
  any_value_ = e.Call(rule);
  any_value_defined_ = true;
  e.DefineRule(rule, e.Choice({AnyString(), AnyNumber(), e.Literal("true"), e.Literal("false"), e.Literal("null"),
                               AnyObject(), AnyArray()}));
}

Expr JsonSyntax::AnyValue() {
  if (!any_value_defined_) DefineAnyValue();
  return any_value_;
}

Expr JsonSyntax::AnyObject() {
  Expressions& e = expressions_;
  const Expr member = e.Sequence({AnyString(), Colon(), AnyValue()});
  const Expr more = e.Repeat(e.Sequence({Comma(), member}), 0, kUnlimited);
  return e.Sequence({Open('{'), e.Optional(e.Sequence({member, more})), Close('}')});
}

Expr JsonSyntax::AnyArray() {
  Expressions& e = expressions_;
  const Expr more = e.Repeat(e.Sequence({Comma(), AnyValue()}), 0, kUnlimited);
  return e.Sequence({Open('['), e.Optional(e.Sequence({AnyValue(), more})), Close(']')});
}

}  // namespace hadal::guided
