#include "guided/matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/status.h"
#include "unit/guided/bundled_vocabulary.h"
#include "unit/guided/guided_test_util.h"

namespace hadal::guided::test {
namespace {

using testing::HasSubstr;

std::vector<uint32_t> Mask(Matcher* matcher, const TokenVocabulary& vocabulary) {
  std::vector<uint32_t> mask(vocabulary.mask_words());
  EXPECT_TRUE(matcher->FillMask(mask).ok());
  return mask;
}

TEST(Vocabulary, Errors) {
  const std::vector<int32_t> none, two = {2}, negative = {-1};
  EXPECT_THAT(std::string(TokenVocabulary::Create({"a", "b"}, two, none).status().message()),
              HasSubstr("special token 2: the vocabulary has ids 0 to 1"));
  EXPECT_THAT(std::string(TokenVocabulary::Create({"a", "b"}, none, negative).status().message()),
              HasSubstr("end token -1"));
  EXPECT_THAT(std::string(TokenVocabulary::Create({"a", "b"}, none, none, two).status().message()),
              HasSubstr("forbidden token 2"));
  EXPECT_THAT(std::string(TokenVocabulary::Create({std::string(1025, 'a')}, none, none).status().message()),
              HasSubstr("token 0: at most 1024 bytes, found 1025"));
}

TEST(Vocabulary, SpecialTokensAreNoText) {
  const std::vector<int32_t> special = {1}, ends = {2, 4}, forbidden = {3, 4};
  const auto vocabulary = *TokenVocabulary::Create({"a", "a", "a", "a", "a", "", "ab", "a"}, special, ends, forbidden);
  Matcher matcher(MustCompile(Kind::kRegex, "a?b?", vocabulary));
  const std::vector<uint32_t> mask = Mask(&matcher, *vocabulary);
  EXPECT_EQ(mask[0], 1u << 0 | 1u << 2 | 1u << 6 | 1u << 7);
  for (const int32_t id : {1, 3, 4, 5, -1, 8}) EXPECT_FALSE(matcher.Accept(id)) << id;
}

TEST(Vocabulary, MayBeEmpty) {
  const std::vector<int32_t> none;
  const auto vocabulary = *TokenVocabulary::Create({}, none, none);
  Matcher matcher(MustCompile(Kind::kRegex, "a", vocabulary));
  EXPECT_FALSE(matcher.CanContinue());
  EXPECT_EQ(matcher.AcceptedPrefix({{0}}), 0u);
}

TEST(Matcher, EndsWhereTheTextMayEnd) {
  const auto grammar = MustCompile(Kind::kRegex, "ab?");
  Matcher matcher(grammar);
  EXPECT_FALSE(matcher.IsAccepting());
  EXPECT_FALSE(matcher.Accept(kByteEnd));
  EXPECT_TRUE(matcher.Accept('a'));
  EXPECT_TRUE(matcher.IsAccepting());
  EXPECT_FALSE(matcher.Accept('a'));
  EXPECT_TRUE(matcher.Accept('b'));
  std::vector<uint32_t> mask = Mask(&matcher, *ByteVocabulary());
  for (int32_t id = 0; id <= kByteEnd; ++id) EXPECT_EQ(HasBit(mask, id), id == kByteEnd);
  EXPECT_TRUE(matcher.Accept(kByteEnd));
  EXPECT_TRUE(matcher.IsTerminated());
  EXPECT_FALSE(matcher.IsAccepting());
  EXPECT_FALSE(matcher.CanContinue());
  EXPECT_FALSE(matcher.Accept(kByteEnd));
  EXPECT_EQ(matcher.AcceptedPrefix({{'b'}}), 0u);
  EXPECT_TRUE(matcher.Rollback(2));
  EXPECT_FALSE(matcher.IsTerminated());
  EXPECT_TRUE(matcher.Accept('b'));
}

TEST(Matcher, NothingToContinueWith) {
  const std::vector<int32_t> none, ends = {1};
  const auto vocabulary = *TokenVocabulary::Create({"a", ""}, none, ends);
  Matcher matcher(MustCompile(Kind::kRegex, "ab", vocabulary));
  EXPECT_TRUE(matcher.CanContinue());
  EXPECT_TRUE(matcher.Accept(0));
  EXPECT_FALSE(matcher.CanContinue());
}

TEST(Matcher, AcceptedPrefixChangesNothing) {
  const auto grammar = MustCompile(Kind::kJsonObject, "", BundledVocabulary());
  Matcher matcher(grammar);
  std::vector<int32_t> tokens = BundledTokenizer()->Encode(R"({"a": [1, {"b": "c"}]})");
  const size_t whole = tokens.size();
  tokens.push_back(BundledEnd());
  tokens.push_back(BundledEnd());
  for (size_t i = 0; i < whole; ++i) {
    const std::vector<uint32_t> before = Mask(&matcher, *BundledVocabulary());
    EXPECT_EQ(matcher.AcceptedPrefix(std::span(tokens).subspan(i)), whole - i + 1);
    EXPECT_EQ(Mask(&matcher, *BundledVocabulary()), before);
    ASSERT_TRUE(matcher.Accept(tokens[i]));
  }
  EXPECT_EQ(matcher.AcceptedPrefix(std::span(tokens).subspan(whole - 1)), 0u);
  EXPECT_EQ(matcher.AcceptedPrefix({}), 0u);
}

TEST(Matcher, RollbackIsReplay) {
  const auto grammar = MustCompile(Kind::kJsonObject, "", BundledVocabulary());
  std::mt19937 random(7);
  Matcher matcher(grammar);
  std::vector<int32_t> accepted;
  for (int step = 0; step < 600; ++step) {
    if (random() % 3 == 0) {
      const size_t count = random() % (std::min(accepted.size(), Matcher::kMaxRollback) + 1);
      // Matchers remember a bounded number of tokens; after a rollback there may be fewer.
      if (matcher.Rollback(count)) accepted.resize(accepted.size() - count);
    }
    const std::vector<uint32_t> mask = Mask(&matcher, *BundledVocabulary());
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < BundledVocabulary()->size(); ++id) {
      if (HasBit(mask, id)) allowed.push_back(id);
    }
    if (step % 10 == 0 || allowed.empty()) {
      Matcher replayed(grammar);
      for (const int32_t token : accepted) ASSERT_TRUE(replayed.Accept(token));
      ASSERT_EQ(Mask(&replayed, *BundledVocabulary()), mask);
      ASSERT_EQ(replayed.IsTerminated(), matcher.IsTerminated());
      ASSERT_EQ(replayed.IsAccepting(), matcher.IsAccepting());
    }
    if (allowed.empty()) {
      ASSERT_TRUE(matcher.IsTerminated());
      continue;
    }
    const int32_t token = allowed[random() % allowed.size()];
    ASSERT_TRUE(matcher.Accept(token));
    accepted.push_back(token);
  }
}

TEST(Matcher, RollbackBounds) {
  Matcher matcher(MustCompile(Kind::kRegex, "a*"));
  EXPECT_TRUE(matcher.Rollback(0));
  EXPECT_FALSE(matcher.Rollback(1));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(matcher.Accept('a'));
  EXPECT_FALSE(matcher.Rollback(Matcher::kMaxRollback + 1));
  EXPECT_TRUE(matcher.Rollback(Matcher::kMaxRollback));
  EXPECT_FALSE(matcher.Rollback(1));
  ASSERT_TRUE(matcher.Accept(kByteEnd));
  EXPECT_TRUE(matcher.Rollback(1));
  EXPECT_FALSE(matcher.IsTerminated());
}

TEST(Matcher, ThreadsShareAGrammar) {
  const auto grammar = MustCompile(Kind::kJsonObject, "", BundledVocabulary());
  const std::vector<int32_t> tokens =
      BundledTokenizer()->Encode(R"({"a": [1, -2.5, {"b": null}], "text": "some words", "c": {"d": [[]]}})");
  std::vector<std::vector<uint32_t>> expected;
  Matcher alone(MustCompile(Kind::kJsonObject, "", BundledVocabulary()));
  for (const int32_t token : tokens) {
    expected.push_back(Mask(&alone, *BundledVocabulary()));
    ASSERT_TRUE(alone.Accept(token));
  }
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) {
        Matcher matcher(grammar);
        std::vector<uint32_t> mask(BundledVocabulary()->mask_words());
        for (size_t i = 0; i < tokens.size(); ++i) {
          if (!matcher.FillMask(mask).ok() || mask != expected[i] || !matcher.Accept(tokens[i])) ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

// A long text in a deep and an ambiguous grammar: memory stays bounded, and what cannot be done is an error.
TEST(Matcher, AmbiguityIsBounded) {
  Matcher matcher(
      MustCompile(Kind::kGrammar, "root ::= root root | root root root | [a-z] | \"\"", BundledVocabulary()));
  std::vector<uint32_t> mask(BundledVocabulary()->mask_words());
  const int32_t token = *BundledTokenizer()->TokenId("a");
  absl::Status status;
  for (int i = 0; i < 5000 && status.ok(); ++i) {
    status = matcher.FillMask(mask);
    if (status.ok() && !matcher.Accept(token)) break;
  }
  if (!status.ok()) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(mask, testing::Each(0u));
  }
}

TEST(Matcher, LongTextsDoNotGrow) {
  // Each element of the array is a call, so that sets are made and dropped.
  Matcher matcher(MustCompile(Kind::kJsonObject, "", BundledVocabulary()));
  const auto accept = [&](std::string_view text) {
    for (const int32_t token : BundledTokenizer()->Encode(text)) ASSERT_TRUE(matcher.Accept(token)) << text;
  };
  accept("{\"a\":[");
  std::vector<uint32_t> mask(BundledVocabulary()->mask_words());
  for (int i = 0; i < 3000; ++i) {
    accept("{\"b\":[[1],\"x\"]},");
    ASSERT_TRUE(matcher.FillMask(mask).ok());
  }
  accept("0]}");
  EXPECT_TRUE(matcher.IsAccepting());
}

TEST(Compile, HostileInputsAreRefusedOrBounded) {
  const std::pair<Kind, std::string> specs[] = {
      {Kind::kRegex, "(a*)*b"},
      {Kind::kRegex, "(a|aa)*(b|bb)*c"},
      {Kind::kRegex, "(.*)(.*)(.*)(.*)(.*)(.*)x"},
      {Kind::kRegex, "(x+x+)+y"},
      {Kind::kRegex, "(.*a.{300})"},
      {Kind::kRegex, "([a-z]*a[a-z]{200}b)"},
      {Kind::kRegex, "(a?){3000}a{3000}"},
      {Kind::kRegex, "((((((((((a{9}){9}){9}){9}){9}){9}){9}){9}){9}){9})"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"(.*a){50}","maxLength":1000})"},
      {Kind::kJsonSchema,
       R"({"allOf":[{"pattern":"(a|b)*a(a|b){12}"},{"pattern":"(a|b)*b(a|b){13}"},{"pattern":"(a|b)*a(a|b){14}"}]})"},
      {Kind::kJsonSchema, R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"$ref":"#/$defs/b"}]},
          "b":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/c"}]},"c":{"properties":{"x":{"$ref":"#/$defs/a"}}}},"$ref":"#/$defs/a"})"},
      {Kind::kJsonSchema,
       R"({"properties":{"x":{"$ref":"#","minProperties":0}},"allOf":[{"properties":{"x":{"$ref":"#"}}}]})"},
      {Kind::kGrammar, "root ::= root root root | \"a\" | \"\""},
      {Kind::kGrammar,
       "root ::= a a a a a a a a\na ::= b b b b b b b b\nb ::= c c c c c c c c\nc ::= d d d d d d d d\n"
       "d ::= e e e e e e e e\ne ::= f f f f f f f f\nf ::= [a-z]?"},
  };
  for (const auto& [kind, text] : specs) {
    SCOPED_TRACE(text);
    const auto begin = std::chrono::steady_clock::now();
    const auto grammar = Compile({.kind = kind, .text = text}, BundledVocabulary(), {.seconds = 5});
    if (grammar.ok()) {
      Matcher matcher(*grammar);
      std::vector<uint32_t> mask(BundledVocabulary()->mask_words());
      for (int i = 0; i < 20; ++i) {
        const absl::Status status = matcher.FillMask(mask);
        EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
        if (!matcher.Accept(*BundledTokenizer()->TokenId("a"))) matcher.Accept(*BundledTokenizer()->TokenId("\""));
      }
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(grammar.status())) << grammar.status();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), 20) << "with sanitizers; without them all take less than a second";
  }
}

