// Synthetic checkpoints open as what they claim to be, twice the same, with sane values.
#include "checkpoint/synth.h"

#include <cmath>
#include <set>

#include "base/float_formats.h"
#include "checkpoint/checkpoint.h"
#include "test_util.h"

namespace hadal::checkpoint {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

ConfigOverrides Small() {
  ConfigOverrides o;
  o.num_hidden_layers = 4;
  o.hidden_size = 256;
  o.num_attention_heads = 4;
  o.q_lora_rank = 128;
  o.moe_intermediate_size = 128;
  o.n_routed_experts = 16;
  o.num_experts_per_tok = 4;
  o.vocab_size = 512;
  return o;
}

ConfigOverrides SmallFor(std::string_view preset) {
  ConfigOverrides o = Small();
  if (preset == "v3.2") {
    o.intermediate_size = 256;
    o.first_k_dense_replace = 1;
    o.num_experts_per_tok = 2;
  } else {
    o.o_groups = 4;
    o.o_lora_rank = 64;
  }
  return o;
}

TEST(Synth, EveryPresetOpens) {
  for (std::string_view preset : PresetNames()) {
    SCOPED_TRACE(preset);
    const auto config = ApplyOverrides(*PresetConfig(preset), SmallFor(preset));
    ASSERT_TRUE(config.ok()) << Message(config.status());
    const TempDir dir;
    const auto report = WriteSyntheticCheckpoint(*config, dir.path(), {.seed = 7, .max_shard_bytes = 1 << 20});
    ASSERT_TRUE(report.ok()) << Message(report.status());
    EXPECT_GT(report->shards, 1);
    const auto ckpt = Checkpoint::Open(dir.path());
    ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
    EXPECT_THAT((*ckpt)->warnings(), ::testing::IsEmpty());
    EXPECT_EQ((*ckpt)->realigned_bytes(), 0);
    EXPECT_EQ(static_cast<int64_t>((*ckpt)->tensors().size()), report->tensors);
    ASSERT_OK((*ckpt)->CheckValues());
    EXPECT_EQ((*ckpt)->generation_config().eos_token_ids, std::vector<int64_t>{1});
    EXPECT_FALSE(std::filesystem::exists(dir / "tokenizer.json"));
  }
}

TEST(Synth, SameSeedSameFilesAndDummyWeightsEqualThem) {
  for (std::string_view preset : {"v4-flash", "v3.2"}) {
    const ModelConfig config = *ApplyOverrides(*PresetConfig(preset), SmallFor(preset));
    const TempDir a, b, c;
    ASSERT_TRUE(WriteSyntheticCheckpoint(config, a.path(), {.seed = 1}).ok());
    ASSERT_TRUE(WriteSyntheticCheckpoint(config, b.path(), {.seed = 1}).ok());
    ASSERT_TRUE(WriteSyntheticCheckpoint(config, c.path(), {.seed = 2}).ok());
    for (const auto& item : std::filesystem::directory_iterator(a.path())) {
      const std::string name = item.path().filename();
      EXPECT_EQ(ReadFile(item.path()), ReadFile(b / name)) << name;
    }
    const auto ckpt = Checkpoint::Open(a.path());
    const auto other = Checkpoint::Open(c.path());
    const auto dummy = DummyWeights::Create(config, {.seed = 1}, true, 2);
    ASSERT_TRUE(ckpt.ok() && other.ok() && dummy.ok());
    EXPECT_EQ((*ckpt)->tensors().size(), (*dummy)->tensors().size());
    int changed = 0;
    for (const TensorEntry& entry : (*ckpt)->tensors()) {
      const TensorEntry* same = (*dummy)->Find("model." + entry.name);
      ASSERT_NE(same, nullptr) << entry.name;
      EXPECT_EQ(same->dtype, entry.dtype);
      EXPECT_EQ(same->shape, entry.shape);
      EXPECT_EQ(std::memcmp(same->data, entry.data, entry.bytes), 0) << entry.name;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(same->data) % 64, 0u);
      changed += std::memcmp((*other)->Find(entry.name)->data, entry.data, entry.bytes) != 0;
      DropPages(*same);  // must not lose anonymous memory
    }
    EXPECT_GT(changed, static_cast<int>((*ckpt)->tensors().size() * 9 / 10));
    EXPECT_EQ((*dummy)->Find("nothing"), nullptr);
    const TensorEntry* norm = (*dummy)->Find("norm.weight");
    EXPECT_EQ(std::memcmp(norm->data, (*ckpt)->Find("norm.weight")->data, norm->bytes), 0);
  }
}

// Trap 22.
TEST(Synth, TokenTableRowsHoldDistinctExperts) {
  const ModelConfig config = *ApplyOverrides(*PresetConfig("v4-flash"), SmallFor("v4-flash"));
  const auto dummy = DummyWeights::Create(config, {}, false, 1);
  ASSERT_TRUE(dummy.ok());
  const TensorEntry* table = (*dummy)->Find("layers.0.ffn.gate.tid2eid");
  ASSERT_NE(table, nullptr);
  std::set<int64_t> used;
  for (int64_t t = 0; t < 512; ++t) {
    const int64_t* row = table->as<int64_t>() + t * 4;
    const std::set<int64_t> experts(row, row + 4);
    EXPECT_EQ(experts.size(), 4u) << t;
    EXPECT_TRUE(*experts.begin() >= 0 && *experts.rbegin() < 16);
    used.insert(experts.begin(), experts.end());
  }
  EXPECT_EQ(used.size(), 16u);
}

