#include "runtime/philox.h"

#include <gtest/gtest.h>

namespace hadal::runtime {
namespace {

// Known answers of the authors' distribution (Random123, kat_vectors, philox 4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32(0, {0, 0, 0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32(UINT64_MAX, {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, BlocksAreThoseOfTheirCounters) {
  std::array<std::array<uint32_t, 4>, 4> words;
  PhiloxBlocks<4>(77, {1, 2, 3, UINT32_MAX - 1}, &words);  // the last word wraps around
  for (uint32_t i = 0; i < 4; ++i) {
    const PhiloxBlock block = Philox4x32(77, {1, 2, 3, UINT32_MAX - 1 + i});
    for (size_t word = 0; word < 4; ++word) EXPECT_EQ(words[word][i], block[word]);
  }
}

}  // namespace
}  // namespace hadal::runtime
