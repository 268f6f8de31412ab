// Calls of tools: what a grammar takes, and that whatever it lets a model draw is read back as calls that fit.
#include "guided/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/status.h"
#include "guided/matcher.h"
#include "text/output_parser.h"
#include "unit/guided/bundled_vocabulary.h"
#include "unit/guided/guided_test_util.h"
#include "unit/guided/schema_validator.h"

namespace hadal::guided::test {
namespace {

using testing::HasSubstr;

constexpr int32_t kMarker = 257;  // the control token <M>
constexpr int32_t kOther = 258;   // the control token <N>

// ByteVocabulary and control tokens.
std::shared_ptr<const TokenVocabulary> MarkedVocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    bytes.insert(bytes.end(), {"<end>", "<M>", "<N>", "a\xFF"});
    const std::vector<int32_t> ends = {kByteEnd}, special = {kMarker, kOther};
    return *TokenVocabulary::Create(std::move(bytes), special, ends);
  }();
  return vocabulary;
}

CallForm Marked() {
  const std::string m = Control("<M>");
  return {.begin = m + "calls\n",
          .end = m + "end",
          .call = m + "call ",
          .name_end = ":\n",
          .call_end = m + "done\n",
          .parameter = "<" + m,
          .as_text = "=",
          .as_json = ":=",
          .parameter_end = "</" + m + ">\n",
          .no_parameters = "-"};
}

std::shared_ptr<const Grammar> MustCompileCalls(
    const CallForm& form, const std::vector<CallableTool>& tools, bool one_call = false,
    std::shared_ptr<const TokenVocabulary> vocabulary = MarkedVocabulary()) {
  const GuidedSpec spec = ToolCallsSpec(form, tools, one_call);
  return MustCompile(spec.kind, spec.text, std::move(vocabulary));
}

std::string CallsError(const CallForm& form, const std::vector<CallableTool>& tools) {
  const auto grammar = Compile(ToolCallsSpec(form, tools, false), MarkedVocabulary());
  if (grammar.ok()) return "no error";
  EXPECT_TRUE(absl::IsInvalidArgument(grammar.status())) << grammar.status();
  return std::string(grammar.status().message());
}

// '@' stands for the control token.
bool FeedMarked(Matcher* matcher, std::string_view text) {
  for (const char c : text) {
    if (!matcher->Accept(c == '@' ? kMarker : static_cast<uint8_t>(c))) return false;
  }
  return true;
}

bool AcceptsMarked(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return FeedMarked(&matcher, text) && matcher.IsAccepting();
}

void CheckCalls(const std::shared_ptr<const Grammar>& grammar, const std::vector<std::string>& accepted,
                const std::vector<std::string>& refused) {
  ASSERT_NE(grammar, nullptr);
  for (const std::string& text : accepted) EXPECT_TRUE(AcceptsMarked(grammar, text)) << text;
  for (const std::string& text : refused) EXPECT_FALSE(AcceptsMarked(grammar, text)) << text;
}

// One call of a tool "f" whose arguments are these.
std::string One(std::string_view arguments) {
  return std::string("@calls\n@call f:\n").append(arguments) + "@done\n@end";
}

void CheckArguments(std::string schema, const std::vector<std::string>& accepted,
                    const std::vector<std::string>& refused) {
  SCOPED_TRACE(schema);
  const auto grammar = MustCompileCalls(Marked(), {{"f", std::move(schema)}});
  std::vector<std::string> good, bad;
  for (const std::string& arguments : accepted) good.push_back(One(arguments));
  for (const std::string& arguments : refused) bad.push_back(One(arguments));
  CheckCalls(grammar, good, bad);
}

