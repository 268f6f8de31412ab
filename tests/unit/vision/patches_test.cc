// Patches and the normalised values, spec 2.4.
#include "vision/patches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/vision/images.h"

namespace hadal::vision {
namespace {

TEST(Patches, GoldenValues) {
  for (const auto& [v, bits] : {std::pair{0, 0xBF80}, {1, 0xBF7E}, {127, 0xBB81}, {128, 0x3B81}, {255, 0x3F80}}) {
    EXPECT_EQ(NormalisedPixel(static_cast<uint8_t>(v)).bits, bits) << v;
  }
}

TEST(Patches, ValuesRiseWithThePixel) {
  std::vector<uint8_t> pixels;
  for (int v = 0; v < 256; ++v) pixels.push_back(static_cast<uint8_t>(v));
  std::vector<BFloat16> out(256);
  NormalisePixels(pixels, out);
  for (int v = 1; v < 256; ++v) EXPECT_GE(ToFloat(out[v]), ToFloat(out[v - 1])) << v;
  EXPECT_EQ(out[128].bits, 0x3B81);
}

TEST(Patches, ChannelsOfAPatchFollowEachOther) {
  constexpr int kPatch = 14;
  const RgbImage canvas = SyntheticImage(kPatch * 3, kPatch * 2);
  const std::vector<uint8_t> patches = CutPatches(canvas, kPatch);
  ASSERT_EQ(patches.size(), canvas.pixels.size());
  for (int y = 0; y < canvas.height; ++y) {
    for (int x = 0; x < canvas.width; ++x) {
      const int patch = (y / kPatch) * 3 + x / kPatch;
      for (int c = 0; c < 3; ++c) {
        const int at = patch * 3 * kPatch * kPatch + c * kPatch * kPatch + (y % kPatch) * kPatch + x % kPatch;
        ASSERT_EQ(patches[at], canvas.row(y)[3 * x + c]) << x << ", " << y << ", " << c;
      }
    }
  }
}

}  // namespace
}  // namespace hadal::vision
