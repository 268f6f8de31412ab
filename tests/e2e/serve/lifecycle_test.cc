// Clients that leave, readers that do not read, queues that are full, and the end of the server.
#include <fmt/format.h>
#include <sys/wait.h>

#include <csignal>
#include <thread>

#include "../cli/cli_process.h"
#include "server_process.h"

namespace hadal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// An answer that takes a while: some seconds on a slow machine, and never less than what the tests need.
json Long(bool stream, int tokens = 1900) {
  json body = Chat("What is 478 + 365?");
  body.update({{"ignore_eos", true}, {"max_tokens", tokens}, {"stream", stream}});
  return body;
}

void Start(Client* client, const json& body) {
  ASSERT_TRUE(client->Send(RequestText("POST", "/v1/chat/completions", body.dump())));
}

void ExpectFree(const ServerProcess& server, double aborted) {
  EXPECT_TRUE(server.WaitForMetric("vllm:num_requests_running", 0));
  EXPECT_EQ(server.Metric("vllm:kv_cache_usage_perc"), 0);
  EXPECT_TRUE(server.WaitForMetric("vllm:num_requests_waiting", 0));
  EXPECT_TRUE(server.WaitForMetric(
      "vllm:request_success_total{model_name=\"tiny-v4-vision\",engine=\"0\",finished_reason=\"abort\"", aborted));
}

// Field report B107.
TEST(ServeLifecycle, AClientThatLeavesFreesItsRequest) {
  const ServerProcess server;
  {
    Client client(server.port());
    Start(&client, Long(true));
    EXPECT_EQ(client.ReadHead().status, 200);
    for (int i = 0; i < 5; ++i) EXPECT_NE(client.ReadSome(), "");
    EXPECT_EQ(server.Metric("vllm:num_requests_running"), 1);
    EXPECT_GT(server.Metric("vllm:kv_cache_usage_perc"), 0);
  }
  ExpectFree(server, 1);
  {
    Client client(server.port());
    Start(&client, Long(false));
    EXPECT_TRUE(server.WaitForMetric("vllm:num_requests_running", 1));
  }
  ExpectFree(server, 2);
  // While it waits for others, and before a byte of the answer is read.
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    Start(clients.back().get(), Long(i % 2 == 0));
  }
  EXPECT_TRUE(server.WaitForMetric("vllm:num_requests_waiting", 4));
  clients.clear();
  ExpectFree(server, 10);
  EXPECT_LT(server.Metric("vllm:generation_tokens_total"), 10 * 1900);
}

TEST(ServeLifecycle, AClientThatOnlyStopsSendingIsAnswered) {
  for (const bool stream : {false, true}) {
    Client client(Shared().port());
    Start(&client, Long(stream, 300));
    client.ShutdownSend();
    const Answer answer = client.Read();
    EXPECT_EQ(answer.status, 200);
    const json whole = stream ? Reassembled(EventsOf(answer.body)) : json::parse(answer.body);
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
    EXPECT_TRUE(client.Closed());
  }
}

TEST(ServeLifecycle, AReaderThatTakesNothingIsCutOff) {
  const ServerProcess server;
  Client client(server.port(), 4096);
  const json body = {{"prompt", "Once"}, {"ignore_eos", true}, {"max_tokens", 1900}, {"stream", true}, {"logprobs", 20},
                     {"n", 4},           {"temperature", 1}};
  ASSERT_TRUE(client.Send(RequestText("POST", "/v1/completions", body.dump())));
  EXPECT_TRUE(server.WaitForMetric("vllm:num_requests_running", 4));
  ExpectFree(server, 4);
  EXPECT_LT(server.Metric("vllm:generation_tokens_total"), 4 * 1900);
  // Others do not notice.
  EXPECT_EQ(Client(server.port()).Post("/v1/chat/completions", Chat("What is 1 + 2?").dump()).status, 200);
}

TEST(ServeLifecycle, AFullQueueTurnsRequestsAway) {
  const ServerProcess server({"--max-waiting", "1"});
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    Start(clients.back().get(), Long(true, 800));
    EXPECT_TRUE(i < 4 ? server.WaitForMetric("vllm:num_requests_running", i + 1)
                      : server.WaitForMetric("vllm:num_requests_waiting", 1));
  }
  Client late(server.port());
  const Answer answer = late.Post("/v1/chat/completions", Chat("hi").dump());
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(json::parse(answer.body)["error"]["type"], "RateLimitError");
  EXPECT_EQ(answer.headers.count("retry-after"), 1u);
  EXPECT_EQ(server.Metric("vllm:request_rejections_total"), 1);
  for (const auto& client : clients) {
    const json whole = Reassembled(EventsOf(client->Read().body));
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  }
  // Nor is more than may wait taken at once.
  json many = {{"prompt", json::array()}, {"max_tokens", 1}};
  for (int i = 0; i < 20; ++i) many["prompt"].push_back("word " + std::to_string(i));
  EXPECT_EQ(Client(server.port()).Post("/v1/completions", many.dump()).status, 429);
  EXPECT_TRUE(server.WaitForMetric("vllm:num_requests_running", 0));
  EXPECT_TRUE(server.WaitForMetric("vllm:num_requests_waiting", 0));
}

