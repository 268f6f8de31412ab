#include "guided/json_numbers.h"

#include <charconv>
#include <utility>
#include <vector>

#include "base/status.h"

namespace hadal::guided {
namespace {

class Writer {
 public:
  Writer(bool integers_only, Expressions* expressions) : e_(*expressions), integers_only_(integers_only) {}

  Expr AtLeast(const NumberBound& bound) {
    const Decimal& value = bound.value;
    if (value.is_zero()) return bound.exclusive ? Above(value, true) : e_.Choice({AnyUnsigned(), Negative(Zero())});
    if (value.negative) return e_.Choice({AnyUnsigned(), Negative(Below(value, bound.exclusive))});
    return Above(value, bound.exclusive);
  }
  Expr AtMost(const NumberBound& bound) {
    const Decimal& value = bound.value;
    if (value.is_zero()) {
      return bound.exclusive ? Negative(Above(value, true)) : e_.Choice({Zero(), Negative(AnyUnsigned())});
    }
    if (value.negative) return Negative(Above(value, bound.exclusive));
    return e_.Choice({Below(value, bound.exclusive), Negative(AnyUnsigned())});
  }
  Expr AnySigned() { return e_.Choice({AnyUnsigned(), Negative(AnyUnsigned())}); }

 private:
  Expr Digit(char lo, char hi) { return e_.ByteRange(static_cast<uint8_t>(lo), static_cast<uint8_t>(hi)); }
  Expr Digits(size_t min, size_t max) {
    return e_.Repeat(Digit('0', '9'), static_cast<uint32_t>(min), static_cast<uint32_t>(max));
  }
  Expr Negative(Expr number) {
    const Expr negative = e_.Sequence({e_.Literal("-"), number});
    if (!integers_only_) return negative;
    // Without -0.
    const Expr above_zero = e_.Sequence({e_.Literal("-"), Digit('1', '9'), Digits(0, kMaxIntegerDigits - 1)});
    return e_.Intersection(negative, above_zero);
  }
  Expr AnyUnsigned() { return e_.Sequence({AnyDigits(&e_), Fraction()}); }
  Expr Fraction() { return integers_only_ ? kEmptyText : AnyFraction(&e_); }
  Expr ZeroFraction() {
    if (integers_only_) return kEmptyText;
    return e_.Optional(e_.Sequence({e_.Literal("."), e_.Repeat(Digit('0', '0'), 1, kMaxFractionDigits)}));
  }
  Expr Zero() { return e_.Sequence({e_.Literal("0"), ZeroFraction()}); }

  // Integers of as many digits whose digits from `at` on are above (or below) those of `digits`.
  Expr SameLength(const std::string& digits, size_t at, bool above) {
    if (at == digits.size()) return kNoText;
    const char lowest = at == 0 ? '1' : '0';
    const char digit = digits[at];
    const char lo = above ? static_cast<char>(digit + 1) : lowest;
    const char hi = above ? '9' : static_cast<char>(digit - 1);
    std::vector<Expr> options;
    if (lo <= hi) {
      const size_t rest = digits.size() - at - 1;
      options.push_back(e_.Sequence({Digit(lo, hi), Digits(rest, rest)}));
    }
    options.push_back(e_.Sequence({Digit(digit, digit), SameLength(digits, at + 1, above)}));
    return e_.Choice(options);
  }
  Expr IntegerAbove(const std::string& digits) {
    const Expr longer = digits.size() >= kMaxIntegerDigits
                            ? kNoText
                            : e_.Sequence({Digit('1', '9'), Digits(digits.size(), kMaxIntegerDigits - 1)});
    return e_.Choice({SameLength(digits, 0, true), longer});
  }
  Expr IntegerBelow(const std::string& digits) {
    if (digits.empty()) return kNoText;
    const Expr shorter = digits.size() == 1 ? kNoText : e_.Sequence({Digit('1', '9'), Digits(0, digits.size() - 2)});
    return e_.Choice({e_.Literal("0"), shorter, SameLength(digits, 0, false)});
  }
  Expr Integer(const std::string& digits) { return e_.Literal(digits.empty() ? "0" : digits); }

  // What may follow the point, from digit `at` on, for a fraction above (or below) `digits`, or equal to it.
  Expr FractionAbove(const std::string& digits, size_t at, bool exclusive) {
    const size_t left = kMaxFractionDigits - at;
    if (at == digits.size()) {
      if (!exclusive) return Digits(0, left);
      if (left == 0) return kNoText;
      const auto count = static_cast<uint32_t>(left);
      const Expr not_zero = e_.Sequence({Digit('1', '9'), Digits(0, left - 1)});
      // Zeros, digit and rest together stay within the limit.
      return e_.Intersection(e_.Sequence({e_.Repeat(Digit('0', '0'), 0, count - 1), not_zero}), Digits(1, left));
    }
    std::vector<Expr> options;
    if (digits[at] < '9') {
      options.push_back(e_.Sequence({Digit(static_cast<char>(digits[at] + 1), '9'), Digits(0, left - 1)}));
    }
    options.push_back(e_.Sequence({Digit(digits[at], digits[at]), FractionAbove(digits, at + 1, exclusive)}));
    return e_.Choice(options);
  }
  Expr FractionBelow(const std::string& digits, size_t at, bool exclusive) {
    const size_t left = kMaxFractionDigits - at;
    if (at == digits.size()) {
      return exclusive ? kNoText : e_.Repeat(Digit('0', '0'), 0, static_cast<uint32_t>(left));
    }
    std::vector<Expr> options;
    if (at > 0) options.push_back(kEmptyText);  // the bound's next digits are not all zeros
    if (digits[at] > '0') {
      options.push_back(e_.Sequence({Digit('0', static_cast<char>(digits[at] - 1)), Digits(0, left - 1)}));
    }
    options.push_back(e_.Sequence({Digit(digits[at], digits[at]), FractionBelow(digits, at + 1, exclusive)}));
    return e_.Choice(options);
  }

