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

TEST(JsonSchema, Scalars) {
  const Language languages[] = {
      {R"({"type":"string"})", {R"("")", R"("aé\u00e9")"}, {"a", "1", R"("a)"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("é\n\u00e9")", R"("\ud83d\ude00x")", "\"\xF0\x9F\x98\x80x\""},
       {R"("a")", R"("abcd")", R"("\ud83d\ude00")"}},
      {R"({"type":"boolean"})", {"true", "false"}, {"null", "1"}},
      {R"({"type":"null"})", {"null"}, {"0"}},
      {R"({"type":"integer"})", {"0", "-12", "123456789012345678"}, {"1.0", "01", "1e2", "1234567890123456789"}},
      {R"({"type":"number"})", {"0", "-1.25", "1e10", "1E-5"}, {"1.", ".5", "1e100", "-"}},
      {R"({"type":["integer","null"]})", {"1", "null"}, {"1.5", "true"}},
      {R"({"type":"string","nullable":true})", {R"("a")", "null"}, {"1"}},
      {R"({"enum":["a","b\"c",1,1.5,null,true,[1,{"x":2}]]})",
       {R"("a")", R"("b\"c")", "1", "1.5", "null", "true", R"([1, {"x":2}])", R"([1,{"x": 2}])"},
       {R"("b")", "2", "false", R"("\u0061")", "[1]"}},
      {R"({"const":"x y"})", {R"("x y")"}, {R"("x")"}},
      {R"({"type":"string","enum":["a",1,"long"],"maxLength":2})", {R"("a")"}, {"1", R"("long")"}},
      {R"({"type":"integer","enum":[1,2.0,2.5,9],"maximum":5})", {"1", "2.0"}, {"2.5", "9"}},
      {R"({"enum":["ax","b"],"pattern":"^a"})", {R"("ax")"}, {R"("b")"}},
      {R"(true)", {"1", "{}", R"(["a"])"}, {""}},
      {R"({})", {"1", "{}", "null"}, {"x"}},
      {R"({"title":"t","description":"d","default":1,"examples":[1],"$schema":"s","$id":"i"})", {"1"}, {"x"}},
  };
  for (const Language& language : languages) CheckLanguage(Kind::kJsonSchema, language);
}