double RootMeanSquare(const WeightSource& w, const std::string& module) {
  const TensorEntry* weight = w.Find(module + ".weight");
  const TensorEntry* scale = w.Find(module + ".scale");
  const int64_t out = weight->shape[0], in = weight->shape[1];
  double sum = 0;
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      float v, s;
      if (weight->dtype == DType::kF4E2M1) {
        const uint8_t byte = weight->as<uint8_t>()[(o * in + i) / 2];
        v = E2M1ToFloat(i % 2 == 0 ? byte & 15 : byte >> 4);
        s = E8M0ToFloat(scale->as<uint8_t>()[o * (in / 32) + i / 32]);
      } else {
        v = E4M3ToFloat(weight->as<uint8_t>()[o * in + i]);
        s = E8M0ToFloat(scale->as<uint8_t>()[o / 128 * scale->shape[1] + i / 128]);
      }
      sum += static_cast<double>(v * s) * (v * s);
    }
  }
  return std::sqrt(sum / static_cast<double>(out * in));
}

// A linear layer keeps the magnitude of its input: the root mean square of its weights is near 1/sqrt(in).
TEST(Synth, WeightsKeepActivationsNearOne) {
  ConfigOverrides o = SmallFor("v4-flash");
  o.hidden_size = 1024;
  o.moe_intermediate_size = 512;
  const ModelConfig config = *ApplyOverrides(*PresetConfig("v4-flash"), o);
  const auto dummy = DummyWeights::Create(config, {}, true, 2);
  ASSERT_TRUE(dummy.ok());
  struct Case {
    const char* module;
    double in;
  };
  for (const Case& c : {Case{"layers.0.attn.wq_a", 1024}, Case{"layers.0.attn.wq_b", 128}, Case{"mtp.0.e_proj", 1024},
                        Case{"layers.1.ffn.experts.3.w1", 1024}, Case{"layers.1.ffn.experts.3.w2", 512}}) {
    const double gain = RootMeanSquare(**dummy, c.module) * std::sqrt(c.in);
    EXPECT_GT(gain, 0.4) << c.module;
    EXPECT_LT(gain, 2.5) << c.module;
  }
  const auto norm = ReadFloats(**(*dummy)->Get("norm.weight"));
  ASSERT_TRUE(norm.ok());
  for (float v : *norm) EXPECT_TRUE(v > 0.25f && v < 1.75f) << v;
}

TEST(Overrides, RatiosFollowTheLayers) {
  const ModelConfig flash = *PresetConfig("v4-flash");
  EXPECT_EQ(ApplyOverrides(flash, {.num_hidden_layers = 5})->compress_ratios, (std::vector<int>{0, 0, 4, 128, 4, 0}));
  EXPECT_EQ(ApplyOverrides(flash, {.num_hidden_layers = 46})->compress_ratios.at(45), 128);
  EXPECT_EQ(ApplyOverrides(flash, {.num_hidden_layers = 1})->num_hash_layers, 1);
  EXPECT_EQ(ApplyOverrides(flash, {.num_mtp_layers = 3})->compress_ratios.size(), 46u);
  EXPECT_EQ(*ApplyOverrides(flash, {}), flash);
  ConfigOverrides o;
  o.num_hidden_layers = 2;
  o.compress_ratios = {{4, 128}};
  EXPECT_EQ(ApplyOverrides(flash, o)->compress_ratios, (std::vector<int>{4, 128, 0}));
}

TEST(Overrides, ImpossibleModelsAreRefused) {
  const ModelConfig flash = *PresetConfig("v4-flash");
  ExpectError(ApplyOverrides(flash, {.hidden_size = 100}), kInvalid, {"overrides", "hidden_size", "multiple of 128"});
  ExpectError(ApplyOverrides(flash, {.num_hidden_layers = 0}), kInvalid, {"num_hidden_layers", "found 0"});
  ExpectError(ApplyOverrides(flash, {.num_hidden_layers = int64_t{1} << 40}), kInvalid, {"at most 1024 layers"});
  ExpectError(ApplyOverrides(flash, {.num_mtp_layers = -1}), kInvalid, {"-1"});
  ExpectError(ApplyOverrides(flash, {.n_routed_experts = 4}), kInvalid, {"num_experts_per_tok"});
  ExpectError(PresetConfig("v5"), kInvalid, {"\"v5\"", "v4-flash", "v4-pro", "v3.2"});
}

TEST(Synth, TokenizerIsCopiedOnRequestOnly) {
  const ModelConfig config = *ApplyOverrides(*PresetConfig("v4-flash"), SmallFor("v4-flash"));
  const TempDir tokenizer, dir;
  ExpectError(WriteSyntheticCheckpoint(config, dir.path(), {.tokenizer_dir = tokenizer.path()}),
              absl::StatusCode::kNotFound, {"tokenizer.json"});
  WriteFile(tokenizer / "tokenizer.json", "{}");
  ASSERT_TRUE(WriteSyntheticCheckpoint(config, dir.path(), {.tokenizer_dir = tokenizer.path()}).ok());
  EXPECT_EQ(ReadFile(dir / "tokenizer.json"), "{}");
}

TEST(Synth, RefusesADiskThatIsTooSmall) {
  ConfigOverrides o;
  o.num_hidden_layers = 1000;
  o.n_routed_experts = 120;
  o.hidden_size = 1 << 16;
  o.moe_intermediate_size = 1 << 16;
  const auto config = ApplyOverrides(*PresetConfig("v4-pro"), o);  // 800 TB
  ASSERT_TRUE(config.ok()) << Message(config.status());
  const TempDir dir;
  ExpectError(WriteSyntheticCheckpoint(*config, dir.path(), {}), absl::StatusCode::kResourceExhausted,
              {"needed", "free on the disk"});
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace hadal::checkpoint
