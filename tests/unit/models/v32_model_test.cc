// What a V3.2 model asks for and refuses (spec deepseek-v32).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "base/status.h"
#include "checkpoint/synth.h"
#include "models/deepseek_v32/amd/traits.h"
#include "models/deepseek_v32/common/model.h"
#include "models/deepseek_v32/nvidia/traits.h"
#include "models/registry/registry.h"
#include "ops/reference/reference_ops.h"
#include "ops/reference/rows.h"

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
  limits.max_draft_tokens = 1;
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

std::unique_ptr<checkpoint::WeightSource> Random(const checkpoint::ModelConfig& config, bool draft) {
  auto weights = checkpoint::DummyWeights::Create(config, {}, draft, 1);
  if (!weights.ok()) throw std::runtime_error(weights.status().ToString());
  return *std::move(weights);
}

// Spec 2, rule (c).
TEST(V32Model, WithoutDraftsThereIsNoMtpLayer) {
  ModelLimits limits = SmallLimits();
  limits.max_draft_tokens = 0;
  const auto main_only = Random(Small(), false);
  const auto made = Model::Create(*main_only, ops::MakeReferenceOps(ops::Numerics::kPublished), limits);
  ASSERT_TRUE(made.ok()) << made.status();
  Model& model = **made;
  const std::vector<int32_t> ids = {1, 2, 3}, positions = {0, 1, 2}, seqs = {0, 0, 0}, last = {2};
  std::vector<float> logits(256), again(256);
  StepInput step;
  step.ids = ids;
  step.positions = positions;
  step.seqs = seqs;
  step.logit_rows = last;
  step.logits = logits.data();
  ASSERT_TRUE(model.Forward(step).ok());
  const absl::Status draft = model.Draft(0, step);
  EXPECT_TRUE(absl::IsFailedPrecondition(draft));
  EXPECT_THAT(draft.ToString(), HasSubstr("draft block 0: none was loaded, since max_draft_tokens is 0"));
  EXPECT_FALSE(LoadsDraft(Small(), limits));

  // The same answers as with it, for less memory: a layer's cache, the input of eh_proj, a layer's kv_b.
  const auto all = Random(Small(), true);
  const auto with = Model::Create(*all, ops::MakeReferenceOps(ops::Numerics::kPublished), SmallLimits());
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_TRUE(LoadsDraft(Small(), SmallLimits()));
  step.logits = again.data();
  ASSERT_TRUE((*with)->Forward(step).ok());
  EXPECT_EQ(logits, again);
  const ModelMemory less = model.memory(), more = (*with)->memory();
  EXPECT_EQ(less.layout.slab_bytes * 3, more.layout.slab_bytes * 2);
  EXPECT_EQ(less.cache * 3, more.cache * 2);
  checkpoint::ModelConfig two = Small(), three = Small();
  two.num_mtp_layers = 0;
  EXPECT_EQ(more.scratch - less.scratch, SplitKvBBytes(three) - SplitKvBBytes(two) + 16 * 2 * 128 * 2);
}

// One layer of the published shape: 128 heads, keys and values of 128, latents of 512.
TEST(V32Model, BytesOfTheSplitKvB) {
  checkpoint::ModelConfig config = Published();
  config.num_hidden_layers = 1;
  config.num_mtp_layers = 0;
  constexpr size_t kValues = 128 * 256 * 512;
  EXPECT_EQ(SplitKvBBytes(config), kValues + kValues / 128 / 128 * 4);
  config.kv_b_dtype = DType::kBF16;
  EXPECT_EQ(SplitKvBBytes(config), 2 * kValues);
  // Keys, transposed, are bf16.
  config.kv_b_dtype = DType::kF4E2M1;
  EXPECT_EQ(SplitKvBBytes(config), kValues + kValues / 4 + kValues / 2 / 32);
}

