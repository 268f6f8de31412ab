#include "base/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hadal {
namespace {

TEST(E4M3, EveryCodeSurvivesARoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const float value = E4M3ToFloat(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(FloatToE4M3(value), code) << value;
      EXPECT_EQ(RoundE4M3(value), value);
    }
  }
  EXPECT_EQ(E4M3ToFloat(0x7E), 448.0f);
  EXPECT_EQ(E4M3ToFloat(0x08), 0x1p-6f);
  EXPECT_EQ(E4M3ToFloat(0x01), 0x1p-9f);
}

TEST(E4M3, RoundsToNearestEvenAndSaturates) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = E4M3ToFloat(static_cast<uint8_t>(code));
    const float high = E4M3ToFloat(static_cast<uint8_t>(code + 1));
    const float middle = 0.5f * (low + high);
    EXPECT_EQ(FloatToE4M3(middle), (code & 1) == 0 ? code : code + 1) << middle;
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, high)), code + 1);
    EXPECT_EQ(FloatToE4M3(std::nextafter(middle, low)), code);
  }
  EXPECT_EQ(FloatToE4M3(1e9f), 0x7E);
  EXPECT_EQ(FloatToE4M3(-1e9f), 0xFE);
}

TEST(E8M0, IsAnExponentByte) {
  EXPECT_EQ(E8M0ToFloat(0), 0x1p-127f);
  EXPECT_EQ(E8M0ToFloat(1), 0x1p-126f);
  EXPECT_EQ(E8M0ToFloat(120), 0x1p-7f);
  EXPECT_EQ(E8M0ToFloat(127), 1.0f);
  EXPECT_EQ(E8M0ToFloat(128), 2.0f);
  EXPECT_EQ(E8M0ToFloat(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(E8M0ToFloat(255)));
}

TEST(E2M1, TiesGoToTheEvenCode) {
  const float ties[][2] = {{.25f, 0}, {.75f, 1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2}, {3.5f, 4}, {5, 4}, {7, 6}};
  for (const auto& [in, out] : ties) {
    EXPECT_EQ(RoundE2M1(in), out) << in;
    EXPECT_EQ(RoundE2M1(-in), -out) << in;
    EXPECT_EQ(E2M1ToFloat(FloatToE2M1(in)), out);
  }
  for (uint8_t code = 0; code < 16; ++code) EXPECT_EQ(FloatToE2M1(E2M1ToFloat(code)), code);
}

TEST(BlockScale, FollowsTheSpecAtExactPowers) {
  EXPECT_EQ(E4M3BlockScale(0), 0x1p-22f);
  EXPECT_EQ(E4M3BlockScale(1e-5f), 0x1p-22f);
  EXPECT_EQ(E4M3BlockScale(448.0f), 1.0f);
  EXPECT_EQ(E4M3BlockScale(448.0f * (1 + 0x1p-7f)), 2.0f);
  EXPECT_EQ(E4M3BlockScale(7 * 0x1p-3f), 0x1p-9f);
  for (int k = -20; k < 20; ++k)
    EXPECT_EQ(E4M3BlockScale(std::ldexp(448.0f, k < -19 ? -19 : k)), std::ldexp(1.0f, k < -19 ? -19 : k));
  EXPECT_EQ(E2M1BlockScale(6.0f), 1.0f);
}

TEST(BFloat16, RoundsTiesToEven) {
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-8f).bits, 0x3F80);
  EXPECT_EQ(ToBFloat16(1.0f + 3 * 0x1p-8f).bits, 0x3F82);
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(NAN))));
  EXPECT_TRUE(std::isinf(ToFloat(ToBFloat16(3.4e38f))));
}

TEST(F16, CoversSubnormals) {
  EXPECT_EQ(F16ToFloat(0x3C00), 1.0f);
  EXPECT_EQ(F16ToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(F16ToFloat(0xFBFF), -65504.0f);
}

}  // namespace
}  // namespace hadal