TEST(ToolCalls, ControlTokensAreThemselves) {
  const auto vocabulary = MarkedVocabulary();
  EXPECT_TRUE(vocabulary->HasControl("<M>"));
  EXPECT_FALSE(vocabulary->HasControl("<end>"));
  EXPECT_FALSE(vocabulary->HasControl("a"));
  Matcher matcher(MustCompileCalls(Marked(), {{"f", R"({"properties":{"s":{"type":"string"}}})"}}));
  std::vector<uint32_t> mask(vocabulary->mask_words());
  const auto allowed = [&] {
    EXPECT_TRUE(matcher.FillMask(mask).ok());
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocabulary->size(); ++id) {
      if (HasBit(mask, id)) ids.push_back(id);
    }
    return ids;
  };
  EXPECT_THAT(allowed(), testing::ElementsAre(kMarker));
  // Not its spelling, nor the bytes that stand for it.
  for (const int32_t id : {int32_t{'<'}, int32_t{0xFF}, kOther, kByteEnd, int32_t{259}}) {
    EXPECT_FALSE(matcher.Accept(id)) << id;
  }
  EXPECT_EQ(matcher.AcceptedPrefix({{kMarker, 'c', 'a', kMarker}}), 3u);
  ASSERT_TRUE(FeedMarked(&matcher, "@calls\n@call f:\n<@\"s\"=a"));
  // A string takes all text and no control token, but the one behind "</".
  EXPECT_EQ(allowed().size(), 128u + 0xF4 - 0xC2 + 1);
  for (const int32_t id : {kMarker, kOther, int32_t{0xFF}, int32_t{259}}) EXPECT_FALSE(matcher.Accept(id)) << id;
  ASSERT_TRUE(FeedMarked(&matcher, "<M><"));
  EXPECT_FALSE(matcher.Accept(kMarker));
  ASSERT_TRUE(FeedMarked(&matcher, "/"));
  EXPECT_FALSE(matcher.Accept(kOther));
  EXPECT_TRUE(HasBit((allowed(), mask), kMarker));
  EXPECT_TRUE(HasBit(mask, 'x'));
  // Drafts are taken back whole.
  ASSERT_TRUE(FeedMarked(&matcher, "@>\n"));
  EXPECT_FALSE(matcher.Accept('x'));
  EXPECT_TRUE(matcher.Rollback(3));
  ASSERT_TRUE(FeedMarked(&matcher, "x</@>\n@done\n@end"));
  EXPECT_THAT(allowed(), testing::ElementsAre(kByteEnd));
  EXPECT_TRUE(matcher.Accept(kByteEnd));
  EXPECT_TRUE(matcher.IsTerminated());
}

TEST(ToolCalls, OneOrMore) {
  const std::vector<CallableTool> tools = {{"ping", ""}, {"pin", "{}"}};
  const std::string ping = "@call ping:\n-@done\n", pin = "@call pin:\n-@done\n";
  CheckCalls(MustCompileCalls(Marked(), tools), {"@calls\n" + ping + "@end", "@calls\n" + pin + ping + ping + "@end"},
             {"", "@calls\n@end", "@calls\n@call pong:\n-@done\n@end", "@calls\n@call pi:\n-@done\n@end",
              "@calls\n" + ping + "@end\n", "@calls\n" + ping, " @calls\n" + ping + "@end"});
  CheckCalls(MustCompileCalls(Marked(), tools, true), {"@calls\n" + ping + "@end", "@calls\n" + pin + "@end"},
             {"@calls\n" + pin + ping + "@end", "@calls\n@end"});
  CallForm joined = Marked();
  joined.separator = "+";
  CheckCalls(MustCompileCalls(joined, tools), {"@calls\n" + ping + "@end", "@calls\n" + pin + "+" + ping + "@end"},
             {"@calls\n" + pin + ping + "@end", "@calls\n" + ping + "+@end"});
}

