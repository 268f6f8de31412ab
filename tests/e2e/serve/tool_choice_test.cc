// A tool that has to be called: on every protocol, streamed and whole, the answer is such calls.
#include <fmt/format.h>

#include <thread>

#include "server_process.h"

namespace hadal::test {
namespace {

// A call as each protocol has it, brought to one form.
struct Call {
  std::string name;
  json arguments;
  bool operator==(const Call&) const = default;
};
struct Outcome {
  std::vector<Call> calls;
  std::string text;       // beside them
  std::string reasoning;  // before them
  std::string reason;     // why the answer ended
  bool operator==(const Outcome&) const = default;
};

json Schema(const std::string& tool) {
  if (tool == "add") {
    const json number = {{"type", "integer"}};
    return {{"type", "object"}, {"properties", {{"a", number}, {"b", number}}}, {"required", {"a", "b"}}};
  }
  // One that the model does not know.
  return {{"type", "object"},
          {"properties",
           {{"mood", {{"enum", {"calm", "very \"odd\"", 7}}}},
            {"note", {{"type", "string"}, {"minLength", 3}, {"maxLength", 12}}},
            {"tags", {{"type", "array"}, {"items", {{"type", "boolean"}}}, {"minItems", 1}, {"maxItems", 2}}}}},
          {"required", {"mood", "note", "tags"}}};
}

void ExpectFits(const Call& call) {
  const json& arguments = call.arguments;
  ASSERT_TRUE(arguments.is_object());
  if (call.name == "add") {
    ASSERT_EQ(arguments.size(), 2u) << arguments.dump();
    EXPECT_TRUE(arguments["a"].is_number_integer() && arguments["b"].is_number_integer()) << arguments.dump();
    return;
  }
  ASSERT_EQ(call.name, "feel");
  ASSERT_EQ(arguments.size(), 3u) << arguments.dump();
  const json& mood = arguments["mood"];
  EXPECT_TRUE(mood == "calm" || mood == "very \"odd\"" || mood == 7) << arguments.dump();
  // The text is of ASCII unless the model thinks of something else; characters are no more than bytes.
  EXPECT_GE(arguments["note"].get<std::string>().size(), 3u) << arguments.dump();
  ASSERT_TRUE(arguments["tags"].is_array() && !arguments["tags"].empty() && arguments["tags"].size() <= 2);
  for (const json& tag : arguments["tags"]) EXPECT_TRUE(tag.is_boolean());
}

enum class Choice { kNamed, kRequired };

class Protocol {
 public:
  virtual ~Protocol() = default;
  virtual std::string path() const = 0;
  // Exactly one call of `feel`, or one of either tool.
  virtual json Body(const std::string& question, Choice choice) const = 0;
  virtual Outcome OfWhole(const json& answer) const = 0;
  virtual Outcome OfStream(const std::string& body) const = 0;
  virtual std::string call_reason() const = 0;
};

// Data of the events of a stream with names.
std::vector<json> NamedEvents(const std::string& body) {
  std::vector<json> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = std::min(body.find("\n\n", at), body.size());
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    const size_t data = event.find("data: ");
    if (data == event.npos) continue;
    events.push_back(json::parse(event.substr(data + 6), nullptr, false));
    EXPECT_TRUE(events.back().is_object()) << event;
  }
  return events;
}

json ParsedArguments(const json& text) {
  EXPECT_TRUE(text.is_string());
  const json arguments = json::parse(text.get<std::string>(), nullptr, false);
  EXPECT_TRUE(arguments.is_object()) << text;
  return arguments;
}

class ChatProtocol : public Protocol {
 public:
  std::string path() const override { return "/v1/chat/completions"; }
  std::string call_reason() const override { return "tool_calls"; }
  json Body(const std::string& question, Choice choice) const override {
    json body = Chat(question);
    for (const char* name : {"add", "feel"}) {
      body["tools"].push_back({{"type", "function"}, {"function", {{"name", name}, {"parameters", Schema(name)}}}});
    }
    body["tool_choice"] = "required";
    if (choice == Choice::kNamed) body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "feel"}}}};
    body["parallel_tool_calls"] = false;
    return body;
  }
  Outcome OfWhole(const json& answer) const override {
    const json& message = answer["choices"][0]["message"];
    Outcome outcome;
    for (const json& call : message["tool_calls"]) {
      EXPECT_EQ(call["type"], "function");
      EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
      outcome.calls.push_back({call["function"]["name"], ParsedArguments(call["function"]["arguments"])});
    }
    if (!message["content"].is_null()) outcome.text = message["content"];
    if (message.contains("reasoning_content")) outcome.reasoning = message["reasoning_content"];
    outcome.reason = answer["choices"][0]["finish_reason"];
    return outcome;
  }
  Outcome OfStream(const std::string& body) const override {
    Outcome outcome;
    std::vector<std::string> arguments;
    for (const json& event : EventsOf(body)) {
      for (const json& choice : event["choices"]) {
        const json& delta = choice["delta"];
        outcome.text += delta.value("content", json("")).is_string() ? delta.value("content", "") : "";
        outcome.reasoning += delta.value("reasoning_content", "");
        for (const json& call : delta.value("tool_calls", json::array())) {
          const size_t index = call["index"];
          if (index == outcome.calls.size()) {
            outcome.calls.push_back({call["function"]["name"], nullptr});
            arguments.emplace_back();
          }
          arguments.at(index) += call["function"].value("arguments", "");
        }
        if (!choice["finish_reason"].is_null()) outcome.reason = choice["finish_reason"];
      }
    }
    for (size_t i = 0; i < arguments.size(); ++i) outcome.calls[i].arguments = ParsedArguments(arguments[i]);
    return outcome;
  }
};