  // Unsigned numbers above the absolute value, or equal to it.
  Expr Above(const Decimal& value, bool exclusive) {
    Expr same = kNoText;
    if (integers_only_) {
      if (!exclusive && value.fraction.empty()) same = kEmptyText;
    } else {
      const Expr fraction = e_.Sequence({e_.Literal("."), FractionAbove(value.fraction, 0, exclusive)});
      same = value.fraction.empty() && !exclusive ? Fraction() : fraction;
    }
    return e_.Choice(
        {e_.Sequence({IntegerAbove(value.integer), Fraction()}), e_.Sequence({Integer(value.integer), same})});
  }
  // Unsigned numbers below it, or equal to it.
  Expr Below(const Decimal& value, bool exclusive) {
    Expr same = kNoText;
    if (integers_only_) {
      if (!exclusive || !value.fraction.empty()) same = kEmptyText;
    } else if (value.fraction.empty()) {
      same = exclusive ? kNoText : ZeroFraction();
    } else {
      same = e_.Optional(e_.Sequence({e_.Literal("."), FractionBelow(value.fraction, 0, exclusive)}));
    }
    return e_.Choice(
        {e_.Sequence({IntegerBelow(value.integer), Fraction()}), e_.Sequence({Integer(value.integer), same})});
  }

  Expressions& e_;
  const bool integers_only_;
};

}  // namespace

Expr AnyDigits(Expressions* expressions) {
  Expressions& e = *expressions;
  return e.Choice(
      {e.Literal("0"), e.Sequence({e.ByteRange('1', '9'), e.Repeat(e.ByteRange('0', '9'), 0, kMaxIntegerDigits - 1)})});
}

Expr AnyFraction(Expressions* expressions) {
  Expressions& e = *expressions;
  return e.Optional(e.Sequence({e.Literal("."), e.Repeat(e.ByteRange('0', '9'), 1, kMaxFractionDigits)}));
}

absl::StatusOr<Decimal> ToDecimal(const nlohmann::ordered_json& number) {
  std::string text = number.dump();  // shortest digits that give the same double
  Decimal decimal;
  if (text.starts_with('-')) {
    decimal.negative = true;
    text.erase(0, 1);
  }
  int exponent = 0;
  const size_t e = text.find('e');
  if (e != std::string::npos) {
    const size_t digits = e + 1 + (text[e + 1] == '+' ? 1 : 0);
    std::from_chars(text.data() + digits, text.data() + text.size(), exponent);
    text.resize(e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits = text.substr(0, point) + (point < text.size() ? text.substr(point + 1) : "");
  const int scale = static_cast<int>(point) + exponent;  // digits before the point
  if (scale < -static_cast<int>(kMaxFractionDigits) || scale > 400) {
    return InvalidArgument("a number of at most {} digits before the point and {} after it, found {}",
                           kMaxIntegerDigits, kMaxFractionDigits, number.dump());
  }
  if (scale < 0) digits.insert(0, static_cast<size_t>(-scale), '0');
  const size_t before = scale < 0 ? 0 : static_cast<size_t>(scale);
  if (digits.size() < before) digits.append(before - digits.size(), '0');
  decimal.integer = digits.substr(0, before);
  decimal.fraction = digits.substr(before);
  decimal.integer.erase(0, std::min(decimal.integer.find_first_not_of('0'), decimal.integer.size()));
  decimal.fraction.resize(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.integer.size() > kMaxIntegerDigits || decimal.fraction.size() > kMaxFractionDigits) {
    return InvalidArgument("a number of at most {} digits before the point and {} after it, found {}",
                           kMaxIntegerDigits, kMaxFractionDigits, number.dump());
  }
  if (decimal.is_zero()) decimal.negative = false;
  return decimal;
}

Expr NumbersBetween(const std::optional<NumberBound>& lower, const std::optional<NumberBound>& upper,
                    bool integers_only, Expressions* expressions) {
  Writer writer(integers_only, expressions);
  if (lower.has_value() && upper.has_value()) {
    return expressions->Intersection(writer.AtLeast(*lower), writer.AtMost(*upper));
  }
  if (lower.has_value()) return writer.AtLeast(*lower);
  if (upper.has_value()) return writer.AtMost(*upper);
  return writer.AnySigned();
}

}  // namespace hadal::guided
