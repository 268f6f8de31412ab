// A tool that has to be called: which calls the answer is held to, in every protocol, and what comes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "guided/matcher.h"
#include "runtime/generator.h"
#include "serving/anthropic/messages.h"
#include "serving/openai/request_parts.h"
#include "serving/responses/responses.h"
#include "serving_fixture.h"

namespace hadal::serving {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using text::ChatFormat;
using text::Json;

constexpr const char* kAdd =
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]})";
constexpr const char* kSay = R"({"type": "object", "properties": {"text": {"type": "string", "maxLength": 30}}})";

std::string ChatTools() {
  return fmt::format(R"("tools": [{{"type": "function", "function": {{"name": "add", "parameters": {}}}}},
                        {{"type": "function", "function": {{"name": "say", "parameters": {}}}}},
                        {{"type": "function", "function": {{"name": "now"}}}}])",
                     kAdd, kSay);
}
std::string Choosing(std::string_view choice, std::string_view more = "") {
  return Chat(fmt::format(R"({}, "tool_choice": {}{})", ChatTools(), choice, more));
}
constexpr const char* kNamed = R"({"type": "function", "function": {"name": "say"}})";
std::string Allowed(std::string_view mode, std::string_view names) {
  std::string tools;
  for (size_t begin = 0; begin < names.size(); begin += 4) {
    tools += fmt::format(R"({}{{"type": "function", "function": {{"name": "{}"}}}})", begin == 0 ? "" : ", ",
                         names.substr(begin, 3));
  }
  return fmt::format(R"({{"type": "allowed_tools", "allowed_tools": {{"mode": "{}", "tools": [{}]}}}})", mode, tools);
}

// A byte for each token, and the control tokens that calls are written in.
constexpr int32_t kEnd = 256;
const std::vector<std::string_view> kControls = {text::kDsmlText,      text::kCallsBeginText, text::kCallsEndText,
                                                 text::kCallBeginText, text::kCallSepText,    text::kCallEndText};
std::shared_ptr<const guided::TokenVocabulary> CallVocabulary() {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  bytes.emplace_back("<end>");
  std::vector<int32_t> special;
  for (const std::string_view control : kControls) {
    special.push_back(static_cast<int32_t>(bytes.size()));
    bytes.emplace_back(control);
  }
  const std::vector<int32_t> ends = {kEnd};
  return *guided::TokenVocabulary::Create(std::move(bytes), special, ends);
}

// Tokens of that vocabulary.
std::vector<int32_t> TokensOf(std::string_view text) {
  std::vector<int32_t> tokens;
  while (!text.empty()) {
    size_t i = 0;
    while (i < kControls.size() && !text.starts_with(kControls[i])) ++i;
    tokens.push_back(i < kControls.size() ? static_cast<int32_t>(kEnd + 1 + i) : static_cast<uint8_t>(text[0]));
    text.remove_prefix(i < kControls.size() ? kControls[i].size() : 1);
  }
  return tokens;
}

TEST(ToolChoice, FormsAreThoseOfTheEncoders) {
  const Json calls = Body(R"([
      {"id": "1", "type": "function", "function": {"name": "say", "arguments": "{\"text\": \"a \\\"b\\\"\\n\", \"n\": 5}"}},
      {"id": "2", "type": "function", "function": {"name": "now", "arguments": "{}"}}])");
  const std::vector<guided::CallableTool> tools = {
      {"say", R"({"properties":{"text":{"type":"string"},"n":{"type":"integer"}}})"}, {"now", ""}};
  for (const ChatFormat format : {ChatFormat::kV4, ChatFormat::kV32, ChatFormat::kV31Terminus, ChatFormat::kV31,
                                  ChatFormat::kV3, ChatFormat::kR1}) {
    SCOPED_TRACE(text::ChatFormatName(format));
    const Json messages = {{{"role", "user"}, {"content", "x"}},
                           {{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}}};
    const auto prompt = text::EncodeChat(format, messages, {});
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    std::string answer = prompt->Text();
    const std::string block = text::MarkupOf(format) == text::CallMarkup::kDsml
                                  ? fmt::format("\n\n<{}", text::kDsmlText)
                                  : std::string(text::kCallsBeginText);
    answer = answer.substr(answer.find(block));
    // V3.1-Terminus opens the next answer behind it.
    ASSERT_NE(answer.find(text::kEosText), answer.npos) << answer;
    answer.resize(answer.find(text::kEosText));
    const auto grammar = guided::Compile(guided::ToolCallsSpec(CallFormOf(format), tools, false), CallVocabulary());
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    guided::Matcher matcher(*grammar);
    const std::vector<int32_t> tokens = TokensOf(answer);
    EXPECT_EQ(matcher.AcceptedPrefix(tokens), tokens.size()) << answer;
    for (const int32_t token : tokens) ASSERT_TRUE(matcher.Accept(token)) << answer;
    EXPECT_TRUE(matcher.Accept(kEnd)) << answer;
  }
}

