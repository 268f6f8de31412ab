// The published chat-encoding vectors, byte for byte: prompts of both dialects, strict parses, and the streaming parser
// over every completion in them cut at every byte.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "support/paths.h"
#include "text/chat.h"
#include "text/output_parser.h"

namespace hadal::text {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Json ReadJson(const std::string& path) {
  absl::StatusOr<Json> json = ParseJson(ReadFile(path));
  EXPECT_TRUE(json.ok()) << path << ": " << json.status();
  return json.ok() ? *std::move(json) : Json();
}

std::vector<Json> ReadLines(const std::string& path) {
  std::vector<Json> records;
  std::stringstream lines(ReadFile(path));
  for (std::string line; std::getline(lines, line);) {
    absl::StatusOr<Json> json = ParseJson(line);
    EXPECT_TRUE(json.ok()) << path << ": " << json.status();
    if (json.ok()) records.push_back(*std::move(json));
  }
  return records;
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \n\r\t");
  const size_t end = text.find_last_not_of(" \n\r\t");
  return begin == text.npos ? "" : text.substr(begin, end + 1 - begin);
}

ChatOptions InMode(ThinkingMode mode) {
  ChatOptions options;
  options.mode = mode;
  return options;
}

// What options of a vector say; an error where they name something that does not exist.
absl::StatusOr<ChatOptions> ReadOptions(const Json& options, const std::string& mode) {
  ChatOptions out;
  HADAL_ASSIGN_OR_RETURN(out.mode, ParseThinkingMode(mode));
  HADAL_ASSIGN_OR_RETURN(out.effort, ParseEffort(options.value("reasoning_effort", std::string())));
  out.drop_thinking = options.value("drop_thinking", true);
  out.add_bos = options.value("add_default_bos_token", true);
  if (options.contains("context")) out.context = &options["context"];
  return out;
}

void ExpectPrompt(ChatFormat format, const Json& messages, const absl::StatusOr<ChatOptions>& options,
                  const Json& test) {
  absl::StatusOr<Prompt> prompt = options.ok() ? EncodeChat(format, messages, *options) : options.status();
  if (test.value("error", false)) {
    EXPECT_FALSE(prompt.ok()) << prompt->Text();
    return;
  }
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->Text(), test["expected"].get<std::string>());
  EXPECT_EQ(prompt->starts_in_reasoning, test["expected"].get<std::string>().ends_with("<think>"));
}

// One text in one mode, with what the parser must be told.
std::string Describe(const ParsedMessage& message) {
  Json out = Json::object();
  out["reasoning"] = message.reasoning;
  out["content"] = message.content;
  for (const ToolCall& call : message.tool_calls) out["calls"].push_back({call.name, call.arguments});
  return DumpJson(out);
}

std::string Concatenated(const std::vector<OutputEvent>& events) {
  ParsedMessage message;
  std::vector<ToolCall> calls;
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        message.reasoning += event.text;
        break;
      case OutputEvent::Kind::kContent:
        message.content += event.text;
        break;
      case OutputEvent::Kind::kCallBegin:
        calls.push_back({event.text, "", event.call});
        break;
      case OutputEvent::Kind::kCallArguments:
        calls.back().arguments += event.text;
        break;
      case OutputEvent::Kind::kCallEnd:
        if (event.complete) message.tool_calls.push_back(calls.back());
    }
  }
  return Describe(message);
}

void ExpectSameAtEveryCut(const std::string& text, const ParserOptions& options, const std::string& expected) {
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    OutputParser parser(options);
    std::vector<OutputEvent> events = parser.Push(std::string_view(text).substr(0, cut));
    for (OutputEvent& event : parser.Push(std::string_view(text).substr(cut))) events.push_back(event);
    for (OutputEvent& event : parser.Finish(EndCause::kStop)) events.push_back(event);
    ASSERT_EQ(Concatenated(events), expected) << "cut at " << cut;
    ASSERT_EQ(Describe(parser.message()), expected) << "cut at " << cut;
  }
}

