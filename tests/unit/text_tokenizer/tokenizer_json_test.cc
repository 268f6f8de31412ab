// tokenizer.json: a table of malformed and unsupported files with their messages, and the forms that are accepted.
#include "text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "unit/text_tokenizer/small_tokenizer.h"

namespace hadal::text {
namespace {

using Json = nlohmann::json;
using test::SmallTokenizerJson;
using testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

struct BadFile {
  const char* name;
  std::function<void(Json&)> change;
  absl::StatusCode code;
  const char* message;
};

const std::vector<BadFile>& BadFiles() {
  static const std::vector<BadFile> kFiles = {
      {"NoModel", [](Json& j) { j.erase("model"); }, kInvalid, "model: expected an object, found nothing"},
      {"ModelType", [](Json& j) { j["model"]["type"] = "Unigram"; }, kUnsupported, "model.type: \"Unigram\""},
      {"NoModelType", [](Json& j) { j["model"].erase("type"); }, kInvalid, "model.type: expected a string"},
      {"ByteFallback", [](Json& j) { j["model"]["byte_fallback"] = true; }, kUnsupported, "model.byte_fallback: true"},
      {"IgnoreMerges", [](Json& j) { j["model"]["ignore_merges"] = true; }, kUnsupported, "model.ignore_merges: true"},
      {"FlagType", [](Json& j) { j["model"]["ignore_merges"] = 1; }, kInvalid, "expected a boolean, found 1"},
      {"Dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, kUnsupported, "model.dropout: 0.1"},
      {"Suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, kUnsupported, "end_of_word_suffix"},
      {"VocabType", [](Json& j) { j["model"]["vocab"] = Json::array(); }, kInvalid, "model.vocab: expected an object"},
      {"IdNegative", [](Json& j) { j["model"]["vocab"]["he"] = -1; }, kInvalid, "model.vocab[\"he\"]"},
      {"IdFraction", [](Json& j) { j["model"]["vocab"]["he"] = 256.5; }, kInvalid, "found 256.5"},
      {"IdHuge", [](Json& j) { j["model"]["vocab"]["he"] = 1ull << 40; }, kInvalid, "found 1099511627776"},
      {"IdTwice", [](Json& j) { j["model"]["vocab"]["he"] = 257; }, kInvalid, "id 257 is given to both"},
      {"Hole", [](Json& j) { j["model"]["vocab"]["he"] = 300; }, kInvalid, "\"he\" has id 300, but there are only 264"},
      {"NoByte",
       [](Json& j) {
         j["model"]["vocab"].erase("q");
         j["model"]["vocab"]["qq"] = 'q';
       },
       kInvalid, "model.vocab: no token for byte 0x71"},
      {"MergesMissing", [](Json& j) { j["model"].erase("merges"); }, kInvalid, "model.merges: expected an array"},
      {"MergeUnknown", [](Json& j) { j["model"]["merges"][1] = "l zz"; }, kInvalid,
       "model.merges[1]: token \"zz\" is not in model.vocab"},
      {"MergeProduct", [](Json& j) { j["model"]["merges"][1] = "l e"; }, kInvalid,
       "model.merges[1]: the product \"le\" is not in model.vocab"},
      {"MergeForm", [](Json& j) { j["model"]["merges"][1] = "l l o"; }, kInvalid, "model.merges[1]: expected"},
      {"MergeTriple",
       [](Json& j) {
         j["model"]["merges"][1] = {"l", "l", "o"};
       },
       kInvalid, "model.merges[1]: expected"},
      {"MergeNumber",
       [](Json& j) {
         j["model"]["merges"][1] = {"l", 3};
       },
       kInvalid, "model.merges[1]: expected"},
      {"MergeTwice", [](Json& j) { j["model"]["merges"].push_back("h e"); }, kInvalid,
       "model.merges[5] repeats the pair of model.merges[0]"},
      {"Normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "NFC"}};
       },
       kUnsupported, "normalizer: type \"NFC\""},
      {"NormalizerList",
       [](Json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}}}};
       },
       kUnsupported, "normalizer: type \"Sequence\""},
      {"NoPreTokenizer", [](Json& j) { j["pre_tokenizer"] = nullptr; }, kInvalid, "pre_tokenizer: expected an object"},
      {"PreTokenizerKind", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["type"] = "Metaspace"; }, kUnsupported,
       "pre_tokenizer.pretokenizers[0]: type \"Metaspace\""},
      {"PreTokenizerItem", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0] = 7; }, kInvalid,
       "pre_tokenizer.pretokenizers[0]: expected an object, found 7"},
      {"NoByteLevel", [](Json& j) { j["pre_tokenizer"]["pretokenizers"].erase(1); }, kUnsupported,
       "pre_tokenizer: expected ByteLevel as the last step"},
      {"AfterByteLevel",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"].push_back(j["pre_tokenizer"]["pretokenizers"][0]); },
       kUnsupported, "pre_tokenizer.pretokenizers[2]: \"Split\" after ByteLevel"},
      {"PrefixSpace", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }, kUnsupported,
       "pretokenizers[1].add_prefix_space: true"},
      {"Behavior", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, kUnsupported,
       "pretokenizers[0].behavior: \"Removed\""},
      {"Pattern", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = "x"; }, kInvalid,
       "pretokenizers[0].pattern: expected an object"},
      {"Regex", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(("; }, kInvalid,
       "split rule 0: the regex does not compile"},
      {"Decoder",
       [](Json& j) {
         j["decoder"] = {{"type", "Metaspace"}};
       },
       kUnsupported, "decoder: type \"Metaspace\""},
      {"NoDecoder", [](Json& j) { j.erase("decoder"); }, kInvalid, "decoder: expected an object, found nothing"},
      {"AddedForm", [](Json& j) { j["added_tokens"] = "x"; }, kInvalid, "added_tokens: expected an array, found \"x\""},
      {"AddedItem", [](Json& j) { j["added_tokens"][1] = nullptr; }, kInvalid, "added_tokens[1]: expected an object"},
      {"AddedNoId", [](Json& j) { j["added_tokens"][1].erase("id"); }, kInvalid, "added_tokens[1].id: expected an id"},
      {"AddedEmpty", [](Json& j) { j["added_tokens"][1]["content"] = ""; }, kInvalid,
       "added_tokens[1].content: 0 bytes"},
      {"AddedLong", [](Json& j) { j["added_tokens"][1]["content"] = std::string(2000, 'x'); }, kInvalid,
       "added_tokens[1].content: 2000 bytes"},
      {"AddedTwice", [](Json& j) { j["added_tokens"][1]["content"] = "<s>"; }, kInvalid,
       "added_tokens[1]: \"<s>\" is already added_tokens[0]"},
      {"AddedIdTaken", [](Json& j) { j["added_tokens"][1]["id"] = 260; }, kInvalid, "id 260 is given to both"},
      {"AddedHole", [](Json& j) { j["added_tokens"].erase(1); }, kInvalid,
       "\"<u>\" has id 263, but there are only 263"},
      {"AddedOtherId", [](Json& j) { j["added_tokens"][1]["content"] = "he"; }, kInvalid,
       "added token \"he\": id 262 here, but 256 in model.vocab"},
      {"AddedStrip", [](Json& j) { j["added_tokens"][1]["lstrip"] = true; }, kUnsupported,
       "added_tokens[1].lstrip: true"},
  };
  return kFiles;
}

