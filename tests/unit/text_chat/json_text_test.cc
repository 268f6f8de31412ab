// JSON text: Python's spelling, numbers kept, limits.
#include "text/json_text.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

namespace hadal::text {
namespace {

std::string RoundTrip(std::string_view text) {
  absl::StatusOr<Json> json = ParseJson(text);
  return json.ok() ? DumpJson(*json) : "error: " + std::string(Message(json.status()));
}

TEST(JsonText, NumbersKeepKindAndValue) {
  struct Case {
    const char *in, *out;
  };
  for (const Case& c : std::initializer_list<Case>{{"1", "1"},
                                                   {"-0", "0"},
                                                   {"1.0", "1.0"},
                                                   {"1.50", "1.5"},
                                                   {"-0.0", "-0.0"},
                                                   {"1E5", "100000.0"},
                                                   {"1e15", "1000000000000000.0"},
                                                   {"1e16", "1e+16"},
                                                   {"123456789012345680.0", "1.2345678901234568e+17"},
                                                   {"0.0001", "0.0001"},
                                                   {"0.00001", "1e-05"},
                                                   {"1.5e-7", "1.5e-07"},
                                                   {"1e22", "1e+22"},
                                                   {"1e100", "1e+100"},
                                                   {"0.1", "0.1"},
                                                   {"2.5", "2.5"},
                                                   {"5e-324", "5e-324"},
                                                   {"1e-400", "0.0"},
                                                   {"-1e-400", "-0.0"},
                                                   {"1.7976931348623157e308", "1.7976931348623157e+308"},
                                                   {"9223372036854775807", "9223372036854775807"},
                                                   {"-9223372036854775808", "-9223372036854775808"},
                                                   {"18446744073709551615", "18446744073709551615"},
                                                   {"18446744073709551616", "18446744073709551616"},
                                                   {"-9223372036854775809", "-9223372036854775809"},
                                                   {"1e400", "1e400"},
                                                   {"-1E+400", "-1E+400"}}) {
    EXPECT_EQ(RoundTrip(c.in), c.out) << c.in;
    EXPECT_EQ(RoundTrip("{\"a\":[" + std::string(c.in) + "]}"), "{\"a\": [" + std::string(c.out) + "]}") << c.in;
  }
  const std::string digits(400, '7');
  EXPECT_EQ(RoundTrip(digits), digits);
  EXPECT_TRUE(IsRawNumber(*ParseJson(digits)));
  EXPECT_FALSE(IsRawNumber(*ParseJson("7")));
}

TEST(JsonText, StringsEscapeOnlyWhatTheyMust) {
  EXPECT_EQ(JsonQuoted("\"\\/\b\f\n\r\t\x01\x1f\x7f\xE2\x80\xA8é😀"),
            "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xE2\x80\xA8é😀\"");
  EXPECT_EQ(JsonQuoted(std::string_view("\0", 1)), "\"\\u0000\"");
  EXPECT_EQ(RoundTrip("\"\\u00e9\\ud83d\\ude00\\u2028\\/\""), "\"é😀\xE2\x80\xA8/\"");
}

TEST(JsonText, ObjectsKeepOrderAndTheLastDuplicate) {
  EXPECT_EQ(RoundTrip("{\"b\":1,\"a\":{},\"b\":[null,true],\"c\":\"\"}"),
            "{\"b\": [null, true], \"a\": {}, \"c\": \"\"}");
  // The same with more keys than are looked through.
  std::string in = "{", out = "{";
  for (int i = 0; i < 100; ++i) {
    in += fmt::format("\"k{}\":{},", i, i);
    out += fmt::format("{}\"k{}\": {}", i == 0 ? "" : ", ", i, i == 50 ? 7 : i);
  }
  EXPECT_EQ(RoundTrip(in + "\"k50\":7}"), out + "}");
}

TEST(JsonText, RefusesWhatIsNotJson) {
  for (const char* text : {"", " ", "{", "[1,]", "{\"a\":}", "NaN", "Infinity", "-Infinity", "01", "+1", "1 2", "'a'",
                           "\"\\ud800\"", "\"\\udc00x\"", "\"\x01\"", "\"\xff\"", "\"\xed\xa0\x80\"", "{a:1}", "tru"}) {
    EXPECT_FALSE(ParseJson(text).ok()) << text;
  }
  for (const std::string_view text : {std::string_view("5\0", 2), std::string_view("5\0x", 3),
                                      std::string_view("\0", 1), std::string_view("\"\0\"", 3)}) {
    EXPECT_FALSE(ParseJson(text).ok());
  }
}

TEST(JsonText, DepthIsLimited) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth)).ok());
  EXPECT_FALSE(ParseJson(nested(kMaxJsonDepth + 1)).ok());
  EXPECT_FALSE(ParseJson(nested(1000000)).ok());
  EXPECT_FALSE(ParseJson(std::string(1000000, '[')).ok());
  std::string objects;
  for (int i = 0; i < 200; ++i) objects += "{\"a\":";
  EXPECT_FALSE(ParseJson(objects).ok());
  EXPECT_TRUE(ParseJson(nested(3), 3).ok());
  EXPECT_FALSE(ParseJson(nested(4), 3).ok());
}

TEST(JsonText, LargeObjectsParseInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += fmt::format("\"key{}\":{},", i, i);
  text += "\"end\":0}";
  const auto begin = std::chrono::steady_clock::now();
  const absl::StatusOr<Json> json = ParseJson(text);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->size(), 200001);
  // Looking through all keys for each would take 2e10 comparisons, minutes.
  EXPECT_LT(seconds.count(), 10);
}

TEST(JsonText, PrintsDeepAndOddValuesWithoutRecursion) {
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_EQ(DumpJson(deep), std::string(1000, '[') + "1" + std::string(1000, ']'));
  EXPECT_EQ(DumpJson(Json(std::numeric_limits<double>::quiet_NaN())), "null");
  EXPECT_EQ(DumpJson(Json::binary({1, 2})), "null");
}

}  // namespace
}  // namespace hadal::text
