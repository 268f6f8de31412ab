// config.json and generation_config.json of the DeepSeek family as one struct, whatever form they were written in.
//
// Accepted forms (spec deepseek-v4-text 1): the published flat form, the re-saves of newer libraries (rope_parameters,
// layer_types, mlp_layer_types, partial_rotary_factor, dtype) and the flat form of the reference implementation (dim,
// n_layers, ...). Forms may be mixed; two spellings of one field that disagree are an error. V3.2, V3 and R1 are read
// from their published form (spec deepseek-v32 1). V4.1 and unknown architectures are refused by name.
//
// After ParseModelConfig every dimension is positive and small enough that products of three of them fit in int64.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"

namespace hadal::checkpoint {

enum class ModelFamily {
  kV4,   // deepseek_v4, text and vision
  kV32,  // deepseek_v32: MLA with the lightning indexer
  kV3,   // deepseek_v3: the same network without an indexer (V3, R1, V3.1)
};
std::string_view FamilyName(ModelFamily family);  // "DeepSeek V4", ...

// Storage of the routed experts. kUnknown until the checkpoint's own tensors say it (spec text 1: never inferred from
// quantization_config).
enum class ExpertDType { kUnknown, kFp4, kFp8 };

enum class ScoringFunc { kSqrtSoftplus, kSigmoid };

// Scales under which inputs of FP8 weights are quantised: quantization_config.scale_fmt (spec deepseek-v32 3.1).
enum class ActivationScales {
  kPowersOfTwo,  // "ue8m0"; V4 whatever its configuration says
  kAny,          // V3.x without the field, as V3, R1 and V3.1 are published: amax/448
};

// YaRN. For V4 it applies to layers with compress_ratio > 0 only (base compress_rope_theta), for V3.x to all.
struct RopeScaling {
  bool yarn = false;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 1.0;          // V3.x
  double mscale_all_dim = 0.0;  // V3.x
  bool operator==(const RopeScaling&) const = default;
};

// Spec vision-and-cache 1.1. n_layers > 0 is the only switch that makes a model a vision model.
struct VisionConfig {
  int64_t n_layers = 0;
  int64_t dim = 0;
  int64_t n_heads = 0;
  int64_t inter_dim = 0;
  int64_t patch_size = 0;
  double rope_theta = 10000.0;
  int64_t downsample_ratio = 0;
  int64_t max_n_token = 0;
  int64_t min_pixels = 0;
  int64_t max_wh_ratio = 0;  // 0: no cap
  bool operator==(const VisionConfig&) const = default;
};

// Present when any dspark_* key is (spec serving-runtime 3.2): then mtp.* holds the DSpark drafter, not MTP blocks.
struct DSparkConfig {
  int64_t block_size = 0;
  int64_t noise_token_id = 0;
  int64_t markov_rank = 0;
  std::vector<int64_t> target_layer_ids = {};
  int64_t stages = 0;  // entries of compress_ratios behind the main layers, else 3
  // Whether the shapes of the drafter follow from the fields; otherwise its tensors are neither expected nor checked.
  bool complete() const { return markov_rank > 0 && !target_layer_ids.empty(); }
  bool operator==(const DSparkConfig&) const = default;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kV4;
  std::string architecture;  // "DeepseekV4ForCausalLM", ...

  // All families.
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  int64_t q_lora_rank = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t moe_intermediate_size = 0;
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 1;
  int64_t num_experts_per_tok = 0;
  double routed_scaling_factor = 1.0;
  bool norm_topk_prob = true;
  ScoringFunc scoring_func = ScoringFunc::kSqrtSoftplus;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  int64_t index_n_heads = 0;  // 0 for kV3
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  int64_t num_mtp_layers = 0;  // num_nextn_predict_layers; 0 when DSpark takes the place of MTP
  int64_t bos_token_id = 0;
  std::vector<int64_t> eos_token_ids;  // never empty
  ExpertDType expert_dtype = ExpertDType::kUnknown;
  ActivationScales activation_scales = ActivationScales::kPowersOfTwo;

  // V4.
  int64_t head_dim = 0;
  int64_t o_groups = 0;
  int64_t o_lora_rank = 0;
  int64_t num_hash_layers = 0;
  int64_t sliding_window = 0;
  std::vector<int> compress_ratios;  // num_hidden_layers + num_mtp_layers entries, each 0, 4 or 128
  double compress_rope_theta = 160000.0;
  int64_t hc_mult = 4;
  int64_t hc_sinkhorn_iters = 20;
  double hc_eps = 1e-6;
  double swiglu_limit = 10.0;
  VisionConfig vision;
  std::optional<DSparkConfig> dspark;

  // V3.2 and V3.
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t v_head_dim = 0;
  int64_t intermediate_size = 0;  // dense layers
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 1;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  bool indexer_rope_interleave = false;
  int64_t index_topk_freq = 1;
  int64_t index_skip_topk_offset = 2;
  std::string index_topk_pattern;  // empty: none
  // Storage of kv_b_proj: kF8E4M3, kF4E2M1 or kBF16. No field of config.json: Checkpoint::Open takes it from the
  // tensors.
  DType kv_b_dtype = DType::kF8E4M3;

  bool operator==(const ModelConfig&) const = default;

  bool has_vision() const { return vision.n_layers > 0; }
  bool is_hash_layer(int64_t layer) const { return layer < num_hash_layers; }
  // Layers [num_hidden_layers, num_hidden_layers + num_mtp_layers) are MTP blocks.
  bool is_moe_layer(int64_t layer) const {
    return family == ModelFamily::kV4 || (layer >= first_k_dense_replace && layer % moe_layer_freq == 0);
  }
  // V3.2: whether the layer owns an indexer (spec deepseek-v32 1.1, optional keys); MTP layers always do.
  bool has_indexer(int64_t layer) const;
};

// Sampling defaults of generation_config.json; absent fields stay empty.
struct GenerationConfig {
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
};

// `source` is what messages call the file. InvalidArgument names the field, what was expected and what was found;
// Unimplemented for architectures that hadal does not serve, listing those it does.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text, std::string_view source = "config.json");
absl::StatusOr<GenerationConfig> ParseGenerationConfig(std::string_view text,
                                                       std::string_view source = "generation_config.json");

// The published form, which ParseModelConfig reads back to an equal struct.
std::string ModelConfigToJson(const ModelConfig& config);

}  // namespace hadal::checkpoint
