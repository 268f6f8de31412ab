// Passes over one row of fp32 logits or scores, for the sampler.
//
// They go in blocks of 16 with inner loops over lanes: the compiler makes vector code of those without leave to reorder
// a sum or a maximum, so results are the same bits for every instruction set.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace hadal::runtime {

inline constexpr size_t kRowBlock = 16;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// e^x for x <= 0, within 2^-23 of it relatively, and 1 for 0. Below -87, where e^x leaves the normal numbers, it stays
// at that of -87, 1.6e-38, which no sum that has a 1 in it notices; -infinity included. The polynomial is that of
// Cephes' expf (S. Moshier): e^x = 2^n e^f with |f| <= ln(2) / 2.
//
// Limits and selections here and below are of integers: of those of floats GCC makes branches, which are no vector
// code.
inline float ExpOfNegative(float exponent) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
  // Of two numbers without a plus sign the bits of the lesser are the larger integer; those of +0 are the least.
  const auto x = std::bit_cast<float>(std::min(std::bit_cast<uint32_t>(exponent), std::bit_cast<uint32_t>(-87.0f)));
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float f = x - n * 0.693359375f + n * 2.12194440e-4f;  // ln(2) in two parts, the first of 9 bits
  float y = 1.9875691500e-4f;
  y = y * f + 1.3981999507e-3f;
  y = y * f + 8.3334519073e-3f;
  y = y * f + 4.1665795894e-2f;
  y = y * f + 1.6666665459e-1f;
  y = y * f + 5.0000001201e-1f;
  y = y * (f * f) + f + 1.0f;
  return y * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127) << 23);
}

// x if keep, else 0.
inline float OrZero(bool keep, float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & (0u - static_cast<uint32_t>(keep)));
}

// Calls visit(values, begin) for each block of the row: values[0..15] are row[begin..], behind its end -infinity.
template <typename Visit>
inline void ForEachBlock(std::span<const float> row, Visit visit) {
  const size_t whole = row.size() / kRowBlock * kRowBlock;
  for (size_t begin = 0; begin < whole; begin += kRowBlock) visit(row.data() + begin, begin);
  if (whole == row.size()) return;
  std::array<float, kRowBlock> last;
  last.fill(-kInfinity);
  std::copy(row.begin() + static_cast<std::ptrdiff_t>(whole), row.end(), last.begin());
  visit(last.data(), whole);
}

// The largest of the 16 values of a block.
inline float BlockMax(const float* values) {
  std::array<float, kRowBlock / 2> high;
  for (size_t j = 0; j < high.size(); ++j) high[j] = std::max(values[j], values[j + 8]);
  for (size_t j = 0; j < 4; ++j) high[j] = std::max(high[j], high[j + 4]);
  return std::max(std::max(high[0], high[1]), std::max(high[2], high[3]));
}

// -infinity for an empty row. The row holds no NaN.
inline float RowMax(std::span<const float> row) {
  std::array<float, kRowBlock> high;
  high.fill(-kInfinity);
  ForEachBlock(row, [&](const float* values, size_t) {
    for (size_t j = 0; j < kRowBlock; ++j) high[j] = values[j] > high[j] ? values[j] : high[j];
  });
  return BlockMax(high.data());
}

// The sum of e^(value - shift) over the values from `lowest` up, none of which is above `shift`; finite `shift`. Each
// term is within 2^-23 + 2^-24 |value - shift| relatively, the sum of them in double. Blocks that are 87 below `shift`,
// as those that are ruled out, count as nothing.
inline double RowMass(std::span<const float> row, float shift, float lowest = -kInfinity) {
  const float least = std::max(lowest, shift - 87);
  std::array<double, kRowBlock / 2> sum = {};
  ForEachBlock(row, [&](const float* values, size_t) {
    if (BlockMax(values) < least) return;
    std::array<float, kRowBlock> e;
    for (size_t j = 0; j < kRowBlock; ++j) e[j] = OrZero(values[j] >= lowest, ExpOfNegative(values[j] - shift));
    for (size_t j = 0; j < sum.size(); ++j) sum[j] += static_cast<double>(e[j]) + static_cast<double>(e[j + 8]);
  });
  double total = 0;
  for (const double s : sum) total += s;
  return total;
}

// Whether every value is below +infinity, which a NaN is not either.
inline bool AllBelowInfinity(std::span<const float> row) {
  uint32_t bad = 0;
  for (const float v : row) bad |= static_cast<uint32_t>(!(v < kInfinity));
  return bad == 0;
}

}  // namespace hadal::runtime