class ResponsesProtocol : public Protocol {
 public:
  std::string path() const override { return "/v1/responses"; }
  std::string call_reason() const override { return "completed"; }
  json Body(const std::string& question, Choice choice) const override {
    json body = {{"input", question}, {"temperature", 0}, {"reasoning", {{"effort", "none"}}}};
    for (const char* name : {"add", "feel"}) {
      body["tools"].push_back({{"type", "function"}, {"name", name}, {"parameters", Schema(name)}});
    }
    body["tool_choice"] = "required";
    if (choice == Choice::kNamed) body["tool_choice"] = {{"type", "function"}, {"name", "feel"}};
    body["parallel_tool_calls"] = false;
    return body;
  }
  Outcome OfWhole(const json& answer) const override {
    Outcome outcome;
    for (const json& item : answer["output"]) {
      if (item["type"] == "function_call") {
        EXPECT_TRUE(item["call_id"].get<std::string>().starts_with("call_"));
        outcome.calls.push_back({item["name"], ParsedArguments(item["arguments"])});
      } else if (item["type"] == "message") {
        outcome.text += item["content"][0]["text"].get<std::string>();
      } else {
        outcome.reasoning += item["content"][0]["text"].get<std::string>();
      }
    }
    outcome.reason = answer["status"];
    return outcome;
  }
  Outcome OfStream(const std::string& body) const override {
    const std::vector<json> events = NamedEvents(body);
    std::string arguments;
    for (const json& event : events) {
      if (event["type"] == "response.function_call_arguments.delta") arguments += event["delta"].get<std::string>();
    }
    EXPECT_EQ(events.back()["type"], "response.completed");
    const Outcome outcome = OfWhole(events.back()["response"]);
    EXPECT_EQ(outcome.calls.size(), 1u);
    EXPECT_EQ(ParsedArguments(arguments), outcome.calls.at(0).arguments);
    return outcome;
  }
};

class MessagesProtocol : public Protocol {
 public:
  std::string path() const override { return "/v1/messages"; }
  std::string call_reason() const override { return "tool_use"; }
  json Body(const std::string& question, Choice choice) const override {
    json body = {{"messages", {{{"role", "user"}, {"content", question}}}},
                 {"max_tokens", 400},
                 {"temperature", 0},
                 {"thinking", {{"type", "disabled"}}}};
    for (const char* name : {"add", "feel"}) body["tools"].push_back({{"name", name}, {"input_schema", Schema(name)}});
    body["tool_choice"] = {{"type", "any"}};
    if (choice == Choice::kNamed) body["tool_choice"] = {{"type", "tool"}, {"name", "feel"}};
    body["tool_choice"]["disable_parallel_tool_use"] = true;
    return body;
  }
  Outcome OfWhole(const json& answer) const override {
    Outcome outcome;
    for (const json& block : answer["content"]) {
      if (block["type"] == "tool_use") {
        EXPECT_TRUE(block["id"].get<std::string>().starts_with("toolu_"));
        outcome.calls.push_back({block["name"], block["input"]});
      } else if (block["type"] == "text") {
        outcome.text += block["text"].get<std::string>();
      } else {
        outcome.reasoning += block["thinking"].get<std::string>();
      }
    }
    outcome.reason = answer["stop_reason"];
    return outcome;
  }
  Outcome OfStream(const std::string& body) const override {
    Outcome outcome;
    std::vector<std::string> arguments;
    for (const json& event : NamedEvents(body)) {
      if (event["type"] == "content_block_start" && event["content_block"]["type"] == "tool_use") {
        outcome.calls.push_back({event["content_block"]["name"], nullptr});
        arguments.emplace_back();
      } else if (event["type"] == "content_block_delta") {
        const json& delta = event["delta"];
        if (delta["type"] == "input_json_delta") arguments.back() += delta["partial_json"].get<std::string>();
        outcome.text += delta.value("text", "");
        outcome.reasoning += delta.value("thinking", "");
      } else if (event["type"] == "message_delta") {
        outcome.reason = event["delta"]["stop_reason"];
      }
    }
    for (size_t i = 0; i < arguments.size(); ++i) outcome.calls[i].arguments = ParsedArguments(arguments[i]);
    return outcome;
  }
};

const std::vector<const Protocol*>& Protocols() {
  static const std::vector<const Protocol*> all = {new ChatProtocol, new ResponsesProtocol, new MessagesProtocol};
  return all;
}

