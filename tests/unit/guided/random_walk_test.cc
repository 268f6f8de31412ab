// Whatever is drawn from the masks until an end token comes is a text of the demanded form.
#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "guided/matcher.h"
#include "unit/guided/bundled_vocabulary.h"
#include "unit/guided/guided_test_util.h"
#include "unit/guided/schema_validator.h"

namespace hadal::guided::test {
namespace {

// Draws until the end. From `patience` tokens on, tokens that close something are preferred, so that it ends.
std::string Walk(const std::shared_ptr<const Grammar>& grammar, std::mt19937* random, int patience) {
  const TokenVocabulary& vocabulary = grammar->vocabulary();
  Matcher matcher(grammar);
  std::string text;
  for (int step = 0; step < 20 * patience; ++step) {
    std::vector<uint32_t> mask(vocabulary.mask_words());
    EXPECT_TRUE(matcher.FillMask(mask).ok());
    std::vector<int32_t> allowed, closing;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      if (!HasBit(mask, id)) continue;
      allowed.push_back(id);
      const std::string_view token = vocabulary.Text(id);
      if (token.empty() || std::string_view("\"]}").find(token[0]) != std::string_view::npos) closing.push_back(id);
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing can follow " << text;
      return text;
    }
    const bool close = !closing.empty() && (step > patience || (*random)() % 8 == 0);
    const std::vector<int32_t>& from = close ? closing : allowed;
    const int32_t token = from[(*random)() % from.size()];
    EXPECT_TRUE(matcher.Accept(token));
    if (matcher.IsTerminated()) return text;
    text += vocabulary.Text(token);
  }
  ADD_FAILURE() << "no end of " << text.substr(0, 200);
  return text;
}

TEST(RandomWalk, SchemasHold) {
  const char* schemas[] = {
      R"({"type":"object"})",
      R"({"type":"array","items":{"type":"number"},"minItems":1,"maxItems":4})",
      R"({"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":12},
          "age":{"type":"integer","minimum":-3,"maximum":150},"tags":{"type":"array","items":{"enum":["a","b c",1,null]}},
          "score":{"type":"number","exclusiveMinimum":-0.5,"maximum":2.25}},"required":["age","score"],
          "additionalProperties":false})",
      R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":["boolean","null"]}})",
      R"({"type":"object","properties":{"kind":{"const":"leaf"},"value":{"type":"string","pattern":"^[a-f]+(-[0-9]{2})*$"}},
          "required":["kind","value"],"additionalProperties":false})",
      R"({"$defs":{"node":{"type":"object","properties":{"left":{"$ref":"#/$defs/node"},"right":{"anyOf":[
          {"$ref":"#/$defs/node"},{"type":"null"}]},"v":{"type":"integer"}},"required":["v"],"additionalProperties":false}},
          "$ref":"#/$defs/node"})",
      R"({"prefixItems":[{"type":"string"},{"type":"integer","minimum":5}],"items":{"type":"boolean"},"type":"array",
          "minItems":2,"maxItems":5})",
      R"({"allOf":[{"type":"object","properties":{"x":{"type":"number"}},"required":["x"]},
          {"properties":{"x":{"minimum":1,"maximum":9},"y":{"type":"string","nullable":true}}}]})",
      R"({"type":"object","patternProperties":{"^k[0-9]+$":{"type":"integer"}},"properties":{"k1":{"maximum":3}},
          "additionalProperties":false})",
      R"({"anyOf":[{"type":"string","maxLength":3},{"type":"array","items":{"$ref":"#"},"maxItems":3}]})",
  };
  std::mt19937 random(11);
  for (const char* text : schemas) {
    SCOPED_TRACE(text);
    const Json schema = Json::parse(text);
    const SchemaValidator validator(schema);
    const auto grammar = MustCompile(Kind::kJsonSchema, text, BundledVocabulary());
    ASSERT_NE(grammar, nullptr);
    for (int i = 0; i < 40; ++i) {
      const std::string output = Walk(grammar, &random, 60);
      const Json value = Json::parse(output, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << output;
      ASSERT_TRUE(validator.Valid(value)) << output;
    }
  }
}

TEST(RandomWalk, JsonObjectsParse) {
  const auto grammar = MustCompile(Kind::kJsonObject, "", BundledVocabulary());
  std::mt19937 random(12);
  for (int i = 0; i < 200; ++i) {
    const std::string output = Walk(grammar, &random, 80);
    ASSERT_TRUE(Json::parse(output, nullptr, false).is_object()) << output;
  }
}

TEST(RandomWalk, RegexesMatch) {
  const char* patterns[] = {"[a-z]{2,5}(-[a-z]{1,3}){0,3}", "(yes|no|maybe)( (very|not) (much|at all))?",
                            R"(\d{1,3}(\.\d{1,3}){3})"};
  std::mt19937 random(13);
  for (const char* pattern : patterns) {
    const auto grammar = MustCompile(Kind::kRegex, pattern, BundledVocabulary());
    for (int i = 0; i < 50; ++i) {
      const std::string output = Walk(grammar, &random, 60);
      ASSERT_TRUE(std::regex_match(output, std::regex(pattern))) << output;
    }
  }
}

}  // namespace
}  // namespace hadal::guided::test
