#include "guided/ebnf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "unit/guided/guided_test_util.h"

namespace hadal::guided::test {
namespace {

using testing::HasSubstr;

TEST(Ebnf, Languages) {
  const Language languages[] = {
      {"root ::= \"a\"", {"a"}, {"", "b"}},
      {"# comment\nroot ::= greeting (\", \" name)* '!' # more\n\ngreeting ::= \"Hello\" |\n  'Good ' [a-z]+\n"
       "name ::= [A-Z] [a-z]{1,3}",
       {"Hello!", "Good day, Bob, Al!"},
       {"Hello, Bobby!", "Hello", "Good !"}},
      {"root ::= [^\"\\n] . \"\\\"\\x41\\u00e9\\U0001F600\"",
       {"xy\"Aé\xF0\x9F\x98\x80", "é\n\"Aé\xF0\x9F\x98\x80"},
       {"\"y\"Aé"}},
      {"root ::= \"a\"{2} \"b\"{1,} \"c\"{0,2} \"d\"?", {"aab", "aabbccd"}, {"ab", "aaccd"}},
      {"root ::= a-1.x_\na-1.x_ ::= [a\\-z-] [\\]\\\\]", {"-]", "z\\"}, {"b]"}},
      {"root ::= () | \"x\"", {"", "x"}, {"y"}},
      {"root ::=\nother ::= \"x\"", {""}, {"x"}},
      // Recursion of all kinds.
      {"root ::= root \"a\" | \"b\"", {"b", "baaa"}, {"a", ""}},
      {"root ::= \"a\" root | \"b\"", {"b", "aaab"}, {"a"}},
      {"root ::= \"(\" root \")\" root | \"\"", {"", "()", "(())()"}, {"(", ")("}},
      {"root ::= root root | \"a\" | \"\"", {"", "a", "aaaaaa"}, {"b"}},
      {"root ::= a \"x\" | \"y\"\na ::= b | root\nb ::= root \"z\"", {"y", "yx", "yzxx"}, {"x", "yz"}},
      {"root ::= ws \"a\" ws\nws ::= [ \\n] ws | \"\"", {"a", "  a\n "}, {" "}},
      {"root ::= n root \"a\" | \"b\"\nn ::= \"\" | \"c\"", {"b", "ba", "cbaa", "ccbaa"}, {"cb", "cccbaa"}},
      {"root ::= \"a\" | never\nnever ::= \"x\" never", {"a"}, {"x", "xx"}},
  };
  for (const Language& language : languages) CheckLanguage(Kind::kGrammar, language);
}

TEST(Ebnf, PrefixesEndWhereNothingCanFollow) {
  const auto grammar =
      MustCompile(Kind::kGrammar, "root ::= \"a\" | \"b\" never | \"c\" (never | \"d\")\nnever ::= \"x\" never");
  EXPECT_FALSE(IsPrefix(grammar, "b"));
  EXPECT_TRUE(IsPrefix(grammar, "c"));
  EXPECT_FALSE(IsPrefix(grammar, "cx"));
}

// Rules of sequences of symbols: upper case is a rule, anything else itself.
using Rules = std::map<char, std::vector<std::string>>;

std::string Spec(const Rules& rules) {
  std::string spec = "root ::= S\n";
  for (const auto& [name, sides] : rules) {
    spec += fmt::format("{} ::= ", name);
    for (size_t i = 0; i < sides.size(); ++i) {
      if (i > 0) spec += " | ";
      for (const char c : sides[i]) spec += std::isupper(c) != 0 ? fmt::format("{} ", c) : fmt::format("\"{}\" ", c);
    }
    spec += "\n";
  }
  return spec;
}

// All texts of at most `most` characters, by putting in what is known until nothing is new.
std::set<std::string> TextsOf(const Rules& rules, size_t most) {
  std::map<char, std::set<std::string>> known;
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [name, sides] : rules) {
      for (const std::string& side : sides) {
        std::set<std::string> texts = {""};
        for (const char c : side) {
          std::set<std::string> longer;
          const std::set<std::string> parts =
              std::isupper(c) != 0 ? known[c] : std::set<std::string>{std::string(1, c)};
          for (const std::string& text : texts) {
            for (const std::string& part : parts) {
              if (text.size() + part.size() <= most) longer.insert(text + part);
            }
          }
          texts = std::move(longer);
        }
        for (const std::string& text : texts) changed |= known[name].insert(text).second;
      }
    }
  }
  return known['S'];
}

