// Which class runs a checkpoint (spec deepseek-v4-vision-and-cache 1.2, 7.3).
#include "models/registry/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
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
