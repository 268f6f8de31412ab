#include "runtime/row_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace hadal::runtime {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Rows of every length around whole blocks.
std::vector<float> Row(size_t size) {
  std::vector<float> row(size);
  for (size_t i = 0; i < size; ++i) row[i] = 20 * std::sin(static_cast<float>(i * i));
  return row;
}

TEST(RowMath, ExpOfNegativeNumbers) {
  double worst = 0;
  for (double x = 0; x > -87; x -= 0.00017) {
    const auto rounded = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(rounded));
    worst = std::max(worst, std::abs(ExpOfNegative(rounded) - exact) / exact);
  }
  EXPECT_LE(worst, 0x1p-23);
  EXPECT_EQ(ExpOfNegative(0.0f), 1.0f);
  EXPECT_EQ(ExpOfNegative(-0.0f), 1.0f);
  for (const float x : {-87.5f, -1e4f, -std::numeric_limits<float>::max(), -kInfinity}) {
    EXPECT_EQ(ExpOfNegative(x), ExpOfNegative(-87.0f)) << x;
  }
  EXPECT_LT(ExpOfNegative(-87.0f), 2e-38f);
}

TEST(RowMath, MaxAndMassOfAllLengths) {
  EXPECT_EQ(RowMax({}), -kInfinity);
  for (size_t size = 1; size < 70; ++size) {
    const std::vector<float> row = Row(size);
    const float highest = *std::max_element(row.begin(), row.end());
    EXPECT_EQ(RowMax(row), highest);
    for (const float lowest : {-kInfinity, highest - 7, highest}) {
      double mass = 0;
      for (const float v : row) mass += v >= lowest ? std::exp(static_cast<double>(v) - highest) : 0;
      // Differences of up to 40 are rounded by 2^-24 * 40, their exponentials are off by 2^-23.
      EXPECT_NEAR(RowMass(row, highest, lowest), mass, mass * (40 * 0x1p-24 + 0x1p-23)) << size << " " << lowest;
    }
  }
}

TEST(RowMath, BlocksArePaddedWithMinusInfinity) {
  const std::vector<float> row = Row(37);
  std::vector<float> seen;
  ForEachBlock(row, [&](const float* values, size_t begin) {
    EXPECT_EQ(begin, seen.size());
    seen.insert(seen.end(), values, values + kRowBlock);
  });
  ASSERT_EQ(seen.size(), 48u);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i < 37 ? row[i] : -kInfinity);
}

TEST(RowMath, WhatIsNotBelowInfinityIsFoundAnywhere) {
  EXPECT_TRUE(AllBelowInfinity(std::vector<float>(37, -kInfinity)));
  for (const float bad : {kInfinity, kNaN, -kNaN}) {
    for (size_t i = 0; i < 37; ++i) {
      std::vector<float> row = Row(37);
      row[i] = bad;
      EXPECT_FALSE(AllBelowInfinity(row)) << i;
    }
  }
}

}  // namespace
}  // namespace hadal::runtime