TEST(Compile, LimitsAreNamed) {
  std::string deep, wide = R"({"properties":{)";
  for (int i = 0; i < 40; ++i) deep += R"({"items":)";
  deep += "true" + std::string(40, '}');
  EXPECT_TRUE(Compile({.kind = Kind::kJsonSchema, .text = deep}, ByteVocabulary()).ok());
  deep = std::string(70, '[') + std::string(70, ']');
  EXPECT_THAT(CompileError(Kind::kJsonSchema, R"({"default":)" + deep + "}"),
              HasSubstr("more than 64 values inside one another at byte"));
  EXPECT_THAT(CompileError(Kind::kJsonSchema, std::string(20'000'000, '[')), HasSubstr("at most 65536 bytes"));
  for (int i = 0; i < 3000; ++i) wide += fmt::format(R"({}"p{}":{{"const":1}})", i == 0 ? "" : ",", i);
  const auto begin = std::chrono::steady_clock::now();
  const auto grammar = Compile({.kind = Kind::kJsonSchema, .text = wide + "}}"}, ByteVocabulary());
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 5.0);
  // Products of choices.
  std::string product = R"({"allOf":[)";
  for (int i = 0; i < 12; ++i) {
    product += fmt::format(R"({}{{"anyOf":[{{"minimum":{}}},{{"maximum":{}}},{{"minLength":{}}}]}})", i == 0 ? "" : ",",
                           i, i, i);
  }
  EXPECT_THAT(CompileError(Kind::kJsonSchema, product + "]}"), HasSubstr("expands to more than"));
  EXPECT_THAT(CompileError(Kind::kRegex, "(a{100}){100}", {.states = 1000}),
              HasSubstr("expands to more than 1000 states"));
  EXPECT_THAT(CompileError(Kind::kRegex, "(a{100}){100}", {.seconds = 0}), HasSubstr("longer than the 0 s allowed"));
}

}  // namespace
}  // namespace hadal::guided::test