TEST(ToolCalls, Arguments) {
  CheckArguments("", {"-"}, {"", "<@\"a\"=x</@>\n"});
  CheckArguments(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
      {"<@\"a\":=-5</@>\n", "<@\"a\":=5</@>\n<@\"b\"=</@>\n", "<@\"a\":=5</@>\n<@\"b\"=x \"y\"\n</b>\\</@>\n"},
      {"-", "", "<@\"b\"=x</@>\n", "<@\"a\"=5</@>\n", "<@\"a\":=\"5\"</@>\n", "<@\"a\":=5.5</@>\n",
       "<@\"b\"=x</@>\n<@\"a\":=5</@>\n", "<@\"a\":=5</@>\n<@\"a\":=5</@>\n", "<@\"a\":=5</@>\n<@\"b\":=\"x\"</@>\n",
       "<@\"a\":=5</@>\n<@\"c\"=x</@>\n", "<@\"a\":=5</@>\n-"});
  CheckArguments(R"({"properties":{"a":{"type":"boolean"}}})", {"-", "<@\"a\":=true</@>\n"},
                 {"", "<@\"a\"=true</@>\n"});
  // Strings are what they are, not what JSON writes for them.
  CheckArguments(R"({"properties":{"s":{"enum":["a\"b","é\n",1,null]}},"required":["s"]})",
                 {"<@\"s\"=a\"b</@>\n", "<@\"s\"=é\n</@>\n", "<@\"s\":=1</@>\n", "<@\"s\":=null</@>\n"},
                 {"<@\"s\"=1</@>\n", "<@\"s\":=\"a\\\"b\"</@>\n", "<@\"s\"=a\\\"b</@>\n", "<@\"s\"=null</@>\n"});
  CheckArguments(R"({"properties":{"s":{"type":"string","pattern":"^[a-z\"]+$","minLength":2,"maxLength":3}},)"
                 R"("required":["s"]})",
                 {"<@\"s\"=a\"</@>\n", "<@\"s\"=abc</@>\n"},
                 {"<@\"s\"=a</@>\n", "<@\"s\"=abcd</@>\n", "<@\"s\"=aB</@>\n"});
  CheckArguments(R"({"properties":{"s":{"type":"string","maxLength":1}},"required":["s"]})",
                 {"<@\"s\"=</@>\n", "<@\"s\"=é</@>\n", "<@\"s\"=</@>\n"}, {"<@\"s\"=éé</@>\n", "<@\"s\"=\xC3</@>\n"});
  // Of several types, and of any.
  CheckArguments(R"({"properties":{"v":{"type":["string","number"]}},"required":["v"]})",
                 {"<@\"v\"=1</@>\n", "<@\"v\":=1.5</@>\n"}, {"<@\"v\":=\"1\"</@>\n", "<@\"v\":=true</@>\n"});
  CheckArguments(R"({"properties":{"v":{"anyOf":[{"type":"string","maxLength":2},{"type":"null"},{"type":"array"}]}},)"
                 R"("required":["v"]})",
                 {"<@\"v\"=ab</@>\n", "<@\"v\":=null</@>\n", "<@\"v\":=[\"abc\", {}]</@>\n"},
                 {"<@\"v\"=abc</@>\n", "<@\"v\":=1</@>\n", "<@\"v\":=\"a\"</@>\n"});
  CheckArguments(R"({"properties":{"v":{"type":"string","nullable":true}},"required":["v"]})",
                 {"<@\"v\"=x</@>\n", "<@\"v\":=null</@>\n"}, {"<@\"v\":=1</@>\n"});
  CheckArguments(R"({"properties":{"v":true},"required":["v"]})",
                 {"<@\"v\"=x</@>\n", "<@\"v\":={\"a\":\"b\"}</@>\n", "<@\"v\":=-1e5</@>\n"}, {"<@\"v\":=\"x\"</@>\n"});
  CheckArguments(R"({"$defs":{"n":{"properties":{"next":{"$ref":"#/$defs/n"}},"additionalProperties":false}},)"
                 R"("properties":{"list":{"$ref":"#/$defs/n"}},"required":["list"]})",
                 {"<@\"list\":={\"next\":{\"next\":{}}}</@>\n"}, {"<@\"list\":={\"last\":{}}</@>\n"});
  // The schema of all arguments.
  CheckArguments(R"({"anyOf":[{"properties":{"a":{"const":"x"}},"required":["a"]},)"
                 R"({"properties":{"b":{"const":2}},"required":["b"]}]})",
                 {"<@\"a\"=x</@>\n", "<@\"b\":=2</@>\n"}, {"-", "<@\"a\"=x</@>\n<@\"b\":=2</@>\n"});
  CheckArguments(R"({"$ref":"#/$defs/all","$defs":{"all":{"properties":{"a":{"type":"null"}},"required":["a"]}}})",
                 {"<@\"a\":=null</@>\n"}, {"-"});
}

