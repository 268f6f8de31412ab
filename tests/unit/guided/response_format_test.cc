#include "guided/response_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "guided/json_syntax.h"

namespace hadal::guided::test {
namespace {

using Kind = GuidedSpec::Kind;

TEST(ResponseFormat, Accepted) {
  const std::pair<const char*, std::optional<GuidedSpec>> bodies[] = {
      {"{}", std::nullopt},
      {R"({"response_format":null,"structured_outputs":null})", std::nullopt},
      {R"({"response_format":{"type":"text"}})", std::nullopt},
      {R"({"response_format":{"type":"json_object"}})", GuidedSpec{Kind::kJsonObject, ""}},
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"description":null,
           "schema":{"type":"object","properties":{"b":{},"a":{}}}}}})",
       GuidedSpec{Kind::kJsonSchema, R"({"type":"object","properties":{"b":{},"a":{}}})"}},
      {R"({"structured_outputs":{"json":{"type":"null"}}})", GuidedSpec{Kind::kJsonSchema, R"({"type":"null"})"}},
      {R"({"structured_outputs":{"json":"{\"type\":\"null\"}"}})", GuidedSpec{Kind::kJsonSchema, R"({"type":"null"})"}},
      {R"({"structured_outputs":{"regex":"a+","json":null}})", GuidedSpec{Kind::kRegex, "a+"}},
      {R"({"structured_outputs":{"choice":["a","é"]}})", GuidedSpec{Kind::kChoice, R"(["a","é"])"}},
      {R"({"structured_outputs":{"grammar":"root ::= \"a\""}})", GuidedSpec{Kind::kGrammar, "root ::= \"a\""}},
      {R"({"structured_outputs":{"json_object":true}})", GuidedSpec{Kind::kJsonObject, ""}},
      {R"({"structured_outputs":{"json_object":false}})", std::nullopt},
      {R"({"response_format":{"type":"text"},"structured_outputs":{"regex":"a"}})", GuidedSpec{Kind::kRegex, "a"}},
  };
  for (const auto& [body, spec] : bodies) {
    const auto parsed = ParseResponseFormat(Json::parse(body));
    ASSERT_TRUE(parsed.ok()) << body << parsed.status();
    EXPECT_EQ(*parsed, spec) << body;
  }
}

TEST(ResponseFormat, Errors) {
  const std::pair<const char*, const char*> bodies[] = {
      {"[]", "expected an object as the request's body"},
      {R"({"response_format":"json"})", "response_format: expected an object"},
      {R"({"response_format":{}})", "response_format.type: expected text, json_object or json_schema"},
      {R"({"response_format":{"type":"structural_tag"}})",
       "response_format.type: expected text, json_object or json_schema, found 'structural_tag'"},
      {R"({"response_format":{"type":"json_object","schema":{}}})", "response_format.schema: not supported"},
      {R"({"response_format":{"type":"json_schema"}})", "response_format.json_schema: expected an object"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"schema":{}}}})",
       "response_format.json_schema.name: expected a string"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":"n"}}})",
       "response_format.json_schema.schema: expected a JSON schema"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{},"strict":1}}})",
       "response_format.json_schema.strict: expected true or false"},
      {R"({"structured_outputs":[]})", "structured_outputs: expected an object"},
      {R"({"structured_outputs":{}})", "structured_outputs: expected one of json, regex, choice, grammar, json_object"},
      {R"({"structured_outputs":{"structural_tag":{}}})", "structured_outputs.structural_tag: not supported"},
      {R"({"structured_outputs":{"regex":"a","choice":["b"]}})",
       "structured_outputs: both regex and choice are given, at most one may be"},
      {R"({"structured_outputs":{"regex":1}})", "structured_outputs.regex: expected a string"},
      {R"({"structured_outputs":{"grammar":[]}})", "structured_outputs.grammar: expected a string"},
      {R"({"structured_outputs":{"json":1}})", "structured_outputs.json: expected a JSON schema"},
      {R"({"structured_outputs":{"choice":[]}})", "structured_outputs.choice: expected a non-empty array of strings"},
      {R"({"structured_outputs":{"choice":[1]}})", "structured_outputs.choice: expected a non-empty array of strings"},
      {R"({"structured_outputs":{"json_object":1}})", "structured_outputs.json_object: expected true or false"},
      {R"({"response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"}})",
       "response_format and structured_outputs are both given, at most one may be"},
  };
  for (const auto& [body, message] : bodies) {
    const auto parsed = ParseResponseFormat(Json::parse(body));
    ASSERT_FALSE(parsed.ok()) << body;
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status()));
    EXPECT_EQ(Message(parsed.status()), message) << body;
  }
  Json body;
  body["structured_outputs"]["json"]["maximum"] = Json::binary({'9'});  // as the server keeps huge numbers
  EXPECT_EQ(Message(ParseResponseFormat(body).status()),
            "structured_outputs.json: holds a number that is out of range");
}

}  // namespace
}  // namespace hadal::guided::test
