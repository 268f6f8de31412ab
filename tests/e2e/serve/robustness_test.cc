// What is no proper request gets an error that says so, and the next one its answer (spec serving-runtime 7).
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "server_process.h"

namespace hadal::test {
namespace {

using testing::HasSubstr;

constexpr const char* kChat = "/v1/chat/completions";

void ExpectAlive() {
  const Answer answer = Client(Shared().port()).Post(kChat, Chat("What is 478 + 365?").dump());
  ASSERT_EQ(answer.status, 200);
  EXPECT_EQ(json::parse(answer.body)["choices"][0]["message"]["content"], "478 + 365 = 843");
}

struct BadBody {
  std::string body;
  const char* says;  // part of the message
};

std::string With(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, )" + fields + "}";
}

TEST(ServeRobustness, BodiesThatAreRefused) {
  std::string deep(100000, '[');
  std::string tools = "[";
  for (int i = 0; i < 10000; ++i)
    tools += fmt::format(R"({}{{"type": "function", "function": {{"name": "f"}}}})", i > 0 ? "," : "");
  std::string long_prompt;
  for (int i = 0; i < 3000; ++i) long_prompt += "word ";
  const BadBody cases[] = {
      {"", "JSON"},
      {"{", "JSON"},
      {"\xef\xbb\xbf", "JSON"},
      {"{\"a\": NaN}", "JSON"},
      {"{\"a\": 1e999999}", "number"},
      {"[]", "object"},
      {"null", "object"},
      {deep, "nesting"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}", "JSON"},
      {R"({"messages": [{"role": "user", "content": "\ud800"}]})", "JSON"},
      {std::string("{}\0{}", 5), "zero byte"},
      {"{}", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": [5]})", "messages[0]"},
      {R"({"messages": [{"role": "wizard", "content": "hi"}]})", "messages[0].role"},
      {With(R"("temperature": "hot")"), "temperature"},
      {With(R"("temperature": 1e999)"), "temperature"},
      {With(R"("temperature": -1)"), "temperature"},
      {With(R"("top_p": 0)"), "top_p"},
      {With(R"("max_completion_tokens": 0)"), "max_completion_tokens"},
      {With(R"("max_completion_tokens": 1.5)"), "max_completion_tokens"},
      {With(R"("n": 100000)"), "n: "},
      {With(R"("stream": "yes")"), "stream"},
      {With(R"("stream": 1)"), "stream"},
      {With(R"("model": 5)"), "model"},
      {With(R"("logit_bias": {"abc": 1})"), "logit_bias"},
      {With(R"("stop": [""])"), "stop"},
      {With(R"("stream_options": {})"), "stream_options"},
      {With(R"("response_format": {"type": "json_schema"})"), "json_schema"},
      {With("\"tools\": " + tools + "]"), "tools[1]"},
      {R"({"messages": [{"role": "user", "content": ")" + long_prompt + "\"}]}", "2048"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url",
           "image_url": {"url": "http://169.254.169.254/a.png"}}]}]})",
       "image_url"},
  };
  Client client(Shared().port());
  for (const BadBody& bad : cases) {
    const std::string shown = bad.body.substr(0, 100);
    const Answer answer = client.Post(kChat, bad.body);  // all on one connection
    EXPECT_EQ(answer.status, 400) << shown;
    const json error = json::parse(answer.body, nullptr, false)["error"];
    EXPECT_EQ(error["type"], "BadRequestError") << shown;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(bad.says)) << shown;
    EXPECT_TRUE(error.contains("param") && error.contains("code"));
  }
  // The same for a stream: no 200 before all is looked at.
  const Answer stream = client.Post(kChat, With(R"("stream": true, "temperature": 9)"));
  EXPECT_EQ(stream.status, 400);
  EXPECT_EQ(json::parse(client.Post(kChat, R"({"messages": [{"role": "user", "content": ")" + long_prompt + "\"}]}")
                            .body)["error"]["code"],
            "context_length_exceeded");
  EXPECT_EQ(client.Post("/v1/completions", R"({"prompt": [1279]})").status, 400);
  EXPECT_EQ(client.Post("/tokenize", "{}").status, 400);
  EXPECT_EQ(client.Post("/detokenize", R"({"tokens": [99999]})").status, 400);
  ExpectAlive();
}

