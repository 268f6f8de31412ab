// hadal bench: every mode runs, and its figures are of what was asked for.
#include <gmock/gmock.h>

#include "cli_process.h"

namespace hadal::test {
namespace {

using nlohmann::json;

json RunBench(const std::string& mode, std::vector<std::string> more) {
  std::vector<std::string> args = {"bench", mode,          BundledModel(), "--max-model-len", "2048", "--threads",
                                   "1",     "--input-len", "40",           "--json"};
  if (mode != "prefix") args.insert(args.end(), {"--output-len", "12"});
  args.insert(args.end(), more.begin(), more.end());
  const CliResult result = RunHadal(args);
  EXPECT_EQ(result.code, 0) << result.err;
  return result.Json();
}

void ExpectDistribution(const json& out, const char* name) {
  ASSERT_TRUE(out.contains(name)) << name << " in " << out;
  const json& d = out[name];
  EXPECT_GT(d["p50"], 0) << name;
  EXPECT_LE(d["p50"], d["p90"]);
  EXPECT_LE(d["p90"], d["p99"]);
  EXPECT_LE(d["p99"], d["max"]);
  EXPECT_LE(d["mean"], d["max"]);
}

TEST(Bench, Latency) {
  const json out = RunBench("latency", {"--num-iters", "2", "--batch-size", "3", "--max-num-seqs", "3"});
  for (const char* name : {"ttft", "inter_token", "e2e"}) ExpectDistribution(out, name);
  EXPECT_GT(out["peak_resident_bytes"], 10 << 20);
  EXPECT_LT(out["peak_resident_bytes"], out["planned_bytes"].get<int64_t>() + (256 << 20));
  EXPECT_EQ(out["steps"], 2 * 12) << "three requests share every step";
}

TEST(Bench, Throughput) {
  const json out = RunBench("throughput", {"--num-prompts", "6", "--max-num-seqs", "2"});
  EXPECT_NEAR(out["requests_per_second"].get<double>() * out["seconds"].get<double>(), 6, 1e-6);
  EXPECT_NEAR(out["output_tokens_per_second"].get<double>() * out["seconds"].get<double>(), 6 * 12, 1e-6);
  EXPECT_NEAR(out["input_tokens_per_second"].get<double>() * out["seconds"].get<double>(), 6 * 40, 1e-6);
}

TEST(Bench, ServeSim) {
  const json out = RunBench("serve-sim", {"--num-prompts", "6", "--request-rate", "50", "--max-num-seqs", "4",
                                          "--long-input-len", "600", "--num-speculative-tokens", "2"});
  for (const char* name : {"ttft", "inter_token", "e2e"}) ExpectDistribution(out, name);
  EXPECT_NEAR(out["requests_per_second"].get<double>() * out["seconds"].get<double>(), 7, 1e-6);
  EXPECT_GE(out["speculation"]["mean_acceptance_length"], 1);
  EXPECT_EQ(out["speculation"]["acceptance_rate_by_position"].size(), 2u);
}

TEST(Bench, Prefix) {
  const json out = RunBench("prefix", {"--num-prompts", "3", "--prefix-len", "1000"});
  EXPECT_EQ(out["hit_rate_cold"], 0);
  EXPECT_GT(out["hit_rate_warm"], 0.7);
  ExpectDistribution(out, "ttft_warm");
}

TEST(Bench, DraftsThatHold) {
  const auto latency = [](const char* acceptance) {
    return RunBench("latency", {"--num-iters", "1", "--num-speculative-tokens", "2", "--draft-acceptance", acceptance});
  };
  // 12 tokens: 1 from the prompt, then 3 a step as long as three are wanted.
  const json all = latency("1");
  EXPECT_EQ(all["speculation"]["acceptance_rate_by_position"], json::parse("[1.0, 0.75]"));
  EXPECT_EQ(all["steps"], 1 + 4);
  const json none = latency("0");
  EXPECT_EQ(none["speculation"]["mean_acceptance_length"], 1.0);
  EXPECT_EQ(none["steps"], 12);
}

TEST(Bench, WhatCannotBeIsRefused) {
  ExpectFailure(RunHadal({"bench", "latency", BundledModel(), "--draft-acceptance", "1"}), 2, "draft-acceptance");
  ExpectFailure(RunHadal({"bench", "nothing", BundledModel()}), 2,
                "expected latency, throughput, serve-sim, prefix or serve, found nothing");
  ExpectFailure(RunHadal({"bench"}), 2, "found none");
  ExpectFailure(RunHadal({"bench", "prefix", BundledModel(), "--request-rate", "1"}), 2, "request-rate");
  ExpectFailure(RunHadal({"bench", "latency", BundledModel(), "--request-rate", "0"}), 2, "request-rate");
  ExpectFailure(RunHadal({"bench", "latency", BundledModel(), "--max-model-len", "64", "--input-len", "70"}), 6,
                "the prompt has 70 tokens");
}

}  // namespace
}  // namespace hadal::test
