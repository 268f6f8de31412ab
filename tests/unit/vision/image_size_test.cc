// The size solver against the golden sizes of the specification (2.2) and its stated properties.
#include "vision/image_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace hadal::vision {
namespace {

struct Golden {
  int64_t width, height;
  ImageGrid grid;
};

// Fields of the grid: canvas, patches (columns, rows), tokens (columns, rows), block length, stretch.
const Golden kGoldens[] = {
    {1, 1, {392, 392, 28, 28, 10, 10, 114, false}},
    {32, 32, {392, 392, 28, 28, 10, 10, 114, false}},
    {384, 384, {392, 392, 28, 28, 10, 10, 114, false}},
    {511, 377, {518, 378, 37, 27, 13, 9, 142, false}},
    {377, 511, {378, 518, 27, 37, 9, 13, 142, false}},
    {800, 100, {1092, 140, 78, 10, 26, 4, 110, true}},
    {801, 100, {1092, 140, 78, 10, 26, 4, 110, true}},
    {1000, 60, {1092, 140, 78, 10, 26, 4, 110, true}},
    {60, 1000, {98, 1568, 7, 112, 3, 38, 154, false}},
    {320, 400, {350, 434, 25, 31, 9, 11, 122, false}},
    {7000, 900, {1960, 252, 140, 18, 47, 6, 290, false}},
    {640, 480, {644, 490, 46, 35, 16, 12, 206, false}},
    {800, 600, {812, 602, 58, 43, 20, 15, 338, false}},
    {1024, 1024, {756, 756, 54, 54, 18, 18, 346, false}},
    {1536, 768, {1008, 504, 72, 36, 24, 12, 302, false}},
    {1920, 1080, {1036, 588, 74, 42, 25, 14, 366, false}},
    {4000, 3000, {882, 658, 63, 47, 21, 16, 354, false}},
    // The tall branch of the solver: scaling by beta there would leave no column.
    {1, 1349, {42, 7896, 3, 564, 1, 188, 378, false}},
};

TEST(ImageSize, Goldens) {
  for (const Golden& golden : kGoldens) {
    const auto grid = SolveImageSize(golden.width, golden.height, {});
    ASSERT_TRUE(grid.ok()) << grid.status();
    EXPECT_EQ(*grid, golden.grid) << golden.width << " x " << golden.height << " gave " << grid->width << " x "
                                  << grid->height << ", n " << grid->block_length;
  }
}

TEST(ImageSize, StretchBeginsAtTheRatioItself) {
  EXPECT_TRUE(SolveImageSize(800, 100, {})->stretch);
  EXPECT_FALSE(SolveImageSize(799, 100, {})->stretch);
  SizeRules uncapped;
  uncapped.max_wh_ratio = 0;
  EXPECT_FALSE(SolveImageSize(800, 100, uncapped)->stretch);
  EXPECT_FALSE(SolveImageSize(100, 8000, {})->stretch);
}

// Spec 2.2: over random sizes the block never exceeds 378 tokens and is 2 modulo 4.
void CheckGrid(int64_t width, int64_t height) {
  const auto grid = SolveImageSize(width, height, {});
  ASSERT_TRUE(grid.ok()) << grid.status();
  EXPECT_LE(grid->block_length, 378);
  EXPECT_EQ(grid->block_length % 4, 2);
  EXPECT_EQ(grid->width, grid->vit_cols * 14);
  EXPECT_EQ(grid->height, grid->vit_rows * 14);
  EXPECT_EQ(grid->llm_cols, (grid->vit_cols + 2) / 3);
  EXPECT_EQ(grid->llm_rows, (grid->vit_rows + 2) / 3);
  EXPECT_EQ(grid->block_length, BlockLength(grid->llm_rows, grid->llm_cols));
  EXPECT_GE(grid->llm_cols, 1);
  EXPECT_GE(grid->llm_rows, 1);
}

TEST(ImageSize, RandomSizesKeepTheBounds) {
  std::mt19937 random(1);
  for (int i = 0; i < 200'000 && !::testing::Test::HasFailure(); ++i) {
    // Sides over all magnitudes, not only near the largest.
    const auto width = 1 + static_cast<int64_t>(random() >> (random() % 31 + 1));
    const auto height = 1 + static_cast<int64_t>(random() >> (random() % 31 + 1));
    SCOPED_TRACE(testing::Message() << width << " x " << height);
    CheckGrid(width, height);
  }
}

TEST(ImageSize, SmallImagesOfEveryShape) {
  for (int64_t width = 1; width <= 120 && !::testing::Test::HasFailure(); ++width) {
    for (int64_t height = 1; height <= 120; ++height) CheckGrid(width, height);
  }
  CheckGrid(4000, 1);
  CheckGrid(1, 4000);
  CheckGrid(2147483647, 2147483647);
  CheckGrid(2147483647, 1);
  CheckGrid(1, 2147483647);
}

// Spec 2.2, n of grid_tokens, computed there in another way.
TEST(ImageSize, BlockLengthCountsPadsOfPairs) {
  for (int64_t rows = 1; rows < 40; ++rows) {
    for (int64_t cols = 1; cols < 40; ++cols) {
      int64_t n = rows * (cols + 1) + 2;
      if (rows % 2 == 1) n += cols + 1;
      n += (((rows + 1) / 2 * (cols + 1)) % 2) * 2;
      EXPECT_EQ(BlockLength(rows, cols), n);
    }
  }
}

TEST(ImageSize, RefusesWhatHasNoGrid) {
  for (const auto& [width, height] : {std::pair<int64_t, int64_t>{0, 5}, {5, 0}, {-1, 5}, {int64_t{1} << 31, 5}}) {
    const auto grid = SolveImageSize(width, height, {});
    EXPECT_TRUE(absl::IsInvalidArgument(grid.status()));
  }
  SizeRules tiny;
  for (int64_t tokens = 1; tokens < 64; ++tokens) {
    tiny.max_tokens = tokens;
    for (const int64_t side : {1, 60, 100'000}) {
      for (const int64_t other : {1, 60, 100'000}) {
        const auto grid = SolveImageSize(side, other, tiny);
        if (grid.ok()) {
          EXPECT_LE(grid->block_length + kMaxLeadPads, tokens);
        } else {
          EXPECT_TRUE(absl::IsInvalidArgument(grid.status())) << grid.status();
        }
      }
    }
  }
  for (int64_t SizeRules::*field : {&SizeRules::patch, &SizeRules::downsample, &SizeRules::max_tokens,
                                    &SizeRules::min_pixels, &SizeRules::max_wh_ratio}) {
    for (const int64_t value : {int64_t{-1}, INT64_MAX, INT64_MIN}) {
      SizeRules rules;
      rules.*field = value;
      EXPECT_TRUE(absl::IsInvalidArgument(SolveImageSize(100, 100, rules).status()));
    }
  }
}

}  // namespace
}  // namespace hadal::vision
