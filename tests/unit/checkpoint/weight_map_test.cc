// The mapper algebra of spec deepseek-v4-vision-and-cache 7.1 and the canonical names of deepseek-v4-text 2.5.
#include "checkpoint/weight_map.h"

#include "checkpoint/synth.h"
#include "checkpoint/tensor_table.h"
#include "test_util.h"

namespace hadal::checkpoint {
namespace {

WeightMap Make(WeightMapRules rules) {
  auto map = WeightMap::Create(std::move(rules));
  EXPECT_TRUE(map.ok()) << Message(map.status());
  return *std::move(map);
}

// "name", "name#shard", or "(dropped)".
std::string Mapped(const WeightMap& map, std::string_view name) {
  const auto mapped = map.Apply(name);
  if (!mapped.ok()) return std::string(Message(mapped.status()));
  if (!mapped->has_value()) return "(dropped)";
  return (*mapped)->shard.has_value() ? fmt::format("{}#{}", (*mapped)->name, *(*mapped)->shard) : (*mapped)->name;
}

TEST(WeightMap, ListsApplyInOrderAndLaterRulesSeeRewrittenNames) {
  const WeightMap map = Make({.rename = {{"a", "b"}, {"b", "c.x.x"}},
                              .regex = {{R"(^c\.(.))", "d.$1$1"}},
                              .substring = {{"x", "y"}, {"drop", std::nullopt}},
                              .stacked = {{".w1.", ".w.", 0}, {".w3.", ".w.", 1}},
                              .prefix = {{"d.", "e."}, {"e.", "f."}, {"gone.", std::nullopt}},
                              .suffix = {{".x", ".z"}, {".tail", std::nullopt}}});
  EXPECT_EQ(Mapped(map, "a"), "f.yx.z");  // a -> b -> c.x.x -> d.xx.x -> d.yx.x -> f.yx.x -> f.yx.z
  EXPECT_EQ(Mapped(map, "m.w1.k"), "m.w.k#0");
  EXPECT_EQ(Mapped(map, "m.w3.k"), "m.w.k#1");
  EXPECT_EQ(Mapped(map, "has.drop.in"), "(dropped)");
  EXPECT_EQ(Mapped(map, "gone.k"), "(dropped)");
  EXPECT_EQ(Mapped(map, "k.tail"), "(dropped)");
  EXPECT_EQ(Mapped(map, "k.gone."), "k.gone.");
}

TEST(WeightMap, BadRulesAreRefused) {
  ExpectError(WeightMap::Create({.regex = {{"(", "x"}}}), absl::StatusCode::kInvalidArgument, {"\"(\"", "compile"});
  ExpectError(WeightMap::Create({.prefix = {{"", "x"}}}), absl::StatusCode::kInvalidArgument, {"empty source"});
  ExpectError(WeightMap::Create({.stacked = {{"", "x", 0}}}), absl::StatusCode::kInvalidArgument, {"empty source"});
}

struct Row {
  const char* in;
  const char* out;
};

TEST(VisionMap, TableOfTheSpec) {
  const WeightMap map = Make(V4VisionRules(V4TextRules({}), true));
  const Row rows[] = {
      {"layers.3.attn.wq_a.weight", "language_model.model.layers.3.attn.fused_wqa_wkv.weight#0"},
      {"layers.3.attn.wkv.scale", "language_model.model.layers.3.attn.fused_wqa_wkv.weight_scale_inv#1"},
      {"layers.0.ffn.gate.bias", "language_model.model.layers.0.ffn.gate.e_score_correction_bias"},
      {"layers.0.ffn.gate.bias_vl", "language_model.model.layers.0.ffn.gate.bias_vl"},
      {"layers.3.ffn.experts.5.w1.scale", "language_model.model.layers.3.ffn.experts.5.w1.weight_scale"},
      {"layers.3.ffn.experts.5.w1.weight", "language_model.model.layers.3.ffn.experts.5.w1.weight"},
      {"layers.3.attn.wq_b.scale", "language_model.model.layers.3.attn.wq_b.weight_scale_inv"},
      {"layers.3.ffn.shared_experts.w2.weight", "language_model.model.layers.3.ffn.shared_experts.down_proj.weight"},
      {"layers.3.ffn.shared_experts.w3.scale",
       "language_model.model.layers.3.ffn.shared_experts.gate_up_proj.weight_scale_inv#1"},
      {"layers.4.attn.indexer.compressor.wgate.weight",
       "language_model.model.layers.4.attn.indexer.compressor.fused_wkv_wgate.weight#1"},
      {"layers.4.attn.compressor.wkv.weight", "language_model.model.layers.4.attn.compressor.fused_wkv_wgate.weight#0"},
      {"embed.weight", "language_model.model.embed_tokens.weight"},
      {"norm.weight", "language_model.model.norm.weight"},
      {"head.weight", "language_model.lm_head.weight"},
      {"hc_head_fn", "language_model.model.hc_head_fn"},
      {"vision.norm.weight", "vision.norm.weight"},
      {"vision.blocks.0.mlp.w1.weight", "vision.blocks.0.mlp.w1.weight"},
      {"aligner.w1.weight", "aligner.w1.weight"},
      {"image_pad", "image_pad"},
      {"mtp.0.ffn.gate.bias_vl", "(dropped)"},
  };
  for (const Row& row : rows) EXPECT_EQ(Mapped(map, row.in), row.out) << row.in;
}

TEST(VisionMap, WithoutImagesTheTowerIsDropped) {
  const WeightMap map = Make(V4VisionRules(V4TextRules({}), false));
  for (const char* name : {"vision.norm.weight", "aligner.w1.weight", "image_pad", "image_start"}) {
    EXPECT_EQ(Mapped(map, name), "(dropped)") << name;
  }
  EXPECT_EQ(Mapped(map, "layers.0.ffn.gate.bias_vl"), "language_model.model.layers.0.ffn.gate.bias_vl");
}

TEST(TextMap, OptionsChangeExpertScalesAndSharedExperts) {
  const WeightMap fp8 = Make(V4TextRules({.expert_dtype = ExpertDType::kFp8}));
  EXPECT_EQ(Mapped(fp8, "layers.3.ffn.experts.5.w1.scale"), "model.layers.3.ffn.experts.5.w1.weight_scale_inv");
  const WeightMap fused = Make(V4TextRules({.fuse_shared_experts = true}));
  EXPECT_EQ(Mapped(fused, "layers.3.ffn.shared_experts.w2.weight"), "model.layers.3.ffn.shared_experts.w2.weight");
  EXPECT_EQ(Mapped(fused, "mtp.0.enorm.weight"), "model.mtp.0.enorm.weight");
}

// Trap 31: every name of a model maps once, and never twice.
TEST(WeightMap, MappingMappedNamesIsAnError) {
  const ModelConfig config = *ApplyOverrides(*PresetConfig("v4-flash-vision"), {.num_hidden_layers = 5});
  const TensorTable table = TensorTable::For(config, false);
  const WeightMap text = Make(V4TextRules({}));
  const WeightMap vision = Make(V4VisionRules(V4TextRules({}), true));
  for (const TensorSpec& spec : table.specs()) {
    for (const WeightMap* map : {&text, &vision}) {
      const auto once = map->Apply(spec.name);
      ASSERT_TRUE(once.ok()) << Message(once.status());
      ASSERT_TRUE(once->has_value());
      if ((*once)->name == spec.name) continue;  // tower, aligner: unchanged however often
      ExpectError(map->Apply((*once)->name), absl::StatusCode::kFailedPrecondition,
                  {(*once)->name.c_str(), "mapped already"});
    }
  }
  ExpectError(text.Apply("lm_head.weight"), absl::StatusCode::kFailedPrecondition, {"lm_head.weight"});
}

TEST(CanonicalNames, AliasesOfLibraryResaves) {
  const WeightMap map = Make(CanonicalRules(ModelFamily::kV4));
  const Row rows[] = {
      {"model.embed_tokens.weight", "embed.weight"},
      {"lm_head.weight", "head.weight"},
      {"model.norm.weight", "norm.weight"},
      {"model.layers.2.self_attn.q_a_proj.weight", "layers.2.attn.wq_a.weight"},
      {"model.layers.2.self_attn.q_a_proj.weight_scale_inv", "layers.2.attn.wq_a.scale"},
      {"model.layers.2.self_attn.q_a_norm.weight", "layers.2.attn.q_norm.weight"},
      {"model.layers.2.self_attn.q_b_proj.weight_scale", "layers.2.attn.wq_b.scale"},
      {"model.layers.2.self_attn.kv_proj.weight", "layers.2.attn.wkv.weight"},
      {"model.layers.2.self_attn.kv_norm.weight", "layers.2.attn.kv_norm.weight"},
      {"model.layers.2.self_attn.o_a_proj.weight", "layers.2.attn.wo_a.weight"},
      {"model.layers.2.self_attn.o_b_proj.weight", "layers.2.attn.wo_b.weight"},
      {"model.layers.2.self_attn.sinks", "layers.2.attn.attn_sink"},
      {"model.layers.2.self_attn.compressor.kv_proj.weight", "layers.2.attn.compressor.wkv.weight"},
      {"model.layers.2.self_attn.compressor.gate_proj.weight", "layers.2.attn.compressor.wgate.weight"},
      {"model.layers.2.self_attn.compressor.kv_norm.weight", "layers.2.attn.compressor.norm.weight"},
      {"model.layers.2.self_attn.compressor.position_bias", "layers.2.attn.compressor.ape"},
      {"model.layers.2.self_attn.compressor.indexer.q_b_proj.weight", "layers.2.attn.indexer.wq_b.weight"},
      {"model.layers.2.self_attn.compressor.indexer.scorer.weights_proj.weight",
       "layers.2.attn.indexer.weights_proj.weight"},
      {"model.layers.2.self_attn.compressor.indexer.kv_proj.weight", "layers.2.attn.indexer.compressor.wkv.weight"},
      {"model.layers.2.self_attn.compressor.indexer.gate_proj.weight", "layers.2.attn.indexer.compressor.wgate.weight"},
      {"model.layers.2.self_attn.compressor.indexer.kv_norm.weight", "layers.2.attn.indexer.compressor.norm.weight"},
      {"model.layers.2.self_attn.compressor.indexer.position_bias", "layers.2.attn.indexer.compressor.ape"},
      {"model.layers.2.input_layernorm.weight", "layers.2.attn_norm.weight"},
      {"model.layers.2.post_attention_layernorm.weight", "layers.2.ffn_norm.weight"},
      {"model.layers.2.attn_hc.scale", "layers.2.hc_attn_scale"},
      {"model.layers.2.ffn_hc.fn", "layers.2.hc_ffn_fn"},
      {"model.hc_head.hc_fn", "hc_head_fn"},
      {"model.hc_head.hc_scale", "hc_head_scale"},
      {"mtp.0.hc_head.hc_base", "mtp.0.hc_head_base"},
      {"model.layers.2.mlp.gate.weight", "layers.2.ffn.gate.weight"},
      {"model.layers.2.mlp.gate.e_score_correction_bias", "layers.2.ffn.gate.bias"},
      {"model.layers.2.mlp.experts.7.gate_proj.weight", "layers.2.ffn.experts.7.w1.weight"},
      {"model.layers.2.mlp.experts.7.down_proj.weight_scale", "layers.2.ffn.experts.7.w2.scale"},
      {"model.layers.2.mlp.shared_experts.up_proj.weight", "layers.2.ffn.shared_experts.w3.weight"},
      {"vision.blocks.0.mlp.w1.weight", "vision.blocks.0.mlp.w1.weight"},
      {"mtp.0.embed.weight", "(dropped)"},
      {"mtp.0.emb.tok_emb.weight", "(dropped)"},
      {"mtp.0.head.weight", "(dropped)"},
      {"mtp.0.shared_head.head.weight", "(dropped)"},
      {"mtp.2.confidence_head.proj.weight", "mtp.2.confidence_head.proj.weight"},
  };
  for (const Row& row : rows) EXPECT_EQ(Mapped(map, row.in), row.out) << row.in;
}

TEST(CanonicalNames, PublishedNamesStay) {
  for (std::string_view preset : {"v4-flash-vision", "v3.2"}) {
    const ModelConfig config = *ApplyOverrides(*PresetConfig(preset), {.num_hidden_layers = 5});
    const WeightMap map = Make(CanonicalRules(config.family));
    const TensorTable table = TensorTable::For(config, true);
    for (const TensorSpec& spec : table.specs()) {
      EXPECT_EQ(Mapped(map, spec.name), spec.name);
      EXPECT_EQ(Mapped(map, "model." + spec.name), spec.name);
    }
  }
}

TEST(CanonicalNames, V3Scales) {
  const WeightMap map = Make(CanonicalRules(ModelFamily::kV32));
  EXPECT_EQ(Mapped(map, "model.layers.0.self_attn.o_proj.weight_scale"), "layers.0.self_attn.o_proj.weight_scale_inv");
  EXPECT_EQ(Mapped(map, "model.layers.0.self_attn.o_proj.scale"), "layers.0.self_attn.o_proj.weight_scale_inv");
  EXPECT_EQ(Mapped(map, "model.layers.0.self_attn.rotary_emb.inv_freq"), "(dropped)");
  EXPECT_EQ(ScaleName(ModelFamily::kV4, "layers.0.attn.wq_a"), "layers.0.attn.wq_a.scale");
  EXPECT_EQ(ScaleName(ModelFamily::kV3, "layers.0.mlp.up_proj"), "layers.0.mlp.up_proj.weight_scale_inv");
}

}  // namespace
}  // namespace hadal::checkpoint
