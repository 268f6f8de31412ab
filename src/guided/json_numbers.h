// Decimal numbers within bounds, as expressions: exact to the digit, since the automaton compares spellings.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "guided/expression.h"

namespace hadal::guided {

inline constexpr uint32_t kMaxIntegerDigits = 18;   // any such integer fits 64 bits
inline constexpr uint32_t kMaxFractionDigits = 18;  // more than a double holds

// 0, or digits without a leading zero.
Expr AnyDigits(Expressions* expressions);
// Optionally a point and digits.
Expr AnyFraction(Expressions* expressions);

// A bound as it was written: sign, integer digits without leading zeros (empty for 0), fraction digits without trailing
// zeros.
struct Decimal {
  bool negative = false;
  std::string integer, fraction;
  bool is_zero() const { return integer.empty() && fraction.empty(); }
};

// The digits of a JSON number, exactly as they are printed. InvalidArgument if it needs more digits than the limits
// above.
absl::StatusOr<Decimal> ToDecimal(const nlohmann::ordered_json& number);

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

// The numbers, written without an exponent, that lie within the bounds; only integers, without a point, if
// `integers_only`. -0 is left out of integers.
Expr NumbersBetween(const std::optional<NumberBound>& lower, const std::optional<NumberBound>& upper,
                    bool integers_only, Expressions* expressions);

}  // namespace hadal::guided
