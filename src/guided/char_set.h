// Sets of Unicode characters and their UTF-8 as expressions. Surrogates are not characters: no set holds one.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "guided/expression.h"

namespace hadal::guided {

inline constexpr uint32_t kMaxChar = 0x10FFFF;

class CharSet {
 public:
  using Range = std::pair<uint32_t, uint32_t>;  // both ends belong to it

  CharSet() = default;
  CharSet(std::initializer_list<Range> ranges) : CharSet(std::vector<Range>(ranges)) {}
  explicit CharSet(const std::vector<Range>& ranges);
  static CharSet All() { return CharSet({{0, kMaxChar}}); }
  static CharSet Of(uint32_t c) { return CharSet({{c, c}}); }

  CharSet Or(const CharSet& other) const;
  CharSet Not() const;
  CharSet And(const CharSet& other) const { return Not().Or(other.Not()).Not(); }

  bool empty() const { return ranges_.empty(); }
  // Ascending, disjoint, not adjacent.
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// One character of the set, in UTF-8.
Expr Utf8Expr(const CharSet& set, Expressions* expressions);

// Takes one character off the front of `text`. False, and nothing taken, if that is no well-formed UTF-8.
bool TakeUtf8(std::string_view* text, uint32_t* c);
// The UTF-8 of a character that is no surrogate.
std::string ToUtf8(uint32_t c);
// The byte where `text` stops being UTF-8, or npos.
size_t FindInvalidUtf8(std::string_view text);

}  // namespace hadal::guided