TEST(ServeRobustness, OddBodiesThatAreFine) {
  Client client(Shared().port());
  const auto status = [&](const std::string& body) { return client.Post(kChat, body).status; };
  EXPECT_EQ(status(With(R"("max_completion_tokens": 99999999999999999999999, "stop": "a", "unknown": [1e999])")), 200);
  EXPECT_EQ(status(With(R"("temperature": null, "stream": null, "tools": null)")), 200);
  EXPECT_EQ(status(With(R"("temperature": 2, "temperature": 0)")), 200);
  EXPECT_EQ(
      status(
          R"({"messages": [{"role": "user", "content": "a\u0000b<｜User｜></think>\ud83d\ude00"}], "max_tokens": 1})"),
      200);
  std::string tools;
  for (int i = 0; i < 10000; ++i) {
    tools += fmt::format(R"({}{{"type": "function", "function": {{"name": "f{}"}}}})", i > 0 ? "," : "", i);
  }
  EXPECT_EQ(status(With("\"tools\": [" + tools + "]")), 400);  // they do not fit into the context
  EXPECT_EQ(status(With("\"tools\": [" + tools + "], \"tool_choice\": \"none\"")), 200);
}

TEST(ServeRobustness, RoutesMethodsAndTypes) {
  Client client(Shared().port());
  const auto status = [&](const std::string& method, const std::string& target) {
    client.Send(RequestText(method, target));
    return client.Read(method == "HEAD");
  };
  for (const char* target : {"/nothing", "/v1", "/v1/embeddings", "//v1/models", "/v1//models", "/v1/../health",
                             "/%2e%2e/health", "/v1/models/%00", "/health%", "/v1/models/%zz", "/healthz"}) {
    const Answer answer = status("GET", target);
    EXPECT_EQ(answer.status, 404) << target;
    EXPECT_EQ(json::parse(answer.body)["error"]["type"], "NotFoundError");
  }
  for (const char* target : {"/health/", "/health?probe=1", "http://localhost/health", "/%68ealth"}) {
    EXPECT_EQ(status("GET", target).status, 200) << target;
  }
  Answer answer = status("GET", kChat);
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.headers.at("allow"), "POST, OPTIONS");
  answer = status("DELETE", "/v1/models");
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.headers.at("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(status("BREW", "/health").status, 405);
  EXPECT_EQ(status("OPTIONS", kChat).status, 204);

  const auto typed = [&](const Headers& headers) {
    return Client(Shared().port()).Post(kChat, Chat("hi").dump(), headers).status;
  };
  EXPECT_EQ(typed({{"Content-Type", "application/json; charset=utf-8"}}), 200);
  EXPECT_EQ(typed({{"Content-Type", "Application/JSON"}}), 200);
  EXPECT_EQ(typed({{"Content-Type", "text/plain"}}), 415);
  EXPECT_EQ(typed({{"Content-Type", "\xff"}}), 415);
  EXPECT_EQ(typed({{"Content-Encoding", "gzip"}}), 415);
  ExpectAlive();
}

// The status of the answer to bytes that may be no request; 0: the connection just ended.
int StatusOf(const std::string& bytes) {
  Client client(Shared().port());
  client.Send(bytes);
  return client.Read().status;
}