TEST(ToolChoice, HoldsTheAnswer) {
  const auto grammar_of = [](const std::string& body) { return Accepted(body).requests[0].grammar; };
  const auto required = grammar_of(Choosing("\"required\"")), named = grammar_of(Choosing(kNamed));
  ASSERT_NE(required, nullptr);
  ASSERT_NE(named, nullptr);
  EXPECT_NE(required, named);
  EXPECT_EQ(grammar_of(Choosing("\"auto\"")), nullptr);
  EXPECT_EQ(grammar_of(Choosing("\"none\"")), nullptr);
  EXPECT_EQ(grammar_of(Choosing("null")), nullptr);
  // The prompt does not depend on it: prefixes are found again.
  EXPECT_EQ(Accepted(Choosing(kNamed)).prompts[0].ids, Accepted(Choosing("\"auto\"")).prompts[0].ids);
  // A compiled one is found again too, so those that demand the same are one.
  EXPECT_EQ(grammar_of(Choosing("\"required\"")), required);
  EXPECT_EQ(grammar_of(Choosing("\"required\"", R"(, "parallel_tool_calls": true)")), required);
  const auto one_of_all = grammar_of(Choosing("\"required\"", R"(, "parallel_tool_calls": false)"));
  EXPECT_NE(one_of_all, required);
  EXPECT_EQ(grammar_of(Choosing(kNamed, R"(, "parallel_tool_calls": true)")), named);
  EXPECT_EQ(grammar_of(Choosing(Allowed("required", "add,say,now"))), required);
  EXPECT_EQ(grammar_of(Choosing(Allowed("required", "say,say"), R"(, "parallel_tool_calls": false)")), named);
  EXPECT_EQ(grammar_of(Choosing(Allowed("auto", "add"))), nullptr);

  const auto accepts = [](const auto& grammar, std::string_view text) {
    guided::Matcher matcher(grammar);
    for (const int32_t token : BundledEngine().tokenizer()->Encode(text, text::Tokenizer::Special::kMatch)) {
      if (!matcher.Accept(token)) return false;
    }
    return matcher.IsAccepting();
  };
  const auto block = [](std::string_view calls) {
    return fmt::format("\n\n<｜DSML｜tool_calls>\n{}</｜DSML｜tool_calls>", calls);
  };
  const std::string now = "<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n";
  const std::string say =
      "<｜DSML｜invoke name=\"say\">\n<｜DSML｜parameter name=\"text\" string=\"true\">Hi</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n";
  EXPECT_TRUE(accepts(required, block(now + say)));
  EXPECT_TRUE(accepts(one_of_all, block(now)));
  EXPECT_FALSE(accepts(one_of_all, block(now + say)));
  EXPECT_TRUE(accepts(named, block(say)));
  EXPECT_FALSE(accepts(named, block(say + say)));
  EXPECT_FALSE(accepts(named, block(now)));
  EXPECT_FALSE(accepts(required, "Hi"));
  EXPECT_FALSE(accepts(required, block("")));
}

TEST(ToolChoice, ParsersKnowWhoMayBeCalled) {
  const auto names = [](const std::string& choice) {
    const auto parser = *Accepted(Choosing(choice)).requests[0].parser;
    EXPECT_TRUE(parser.tools_allowed);
    std::string all;
    for (const text::ToolSpec& tool : parser.tools) all += tool.name + " ";
    return all + (parser.pass_unknown_tools ? "and others" : "alone");
  };
  EXPECT_EQ(names("\"auto\""), "add say now and others");
  EXPECT_EQ(names("\"required\""), "add say now and others");
  EXPECT_EQ(names(kNamed), "say alone");
  EXPECT_EQ(names(Allowed("auto", "now,add")), "now add alone");
}