TEST(ServeLifecycle, SigtermLetsRunningRequestsEnd) {
  ServerProcess server({"--drain-timeout", "300"});
  Client streamed(server.port()), whole(server.port()), idle(server.port());
  EXPECT_EQ(idle.Get("/health").status, 200);
  Start(&streamed, Long(true, 800));
  Start(&whole, Long(false, 800));
  EXPECT_TRUE(server.WaitForMetric("vllm:num_requests_running", 2));
  Client late(server.port());
  EXPECT_EQ(late.Get("/health").status, 200);
  server.Signal(SIGTERM);
  Answer health;
  for (int i = 0; i < 100 && health.status != 503; ++i) {
    health = late.Get("/health");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(health.status, 503);
  const Answer refused = late.Post("/v1/chat/completions", Chat("hi").dump());
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  EXPECT_EQ(json::parse(refused.body)["error"]["type"], "ServiceUnavailable");
  EXPECT_EQ(Reassembled(EventsOf(streamed.Read().body))["usage"], nullptr);
  const json answer = json::parse(whole.Read().body, nullptr, false);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 800);
  EXPECT_EQ(server.Wait(), 0);
}

TEST(ServeLifecycle, TheDrainTimeoutCutsOff) {
  ServerProcess server({"--drain-timeout", "0.2", "--max-model-len", "32768"});
  Client streamed(server.port()), whole(server.port());
  Start(&streamed, Long(true, 32000));
  EXPECT_EQ(streamed.ReadHead().status, 200);
  EXPECT_NE(streamed.ReadSome(), "");
  Start(&whole, Long(false, 32000));
  EXPECT_TRUE(server.WaitForMetric("vllm:num_requests_running", 2));
  server.Signal(SIGINT);
  std::string rest;
  for (std::string piece = streamed.ReadSome(); !piece.empty(); piece = streamed.ReadSome()) rest += piece;
  EXPECT_THAT(rest, HasSubstr("\"error\": {"));
  EXPECT_TRUE(rest.ends_with("data: [DONE]\n\n")) << "an answer never ends silently";
  EXPECT_EQ(whole.Read().status, 500);
  EXPECT_EQ(server.Wait(), 0);
}

TEST(ServeLifecycle, ASecondSignalDoesNotWait) {
  ServerProcess server({"--max-model-len", "32768"});
  Client client(server.port());
  Start(&client, Long(true, 32000));
  EXPECT_EQ(client.ReadHead().status, 200);
  server.Signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 130);
}

TEST(ServeLifecycle, WhatItCannotStartWith) {
  ExpectFailure(RunHadal({"serve", BundledModel(), "--host", "nowhere"}), 2, "--host");
  ExpectFailure(RunHadal({"serve", BundledModel(), "--port", "70000"}), 2, "--port");
  ExpectFailure(RunHadal({"serve", "/nonexistent", "--port", "0"}), 3, "/nonexistent");
  ExpectFailure(RunHadal({"serve", BundledModel(), "--port", std::to_string(Shared().port())}), 1, "cannot listen");
  ExpectFailure(RunHadal({"serve", BundledModel(), "--api-key-file", "/nonexistent"}), 2, "--api-key-file");
}

TEST(ServeLifecycle, LogsNumbersAndNothingElse) {
  const auto said = [](const std::vector<std::string>& flags) {
    ServerProcess server(flags);
    Client client(server.port());
    EXPECT_EQ(client.Post("/v1/chat/completions", Chat("What is 478 + 365?").dump(), {{"X-Request-Id", "id-1"}}).status,
              200);
    EXPECT_EQ(client.Get("/nothing").status, 404);
    server.Signal(SIGTERM);
    EXPECT_EQ(server.Wait(), 0);
    return server.Said();
  };
  EXPECT_THAT(said({}), Not(HasSubstr("id-1")));
  const std::string log = said({"--log-requests"});
  EXPECT_THAT(log, HasSubstr("request id=id-1 method=POST route=/v1/chat/completions status=200"));
  EXPECT_THAT(log, HasSubstr("prompt_tokens=16 cached_tokens=0 completion_tokens=14"));
  EXPECT_THAT(log, HasSubstr("route=none status=404"));
  EXPECT_THAT(log, Not(HasSubstr("478")));
  const std::string all = said({"--log-content"});
  EXPECT_THAT(all, HasSubstr("What is 478 + 365?"));
  EXPECT_THAT(all, HasSubstr("478 + 365 = 843"));
}

}  // namespace
}  // namespace hadal::test