TEST(ToolCalls, ArgumentsThatAreNotListed) {
  CheckArguments(R"({"type":"object"})", {"-", "<@\"a b\"=x</@>\n", "<@\"x\":=[1]</@>\n<@\"é\"=x</@>\n"},
                 {"<@\"\"=x</@>\n", "<@\"a\\\\b\"=x</@>\n", "<@\"a\nb\"=x</@>\n", "<@\"a\"b\"=x</@>\n",
                  "<@\"" + std::string(65, 'a') + "\"=x</@>\n"});
  CheckArguments(R"({"properties":{"a":{"type":"null"}},"additionalProperties":{"type":"boolean"}})",
                 {"-", "<@\"a\":=null</@>\n<@\"b\":=true</@>\n", "<@\"aa\":=true</@>\n"},
                 {"<@\"a\":=true</@>\n", "<@\"b\":=null</@>\n"});
  CheckArguments(R"({"patternProperties":{"^k[0-9]$":{"type":"integer"}},"required":["k1"]})",
                 {"<@\"k1\":=1</@>\n", "<@\"k1\":=1</@>\n<@\"k2\":=2</@>\n"}, {"-", "<@\"k2\":=1</@>\n"});
  CheckArguments(
      R"({"propertyNames":{"anyOf":[{"enum":["x"]},{"pattern":"^y+$"}]},"minProperties":1,"maxProperties":2})",
      {"<@\"x\":=1</@>\n", "<@\"yy\"=a</@>\n<@\"x\"=b</@>\n"},
      {"-", "<@\"z\":=1</@>\n", "<@\"x\"=a</@>\n<@\"x\"=a</@>\n<@\"x\"=a</@>\n"});
  CheckArguments(R"({"propertyNames":{"type":["object","string"],"nullable":true,"maxLength":1}})",
                 {"-", "<@\"x\":=1</@>\n"}, {"<@\"xx\":=1</@>\n", "<@null:=1</@>\n", "<@{}:=1</@>\n"});
  CheckArguments(R"({"propertyNames":{"type":"object"}})", {"-"}, {"<@\"x\":=1</@>\n", "<@{}:=1</@>\n"});
  // A name is written as it is.
  CheckArguments(R"({"properties":{"a\\b\n>":{"type":"null"}},"required":["a\\b\n>"]})", {"<@\"a\\b\n>\":=null</@>\n"},
                 {"<@\"a\\\\b\\n>\":=null</@>\n"});
}

TEST(ToolCalls, ArgumentsAsAnObject) {
  CallForm form = Marked();
  form.parameter.clear();
  const auto grammar = MustCompileCalls(
      form, {{"f", R"({"type":["object","null"],"properties":{"s":{"type":"string"}},"required":["s"]})"}, {"g", ""}});
  CheckCalls(grammar, {One("{\"s\": \"x\\n\"}"), "@calls\n@call g:\n{}@done\n@end"},
             {One("null"), One("{}"), One("{\"s\":1}"), "@calls\n@call g:\n{\"a\":1}@done\n@end"});
}

