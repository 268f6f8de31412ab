// The rules themselves: which names become which. See weight_map.h for the order in which they apply.
#include "base/status.h"
#include "checkpoint/weight_map.h"

namespace hadal::checkpoint {
namespace {

// Library re-saves of V4 -> published names (spec deepseek-v4-text 2.5). `attn_hc.scale` and its kin come before the
// synonyms of quantisation scales, whose suffixes they share.
WeightMapRules V4CanonicalRules() {
  WeightMapRules rules;
  rules.idempotent = true;
  const std::string block = R"(^(?:model\.)?((?:layers|mtp)\.\d+)\.)";
  rules.regex = {
      // "Ignore any mtp.*emb* or mtp.*head.weight" (spec 2.2).
      {R"(^(?:model\.)?mtp\.\d+\.(?:.*\.)?\w*emb\w*(?:\..*)?$)", std::nullopt},
      {R"(^(?:model\.)?mtp\.\d+\.(?:.*\.)?(?:lm_)?head\.weight$)", std::nullopt},
      {block + R"(self_attn\.)", "$1.attn."},
      {block + R"(mlp\.)", "$1.ffn."},
      {block + R"(input_layernorm\.)", "$1.attn_norm."},
      {block + R"(post_attention_layernorm\.)", "$1.ffn_norm."},
      {block + R"((attn|ffn)_hc\.(fn|base|scale)$)", "$1.hc_$2_$3"},
      {R"(^(?:model\.)?((?:mtp\.\d+\.)?)hc_head\.(?:hc_)?(fn|base|scale)$)", "$1hc_head_$2"},
      {R"(\.attn\.q_a_proj\.)", ".attn.wq_a."},
      {R"(\.attn\.q_a_norm\.)", ".attn.q_norm."},
      {R"(\.attn\.q_b_proj\.)", ".attn.wq_b."},
      {R"(\.attn\.kv_proj\.)", ".attn.wkv."},
      {R"(\.attn\.o_a_proj\.)", ".attn.wo_a."},
      {R"(\.attn\.o_b_proj\.)", ".attn.wo_b."},
      {R"(\.attn\.sinks$)", ".attn.attn_sink"},
      {R"(\.attn\.compressor\.indexer\.q_b_proj\.)", ".attn.indexer.wq_b."},
      {R"(\.attn\.compressor\.indexer\.(?:scorer\.)?weights_proj\.)", ".attn.indexer.weights_proj."},
      {R"(\.attn\.compressor\.indexer\.(kv_proj|gate_proj|kv_norm|position_bias))", ".attn.indexer.compressor.$1"},
      {R"(\.compressor\.kv_proj\.)", ".compressor.wkv."},
      {R"(\.compressor\.gate_proj\.)", ".compressor.wgate."},
      {R"(\.compressor\.kv_norm\.)", ".compressor.norm."},
      {R"(\.compressor\.position_bias$)", ".compressor.ape"},
      {R"((\.ffn\.(?:experts\.\d+|shared_experts))\.gate_proj\.)", "$1.w1."},
      {R"((\.ffn\.(?:experts\.\d+|shared_experts))\.up_proj\.)", "$1.w3."},
      {R"((\.ffn\.(?:experts\.\d+|shared_experts))\.down_proj\.)", "$1.w2."},
      {R"(\.ffn\.gate\.e_score_correction_bias$)", ".ffn.gate.bias"},
  };
  rules.prefix = {{"model.", ""}, {"embed_tokens.", "embed."}, {"lm_head.", "head."}};
  rules.suffix = {{".weight_scale_inv", ".scale"}, {".weight_scale", ".scale"}};
  return rules;
}

// Published names of V3.x without "model." (spec deepseek-v32 2).
WeightMapRules V3CanonicalRules() {
  WeightMapRules rules;
  rules.idempotent = true;
  rules.regex = {{R"((?:^|\.)rotary_emb\.inv_freq$)", std::nullopt}};
  rules.prefix = {{"model.", ""}};
  rules.suffix = {{".weight_scale", ".weight_scale_inv"}, {".scale", ".weight_scale_inv"}};
  return rules;
}

}  // namespace

WeightMapRules CanonicalRules(ModelFamily family) {
  return family == ModelFamily::kV4 ? V4CanonicalRules() : V3CanonicalRules();
}

std::string ScaleName(ModelFamily family, std::string_view module) {
  return fmt::format("{}.{}", module, family == ModelFamily::kV4 ? "scale" : "weight_scale_inv");
}

WeightMapRules V4TextRules(const TextMapOptions& options) {
  WeightMapRules rules;
  if (options.expert_dtype == ExpertDType::kFp4) {
    rules.regex.push_back({R"((\.experts\.\d+\.w[123])\.scale$)", "$1.weight_scale"});
  }
  rules.regex.push_back({R"(\.scale$)", ".weight_scale_inv"});
  if (!options.fuse_shared_experts) {
    rules.substring.push_back({".shared_experts.w2", ".shared_experts.down_proj"});
    rules.stacked.push_back({".shared_experts.w1.", ".shared_experts.gate_up_proj.", 0});
    rules.stacked.push_back({".shared_experts.w3.", ".shared_experts.gate_up_proj.", 1});
  }
  // Each source is scoped by its module, so that vision.blocks.*.mlp.w1, aligner.w1 and experts.N.w1 never match.
  rules.stacked.push_back({".attn.wq_a.", ".attn.fused_wqa_wkv.", 0});
  rules.stacked.push_back({".attn.wkv.", ".attn.fused_wqa_wkv.", 1});
  rules.stacked.push_back({".compressor.wkv.", ".compressor.fused_wkv_wgate.", 0});
  rules.stacked.push_back({".compressor.wgate.", ".compressor.fused_wkv_wgate.", 1});
  rules.prefix = {{"layers.", "model.layers."},
                  {"embed.", "model.embed."},
                  {"norm.", "model.norm."},
                  {"hc_head", "model.hc_head"},
                  {"mtp.", "model.mtp."}};
  rules.suffix = {{"head.weight", "lm_head.weight"},
                  {"embed.weight", "embed_tokens.weight"},
                  {".ffn.gate.bias", ".ffn.gate.e_score_correction_bias"}};
  return rules;
}

WeightMapRules Rerooted(WeightMapRules rules, std::string_view root) {
  for (MapRule& rule : rules.prefix) {
    if (rule.to.has_value()) rule.to = std::string(root) + *rule.to;
  }
  return rules;
}

WeightMapRules V4VisionRules(const WeightMapRules& text, bool image_enabled) {
  WeightMapRules rules = Rerooted(text, "language_model.");
  if (!image_enabled) {
    for (const char* prefix : {"vision.", "aligner.", "image_"}) rules.prefix.push_back({prefix, std::nullopt});
  }
  for (MapRule& rule : rules.suffix) {
    if (rule.from == "head.weight") rule.to = "language_model.lm_head.weight";
  }
  // The draft model loads these itself, from the same files.
  rules.substring.push_back({"mtp.", std::nullopt});
  return rules;
}

}  // namespace hadal::checkpoint
