// The published shapes (spec deepseek-v4-text 1, deepseek-v4-vision-and-cache 1.1, deepseek-v32 1.1) and changes to
// them.
#include "base/status.h"
#include "checkpoint/synth.h"

namespace hadal::checkpoint {
namespace {

// [first, first] ++ [4, 128] x pairs ++ [4], then zeros for draft layers.
std::vector<int> V4Ratios(int first, int pairs, int draft) {
  std::vector<int> ratios = {first, first};
  for (int i = 0; i < pairs; ++i) ratios.insert(ratios.end(), {4, 128});
  ratios.push_back(4);
  ratios.insert(ratios.end(), draft, 0);
  return ratios;
}

ModelConfig V4Flash() {
  ModelConfig c;
  c.family = ModelFamily::kV4;
  c.architecture = "DeepseekV4ForCausalLM";
  c.hidden_size = 4096;
  c.num_hidden_layers = 43;
  c.num_attention_heads = 64;
  c.vocab_size = 129280;
  c.max_position_embeddings = 1048576;
  c.q_lora_rank = 1024;
  c.qk_rope_head_dim = 64;
  c.moe_intermediate_size = 2048;
  c.n_routed_experts = 256;
  c.num_experts_per_tok = 6;
  c.routed_scaling_factor = 1.5;
  c.rope_scaling = {.yarn = true, .factor = 16, .original_max_position_embeddings = 65536};
  c.index_n_heads = 64;
  c.index_head_dim = 128;
  c.index_topk = 512;
  c.num_mtp_layers = 1;
  c.eos_token_ids = {1};
  c.expert_dtype = ExpertDType::kFp4;
  c.head_dim = 512;
  c.o_groups = 8;
  c.o_lora_rank = 1024;
  c.num_hash_layers = 3;
  c.sliding_window = 128;
  c.compress_ratios = V4Ratios(0, 20, 1);
  return c;
}

ModelConfig V4FlashBase() {
  ModelConfig c = V4Flash();
  c.expert_dtype = ExpertDType::kFp8;
  return c;
}

ModelConfig V4FlashVision() {
  ModelConfig c = V4Flash();
  c.rms_norm_eps = 1e-20;
  c.vision = {.n_layers = 32,
              .dim = 1024,
              .n_heads = 16,
              .inter_dim = 2816,
              .patch_size = 14,
              .rope_theta = 10000.0,
              .downsample_ratio = 3,
              .max_n_token = 384,
              .min_pixels = 147456,
              .max_wh_ratio = 8};
  c.num_mtp_layers = 0;
  c.compress_ratios = V4Ratios(0, 20, 0);
  c.dspark = DSparkConfig{
      .block_size = 5, .noise_token_id = 128799, .markov_rank = 256, .target_layer_ids = {40, 41, 42}, .stages = 3};
  return c;
}

ModelConfig V4Pro() {
  ModelConfig c = V4Flash();
  c.hidden_size = 7168;
  c.num_hidden_layers = 61;
  c.num_attention_heads = 128;
  c.q_lora_rank = 1536;
  c.o_groups = 16;
  c.moe_intermediate_size = 3072;
  c.n_routed_experts = 384;
  c.routed_scaling_factor = 2.5;
  c.index_topk = 1024;
  c.compress_ratios = V4Ratios(128, 29, 1);
  return c;
}

ModelConfig V32() {
  ModelConfig c;
  c.family = ModelFamily::kV32;
  c.architecture = "DeepseekV32ForCausalLM";
  c.hidden_size = 7168;
  c.num_hidden_layers = 61;
  c.num_attention_heads = 128;
  c.vocab_size = 129280;
  c.max_position_embeddings = 163840;
  c.q_lora_rank = 1536;
  c.qk_rope_head_dim = 64;
  c.moe_intermediate_size = 2048;
  c.n_routed_experts = 256;
  c.num_experts_per_tok = 8;
  c.routed_scaling_factor = 2.5;
  c.scoring_func = ScoringFunc::kSigmoid;
  c.rope_scaling = {.yarn = true, .factor = 40, .original_max_position_embeddings = 4096, .mscale_all_dim = 1.0};
  c.index_n_heads = 64;
  c.index_head_dim = 128;
  c.index_topk = 2048;
  c.num_mtp_layers = 1;
  c.eos_token_ids = {1};
  c.kv_lora_rank = 512;
  c.qk_nope_head_dim = 128;
  c.v_head_dim = 128;
  c.intermediate_size = 18432;
  c.first_k_dense_replace = 3;
  c.n_group = 8;
  c.topk_group = 4;
  return c;
}

struct Preset {
  std::string_view name;
  ModelConfig (*make)();
};
constexpr Preset kPresets[] = {{"v4-flash", V4Flash},
                               {"v4-flash-base", V4FlashBase},
                               {"v4-flash-vision", V4FlashVision},
                               {"v4-pro", V4Pro},
                               {"v3.2", V32}};

void Set(const std::optional<int64_t>& value, int64_t* field) {
  if (value.has_value()) *field = *value;
}

// Cuts or continues the list of main layers, keeping the alternation at its end.
void ResizeRatios(int64_t old_layers, ModelConfig* c) {
  std::vector<int> main(c->compress_ratios.begin(), c->compress_ratios.begin() + old_layers);
  const size_t layers = static_cast<size_t>(std::max<int64_t>(c->num_hidden_layers, 0));
  while (main.size() < layers) main.push_back(main.size() >= 2 ? main[main.size() - 2] : main.back());
  main.resize(layers);
  main.resize(layers + static_cast<size_t>(std::max<int64_t>(c->num_mtp_layers, 0)), 0);
  c->compress_ratios = std::move(main);
}

}  // namespace

std::vector<std::string_view> PresetNames() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

absl::StatusOr<ModelConfig> PresetConfig(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset.make();
  }
  return InvalidArgument("unknown preset \"{}\", expected one of {}", name, fmt::join(PresetNames(), ", "));
}

