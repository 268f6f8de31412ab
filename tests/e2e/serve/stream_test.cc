// Streams: the same answers as whole ones, each to its own client, and the form of their chunks.
#include <fmt/format.h>

#include <fstream>
#include <thread>

#include "server_process.h"
#include "support/paths.h"

namespace hadal::test {
namespace {

Answer Ask(const std::string& target, const json& body) { return Client(Shared().port()).Post(target, body.dump()); }

// What comes with stream: true, put together, against what comes without.
void ExpectSameStreamed(const std::string& target, json body) {
  SCOPED_TRACE(body.dump());
  const Answer whole = Ask(target, body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  json want = json::parse(whole.body);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const Answer stream = Ask(target, body);
  ASSERT_EQ(stream.status, 200) << stream.body;
  EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_TRUE(stream.chunked);
  const json got = Reassembled(EventsOf(stream.body));
  ASSERT_EQ(got["choices"].size(), want["choices"].size());
  for (size_t i = 0; i < want["choices"].size(); ++i) {
    json& choice = want["choices"][i];
    json other = got["choices"][i];
    choice.erase("prompt_token_ids");
    if (choice.contains("message")) {
      json& message = choice["message"];
      if (message["content"].is_null()) message["content"] = "";  // beside calls
      if (message.contains("tool_calls")) {
        for (json& call : message["tool_calls"]) call.erase("id");
      }
    }
    EXPECT_EQ(other, choice);
  }
  // What was found in the prefix cache may differ.
  for (const char* name : {"prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details"}) {
    EXPECT_EQ(got["usage"][name], want["usage"][name]) << name;
  }
}

TEST(ServeStream, SaysWhatAWholeAnswerSays) {
  const std::string chat = "/v1/chat/completions", completion = "/v1/completions";
  json body = Chat("What is 478 + 365?");
  ExpectSameStreamed(chat, body);
  json more = body;
  more.update({{"logprobs", true}, {"top_logprobs", 3}, {"return_token_ids", true}});
  ExpectSameStreamed(chat, more);
  more = body;
  more.update({{"thinking", {{"type", "enabled"}}}, {"logprobs", true}});
  ExpectSameStreamed(chat, more);
  more["include_reasoning"] = false;
  ExpectSameStreamed(chat, more);
  more = body;
  more.update({{"n", 3}, {"temperature", 1.5}, {"seed", 7}, {"max_tokens", 30}});
  ExpectSameStreamed(chat, more);
  more.update({{"temperature", 0}});
  ExpectSameStreamed(chat, more);
  more = body;
  more.update({{"stop", {"= 8"}}, {"include_stop_str_in_output", true}});
  ExpectSameStreamed(chat, more);
  more = body;
  more.update({{"response_format", {{"type", "json_object"}}}, {"max_tokens", 40}, {"logprobs", true}});
  ExpectSameStreamed(chat, more);
  more = body;
  more["messages"].push_back({{"role", "assistant"}, {"content", "478 + 3"}});
  more.update({{"continue_final_message", true}, {"echo", true}});
  ExpectSameStreamed(chat, more);
  ExpectSameStreamed(completion, {{"prompt", "Once upon a time"},
                                  {"max_tokens", 40},
                                  {"temperature", 0},
                                  {"logprobs", 2},
                                  {"return_token_ids", true}});
  ExpectSameStreamed(completion, {{"prompt", {"Once", "The code of"}},
                                  {"max_tokens", 20},
                                  {"temperature", 1},
                                  {"seed", 3},
                                  {"n", 2},
                                  {"echo", true}});
  // Words of other scripts and signs, whose characters are cut over tokens.
  ExpectSameStreamed(completion, {{"prompt", "Repeat: 社区 👋🏽 ďábelské"},
                                  {"max_tokens", 60},
                                  {"temperature", 2},
                                  {"seed", 11},
                                  {"logprobs", 1}});
}

TEST(ServeStream, ToolCallsComeAsTheyAreWritten) {
  std::ifstream records(DataPath("chat-encoding-v4/eval_tools.jsonl"));
  int calls = 0;
  for (std::string line; std::getline(records, line) && calls < 6;) {
    const json record = json::parse(line);
    if (record["task"] != "tool_call") continue;
    ++calls;
    json body = Chat(record["user"]);
    if (record["mode"] == "thinking") body["thinking"]["type"] = "enabled";
    if (record["system"] != "") {
      const json system = {{"role", "system"}, {"content", record["system"]}};
      body["messages"].insert(body["messages"].begin(), system);
    }
    body["tools"] = record["tools"];
    ExpectSameStreamed("/v1/chat/completions", body);
    body["stream"] = true;
    const std::vector<json> events = EventsOf(Ask("/v1/chat/completions", body).body);
    const json answer = Reassembled(events);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "tool_calls");
    const json& got = answer["choices"][0]["message"]["tool_calls"];
    ASSERT_EQ(got.size(), record["expected_calls"].size());
    size_t pieces = 0;
    for (const json& event : events) {
      const json& delta = event["choices"][0]["delta"];
      if (delta.contains("tool_calls")) ++pieces;
    }
    EXPECT_GT(pieces, 2 * got.size()) << "arguments come in more than one piece";
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i]["function"]["name"], record["expected_calls"][i]["name"]);
      EXPECT_EQ(json::parse(got[i]["function"]["arguments"].get<std::string>()),
                record["expected_calls"][i]["arguments"]);
    }
  }
  EXPECT_GT(calls, 2);
}

