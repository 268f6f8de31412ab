// Masks against slow matchers that share nothing with the library: for every token, the bit is set if and only if the
// text so far with the token behind it is the beginning of some text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "guided/matcher.h"
#include "unit/guided/bundled_vocabulary.h"
#include "unit/guided/derivative.h"
#include "unit/guided/guided_test_util.h"
#include "unit/guided/json_prefix.h"

namespace hadal::guided::test {
namespace {

// Short texts over the characters of MakeRandomRegex, whole and cut; the last token is the end.
std::shared_ptr<const TokenVocabulary> SmallVocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> tokens = {"a", "b", "c", "\xC3", "\xA9", "\xA8", "\xE2", "\x82", "\xAC", "", "x"};
    std::mt19937 random(1);
    for (int i = 0; i < 120; ++i) {
      std::string token;
      static constexpr const char* kParts[] = {"a", "b", "c", "é", "è", "€", "\xC3", "\xA9", "\x82\xAC"};
      for (unsigned length = 1 + random() % 4; length > 0; --length) token += kParts[random() % 9];
      tokens.push_back(token);
    }
    tokens.emplace_back("a");  // twice in the vocabulary
    tokens.emplace_back("<end>");
    const std::vector<int32_t> ends = {static_cast<int32_t>(tokens.size() - 1)}, special = {10};
    return *TokenVocabulary::Create(std::move(tokens), special, ends);
  }();
  return vocabulary;
}

using Oracle = std::function<bool(const std::string& text)>;

// Whether every bit of the mask is what the oracles say.
void CheckMask(Matcher* matcher, const TokenVocabulary& vocabulary, const std::string& text, const Oracle& viable,
               const Oracle& complete) {
  std::vector<uint32_t> mask(vocabulary.mask_words() + 1, 0xFFFFFFFF);
  ASSERT_TRUE(matcher->FillMask(mask).ok());
  EXPECT_EQ(mask.back(), 0u);
  bool any = false;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const bool is_text = !vocabulary.Text(id).empty();
    const bool expected =
        vocabulary.IsEnd(id) ? complete(text) : is_text && viable(text + std::string(vocabulary.Text(id)));
    ASSERT_EQ(HasBit(mask, id), expected)
        << "text '" << text << "', token " << id << " '" << vocabulary.Text(id) << "'";
    any |= expected;
  }
  EXPECT_EQ(matcher->CanContinue(), any);
  EXPECT_EQ(matcher->IsAccepting(), complete(text));
}

int32_t RandomAllowed(Matcher* matcher, const TokenVocabulary& vocabulary, std::mt19937* random) {
  std::vector<uint32_t> mask(vocabulary.mask_words());
  EXPECT_TRUE(matcher->FillMask(mask).ok());
  std::vector<int32_t> allowed;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (HasBit(mask, id) && !vocabulary.IsEnd(id)) allowed.push_back(id);
  }
  return allowed.empty() ? -1 : allowed[(*random)() % allowed.size()];
}

TEST(Mask, RandomRegexes) {
  const auto vocabulary = SmallVocabulary();
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const RandomRegex regex = MakeRandomRegex(&random, 4);
    const auto grammar = Compile({.kind = Kind::kRegex, .text = regex.pattern}, vocabulary);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    SCOPED_TRACE(regex.pattern);
    Matcher matcher(*grammar);
    std::string text;
    RegularPtr here = regex.regular;
    for (int step = 0; step < 6; ++step) {
      CheckMask(
          &matcher, *vocabulary, text,
          [&](const std::string& t) {
            return DeriveAll(here, std::string_view(t).substr(text.size()))->kind != Regular::Kind::kNever;
          },
          [&](const std::string&) { return Nullable(here); });
      if (HasFatalFailure()) return;
      const int32_t token = RandomAllowed(&matcher, *vocabulary, &random);
      if (token < 0) break;
      ASSERT_TRUE(matcher.Accept(token));
      text += vocabulary->Text(token);
      here = DeriveAll(here, vocabulary->Text(token));
    }
  }
}

// A pattern of MakeRandomRegex as EBNF.
std::string ToEbnf(const std::string& pattern) {
  std::string out;
  bool in_class = false, in_count = false;
  for (size_t i = 0; i < pattern.size();) {
    const char c = pattern[i];
    in_class |= c == '[';
    in_count |= c == '{';
    size_t length = 1;
    while (i + length < pattern.size() && (pattern[i + length] & 0xC0) == 0x80) ++length;
    const std::string piece = pattern.substr(i, length);
    const bool literal = !in_class && !in_count && std::string_view("()|*").find(c) == std::string_view::npos;
    out += literal ? "\"" + piece + "\" " : piece;
    in_class &= c != ']';
    in_count &= c != '}';
    i += length;
  }
  return out;
}