// What a body gives, streamed and whole.
Outcome Both(const ServerProcess& server, const Protocol& protocol, json body) {
  SCOPED_TRACE(protocol.path() + " " + body.dump());
  const Answer whole = Client(server.port()).Post(protocol.path(), body.dump());
  EXPECT_EQ(whole.status, 200) << whole.body;
  body["stream"] = true;
  const Answer stream = Client(server.port()).Post(protocol.path(), body.dump());
  EXPECT_EQ(stream.status, 200) << stream.body;
  if (whole.status != 200 || stream.status != 200) return {};
  const Outcome outcome = protocol.OfWhole(json::parse(whole.body));
  EXPECT_EQ(protocol.OfStream(stream.body), outcome) << whole.body << "\n" << stream.body;
  EXPECT_EQ(outcome.reason, protocol.call_reason()) << whole.body;
  EXPECT_EQ(outcome.text, "");
  for (const Call& call : outcome.calls) ExpectFits(call);
  return outcome;
}

TEST(ServeToolChoice, AnswersAreTheCallsThatAreDemanded) {
  for (const Protocol* protocol : Protocols()) {
    const Outcome sum = Both(Shared(), *protocol, protocol->Body("What is 478 + 365?", Choice::kRequired));
    ASSERT_EQ(sum.calls.size(), 1u);
    EXPECT_EQ(sum.calls[0].name, "add");
    EXPECT_EQ(sum.calls[0].arguments, json({{"a", 478}, {"b", 365}}));
    EXPECT_EQ(sum.reasoning, "");
    // What the model would never do by itself.
    const Outcome feeling = Both(Shared(), *protocol, protocol->Body("What is 478 + 365?", Choice::kNamed));
    ASSERT_EQ(feeling.calls.size(), 1u);
    EXPECT_EQ(feeling.calls[0].name, "feel");
  }
}

TEST(ServeToolChoice, HoldsBehindTheReasoning) {
  const std::vector<json> thinking = {{{"thinking", {{"type", "enabled"}}}},
                                      {{"reasoning", {{"effort", "high"}}}},
                                      {{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}}};
  for (size_t i = 0; i < Protocols().size(); ++i) {
    json body = Protocols()[i]->Body("What is 478 + 365?", Choice::kNamed);
    body.update(thinking[i]);
    const Outcome outcome = Both(Shared(), *Protocols()[i], body);
    ASSERT_EQ(outcome.calls.size(), 1u);
    EXPECT_EQ(outcome.calls[0].name, "feel");
    EXPECT_NE(outcome.reasoning, "");
  }
}

TEST(ServeToolChoice, SeveralCalls) {
  ChatProtocol chat;
  json body = chat.Body("What is 478 + 365?", Choice::kRequired);
  body.erase("parallel_tool_calls");
  body["tool_choice"] = {
      {"type", "allowed_tools"},
      {"allowed_tools", {{"mode", "required"}, {"tools", {{{"type", "function"}, {"function", {{"name", "add"}}}}}}}}};
  body["max_tokens"] = 600;
  const Outcome outcome = Both(Shared(), chat, body);
  ASSERT_GE(outcome.calls.size(), 1u);
  for (const Call& call : outcome.calls) EXPECT_EQ(call.name, "add");
}

// Drafts change nothing: neither the tokens of greedy answers nor those of drawn ones.
TEST(ServeToolChoice, IsTheSameWithDrafts) {
  const ServerProcess drafting({"--num-speculative-tokens", "3"});
  for (const double temperature : {0.0, 1.3}) {
    for (const Choice choice : {Choice::kNamed, Choice::kRequired}) {
      for (int seed = 0; seed < 4; ++seed) {
        ChatProtocol chat;
        json body = chat.Body("What is 12 + 7?", choice);
        body.update({{"temperature", temperature}, {"seed", seed}});
        if (seed % 2 == 1) body.update({{"thinking", {{"type", "enabled"}}}, {"thinking_token_budget", 30}});
        const Outcome outcome = Both(drafting, chat, body);
        ASSERT_EQ(outcome.calls.size(), 1u);
        EXPECT_EQ(Both(Shared(), chat, body), outcome);
      }
    }
  }
  EXPECT_GT(drafting.Metric("vllm:spec_decode_num_accepted_tokens_total"), 0);
}

TEST(ServeToolChoice, Refusals) {
  ChatProtocol chat;
  json body = chat.Body("x", Choice::kRequired);
  body["tools"][0]["function"]["parameters"]["properties"]["a"] = {{"not", {{"type", "string"}}}};
  Client client(Shared().port());
  const Answer refused = client.Post(chat.path(), body.dump());
  EXPECT_EQ(refused.status, 400) << refused.body;
  const json error = json::parse(refused.body)["error"];
  EXPECT_EQ(error["param"], "tool_choice");
  EXPECT_THAT(error["message"].get<std::string>(),
              testing::HasSubstr("tool add: json schema: #/properties/a: keyword"));
}

}  // namespace
}  // namespace hadal::test
