// The incremental detokenizer: whole characters only, and the same text as Tokenizer::Decode of all ids.
#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer_utf8.h"
#include "unit/text_tokenizer/small_tokenizer.h"

namespace hadal::text {
namespace {

using test::SmallTokenizer;

// The small vocabulary gives a byte its value as id.
std::vector<int32_t> BytesAsIds(std::string_view bytes) {
  std::vector<int32_t> ids;
  for (const char c : bytes) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST(Detokenizer, HoldsACharacterUntilItIsComplete) {
  Detokenizer detokenizer(SmallTokenizer());
  std::vector<std::string> parts;
  for (const int32_t id : BytesAsIds("a👋é")) parts.push_back(detokenizer.Push(id));
  EXPECT_EQ(parts, (std::vector<std::string>{"a", "", "", "", "👋", "", "é"}));
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(Detokenizer, FlushReplacesATruncatedCharacterOnce) {
  Detokenizer detokenizer(SmallTokenizer());
  for (const int32_t id : BytesAsIds("\xF0\x9F\x91")) EXPECT_EQ(detokenizer.Push(id), "");
  EXPECT_EQ(detokenizer.pending(), "\xF0\x9F\x91");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.Flush(), "");
  EXPECT_EQ(detokenizer.Push('x'), "x");
}

TEST(Detokenizer, ReplacesBytesThatCannotContinueAtOnce) {
  Detokenizer detokenizer(SmallTokenizer());
  EXPECT_EQ(detokenizer.Push(0xE4), "");
  EXPECT_EQ(detokenizer.Push('x'), "\uFFFDx");
  EXPECT_EQ(detokenizer.Push(0xFF), "\uFFFD");
}

TEST(Detokenizer, SkipsSpecialTokensAndUnknownIds) {
  Detokenizer all(SmallTokenizer());
  Detokenizer skipping(SmallTokenizer(), /*skip_special=*/true);
  EXPECT_EQ(all.Push(261), "<s>");
  EXPECT_EQ(skipping.Push(261), "");
  EXPECT_EQ(skipping.Push(263), "<u>");
  for (const int32_t id : {-1, 264, 1 << 30}) EXPECT_EQ(all.Push(id), "");
}

// Random bytes, mostly parts of characters: each part is valid UTF-8 and all together is Decode's text.
TEST(Detokenizer, EqualsDecodeOnRandomBytes) {
  const auto tokenizer = SmallTokenizer();
  std::mt19937 random(3);
  const unsigned char common[] = {0xF0, 0x9F, 0x91, 0x8B, 0xE4, 0xBD, 0xA0, 0xC3, 0xA9, 'a', 0xFF, 0xED, 0xA0};
  for (int round = 0; round < 3000; ++round) {
    std::vector<int32_t> ids;
    for (size_t length = random() % 24, i = 0; i < length; ++i) {
      ids.push_back(random() % 4 == 0 ? static_cast<int32_t>(random() % 264) : common[random() % sizeof(common)]);
    }
    Detokenizer detokenizer(tokenizer);
    std::string joined;
    for (const int32_t id : ids) {
      const std::string part = detokenizer.Push(id);
      ASSERT_EQ(ValidUtf8Prefix(part), part.size());
      ASSERT_LE(detokenizer.pending().size(), 3u);
      joined += part;
    }
    ASSERT_EQ(joined + detokenizer.Flush(), tokenizer->Decode(ids));
  }
}

}  // namespace
}  // namespace hadal::text
