// Answers over HTTP are the engine's own, whoever asks beside: DESIGN's third promise behind sockets.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "../../e2e/serve/http_client.h"
#include "../../support/paths.h"
#include "runtime/engine.h"
#include "serving/http/api.h"

namespace hadal::serving {
namespace {

using nlohmann::json;
using test::Answer;
using test::Client;
using test::RequestText;

constexpr const char* kChat = "/v1/chat/completions";

// One server for all tests; the engine joins it when it is asked for.
class Server {
 public:
  Server() {
    server_ = *HttpServer::Listen({});
    api_ = std::make_unique<Api>(ApiOptions{.version = "test", .model_names = {"tiny"}, .keys = {}, .cors_origins = {}},
                                 server_.get());
    thread_ = std::thread([this] { server_->Run(api_.get()); });
  }
  ~Server() {
    service_.reset();  // what it still told would go to the server
    server_->Stop(std::chrono::milliseconds(0));
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void LoadEngine() {
    runtime::EngineOptions options;
    options.max_model_len = 1024;
    options.max_seqs = 16;
    options.num_speculative_tokens = 1;
    options.block_size = 128;
    auto engine = runtime::Engine::Load(test::BundledModel(), std::move(options));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    service_ = std::make_unique<runtime::Service>(&engine_->executor(), 4096);
    metrics_ = std::make_unique<Metrics>(Metrics::Info{.model_name = "tiny", .cache_dtype = "auto"});
    api_->Start(engine_.get(), service_.get(), metrics_.get());
  }
  bool loaded() const { return engine_ != nullptr; }
  int port() const { return server_->port(); }
  runtime::ServiceStats stats() const { return service_->stats(); }

 private:
  std::unique_ptr<runtime::Engine> engine_;
  std::unique_ptr<runtime::Service> service_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<Api> api_;
  std::thread thread_;
};

Server& Shared() {
  static Server server;
  if (!server.loaded()) {
    // Before there is a model.
    Client client(server.port());
    EXPECT_EQ(client.Get("/health").status, 503);
    EXPECT_EQ(client.Get("/ping").status, 503);
    EXPECT_EQ(client.Get("/v1/models").status, 503);
    EXPECT_EQ(client.Post(kChat, R"({"messages": [{"role": "user", "content": "hi"}]})").status, 503);
    server.LoadEngine();
    EXPECT_EQ(Client(server.port()).Get("/health").status, 200);
  }
  return server;
}

json Sum(int a, int b) {
  return {{"messages", {{{"role", "user"}, {"content", fmt::format("What is {} + {}?", a, b)}}}},
          {"temperature", 0.7},
          {"seed", a * 1000 + b},
          {"max_tokens", 24},
          {"thinking", {{"type", "disabled"}}}};
}

std::string TextOfStream(const std::string& stream) {
  std::string text;
  size_t at = 0;
  while ((at = stream.find("data: {", at)) != stream.npos) {
    at += 6;
    const json event = json::parse(stream.substr(at, stream.find("\n\n", at) - at));
    for (const json& choice : event["choices"]) text += choice["delta"].value("content", "");
  }
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n"));
  return text;
}

std::string Whole(int port, const json& body) {
  const Answer answer = Client(port).Post(kChat, body.dump());
  EXPECT_EQ(answer.status, 200) << answer.body;
  return json::parse(answer.body)["choices"][0]["message"]["content"];
}

void ExpectNothingRuns() {
  for (int i = 0; i < 3000; ++i) {
    const runtime::ServiceStats stats = Shared().stats();
    if (stats.running == 0 && stats.waiting == 0) {
      EXPECT_EQ(stats.cache_usage, 0);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "requests are left";
}

TEST(Served, SixtyFourInterleavedStreamsAreEachTheirOwn) {
  constexpr int kClients = 64;
  const int port = Shared().port();
  std::vector<std::string> streamed(kClients);
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      json body = Sum(100 + i, 200 + i % 5);
      body["stream"] = true;
      streamed[i] = TextOfStream(Client(port).Post(kChat, body.dump()).body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kClients; ++i) {
    EXPECT_NE(streamed[i], "");
    EXPECT_EQ(streamed[i], Whole(port, Sum(100 + i, 200 + i % 5))) << "of request " << i << ", asked alone";
  }
  ExpectNothingRuns();
}

TEST(Served, ThoseThatLeaveChangeNothingForThoseThatStay) {
  constexpr int kThreads = 8, kEach = 12;
  const int port = Shared().port();
  const std::string alone = Whole(port, Sum(77, 55));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        if (t == 0) {
          EXPECT_EQ(Whole(port, Sum(77, 55)), alone);
          continue;
        }
        json body = Sum(100 + i, 300 + t);
        body.update({{"ignore_eos", true}, {"max_tokens", 500}, {"stream", i % 2 == 0}});
        Client client(port);
        client.Send(RequestText("POST", kChat, body.dump()));
        if (i % 2 == 0 && i % 3 != 0) {
          EXPECT_EQ(client.ReadHead().status, 200);
          EXPECT_NE(client.ReadSome(), "");
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectNothingRuns();
}

TEST(Served, ProtocolsShareOneAnswer) {
  const int port = Shared().port();
  const std::string chat = Whole(port, Sum(31, 12));
  json common = Sum(31, 12);
  json message = common;
  const Answer answered = Client(port).Post("/v1/messages", message.dump());
  ASSERT_EQ(answered.status, 200) << answered.body;
  EXPECT_EQ(json::parse(answered.body)["content"][0]["text"], chat);

  json response = {{"input", common["messages"][0]["content"]},
                   {"temperature", 0.7},
                   {"seed", common["seed"]},
                   {"max_output_tokens", 24},
                   {"reasoning", {{"effort", "none"}}}};
  const Answer responded = Client(port).Post("/v1/responses", response.dump());
  ASSERT_EQ(responded.status, 200) << responded.body;
  EXPECT_EQ(json::parse(responded.body)["output"].back()["content"][0]["text"], chat);
}

}  // namespace
}  // namespace hadal::serving
