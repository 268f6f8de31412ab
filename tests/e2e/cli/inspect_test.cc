// hadal inspect and hadal synth: what a checkpoint holds, for the bundled one and for synthetic ones of every family.
#include <gmock/gmock.h>

#include <filesystem>

#include "cli_process.h"

namespace hadal::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json InspectJson(const std::string& dir) {
  const CliResult result = RunHadal({"inspect", dir, "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  return result.Json();
}

class SynthTest : public testing::Test {
 protected:
  SynthTest() : dir_(testing::TempDir() + "hadal-synth-" + std::to_string(getpid())) {}
  void TearDown() override { fs::remove_all(dir_); }

  void Synth(std::vector<std::string> more) {
    more.insert(more.begin(), {"synth", dir_});
    const CliResult result = RunHadal(more);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("tensors"));
  }

  const std::string dir_;
};

TEST(Inspect, BundledModel) {
  const json out = InspectJson(BundledModel());
  EXPECT_EQ(out["family"], "DeepSeek V4");
  EXPECT_EQ(out["architecture"], "DeepseekV4ForCausalLM");
  EXPECT_EQ(out["vision"], true);
  EXPECT_EQ(out["draft"], "MTP");
  EXPECT_EQ(out["layers"], 5);
  EXPECT_EQ(out["layers_by_ratio"], (json{{"0", 1}, {"4", 2}, {"128", 2}}));
  EXPECT_EQ(out["experts"], 16);
  EXPECT_EQ(out["expert_dtype"], "FP4");
  int64_t by_dtype = 0, by_kind = 0;
  for (const auto& [name, sum] : out["by_dtype"].items()) by_dtype += sum["bytes"].get<int64_t>();
  for (const auto& [name, sum] : out["by_kind"].items()) by_kind += sum["bytes"].get<int64_t>();
  EXPECT_EQ(by_dtype, out["tensor_bytes"]);
  EXPECT_EQ(by_kind, out["tensor_bytes"]);
  ASSERT_EQ(out["memory"].size(), 3u);
  EXPECT_EQ(out["memory"][2]["context"], 1 << 20);
  for (const json& plan : out["memory"]) {
    EXPECT_LT(plan["gpu"]["cache_fp8"], plan["gpu"]["cache_bf16"]);
    EXPECT_GT(plan["cpu"]["total"], plan["weights"]);
  }
  EXPECT_THAT(out["runs_here"].get<std::string>(), HasSubstr("cpu"));
}

TEST(Inspect, TableForPeople) {
  const CliResult result = RunHadal({"inspect", BundledModel()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("DeepSeek V4 Vision"), HasSubstr("F8_E4M3"), HasSubstr("experts"),
                                HasSubstr("128k"), HasSubstr("fp8_ds_mla")));
}

TEST_F(SynthTest, V4OfAnyShapeCanBeInspectedAndRun) {
  Synth({"--preset",
         "v4-flash",
         "--layers",
         "4",
         "--hidden",
         "256",
         "--heads",
         "4",
         "--q-lora-rank",
         "128",
         "--o-groups",
         "2",
         "--o-lora-rank",
         "128",
         "--experts",
         "8",
         "--experts-per-token",
         "2",
         "--moe-intermediate",
         "128",
         "--vocab",
         "1280",
         "--compress-ratios",
         "0,4,128,4",
         "--hash-layers",
         "1",
         "--seed",
         "7",
         "--tokenizer",
         BundledModel()});
  const json out = InspectJson(dir_);
  EXPECT_EQ(out["layers"], 4);
  EXPECT_EQ(out["layers_by_ratio"], (json{{"0", 1}, {"4", 2}, {"128", 1}}));
  EXPECT_EQ(out["hash_layers"], 1);
  EXPECT_EQ(out["vision"], false);
  const CliResult run = RunHadal(RunArgs({"hi", "--json", "--max-tokens", "4", "--ignore-eos"}, dir_));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.Json()["token_ids"].size(), 4u);
  // What is there is not overwritten.
  ExpectFailure(RunHadal({"synth", dir_}), 2, "empty directory");
}

TEST_F(SynthTest, V32IsInspected) {
  Synth({"--preset",
         "v3.2",
         "--layers",
         "2",
         "--hidden",
         "256",
         "--heads",
         "4",
         "--q-lora-rank",
         "128",
         "--experts",
         "8",
         "--experts-per-token",
         "2",
         "--moe-intermediate",
         "128",
         "--intermediate",
         "256",
         "--dense-layers",
         "1",
         "--vocab",
         "1280"});
  const json out = InspectJson(dir_);
  EXPECT_EQ(out["family"], "DeepSeek V3.2");
  EXPECT_EQ(out["draft"], "MTP");
  EXPECT_EQ(out["memory"].size(), 2u);  // 1M is beyond its positions
}

}  // namespace
}  // namespace hadal::test
