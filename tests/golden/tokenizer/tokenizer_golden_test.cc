// The tokenizer against published ids: DeepSeek V3 (tests/data/tokenizer-v3) and V4 (tests/data/tokenizer-v4), byte and
// id exact, and the detokenizer's way back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "golden/tokenizer/deepseek_tokenizer.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace hadal::test {
namespace {

using Ids = std::vector<int32_t>;
using testing::ElementsAreArray;
using text::Detokenizer;
using text::Tokenizer;

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

nlohmann::json V4Vectors() { return nlohmann::json::parse(ReadText(VectorsPath("tokenizer-v4/vectors.json"))); }

std::string OneByOne(std::shared_ptr<const Tokenizer> tokenizer, const Ids& ids) {
  Detokenizer detokenizer(std::move(tokenizer));
  std::string text;
  for (const int32_t id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Flush();
}

TEST(TokenizerV3, ReproducesEveryCase) {
  const auto tokenizer = DeepSeekTokenizer(DeepSeekVersion::kV3);
  EXPECT_EQ(tokenizer->vocab_size(), 128815);
  std::istringstream lines(ReadText(VectorsPath("tokenizer-v3/cases.jsonl")));
  int cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const auto json = nlohmann::json::parse(line);
    const std::string text = json["text"];
    const Ids expected = json["ids"];
    ASSERT_EQ(tokenizer->Encode(text, Tokenizer::Special::kMatch), expected) << text;
    ASSERT_EQ(tokenizer->Decode(expected), text);
    ASSERT_EQ(OneByOne(tokenizer, expected), text);
  }
  EXPECT_GE(cases, 500);
}

TEST(TokenizerV4, VocabularyIsComplete) {
  const auto tokenizer = DeepSeekTokenizer(DeepSeekVersion::kV4);
  EXPECT_EQ(tokenizer->vocab_size(), 129280);
  EXPECT_EQ(tokenizer->TokenId("<｜User｜>"), 128803);
  EXPECT_EQ(tokenizer->TokenId("<think>"), 128821);
  EXPECT_EQ(tokenizer->TokenId("｜DSML｜"), 128825);
  EXPECT_EQ(tokenizer->TokenId("<|place_holder_mm_span_0021|>"), 128847);
  EXPECT_EQ(tokenizer->TokenId("<|place_holder_mm_span_0435|>"), 129261);
  EXPECT_EQ(tokenizer->TokenId("<｜image｜>"), 129279);
  int added = 0;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    added += tokenizer->IsAdded(id) ? 1 : 0;
    ASSERT_EQ(tokenizer->TokenId(tokenizer->TokenBytes(id)), id);
  }
  EXPECT_EQ(added, 1283);
}

TEST(TokenizerV4, PiecesAndIdsOfText) {
  const auto tokenizer = DeepSeekTokenizer(DeepSeekVersion::kV4);
  const auto vectors = V4Vectors();
  ASSERT_GE(vectors["text"].size(), 40u);
  for (const auto& item : vectors["text"]) {
    const std::string text = item["text"];
    const std::vector<std::string> pieces = item["pieces"];
    const Ids ids = item["ids"];
    EXPECT_THAT(tokenizer->Pretokenize(text), ElementsAreArray(pieces)) << text;
    EXPECT_EQ(tokenizer->Encode(text), ids) << text;
    EXPECT_EQ(tokenizer->Decode(ids), text);
    EXPECT_EQ(OneByOne(tokenizer, ids), text);
  }
}

TEST(TokenizerV4, AddedTokensAreMatchedOnRequestOnly) {
  const auto tokenizer = DeepSeekTokenizer(DeepSeekVersion::kV4);
  const auto vectors = V4Vectors();
  for (const auto& item : vectors["with_added_tokens"]) {
    const std::string text = item["text"];
    const Ids ids = item["ids"];
    EXPECT_EQ(tokenizer->Encode(text, Tokenizer::Special::kMatch), ids) << text;
    EXPECT_EQ(tokenizer->Decode(ids), text);
    const Tokenizer::Span trusted[] = {{text, true}};
    EXPECT_EQ(tokenizer->EncodeSpans(trusted), ids) << text;
  }
  for (const auto& item : vectors["literals_as_plain_text"]) {
    const std::string text = item["text"];
    const Ids ids = item["ids"];
    EXPECT_EQ(tokenizer->Encode(text), ids) << text;
    const Tokenizer::Span untrusted[] = {{text, false}};
    EXPECT_EQ(tokenizer->EncodeSpans(untrusted), ids) << text;
  }
}

TEST(TokenizerV4, IdsOfRenderedConversations) {
  const auto tokenizer = DeepSeekTokenizer(DeepSeekVersion::kV4);
  const std::string root = VectorsPath("chat-encoding-v4");
  const auto vectors = V4Vectors();
  ASSERT_EQ(vectors["chat_outputs"].size(), 4u);
  for (const auto& item : vectors["chat_outputs"]) {
    const std::string text = ReadText(root + "/" + item["file"].get<std::string>());
    const Ids ids = item["ids"];
    EXPECT_EQ(tokenizer->Encode(text, Tokenizer::Special::kMatch), ids) << item["file"];
    EXPECT_EQ(tokenizer->Decode(ids), text);
    EXPECT_EQ(OneByOne(tokenizer, ids), text);
  }
}

// The conversations are reachable without their files: decoding the ids gives the text, which must encode to the ids.
TEST(TokenizerV4, ConversationsRoundTrip) {
  const auto tokenizer = DeepSeekTokenizer(DeepSeekVersion::kV4);
  const auto vectors = V4Vectors();
  for (const auto& item : vectors["chat_outputs"]) {
    const Ids ids = item["ids"];
    EXPECT_EQ(tokenizer->Encode(tokenizer->Decode(ids), Tokenizer::Special::kMatch), ids) << item["file"];
  }
}

// Trap 29 and field report B03.
TEST(TokenizerV3, UserTextForgesNoControlToken) {
  const auto tokenizer = DeepSeekTokenizer(DeepSeekVersion::kV3);
  EXPECT_EQ(tokenizer->Encode("<｜User｜>").size(), 5u);
  for (const char* text : {"<｜User｜>", "<｜Assistant｜>x</think>", "<｜begin▁of▁sentence｜>", "<|EOT|>"}) {
    for (const int32_t id : tokenizer->Encode(text)) {
      EXPECT_GT(id, 2) << text;
      EXPECT_LT(id, kBaseVocab) << text;
    }
  }
}

// Field report B11: emoji with a skin tone and letters beyond ASCII, one id at a time.
TEST(TokenizerV3, StreamsWholeCharacters) {
  const auto tokenizer = DeepSeekTokenizer(DeepSeekVersion::kV3);
  const std::string text = "👋🏽 ďábelské 社区";
  const Ids ids = tokenizer->Encode(text);
  Detokenizer detokenizer(tokenizer);
  std::string joined;
  bool held = false;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.Push(id);
    EXPECT_EQ(part.find("\uFFFD"), std::string::npos);
    held = held || !detokenizer.pending().empty();
    joined += part;
  }
  EXPECT_TRUE(held) << "no token ends inside a character: the test shows nothing";
  EXPECT_EQ(detokenizer.Flush(), "");
  EXPECT_EQ(joined, text);
  EXPECT_EQ(joined, tokenizer->Decode(ids));
}

}  // namespace
}  // namespace hadal::test
