// The block of image tokens: the examples of spec 2.5, its alignment, and the spans of 5.1.
#include "vision/image_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace hadal::vision {
namespace {

using testing::ElementsAreArray;

constexpr int64_t kAligned = 3;  // a start without lead pads

std::vector<int> Types(int64_t rows, int64_t cols, int64_t start) {
  std::vector<int> types;
  for (const SpanToken type : BuildImageBlock(rows, cols, start)) types.push_back(static_cast<int>(type));
  return types;
}

struct Example {
  int64_t rows, cols;
  std::vector<int> types;
  std::vector<int32_t> order;
};

TEST(ImageBlock, Examples) {
  const Example examples[] = {
      {2, 2, {0, 2, 2, 2, 2, 3, 3, 1, 1, 4}, {0, 2, 1, 3}},
      {3, 2, {0, 2, 2, 2, 2, 3, 3, 2, 1, 2, 1, 3, 1, 4}, {0, 2, 1, 3, 4, 5}},
      {1, 1, {0, 2, 1, 3, 1, 4}, {0}},
      {3, 1, {0, 2, 2, 3, 3, 2, 1, 3, 1, 4}, {0, 1, 2}},
      {2, 1, {0, 2, 2, 3, 3, 4}, {0, 1}},
  };
  for (const Example& e : examples) {
    EXPECT_THAT(Types(e.rows, e.cols, kAligned), ElementsAreArray(e.types)) << e.rows << " x " << e.cols;
    EXPECT_THAT(ImageTokenOrder(e.rows, e.cols), ElementsAreArray(e.order)) << e.rows << " x " << e.cols;
  }
}

// START at 3 and END at 0 modulo 4 wherever the block begins; only the number of lead pads depends on that.
TEST(ImageBlock, AlignmentAtEveryStart) {
  const std::vector<int> bare = Types(5, 4, kAligned);
  for (int64_t start = 0; start < 9; ++start) {
    const std::vector<int> types = Types(5, 4, start);
    const int64_t lead = 3 - start % 4;
    ASSERT_EQ(types.size(), bare.size() + lead);
    EXPECT_TRUE(std::all_of(types.begin(), types.begin() + lead, [](int type) { return type == 1; }));
    EXPECT_TRUE(std::equal(bare.begin(), bare.end(), types.begin() + lead));
    EXPECT_EQ((start + lead) % 4, 3);
    EXPECT_EQ((start + static_cast<int64_t>(types.size()) - 1) % 4, 0);
  }
}

// Spec 2.5: cell (i, j) lands at START + 1 + (i // 2) * 2 * (lw + 1) + 2 * j + i % 2.
TEST(ImageBlock, CellsLandWhereTheSpecificationSays) {
  for (int64_t rows = 1; rows < 12; ++rows) {
    for (int64_t cols = 1; cols < 12; ++cols) {
      const std::vector<SpanToken> types = BuildImageBlock(rows, cols, kAligned);
      const std::vector<int32_t> order = ImageTokenOrder(rows, cols);
      ASSERT_EQ(types.size(), static_cast<size_t>(BlockLength(rows, cols)));
      ASSERT_EQ(order.size(), static_cast<size_t>(rows * cols));
      std::vector<int32_t> at(types.size(), -1);  // aligner row of each position
      size_t next = 0;
      for (size_t i = 0; i < types.size(); ++i) {
        if (types[i] == SpanToken::kImage) at[i] = order[next++];
      }
      EXPECT_EQ(next, order.size());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          EXPECT_EQ(at[1 + (i / 2) * 2 * (cols + 1) + 2 * j + i % 2], i * cols + j);
        }
        EXPECT_EQ(types[1 + (i / 2) * 2 * (cols + 1) + 2 * cols + i % 2], SpanToken::kNewLine);
      }
    }
  }
}

TEST(ImageBlock, SpansLeaveLeadPadsOut) {
  for (int64_t offset = 0; offset < 4; ++offset) {
    EXPECT_EQ(SpanOf({offset, 384}), (Span{3, offset + 383}));
  }
  for (int64_t start = 0; start < 9; ++start) {
    const std::vector<SpanToken> types = BuildImageBlock(7, 5, start);
    const Span span = SpanOf({start, static_cast<int64_t>(types.size())});
    EXPECT_EQ(types[span.start - start], SpanToken::kStart);
    EXPECT_EQ(types[span.end - start], SpanToken::kEnd);
  }
}

}  // namespace
}  // namespace hadal::vision
