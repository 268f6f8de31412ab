// Resizing against checksums of Pillow's results: those of the specification (2.3), and shapes at the edges.
#include "vision/resample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "unit/vision/images.h"

namespace hadal::vision {
namespace {

struct Golden {
  int width, height;
  Placement content;
  uint32_t crc;
  std::array<int64_t, 3> sums;
  std::array<int, 3> middle;
};

const Golden kGoldens[] = {
    {511, 377, {3, 0, 512, 378}, 0x57d4f8b6, {24965352, 24964203, 24964008}, {172, 22, 125}},
    {1920, 1080, {0, 2, 1036, 583}, 0xe4aaf564, {77662395, 77664540, 77665615}, {212, 134, 184}},
    {801, 100, {0, 0, 1092, 140}, 0x6dd11eed, {19501427, 19493885, 19493707}, {170, 23, 165}},
    {60, 40, {0, 2, 476, 317}, 0xc97cfc34, {20577972, 19727847, 19537097}, {187, 167, 206}},
    {320, 400, {2, 0, 347, 434}, 0xcd934753, {19383680, 19365121, 19365994}, {199, 247, 97}},
    {60, 1000, {2, 0, 94, 1568}, 0x60f272a0, {19629969, 19591771, 19589353}, {28, 75, 181}},
};

TEST(Resample, Goldens) {
  for (const Golden& golden : kGoldens) {
    SCOPED_TRACE(testing::Message() << golden.width << " x " << golden.height);
    const auto grid = SolveImageSize(golden.width, golden.height, {});
    ASSERT_TRUE(grid.ok()) << grid.status();
    if (!grid->stretch) {
      EXPECT_EQ(FitInside(golden.width, golden.height, grid->width, grid->height).value(), golden.content);
    }
    const auto canvas = ResizeToCanvas(SyntheticImage(golden.width, golden.height), *grid);
    ASSERT_TRUE(canvas.ok()) << canvas.status();
    EXPECT_EQ(Crc32(canvas->pixels), golden.crc);
    std::array<int64_t, 3> sums = {};
    for (size_t i = 0; i < canvas->pixels.size(); ++i) sums[i % 3] += canvas->pixels[i];
    EXPECT_EQ(sums, golden.sums);
    const uint8_t* middle = canvas->row(canvas->height / 2) + canvas->width / 2 * 3;
    EXPECT_THAT(golden.middle, testing::ElementsAre(middle[0], middle[1], middle[2]));
  }
}

struct Resize {
  int from_width, from_height, width, height;
  uint32_t crc;
};

// From Pillow 9.4.0: Image.resize((width, height), Image.BICUBIC) of the synthetic image.
const Resize kResizes[] = {
    {50, 40, 50, 17, 0xa595c393},  {50, 40, 50, 90, 0x5d416e5d},     {50, 40, 13, 40, 0x3ea1cdd4},
    {50, 40, 131, 40, 0x78cdb06c}, {1, 1, 392, 392, 0xeb7aee5c},     {1, 50, 14, 7, 0xb4ad0fb7},
    {50, 1, 3, 1, 0xf08c8ad8},     {3, 2, 1, 1, 0xbab66ebc},         {400, 300, 7, 5, 0x6e2df1ef},
    {37, 29, 36, 30, 0xe59397f5},  {500, 3, 499, 3, 0x1a86c191},     {64, 64, 32, 32, 0xc21487a4},
    {2, 2, 3, 3, 0x5d797f26},      {1000, 10, 10, 1000, 0x79577802},
};

TEST(Resample, SinglePassesAndEdges) {
  for (const Resize& r : kResizes) {
    const RgbImage out = ResizeBicubic(SyntheticImage(r.from_width, r.from_height), r.width, r.height);
    EXPECT_EQ(out.width, r.width);
    EXPECT_EQ(out.height, r.height);
    EXPECT_EQ(Crc32(out.pixels), r.crc) << r.from_width << " x " << r.from_height << " to " << r.width << " x "
                                        << r.height;
  }
}

TEST(Resample, FlatImagesStayFlat) {
  for (const int level : {0, 1, 127, 254, 255}) {
    const RgbImage out = ResizeBicubic(RgbImage::Filled(31, 17, static_cast<uint8_t>(level)), 97, 5);
    EXPECT_THAT(out.pixels, testing::Each(level));
  }
}

// Spec 2.3: a gap of 5 gives offset 2, of 3 offset 2, of 1 offset 0.
TEST(Resample, OffsetsRoundHalvesToEven) {
  for (const auto& [gap, offset] : {std::pair{1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 2}, {6, 3}, {7, 4}}) {
    EXPECT_EQ(FitInside(100, 100 - gap, 100, 100).value(), (Placement{0, offset, 100, 100 - gap}));
    EXPECT_EQ(FitInside(100 - gap, 100, 100, 100).value(), (Placement{offset, 0, 100 - gap, 100}));
  }
}

TEST(Resample, GreyLiesAroundTheContent) {
  const RgbImage white = RgbImage::Filled(10, 10, 255);
  ImageGrid grid;
  grid.width = 20;
  grid.height = 10;
  const auto canvas = ResizeToCanvas(white, grid);
  ASSERT_TRUE(canvas.ok()) << canvas.status();
  for (int x = 0; x < 20; ++x) EXPECT_EQ(canvas->row(4)[3 * x], x < 5 || x >= 15 ? 127 : 255) << x;
}

TEST(Resample, RefusesProportionsThatVanish) {
  const auto place = FitInside(1, 20'000, 42, 7896);
  ASSERT_TRUE(absl::IsInvalidArgument(place.status()));
  EXPECT_THAT(std::string(place.status().message()), testing::HasSubstr("1 x 20000 pixels"));
  EXPECT_TRUE(FitInside(1, 15'000, 42, 7896).ok());
}

}  // namespace
}  // namespace hadal::vision
