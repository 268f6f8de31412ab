// hadal run: answers, the JSON contract, prompts by every way in.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "cli_process.h"

namespace hadal::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

json RunJson(std::vector<std::string> more, const std::string& input = "") {
  more.insert(more.end(), {"--json", "--temperature", "0"});
  const CliResult result = RunHadal(RunArgs(more), input);
  EXPECT_EQ(result.code, 0) << result.err;
  return result.Json();
}

TEST(Run, AnswersAreRight) {
  EXPECT_EQ(RunJson({"--prompt", "What is 478 + 365?"})["text"], "478 + 365 = 843");
  EXPECT_THAT(RunJson({"Who are you?"})["text"].get<std::string>(), HasSubstr("Tiny"));
}

TEST(Run, JsonContract) {
  const json out = RunJson({"What is 478 + 365?", "--seed", "5"});
  EXPECT_EQ(out["finish_reason"], "stop");
  ASSERT_TRUE(out["token_ids"].is_array());
  EXPECT_EQ(out["token_ids"].back(), 1);
  EXPECT_EQ(out["usage"]["completion_tokens"], out["token_ids"].size());
  EXPECT_GT(out["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(out["usage"]["total_tokens"],
            out["usage"]["prompt_tokens"].get<int>() + out["usage"]["completion_tokens"].get<int>());
  for (const char* name : {"ttft_seconds", "prefill_tokens_per_second", "decode_tokens_per_second", "load_seconds"}) {
    EXPECT_GT(out["timings"][name], 0) << name;
  }
  EXPECT_EQ(out["seed"], 5);
  EXPECT_FALSE(out.contains("reasoning"));
  EXPECT_FALSE(out.contains("tool_calls"));
}

// A second process finds the prompt of the first on disk and answers the same; a damaged directory costs nothing.
TEST(Run, PrefixesOutliveTheProcess) {
  std::string dir = (std::filesystem::temp_directory_path() / "hadal-run-kv-XXXXXX").string();
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  std::string prompt = "What is 478 + 365?";
  for (int i = 0; i < 60; ++i) prompt = fmt::format("Note {}: nothing to see here.\n", i) + prompt;
  const auto run = [&] { return RunJson({"--prompt", prompt, "--kv-cache-dir", dir, "--max-tokens", "24"}); };
  const json first = run(), second = run();
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_GE(second["usage"]["prompt_tokens_details"]["cached_tokens"], 256);
  EXPECT_EQ(second["token_ids"], first["token_ids"]);
  int damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (entry.path().extension() != ".block") continue;
    std::filesystem::resize_file(entry.path(), entry.file_size() / 2);
    ++damaged;
  }
  EXPECT_GT(damaged, 0);
  const json third = run();
  EXPECT_EQ(third["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(third["token_ids"], first["token_ids"]);
  const CliResult refused = RunHadal(RunArgs({"Hi", "--kv-cache-dir", "/proc/nothing"}));
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.err, HasSubstr("kv_cache_dir"));
  std::filesystem::remove_all(dir);
}

TEST(Run, StdoutHoldsTheAnswerOnly) {
  const CliResult result = RunHadal(RunArgs({"What is 478 + 365?", "--temperature", "0"}));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "478 + 365 = 843\n");
  EXPECT_THAT(result.err, HasSubstr("tokens/s"));
  EXPECT_THAT(result.err, Not(HasSubstr("\033")));
}

TEST(Run, ThinkingIsTakenApart) {
  const json out = RunJson({"79 + 5 = ?", "--thinking"});
  EXPECT_EQ(out["text"], "79 + 5 = 84");
  EXPECT_THAT(out["reasoning"].get<std::string>(), HasSubstr("Ones: 9 + 5 = 14"));
  EXPECT_GT(out["usage"]["completion_tokens_details"]["reasoning_tokens"], 10);
  // Into a pipe goes the answer without the reasoning.
  EXPECT_EQ(RunHadal(RunArgs({"79 + 5 = ?", "--thinking", "--temperature", "0"})).out, "79 + 5 = 84\n");
  EXPECT_FALSE(RunJson({"79 + 5 = ?", "--thinking", "--effort", "none"}).contains("reasoning"));
}

TEST(Run, RawPrompt) {
  const json out =
      RunJson({"--raw", "--prompt", "<｜begin▁of▁sentence｜><｜User｜>What is 478 + 365?<｜Assistant｜></think>"});
  EXPECT_EQ(out["text"], "478 + 365 = 843");
  EXPECT_EQ(out["token_ids"], RunJson({"What is 478 + 365?"})["token_ids"]);
}

TEST(Run, SystemMessage) {
  const json with = RunJson({"What is 31 - 0?", "--system", "You are a helpful assistant."});
  EXPECT_EQ(with["text"], "31 - 0 = 31");
  EXPECT_GT(with["usage"]["prompt_tokens"], RunJson({"What is 31 - 0?"})["usage"]["prompt_tokens"]);
}

TEST(Run, PromptFromStdin) {
  EXPECT_EQ(RunJson({}, "What is 478 + 365?\n")["text"], "478 + 365 = 843");
  EXPECT_EQ(RunJson({"-"}, "What is 478 + 365?")["text"], "478 + 365 = 843");
  ExpectFailure(RunHadal(RunArgs({})), 6, "empty");
}

