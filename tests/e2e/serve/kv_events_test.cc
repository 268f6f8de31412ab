// hadal serve --kv-events-config, as a router that follows prefixes sees it.
#include <fmt/format.h>
#include <unistd.h>
#include <zmq.h>

#include <thread>

#include "../cli/cli_process.h"
#include "server_process.h"

namespace hadal::test {
namespace {

TEST(ServeKvEvents, TellWhichPrefixesAreCached) {
  const std::string endpoint = fmt::format("ipc://{}serve_kv_events_{}", testing::TempDir(), getpid());
  const json config = {{"enable_kv_cache_events", true}, {"publisher", "zmq"}, {"endpoint", endpoint}, {"topic", "kv"}};
  const ServerProcess server({"--kv-events-config", config.dump(), "--block-size", "128"});
  void* context = zmq_ctx_new();
  void* socket = zmq_socket(context, ZMQ_SUB);
  const int wait = 20;
  zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait, sizeof(wait));
  zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "kv", 2);
  ASSERT_EQ(zmq_connect(socket, endpoint.c_str()), 0);

  // Prompts of one block and a half, each its own, until the subscription has arrived and one is told.
  json stored;
  json tokens;
  for (int i = 0; i < 1000 && stored.is_null(); ++i) {
    std::string text = fmt::format("{} ", i);
    while (text.size() < 1500) text += "word ";
    tokens = json::parse(Client(server.port()).Post("/tokenize", json{{"prompt", text}}.dump()).body)["tokens"];
    ASSERT_GT(tokens.size(), 128u);
    const json body = {{"prompt", text}, {"max_tokens", 1}, {"temperature", 0}};
    ASSERT_EQ(Client(server.port()).Post("/v1/completions", body.dump()).status, 200);
    std::vector<std::string> parts;
    char buffer[1 << 16];
    for (int size = 0; (size = zmq_recv(socket, buffer, sizeof(buffer), 0)) >= 0;) parts.emplace_back(buffer, size);
    if (parts.size() < 3) continue;
    ASSERT_EQ(parts.size() % 3, 0u);
    for (size_t m = 2; m < parts.size(); m += 3) {
      const json batch = json::from_msgpack(parts[m]);
      for (const json& event : batch[1]) {
        if (event[0] == "BlockStored" && event[2].is_null()) stored = event;
      }
    }
  }
  zmq_close(socket);
  zmq_ctx_term(context);
  ASSERT_TRUE(stored.is_array());
  EXPECT_EQ(stored[3].size(), 128u);
  EXPECT_EQ(stored[4], 128);
  for (size_t i = 0; i < 128; ++i) ASSERT_EQ(stored[3][i], tokens[i]) << i;
}

TEST(ServeKvEvents, ConfigurationsThatCannotBe) {
  const auto run = [](const std::string& config) {
    return RunHadal({"serve", BundledModel(), "--port", "0", "--kv-events-config", config});
  };
  ExpectFailure(run("{"), 2, "--kv-events-config: ");
  ExpectFailure(run(R"({"topics": "a"})"), 2, "--kv-events-config: topics: expected");
  ExpectFailure(run(R"({"endpoint": "nowhere"})"), 1, "--kv-events-config: cannot bind nowhere");
}

}  // namespace
}  // namespace hadal::test