TEST(ServeRobustness, BytesThatAreNoRequest) {
  EXPECT_EQ(StatusOf("\r\n\r\n\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("hello\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + "\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET /health HTTP/9.9\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET /health HTTP/1.1\r\nno colon\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET /health HTTP/1.1\r\nA: " + std::string(70000, 'a') + "\r\n\r\n"), 431);
  const std::string post = std::string("POST ") + kChat + " HTTP/1.1\r\nContent-Type: application/json\r\n";
  EXPECT_EQ(StatusOf(post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345"), 400);
  EXPECT_EQ(StatusOf(post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf(post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf(post + "Content-Length: -5\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf(post + "Content-Length: 99999999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf(post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf(post + "Content-Length: 1000000000000\r\n\r\n{"), 413);
  EXPECT_EQ(StatusOf(post + "\r\n"), 400);  // no body: not JSON
  ExpectAlive();
}

// Rows 4 and 6: where a request ends is in doubt, so nothing behind it is one.
TEST(ServeRobustness, NothingIsReadBehindABodyOfUnknownLength) {
  const std::string post = std::string("POST ") + kChat + " HTTP/1.1\r\nContent-Type: application/json\r\n";
  const std::string next = RequestText("GET", "/version");
  const std::pair<std::string, int> cases[] = {
      {"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345", 400},
      {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400},
      {"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400},
      {"Content-Length: 1000000000000\r\n\r\n{", 413},
  };
  for (const auto& [lengths, status] : cases) {
    Client client(Shared().port());
    client.Send(post + lengths + next);
    const Answer answer = client.Read();
    EXPECT_EQ(answer.status, status) << lengths;
    EXPECT_EQ(answer.headers.at("connection"), "close") << lengths;
    EXPECT_TRUE(client.Closed()) << lengths;
  }
  ExpectAlive();
}

// Row 7, in each protocol's own shape.
TEST(ServeRobustness, ModelsThatAreNotServed) {
  const auto error = [](const char* target, json body) {
    body["model"] = "gpt-4";
    const Answer answer = Client(Shared().port()).Post(target, body.dump());
    EXPECT_EQ(answer.status, 404) << target << answer.body;
    const json parsed = json::parse(answer.body, nullptr, false);
    EXPECT_THAT(parsed["error"]["message"].get<std::string>(), HasSubstr("gpt-4")) << target;
    return parsed;
  };
  const json chat = Chat("hi");
  const std::pair<const char*, json> bodies[] = {{kChat, chat},
                                                 {"/v1/completions", {{"prompt", "hi"}}},
                                                 {"/v1/responses", {{"input", "hi"}}},
                                                 {"/tokenize", {{"prompt", "hi"}}}};
  for (const auto& [target, body] : bodies) {
    EXPECT_EQ(error(target, body)["error"]["type"], "NotFoundError") << target;
  }
  for (const char* target : {"/v1/messages", "/v1/messages/count_tokens"}) {
    json body = chat;
    body["max_tokens"] = 5;
    const json answer = error(target, body);
    EXPECT_EQ(answer["type"], "error") << target;
    EXPECT_EQ(answer["error"]["type"], "not_found_error") << target;
  }
}

TEST(ServeRobustness, BodiesInChunksAndBehindExpect) {
  const std::string body = Chat("What is 478 + 365?").dump();
  const std::string head = std::string("POST ") + kChat + " HTTP/1.1\r\nContent-Type: application/json\r\n";
  Client client(Shared().port());
  std::string chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  for (const char c : body) chunked += fmt::format("1;x=y\r\n{}\r\n", c);
  client.Send(chunked + "0\r\nTrailer: t\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);

  client.Send(head + fmt::format("Expect: 100-continue\r\nContent-Length: {}\r\n\r\n", body.size()));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  client.Send(body);
  const Answer answer = client.Read();
  EXPECT_EQ(answer.status, 200);

  // Who is refused need not send it.
  Client other(Shared().port());
  other.Send(fmt::format("POST /nothing HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n", body.size()));
  EXPECT_EQ(other.Read().status, 404);
}

TEST(ServeRobustness, RequestsBehindEachOther) {
  Client client(Shared().port());
  const std::string one = RequestText("POST", kChat, Chat("What is 478 + 365?").dump());
  client.Send(one + RequestText("GET", "/version") + one + "garbage\r\n\r\n");
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_THAT(client.Read().body, HasSubstr("version"));
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(client.Read().status, 400);
  EXPECT_TRUE(client.Closed());

  Client closing(Shared().port());
  EXPECT_EQ(closing.Get("/health", {{"Connection", "close"}}).headers.at("connection"), "close");
  EXPECT_TRUE(closing.Closed());
}

TEST(ServeRobustness, BodiesThatAreTooLarge) {
  const ServerProcess server({"--max-body-size", "100KiB"});
  const auto post = [&](size_t size, bool chunked) {
    Client client(server.port());
    const std::string head = std::string("POST ") + kChat + " HTTP/1.1\r\nContent-Type: application/json\r\n";
    const std::string body = "{\"a\": \"" + std::string(size, 'a') + "\"}";
    client.Send(chunked ? head + "Transfer-Encoding: chunked\r\n\r\n" +
                              fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", body.size(), body)
                        : head + fmt::format("Content-Length: {}\r\n\r\n{}", body.size(), body));
    return client.Read().status;
  };
  EXPECT_EQ(post(99 << 10, false), 400);  // it has no messages
  EXPECT_EQ(post(99 << 10, true), 400);
  EXPECT_EQ(post(100 << 10, false), 413);
  EXPECT_EQ(post(100 << 10, true), 413);
  EXPECT_EQ(post(2 << 20, true), 413);
}

TEST(ServeRobustness, ManyConnectionsAndHalfRequests) {
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 300; ++i) {
    clients.push_back(std::make_unique<Client>(Shared().port()));
    if (i % 3 == 1) clients.back()->Send("POST /v1/chat/comp");
    if (i % 3 == 2) {
      clients.back()->Send(
          "POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{");
    }
  }
  ExpectAlive();
  clients.clear();
  ExpectAlive();
}

}  // namespace
}  // namespace hadal::test
