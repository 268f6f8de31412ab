// BPE against the definition: a plain loop that merges the lowest-ranked, leftmost pair.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/status.h"

namespace hadal::text {
namespace {

struct Vocabulary {
  std::array<int32_t, 256> byte_ids{};
  std::vector<Bpe::Merge> merges;
};

// Random merges over the letters a to d: products of products, so that long tokens and ties arise.
Vocabulary RandomVocabulary(uint32_t seed) {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.byte_ids[byte] = byte;
  std::mt19937 random(seed);
  std::vector<int32_t> tokens = {'a', 'b', 'c', 'd'};
  std::map<std::pair<int32_t, int32_t>, int> used;
  while (vocabulary.merges.size() < 60) {
    const int32_t left = tokens[random() % tokens.size()];
    const int32_t right = tokens[random() % tokens.size()];
    if (used[{left, right}]++ > 0) continue;
    const int32_t product = 256 + static_cast<int32_t>(vocabulary.merges.size());
    vocabulary.merges.push_back({left, right, product});
    tokens.push_back(product);
  }
  return vocabulary;
}

std::vector<int32_t> ByDefinition(const Vocabulary& vocabulary, std::string_view piece) {
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(vocabulary.byte_ids[static_cast<unsigned char>(c)]);
  for (;;) {
    size_t best_rank = vocabulary.merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (vocabulary.merges[rank].left == ids[i] && vocabulary.merges[rank].right == ids[i + 1]) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == vocabulary.merges.size()) return ids;
    ids[best] = vocabulary.merges[best_rank].product;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Lengths on both sides of the cache's and the scan's limits, each piece twice so that the cache answers too.
TEST(Bpe, EqualsTheDefinition) {
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const Vocabulary vocabulary = RandomVocabulary(seed);
    const auto bpe = Bpe::Create(vocabulary.byte_ids, vocabulary.merges);
    ASSERT_TRUE(bpe.ok()) << bpe.status();
    Bpe::Scratch scratch;
    std::mt19937 random(seed + 100);
    for (const size_t length : {1, 2, 3, 5, 8, 15, 22, 23, 24, 25, 40, 95, 96, 97, 98, 130, 300}) {
      for (int repeat = 0; repeat < 12; ++repeat) {
        std::string piece;
        while (piece.size() < length) piece += static_cast<char>('a' + random() % (repeat % 4 + 1));
        const std::vector<int32_t> expected = ByDefinition(vocabulary, piece);
        for (int pass = 0; pass < 2; ++pass) {
          std::vector<int32_t> ids = {-7};  // Encode appends
          bpe->Encode(piece, scratch, &ids);
          ASSERT_EQ(ids.front(), -7);
          ids.erase(ids.begin());
          ASSERT_EQ(ids, expected) << "seed " << seed << ", pass " << pass << ": " << piece;
        }
      }
    }
  }
}

TEST(Bpe, WorksWithoutMerges) {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.byte_ids[byte] = 255 - byte;
  const auto bpe = Bpe::Create(vocabulary.byte_ids, {});
  ASSERT_TRUE(bpe.ok());
  Bpe::Scratch scratch;
  std::vector<int32_t> ids;
  bpe->Encode(std::string_view("\0\xFF", 2), scratch, &ids);
  bpe->Encode("", scratch, &ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{255, 0}));
}

TEST(Bpe, RefusesAPairGivenTwice) {
  const Vocabulary vocabulary = RandomVocabulary(1);
  const auto bpe = Bpe::Create(vocabulary.byte_ids, {{97, 98, 256}, {98, 99, 257}, {97, 98, 258}});
  ASSERT_FALSE(bpe.ok());
  EXPECT_EQ(Message(bpe.status()), "model.merges[2] repeats the pair of model.merges[0]");
}

}  // namespace
}  // namespace hadal::text
