#include "guided/ebnf.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "guided/char_set.h"

namespace hadal::guided {
namespace {

constexpr uint32_t kMaxCount = 1'000'000;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameBegin(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNameChar(char c) { return IsNameBegin(c) || IsDigit(c) || c == '-' || c == '.'; }
bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Parser {
 public:
  Parser(std::string_view text, Expressions* expressions, Budget* budget)
      : text_(text), expressions_(*expressions), budget_(budget) {}

  absl::StatusOr<Expr> Parse() {
    SkipSpace();
    while (!AtEnd()) HADAL_RETURN_IF_ERROR(ParseRule());
    for (const auto& [name, rule] : in_order_) {
      if (!rules_[name].defined) {
        at_ = rules_[name].first_use;
        return Error(fmt::format("rule '{}' is used and not defined", name));
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return InvalidArgument("grammar: there is no rule 'root'");
    return expressions_.Call(root->second.id);
  }

 private:
  struct Rule {
    RuleId id = 0;
    bool defined = false;
    size_t first_use = 0;
  };

  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool Take(std::string_view text) {
    if (!text_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  absl::Status Error(std::string_view what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    return InvalidArgument("grammar: {}, line {}", what, line);
  }
  void SkipSpace() {
    while (!AtEnd() && (IsSpace(Peek()) || Peek() == '#')) {
      if (Peek() == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        ++at_;
      }
    }
  }

  std::string TakeName() {
    const size_t begin = at_;
    while (IsNameChar(Peek())) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  // At a name: whether it begins the next rule.
  bool IsRuleBegin() {
    const size_t begin = at_;
    TakeName();
    SkipSpace();
    const bool is_begin = text_.substr(at_).starts_with("::=");
    at_ = begin;
    return is_begin;
  }

  Rule& RuleOf(const std::string& name) {
    const auto [found, is_new] = rules_.try_emplace(name);
    if (is_new) {
      found->second = {.id = expressions_.DeclareRule(name), .first_use = at_};
      in_order_.emplace_back(name, found->second.id);
    }
    return found->second;
  }

  absl::Status ParseRule() {
    if (!IsNameBegin(Peek()) || !IsRuleBegin()) return Error("expected 'name ::='");
    const size_t begin = at_;
    const std::string name = TakeName();
    if (std::exchange(RuleOf(name).defined, true)) {
      at_ = begin;
      return Error(fmt::format("rule '{}' is defined twice", name));
    }
    SkipSpace();
    at_ += 3;  // ::=
    HADAL_ASSIGN_OR_RETURN(const Expr body, ParseChoice(0));
    if (Peek() == ')') return Error("')' without '('");
    expressions_.DefineRule(rules_[name].id, body);
    return absl::OkStatus();
  }

  absl::StatusOr<Expr> ParseChoice(int depth) {
    if (depth > budget_->limits().depth) {
      return Error(fmt::format("more than {} groups inside one another", budget_->limits().depth));
    }
    std::vector<Expr> options;
    do {
      HADAL_ASSIGN_OR_RETURN(const Expr option, ParseSequence(depth));
      options.push_back(option);
    } while (Take("|"));
    return expressions_.Choice(options);
  }

  absl::StatusOr<Expr> ParseSequence(int depth) {
    std::vector<Expr> parts;
    for (SkipSpace(); !AtEnd() && Peek() != '|' && Peek() != ')'; SkipSpace()) {
      HADAL_RETURN_IF_ERROR(budget_->CheckTime());
      if (IsNameBegin(Peek()) && IsRuleBegin()) break;
      HADAL_ASSIGN_OR_RETURN(Expr part, ParseAtom(depth));
      HADAL_RETURN_IF_ERROR(ParseQuantifiers(&part));
      parts.push_back(part);
    }
    return expressions_.Sequence(std::move(parts));
  }

  absl::StatusOr<Expr> ParseAtom(int depth) {
    const char c = Peek();
    if (c == '"' || c == '\'') return ParseLiteral();
    if (c == '[') return ParseClass();
    if (c == '.') {
      ++at_;
      return Utf8Expr(CharSet::All(), &expressions_);
    }
    if (IsNameBegin(c)) {
      const size_t begin = at_;
      const std::string name = TakeName();
      const size_t end = std::exchange(at_, begin);
      const Expr call = expressions_.Call(RuleOf(name).id);
      at_ = end;
      return call;
    }
    if (c != '(') return Error("expected a literal, class, rule name or group");
    if (text_.substr(at_).starts_with("(=") || text_.substr(at_).starts_with("(!")) {
      return Error("lookahead is not supported");
    }
    ++at_;
    HADAL_ASSIGN_OR_RETURN(const Expr inner, ParseChoice(depth + 1));
    if (!Take(")")) return Error("'(' without ')'");
    return inner;
  }

  absl::Status ParseQuantifiers(Expr* part) {
    while (true) {
      if (Take("*")) {
        *part = expressions_.Repeat(*part, 0, kUnlimited);
      } else if (Take("+")) {
        *part = expressions_.Repeat(*part, 1, kUnlimited);
      } else if (Take("?")) {
        *part = expressions_.Optional(*part);
      } else if (Take("{")) {
        HADAL_ASSIGN_OR_RETURN(*part, ParseCounts(*part));
      } else {
        return absl::OkStatus();
      }
    }
  }

  absl::StatusOr<Expr> ParseCounts(Expr part) {
    SkipSpace();
    const std::optional<uint32_t> min = TakeNumber();
    std::optional<uint32_t> max = min;
    SkipSpace();
    if (Take(",")) {
      SkipSpace();
      max = TakeNumber();
      if (!max.has_value()) max = kUnlimited;
      SkipSpace();
    }
    if (!min.has_value() || !Take("}")) return Error("expected {m}, {m,} or {m,n}");
    if (*min > kMaxCount || (*max > kMaxCount && *max != kUnlimited)) {
      return Error(fmt::format("more than {} repetitions", kMaxCount));
    }
    if (*min > *max) return Error(fmt::format("{{{},{}}} is out of order", *min, *max));
    return expressions_.Repeat(part, *min, *max);
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

  absl::StatusOr<Expr> ParseLiteral() {
    const char quote = text_[at_++];
    std::string bytes;
    while (Peek() != quote) {
      if (AtEnd() || Peek() == '\n') return Error("a literal without its closing quote");
      HADAL_ASSIGN_OR_RETURN(const uint32_t c, TakeCharOrEscape());
      bytes += ToUtf8(c);
    }
    ++at_;
    return expressions_.Literal(bytes);
  }

  absl::StatusOr<Expr> ParseClass() {
    ++at_;
    const bool negated = Take("^");
    std::vector<CharSet::Range> ranges;
    while (!Take("]")) {
      if (AtEnd() || Peek() == '\n') return Error("'[' without ']'");
      HADAL_ASSIGN_OR_RETURN(const uint32_t first, TakeCharOrEscape());
      uint32_t last = first;
      if (Peek() == '-' && Peek(1) != ']') {
        ++at_;
        if (AtEnd()) return Error("'[' without ']'");
        HADAL_ASSIGN_OR_RETURN(last, TakeCharOrEscape());
      }
      if (first > last) return Error("a range of a class is out of order");
      ranges.emplace_back(first, last);
    }
    if (ranges.empty()) return Error("an empty class");
    const CharSet set(ranges);
    return Utf8Expr(negated ? set.Not() : set, &expressions_);
  }

  absl::StatusOr<uint32_t> TakeChar() {
    std::string_view rest = text_.substr(at_);
    uint32_t c = 0;
    if (!TakeUtf8(&rest, &c)) return Error("expected a character");
    at_ = text_.size() - rest.size();
    return c;
  }

  absl::StatusOr<uint32_t> TakeCharOrEscape() {
    if (!Take("\\")) return TakeChar();
    HADAL_ASSIGN_OR_RETURN(const uint32_t c, TakeChar());
    static constexpr std::string_view kNames = "nrtfv0", kValues("\n\r\t\f\v\0", 6);
    const size_t known = c < 0x80 ? kNames.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) return static_cast<uint8_t>(kValues[known]);
    if (c == 'x') return HexDigits(2);
    if (c == 'u') return HexDigits(4);
    if (c == 'U') return HexDigits(8);
    if (c < 0x80 && IsNameChar(static_cast<char>(c)) && c != '-' && c != '.' && c != '_') {
      return Error(fmt::format("\\{} is not supported", static_cast<char>(c)));
    }
    return c;
  }

  absl::StatusOr<uint32_t> HexDigits(int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i, ++at_) {
      const char c = Peek();
      const int digit = IsDigit(c)             ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return Error("a hexadecimal escape has too few digits");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    if (value > kMaxChar || (value >= 0xD800 && value <= 0xDFFF))
      return Error("an escape that is no Unicode character");
    return value;
  }

  const std::string_view text_;
  Expressions& expressions_;
  Budget* budget_;
  size_t at_ = 0;
  absl::flat_hash_map<std::string, Rule> rules_;
  std::vector<std::pair<std::string, RuleId>> in_order_;
};

}  // namespace

absl::StatusOr<Expr> ParseEbnf(std::string_view grammar, Expressions* expressions, Budget* budget) {
  HADAL_RETURN_IF_ERROR(budget->CheckText("grammar", grammar));
  return Parser(grammar, expressions, budget).Parse();
}

}  // namespace hadal::guided