TEST(ToolCalls, Errors) {
  const auto schema = [](std::string text) { return std::vector<CallableTool>{{"ok", ""}, {"f", std::move(text)}}; };
  EXPECT_THAT(CallsError(Marked(), {}), HasSubstr("tools: expected at least one"));
  EXPECT_THAT(CallsError(Marked(), schema("{")), HasSubstr("tool f: json schema: not JSON"));
  EXPECT_THAT(CallsError(Marked(), schema("[]")), HasSubstr("tool f: json schema: #: expected a schema"));
  EXPECT_THAT(CallsError(Marked(), schema(R"({"properties":{"a":{"not":{}}}})")),
              HasSubstr("tool f: json schema: #/properties/a: keyword 'not' is not supported"));
  EXPECT_THAT(CallsError(Marked(), schema(R"({"properties":{"a\"":{}}})")), HasSubstr("cannot hold a quotation mark"));
  EXPECT_THAT(CallsError(Marked(), schema(R"({"enum":[{}]})")), HasSubstr("'enum' is not supported for all arguments"));
  for (const char* none : {R"({"type":"string"})", "false"}) {
    EXPECT_THAT(CallsError(Marked(), schema(none)), HasSubstr("tool f: no arguments can satisfy its schema"));
  }
  // What only shows when all is put together: such a tool is never called, and alone it is an error.
  const char* const never = R"({"properties":{"a":{"pattern":"a","maxLength":0,"type":"string"}},"required":["a"]})";
  EXPECT_EQ(CallsError(Marked(), schema(never)), "no error");
  EXPECT_THAT(CallsError(Marked(), {{"f", never}}), HasSubstr("tool calls: no text can satisfy it"));
  EXPECT_THAT(CallsError(Marked(), schema(R"({"$ref":"#"})")), HasSubstr("refers to itself"));
  // A schema that goes round in values of one place: an end is put to it.
  EXPECT_THAT(CallsError(Marked(), schema(R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}]}},)"
                                          R"("properties":{"x":{"$ref":"#/$defs/a"}}})")),
              HasSubstr("json schema: "));
  CallForm form = Marked();
  form.end = Control("<O>");
  EXPECT_THAT(CallsError(form, schema("")), HasSubstr("the tokenizer has no control token <O>"));
  form.end = "\x01<M>";
  EXPECT_THAT(CallsError(form, schema("")), HasSubstr("has no end"));
  for (const char* spec : {"", "[]", "{}", R"({"tools":[1]})"}) {
    EXPECT_THAT(CompileError(Kind::kToolCalls, spec), HasSubstr("tool calls: "));
  }
}

CallForm Dsml(std::string_view block) {
  const std::string dsml = Control(text::kDsmlText);
  return {.begin = fmt::format("\n\n<{}{}>\n", dsml, block),
          .end = fmt::format("</{}{}>", dsml, block),
          .call = fmt::format("<{}invoke name=\"", dsml),
          .name_end = "\">\n",
          .call_end = fmt::format("</{}invoke>\n", dsml),
          .parameter = fmt::format("<{}parameter name=", dsml),
          .as_text = " string=\"true\">",
          .as_json = " string=\"false\">",
          .parameter_end = fmt::format("</{}parameter>\n", dsml),
          .no_parameters = "\n"};
}

