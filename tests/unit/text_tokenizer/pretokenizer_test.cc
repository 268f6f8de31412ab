// The pre-tokenizer: rules one after another, gaps as pieces, invalid UTF-8, hostile regexes, regex translation.
#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "base/status.h"
#include "text/pretokenizer_regex.h"

namespace hadal::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Pieces(const std::vector<Pretokenizer::Rule>& rules, std::string_view text) {
  const auto pretokenizer = Pretokenizer::Create(rules);
  EXPECT_TRUE(pretokenizer.ok()) << pretokenizer.status();
  Pretokenizer::Scratch scratch;
  std::vector<std::string> pieces;
  pretokenizer->Split(text, scratch, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(Pretokenizer, WithoutRulesTheTextIsOnePiece) {
  EXPECT_THAT(Pieces({}, "a b"), ElementsAre("a b"));
  EXPECT_THAT(Pieces({}, ""), ElementsAre());
}

TEST(Pretokenizer, MatchesAndGapsArePieces) {
  EXPECT_THAT(Pieces({{.pattern = "\\p{N}"}}, "ab12c"), ElementsAre("ab", "1", "2", "c"));
  EXPECT_THAT(Pieces({{.pattern = "a*"}}, "baac"), ElementsAre("b", "aa", "c"));  // empty matches make no piece
}

// Trap 28: as one alternation the second rule would not see " " " " apart from the digits.
TEST(Pretokenizer, RulesApplyOneAfterAnother) {
  const std::vector<Pretokenizer::Rule> rules = {{.pattern = "\\p{N}{1,3}"}, {.pattern = "\\s+(?!\\S)|\\s+|\\p{L}+"}};
  EXPECT_THAT(Pieces(rules, "a  123"), ElementsAre("a", "  ", "123"));
  EXPECT_THAT(Pieces({{.pattern = "\\p{N}{1,3}|\\s+(?!\\S)|\\s+|\\p{L}+"}}, "a  123"),
              ElementsAre("a", " ", " ", "123"));
}

TEST(Pretokenizer, LiteralsAreNotRegexes) {
  EXPECT_THAT(Pieces({{.pattern = ".+", .literal = true}}, "a.+b.b"), ElementsAre("a", ".+", "b.b"));
}

TEST(Pretokenizer, InvalidBytesArePiecesOfTheirOwn) {
  const std::vector<Pretokenizer::Rule> rules = {{.pattern = " ?\\p{L}+"}};
  EXPECT_THAT(Pieces(rules, "ab\xFF\xFE cd"), ElementsAre("ab", "\xFF\xFE", " cd"));
  EXPECT_THAT(Pieces(rules, "\xE4\xBD"), ElementsAre("\xE4\xBD"));                      // cut character
  EXPECT_THAT(Pieces(rules, "x\xED\xA0\x80y"), ElementsAre("x", "\xED\xA0\x80", "y"));  // surrogate
  EXPECT_THAT(Pieces(rules, "\xC3\xE4\xBD\xA0"), ElementsAre("\xC3", "你"));
  // Look-ahead ends at the border.
  EXPECT_THAT(Pieces({{.pattern = "\\s+(?!\\S)|\\s+|\\S+"}}, "a  \xFF"), ElementsAre("a", "  ", "\xFF"));
}

TEST(Pretokenizer, NamesTheRuleThatDoesNotCompile) {
  const auto broken = Pretokenizer::Create({{.pattern = "a"}, {.pattern = "(b"}});
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(broken.status())), HasSubstr("split rule 1: the regex does not compile: missing"));
  EXPECT_FALSE(Pretokenizer::Create({{.pattern = ""}}).ok());
  EXPECT_FALSE(Pretokenizer::Create({{.pattern = std::string(70000, 'a')}}).ok());
  EXPECT_FALSE(Pretokenizer::Create(std::vector<Pretokenizer::Rule>(65, {.pattern = "a"})).ok());
}

// Exponential backtracking is stopped by PCRE2's limit; the text still comes out whole.
TEST(Pretokenizer, HostileRegexEnds) {
  const std::string text(60, 'a');
  const std::clock_t start = std::clock();
  EXPECT_THAT(Pieces({{.pattern = "(a+)+\\1*b$"}, {.pattern = "(?:a|aa)+$(?<=c)"}}, text), ElementsAre(text));
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
}

TEST(PretokenizerRegex, SpacesAreWhiteSpace) {
  EXPECT_EQ(TranslateRegex("\\s+(?!\\S)", UnicodeVersion::kOfPcre2), "\\p{White_Space}+(?!\\P{White_Space})");
  EXPECT_EQ(TranslateRegex("[\\s\\]]\\\\s", UnicodeVersion::kOfPcre2), "[\\p{White_Space}\\]]\\\\s");
  EXPECT_EQ(TranslateRegex("a\\", UnicodeVersion::k16), "a\\");
  EXPECT_THAT(Pieces({{.pattern = "\\s+"}}, "a\u180E\u0085\u3000b"), ElementsAre("a\u180E", "\u0085\u3000", "b"));
}

// U+1FA77 (Unicode 15) is a symbol, U+11F04 (15) a letter, U+1D2C0 (15) a number; PCRE2 10.42 knows none of them.
TEST(PretokenizerRegex, NewerCharactersHaveTheirCategory) {
  EXPECT_TRUE(HasNewerCharacters("plain \U0001FA77"));
  EXPECT_FALSE(HasNewerCharacters("plain é 你好 \U0001F44B \uA7C0"));
  EXPECT_THAT(Pieces({{.pattern = " ?[\\p{P}\\p{S}]+"}}, "a \U0001FA77!b"), ElementsAre("a", " \U0001FA77!", "b"));
  EXPECT_THAT(Pieces({{.pattern = "\\p{L}+"}}, "a\U00011F04 b"), ElementsAre("a\U00011F04", " ", "b"));
  EXPECT_THAT(Pieces({{.pattern = "\\p{N}{1,3}"}}, "x1\U0001D2C0"), ElementsAre("x", "1\U0001D2C0"));
  EXPECT_THAT(Pieces({{.pattern = "[^]\\p{L}[:digit:]x]+"}}, "-\U00011F04-]1"),
              ElementsAre("-", "\U00011F04", "-", "]1"));
}

}  // namespace
}  // namespace hadal::text
