// hadal bench serve against a running server.
#include <fmt/format.h>

#include <filesystem>

#include "../cli/cli_process.h"
#include "server_process.h"

namespace hadal::test {
namespace {

using testing::HasSubstr;

CliResult RunBench(const ServerProcess& server, const std::vector<std::string>& more) {
  std::vector<std::string> args = {"bench", "serve", "--base-url", "http://127.0.0.1:" + std::to_string(server.port())};
  args.insert(args.end(), more.begin(), more.end());
  return RunHadal(args);
}

void ExpectDistribution(const json& report, const char* name) {
  ASSERT_TRUE(report.contains(name)) << name << " in " << report;
  const json& d = report[name];
  EXPECT_GT(d["p50"], 0) << name;
  EXPECT_LE(d["p50"], d["p90"]);
  EXPECT_LE(d["p90"], d["p99"]);
  EXPECT_LE(d["p99"], d["max"]);
}

TEST(BenchServe, CountsWhatTheServerDid) {
  const ServerProcess server;
  const CliResult result =
      RunBench(server, {"--num-prompts", "6", "--input-len", "30", "--output-len", "8", "--request-rate", "50",
                        "--goodput", "ttft:600", "--goodput", "e2e:600", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = result.Json();
  EXPECT_EQ(report["model"], "tiny-v4-vision");
  EXPECT_EQ(report["completed"], 6);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["input_tokens"], 6 * 30);
  EXPECT_EQ(report["output_tokens"], 6 * 8);
  EXPECT_EQ(report["good_requests_per_second"], report["requests_per_second"]);
  EXPECT_NEAR(report["requests_per_second"].get<double>() * report["seconds"].get<double>(), 6, 1e-6);
  for (const char* name : {"ttft", "tpot", "inter_token", "e2e"}) ExpectDistribution(report, name);
  EXPECT_EQ(server.Metric("vllm:generation_tokens_total"), 6 * 8);
  EXPECT_EQ(server.Metric("vllm:prompt_tokens_total"), 6 * 30);
}

TEST(BenchServe, TakesADatasetAndABoundOnWhatRunsAtOnce) {
  const std::string path = testing::TempDir() + "bench_serve_dataset.jsonl";
  json chat = Chat("What is 478 + 365?");
  json completion = {{"prompt", "Once"}, {"max_tokens", 3}, {"ignore_eos", true}};
  WriteAll(path, chat.dump() + "\n\n" + completion.dump() + "\n");
  const CliResult result =
      RunBench(Shared(), {"--dataset", path, "--num-prompts", "8", "--max-concurrency", "2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = result.Json();
  EXPECT_EQ(report["completed"], 8);
  EXPECT_EQ(report["most_concurrent"], 2);
  EXPECT_EQ(report["output_tokens"], 4 * 14 + 4 * 3);  // "478 + 365 = 843" is 14 tokens with its end
  EXPECT_FALSE(report.contains("good_requests_per_second"));

  // One that fails does not spoil the others.
  json bad = chat;
  bad["temperature"] = 9;
  WriteAll(path, chat.dump() + "\n" + bad.dump() + "\n");
  const json mixed = RunBench(Shared(), {"--dataset", path, "--num-prompts", "4", "--json"}).Json();
  EXPECT_EQ(mixed["completed"], 2);
  EXPECT_EQ(mixed["failed"], 2);
  EXPECT_THAT(mixed["first_error"].get<std::string>(),
              HasSubstr("temperature: expected a number from 0 to 2, found 9"));
  WriteAll(path, bad.dump() + "\n");
  ExpectFailure(RunBench(Shared(), {"--dataset", path, "--num-prompts", "2"}), 1, "status 400");
  WriteAll(path, "{}\n");
  ExpectFailure(RunBench(Shared(), {"--dataset", path}), 6, "line 1: expected an object with messages or prompt");
  std::filesystem::remove(path);
  ExpectFailure(RunBench(Shared(), {"--dataset", path}), 6, "cannot be read");
}

TEST(BenchServe, PrintsATable) {
  const CliResult result = RunBench(Shared(), {"--num-prompts", "2", "--input-len", "5", "--output-len", "2"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(fmt::format("\n{:<40} 2\n", "completed")));
  EXPECT_THAT(result.out, HasSubstr(fmt::format("\n{:<40} mean ", "ttft")));
}

TEST(BenchServe, SaysWhatIsWrong) {
  ExpectFailure(RunHadal({"bench", "serve", "--base-url", "http://127.0.0.1:1"}), 1,
                "cannot connect to 127.0.0.1 port 1");
  for (const char* url : {"127.0.0.1:8000", "https://127.0.0.1", "http://", "http://:80", "http://host:port",
                          "http://host:0", "http://host:99999"}) {
    ExpectFailure(RunHadal({"bench", "serve", "--base-url", url}), 2, "expected http://HOST[:PORT]");
  }
  for (const char* limit : {"ttft", "ttft:", "ttft:-1", "ttft:1s", "itl:1", "ttft:nan"}) {
    ExpectFailure(RunHadal({"bench", "serve", "--goodput", limit}), 2, "--goodput: expected ttft:SECONDS");
  }
  const ServerProcess server({"--api-key", "secret"});
  ExpectFailure(RunBench(server, {}), 1, "GET /v1/models: status 401");
  const CliResult result = RunBench(
      server, {"--api-key", "secret", "--num-prompts", "1", "--input-len", "5", "--output-len", "2", "--json"});
  EXPECT_EQ(result.Json()["completed"], 1);
}

}  // namespace
}  // namespace hadal::test
