// Many clients at once, of every temper, and what they leave behind.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "server_process.h"

namespace hadal::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kChat = "/v1/chat/completions";

// A field of /proc/PID/status in KiB.
int64_t KiBOf(pid_t pid, const std::string& field) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1));
  }
  ADD_FAILURE() << "no " << field;
  return 0;
}

json Sum(int a, int b) {
  json body = Chat(fmt::format("What is {} + {}?", a, b));
  body["stream"] = true;
  return body;
}

std::string AnswerTo(int a, int b) { return fmt::format("{} + {} = {}", a, b, a + b); }

std::string TextOf(const std::string& stream) {
  return Reassembled(EventsOf(stream))["choices"][0]["message"]["content"];
}

void ExpectNothingLeft(const ServerProcess& server) {
  EXPECT_TRUE(server.WaitForMetric("vllm:num_requests_running", 0));
  EXPECT_TRUE(server.WaitForMetric("vllm:num_requests_waiting", 0));
  EXPECT_EQ(server.Metric("vllm:kv_cache_usage_perc"), 0);
}

TEST(ServeLoad, TwoHundredAndFiftySixStreams) {
  constexpr int kStreams = 256;
  const ServerProcess server({"--max-num-seqs", "64", "--threads", "2"});
  const auto ask = [&](int i, std::vector<double>* gaps) {
    const int a = 100 + i, b = 200 + i % 7;
    Client client(server.port());
    client.Send(RequestText("POST", kChat, Sum(a, b).dump()));
    EXPECT_EQ(client.ReadHead().status, 200);
    std::string stream;
    Clock::time_point last;
    // The first piece has the role and comes before the request's turn.
    for (int pieces = 0; true; ++pieces) {
      const std::string more = client.ReadSome();
      if (more.empty()) break;
      const Clock::time_point now = Clock::now();
      if (pieces > 1) gaps->push_back(std::chrono::duration<double>(now - last).count());
      last = now;
      stream += more;
    }
    EXPECT_EQ(TextOf(stream), AnswerTo(a, b));
  };
  const auto round = [&] {
    std::vector<std::vector<double>> gaps(kStreams);
    std::vector<std::thread> threads;
    for (int i = 0; i < kStreams; ++i) threads.emplace_back([&, i] { ask(i, &gaps[i]); });
    for (std::thread& thread : threads) thread.join();
    std::vector<double> all;
    for (const auto& g : gaps) all.insert(all.end(), g.begin(), g.end());
    std::sort(all.begin(), all.end());
    return all;
  };
  round();
  const int64_t before = KiBOf(server.pid(), "VmRSS");
  const std::vector<double> gaps = round();
  const int64_t after = KiBOf(server.pid(), "VmRSS");
  fmt::print(
      "256 streams: gaps between pieces p50 {:.1f} ms, p99 {:.1f} ms; resident {} KiB after one round, {} after "
      "two\n",
      1e3 * gaps[gaps.size() / 2], 1e3 * gaps[gaps.size() * 99 / 100], before, after);
  EXPECT_LT(after - before, 16 << 10);  // what a round needs it has from the one before
  ExpectNothingLeft(server);
}

TEST(ServeLoad, AThousandAbortedRequestsLeaveNoTrace) {
  constexpr int kThreads = 8, kEach = 125;
  const ServerProcess server({"--max-num-seqs", "16"});
  std::atomic<int> answered = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        Client client(server.port());
        json body = Sum(100 + i, 300 + t);
        body.update({{"ignore_eos", true}, {"max_tokens", 1000}, {"stream", i % 2 == 0}});
        client.Send(RequestText("POST", kChat, body.dump()));
        if (i % 4 == 0) continue;  // gone before anything
        if (i % 4 == 2) {          // in the middle of a stream
          EXPECT_EQ(client.ReadHead().status, 200);
          EXPECT_NE(client.ReadSome(), "");
        }
        if (i % 20 == 1) {  // some stay, and have their own answer
          const Answer answer = Client(server.port()).Post(kChat, Sum(100 + i, 300 + t).dump());
          EXPECT_EQ(answer.status, 200);
          EXPECT_EQ(TextOf(answer.body), AnswerTo(100 + i, 300 + t));
          ++answered;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, kThreads * 7);
  ExpectNothingLeft(server);
  EXPECT_EQ(
      server.Metric("vllm:request_success_total{model_name=\"tiny-v4-vision\",engine=\"0\",finished_reason=\"stop\""),
      answered);
  EXPECT_LT(server.Metric("vllm:generation_tokens_total"), 1000.0 * kThreads * kEach / 4);
}

TEST(ServeLoad, ReadersThatAreSlowGetTheirAnswerAndHoldUpNobody) {
  const ServerProcess server;
  json body = {{"prompt", "Once"}, {"ignore_eos", true}, {"max_tokens", 200},
               {"stream", true},   {"logprobs", 5},      {"temperature", 0}};
  const Answer whole = Client(server.port()).Post("/v1/completions", body.dump());
  std::thread slow([&] {
    Client client(server.port(), 4096);
    client.Send(RequestText("POST", "/v1/completions", body.dump()));
    EXPECT_EQ(client.ReadHead().status, 200);
    std::string stream;
    for (std::string more = client.ReadSome(); !more.empty(); more = client.ReadSome()) {
      stream += more;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const auto text = [](const std::string& s) {
      std::string all;
      for (const json& event : EventsOf(s)) {
        if (!event["choices"].empty()) all += event["choices"][0]["text"].get<std::string>();
      }
      return all;
    };
    EXPECT_EQ(text(stream), text(whole.body));
    EXPECT_NE(text(stream), "");
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(TextOf(Client(server.port()).Post(kChat, Sum(400 + i, 5).dump()).body), AnswerTo(400 + i, 5));
  }
  slow.join();
  ExpectNothingLeft(server);
}

}  // namespace
}  // namespace hadal::test
