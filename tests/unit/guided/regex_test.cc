#include "guided/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/guided/guided_test_util.h"

namespace hadal::guided::test {
namespace {

using testing::HasSubstr;

TEST(Regex, Languages) {
  const Language languages[] = {
      {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
      {"", {""}, {"a"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"(a|b)*c", {"c", "ababc"}, {"ab", "cc"}},
      {"(?:ab)+?", {"ab", "abab"}, {"", "aba"}},
      {"a{2}", {"aa"}, {"a", "aaa"}},
      {"a{2,}", {"aa", "aaaaa"}, {"a"}},
      {"a{0,2}b", {"b", "ab", "aab"}, {"aaab"}},
      {"a{0}b", {"b"}, {"ab"}},
      {"(a{2}){2,3}", {"aaaa", "aaaaaa"}, {"aa", "aaaaa", "aaaaaaaa"}},
      {"a{2}{2}", {"aaaa"}, {"aa", "aaa"}},
      {"(a*)*b", {"b", "aab"}, {"a"}},
      {"((a?)*)*", {"", "aaa"}, {"b"}},
      {"[a-c_][^a-c]", {"ax", "_é", "c\n"}, {"aa", "xa"}},
      {R"([\]\-\\^])", {"]", "-", "\\", "^"}, {"a"}},
      {"[a-]", {"a", "-"}, {"b"}},
      {R"(\d+\.\d{2})", {"12.34"}, {"12.3", ".12", "١.12"}},
      {R"(\w\W\s\S\D)", {"a- bx"}, {"--  1"}},
      {R"(\S)", {"a", "é"}, {" ", "\xC2\xA0", "\xE2\x80\x83"}},
      {".",
       {"a", "é", "€", "\xF0\x9F\x98\x80"},
       {"\n", "\r", "\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC0\x80", ""}},
      {R"(\x41\u00e9\u{1F600}\t\cJ)", {"Aé\xF0\x9F\x98\x80\t\n"}, {"A"}},
      {"[é-ü]", {"é", "ö", "ü"}, {"\xC3", "ý", "e"}},
      {"[\\u0700-\\u{10400}]", {"\xDC\x80", "\xEF\xBF\xBF", "\xF0\x90\x90\x80"}, {"\xDB\xBF", "\xF0\x90\x90\x81"}},
      {"^abc$", {"abc"}, {"ab"}},
      {"^a|b$", {"a", "b"}, {"ab"}},
      {"(^a|^b)c", {"ac", "bc"}, {"c"}},
      {R"(\Aa\Z)", {"a"}, {""}},
      {"(?<year>\\d)(?P<m_1>x)", {"1x"}, {"1"}},
      {"{a}", {"{a}"}, {"a"}},
      {"a]}", {"a]}"}, {"a"}},
      {R"(\/\.\$)", {"/.$"}, {""}},
  };
  for (const Language& language : languages) CheckLanguage(Kind::kRegex, language);
}

TEST(Regex, PrefixesAreThoseOfTexts) {
  const auto grammar = MustCompile(Kind::kRegex, "ab(c|d[^\\s\\S]|[^\\u0000-\\u{10FFFF}])");
  EXPECT_TRUE(IsPrefix(grammar, "abc"));
  EXPECT_FALSE(IsPrefix(grammar, "abd"));  // cannot be completed
}

TEST(Regex, Errors) {
  const std::pair<const char*, const char*> errors[] = {
      {"(a", "regex: '(' without ')' at byte 0"},
      {"a)", "')' without '(' at byte 1"},
      {"[a", "'[' without ']'"},
      {"[]", "an empty class"},
      {"[b-a]", "a range out of order at byte 1"},
      {"[\\d-z]", "a range whose end is a class"},
      {"[[:alpha:]]", "POSIX class"},
      {"*a", "nothing to repeat at byte 0"},
      {"{2}", "nothing to repeat"},
      {"a**", "a quantifier after a quantifier at byte 2"},
      {"a++", "possessive quantifier"},
      {"a{3,2}", "{3,2} is out of order"},
      {"a{,2}", "expected {m}, {m,} or {m,n}"},
      {"a{1", "expected {m}, {m,} or {m,n}"},
      {"(a)\\1", "a back reference is not supported, found one at byte 3"},
      {"(?P=a)", "back reference"},
      {"\\k<a>", "back reference"},
      {"a(?=b)", "lookaround is not supported, found it at byte 1"},
      {"a(?!b)", "lookaround"},
      {"(?<=b)a", "lookaround"},
      {"(?<!b)a", "lookaround"},
      {"(?>a)", "atomic group"},
      {"(?i)a", "flags and conditions"},
      {"\\bfoo", "word boundary"},
      {"\\p{L}", "\\p{...} is not supported"},
      {"\\q", "\\q is not supported"},
      {"\\", "'\\' at the end"},
      {"\\x4", "too few digits"},
      {"\\ud83d\\ude00", "no Unicode character"},
      {"a^b", "an anchor is only supported at the beginning or end"},
      {"(a$)*", "a repeated anchor"},
      {"a\xFF", "not UTF-8 at byte 1"},
      {"[^\\s\\S]", "no text can satisfy it"},
      {"a[^\\u0000-\\u{10FFFF}]", "no text can satisfy it"},
      {"a{1000}{1000}", "expands to more than"},
      {"((a{1000}){1000}){1000}", "expands to more than"},
      {"a{1000001}", "at most 1000000 repetitions"},
  };
  for (const auto& [pattern, message] : errors)
    EXPECT_THAT(CompileError(Kind::kRegex, pattern), HasSubstr(message)) << pattern;
  EXPECT_THAT(CompileError(Kind::kRegex, std::string(70, '(') + std::string(70, ')')), HasSubstr("64 groups"));
  EXPECT_THAT(CompileError(Kind::kRegex, std::string(65537, 'a')), HasSubstr("at most 65536 bytes, found 65537"));
}

}  // namespace
}  // namespace hadal::guided::test
