// Which class runs a checkpoint (spec deepseek-v4-vision-and-cache 1.2, 7.3).
#include "models/registry/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/synth.h"
#include "support/paths.h"

namespace hadal::models {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

checkpoint::ModelConfig BundledConfig() {
  const auto checkpoint = checkpoint::Checkpoint::Open(test::BundledModel());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return (*checkpoint)->config();
}

TEST(Registry, VisionLayersDecideWhateverTheArchitectureSays) {
  checkpoint::ModelConfig config = BundledConfig();
  ASSERT_EQ(config.architecture, "DeepseekV4ForCausalLM");
  EXPECT_THAT(*DescribeModel(config, {}), StartsWith("DeepseekV4ForConditionalGeneration on cpu"));
  config.vision.n_layers = 0;
  EXPECT_THAT(*DescribeModel(config, {}), StartsWith("DeepseekV4ForCausalLM on cpu"));
  config.architecture = "DeepseekV4ForConditionalGeneration";
  EXPECT_THAT(*DescribeModel(config, {}), StartsWith("DeepseekV4ForCausalLM on cpu"));
}

// What depends on the context does not depend on the rows of a step, so that a long context does not make long chunks
// expensive.
TEST(PlanMemory, ScratchDoesNotGrowWithContextTimesChunk) {
  const checkpoint::ModelConfig config = *checkpoint::PresetConfig("v4-flash");
  const auto scratch = [&](int64_t context, int64_t chunk) {
    ModelOptions options;
    options.threads = 2;
    options.limits.max_context = context;
    options.limits.max_batch_tokens = chunk;
    return static_cast<int64_t>(PlanMemory(config, options)->scratch);
  };
  for (const int64_t context : {32 << 10, 128 << 10, 1 << 20}) {
    const int64_t growth = scratch(context, 64) - scratch(1 << 10, 64);
    EXPECT_GT(growth, 0);
    EXPECT_LE(scratch(context, 512) - scratch(1 << 10, 512), growth) << context;
    EXPECT_LE(scratch(context, 4096) - scratch(1 << 10, 4096), growth) << context;
  }
}

TEST(Registry, OverridesNameRegisteredClasses) {
  const checkpoint::ModelConfig config = BundledConfig();
  ModelOptions options;
  options.class_overrides = {"DeepseekV4ForCausalLM=DeepseekV4ForCausalLM"};
  EXPECT_THAT(*DescribeModel(config, options), StartsWith("DeepseekV4ForCausalLM on cpu"));
  options.class_overrides = {"DeepseekV4ForCausalLM=Nothing"};
  const absl::Status unknown = DescribeModel(config, options).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(unknown)), HasSubstr("DeepseekV4ForConditionalGeneration"));
}

TEST(Registry, AbsentPlatformsSayWhatThereIs) {
  for (const char* device : {"xpu", "cuda", "hip"}) {
    ModelOptions options;
    options.device = device;
    const absl::Status status = DescribeModel(BundledConfig(), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(Message(status)), HasSubstr("available platforms: cpu"));
  }
}

}  // namespace
}  // namespace hadal::models