TEST(ToolChoice, IsTheSameInEveryProtocol) {
  const auto grammar = [](const absl::StatusOr<Job>& job) {
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->requests[0].grammar : nullptr;
  };
  const auto responses = [&](std::string_view choice) {
    return ParseResponses(
        Body(fmt::format(R"({{"input": "x", "tools": [{{"type": "function", "name": "add", "parameters": {}}},
            {{"type": "function", "name": "say", "parameters": {}}}, {{"type": "function", "name": "now"}}],
            "tool_choice": {}}})",
                         kAdd, kSay, choice)),
        BundledEngine());
  };
  const auto messages = [&](std::string_view choice) {
    return ParseMessages(
        Body(fmt::format(R"({{"max_tokens": 5, "messages": [{{"role": "user", "content": "x"}}], "tools": [
            {{"name": "add", "input_schema": {}}}, {{"name": "say", "input_schema": {}}}, {{"name": "now"}}],
            "tool_choice": {}}})",
                         kAdd, kSay, choice)),
        BundledEngine());
  };
  const auto required = Accepted(Choosing("\"required\"")).requests[0].grammar;
  const auto named = Accepted(Choosing(kNamed)).requests[0].grammar;
  const auto one = Accepted(Choosing("\"required\"", R"(, "parallel_tool_calls": false)")).requests[0].grammar;
  EXPECT_EQ(grammar(responses("\"required\"")), required);
  EXPECT_EQ(grammar(responses(R"({"type": "function", "name": "say"})")), named);
  EXPECT_EQ(grammar(responses("\"required\", \"parallel_tool_calls\": false")), one);
  EXPECT_EQ(grammar(responses(R"({"type": "allowed_tools", "mode": "required", "tools": [
      {"type": "function", "name": "add"}, {"type": "function", "name": "say"}, {"type": "function", "name": "now"}]})")),
            required);
  EXPECT_EQ(grammar(messages(R"({"type": "any"})")), required);
  EXPECT_EQ(grammar(messages(R"({"type": "any", "disable_parallel_tool_use": true})")), one);
  EXPECT_EQ(grammar(messages(R"({"type": "tool", "name": "say"})")), named);
  EXPECT_EQ(grammar(messages(R"({"type": "auto"})")), nullptr);

  const auto refused = [](const absl::StatusOr<Job>& job) { return std::string(Message(job.status())); };
  EXPECT_THAT(refused(responses(R"({"type": "function", "name": "sub"})")), StartsWith("tool_choice.name: "));
  EXPECT_THAT(refused(responses(R"({"type": "allowed_tools", "mode": "some", "tools": []})")),
              StartsWith("tool_choice.mode: "));
  EXPECT_THAT(refused(responses(R"({"type": "allowed_tools", "mode": "auto", "tools": []})")),
              StartsWith("tool_choice.tools: "));
  EXPECT_THAT(refused(responses(R"({"type": "allowed_tools", "mode": "auto", "tools": [5]})")),
              StartsWith("tool_choice.tools[0]: "));
  EXPECT_THAT(refused(responses(R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]})")),
              StartsWith("tool_choice.tools[0].type: "));
  EXPECT_THAT(refused(responses(R"({"type": "allowed_tools", "mode": "auto", "tools": [
      {"type": "function", "name": "add"}, {"type": "function", "name": "sub"}]})")),
              StartsWith("tool_choice.tools[1].name: "));
  EXPECT_THAT(refused(messages(R"({"type": "tool", "name": "sub"})")), StartsWith("tool_choice.name: "));
}