TEST(TokenizerJson, MalformedFilesAreNamed) {
  for (const BadFile& file : BadFiles()) {
    Json json = SmallTokenizerJson();
    file.change(json);
    const auto tokenizer = Tokenizer::FromJson(json.dump(), "dir/tokenizer.json");
    ASSERT_FALSE(tokenizer.ok()) << file.name;
    EXPECT_EQ(tokenizer.status().code(), file.code) << file.name;
    EXPECT_THAT(std::string(Message(tokenizer.status())), HasSubstr(file.message)) << file.name;
    EXPECT_TRUE(Message(tokenizer.status()).starts_with("dir/tokenizer.json: ")) << file.name;
  }
}

TEST(TokenizerJson, TextThatIsNotJson) {
  const auto message = [](std::string_view text) { return std::string(Message(ParseTokenizerJson(text).status())); };
  EXPECT_THAT(message(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(message("[1, 2]"), HasSubstr("expected a JSON object, found array"));
  EXPECT_THAT(message("{\"model\": {\"vocab\": {\"\xFF\": 1}}}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message(SmallTokenizerJson().dump().substr(0, 2000)), HasSubstr("not valid JSON"));
  EXPECT_THAT(message(std::string(1 << 20, '[')), HasSubstr("not valid JSON"));
  EXPECT_LT(message(std::string("{\"").append(1 << 20, 'x')).size(), 300u);
  EXPECT_THAT(message("{\"a\": 1, \"a\": 2}"), HasSubstr("gives a key twice at its top level"));
  EXPECT_THAT(message("{\"model\": {\"vocab\": {\"b\": 1, \"c\": 2, \"b\": 3}}}"),
              HasSubstr("\"model.vocab\": a key is given twice"));
  std::string deep = "{\"model\": ";
  for (int i = 0; i < 200000; ++i) deep += "{\"a\":";
  deep.append("1").append(200001, '}');
  EXPECT_THAT(message(deep), HasSubstr("pre_tokenizer: expected an object"));
}

TEST(TokenizerJson, AcceptsMergesAsPairs) {
  Json json = SmallTokenizerJson();
  json["model"]["merges"] = Json::array({{"h", "e"}, {"l", "l"}, {"ll", "o"}, {"he", "llo"}, {"Ġ", "hello"}});
  const auto pairs = Tokenizer::FromJson(json.dump());
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_EQ((*pairs)->Encode("hello hello"), (std::vector<int32_t>{259, 260}));
}

TEST(TokenizerJson, AcceptsByteLevelAloneWithItsOwnRegex) {
  Json json = SmallTokenizerJson();
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const auto tokenizer = Tokenizer::FromJson(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto pieces = (*tokenizer)->Pretokenize("don't  stop 12!");
  EXPECT_THAT(pieces, testing::ElementsAre("don", "'t", " ", " stop", " 12", "!"));
}

TEST(TokenizerJson, DefaultsOfAddedTokens) {
  Json json = SmallTokenizerJson();
  for (const char* key : {"special", "normalized"}) json["added_tokens"][1].erase(key);
  const auto parsed = ParseTokenizerJson(json.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_FALSE(parsed->added[1].special);
  EXPECT_TRUE(parsed->added[1].normalized);
  json.erase("added_tokens");
  EXPECT_TRUE(ParseTokenizerJson(json.dump()).ok());
}

}  // namespace
}  // namespace hadal::text