// Spec 2 and 9, trap 29: of each head the first rows are keys, the others values, whatever kv_b is stored in.
TEST(V32Model, SplitsKvB) {
  for (const DType dtype : {DType::kF8E4M3, DType::kBF16, DType::kF4E2M1}) {
    SCOPED_TRACE(DTypeName(dtype));
    checkpoint::ModelConfig config = Small();
    config.kv_b_dtype = dtype;
    const auto source = Random(config, true);
    WeightStore store(ops::HostMemory());
    const auto bound = BindWeights(*source, config, store);
    ASSERT_TRUE(bound.ok()) << bound.status();
    const ModelWeights& weights = **bound;
    const std::byte* end = weights.split_kv_b.data();
    for (int64_t i = 0; i < 3; ++i) {
      const AttentionWeights& attn = i < 2 ? weights.layers[i].attn : weights.mtp[0].layer.attn;
      const std::string name = fmt::format("layers.{}.self_attn.kv_b_proj.", i);
      const checkpoint::TensorEntry* entry = source->Find(name + "weight");
      const checkpoint::TensorEntry* scale = source->Find(name + "weight_scale_inv");
      ASSERT_NE(entry, nullptr);
      ASSERT_EQ(entry->dtype, dtype);
      ASSERT_EQ(scale == nullptr, dtype == DType::kBF16);
      ops::LinearWeight whole = {entry->shape[0], entry->shape[1], dtype, entry->data};
      if (scale != nullptr) {
        whole.scale_dtype = scale->dtype;
        whole.scale = scale->data;
      }
      ASSERT_EQ(attn.key_up.n, 2 * 512);
      ASSERT_EQ(attn.key_up.k, 128);
      ASSERT_EQ(attn.value_up.n, 2 * 128);
      ASSERT_EQ(attn.value_up.k, 512);
      EXPECT_EQ(attn.value_up.dtype, dtype);
      EXPECT_EQ(attn.key_up.dtype, dtype == DType::kF4E2M1 ? DType::kBF16 : dtype);
      std::vector<float> row(512), column(128), value(512);
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t r = 0; r < 128; ++r) {
          ops::reference::DecodeWeightRow(whole, h * 256 + r, row.data());
          for (int64_t c = 0; c < 512; c += 37) {
            ops::reference::DecodeWeightRow(attn.key_up, h * 512 + c, column.data());
            ASSERT_EQ(column[r], row[c]) << "head " << h << " key " << r << " latent " << c;
          }
          ops::reference::DecodeWeightRow(whole, h * 256 + 128 + r, row.data());
          ops::reference::DecodeWeightRow(attn.value_up, h * 128 + r, value.data());
          ASSERT_EQ(value, row) << "head " << h << " value " << r;
        }
      }
      for (const ops::LinearWeight* w : {&attn.key_up, &attn.value_up}) {
        end = std::max(end, static_cast<const std::byte*>(w->data) + w->n * w->row_bytes());
        end = std::max(end, static_cast<const std::byte*>(w->scale));
      }
    }
    EXPECT_LE(static_cast<size_t>(end - weights.split_kv_b.data()), SplitKvBBytes(config));
    EXPECT_GT(static_cast<size_t>(end - weights.split_kv_b.data()), SplitKvBBytes(config) * 9 / 10);
    EXPECT_EQ(Create(config), "created");
  }
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
  limits.max_draft_tokens = 0;
  EXPECT_EQ(Model::Plan(Published(), *ops, limits, nvidia::kTraits).layout.slab_bytes, 64 * 48856 / 62 * 61);
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
  EXPECT_EQ(with(64, KvCacheDtype::kBf16, nvidia::kTraits), "created");
  EXPECT_EQ(with(64, KvCacheDtype::kAuto, nvidia::kTraits), "created");
}

