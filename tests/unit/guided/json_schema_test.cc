#include "guided/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/guided/guided_test_util.h"

namespace hadal::guided::test {
namespace {

using testing::HasSubstr;

TEST(JsonObject, Language) {
  CheckLanguage(Kind::kJsonObject, {"",
                                    {"{}", R"({"a":1})", R"({"a": [1, -2.5e+3, "x\n\u00e9", {"b": null}], "c":{}})",
                                     "{ \n}", "{\n  \"a\": true,\n  \"b\": [\n    false\n  ]\n}", R"({"":""})",
                                     R"({"a":"\ud83d\uDE00é"})", "{\n\t\"a\": 0\n}"},
                                    {"",
                                     "[]",
                                     "1",
                                     "{",
                                     R"({"a"})",
                                     R"({"a":1,})",
                                     R"({,"a":1})",
                                     R"({a:1})",
                                     R"({"a":01})",
                                     R"({"a":+1})",
                                     R"({"a":.5})",
                                     R"({"a":1.})",
                                     R"({"a":"\x"})",
                                     R"({"a":"\ud83d"})",
                                     R"({"a":"\ud83dx"})",
                                     R"({"a":"\ude00"})",
                                     "{\"a\":\"\n\"}",
                                     "{\"a\":\"\xFF\"}",
                                     R"({"a":1} )",
                                     R"( {"a":1})",
                                     R"({"a" :1})",
                                     R"({"a":  1})",
                                     R"({"a":1 ,"b":1})",
                                     R"({"a":1}})",
                                     R"({"a":True})",
                                     R"({"a":1e999})",
                                     R"({"a":1234567890123456789})"}});
}

TEST(JsonObject, NestsAsDeepAsTheCap) {
  const auto grammar = MustCompile(Kind::kJsonObject, "");
  std::string text = "{\"a\":" + std::string(900, '[') + std::string(900, ']') + "}";
  EXPECT_TRUE(Accepts(grammar, text));
  text = "{\"a\":" + std::string(1200, '[');
  EXPECT_FALSE(IsPrefix(grammar, text));
}

}  // namespace
}  // namespace hadal::guided::test