TEST(ToolChoice, Refusals) {
  const std::vector<std::pair<std::string, const char*>> rows = {
      {Choosing(R"({"type": "allowed_tools"})"), "tool_choice.allowed_tools: expected an object"},
      {Choosing(R"({"type": "allowed_tools", "allowed_tools": {"tools": []}})"), "tool_choice.allowed_tools.mode: "},
      {Choosing(R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}})"),
       "tool_choice.allowed_tools.tools: "},
      {Choosing(Allowed("auto", "sub")), "tool_choice.allowed_tools.tools[0].function.name: expected the name of one"},
      {Choosing(R"({"type": "custom"})"), "tool_choice: expected \"none\", \"auto\", \"required\""},
      {Choosing("\"required\"", R"(, "response_format": {"type": "json_object"})"),
       "tool_choice: expected no guided decoding"},
      {Choosing(kNamed, R"(, "structured_outputs": {"regex": "a"})"), "tool_choice: expected no guided decoding"},
      {Chat(R"("tool_choice": {"type": "function", "function": {"name": "add"}})"), "tool_choice: expected only toge"},
      {Chat(R"("tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}}],
                "tool_choice": "required")"),
       "tool_choice: tool calls: tool f: json schema: #/properties/a: keyword 'not' is not supported"},
      {Chat(R"("tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"minimum": 1e999}}}}}],
                "tool_choice": "required")"),
       "tool_choice: tool calls: tool f: json schema: "},
      {Chat(R"("tools": [{"function": {"name": "f", "parameters": {"type": "string"}}}], "tool_choice": "required")"),
       "tool_choice: tool calls: tool f: no arguments"},
  };
  for (const auto& [body, start] : rows) EXPECT_THAT(Refusal(body), StartsWith(start)) << body;
  // Where nothing is demanded, a schema is none of the server's business.
  EXPECT_EQ(Refusal(Chat(R"("tools": [{"function": {"name": "f", "parameters": {"not": {}}}}])")), "accepted");
}

runtime::GenerateResult Generated(const Job& job) {
  const auto result = BundledEngine().MakeGenerator().Generate(job.requests[0], [](const auto&) { return true; });
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : runtime::GenerateResult();
}

// Whether the calls are of these tools, with arguments that fit.
void ExpectCalls(const runtime::GenerateResult& result, const std::vector<std::string>& names) {
  EXPECT_EQ(result.finish_reason, runtime::FinishReason::kToolCalls);
  EXPECT_EQ(result.content, "");
  ASSERT_EQ(result.tool_calls.size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(result.tool_calls[i].name, names[i]);
    const Json arguments = Body(result.tool_calls[i].arguments);
    if (names[i] == "add") {
      EXPECT_TRUE(arguments.size() == 2 && arguments["a"].is_number_integer() && arguments["b"].is_number_integer());
    } else if (names[i] == "say") {
      EXPECT_TRUE(arguments.empty() || (arguments.size() == 1 && arguments["text"].is_string()));
    } else {
      EXPECT_TRUE(arguments.empty());
    }
  }
}

TEST(ToolChoice, AnswersAreCalls) {
  const char* const plain = R"(, "temperature": 0, "max_tokens": 300, "thinking": {"type": "disabled"})";
  ExpectCalls(Generated(Accepted(Choosing(kNamed, plain))), {"say"});
  ExpectCalls(Generated(Accepted(Choosing(R"({"type": "function", "function": {"name": "now"}})", plain))), {"now"});
  const runtime::GenerateResult sum =
      Generated(Accepted(Choosing("\"required\"", std::string(plain) + R"(, "parallel_tool_calls": false)")));
  ASSERT_EQ(sum.tool_calls.size(), 1u);
  ExpectCalls(sum, {sum.tool_calls[0].name});
  // Not in the reasoning, which has to end first, and ends with the block: never with the answer.
  const Job thinking = Accepted(Choosing(kNamed, R"(, "temperature": 1.5, "seed": 3, "max_tokens": 900,
      "thinking": {"type": "enabled"}, "thinking_token_budget": 40)"));
  ASSERT_TRUE(thinking.requests[0].parser->starts_in_reasoning);
  const runtime::GenerateResult thought = Generated(thinking);
  EXPECT_GT(thought.reasoning_tokens, 0);
  ExpectCalls(thought, {"say"});
  for (int seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    ExpectCalls(Generated(Accepted(Choosing(kNamed, fmt::format(R"(, "temperature": 2, "seed": {}, "max_tokens": 900,
        "thinking": {{"type": "disabled"}})",
                                                                seed)))),
                {"say"});
  }
}

}  // namespace
}  // namespace hadal::serving
