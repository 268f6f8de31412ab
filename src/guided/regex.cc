#include "guided/regex.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hadal::guided {
namespace {

constexpr uint32_t kMaxCount = 1'000'000;  // of a repetition; the cap on states is far below

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(uint32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
int HexValue(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

const CharSet& Digits() {
  static const CharSet* const set = new CharSet{{'0', '9'}};
  return *set;
}
const CharSet& WordChars() {
  static const CharSet* const set = new CharSet{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return *set;
}
// ECMAScript's white space and line ends; Python's differ in five control characters.
const CharSet& Spaces() {
  static const CharSet* const set =
      new CharSet{{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                  {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return *set;
}

// A parsed piece. Anchors stay apart until it is known what stands before and after them.
struct Piece {
  enum class Kind { kExpr, kSequence, kChoice, kBegin, kEnd };
  Kind kind = Kind::kExpr;
  Expr expr = kEmptyText;            // kExpr
  std::vector<Piece> children = {};  // kSequence, kChoice; at least one holds an anchor
  size_t offset = 0;                 // of an anchor
};

class Parser {
 public:
  Parser(std::string_view pattern, const RegexOptions& options, Expressions* expressions, Budget* budget)
      : pattern_(pattern), options_(options), expressions_(*expressions), budget_(budget) {}

  absl::StatusOr<Expr> Parse() {
    HADAL_ASSIGN_OR_RETURN(const Piece whole, ParseChoice(0));
    if (at_ < pattern_.size()) return Error("')' without '('", at_);
    return Lower(whole, true, true);
  }

 private:
  absl::Status Error(std::string_view what, size_t offset) const {
    return InvalidArgument("regex: {} at byte {}", what, offset);
  }
  bool AtEnd() const { return at_ >= pattern_.size(); }
  char Peek() const { return AtEnd() ? '\0' : pattern_[at_]; }
  bool Take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  Expr Spell(const CharSet& set) { return options_.spell ? options_.spell(set) : Utf8Expr(set, &expressions_); }
  Expr AnyText() { return expressions_.Repeat(Spell(CharSet::All()), 0, kUnlimited); }

  // --- Structure ---

  absl::StatusOr<Piece> ParseChoice(int depth) {
    if (depth > budget_->limits().depth) {
      return InvalidArgument("regex: more than {} groups inside one another at byte {}", budget_->limits().depth, at_);
    }
    std::vector<Piece> options;
    do {
      HADAL_ASSIGN_OR_RETURN(Piece option, ParseSequence(depth));
      options.push_back(std::move(option));
    } while (Take("|"));
    return Join(Piece::Kind::kChoice, std::move(options));
  }

  absl::StatusOr<Piece> ParseSequence(int depth) {
    std::vector<Piece> parts;
    while (!AtEnd() && Peek() != '|' && Peek() != ')') {
      HADAL_RETURN_IF_ERROR(budget_->CheckTime());
      const size_t begin = at_;
      HADAL_ASSIGN_OR_RETURN(Piece part, ParseAtom(depth));
      HADAL_RETURN_IF_ERROR(ParseQuantifiers(begin, &part));
      parts.push_back(std::move(part));
    }
    return Join(Piece::Kind::kSequence, std::move(parts));
  }

  Piece Join(Piece::Kind kind, std::vector<Piece> children) {
    if (children.size() == 1) return std::move(children[0]);
    std::vector<Expr> exprs;
    for (const Piece& child : children) {
      if (child.kind != Piece::Kind::kExpr) return {.kind = kind, .children = std::move(children)};
      exprs.push_back(child.expr);
    }
    return {.expr =
                kind == Piece::Kind::kChoice ? expressions_.Choice(exprs) : expressions_.Sequence(std::move(exprs))};
  }

  // Resolves anchors. `first`, `last`: nothing stands before or after the piece.
  absl::StatusOr<Expr> Lower(const Piece& piece, bool first, bool last) {
    const Expr before = options_.search && first ? AnyText() : kEmptyText;
    const Expr after = options_.search && last ? AnyText() : kEmptyText;
    switch (piece.kind) {
      case Piece::Kind::kExpr:
        return expressions_.Sequence({before, piece.expr, after});
      case Piece::Kind::kBegin:
        if (!first)
          return Error("an anchor is only supported at the beginning or end of the pattern, found one", piece.offset);
        return after;
      case Piece::Kind::kEnd:
        if (!last)
          return Error("an anchor is only supported at the beginning or end of the pattern, found one", piece.offset);
        return before;
      default:
        break;
    }
    std::vector<Expr> exprs;
    const bool is_choice = piece.kind == Piece::Kind::kChoice;
    for (size_t i = 0; i < piece.children.size(); ++i) {
      const bool child_first = first && (is_choice || i == 0);
      const bool child_last = last && (is_choice || i + 1 == piece.children.size());
      HADAL_ASSIGN_OR_RETURN(const Expr expr, Lower(piece.children[i], child_first, child_last));
      exprs.push_back(expr);
    }
    return is_choice ? expressions_.Choice(exprs) : expressions_.Sequence(std::move(exprs));
  }

  // --- Quantifiers ---

  absl::Status ParseQuantifiers(size_t begin, Piece* part) {
    while (!AtEnd()) {
      const size_t offset = at_;
      std::optional<std::pair<uint32_t, uint32_t>> counts;
      if (Take("*")) {
        counts = {0, kUnlimited};
      } else if (Take("+")) {
        counts = {1, kUnlimited};
      } else if (Take("?")) {
        counts = {0, 1};
      } else if (Peek() == '{') {
        HADAL_ASSIGN_OR_RETURN(counts, ParseCounts());
      }
      if (!counts.has_value()) return absl::OkStatus();
      if (part->kind != Piece::Kind::kExpr) return Error("a repeated anchor", begin);
      if (!Take("?") && Peek() == '+') return Error("a possessive quantifier is not supported,", offset);
      if (Peek() == '*' || Peek() == '?') return Error("a quantifier after a quantifier", at_);
      part->expr = expressions_.Repeat(part->expr, counts->first, counts->second);
    }
    return absl::OkStatus();
  }

  // {m}, {m,} or {m,n}; nothing, and nothing taken, if the brace is an ordinary character.
  absl::StatusOr<std::optional<std::pair<uint32_t, uint32_t>>> ParseCounts() {
    const size_t begin = at_;
    const std::string_view rest = pattern_.substr(at_ + 1);
    if (rest.empty() || (!IsDigit(rest[0]) && rest[0] != ',')) return std::nullopt;
    ++at_;
    const std::optional<uint32_t> min = TakeNumber();
    std::optional<uint32_t> max = min;
    if (Take(",")) {
      max = TakeNumber();
      if (!max.has_value()) max = kUnlimited;
    }
    if (!min.has_value() || !Take("}")) return Error("expected {m}, {m,} or {m,n} (or \\{ for the character)", begin);
    if (*min > kMaxCount || (*max > kMaxCount && *max != kUnlimited)) {
      return InvalidArgument("regex: at most {} repetitions, found more at byte {}", kMaxCount, begin);
    }
    if (*min > *max) return InvalidArgument("regex: {{{},{}}} is out of order at byte {}", *min, *max, begin);
    return std::make_pair(*min, *max);
  }

  // Saturates above kMaxCount.
  std::optional<uint32_t> TakeNumber() {
    if (!IsDigit(Peek())) return std::nullopt;
    uint32_t value = 0;
    for (; IsDigit(Peek()); ++at_) {
      if (value <= kMaxCount) value = value * 10 + static_cast<uint32_t>(Peek() - '0');
    }
    return value;
  }

  // --- Atoms ---

  absl::StatusOr<Piece> ParseAtom(int depth) {
    const size_t begin = at_;
    switch (Peek()) {
      case '(':
        return ParseGroup(depth);
      case '[': {
        HADAL_ASSIGN_OR_RETURN(const CharSet set, ParseClass());
        return Piece{.expr = Spell(set)};
      }
      case '.':
        ++at_;
        return Piece{.expr = Spell(CharSet{{'\n', '\n'}, {'\r', '\r'}}.Not())};
      case '^':
        ++at_;
        return Piece{.kind = Piece::Kind::kBegin, .offset = begin};
      case '$':
        ++at_;
        return Piece{.kind = Piece::Kind::kEnd, .offset = begin};
      case '*':
      case '+':
      case '?':
        return Error("a quantifier with nothing to repeat", begin);
      case '\\':
        return ParseAtomEscape();
      default:
        break;
    }
    if (Peek() == '{' && at_ + 1 < pattern_.size() && IsDigit(pattern_[at_ + 1])) {
      return Error("a quantifier with nothing to repeat", begin);
    }
    HADAL_ASSIGN_OR_RETURN(const uint32_t c, TakeChar());
    return Piece{.expr = Spell(CharSet::Of(c))};
  }

  absl::StatusOr<uint32_t> TakeChar() {
    std::string_view rest = pattern_.substr(at_);
    uint32_t c = 0;
    if (!TakeUtf8(&rest, &c)) return Error("text that is not UTF-8", at_);
    at_ = pattern_.size() - rest.size();
    return c;
  }

  absl::StatusOr<Piece> ParseGroup(int depth) {
    const size_t begin = at_++;
    if (Take("?")) HADAL_RETURN_IF_ERROR(ParseGroupKind(begin));
    HADAL_ASSIGN_OR_RETURN(Piece inner, ParseChoice(depth + 1));
    if (!Take(")")) return Error("'(' without ')'", begin);
    return inner;
  }

  absl::Status ParseGroupKind(size_t begin) {
    if (Take(":")) return absl::OkStatus();
    if (Take("=") || Take("!") || Take("<=") || Take("<!"))
      return Error("lookaround is not supported, found it", begin);
    if (Take(">")) return Error("an atomic group is not supported, found one", begin);
    if (Take("P=")) return Error("a back reference is not supported, found one", begin);
    if (!Take("P<") && !Take("<")) return Error("flags and conditions in a group are not supported, found one", begin);
    const size_t end = pattern_.find('>', at_);
    if (end == std::string_view::npos || end == at_) return Error("expected a group's name and '>'", begin);
    for (; at_ < end; ++at_) {
      if (!IsLetter(static_cast<uint8_t>(Peek())) && !IsDigit(Peek()) && Peek() != '_') {
        return Error("a group's name has letters, digits and '_', found something else", at_);
      }
    }
    ++at_;
    return absl::OkStatus();
  }

  absl::StatusOr<Piece> ParseAtomEscape() {
    const size_t begin = at_;
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    if (c == 'b' || c == 'B') return Error("a word boundary is not supported, found one", begin);
    if (c == 'G') return Error("\\G is not supported, found it", begin);
    if ((c >= '1' && c <= '9') || c == 'k') return Error("a back reference is not supported, found one", begin);
    if (c == 'A' || c == 'z' || c == 'Z') {
      at_ += 2;
      return Piece{.kind = c == 'A' ? Piece::Kind::kBegin : Piece::Kind::kEnd, .offset = begin};
    }
    HADAL_ASSIGN_OR_RETURN(const CharSet set, ParseEscape());
    return Piece{.expr = Spell(set)};
  }

  // --- Characters ---

  // An escape that stands for characters, in a class or outside.
  absl::StatusOr<CharSet> ParseEscape() {
    const size_t begin = at_++;
    if (AtEnd()) return Error("'\\' at the end,", begin);
    HADAL_ASSIGN_OR_RETURN(const uint32_t c, TakeChar());
    switch (c) {
      case 'd':
        return Digits();
      case 'D':
        return Digits().Not();
      case 'w':
        return WordChars();
      case 'W':
        return WordChars().Not();
      case 's':
        return Spaces();
      case 'S':
        return Spaces().Not();
      case 'p':
      case 'P':
        return Error("\\p{...} is not supported, found it", begin);
      default:
        break;
    }
    HADAL_ASSIGN_OR_RETURN(const uint32_t value, EscapedChar(c, begin));
    return CharSet::Of(value);
  }

  absl::StatusOr<uint32_t> EscapedChar(uint32_t c, size_t begin) {
    static constexpr std::string_view kNames = "nrtfv0", kValues("\n\r\t\f\v\0", 6);
    const size_t known = c < 0x80 ? kNames.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      if (c == '0' && IsDigit(Peek())) return Error("an octal escape is not supported, found one", begin);
      return static_cast<uint8_t>(kValues[known]);
    }
    if (c == 'x') return HexDigits(2, begin);
    if (c == 'u' && Take("{")) {
      HADAL_ASSIGN_OR_RETURN(const uint32_t value, HexDigits(0, begin));
      if (!Take("}")) return Error("expected \\u{H...}", begin);
      return value;
    }
    if (c == 'u') return HexDigits(4, begin);
    if (c == 'c' && IsLetter(static_cast<uint8_t>(Peek()))) return static_cast<uint32_t>(pattern_[at_++]) & 0x1F;
    if (IsLetter(c) || (c < 0x80 && IsDigit(static_cast<char>(c)))) {
      return InvalidArgument("regex: \\{} is not supported, found it at byte {}", static_cast<char>(c), begin);
    }
    return c;
  }

  // `count` digits, or 1 to 6 if that is 0.
  absl::StatusOr<uint32_t> HexDigits(int count, size_t begin) {
    uint32_t value = 0;
    int found = 0;
    for (const int most = count == 0 ? 6 : count; found < most && HexValue(Peek()) >= 0; ++found, ++at_) {
      value = value * 16 + static_cast<uint32_t>(HexValue(Peek()));
    }
    if (found == 0 || found < count) return Error("a hexadecimal escape has too few digits", begin);
    if (value > kMaxChar || (value >= 0xD800 && value <= 0xDFFF)) {
      return Error("an escape that is no Unicode character (write \\u{H...} for characters above U+FFFF)", begin);
    }
    return value;
  }

  absl::StatusOr<CharSet> ParseClass() {
    const size_t begin = at_++;
    const bool negated = Take("^");
    if (Peek() == ']') return Error("an empty class (write \\] for the character)", begin);
    std::vector<CharSet::Range> ranges;
    while (!Take("]")) {
      if (AtEnd()) return Error("'[' without ']'", begin);
      if (pattern_.substr(at_).starts_with("[:")) return Error("a POSIX class is not supported, found one", at_);
      HADAL_RETURN_IF_ERROR(budget_->CheckTime());
      HADAL_RETURN_IF_ERROR(ParseClassRange(&ranges));
    }
    const CharSet set(ranges);
    return negated ? set.Not() : set;
  }

  absl::Status ParseClassRange(std::vector<CharSet::Range>* ranges) {
    const size_t begin = at_;
    HADAL_ASSIGN_OR_RETURN(const CharSet first, ParseClassChar());
    const bool is_range = Peek() == '-' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']';
    if (!is_range) {
      ranges->insert(ranges->end(), first.ranges().begin(), first.ranges().end());
      return absl::OkStatus();
    }
    ++at_;
    HADAL_ASSIGN_OR_RETURN(const CharSet last, ParseClassChar());
    const auto single = [](const CharSet& set) {
      return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].second;
    };
    if (!single(first) || !single(last)) return Error("a range whose end is a class", begin);
    ranges->emplace_back(first.ranges()[0].first, last.ranges()[0].first);
    if (ranges->back().first > ranges->back().second) return Error("a range out of order", begin);
    return absl::OkStatus();
  }

  absl::StatusOr<CharSet> ParseClassChar() {
    if (Peek() != '\\') {
      HADAL_ASSIGN_OR_RETURN(const uint32_t c, TakeChar());
      return CharSet::Of(c);
    }
    if (pattern_.substr(at_).starts_with("\\b")) {
      at_ += 2;
      return CharSet::Of('\b');
    }
    return ParseEscape();
  }

  const std::string_view pattern_;
  const RegexOptions& options_;
  Expressions& expressions_;
  Budget* budget_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<Expr> ParseRegex(std::string_view pattern, const RegexOptions& options, Expressions* expressions,
                                Budget* budget) {
  HADAL_RETURN_IF_ERROR(budget->CheckText("regex", pattern));
  return Parser(pattern, options, expressions, budget).Parse();
}

}  // namespace hadal::guided
