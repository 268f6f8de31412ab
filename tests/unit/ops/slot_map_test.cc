// ops::SlotMap: block tables that are not the identity, and rings.
#include <gtest/gtest.h>

#include <vector>

#include "ops/tensor.h"

namespace hadal {
namespace {

TEST(SlotMap, FollowsTheBlockTable) {
  const std::vector<int32_t> blocks = {7, 2, 5, 0, 9, 1};
  const ops::SlotMap map{blocks.data(), 3, 4, 0};
  EXPECT_EQ(map.Slot(0, 0), 28);
  EXPECT_EQ(map.Slot(0, 3), 31);
  EXPECT_EQ(map.Slot(0, 4), 8);
  EXPECT_EQ(map.Slot(0, 11), 23);
  EXPECT_EQ(map.Slot(1, 0), 0);
  EXPECT_EQ(map.Slot(1, 6), 38);
  EXPECT_EQ(map.Slot(1, 9), 5);
}

TEST(SlotMap, ARingStartsAgainAfterItsLastBlock) {
  const std::vector<int32_t> blocks = {3, 1, 0, 2};
  const ops::SlotMap map{blocks.data(), 2, 4, 2};
  for (int64_t p : {0, 3, 4, 7}) {
    EXPECT_EQ(map.Slot(0, p), map.Slot(0, p + 8)) << p;
    EXPECT_EQ(map.Slot(1, p), map.Slot(1, p + 8000)) << p;
  }
  EXPECT_EQ(map.Slot(0, 8), 12);
  EXPECT_EQ(map.Slot(0, 13), 5);
  EXPECT_EQ(map.Slot(1, 13), 9);
}

TEST(SlotMap, SlotsPass32Bits) {
  const std::vector<int32_t> blocks = {2'000'000'000};
  const ops::SlotMap map{blocks.data(), 1, 64, 0};
  EXPECT_EQ(map.Slot(0, 5), 128'000'000'005);
}

}  // namespace
}  // namespace hadal