void RunParseCase(const Json& test, const std::string& mode_name, Dialect dialect) {
  const std::string text = test["text"].get<std::string>();
  const ThinkingMode mode = *ParseThinkingMode(mode_name);
  const absl::StatusOr<ParsedMessage> parsed = ParseStrict(text, mode, dialect);
  if (test.value("error", false)) {
    EXPECT_FALSE(parsed.ok()) << Describe(*parsed);
  } else {
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const Json& expected = test["expected"];
    EXPECT_EQ(parsed->content, expected["content"].get<std::string>());
    EXPECT_EQ(parsed->reasoning, expected["reasoning_content"].get<std::string>());
    ASSERT_EQ(parsed->tool_calls.size(), expected["tool_calls"].size());
    for (size_t i = 0; i < parsed->tool_calls.size(); ++i) {
      const Json& function = expected["tool_calls"][i]["function"];
      EXPECT_EQ(parsed->tool_calls[i].name, function["name"].get<std::string>());
      EXPECT_EQ(parsed->tool_calls[i].arguments, function["arguments"].get<std::string>());
    }
  }
  ParserOptions options;
  options.starts_in_reasoning = mode == ThinkingMode::kThinking;
  const ParsedMessage robust = ParseRobust(text, options).message;
  // Only where the strict parser passes a value that is no JSON do the two differ.
  const bool bad_value = text.find("not json") != text.npos;
  if (parsed.ok() && !bad_value) {
    EXPECT_EQ(Describe(robust), Describe(*parsed));
  }
  EXPECT_EQ(robust.content.find("DSML"), std::string::npos) << robust.content;
  for (const ToolCall& call : robust.tool_calls) EXPECT_TRUE(ParseJson(call.arguments).ok()) << call.arguments;
  ExpectSameAtEveryCut(text, options, Describe(robust));
}

TEST(ChatGoldenV4, VendorCases) {
  const std::string root = test::VectorsPath("chat-encoding-v4") + "/";
  for (int i = 1; i <= 4; ++i) {
    SCOPED_TRACE(i);
    Json messages = ReadJson(root + "test_input_" + std::to_string(i) + ".json");
    if (messages.is_object()) {
      Json tools = messages["tools"];
      messages = Json(messages["messages"]);
      ASSERT_EQ(AttachToRequest(tools, Json(), &messages).value(), 0);
    }
    const auto prompt = EncodeChatV4(messages, InMode(i == 4 ? ThinkingMode::kChat : ThinkingMode::kThinking));
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(prompt->Text(), ReadFile(root + "test_output_" + std::to_string(i) + ".txt"));
  }
}

TEST(ChatGoldenV4, EncodeCases) {
  const Json cases = ReadJson(test::VectorsPath("chat-encoding-v4") + "/extra_cases.json");
  ASSERT_EQ(cases["encode"].size(), 46);
  for (const Json& test : cases["encode"]) {
    SCOPED_TRACE(test["name"].get<std::string>());
    const Json& options = test["options"];
    ExpectPrompt(ChatFormat::kV4, test["messages"], ReadOptions(options, options["thinking_mode"].get<std::string>()),
                 test);
  }
}

TEST(ChatGoldenV4, ParseCases) {
  const Json cases = ReadJson(test::VectorsPath("chat-encoding-v4") + "/extra_cases.json");
  ASSERT_EQ(cases["parse"].size(), 19);
  for (const Json& test : cases["parse"]) {
    SCOPED_TRACE(test["name"].get<std::string>());
    RunParseCase(test, test["mode"].get<std::string>(), Dialect::kV4);
  }
}

