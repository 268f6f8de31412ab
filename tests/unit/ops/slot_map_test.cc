// ops::SlotMap: block tables that are not the identity, and rings.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "ops/tensor.h"

namespace hadal {
namespace {

// Block and row of a position.
std::pair<int64_t, int64_t> Find(const ops::SlotMap& map, int32_t seq, int64_t position) {
  return {map.Block(seq, position), map.RowInBlock(position)};
}
using Place = std::pair<int64_t, int64_t>;

TEST(SlotMap, FollowsTheBlockTable) {
  const std::vector<int32_t> blocks = {7, 2, 5, 0, 9, 1};
  const ops::SlotMap map{blocks.data(), 3, 4, 0};
  EXPECT_EQ(Find(map, 0, 0), Place(7, 0));
  EXPECT_EQ(Find(map, 0, 3), Place(7, 3));
  EXPECT_EQ(Find(map, 0, 4), Place(2, 0));
  EXPECT_EQ(Find(map, 0, 11), Place(5, 3));
  EXPECT_EQ(Find(map, 1, 0), Place(0, 0));
  EXPECT_EQ(Find(map, 1, 6), Place(9, 2));
  EXPECT_EQ(Find(map, 1, 9), Place(1, 1));
}

TEST(SlotMap, ARingStartsAgainAfterItsLastBlock) {
  const std::vector<int32_t> blocks = {3, 1, 0, 2};
  const ops::SlotMap map{blocks.data(), 2, 4, 2};
  for (int64_t p : {0, 3, 4, 7}) {
    EXPECT_EQ(Find(map, 0, p), Find(map, 0, p + 8)) << p;
    EXPECT_EQ(Find(map, 1, p), Find(map, 1, p + 8000)) << p;
  }
  EXPECT_EQ(Find(map, 0, 8), Place(3, 0));
  EXPECT_EQ(Find(map, 0, 13), Place(1, 1));
  EXPECT_EQ(Find(map, 1, 13), Place(2, 1));
}

TEST(SlotMap, PositionsPass32Bits) {
  const std::vector<int32_t> blocks = {4, 6};
  const ops::SlotMap map{blocks.data(), 2, 64, 2};
  EXPECT_EQ(Find(map, 0, (int64_t{1} << 40) + 64 + 5), Place(6, 5));
}

}  // namespace
}  // namespace hadal
