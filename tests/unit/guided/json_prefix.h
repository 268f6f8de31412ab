// Is a text the beginning of a JSON object in the spelling of guided/json_syntax.h? Answered by trying every way to
// read it: slow, and written without automata. What masks are held against.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace hadal::guided::test {

class JsonPrefix {
 public:
  explicit JsonPrefix(std::string_view text) : text_(text) {
    for (const size_t end : Object(0)) complete_ |= end == text_.size();
  }
  bool complete() const { return complete_; }
  // Some reading came to the end of the text.
  bool viable() const { return complete_ || viable_; }

 private:
  using Ends = std::vector<size_t>;

  char At(size_t at) {
    if (at < text_.size()) return text_[at];
    viable_ = true;  // any character that is wanted here may still come
    return '\0';
  }
  template <typename Next>
  static Ends Then(const Ends& begins, const Next& next) {
    Ends all;
    for (const size_t begin : begins) {
      const Ends ends = next(begin);
      all.insert(all.end(), ends.begin(), ends.end());
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }
  Ends Char(size_t at, std::string_view any_of) {
    const char c = At(at);
    return at < text_.size() && any_of.find(c) != any_of.npos ? Ends{at + 1} : Ends{};
  }
  Ends Word(size_t at, std::string_view word) {
    Ends ends = {at};
    for (const char& c : word) ends = Then(ends, [&](size_t begin) { return Char(begin, {&c, 1}); });
    return ends;
  }
  Ends Space(size_t at) {
    Ends ends = {at};
    if (at >= text_.size()) return ends;
    if (text_[at] == ' ') ends.push_back(at + 1);
    if (text_[at] != '\n') return ends;
    ends.push_back(at + 1);
    for (const auto& [c, most] : {std::pair(' ', 16), std::pair('\t', 8)}) {
      for (int i = 1; i <= most && at + i < text_.size() && text_[at + i] == c; ++i) ends.push_back(at + 1 + i);
    }
    return ends;
  }
  Ends Digits(size_t at, int most) {
    Ends ends;
    for (int i = 0; i < most && !Char(at + i, "0123456789").empty(); ++i) ends.push_back(at + i + 1);
    return ends;
  }
  Ends Number(size_t at) {
    Ends ends = {at};
    const Ends minus = Char(at, "-");
    ends.insert(ends.end(), minus.begin(), minus.end());
    Ends whole = Then(ends, [&](size_t begin) { return Char(begin, "0"); });
    const Ends first = Then(ends, [&](size_t begin) { return Char(begin, "123456789"); });
    whole.insert(whole.end(), first.begin(), first.end());
    const Ends more = Then(first, [&](size_t begin) { return Digits(begin, 17); });
    whole.insert(whole.end(), more.begin(), more.end());
    const Ends fraction = Then(Then(whole, [&](size_t begin) { return Char(begin, "."); }),
                               [&](size_t begin) { return Digits(begin, 18); });
    whole.insert(whole.end(), fraction.begin(), fraction.end());
    Ends exponent = Then(whole, [&](size_t begin) { return Char(begin, "eE"); });
    const Ends sign = Then(exponent, [&](size_t begin) { return Char(begin, "+-"); });
    exponent.insert(exponent.end(), sign.begin(), sign.end());
    const Ends powers = Then(exponent, [&](size_t begin) { return Digits(begin, 2); });
    whole.insert(whole.end(), powers.begin(), powers.end());
    return whole;
  }
  Ends String(size_t at) {
    if (Char(at, "\"").empty()) return {};
    for (size_t i = at + 1;;) {
      const char c = At(i);
      if (i >= text_.size()) return {};
      if (c == '"') return {i + 1};
      const size_t length = c == '\\' ? Escape(i) : Utf8(i);
      if (length == 0) return {};
      i += length;
    }
  }
  // Length, or 0 if there is none (viable_ tells the rest).
  size_t Escape(size_t at) {
    const std::string hex = "0123456789abcdefABCDEF", d = "dD";
    const std::vector<std::vector<std::string>> kinds = {
        {"\"\\/bfnrt"},
        {"u", "0123456789abcefABCEF", hex, hex, hex},
        {"u", d, "01234567", hex, hex},
        {"u", d, "89abAB", hex, hex, "\\", "u", d, "cdefCDEF", hex, hex},
    };
    for (const std::vector<std::string>& kind : kinds) {
      size_t length = 1;
      for (const std::string& any_of : kind) {
        if (Char(at + length, any_of).empty()) break;
        ++length;
      }
      if (length == kind.size() + 1) return length;
    }
    return 0;
  }
  size_t Utf8(size_t at) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text_[i]); };
    const unsigned char lead = byte(at);
    if (lead < 0x20) return 0;
    if (lead < 0x80) return 1;
    const size_t length = lead >= 0xC2 && lead < 0xE0   ? 2
                          : lead >= 0xE0 && lead < 0xF0 ? 3
                          : lead >= 0xF0 && lead < 0xF5 ? 4
                                                        : 0;
    for (size_t i = 1; i < length; ++i) {
      if (at + i >= text_.size()) {
        viable_ = true;
        return 0;
      }
      unsigned char lo = 0x80, hi = 0xBF;
      if (i == 1 && lead == 0xE0) lo = 0xA0;
      if (i == 1 && lead == 0xED) hi = 0x9F;
      if (i == 1 && lead == 0xF0) lo = 0x90;
      if (i == 1 && lead == 0xF4) hi = 0x8F;
      if (byte(at + i) < lo || byte(at + i) > hi) return 0;
    }
    return length;
  }

  Ends Value(size_t at) {
    Ends all;
    for (const Ends& ends :
         {String(at), Number(at), Word(at, "true"), Word(at, "false"), Word(at, "null"), Object(at), Array(at)}) {
      all.insert(all.end(), ends.begin(), ends.end());
    }
    return all;
  }
  Ends Member(size_t at) {
    const Ends colon = Then(String(at), [&](size_t begin) { return Char(begin, ":"); });
    return Then(Then(colon, [&](size_t begin) { return Space(begin); }), [&](size_t begin) { return Value(begin); });
  }
  Ends Object(size_t at) { return List(at, '{', '}'); }
  Ends Array(size_t at) { return List(at, '[', ']'); }
  Ends List(size_t at, char open, char close) {
    const auto space = [&](size_t begin) { return Space(begin); };
    const auto element = [&](size_t begin) { return open == '{' ? Member(begin) : Value(begin); };
    Ends begins = Then(Char(at, {&open, 1}), space);
    Ends all;
    for (bool first = true; !begins.empty(); first = false) {
      // `begins`: before the first element, or behind one.
      const Ends closed = Then(Then(begins, space), [&](size_t begin) { return Char(begin, {&close, 1}); });
      all.insert(all.end(), closed.begin(), closed.end());
      if (!first) begins = Then(Then(begins, [&](size_t begin) { return Char(begin, ","); }), space);
      begins = Then(begins, element);
    }
    return all;
  }

  const std::string_view text_;
  bool complete_ = false, viable_ = false;
};

}  // namespace hadal::guided::test