TEST(JsonSchema, PatternsAndFormats) {
  const Language languages[] = {
      {R"({"type":"string","pattern":"^[a-z]+$"})", {R"("abc")"}, {R"("")", R"("aB")"}},
      {R"({"pattern":"b"})", {R"("b")", R"("abc")", R"("\"b")", R"("\u0001b")"}, {R"("ac")", R"("\u0062")"}},
      {R"({"pattern":"^\"\\\\\n$"})", {R"("\"\\\n")"}, {"\"\"\\\n\"", R"("\"\\n")"}},
      {R"({"pattern":"^a|b$"})", {R"("ax")", R"("xb")"}, {R"("xay")"}},
      {R"({"pattern":"^[a-z]*$","minLength":2,"maxLength":3})",
       {R"("ab")", R"("abc")"},
       {R"("a")", R"("abcd")", R"("a1")"}},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}],"type":"string"})", {R"("ab")", R"("bxa")"}, {R"("a")", R"("b")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("2000-02-29")", R"("1999-12-31")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2024-04-31")", R"("2024-13-01")", R"("2024-1-1")"}},
      {R"({"format":"date-time"})",
       {R"("2024-01-31T23:59:59Z")", R"("2024-01-31T00:00:00.25+02:00")"},
       {R"("2024-01-31")", R"("2024-01-31T24:00:00Z")", R"("2024-01-31T00:00:00")"}},
      {R"({"format":"time"})", {R"("12:00:00Z")"}, {R"("12:60:00Z")"}},
      {R"({"format":"duration"})", {R"("P1Y2M")", R"("PT5M")", R"("P3W")"}, {R"("P")", R"("1Y")"}},
      {R"({"format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123e4567")"}},
      {R"({"format":"email"})", {R"("a.b+c@ex-ample.org")"}, {R"("a@b")", R"("a@-b.c")", R"("a b@c.d")"}},
      {R"({"format":"ipv4"})", {R"("192.168.0.255")"}, {R"("256.1.1.1")", R"("1.2.3")", R"("01.2.3.4")"}},
      {R"({"format":"hostname"})", {R"("a.b-c.d")"}, {R"("-a")", R"("a..b")"}},
      {R"({"format":"uri"})",
       {R"("https://a.b/c?d=%20#e")", R"("mailto:a@b.c")"},
       {R"("a b:c")", R"("//x")", R"("http:%2")"}},
  };
  for (const Language& language : languages) CheckLanguage(Kind::kJsonSchema, language);
}

TEST(JsonSchema, Objects) {
  const Language languages[] = {
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"},"c":true},"required":["b"]})",
       {R"({"b":null})", R"({"a":1,"b":null})", R"({"a": 1, "b": null, "c": [2]})", "{\n \"b\": null\n}"},
       {"{}", R"({"b":null,"a":1})", R"({"a":1})", R"({"b":null,"d":1})", R"({"b":null,})", R"({,"b":null})",
        R"({"b":1})"}},
      {R"({"type":"object","properties":{"a":true,"b":true}})", {"{}", R"({"a":1})", R"({"b":1})"}, {R"({"c":1})"}},
      {R"({"type":"object","properties":{"a":{"const":1}},"additionalProperties":{"type":"boolean"}})",
       {"{}", R"({"a":1})", R"({"a":1,"b":true,"c":false})", R"({"ab":true,"":false})"},
       {R"({"a":true})", R"({"b":true,"a":1})", R"({"b":1})", R"({"\u0061":true})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2})",
       {R"({"x":1})", R"({"x":1,"y":2})"},
       {"{}", R"({"x":1,"y":2,"z":3})"}},
      {R"({"type":"object"})", {"{}", R"({"x":[{}]})"}, {"[]"}},
      {R"({"type":"object","properties":{}})", {"{}"}, {R"({"a":1})"}},
      {R"({"type":"object","required":["b"]})", {R"({"b":1})", R"({"b":1,"a":2})"}, {"{}", R"({"a":2})"}},
      {R"({"properties":{"a":false,"b":{"type":"null"}}})", {"{}", R"({"b":null})"}, {R"({"a":1})"}},
      {R"({"properties":{"q\"\n":{"const":1}},"required":["q\"\n"]})", {R"({"q\"\n":1})"}, {"{}"}},
      {R"({"propertyNames":{"pattern":"^k[0-9]$"},"additionalProperties":{"const":1}})",
       {"{}", R"({"k1":1,"k2":1})"},
       {R"({"x":1})"}},
      {R"({"patternProperties":{"^x":{"type":"integer"}},"properties":{"xa":{"minimum":5},"b":{"const":0}}})",
       {"{}", R"({"xa":5})", R"({"xa":7,"b":0,"xb":1})"},
       {R"({"xa":1})", R"({"xa":5.5})", R"({"y":1})", R"({"b":0,"xa":7})"}},
      {R"({"properties":{"o":{"properties":{"p":{"properties":{"q":{"const":1}},"required":["q"]}}}}})",
       {R"({"o":{"p":{"q":1}}})", R"({"o":{}})"},
       {R"({"o":{"p":{}}})"}},
  };
  for (const Language& language : languages) CheckLanguage(Kind::kJsonSchema, language);
}

TEST(JsonSchema, Arrays) {
  const Language languages[] = {
      {R"({"type":"array"})", {"[]", "[1, [2]]", "[\n  1,\n  2\n]"}, {"{}", "[1,]", "[,]"}},
      {R"({"items":{"type":"integer"}})", {"[]", "[1]", "[1,2,3]"}, {"[true]", "[1 2]"}},
      {R"({"items":{"const":1},"minItems":2,"maxItems":3})", {"[1,1]", "[1,1,1]"}, {"[1]", "[]", "[1,1,1,1]"}},
      {R"({"items":{"const":1},"maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"items":false})", {"[]"}, {"[1]"}},
      {R"({"prefixItems":[{"const":1},{"const":2}]})", {"[]", "[1]", "[1,2]"}, {"[2]", "[1,2,3]"}},
      {R"({"prefixItems":[{"const":1},{"const":2}],"items":{"const":3},"minItems":2})",
       {"[1,2]", "[1,2,3,3]"},
       {"[1]", "[1,2,4]"}},
      {R"({"prefixItems":[{"const":1}],"minItems":3})", {"[1,2,{}]"}, {"[1,2]", "[2,2,2]"}},
      {R"({"prefixItems":[{"const":1},{"const":2}],"maxItems":1})", {"[]", "[1]"}, {"[1,2]"}},
      {R"({"type":"array","uniqueItems":false,"items":{"const":1}})", {"[1,1]"}, {"[2]"}},
  };
  for (const Language& language : languages) CheckLanguage(Kind::kJsonSchema, language);
}

