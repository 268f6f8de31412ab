// ModelConfigToJson (the published form) and generation_config.json.
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "checkpoint/json_fields.h"
#include "checkpoint/model_config.h"

namespace hadal::checkpoint {
namespace {

using nlohmann::ordered_json;

void AddV4(const ModelConfig& c, ordered_json* out) {
  ordered_json& j = *out;
  j["model_type"] = "deepseek_v4";
  j["head_dim"] = c.head_dim;
  j["num_key_value_heads"] = 1;
  j["o_groups"] = c.o_groups;
  j["o_lora_rank"] = c.o_lora_rank;
  j["num_hash_layers"] = c.num_hash_layers;
  j["sliding_window"] = c.sliding_window;
  j["compress_rope_theta"] = c.compress_rope_theta;
  j["hc_mult"] = c.hc_mult;
  j["hc_sinkhorn_iters"] = c.hc_sinkhorn_iters;
  j["hc_eps"] = c.hc_eps;
  j["swiglu_limit"] = c.swiglu_limit;
  j["scoring_func"] = "sqrtsoftplus";
  std::vector<int> ratios = c.compress_ratios;
  if (c.dspark.has_value()) {
    ratios.resize(ratios.size() + c.dspark->stages, 0);
    j["dspark_target_layer_ids"] = c.dspark->target_layer_ids;
    if (c.dspark->block_size > 0) j["dspark_block_size"] = c.dspark->block_size;
    if (c.dspark->markov_rank > 0) j["dspark_markov_rank"] = c.dspark->markov_rank;
    j["dspark_noise_token_id"] = c.dspark->noise_token_id;
  }
  j["compress_ratios"] = ratios;
  if (!c.has_vision()) return;
  const VisionConfig& v = c.vision;
  j["vision_n_layers"] = v.n_layers;
  j["vision_dim"] = v.dim;
  j["vision_n_heads"] = v.n_heads;
  j["vision_inter_dim"] = v.inter_dim;
  j["vision_patch_size"] = v.patch_size;
  j["vision_rope_theta"] = v.rope_theta;
  j["vision_downsample_ratio"] = v.downsample_ratio;
  j["vision_max_n_token"] = v.max_n_token;
  j["vision_min_pixels"] = v.min_pixels;
  j["vision_max_wh_ratio"] = v.max_wh_ratio;
}

void AddV3(const ModelConfig& c, ordered_json* out) {
  ordered_json& j = *out;
  j["model_type"] = c.architecture == "DeepseekV3ForCausalLM" ? "deepseek_v3" : "deepseek_v32";
  j["num_key_value_heads"] = c.num_attention_heads;
  j["kv_lora_rank"] = c.kv_lora_rank;
  j["qk_nope_head_dim"] = c.qk_nope_head_dim;
  j["v_head_dim"] = c.v_head_dim;
  j["intermediate_size"] = c.intermediate_size;
  j["first_k_dense_replace"] = c.first_k_dense_replace;
  j["moe_layer_freq"] = c.moe_layer_freq;
  j["n_group"] = c.n_group;
  j["topk_group"] = c.topk_group;
  j["scoring_func"] = "sigmoid";
  if (c.family != ModelFamily::kV32) return;
  j["indexer_rope_interleave"] = c.indexer_rope_interleave;
  j["index_topk_freq"] = c.index_topk_freq;
  j["index_skip_topk_offset"] = c.index_skip_topk_offset;
  if (!c.index_topk_pattern.empty()) j["index_topk_pattern"] = c.index_topk_pattern;
}

void AddRope(const ModelConfig& c, ordered_json* out) {
  (*out)["rope_theta"] = c.rope_theta;
  if (!c.rope_scaling.yarn) {
    if (c.family == ModelFamily::kV4) (*out)["rope_scaling"] = {{"type", "default"}};
    return;
  }
  const RopeScaling& r = c.rope_scaling;
  ordered_json scaling = {{"type", "yarn"},
                          {"factor", r.factor},
                          {"original_max_position_embeddings", r.original_max_position_embeddings},
                          {"beta_fast", r.beta_fast},
                          {"beta_slow", r.beta_slow}};
  if (c.family != ModelFamily::kV4) {
    scaling["mscale"] = r.mscale;
    scaling["mscale_all_dim"] = r.mscale_all_dim;
  }
  (*out)["rope_scaling"] = std::move(scaling);
}

}  // namespace

std::string ModelConfigToJson(const ModelConfig& c) {
  ordered_json j;
  j["architectures"] = {c.architecture};
  if (c.family == ModelFamily::kV4) {
    AddV4(c, &j);
  } else {
    AddV3(c, &j);
  }
  j["hidden_size"] = c.hidden_size;
  j["num_hidden_layers"] = c.num_hidden_layers;
  j["num_attention_heads"] = c.num_attention_heads;
  j["vocab_size"] = c.vocab_size;
  j["max_position_embeddings"] = c.max_position_embeddings;
  j["q_lora_rank"] = c.q_lora_rank;
  j["qk_rope_head_dim"] = c.qk_rope_head_dim;
  j["moe_intermediate_size"] = c.moe_intermediate_size;
  j["n_routed_experts"] = c.n_routed_experts;
  j["n_shared_experts"] = c.n_shared_experts;
  j["num_experts_per_tok"] = c.num_experts_per_tok;
  j["routed_scaling_factor"] = c.routed_scaling_factor;
  j["norm_topk_prob"] = c.norm_topk_prob;
  j["rms_norm_eps"] = c.rms_norm_eps;
  if (c.family != ModelFamily::kV3) {
    j["index_n_heads"] = c.index_n_heads;
    j["index_head_dim"] = c.index_head_dim;
    j["index_topk"] = c.index_topk;
  }
  AddRope(c, &j);
  j["num_nextn_predict_layers"] = c.num_mtp_layers;
  j["bos_token_id"] = c.bos_token_id;
  if (c.eos_token_ids.size() == 1) {
    j["eos_token_id"] = c.eos_token_ids[0];
  } else {
    j["eos_token_id"] = c.eos_token_ids;
  }
  if (c.expert_dtype != ExpertDType::kUnknown) j["expert_dtype"] = c.expert_dtype == ExpertDType::kFp4 ? "fp4" : "fp8";
  j["topk_method"] = "noaux_tc";
  j["hidden_act"] = "silu";
  j["attention_bias"] = false;
  j["tie_word_embeddings"] = false;
  j["quantization_config"] = {
      {"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  if (c.activation_scales == ActivationScales::kPowersOfTwo) j["quantization_config"]["scale_fmt"] = "ue8m0";
  j["torch_dtype"] = "bfloat16";
  return j.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<GenerationConfig> ParseGenerationConfig(std::string_view text, std::string_view source) {
  HADAL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(text, source, 1 << 20));
  std::vector<std::string> errors;
  JsonFields fields(object, "", &errors);
  GenerationConfig config;
  constexpr int64_t kMaxId = 1 << 24;
  if (fields.Lookup({"bos_token_id"}) != nullptr) config.bos_token_id = fields.Int({"bos_token_id"}, 0, kMaxId);
  if (const nlohmann::json* eos = fields.Lookup({"eos_token_id"}); eos != nullptr) {
    if (eos->is_array()) {
      config.eos_token_ids = *fields.IntList({"eos_token_id"}, 0, kMaxId);
    } else {
      config.eos_token_ids = {fields.Int({"eos_token_id"}, 0, kMaxId)};
    }
  }
  if (fields.Lookup({"do_sample"}) != nullptr) config.do_sample = fields.BoolOr({"do_sample"}, false);
  if (fields.Lookup({"temperature"}) != nullptr) config.temperature = fields.Real({"temperature"}, 0.0, 100.0);
  if (fields.Lookup({"top_p"}) != nullptr) config.top_p = fields.Real({"top_p"}, 0.0, 1.0);
  if (fields.Lookup({"top_k"}) != nullptr) config.top_k = fields.Int({"top_k"}, -1, kMaxId);
  if (!errors.empty()) return InvalidArgument("{}: {}", source, fmt::join(errors, "; "));
  return config;
}

}  // namespace hadal::checkpoint
