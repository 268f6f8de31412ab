// How JSON is spelled in guided output. A model may write any of these texts and no other:
//
// - Whitespace is optional after { [ , : and before } ], and is one space, or a newline and at most 16 spaces or 8 tabs
//   of indentation. Nothing stands before or after the value. That takes compact, one-line and pretty-printed JSON, and
//   bounds what a model can emit without getting on.
// - Numbers have at most 18 digits before the point (so integers fit 64 bits), 18 after it, and 2 in the exponent (so
//   every number fits a double).
// - Strings whose value does not matter are any JSON string of valid Unicode: escapes are free, surrogates come in
//   pairs. Where the value matters (keys, enum, const, pattern, format) each has one spelling: only ", \ and U+0000 to
//   U+001F are escaped, in the shortest way, with lower-case hexadecimal digits.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "guided/char_set.h"
#include "guided/expression.h"

namespace hadal::guided {

using Json = nlohmann::ordered_json;  // keys keep their order

class JsonSyntax {
 public:
  explicit JsonSyntax(Expressions* expressions);

  Expr Whitespace() const { return whitespace_; }
  Expr Colon() const { return colon_; }
  Expr Comma() const { return comma_; }
  Expr Open(char bracket) const;   // and whitespace
  Expr Close(char bracket) const;  // whitespace before it

  // Any text inside quotes, of `min` to `max` characters.
  Expr AnyString(uint32_t min = 0, uint32_t max = kUnlimited) const;
  // One character of the set in its one spelling.
  Expr Char(const CharSet& set) const;
  // `content`, made of Char, in quotes.
  Expr Quoted(Expr content) const;
  // Exactly this string.
  Expr StringLiteral(std::string_view utf8) const;
  // Any string in its one spelling but these.
  Expr StringExcept(std::vector<std::string> excluded) const;
  // Exactly this value, with free whitespace.
  Expr Value(const Json& value) const;

  Expr AnyInteger() const;
  Expr AnyNumber() const;
  // Any value, any object.
  Expr AnyValue();
  Expr AnyObject();
  Expr AnyArray();

 private:
  void DefineAnyValue();

  Expressions& expressions_;
  Expr whitespace_ = kEmptyText, colon_ = kEmptyText, comma_ = kEmptyText;
  bool any_value_defined_ = false;
  Expr any_value_ = kNoText;
};

}  // namespace hadal::guided