// The assistant turns of the vendor's outputs are completions: what follows <think> up to the end token.
TEST(ChatGoldenV4, VendorOutputsStreamAlikeAtEveryByte) {
  const std::string root = test::VectorsPath("chat-encoding-v4") + "/";
  int turns = 0;
  for (int i = 1; i <= 4; ++i) {
    const std::string text = ReadFile(root + "test_output_" + std::to_string(i) + ".txt");
    for (size_t at = text.find(kAssistantText); at != text.npos; at = text.find(kAssistantText, at + 1)) {
      std::string completion = text.substr(at + kAssistantText.size());
      const size_t end = completion.find(kEosText);
      if (end == completion.npos) continue;
      completion.resize(end + kEosText.size());
      ParserOptions options;
      options.starts_in_reasoning = completion.starts_with(kThinkText);
      completion.erase(0, options.starts_in_reasoning ? kThinkText.size() : kThinkEndText.size());
      if (completion.starts_with("<｜action｜>")) continue;
      const auto mode = options.starts_in_reasoning ? ThinkingMode::kThinking : ThinkingMode::kChat;
      const auto strict = ParseStrict(completion, mode, Dialect::kV4);
      ASSERT_TRUE(strict.ok()) << strict.status();
      ExpectSameAtEveryCut(completion, options, Describe(*strict));
      ++turns;
    }
  }
  EXPECT_EQ(turns, 7);
}

// --- Evaluation prompts: the encoder rebuilds them from their parts --------------------------------------------------

Json EvalMessages(const Json& record, size_t* image_parts) {
  *image_parts = 0;
  Json messages = Json::array();
  if (!record["system"].get<std::string>().empty()) {
    messages.push_back({{"role", "system"}, {"content", record["system"]}});
  }
  int calls = 0;
  if (record.contains("history")) {
    for (const Json& turn : record["history"]) {
      messages.push_back({{"role", "user"}, {"content", turn["user"]}});
      Json assistant = {{"role", "assistant"}, {"content", nullptr}, {"reasoning_content", turn["reasoning"]}};
      for (const Json& call : turn["calls"]) {
        const Json function = {{"name", call["name"]}, {"arguments", call["arguments"]}};
        assistant["tool_calls"].push_back({{"id", std::to_string(calls++)}, {"function", function}});
      }
      messages.push_back(assistant);
    }
  }
  const std::string user = record["user"].get<std::string>();
  constexpr std::string_view kOpen = "<tool_result>", kClose = "</tool_result>";
  if (user.starts_with(kOpen)) {
    const std::string result = user.substr(kOpen.size(), user.size() - kOpen.size() - kClose.size());
    messages.push_back({{"role", "tool"}, {"tool_call_id", "0"}, {"content", result}});
    return messages;
  }
  // Images on lines of their own become parts of a content list; elsewhere the placeholder stays (plain) text.
  Json parts = Json::array();
  size_t images = 0;
  std::stringstream lines(user);
  for (std::string line; std::getline(lines, line);) {
    if (line == kImageText) {
      ++images;
      parts.push_back({{"type", "image_url"}, {"image_url", {{"url", "data:"}}}});
    } else if (!parts.empty() && parts.back()["type"] == "text") {
      parts.back()["text"] = parts.back()["text"].get<std::string>() + "\n" + line;
    } else {
      parts.push_back({{"type", "text"}, {"text", line}});
    }
  }
  messages.push_back({{"role", "user"}, {"content", images == 0 ? Json(user) : parts}});
  *image_parts = images;
  return messages;
}

