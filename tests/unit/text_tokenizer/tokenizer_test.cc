// Encoding and decoding with a small vocabulary and with the bundled model's.
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <random>
#include <thread>

#include "support/paths.h"
#include "unit/text_tokenizer/small_tokenizer.h"

namespace hadal::text {
namespace {

using Ids = std::vector<int32_t>;
using Special = Tokenizer::Special;
using test::SmallTokenizer;

std::shared_ptr<const Tokenizer> Bundled() {
  auto tokenizer = Tokenizer::Load(test::BundledModel());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

TEST(Tokenizer, EncodesByMerges) {
  const auto tokenizer = SmallTokenizer();
  EXPECT_EQ(tokenizer->Encode(""), Ids{});
  EXPECT_EQ(tokenizer->Encode("hello"), Ids{259});
  EXPECT_EQ(tokenizer->Encode("hell hello"), (Ids{256, 257, 260}));
  EXPECT_EQ(tokenizer->Encode("é"), (Ids{0xC3, 0xA9}));
}

TEST(Tokenizer, AddedTokensAreTextUnlessAsked) {
  const auto tokenizer = SmallTokenizer();
  EXPECT_EQ(tokenizer->Encode("<s>"), (Ids{'<', 's', '>'}));
  EXPECT_EQ(tokenizer->Encode("a<s><s>xb<u", Special::kMatch), (Ids{'a', 261, 262, 'b', '<', 'u'}));
  Ids ids = {7};
  tokenizer->Encode("<u>", Special::kMatch, &ids);
  EXPECT_EQ(ids, (Ids{7, 263}));
}

// "normalized" tokens are matched in what the others left.
TEST(Tokenizer, AddedTokensAreMatchedInTwoRounds) {
  nlohmann::json json = test::SmallTokenizerJson();
  json["added_tokens"][1]["content"] = "a<s";
  json["added_tokens"][1]["normalized"] = true;
  const auto tokenizer = Tokenizer::FromJson(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("a<s>a<s", Special::kMatch), (Ids{'a', 261, 262}));
}

TEST(Tokenizer, DecodeInverts) {
  const auto tokenizer = SmallTokenizer();
  EXPECT_EQ(tokenizer->Decode(Ids{260, 261, 263, '!'}), " hello<s><u>!");
  EXPECT_EQ(tokenizer->Decode(Ids{260, 261, 263, '!'}, /*skip_special=*/true), " hello<u>!");
  EXPECT_EQ(tokenizer->Decode(Ids{-5, 'a', 264, 1 << 30}), "a");
  EXPECT_EQ(tokenizer->Decode(Ids{0xE4, 0xBD, 'x'}), "\uFFFDx");
  EXPECT_EQ(tokenizer->Decode(Ids{}), "");
}

TEST(Tokenizer, Lookups) {
  const auto tokenizer = SmallTokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 264);
  EXPECT_EQ(tokenizer->TokenBytes(260), " hello");
  EXPECT_EQ(tokenizer->TokenBytes(264), "");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenId(" hello"), 260);
  EXPECT_EQ(tokenizer->TokenId("<s>x"), 262);
  EXPECT_EQ(tokenizer->TokenId("Ġhello"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsAdded(262) && !tokenizer->IsSpecialFlag(262));
  EXPECT_TRUE(tokenizer->IsAdded(261) && tokenizer->IsSpecialFlag(261));
  EXPECT_FALSE(tokenizer->IsAdded(260) || tokenizer->IsAdded(264) || tokenizer->IsSpecialFlag(-1));
}

TEST(Tokenizer, SpansMatchOnlyWhereTrusted) {
  const auto tokenizer = SmallTokenizer();
  using Spans = std::vector<Tokenizer::Span>;
  EXPECT_EQ(tokenizer->EncodeSpans(Spans{{"<s>", true}, {"<s>", false}, {"<u>", true}}),
            (Ids{261, '<', 's', '>', 263}));
  // Text between control tokens is joined before it is cut into pieces.
  EXPECT_EQ(tokenizer->EncodeSpans(Spans{{"<s>hel", true}, {"lo", false}, {" ", false}, {"hello<u>", true}}),
            (Ids{261, 259, 260, 263}));
  // A token cannot be completed by a request's text, not even by none; parts from the encoder do form one.
  EXPECT_EQ(tokenizer->EncodeSpans(Spans{{"<", true}, {"s>", false}}), (Ids{'<', 's', '>'}));
  EXPECT_EQ(tokenizer->EncodeSpans(Spans{{"<", true}, {"", false}, {"s>", true}}), (Ids{'<', 's', '>'}));
  EXPECT_EQ(tokenizer->EncodeSpans(Spans{{"<", true}, {"s>", true}}), Ids{261});
  EXPECT_EQ(tokenizer->EncodeSpans(Spans{}), Ids{});
}

// However a text is cut into spans of one kind, the ids are those of the whole.
TEST(Tokenizer, BordersOfSpansLeaveNoTrace) {
  const auto tokenizer = Bundled();
  const std::string text = "<｜User｜>Read the text 12345  in\n\n<｜Assistant｜></think> 你好, hello";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); second += 3) {
      for (const bool trusted : {false, true}) {
        const std::string_view view = text;
        const Tokenizer::Span spans[] = {{view.substr(0, first), trusted},
                                         {view.substr(first, second - first), trusted},
                                         {view.substr(second), trusted}};
        ASSERT_EQ(tokenizer->EncodeSpans(spans), tokenizer->Encode(text, trusted ? Special::kMatch : Special::kPlain));
      }
    }
  }
}

