#include "runtime/stop_strings.h"

#include <gtest/gtest.h>

namespace hadal::runtime {
namespace {

// Text that came out, with "|" where the string was found.
std::string Feed(const std::vector<std::string>& stops, std::string_view text, size_t piece) {
  StopStrings stop(stops);
  std::string out;
  for (size_t at = 0; at < text.size(); at += piece) out += stop.Push(text.substr(at, piece));
  if (stop.matched()) return out + "|" + stop.match();
  return out + stop.Flush();
}

TEST(StopStrings, ResultDoesNotDependOnTheCut) {
  const struct {
    std::vector<std::string> stops;
    std::string text, want;
  } cases[] = {
      {{}, "abc", "abc"},
      {{"x"}, "abc", "abc"},
      {{"b"}, "abc", "a|b"},
      {{"abc"}, "ababcd", "ab|abc"},
      {{"aab"}, "aaab", "a|aab"},
      {{"bcd", "c"}, "abcd", "ab|c"},
      {{"abcd", "ab"}, "abcd", "|ab"},
      {{"cd", "bcd"}, "abcd", "a|bcd"},
      {{"bcd", "cd"}, "abcd", "a|bcd"},
      {{"END"}, "EEN ENDE", "EEN |END"},
      {{"END"}, "the EN", "the EN"},
      {{"。"}, "好。x", "好|。"},
      {{"\n\n"}, "a\n\n\nb", "a|\n\n"},
  };
  for (const auto& c : cases) {
    for (size_t piece = 1; piece <= c.text.size(); ++piece) {
      EXPECT_EQ(Feed(c.stops, c.text, piece), c.want) << c.text << " in pieces of " << piece;
    }
  }
}

TEST(StopStrings, HoldsBackOnlyWhatCanStillMatch) {
  StopStrings stop({"STOP"});
  EXPECT_EQ(stop.Push("a ST"), "a ");
  EXPECT_EQ(stop.Push("A"), "STA");
  EXPECT_EQ(stop.Push("S"), "");
  EXPECT_EQ(stop.Flush(), "S");
}

TEST(StopStrings, NothingComesAfterAMatch) {
  StopStrings stop({"x"});
  EXPECT_EQ(stop.Push("axb"), "a");
  EXPECT_TRUE(stop.matched());
  EXPECT_EQ(stop.Push("more"), "");
  EXPECT_EQ(stop.Flush(), "");
}

TEST(StopStrings, Limits) {
  EXPECT_TRUE(CheckStopStrings({}).ok());
  EXPECT_TRUE(CheckStopStrings(std::vector<std::string>(16, "a")).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckStopStrings({""})));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckStopStrings(std::vector<std::string>(17, "a"))));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckStopStrings({std::string(kMaxStopBytes + 1, 'a')})));
}

}  // namespace
}  // namespace hadal::runtime