void RunEvalSet(const std::string& path, size_t count) {
  const std::vector<Json> records = ReadLines(path);
  EXPECT_EQ(records.size(), count);
  for (const Json& record : records) {
    SCOPED_TRACE(record["id"].get<std::string>());
    size_t image_parts = 0;
    Json messages = EvalMessages(record, &image_parts);
    ASSERT_TRUE(AttachToRequest(record["tools"], Json(), &messages).ok());
    ChatOptions options = InMode(*ParseThinkingMode(record["mode"].get<std::string>()));
    options.allow_images = true;
    const absl::StatusOr<Prompt> prompt = EncodeChatV4(messages, options);
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(prompt->Text(), record["prompt"].get<std::string>());
    EXPECT_EQ(prompt->images.size(), image_parts);
    if (!record.contains("expected_calls")) continue;
    ParserOptions parser;
    parser.tools = ReadToolSpecs(record["tools"]).value();
    const ParsedMessage message = ParseRobust(record["expected"].get<std::string>(), parser).message;
    ASSERT_EQ(message.tool_calls.size(), record["expected_calls"].size());
    for (size_t i = 0; i < message.tool_calls.size(); ++i) {
      EXPECT_EQ(message.tool_calls[i].name, record["expected_calls"][i]["name"].get<std::string>());
      EXPECT_EQ(message.tool_calls[i].arguments, DumpJson(record["expected_calls"][i]["arguments"]));
    }
  }
}

TEST(ChatGoldenV4, ToolPromptsFromTheirParts) { RunEvalSet(test::DataPath("chat-encoding-v4/eval_tools.jsonl"), 30); }

// 1000 prompts.
class ChatGoldenFull : public ::testing::TestWithParam<std::string> {};
TEST_P(ChatGoldenFull, AllEvaluationPromptsFromTheirParts) {
  for (const char* name : {"arith", "ocr", "recall", "text", "tools"}) {
    RunEvalSet(GetParam() + "/" + name + ".jsonl", 200);
  }
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ChatGoldenFull);  // without the full sets
INSTANTIATE_TEST_SUITE_P(Eval, ChatGoldenFull, ::testing::ValuesIn(test::FullVectorsOnly("eval")),
                         [](const auto&) { return "all"; });

// --- V3.2 ------------------------------------------------------------------------------------------------------------

TEST(ChatGoldenV32, VendorPairs) {
  const std::string root = test::VectorsPath("chat-encoding-v32") + "/";
  for (const char* suffix : {"", "_search_w_date", "_search_wo_date"}) {
    SCOPED_TRACE(suffix);
    Json input = ReadJson(root + "test_input" + suffix + ".json");
    Json messages = Json(input["messages"]);
    if (input.contains("tools")) messages[0]["tools"] = input["tools"];
    const absl::StatusOr<Prompt> prompt = EncodeChatV32(messages, InMode(ThinkingMode::kThinking));
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(Trimmed(prompt->Text()), Trimmed(ReadFile(root + "test_output" + suffix + ".golden")));
  }
}

TEST(ChatGoldenV32, Cases) {
  int encode = 0, parse = 0;
  for (const Json& test : ReadLines(test::VectorsPath("chat-encoding-v32") + "/cases.jsonl")) {
    SCOPED_TRACE(test["name"].get<std::string>());
    const std::string mode = test["thinking_mode"].get<std::string>();
    if (test["kind"] == "encode") {
      ++encode;
      ExpectPrompt(ChatFormat::kV32, test["messages"], ReadOptions(test["options"], mode), test);
    } else {
      ++parse;
      RunParseCase(test, mode, Dialect::kV32);
    }
  }
  EXPECT_EQ(encode + parse, 50);
}

// Rendered by the published templates themselves.
TEST(ChatGoldenV31, Cases) {
  std::map<std::string, int> seen;
  for (const Json& test : ReadLines(test::DataPath("chat-encoding-v31") + "/cases.jsonl")) {
    SCOPED_TRACE(DumpJson(test));
    const std::string name = test["format"].get<std::string>();
    for (const ChatFormat format : {ChatFormat::kV31, ChatFormat::kV31Terminus, ChatFormat::kV3}) {
      if (ChatFormatName(format) != name) continue;
      ++seen[name];
      ExpectPrompt(format, test["messages"],
                   InMode(test["thinking"].get<bool>() ? ThinkingMode::kThinking : ThinkingMode::kChat), test);
    }
  }
  EXPECT_EQ(seen.size(), 3);
  for (const auto& [name, count] : seen) EXPECT_GE(count, 20) << name;
}

}  // namespace
}  // namespace hadal::text