TEST(Tokenizer, BundledModel) {
  const auto tokenizer = Bundled();
  const auto user = tokenizer->TokenId("<｜User｜>");
  ASSERT_TRUE(user.has_value());
  EXPECT_TRUE(tokenizer->IsAdded(*user));
  EXPECT_EQ(tokenizer->Encode("<｜User｜>", Special::kMatch), Ids{*user});
  for (const int32_t id : tokenizer->Encode("<｜User｜></think>")) EXPECT_FALSE(tokenizer->IsAdded(id));
  EXPECT_EQ(tokenizer->TokenId("<｜begin▁of▁sentence｜>"), 0);
  EXPECT_EQ(tokenizer->TokenId("<｜end▁of▁sentence｜>"), 1);
}

TEST(Tokenizer, LoadNamesTheFile) {
  const auto missing = Tokenizer::Load("/nonexistent/model");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(missing.status()), "/nonexistent/model: cannot be opened");
  EXPECT_TRUE(Tokenizer::Load(test::BundledModel() + "/tokenizer.json").ok());
  const auto other = Tokenizer::Load(test::BundledModel() + "/generation_config.json");
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(std::string(Message(other.status())), testing::HasSubstr("generation_config.json: pre_tokenizer"));
}

// Every byte string comes back, whatever it is, with and without matching.
TEST(Tokenizer, AnyBytesRoundTrip) {
  const auto tokenizer = Bundled();
  std::mt19937 random(11);
  const std::string parts[] = {"<｜User｜>", "hello ", "\xFF", "\xE4\xBD",           "你",
                               "👋🏽",   "\n\n",   "123",  std::string(1, '\0'), "  "};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t count = random() % 12, i = 0; i < count; ++i) {
      text += random() % 3 == 0 ? std::string(1, static_cast<char>(random())) : parts[random() % std::size(parts)];
    }
    for (const Special special : {Special::kPlain, Special::kMatch}) {
      std::string bytes;
      for (const int32_t id : tokenizer->Encode(text, special)) bytes += tokenizer->TokenBytes(id);
      ASSERT_EQ(bytes, text);
    }
  }
}

// One piece of a megabyte: quadratic time would take minutes. The bound leaves room for sanitizers.
TEST(Tokenizer, EndlessWordsAreFast) {
  const auto tokenizer = Bundled();
  std::string mixed;
  while (mixed.size() < (1u << 20)) mixed += "thein";
  for (const std::string& text : {std::string(1 << 20, 'a'), std::string(1 << 20, ' '), std::string(1 << 20, '\n'),
                                  std::string(1 << 20, '!'), std::string(1 << 20, '7'), std::string(1 << 20, '\xFF'),
                                  std::string(1 << 20, '\xE4'), std::string(1 << 20, '<'), mixed}) {
    const std::clock_t start = std::clock();  // CPU time: the machine may be busy
    const Ids ids = tokenizer->Encode(text, Special::kMatch);
    EXPECT_LT(std::clock() - start, 15 * CLOCKS_PER_SEC) << static_cast<int>(text[0]);
    EXPECT_EQ(ids.empty(), false);
    size_t bytes = 0;
    for (const int32_t id : ids) bytes += tokenizer->TokenBytes(id).size();
    EXPECT_EQ(bytes, text.size());
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  const auto tokenizer = Bundled();
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (size_t count = 1 + random() % 30, k = 0; k < count; ++k) {
      text += random() % 5 == 0 ? "<｜User｜>" : " w" + std::to_string(random() % 500) + " 你好the";
    }
    texts.push_back(text);
  }
  const auto reference = Bundled();  // another one, so that they share no cache
  for (const std::string& text : texts) expected.push_back(reference->Encode(text, Special::kMatch));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) {
        for (size_t i = 0; i < texts.size(); ++i) {
          const size_t k = (i * (t + 1)) % texts.size();
          if (tokenizer->Encode(texts[k], Special::kMatch) != expected[k]) ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace hadal::text