absl::StatusOr<ModelConfig> ApplyOverrides(ModelConfig config, const ConfigOverrides& o) {
  const int64_t old_layers = config.num_hidden_layers;
  constexpr int64_t kMostLayers = 1 << 10;  // ParseModelConfig names the field; this only keeps lists small until then
  for (const auto& layers : {o.num_hidden_layers, o.num_mtp_layers}) {
    if (layers.has_value() && (*layers < 0 || *layers > kMostLayers)) {
      return InvalidArgument("expected at most {} layers, found {}", kMostLayers, *layers);
    }
  }
  Set(o.num_hidden_layers, &config.num_hidden_layers);
  Set(o.num_mtp_layers, &config.num_mtp_layers);
  Set(o.num_hash_layers, &config.num_hash_layers);
  Set(o.hidden_size, &config.hidden_size);
  Set(o.num_attention_heads, &config.num_attention_heads);
  Set(o.q_lora_rank, &config.q_lora_rank);
  Set(o.o_groups, &config.o_groups);
  Set(o.o_lora_rank, &config.o_lora_rank);
  Set(o.moe_intermediate_size, &config.moe_intermediate_size);
  Set(o.n_routed_experts, &config.n_routed_experts);
  Set(o.num_experts_per_tok, &config.num_experts_per_tok);
  Set(o.vocab_size, &config.vocab_size);
  Set(o.index_topk, &config.index_topk);
  Set(o.intermediate_size, &config.intermediate_size);
  Set(o.first_k_dense_replace, &config.first_k_dense_replace);
  if (config.family == ModelFamily::kV4) {
    if (o.compress_ratios.has_value()) {
      config.compress_ratios = *o.compress_ratios;
    } else {
      ResizeRatios(old_layers, &config);
    }
    if (!o.num_hash_layers.has_value()) {
      config.num_hash_layers = std::min(config.num_hash_layers, config.num_hidden_layers);
    }
    if (config.dspark.has_value() && config.num_hidden_layers < old_layers) {
      // The drafter taps the last layers.
      std::vector<int64_t>& taps = config.dspark->target_layer_ids;
      for (size_t i = 0; i < taps.size(); ++i) {
        taps[i] = std::max<int64_t>(0, config.num_hidden_layers - static_cast<int64_t>(taps.size() - i));
      }
    }
  }
  return ParseModelConfig(ModelConfigToJson(config), "overrides");
}

}  // namespace hadal::checkpoint
