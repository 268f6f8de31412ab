// What a V3.2 model asks for and refuses (spec deepseek-v32).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/status.h"
#include "checkpoint/synth.h"
#include "models/deepseek_v32/amd/traits.h"
#include "models/deepseek_v32/common/model.h"
#include "models/deepseek_v32/nvidia/traits.h"
#include "models/registry/registry.h"
#include "ops/reference/reference_ops.h"

namespace hadal::models::deepseek_v32 {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

checkpoint::ModelConfig Published() { return *checkpoint::PresetConfig("v3.2"); }

checkpoint::ModelConfig Small() {
  checkpoint::ConfigOverrides small;
  small.num_hidden_layers = 2;
  small.num_mtp_layers = 1;
  small.hidden_size = 128;
  small.num_attention_heads = 2;
  small.q_lora_rank = 128;
  small.moe_intermediate_size = 128;
  small.n_routed_experts = 8;
  small.num_experts_per_tok = 2;
  small.vocab_size = 256;
  small.index_topk = 16;
  small.intermediate_size = 128;
  small.first_k_dense_replace = 1;
  return *checkpoint::ApplyOverrides(Published(), small);
}

ModelLimits SmallLimits() {
  ModelLimits limits;
  limits.max_context = 64;
  limits.max_batch_tokens = 16;
  limits.block_size = 64;
  return limits;
}

// The message of a refusal, or "created".
std::string Create(const checkpoint::ModelConfig& config, const ModelLimits& limits = SmallLimits(),
                   const Traits& traits = kPlainTraits, bool draft = true) {
  const auto weights = checkpoint::DummyWeights::Create(config, {}, draft, 1);
  if (!weights.ok()) return weights.status().ToString();
  const auto model = Model::Create(**weights, ops::MakeReferenceOps(ops::Numerics::kPublished), limits, traits);
  return model.ok() ? "created" : std::string(Message(model.status()));
}

TEST(V32Model, IsRegistered) {
  checkpoint::ModelConfig config = Published();
  EXPECT_THAT(*DescribeModel(config, {}), StartsWith("DeepseekV32ForCausalLM on cpu"));
  config.family = checkpoint::ModelFamily::kV3;
  config.architecture = "DeepseekV3ForCausalLM";
  EXPECT_THAT(*DescribeModel(config, {}), StartsWith("DeepseekV3ForCausalLM on cpu"));
}

// Spec 6.3: 61 layers and the MTP layer.
TEST(V32Model, BytesOfAToken) {
  const auto ops = ops::MakeReferenceOps(ops::Numerics::kPublished);
  ModelLimits limits = SmallLimits();
  EXPECT_EQ(Model::Plan(Published(), *ops, limits).layout.slab_bytes, 64 * 79608);
  limits.kv_cache_dtype = KvCacheDtype::kFp8DsMla;
  EXPECT_EQ(Model::Plan(Published(), *ops, limits).layout.slab_bytes, 64 * 48856);
  // NVIDIA's auto is fp8.
  limits.kv_cache_dtype = KvCacheDtype::kAuto;
  EXPECT_EQ(Model::Plan(Published(), *ops, limits, nvidia::kTraits).layout.slab_bytes, 64 * 48856);
}

TEST(V32Model, RefusesWhatItCannotDo) {
  EXPECT_EQ(Create(Small()), "created");
  const auto changed = [](const std::function<void(checkpoint::ModelConfig*)>& change) {
    checkpoint::ModelConfig config = Small();
    change(&config);
    return Create(config);
  };
  EXPECT_THAT(changed([](auto* c) { c->rope_scaling.mscale_all_dim = 0; }),
              HasSubstr("mscale is 1 and mscale_all_dim 0"));
  EXPECT_THAT(changed([](auto* c) { c->indexer_rope_interleave = true; }), HasSubstr("indexer_rope_interleave"));
  EXPECT_THAT(changed([](auto* c) { c->index_topk_pattern = "SF"; }), HasSubstr("layer 0 has no indexer"));
  EXPECT_THAT(changed([](auto* c) { c->n_group = 3; }), HasSubstr("8 experts in 3 groups"));
  EXPECT_THAT(changed([](auto* c) { c->n_group = 128; }), HasSubstr("n_group is 128; up to 64 are implemented"));
  EXPECT_THAT(changed([](auto* c) { c->qk_nope_head_dim = 64; }), HasSubstr("qk_nope_head_dim is 64"));
  EXPECT_THAT(Create(Small(), SmallLimits(), kPlainTraits, false),
              HasSubstr("MTP speculative decoding layer 2 weights missing from checkpoint"));
}

TEST(V32Model, CachesThatPlatformsTake) {
  const auto with = [](int64_t block_size, KvCacheDtype dtype, const Traits& traits) {
    ModelLimits limits = SmallLimits();
    limits.block_size = block_size;
    limits.kv_cache_dtype = dtype;
    return Create(Small(), limits, traits);
  };
  EXPECT_EQ(with(16, KvCacheDtype::kAuto, kPlainTraits), "created");
  EXPECT_THAT(with(24, KvCacheDtype::kAuto, kPlainTraits),
              HasSubstr("block_size: expected a multiple of 16, found 24"));
  EXPECT_EQ(with(32, KvCacheDtype::kBf16, amd::kTraits), "created");
  EXPECT_THAT(with(32, KvCacheDtype::kAuto, nvidia::kTraits), HasSubstr("expected a multiple of 64, found 32"));
  EXPECT_THAT(with(64, KvCacheDtype::kBf16, nvidia::kTraits), HasSubstr("only supports fp8 kv-cache"));
  EXPECT_EQ(with(64, KvCacheDtype::kAuto, nvidia::kTraits), "created");
}

// A layer without an indexer attends to what the layer before it chose (spec 1.1; 9, trap 32).
TEST(V32Model, LayersShareAChoice) {
  checkpoint::ModelConfig shared = Small();
  shared.index_topk_pattern = "FS";
  ASSERT_FALSE(shared.has_indexer(1));
  struct Watch : StepObserver {
    std::vector<int> layers;
    void OnIndex(int layer, const float* /*scores*/, int64_t /*stride*/, int32_t* topk) override {
      layers.push_back(layer);
      // Of the last row only its own position is left: it changes what both layers see.
      if (last_only) std::fill(topk + 15 * 16 + 1, topk + 16 * 16, -1), topk[15 * 16] = 15;
    }
    bool last_only = false;
  };
  const auto weights = checkpoint::DummyWeights::Create(shared, {}, true, 1);
  ASSERT_TRUE(weights.ok());
  const auto model = Model::Create(**weights, ops::MakeReferenceOps(ops::Numerics::kPublished), SmallLimits());
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<int32_t> ids(16), positions(16), seqs(16, 0);
  for (int32_t i = 0; i < 16; ++i) {
    ids[i] = 7 * i % 256;
    positions[i] = i;
  }
  const int32_t last = 15;
  const auto logits = [&](Watch* watch) {
    std::vector<float> out(256);
    StepInput step;
    step.ids = ids;
    step.positions = positions;
    step.seqs = seqs;
    step.logit_rows = std::span(&last, 1);
    step.logits = out.data();
    step.observer = watch;
    EXPECT_TRUE((*model)->Forward(step).ok());
    return out;
  };
  Watch plain, narrow;
  narrow.last_only = true;
  const std::vector<float> all = logits(&plain);
  EXPECT_EQ(plain.layers, std::vector<int>{0});
  EXPECT_NE(all, logits(&narrow));
  EXPECT_EQ(all, logits(&plain));
}

}  // namespace
}  // namespace hadal::models::deepseek_v32
