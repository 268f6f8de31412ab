// Answers that are held to a form, and drafts, on the command line.
#include <gmock/gmock.h>

#include <regex>

#include "cli_process.h"

namespace hadal::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json RunJson(std::vector<std::string> more) {
  more.push_back("--json");
  const CliResult result = RunHadal(RunArgs(more));
  EXPECT_EQ(result.code, 0) << result.err;
  return result.Json();
}

constexpr const char* kRecord =
    R"({"type": "object", "required": ["name", "age", "ok"], "additionalProperties": false, "properties":
        {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
         "ok": {"type": "boolean"}}})";

TEST(Guided, SchemasHoldWhateverIsDrawn) {
  for (int seed = 0; seed < 8; ++seed) {
    const json out = RunJson({"Give me a record.", "--json-schema", kRecord, "--temperature", "1.5", "--seed",
                              std::to_string(seed), "--max-tokens", "200"});
    ASSERT_EQ(out["finish_reason"], "stop") << out;
    const json record = json::parse(out["text"].get<std::string>());
    EXPECT_TRUE(record["name"].is_string());
    EXPECT_TRUE(record["ok"].is_boolean());
    EXPECT_TRUE(record["age"] >= 0 && record["age"] <= 99) << record;
    EXPECT_EQ(record.size(), 3u);
  }
}

TEST(Guided, TheRightAnswerStaysRight) {
  EXPECT_EQ(RunJson({"What is 478 + 365?", "--regex", "[0-9]+ \\+ [0-9]+ = [0-9]{3}", "--temperature", "0"})["text"],
            "478 + 365 = 843");
  const std::string one = RunJson({"Who are you?", "--choice", "yes", "--choice", "no", "--temperature", "0"})["text"];
  EXPECT_TRUE(one == "yes" || one == "no") << one;
  const std::string sum =
      RunJson({"Add.", "--grammar", "root ::= [0-9] (\"+\" [0-9]){2}", "--temperature", "1", "--seed", "4"})["text"];
  EXPECT_TRUE(std::regex_match(sum, std::regex("[0-9]\\+[0-9]\\+[0-9]"))) << sum;
}

TEST(Guided, TheFormBeginsBehindTheThinking) {
  const json out = RunJson({"79 + 5 = ?", "--thinking", "--temperature", "0", "--regex", "[0-9 +=]+84"});
  EXPECT_EQ(out["text"], "79 + 5 = 84");
  EXPECT_NE(out["reasoning"].get<std::string>(), "");
}

TEST(Guided, AThinkingBudgetEndsTheThinking) {
  const json free = RunJson({"79 + 5 = ?", "--thinking", "--temperature", "0"});
  ASSERT_GT(free["usage"]["completion_tokens_details"]["reasoning_tokens"], 4);
  const json cut = RunJson({"79 + 5 = ?", "--thinking", "--temperature", "0", "--thinking-token-budget", "3"});
  EXPECT_EQ(cut["usage"]["completion_tokens_details"]["reasoning_tokens"], 4) << "three, and </think>";
  EXPECT_NE(cut["text"], "");
}

TEST(Guided, EveryTurnOfAChatHasTheForm) {
  const CliResult chat =
      RunHadal(RunArgs({"--interactive", "--temperature", "0", "--regex", "[a-c]{2}[.]"}), "hi\nand?\n");
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_TRUE(std::regex_match(chat.out, std::regex("[a-c]{2}\\.\n[a-c]{2}\\.\n"))) << chat.out;
}

TEST(Guided, ABatchSaysItInItsRequests) {
  ExpectFailure(RunHadal(RunArgs({"--batch", "in.jsonl", "--output", "-", "--regex", "a"})), 2, "form of the answer");
}

TEST(Guided, WhatDoesNotCompileIsRefused) {
  ExpectFailure(RunHadal(RunArgs({"hi", "--regex", "("})), 6, "regex");
  ExpectFailure(RunHadal(RunArgs({"hi", "--json-schema", "{\"type\": \"nothing\"}"})), 6, "type");
  ExpectFailure(RunHadal(RunArgs({"hi", "--json-schema", "{"})), 6, "schema");
  ExpectFailure(RunHadal(RunArgs({"hi", "--json-schema", "@/nonexistent"})), 6, "/nonexistent");
  ExpectFailure(RunHadal(RunArgs({"hi", "--regex", "a", "--json-object"})), 6, "expected one of");
}

TEST(Drafts, ChangeNothingButTheCount) {
  const json plain = RunJson({"Tell me a story about 3 cats.", "--temperature", "0"});
  EXPECT_FALSE(plain["usage"]["completion_tokens_details"].contains("accepted_prediction_tokens"));
  for (const char* k : {"1", "2", "4"}) {
    const json drafted =
        RunJson({"Tell me a story about 3 cats.", "--temperature", "0", "--num-speculative-tokens", k});
    EXPECT_EQ(drafted["token_ids"], plain["token_ids"]);
    EXPECT_GT(drafted["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], 10);
  }
  for (const char* dtype : {"fp8", "fp8_e4m3", "fp8_ds_mla", "bfloat16", "auto"}) {
    const json other = RunJson({"Tell me a story about 3 cats.", "--temperature", "0", "--kv-cache-dtype", dtype});
    EXPECT_EQ(other["token_ids"], plain["token_ids"]) << dtype;
  }
}

TEST(Drafts, LogprobsOfAnswerAndPrompt) {
  const json out = RunJson({"What is 478 + 365?", "--temperature", "0", "--logprobs", "2", "--prompt-logprobs", "1"});
  ASSERT_EQ(out["logprobs"].size(), out["token_ids"].size());
  EXPECT_EQ(out["logprobs"][0]["token_id"], out["token_ids"][0]);
  EXPECT_EQ(out["logprobs"][0]["top"].size(), 2u);
  EXPECT_EQ(out["logprobs"][0]["top"][0]["token_id"], out["token_ids"][0]);
  EXPECT_EQ(out["prompt_logprobs"].size(), out["usage"]["prompt_tokens"].get<size_t>() - 1);
}

TEST(Cache, OptionsThatCannotBeAreRefused) {
  const auto fails = [](std::vector<std::string> more, int code, const char* said) {
    more.insert(more.begin(), "hi");
    ExpectFailure(RunHadal(RunArgs(more)), code, said);
  };
  fails({"--kv-cache-dtype", "int4"}, 2, "only supports fp8 kv-cache");
  fails({"--kv-cache-dtype", "nvfp4_ds_mla"}, 2, "nvfp4_ds_mla");
  fails({"--kv-cache-dtype", "fp8", "--numerics", "f32"}, 2, "f32");
  fails({"--block-size", "100"}, 2, "block_size");
  fails({"--kv-cache-memory", "1MiB"}, 5, "one sequence");
  fails({"--num-speculative-tokens", "9"}, 2, "num-speculative-tokens");
}

}  // namespace
}  // namespace hadal::test