// Draws until the end, and gives the tokens to the parser as they come. From `patience` tokens on, what closes
// something is preferred. Before each token, drafts from the mask are tried and taken back.
void Walk(const std::shared_ptr<const Grammar>& grammar, int patience, std::mt19937* random, text::OutputParser* parser,
          std::string* output) {
  const auto tokenizer = BundledTokenizer();
  Matcher matcher(grammar);
  std::vector<uint32_t> mask(grammar->vocabulary().mask_words());
  const auto draw = [&](bool patient) {
    EXPECT_TRUE(matcher.FillMask(mask).ok());
    std::vector<int32_t> allowed, closing;
    for (int32_t id = 0; id < grammar->vocabulary().size(); ++id) {
      if (!HasBit(mask, id)) continue;
      allowed.push_back(id);
      const std::string_view token = grammar->vocabulary().Text(id);
      if (token.empty() || std::string_view("\"]}</\xFF").find(token[0]) != token.npos) closing.push_back(id);
    }
    if (allowed.empty()) return -1;
    const std::vector<int32_t>& from = closing.empty() || (patient && (*random)() % 8 != 0) ? allowed : closing;
    return from[(*random)() % from.size()];
  };
  for (int step = 0; step < 40 * patience; ++step) {
    if (step % 7 == 0) {
      std::vector<int32_t> drafts;
      for (size_t i = 0; i < 5 && !matcher.IsTerminated(); ++i) {
        drafts.push_back(draw(true));
        ASSERT_TRUE(matcher.Accept(drafts.back()));
      }
      ASSERT_TRUE(matcher.Rollback(drafts.size()));
      ASSERT_EQ(matcher.AcceptedPrefix(drafts), drafts.size());
    }
    const int32_t token = draw(step < patience);
    ASSERT_GE(token, 0) << "nothing can follow " << *output;
    ASSERT_TRUE(matcher.Accept(token));
    const std::string bytes(tokenizer->TokenBytes(token));
    parser->Push(bytes, tokenizer->IsAdded(token) ? text::Origin::kControl : text::Origin::kOrdinary);
    *output += bytes;
    if (!matcher.IsTerminated()) continue;
    parser->Finish(text::EndCause::kStop);
    return;
  }
  FAIL() << "no end of " << output->substr(0, 300);
}

TEST(ToolCalls, WhatIsDrawnIsReadAsCallsThatFit) {
  const std::vector<CallableTool> tools = {
      {"now", ""},
      {"add",
       R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer","minimum":-9,"maximum":99}},
                  "required":["a","b"]})"},
      {"say",
       R"({"type":"object","properties":{"text":{"type":"string","minLength":1},"mode":{"enum":["loud","é\"<",3]},
                  "tags":{"type":"array","items":{"type":"string"},"maxItems":3},
                  "at":{"type":"object","properties":{"x":{"type":"number"}},"required":["x"]},
                  "who":{"type":["string","null"]},"maybe":{"type":"string","nullable":true}},
                  "required":["text","mode"]})"},
      {"set", R"({"type":"object","additionalProperties":{"type":["boolean","string"]}})"},
      {"any", R"({"type":"object"})"},
  };
  for (const char* block : {"tool_calls", "function_calls"}) {
    std::mt19937 random(21);
    const auto grammar = MustCompileCalls(Dsml(block), tools, false, BundledVocabulary());
    ASSERT_NE(grammar, nullptr);
    text::ParserOptions options;
    options.pass_unknown_tools = false;
    for (const CallableTool& tool : tools) {
      options.tools.push_back({tool.name, tool.schema.empty() ? text::Json() : text::Json::parse(tool.schema)});
    }
    size_t calls = 0;
    for (int i = 0; i < 60; ++i) {
      text::OutputParser parser(options);
      std::string output;
      Walk(grammar, 60, &random, &parser, &output);
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_EQ(parser.message().content, "") << output;
      EXPECT_EQ(parser.BrokenMarkup(), "");
      EXPECT_FALSE(parser.incomplete_call().has_value());
      ASSERT_FALSE(parser.message().tool_calls.empty()) << output;
      for (const text::ToolCall& call : parser.message().tool_calls) {
        ++calls;
        const auto tool = std::find_if(tools.begin(), tools.end(), [&](const auto& t) { return t.name == call.name; });
        ASSERT_NE(tool, tools.end()) << call.name;
        const Json schema = tool->schema.empty() ? Json{{"maxProperties", 0}} : Json::parse(tool->schema);
        const Json arguments = Json::parse(call.arguments, nullptr, false);
        ASSERT_TRUE(arguments.is_object()) << output;
        ASSERT_TRUE(SchemaValidator(schema).Valid(arguments)) << output << "\n" << call.arguments;
      }
    }
    EXPECT_GT(calls, 60u);
  }
}

}  // namespace
}  // namespace hadal::guided::test
