// The sizes of spec deepseek-v4-vision-and-cache 6.7 and deepseek-v32 6.3, and what is free.
#include "checkpoint/memory_plan.h"

#include <cmath>

#include "checkpoint/checkpoint.h"
#include "checkpoint/synth.h"
#include "support/paths.h"
#include "test_util.h"

namespace hadal::checkpoint {
namespace {

constexpr auto kDs = KvFormat::kFp8DsMla;

TEST(CacheBytes, PerTokenOfV4WithPagePadding) {
  const ModelConfig flash = *PresetConfig("v4-flash"), pro = *PresetConfig("v4-pro");
  EXPECT_EQ(CacheBytesPerToken(flash, kDs, IndexFormat::kFp8, false), 3915);
  EXPECT_EQ(std::round(CacheBytesPerToken(pro, kDs, IndexFormat::kFp8, false)), 5609);
  EXPECT_EQ(std::round(CacheBytesPerToken(flash, kDs, IndexFormat::kMxfp4, false)), 3584);
  EXPECT_NEAR(CacheBytesPerToken(flash, KvFormat::kBf16, IndexFormat::kFp8, false), 6229,
              21);  // index pages are padded
}

TEST(CacheBytes, BoundedPartOfASequence) {
  const ModelConfig flash = *PresetConfig("v4-flash"), pro = *PresetConfig("v4-pro");
  EXPECT_NEAR(CacheBytesFixed(flash, kDs, false) / 1e6, 18.6, 0.05);
  EXPECT_NEAR(CacheBytesFixed(pro, kDs, false) / 1e6, 27.9, 0.05);
  EXPECT_EQ(CacheBytesFixed(flash, kDs, true) - CacheBytesFixed(flash, kDs, false), 3 * 37440);
}

TEST(CacheBytes, TotalsPerSequence) {
  struct Row {
    const char* preset;
    IndexFormat index;
    double mib[3];  // at 8k, 128k, 1M
  };
  const Row rows[] = {{"v4-flash", IndexFormat::kFp8, {48.3, 507.1, 3.841 * 1024}},
                      {"v4-pro", IndexFormat::kFp8, {70.4, 727.8, 5.504 * 1024}},
                      {"v4-flash", IndexFormat::kMxfp4, {45.7, 465.8, 3.518 * 1024}},
                      {"v4-pro", IndexFormat::kMxfp4, {66.7, 668.7, 5.042 * 1024}}};
  const int64_t lengths[] = {8192, 131072, 1048576};
  for (const Row& row : rows) {
    for (int i = 0; i < 3; ++i) {
      const MemoryPlan plan =
          PlanMemory(*PresetConfig(row.preset), nullptr, {.context_length = lengths[i], .index_format = row.index});
      EXPECT_NEAR(plan.cache_bytes_per_sequence / 0x1p20, row.mib[i], row.mib[i] * 0.002)
          << row.preset << " " << lengths[i];
    }
  }
}

TEST(CacheBytes, V32) {
  const ModelConfig c = *PresetConfig("v3.2");
  EXPECT_EQ(CacheBytesPerToken(c, kDs, IndexFormat::kFp8, false), 48068);
  EXPECT_EQ(CacheBytesPerToken(c, kDs, IndexFormat::kFp8, true), 48856);
  EXPECT_EQ(CacheBytesPerToken(c, KvFormat::kBf16, IndexFormat::kFp8, false), 78324);
  EXPECT_EQ(CacheBytesPerToken(c, KvFormat::kBf16, IndexFormat::kFp8, true), 79608);
}

TEST(MemoryPlan, WeightsComeFromTheCheckpoint) {
  const auto ckpt = Checkpoint::Open(test::BundledModel());
  ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
  const MemoryPlan plan = PlanMemory((*ckpt)->config(), ckpt->get(), {.draft = true});
  EXPECT_EQ(plan.weights(), (*ckpt)->tensor_bytes());
  // The published formats are what the bundled model holds.
  EXPECT_EQ(PlanMemory((*ckpt)->config(), nullptr, {.draft = true}).weights(), plan.weights());
  EXPECT_GT(plan.weight_bytes[static_cast<int>(TensorCategory::kVision)], 0);
  EXPECT_EQ(PlanMemory((*ckpt)->config(), nullptr, {}).weight_bytes[static_cast<int>(TensorCategory::kDraft)], 0);
}

// 160 GB of published files (spec vision-and-cache 1.3 says 167.8 GB with tower and DSpark).
TEST(MemoryPlan, SizeOfThePublishedCheckpoint) {
  const MemoryPlan plan = PlanMemory(*PresetConfig("v4-flash-vision"), nullptr, {.draft = true});
  EXPECT_NEAR(plan.weights() / 1e9, 167.8, 0.5);
}

TEST(MemoryPlan, EngineNumbersReplaceEstimates) {
  const ModelConfig c = *PresetConfig("v4-flash");
  const MemoryPlan plan = PlanMemory(
      c, nullptr, {.max_seqs = 3, .cache_bytes_per_sequence = 1000, .scratch_bytes = 77, .extra_weight_bytes = 5});
  EXPECT_EQ(plan.cache_bytes, 3000);
  EXPECT_EQ(plan.scratch_bytes, 77);
  EXPECT_EQ(plan.total(), plan.weights() + 3077);
  EXPECT_EQ(plan.weights(), PlanMemory(c, nullptr, {}).weights() + 5);
  // Absurd requests stay defined.
  const MemoryPlan huge = PlanMemory(c, nullptr, {.context_length = int64_t{1} << 31, .max_seqs = int64_t{1} << 40});
  EXPECT_GT(huge.total(), int64_t{1} << 50);
}

TEST(CheckFits, RefusesWithAllNumbers) {
  const MemoryPlan plan = PlanMemory(*PresetConfig("v4-flash"), nullptr, {.context_length = 8192, .max_seqs = 4});
  ASSERT_OK(CheckFits(plan, {plan.total(), "here"}));
  ExpectError(CheckFits(plan, {int64_t{16} << 30, "MemAvailable of /proc/meminfo"}),
              absl::StatusCode::kResourceExhausted,
              {"16.00 GiB available (MemAvailable of /proc/meminfo)", "needed", "short", "routed experts", "cache",
               "4 sequences of", "scratch", "total", BytesText(plan.total()).c_str()});
}

TEST(AvailableMemory, LeastOfMeminfoAndCgroups) {
  const TempDir root;
  ExpectError(ReadAvailableMemory(root.path()), absl::StatusCode::kNotFound, {"/proc/meminfo", "MemAvailable"});
  WriteFile(root / "proc/meminfo", "MemTotal: 8000 kB\nMemFree: 10 kB\nMemAvailable:    4000 kB\n");
  EXPECT_EQ(ReadAvailableMemory(root.path())->bytes, 4000 * 1024);

  // v2: a limit on the parent counts, page cache is reclaimable, "max" is no limit.
  WriteFile(root / "proc/self/cgroup", "0::/a/b\n");
  WriteFile(root / "sys/fs/cgroup/a/b/memory.max", "max\n");
  WriteFile(root / "sys/fs/cgroup/a/b/memory.current", "5\n");
  WriteFile(root / "sys/fs/cgroup/a/memory.max", "1000000\n");
  WriteFile(root / "sys/fs/cgroup/a/memory.current", "700000\n");
  WriteFile(root / "sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 300000\nactive_file 100000\n");
  auto available = ReadAvailableMemory(root.path());
  ASSERT_TRUE(available.ok());
  EXPECT_EQ(available->bytes, 700000);
  EXPECT_EQ(available->source, "memory.max of cgroup /a");

  WriteFile(root / "proc/self/cgroup", "9:cpu:/x\n4:memory,hugetlb:/m\n");
  WriteFile(root / "sys/fs/cgroup/memory/m/memory.limit_in_bytes", "5000\n");
  WriteFile(root / "sys/fs/cgroup/memory/m/memory.usage_in_bytes", "9000\n");
  available = ReadAvailableMemory(root.path());
  EXPECT_EQ(available->bytes, 0);
  EXPECT_EQ(available->source, "memory.limit_in_bytes of cgroup /m");
  EXPECT_TRUE(ReadAvailableMemory().ok());
}

}  // namespace
}  // namespace hadal::checkpoint