// Regexes in rules that are recursive, and so are called and completed inside tokens. No token holds a q, which the
// recursion needs, so that the language stays regular.
TEST(Mask, RandomRegexesInCalledRules) {
  const auto vocabulary = SmallVocabulary();
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const RandomRegex a = MakeRandomRegex(&random, 3), b = MakeRandomRegex(&random, 3);
    const std::string spec = "root ::= rule b rule\nrule ::= a | a \"q\" rule \"q\" a\na ::= " + ToEbnf(a.pattern) +
                             "\nb ::= " + ToEbnf(b.pattern) + "\n";
    SCOPED_TRACE(spec);
    const auto grammar = Compile({.kind = Kind::kGrammar, .text = spec}, vocabulary);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const RegularPtr whole = Then(a.regular, Then(b.regular, a.regular));
    Matcher matcher(*grammar);
    std::string text;
    for (int step = 0; step < 5; ++step) {
      const RegularPtr here = DeriveAll(whole, text);
      CheckMask(
          &matcher, *vocabulary, text,
          [&](const std::string& t) {
            return DeriveAll(here, std::string_view(t).substr(text.size()))->kind != Regular::Kind::kNever;
          },
          [&](const std::string&) { return Nullable(here); });
      if (HasFatalFailure()) return;
      const int32_t token = RandomAllowed(&matcher, *vocabulary, &random);
      if (token < 0) break;
      ASSERT_TRUE(matcher.Accept(token));
      text += vocabulary->Text(token);
    }
  }
}

TEST(Mask, JsonObjectsOverTheBundledVocabulary) {
  const auto vocabulary = BundledVocabulary();
  const auto grammar = MustCompile(Kind::kJsonObject, "", vocabulary);
  const std::string texts[] = {
      R"({"a": [1, -2.5e+30, true, {"b": null, "": "x\n\u00e9\ud83d\ude00"}], "long": "words and more é € 😀"})",
      "{\n  \"a\": [\n    [],\n    {}\n  ],\n\t\"b\": 0\n}",
  };
  std::mt19937 random(4);
  for (const std::string& text : texts) {
    Matcher matcher(grammar);
    const std::vector<int32_t> tokens = BundledTokenizer()->Encode(text);
    std::string so_far;
    for (size_t i = 0; i <= tokens.size(); ++i) {
      CheckMask(
          &matcher, *vocabulary, so_far, [](const std::string& t) { return JsonPrefix(t).viable(); },
          [](const std::string& t) { return JsonPrefix(t).complete(); });
      if (HasFatalFailure()) return;
      if (i == tokens.size()) break;
      ASSERT_TRUE(matcher.Accept(tokens[i])) << so_far;
      so_far += vocabulary->Text(tokens[i]);
    }
    EXPECT_EQ(so_far, text);
  }
  for (int walk = 0; walk < 20; ++walk) {
    Matcher matcher(grammar);
    std::string text;
    for (int step = 0; step < 12; ++step) {
      CheckMask(
          &matcher, *vocabulary, text, [](const std::string& t) { return JsonPrefix(t).viable(); },
          [](const std::string& t) { return JsonPrefix(t).complete(); });
      if (HasFatalFailure()) return;
      const int32_t token = RandomAllowed(&matcher, *vocabulary, &random);
      if (token < 0) break;
      ASSERT_TRUE(matcher.Accept(token));
      text += vocabulary->Text(token);
    }
  }
}

// Cached masks, masks without the cache, and masks of a grammar that others use at the same time are the same.
TEST(Mask, DoNotDependOnTheHistoryOfTheGrammar) {
  const auto vocabulary = BundledVocabulary();
  const auto shared = MustCompile(Kind::kJsonObject, "", vocabulary);
  const std::vector<int32_t> tokens = BundledTokenizer()->Encode(R"({"a": [[1, 22], {"b": "text"}], "c": 3.5})");
  for (int round = 0; round < 2; ++round) {
    Matcher warm(shared), cold(MustCompile(Kind::kJsonObject, "", vocabulary));
    std::vector<uint32_t> a(vocabulary->mask_words()), b(vocabulary->mask_words());
    for (const int32_t token : tokens) {
      ASSERT_TRUE(warm.FillMask(a).ok());
      ASSERT_TRUE(cold.FillMask(b).ok());
      ASSERT_EQ(a, b);
      ASSERT_TRUE(warm.Accept(token));
      ASSERT_TRUE(cold.Accept(token));
    }
  }
}

TEST(Mask, NearTheCapOnNestingItIsStillExact) {
  const auto vocabulary = BundledVocabulary();
  const auto grammar = MustCompile(Kind::kJsonObject, "", vocabulary);
  Matcher matcher(grammar);
  const auto accept = [&](std::string_view text) {
    for (const int32_t token : BundledTokenizer()->Encode(text)) {
      if (!matcher.Accept(token)) return false;
    }
    return true;
  };
  ASSERT_TRUE(accept("{\"a\":"));
  std::vector<uint32_t> mask(vocabulary->mask_words());
  const int32_t open = *BundledTokenizer()->TokenId("[");
  int depth = 0;
  while (depth < 2000) {
    ASSERT_TRUE(matcher.FillMask(mask).ok());
    for (int32_t id = 0; depth > 980 && id < vocabulary->size(); ++id) {
      ASSERT_EQ(HasBit(mask, id), matcher.AcceptedPrefix({{id}}) == 1) << id << " at depth " << depth;
    }
    if (!matcher.Accept(open)) break;
    ++depth;
  }
  EXPECT_GT(depth, 990);
  EXPECT_LT(depth, 1010);
  EXPECT_TRUE(accept(std::string(static_cast<size_t>(depth), ']') + "}"));
  EXPECT_TRUE(matcher.IsAccepting());
}

}  // namespace
}  // namespace hadal::guided::test