TEST(JsonSchema, Combinations) {
  const Language languages[] = {
      {R"({"anyOf":[{"type":"integer"},{"const":"a"}]})", {"1", R"("a")"}, {R"("b")", "null"}},
      {R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2}},
           "anyOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":1})", R"({"b":2})", R"({"a":1,"b":2})"},
       {"{}"}},
      {R"({"allOf":[{"properties":{"a":{"type":"number"}},"required":["a"]},
                    {"properties":{"a":{"minimum":3},"b":{"const":1}}}]})",
       {R"({"a":3})", R"({"a":4.5,"b":1})"},
       {R"({"a":2})", "{}", R"({"a":true})"}},
      {R"({"allOf":[{"type":"integer"},{"minimum":2},{"maximum":4}],"enum":[1,2,3.5,4]})",
       {"2", "4"},
       {"1", "3.5", "3"}},
      {R"({"allOf":[{"properties":{"a":true},"additionalProperties":false},{"properties":{"a":{"const":1},"b":true}}]})",
       {"{}", R"({"a":1})"},
       {R"({"b":1})", R"({"a":2})"}},
      {R"({"anyOf":[{"const":1},{"const":2}],"oneOf":[{"enum":[2,3]},{"enum":["x"]}]})", {"2"}, {"1", "3"}},
      {R"({"$ref":"#/$defs/a","maximum":5,"$defs":{"a":{"type":"integer","minimum":3}}})", {"3", "5"}, {"2", "6"}},
      {R"({"$ref":"#/definitions/a~1b/anyOf/0","definitions":{"a/b":{"anyOf":[{"const":7}]}}})", {"7"}, {"8"}},
      {R"({"properties":{"next":{"$ref":"#"},"v":{"const":1}},"required":["v"]})",
       {R"({"v":1})", R"({"next":{"next":{"v":1},"v":1},"v":1})"},
       {R"({"next":{},"v":1})"}},
      {R"({"anyOf":[{"$ref":"#"},{"const":1},{"type":"array","items":{"$ref":"#"}}]})", {"1", "[[1],[]]"}, {"2"}},
      {R"({"type":"array","items":{"$ref":"#","maxItems":1}})", {"[]", "[[],[[]]]"}, {"[[[],[]]]", "[[[]],[[],[]]]"}},
      {R"({"type":["string","array"],"minLength":1,"items":{"const":1}})", {R"("a")", "[1]"}, {R"("")", "[2]"}},
  };
  for (const Language& language : languages) CheckLanguage(Kind::kJsonSchema, language);
}

TEST(JsonSchema, IntegerBoundsAreExact) {
  for (const int lo : {-120, -10, -9, -1, 0, 1, 7, 10, 99, 100}) {
    for (const int hi : {-101, -10, -5, 0, 3, 9, 10, 11, 99, 105, 110}) {
      if (lo > hi) continue;
      const auto grammar = MustCompile(
          Kind::kJsonSchema, fmt::format(R"({{"type":"integer","minimum":{},"exclusiveMaximum":{}}})", lo, hi + 1));
      for (int value = -130; value <= 130; ++value) {
        EXPECT_EQ(Accepts(grammar, std::to_string(value)), lo <= value && value <= hi)
            << lo << " " << value << " " << hi;
      }
    }
  }
  const auto above = MustCompile(Kind::kJsonSchema, R"({"type":"integer","minimum":2.5})");
  for (int value = -20; value <= 120; ++value) EXPECT_EQ(Accepts(above, std::to_string(value)), value >= 3) << value;
  EXPECT_TRUE(Accepts(above, "999999999999999999"));
}

TEST(JsonSchema, NumberBoundsAreExact) {
  const double bounds[] = {-10.5, -1, -0.25, 0, 0.05, 0.5, 1, 2.75, 10};
  for (const double lo : bounds) {
    for (const double hi : bounds) {
      for (const bool exclusive : {false, true}) {
        if (lo > hi || (exclusive && lo == hi)) continue;
        const auto grammar = MustCompile(
            Kind::kJsonSchema,
            exclusive ? fmt::format(R"({{"type":"number","exclusiveMinimum":{},"exclusiveMaximum":{}}})", lo, hi)
                      : fmt::format(R"({{"type":"number","minimum":{},"maximum":{}}})", lo, hi));
        for (int hundredths = -1200; hundredths <= 1200; ++hundredths) {
          const int whole = std::abs(hundredths) / 100, part = std::abs(hundredths) % 100;
          const std::string text = fmt::format("{}{}.{:02}", hundredths < 0 ? "-" : "", whole, part);
          const double value = hundredths / 100.0;
          const bool within = exclusive ? lo < value && value < hi : lo <= value && value <= hi;
          ASSERT_EQ(Accepts(grammar, text), within) << lo << " " << text << " " << hi << " " << exclusive;
          ASSERT_EQ(Accepts(grammar, text + "000"), within) << lo << " " << text << " " << hi;
          if (part == 0) {
            ASSERT_EQ(Accepts(grammar, text.substr(0, text.find('.'))), within) << lo << text << hi;
          }
        }
      }
    }
  }
}

TEST(JsonSchema, Errors) {
  const std::pair<const char*, const char*> errors[] = {
      {"{", "json schema: not JSON, at byte 1"},
      {"[]", "json schema: #: expected a schema"},
      {R"({"type":"strin"})", R"(json schema: #: there is no type "strin")"},
      {R"({"type":3})", "'type': expected a type"},
      {R"({"properties":{"a":{"not":{}}}})", "json schema: #/properties/a: keyword 'not' is not supported"},
      {R"({"items":{"multipleOf":2}})", "#/items: keyword 'multipleOf' is not supported"},
      {R"({"uniqueItems":true})", "keyword 'uniqueItems' is not supported"},
      {R"({"if":{},"then":{}})", "keyword 'if' is not supported"},
      {R"({"minLength":-1})", "'minLength': expected an integer of at least 0, found -1"},
      {R"({"exclusiveMinimum":true})", "'exclusiveMinimum': expected a number, found true"},
      {R"({"pattern":["a"]})", "'pattern': expected a string"},
      {R"({"pattern":"(a)\\1"})", "#: 'pattern': regex: a back reference is not supported, found one at byte 3"},
      {R"({"format":"iri"})", "'format': 'iri' is not supported; expected one of date,"},
      {R"({"items":[{}]})", "'items': expected a schema"},
      {R"({"anyOf":[]})", "'anyOf': expected a non-empty array of schemas"},
      {R"({"$ref":"http://x/y"})", "only references into the schema itself"},
      {R"({"$ref":"#/$defs/x"})", "'$ref': there is no #/$defs/x"},
      {R"({"$ref":"#foo"})", "anchors are not supported"},
      {R"({"$ref":"#"})", "refers to itself"},
      {R"({"anyOf":[{"$ref":"#"}]})", "no text can satisfy it"},
      {R"({"allOf":[{"$ref":"#"}]})", "refers to itself"},
      {R"({"$ref":"#/$defs/a","minLength":1,"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}}})", "refers to itself"},
      {R"({"enum":[]})", "no text can satisfy it"},
      {R"(false)", "no text can satisfy it"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "no text can satisfy it"},
      {R"({"type":"string","minLength":5,"maxLength":4})", "no text can satisfy it"},
      {R"({"type":"array","minItems":5,"maxItems":4})", "no text can satisfy it"},
      {R"({"type":"array","items":{"enum":[]},"minItems":1})", "no text can satisfy it"},
      {R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})", "no text can satisfy it"},
      {R"({"additionalProperties":false,"required":["a"]})", "no text can satisfy it"},
      {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "no text can satisfy it"},
      {R"({"properties":{"a":true,"b":true},"minProperties":1})", "'minProperties' is not supported beside"},
      {R"({"patternProperties":{"a":{},"b":{}}})", "exactly one pattern"},
      {R"({"patternProperties":{"a":{}},"additionalProperties":true})", "'additionalProperties' other than false"},
      {R"({"enum":[{}],"properties":{}})", "'properties' is not supported beside 'enum'"},
      {R"({"minimum":1e300})", "'minimum': expected a number of at most 18 digits"},
      {R"({"maxLength":1000000,"type":"string"})", "expands to more than"},
      {R"({"allOf":[{"format":"date"},{"format":"time"}]})", "two different values of 'format' cannot be merged"},
      {"{\"const\":\"\xFF\"}", "not UTF-8 at byte 10"},
  };
  for (const auto& [schema, message] : errors) {
    EXPECT_THAT(CompileError(Kind::kJsonSchema, schema), HasSubstr(message)) << schema;
  }
}

}  // namespace
}  // namespace hadal::guided::test