// Spec 3.5: two equal forms. Rows in one chunk, those in front expanded, against the same rows one by one, absorbed, as
// answers are. A model with an indexer expands the rows that see no more than it keeps, 16; one without expands all.
TEST(V32Model, ExpandedPromptsAgreeWithAnswers) {
  constexpr int64_t kRows = 40, kVocab = 256;
  for (const bool sparse : {true, false}) {
    checkpoint::ModelConfig config = Small();
    if (!sparse) {
      config.family = checkpoint::ModelFamily::kV3;
      config.architecture = "DeepseekV3ForCausalLM";
      config.index_topk = config.index_n_heads = config.index_head_dim = 0;
    }
    const auto weights = Random(config, false);
    std::vector<int32_t> ids(kRows), positions(kRows), seqs(kRows, 0), all(kRows);
    for (int32_t i = 0; i < kRows; ++i) {
      ids[i] = 11 * i % kVocab;
      positions[i] = all[i] = i;
    }
    const auto run = [&](const std::string& device, const std::string& numerics, int64_t expand, int64_t chunk) {
      ModelOptions options;
      options.device = device;
      options.numerics = numerics;
      options.threads = 2;
      options.limits = SmallLimits();
      options.limits.max_draft_tokens = 0;
      options.limits.max_batch_tokens = options.limits.max_logit_rows = kRows;
      options.limits.expand_rows = expand;
      const auto model = CreateModel(*weights, options);
      if (!model.ok()) throw std::runtime_error(model.status().ToString());
      std::vector<float> out(kRows * kVocab);
      for (int64_t at = 0; at < kRows; at += chunk) {
        StepInput step;
        step.ids = std::span(ids).subspan(at, chunk);
        step.positions = std::span(positions).subspan(at, chunk);
        step.seqs = std::span(seqs).first(chunk);
        step.logit_rows = std::span(all).first(chunk);
        step.logits = out.data() + at * kVocab;
        if (const absl::Status status = (*model)->Forward(step); !status.ok())
          throw std::runtime_error(status.ToString());
      }
      return out;
    };
    // Root mean square of the difference of each row, as a share of its logits', in ascending order.
    const auto distances = [](const std::vector<float>& a, const std::vector<float>& b, int64_t rows) {
      std::vector<double> out;
      for (int64_t t = 0; t < rows; ++t) {
        double difference = 0, size = 0;
        for (int64_t i = t * kVocab; i < (t + 1) * kVocab; ++i) {
          difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
          size += std::pow(static_cast<double>(b[i]), 2);
        }
        out.push_back(std::sqrt(difference / size));
      }
      std::sort(out.begin(), out.end());
      return out;
    };
    for (const std::string device : {"reference", "cpu"}) {
      SCOPED_TRACE(testing::Message() << device << (sparse ? ", with an indexer" : ", without"));
      // f32: only the order of sums differs.
      const std::vector<float> exact = run(device, "f32", 0, 1), expanded = run(device, "f32", 4, kRows);
      EXPECT_NE(exact, expanded);
      EXPECT_LE(distances(expanded, exact, kRows).back(), 1e-4);
      // Published: the expansion quantises latents once more, 4 % of a layer's attention (docs/numerics.md): 6 % after
      // two layers, and some from what they compute of it. Of rows that are expanded, since behind them the indexer
      // chooses others; and of half of them, since where two experts score alike a row takes another.
      const std::vector<float> answers = run(device, "published", 0, 1), prompt = run(device, "published", 4, kRows);
      const std::vector<double> rows = distances(prompt, answers, sparse ? config.index_topk : kRows);
      EXPECT_GT(rows[rows.size() / 2], 0);
      EXPECT_LE(rows[rows.size() / 2], 0.08);
      // A chunk below the threshold is absorbed.
      EXPECT_EQ(run(device, "published", kRows + 1, kRows), answers);
      EXPECT_EQ(run(device, "published", 4, 2), answers);
    }
  }
}

// Memory for the expansion is planned, and only where it is asked for.
TEST(V32Model, ExpansionIsPlanned) {
  const auto plan = [](int64_t expand, int64_t context) {
    ModelOptions options;
    options.device = "cpu";
    options.threads = 1;
    options.limits = SmallLimits();
    options.limits.expand_rows = expand;
    options.limits.max_context = context;
    return PlanMemory(Published(), options)->scratch;
  };
  // Latents of 576, and of 8 heads keys of 192 and values of 128, twice; index_topk rows at most.
  const size_t row = 2 * (576 + 8 * (2 * 192 + 2 * 128));
  EXPECT_GE(plan(128, 4096), plan(0, 4096) + 2048 * row);
  EXPECT_LE(plan(128, 4096), plan(0, 4096) + 2048 * (row + 64 * 8) + (1 << 20));
  EXPECT_EQ(plan(128, 8192) - plan(0, 8192), plan(128, 4096) - plan(0, 4096));
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
