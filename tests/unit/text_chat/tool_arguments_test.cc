// Arguments of calls as JSON: types by schema, wrappers, duplicates, odd values.
#include "parser_harness.h"

namespace hadal::text {
namespace {

#define D "｜DSML｜"

struct Parameter {
  const char *key, *attribute, *value;
};

// Arguments of one call with these parameters, or what was seen if it is no complete call.
std::string Arguments(std::initializer_list<Parameter> parameters, const ParserOptions& options = {},
                      const char* body = "") {
  std::string text = "\n\n<" D "tool_calls>\n<" D "invoke name=\"f\">\n" + std::string(body);
  for (const Parameter& p : parameters) {
    text += fmt::format("<" D "parameter name=\"{}\"{}>{}</" D "parameter>\n", p.key, p.attribute, p.value);
  }
  const std::string seen = Parsed(text + "</" D "invoke>\n</" D "tool_calls><｜end▁of▁sentence｜>", options);
  constexpr std::string_view kPrefix = " call f";
  return seen.starts_with(kPrefix) ? seen.substr(kPrefix.size()) : seen;
}

constexpr const char* kTrue = " string=\"true\"";
constexpr const char* kFalse = " string=\"false\"";

ParserOptions Schema(std::string_view properties) {
  return WithTools(
      fmt::format(R"([{{"function":{{"name":"f","parameters":{{"type":"object","properties":{}}}}}}}])", properties));
}

TEST(ToolArguments, JsonValuesAreKeptOrQuoted) {
  struct Case {
    const char *value, *out;
  };
  for (const Case& c : std::initializer_list<Case>{{"5", "5"},
                                                   {"1.50", "1.50"},
                                                   {"123456789012345678901234567890", "123456789012345678901234567890"},
                                                   {" [1, {\"a\": null}] ", "[1, {\"a\": null}]"},
                                                   {"\"s\"", "\"s\""},
                                                   {"not json", "\"not json\""},
                                                   {"NaN", "\"NaN\""},
                                                   {"True", "\"True\""},
                                                   {"", "\"\""},
                                                   {"{\"a\": ", "\"{\\\"a\\\": \""},
                                                   {"1, \"b\": 2", "\"1, \\\"b\\\": 2\""},
                                                   {"\"\\ud800\"", "\"\\\"\\\\ud800\\\"\""}}) {
    EXPECT_EQ(Arguments({{"a", kFalse, c.value}}), "{\"a\": " + std::string(c.out) + "}") << c.value;
  }
  // Too deep for a JSON reader: text.
  const std::string deep = std::string(127, '[') + std::string(127, ']');
  EXPECT_EQ(Arguments({{"a", kFalse, deep.c_str()}}), "{\"a\": " + deep + "}");
  const std::string deeper = "[" + deep + "]";
  EXPECT_EQ(Arguments({{"a", kFalse, deeper.c_str()}}), "{\"a\": \"" + deeper + "\"}");
}

TEST(ToolArguments, TypesFollowTheSchema) {
  const ParserOptions options = Schema(
      R"({"s":{"type":"string"},"n":{"type":"number"},"i":{"type":"integer"},"b":{"type":"boolean"},
          "o":{"type":"object"},"sn":{"type":["string","null"]},"any":{}})");
  struct Case {
    const char *key, *attribute, *value, *out;
  };
  for (const Case& c : std::initializer_list<Case>{{"s", kFalse, "5", "\"5\""},
                                                   {"s", kFalse, "\"5\"", "\"5\""},
                                                   {"s", kFalse, "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
                                                   {"s", kFalse, "null", "\"null\""},
                                                   {"sn", kFalse, "null", "null"},
                                                   {"s", kTrue, "5", "\"5\""},
                                                   {"i", kFalse, "5", "5"},
                                                   {"i", kFalse, "\"5\"", "5"},
                                                   {"i", kFalse, "\"x\"", "\"x\""},
                                                   {"i", kTrue, "5", "5"},
                                                   {"i", kTrue, "five", "\"five\""},
                                                   {"i", kFalse, "1.5", "1.5"},
                                                   {"n", kTrue, "-1e3", "-1e3"},
                                                   {"b", kTrue, "true", "true"},
                                                   {"o", kTrue, "{\"k\": 1}", "{\"k\": 1}"},
                                                   {"o", kFalse, "\"{\\\"k\\\": 1}\"", "{\"k\": 1}"},
                                                   {"any", kTrue, "5", "\"5\""},
                                                   {"any", kFalse, "5", "5"},
                                                   // The attribute is missing or is no truth value.
                                                   {"any", "", "5", "5"},
                                                   {"any", "", "five", "\"five\""},
                                                   {"s", "", "5", "\"5\""},
                                                   {"i", " string=\"yes\"", "5", "5"}}) {
    EXPECT_EQ(Arguments({{c.key, c.attribute, c.value}}, options), fmt::format("{{\"{}\": {}}}", c.key, c.out))
        << c.key << c.attribute << c.value;
  }
}

TEST(ToolArguments, FirstOfTwoWins) {
  EXPECT_EQ(Arguments({{"a", kTrue, "1"}, {"b", kTrue, "x"}, {"a", kTrue, "2"}, {"a", kFalse, "3"}}),
            "{\"a\": \"1\", \"b\": \"x\"}");
}

TEST(ToolArguments, OddKeys) {
  EXPECT_EQ(Arguments({{"a>b", kTrue, "1"}, {"say \"x\"", kTrue, "2"}, {"", kFalse, "3"}, {"\\\t", kTrue, "4"}}),
            "{\"a>b\": \"1\", \"say \\\"x\\\"\": \"2\", \"\": 3, \"\\\\\\t\": \"4\"}");
}

// B31: everything wrapped in one parameter that the tool does not have.
TEST(ToolArguments, Wrappers) {
  const ParserOptions path = Schema(R"({"path":{"type":"string"}})");
  for (const char* key : {"arguments", "input"}) {
    EXPECT_EQ(Arguments({{key, kFalse, "{\"path\":\"/x\"}"}}, path), "{\"path\":\"/x\"}");
    EXPECT_EQ(Arguments({{key, kTrue, "{\"path\":\"/x\"}"}}, path), "{\"path\":\"/x\"}");
    EXPECT_EQ(Arguments({{key, kFalse, "\"{\\\"path\\\": \\\"/x\\\"}\""}}, path), "{\"path\": \"/x\"}");
    EXPECT_EQ(Arguments({{key, kTrue, "/x"}}, path), "{\"path\": \"/x\"}");
    EXPECT_EQ(Arguments({{key, kFalse, "\"/x\""}}, path), "{\"path\": \"/x\"}");
    EXPECT_EQ(Arguments({{key, kFalse, "5"}}, path), "{\"path\": \"5\"}");
    // Inner keys that do not fit, or a second parameter: not a wrapper.
    EXPECT_EQ(Arguments({{key, kFalse, "{\"other\":1}"}}, path), fmt::format("{{\"{}\": {{\"other\":1}}}}", key));
    EXPECT_EQ(Arguments({{key, kTrue, "v"}, {"path", kTrue, "/x"}}, path),
              fmt::format("{{\"{}\": \"v\", \"path\": \"/x\"}}", key));
    // Without a schema, or where the tool has that parameter, it is what it is.
    EXPECT_EQ(Arguments({{key, kFalse, "{\"path\":1}"}}), fmt::format("{{\"{}\": {{\"path\":1}}}}", key));
    EXPECT_EQ(Arguments({{key, kFalse, "{\"path\":1}"}}, Schema(fmt::format(R"({{"{}":{{}},"path":{{}}}})", key))),
              fmt::format("{{\"{}\": {{\"path\":1}}}}", key));
  }
  EXPECT_EQ(Arguments({{"input", kTrue, "5"}}, Schema(R"({"n":{"type":"integer"}})")), "{\"n\": 5}");
  EXPECT_EQ(Arguments({{"input", kTrue, "x"}}, Schema(R"({"n":{"type":"integer"}})")), "{\"input\": \"x\"}");
  EXPECT_EQ(Arguments({{"input", kTrue, "x"}}, Schema(R"({"a":{},"b":{}})")), "{\"input\": \"x\"}");
}

TEST(ToolArguments, DirectJsonBody) {
  const ParserOptions path = Schema(R"({"path":{"type":"string"}})");
  EXPECT_EQ(Arguments({}, path, "{\"path\": \"/x\"}\n"), "{\"path\": \"/x\"}");
  EXPECT_EQ(Arguments({}, {}, "{\"path\": \"/x\"}\n"), "{\"path\": \"/x\"}");
  EXPECT_EQ(Arguments({}, path, "{\"arguments\": {\"path\": \"/x\"}}\n"), "{\"path\": \"/x\"}");
  EXPECT_EQ(Arguments({}, path, "/x\n"), "{\"path\": \"/x\"}");
  EXPECT_EQ(Arguments({{"path", kTrue, "/y"}}, path, "let me see\n"), "{\"path\": \"/y\"}");
  EXPECT_EQ(Arguments({}, {}, "\n\n"), "{}");
  // Text that is no arguments: the call stays open, the text is not lost.
  EXPECT_EQ(Arguments({}, {}, "some words"), "C[some words] call f (open)");
}

TEST(ToolSpecs, MalformedToolsAreErrors) {
  EXPECT_TRUE(ReadToolSpecs(Json())->empty());
  for (const char* tools : {"3", "[3]", "[{}]", R"([{"function":3}])", R"([{"function":{"name":3}}])"}) {
    EXPECT_FALSE(ReadToolSpecs(ParseJson(tools).value()).ok()) << tools;
  }
  EXPECT_EQ(Arguments({{"a", kFalse, "5"}}, WithTools(R"([{"function":{"name":"f","parameters":[1]}}])")),
            "{\"a\": 5}");
  EXPECT_EQ(Arguments({{"a", kFalse, "5"}}, Schema(R"({"a":{"type":[3]}})")), "{\"a\": 5}");
  EXPECT_EQ(Arguments({{"a", kFalse, "5"}}, Schema("7")), "{\"a\": 5}");
}

}  // namespace
}  // namespace hadal::text
