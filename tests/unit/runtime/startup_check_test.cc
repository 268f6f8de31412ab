#include "runtime/startup_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "fake_model.h"

namespace hadal::runtime {
namespace {

TEST(StartupCheck, Logits) {
  EXPECT_TRUE(CheckLogits(std::vector<float>{0, 1}).ok());
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf}) {
    const absl::Status status = CheckLogits(std::vector<float>{0, bad, 1});
    EXPECT_TRUE(absl::IsFailedPrecondition(status));
    EXPECT_THAT(std::string(Message(status)), testing::HasSubstr("token 1"));
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckLogits(std::vector<float>(8, 0.0f))));
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckLogits(std::vector<float>(8, -3.5f))));
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckLogits({})));
}

TEST(StartupCheck, RunsWithinTheLimits) {
  for (const int64_t batch : {1, 5, 512}) {
    test::FakeModel model(100, {.max_seqs = 1, .max_context = 4096, .max_batch_tokens = batch});
    EXPECT_TRUE(CheckFirstLogits(&model).ok());
    EXPECT_EQ(model.steps, 1);
  }
  test::FakeModel poisoned(100, {});
  poisoned.poison = std::numeric_limits<float>::quiet_NaN();
  poisoned.poison_after = 0;
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckFirstLogits(&poisoned)));
}

}  // namespace
}  // namespace hadal::runtime