TEST(ServeStream, FormOfTheChunks) {
  json body = Chat("What is 478 + 365?");
  body.update({{"stream", true}, {"n", 2}});
  std::vector<json> events = EventsOf(Ask("/v1/chat/completions", body).body);
  ASSERT_GT(events.size(), 4u);
  for (const json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], events[0]["id"]);
    EXPECT_EQ(event["created"], events[0]["created"]);
    EXPECT_FALSE(event.contains("usage"));
  }
  EXPECT_EQ(events[0]["choices"][0]["delta"], json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(events.back()["choices"][0]["delta"], json::object());
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "stop");

  body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  events = EventsOf(Ask("/v1/chat/completions", body).body);
  EXPECT_EQ(events[0]["usage"]["completion_tokens"], 0);
  EXPECT_EQ(events.back()["choices"], json::array());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 28);  // greedy copies of 14
  int before = 0;
  for (const json& event : events) {
    EXPECT_GE(event["usage"]["completion_tokens"], before);
    before = event["usage"]["completion_tokens"];
  }
}

TEST(ServeStream, AnOldClientGetsOneToo) {
  json body = Chat("What is 478 + 365?");
  body["stream"] = true;
  const std::string text = body.dump();
  Client client(Shared().port());
  client.Send(
      fmt::format("POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
                  "Content-Length: {}\r\n\r\n{}",
                  text.size(), text));
  const Answer answer = client.Read();
  EXPECT_FALSE(answer.chunked);
  EXPECT_EQ(Reassembled(EventsOf(answer.body))["choices"][0]["message"]["content"], "478 + 365 = 843");
}

// Field report B105: an answer shown to somebody else.
TEST(ServeStream, SixtyFourAtOnceEachItsOwn) {
  constexpr int kClients = 64;
  EXPECT_GT(Shared().port(), 0);  // it is started by this thread, not by one that ends
  std::vector<std::string> answers(kClients);
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([i, &answers] {
      Client client(Shared().port());
      for (int turn = 0; turn < 2; ++turn) {
        json body = Chat(fmt::format("What is {} + {}?", 100 + i, 211 + turn));
        body["stream"] = true;
        const Answer answer = client.Post("/v1/chat/completions", body.dump());
        EXPECT_EQ(answer.status, 200);
        answers[i] += Reassembled(EventsOf(answer.body))["choices"][0]["message"]["content"].get<std::string>() + "; ";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kClients; ++i) {
    EXPECT_EQ(answers[i], fmt::format("{} + 211 = {}; {} + 212 = {}; ", 100 + i, 311 + i, 100 + i, 312 + i));
  }
  EXPECT_TRUE(Shared().WaitForMetric("vllm:num_requests_running", 0));
  EXPECT_EQ(Shared().Metric("vllm:kv_cache_usage_perc"), 0);
}

}  // namespace
}  // namespace hadal::test