TEST(Ebnf, AllShortTextsAndPrefixes) {
  const Rules grammars[] = {
      {{'S', {"SaS", "b", ""}}},
      {{'S', {"AB", "c"}}, {'A', {"aA", "", "BSa"}}, {'B', {"Ab", "c"}}},
      {{'S', {"aSa", "bSb", "a", "b", ""}}},
      {{'S', {"Ta", "b"}}, {'T', {"Sb", "U"}}, {'U', {"", "Uc", "Sa"}}},
      {{'S', {"AAA"}}, {'A', {"", "a", "SbS"}}},
      {{'S', {"XY"}}, {'X', {"aXb", ""}}, {'Y', {"bYc", "S", ""}}},
  };
  // Every prefix that is checked has a text of at most kLonger characters.
  constexpr size_t kChecked = 6, kCheckedPrefix = 4, kLonger = 10;
  for (const Rules& rules : grammars) {
    const std::string spec = Spec(rules);
    SCOPED_TRACE(spec);
    const auto grammar = MustCompile(Kind::kGrammar, spec);
    ASSERT_NE(grammar, nullptr);
    const std::set<std::string> texts = TextsOf(rules, kLonger);
    std::set<std::string> prefixes;
    for (const std::string& text : texts) {
      for (size_t length = 0; length <= text.size(); ++length) prefixes.insert(text.substr(0, length));
    }
    std::vector<std::string> all = {""};
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(Accepts(grammar, all[i]), texts.contains(all[i])) << all[i];
      if (all[i].size() <= kCheckedPrefix) {
        ASSERT_EQ(IsPrefix(grammar, all[i]), prefixes.contains(all[i])) << all[i];
      }
      if (all[i].size() == kChecked) continue;
      for (const char c : {'a', 'b', 'c'}) all.push_back(all[i] + c);
    }
  }
}

TEST(Ebnf, Errors) {
  const std::pair<const char*, const char*> errors[] = {
      {"", "grammar: there is no rule 'root'"},
      {"a ::= \"x\"", "there is no rule 'root'"},
      {"root ::= a", "rule 'a' is used and not defined, line 1"},
      {"root ::= \"a\"\nroot ::= \"b\"", "rule 'root' is defined twice, line 2"},
      {"root ::= \"a", "a literal without its closing quote"},
      {"root ::= \"a\nb\"", "a literal without its closing quote, line 1"},
      {"root ::= [a", "'[' without ']'"},
      {"root ::= []", "an empty class"},
      {"root ::= [b-a]", "out of order"},
      {"root ::= (\"a\"", "'(' without ')'"},
      {"root ::= \"a\")", "')' without '('"},
      {"root = \"a\"", "expected 'name ::='"},
      {"root ::= %", "expected a literal, class, rule name or group, line 1"},
      {"root ::= *", "expected a literal"},
      {"root ::= \"a\"{3,2}", "{3,2} is out of order"},
      {"root ::= \"a\"{x}", "expected {m}"},
      {"root ::= \"a\" (=\"b\")", "lookahead is not supported"},
      {"root ::= \"\\q\"", "\\q is not supported"},
      {"root ::= \"\\ud800\"", "no Unicode character"},
      {"root ::= \"\\u12\"", "too few digits"},
      {"root ::= root", "grammar: no text can satisfy it"},
      {"root ::= \"a\" root", "no text can satisfy it"},
      {"root ::= [a-z]{1000000}{1000000}", "expands to more than"},
  };
  for (const auto& [spec, message] : errors)
    EXPECT_THAT(CompileError(Kind::kGrammar, spec), HasSubstr(message)) << spec;
}

TEST(Choice, Languages) {
  CheckLanguage(Kind::kChoice,
                {R"(["yes","no","not sure","né\n"])", {"yes", "no", "not sure", "né\n"}, {"", "not", "yesno", "nes"}});
  CheckLanguage(Kind::kChoice, {R"(["", "a"])", {"", "a"}, {"b"}});
  EXPECT_THAT(CompileError(Kind::kChoice, "[]"), HasSubstr("choice: expected a non-empty array"));
  EXPECT_THAT(CompileError(Kind::kChoice, "[1]"), HasSubstr("choice: [0]: expected a string"));
  EXPECT_THAT(CompileError(Kind::kChoice, "x"), HasSubstr("choice: not JSON, at byte 0"));
}

}  // namespace
}  // namespace hadal::guided::test