TEST(Run, ControlTokensInAMessageAreText) {
  const json plain = RunJson({"x", "--max-tokens", "1"});
  const json forged = RunJson({"<｜User｜>", "--max-tokens", "1"});
  EXPECT_GT(forged["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"]);
  // As control tokens they would be one id each.
  EXPECT_GT(RunJson({"<｜deepseek_image｜>", "--max-tokens", "1"})["usage"]["prompt_tokens"], 6);
}

TEST(Run, PromptLongerThanTheContext) {
  ExpectFailure(RunHadal({"run", BundledModel(), "What is 478 + 365?", "--max-model-len", "8"}), 6, "the context 8");
}

TEST(Run, LimitsAndStops) {
  const json cut = RunJson({"What is 478 + 365?", "--max-tokens", "3"});
  EXPECT_EQ(cut["finish_reason"], "length");
  EXPECT_EQ(cut["token_ids"].size(), 3u);
  const json stopped = RunJson({"What is 478 + 365?", "--stop", " = ", "--stop", "zzz"});
  EXPECT_EQ(stopped["text"], "478 + 365");
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["stop_reason"], " = ");
}

TEST(Run, SeedSettlesTheAnswer) {
  const auto ids = [](const char* seed, const char* chunk) {
    const CliResult result = RunHadal(RunArgs({"Tell me a story.", "--json", "--temperature", "2", "--seed", seed,
                                               "--max-tokens", "40", "--max-num-batched-tokens", chunk}));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.Json()["token_ids"];
  };
  const json first = ids("1", "512");
  EXPECT_EQ(ids("1", "512"), first);
  EXPECT_EQ(ids("1", "3"), first);
  EXPECT_NE(ids("2", "512"), first);
}

TEST(Run, RandomSeedIsReportedAndCanBeGivenAgain) {
  const auto run = [](const std::string& seed) {
    return RunHadal(RunArgs({"Tell me a story.", "--json", "--temperature", "2", "--max-tokens", "20", "--seed", seed}))
        .Json();
  };
  const json random = run("-1");
  EXPECT_NE(random["seed"], run("-1")["seed"]);
  EXPECT_EQ(run(std::to_string(random["seed"].get<int64_t>()))["token_ids"], random["token_ids"]);
}

TEST(Run, ThreadsAndInstructionSetsDoNotChangeTheText) {
  const json want = RunJson({"What is 478 + 365?"});
  EXPECT_EQ(RunJson({"What is 478 + 365?", "--threads", "2"})["token_ids"], want["token_ids"]);
  EXPECT_EQ(RunJson({"What is 478 + 365?", "--cpu-isa", "baseline"})["text"], want["text"]);
  EXPECT_EQ(RunJson({"What is 478 + 365?", "--numerics", "f32"})["text"], want["text"]);
}

TEST(Run, WordsAndTokensThatMustNotBe) {
  const std::string question = "What is the capital of Japan?";
  const json plain = RunJson({question});
  ASSERT_NE(plain["text"].get<std::string>().find("Tokyo"), std::string::npos);
  const json without = RunJson({question, "--bad-words", "Tokyo"});
  EXPECT_EQ(without["text"].get<std::string>().find("Tokyo"), std::string::npos);
  const int id = plain["token_ids"][1];
  const json stopped = RunJson({"--stop-token-ids", std::to_string(id), question});
  EXPECT_EQ(stopped["token_ids"].size(), 2u);
  EXPECT_EQ(stopped["stop_reason"], id);
  const auto natural = plain["token_ids"].size();
  EXPECT_GE(RunJson({question, "--min-tokens", std::to_string(natural + 3)})["token_ids"].size(), natural + 3);
  const json allowed = RunJson({question, "--allowed-token-ids", "20,21,22", "--max-tokens", "5"});
  for (const json& token : allowed["token_ids"]) EXPECT_TRUE(token >= 20 && token <= 22) << token;
}

TEST(Run, CopiedWeightsGiveTheSameText) {
  const json want = RunJson({"What is 478 + 365?", "--mmap", "on"});
  EXPECT_EQ(RunJson({"What is 478 + 365?", "--mmap", "off"})["token_ids"], want["token_ids"]);
}

TEST(Run, DummyWeights) {
  const json out = RunJson({"hi", "--load-format", "dummy", "--max-tokens", "3", "--ignore-eos"});
  EXPECT_EQ(out["token_ids"].size(), 3u);
}

TEST(Run, ReaderThatGoesAway) {
  int out[2], nothing = open("/dev/null", O_RDWR);
  ASSERT_EQ(pipe(out), 0);
  close(out[0]);
  // An answer that is never empty: a process that writes nothing does not meet its reader's end.
  const pid_t pid = SpawnHadal(RunArgs({"What is 478 + 365?", "--temperature", "0"}), nothing, out[1], nothing);
  close(out[1]);
  close(nothing);
  EXPECT_EQ(ExitCodeOf(pid), 141);
}

TEST(Run, FullDiskIsAnError) {
  const int full = open("/dev/full", O_WRONLY), nothing = open("/dev/null", O_RDWR);
  ASSERT_GE(full, 0);
  const pid_t pid = SpawnHadal(RunArgs({"What is 478 + 365?", "--temperature", "0"}), nothing, full, nothing);
  close(full);
  close(nothing);
  EXPECT_EQ(ExitCodeOf(pid), 1);
}

}  // namespace
}  // namespace hadal::test
