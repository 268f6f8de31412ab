// UTF-8 stepping and lossy conversion: against the definition, over every code point and every pair of bytes.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "text/tokenizer_utf8.h"

namespace hadal::text {
namespace {

std::string Utf8(uint32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
}

std::string Lossy(std::string_view bytes) {
  std::string text;
  AppendLossyUtf8(bytes, &text);
  return text;
}

TEST(Utf8, EveryCharacterIsValidAndItsStartsAreTruncated) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const std::string bytes = Utf8(c);
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(ValidUtf8Prefix(bytes), surrogate ? 0 : bytes.size()) << c;
    if (surrogate) continue;
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const Utf8Step step = NextUtf8(bytes.substr(0, cut));
      ASSERT_EQ(step.kind, Utf8Step::Kind::kTruncated) << c;
      ASSERT_EQ(step.length, cut);
    }
  }
}

TEST(Utf8, ReplacesMaximalSubparts) {
  EXPECT_EQ(Lossy("plain"), "plain");
  EXPECT_EQ(Lossy("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(Lossy("\x80\x80"), "\uFFFD\uFFFD");
  EXPECT_EQ(Lossy("\xE4\xBD"), "\uFFFD");                            // a start of three bytes, cut
  EXPECT_EQ(Lossy("\xE4\xBDx"), "\uFFFDx");                          // the same, followed by something else
  EXPECT_EQ(Lossy("\xC0\xAF"), "\uFFFD\uFFFD");                      // overlong
  EXPECT_EQ(Lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");            // surrogate
  EXPECT_EQ(Lossy("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // above U+10FFFF
  // The Unicode standard's own example, table 3-8.
  EXPECT_EQ(Lossy("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"), "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
}

TEST(Utf8, LossyOutputIsValid) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string bytes = {'\xE4', static_cast<char>(first), static_cast<char>(second), 'x'};
      const std::string text = Lossy(bytes);
      ASSERT_EQ(ValidUtf8Prefix(text), text.size()) << first << " " << second;
      ASSERT_EQ(text.back(), 'x');
    }
  }
}

TEST(Utf8, PrefixStopsAtTheFirstBadByteOfALongText) {
  for (size_t at = 0; at < 40; ++at) {
    std::string text(64, 'a');
    text[at] = '\xFF';
    ASSERT_EQ(ValidUtf8Prefix(text), at);
  }
}

}  // namespace
}  // namespace hadal::text
