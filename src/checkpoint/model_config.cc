// Reading config.json: which architecture it is, then its fields under all their spellings.
#include "checkpoint/model_config.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "checkpoint/json_fields.h"

namespace hadal::checkpoint {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigBytes = 1 << 20;

// Upper bounds. Far above any published model, and low enough that a product of three dimensions fits in int64.
constexpr int64_t kMaxWidth = 1 << 16;
constexpr int64_t kMaxLayers = 1 << 10;
constexpr int64_t kMaxHeads = 1 << 12;
constexpr int64_t kMaxHeadDim = 1 << 12;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxExperts = 1 << 14;
constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr int64_t kMaxExpertsInModel = 1 << 17;  // layers times experts: bounds the tensor table
// Activations of quantised linears are scaled in blocks of 128 (spec deepseek-v4-text 3.1).
constexpr int64_t kBlock = 128;

constexpr std::string_view kSupported =
    "supported: deepseek_v4 (DeepseekV4ForCausalLM, DeepseekV4ForConditionalGeneration), deepseek_v32 "
    "(DeepseekV32ForCausalLM), deepseek_v3 (DeepseekV3ForCausalLM)";

struct KnownArchitecture {
  std::string_view name;
  std::string_view model_type;
  ModelFamily family;
};
constexpr KnownArchitecture kArchitectures[] = {
    {"DeepseekV4ForCausalLM", "deepseek_v4", ModelFamily::kV4},
    {"DeepseekV4ForConditionalGeneration", "deepseek_v4", ModelFamily::kV4},
    {"DeepseekV32ForCausalLM", "deepseek_v32", ModelFamily::kV32},
    {"DeepseekV3ForCausalLM", "deepseek_v3", ModelFamily::kV3},
};

absl::Status RefuseV41(std::string_view source, std::string_view why) {
  return Unimplemented("{}: {} belongs to DeepSeek V4.1, a different architecture that is not supported; {}", source,
                       why, kSupported);
}

// Spec deepseek-v4-text 9, last item.
absl::Status CheckNotV41(const json& object, std::string_view source) {
  for (const auto& [key, value] : object.items()) {
    if (key == "kv_source_layer_ids" || key.rfind("engram_", 0) == 0) {
      return RefuseV41(source, fmt::format("field \"{}\"", key));
    }
  }
  return absl::OkStatus();
}

bool NamesV41(std::string_view name) {
  for (std::string_view mark : {"v41", "V41", "v4_1", "V4_1", "v4.1", "V4.1"}) {
    if (name.find(mark) != std::string_view::npos) return true;
  }
  return false;
}

// Architecture and family from model_type and architectures; the reference form has neither and is told by its fields.
absl::Status FindArchitecture(const json& object, std::string_view source, ModelConfig* config) {
  std::vector<std::string> errors;
  JsonFields fields(object, "", &errors);
  const std::string model_type = fields.StringOr({"model_type"}, "");
  const std::vector<std::string> names = fields.StringList({"architectures"}).value_or(std::vector<std::string>());
  if (!errors.empty()) return InvalidArgument("{}: {}", source, errors[0]);
  const std::string name = names.empty() ? "" : names[0];
  for (std::string_view text : {std::string_view(model_type), std::string_view(name)}) {
    if (NamesV41(text)) return RefuseV41(source, fmt::format("\"{}\"", text));
  }
  if (model_type.empty() && name.empty()) {
    if (object.contains("dim") && object.contains("n_layers") && object.contains("compress_ratios")) {
      config->architecture = "DeepseekV4ForCausalLM";
      config->family = ModelFamily::kV4;
      return absl::OkStatus();
    }
    return InvalidArgument("{}: fields \"model_type\" and \"architectures\" are missing; {}", source, kSupported);
  }
  for (const KnownArchitecture& known : kArchitectures) {
    if ((name.empty() || known.name == name) && (model_type.empty() || known.model_type == model_type)) {
      config->architecture = known.name;
      config->family = known.family;
      return absl::OkStatus();
    }
  }
  return Unimplemented("{}: model_type \"{}\" with architecture \"{}\" is not supported; {}", source, model_type, name,
                       kSupported);
}

void CheckEqual(JsonFields& fields, JsonFields::Names names, std::string_view wanted) {
  const std::string found = fields.StringOr(names, std::string(wanted));
  if (found != wanted) {
    fields.AddError(fmt::format("field \"{}\": expected \"{}\", found \"{}\"", fields.Path(names), wanted, found));
  }
}

void CheckFalse(JsonFields& fields, JsonFields::Names names) {
  if (fields.BoolOr(names, false)) {
    fields.AddError(fmt::format("field \"{}\": expected false, found true", fields.Path(names)));
  }
}

void CheckMultiple(JsonFields& fields, const char* name, int64_t value, int64_t unit) {
  if (value % unit != 0) {
    fields.AddError(fmt::format("field \"{}\": expected a multiple of {}, found {}", name, unit, value));
  }
}

// rope_scaling or one entry of rope_parameters.
RopeScaling ReadRopeScaling(const json& object, const std::string& path, std::vector<std::string>* errors) {
  JsonFields fields(object, path, errors);
  RopeScaling rope;
  const std::string type = fields.StringOr({"type", "rope_type"}, "");
  if (type == "default") return rope;
  if (type != "yarn") {
    fields.AddError(fmt::format("field \"{}type\": expected \"yarn\" or \"default\", found \"{}\"", path, type));
    return rope;
  }
  rope.yarn = true;
  rope.factor = fields.Real({"factor"}, 1.0, 1e6);
  rope.original_max_position_embeddings = fields.Int({"original_max_position_embeddings"}, 1, kMaxPositions);
  rope.beta_fast = fields.RealOr({"beta_fast"}, 1e-3, 1e6, 32.0);
  rope.beta_slow = fields.RealOr({"beta_slow"}, 1e-3, 1e6, 1.0);
  rope.mscale = fields.RealOr({"mscale"}, 0.0, 1e3, 1.0);
  rope.mscale_all_dim = fields.RealOr({"mscale_all_dim"}, 0.0, 1e3, 0.0);
  return rope;
}

void ReadQuantization(JsonFields& fields, std::vector<std::string>* errors, ModelConfig* c) {
  // The published V4 code knows powers of two only.
  if (c->family != ModelFamily::kV4) c->activation_scales = ActivationScales::kAny;
  const json* object = fields.Object({"quantization_config"});
  if (object == nullptr) return;
  JsonFields quantization(*object, "quantization_config.", errors);
  CheckEqual(quantization, {"quant_method"}, "fp8");
  CheckEqual(quantization, {"fmt"}, "e4m3");
  CheckEqual(quantization, {"activation_scheme"}, "dynamic");
  const std::string scales = quantization.StringOr({"scale_fmt"}, "");
  if (scales == "ue8m0") {
    c->activation_scales = ActivationScales::kPowersOfTwo;
  } else if (!scales.empty()) {
    fields.AddError(fmt::format(
        "field \"quantization_config.scale_fmt\": expected \"ue8m0\" or no such field, found \"{}\"", scales));
  }
  const auto block = quantization.IntList({"weight_block_size"}, 1, kMaxWidth);
  if (block.has_value() && *block != std::vector<int64_t>{kBlock, kBlock}) {
    fields.AddError(fmt::format("field \"quantization_config.weight_block_size\": expected [128, 128], found [{}]",
                                fmt::join(*block, ", ")));
  }
}

// Fields that all families share under the same meaning.
void ReadCommon(JsonFields& fields, std::vector<std::string>* errors, ModelConfig* c) {
  c->hidden_size = fields.Int({"hidden_size", "dim"}, 1, kMaxWidth);
  c->num_hidden_layers = fields.Int({"num_hidden_layers", "n_layers"}, 1, kMaxLayers);
  c->num_attention_heads = fields.Int({"num_attention_heads", "n_heads"}, 1, kMaxHeads);
  c->vocab_size = fields.Int({"vocab_size"}, 1, kMaxVocab);
  c->q_lora_rank = fields.Int({"q_lora_rank"}, 1, kMaxWidth);
  c->moe_intermediate_size = fields.Int({"moe_intermediate_size", "moe_inter_dim"}, 1, kMaxWidth);
  c->n_routed_experts = fields.Int({"n_routed_experts"}, 1, kMaxExperts);
  c->n_shared_experts = fields.IntOr({"n_shared_experts"}, 1, 1, 1);
  c->num_experts_per_tok = fields.Int({"num_experts_per_tok", "n_activated_experts"}, 1, kMaxExperts);
  c->routed_scaling_factor = fields.Real({"routed_scaling_factor", "route_scale"}, 0.0, 1e6);
  c->norm_topk_prob = fields.BoolOr({"norm_topk_prob"}, true);
  c->rms_norm_eps = fields.RealOr({"rms_norm_eps", "norm_eps"}, 0.0, 1.0, 1e-6);
  c->num_mtp_layers = fields.IntOr({"num_nextn_predict_layers", "n_mtp_layers"}, 0, 64, 0);
  CheckEqual(fields, {"hidden_act"}, "silu");
  CheckEqual(fields, {"topk_method"}, "noaux_tc");
  CheckFalse(fields, {"tie_word_embeddings"});
  CheckFalse(fields, {"attention_bias"});
  ReadQuantization(fields, errors, c);

  c->bos_token_id = fields.IntOr({"bos_token_id"}, 0, kMaxVocab, 0);
  const json* eos = fields.Lookup({"eos_token_id"});
  if (eos != nullptr && eos->is_array()) {
    c->eos_token_ids = *fields.IntList({"eos_token_id"}, 0, kMaxVocab);
  } else {
    c->eos_token_ids = {fields.IntOr({"eos_token_id"}, 0, kMaxVocab, 1)};
  }
  if (c->eos_token_ids.empty()) fields.AddError("field \"eos_token_id\": expected at least one id, found none");

  const std::string expert = fields.StringOr({"expert_dtype"}, "");
  if (expert == "fp4") {
    c->expert_dtype = ExpertDType::kFp4;
  } else if (expert == "fp8") {
    c->expert_dtype = ExpertDType::kFp8;
  } else if (!expert.empty()) {
    fields.AddError(fmt::format("field \"expert_dtype\": expected \"fp4\" or \"fp8\", found \"{}\"", expert));
  }
  if (c->num_experts_per_tok > c->n_routed_experts) {
    fields.AddError(fmt::format("field \"num_experts_per_tok\": expected at most n_routed_experts = {}, found {}",
                                c->n_routed_experts, c->num_experts_per_tok));
  }
  if ((c->num_hidden_layers + c->num_mtp_layers) * c->n_routed_experts > kMaxExpertsInModel) {
    fields.AddError(
        fmt::format("fields \"num_hidden_layers\" and \"n_routed_experts\": {} layers of {} experts are more "
                    "than the {} experts that are handled",
                    c->num_hidden_layers, c->n_routed_experts, kMaxExpertsInModel));
  }
}

void CheckBlocks(JsonFields& fields, const ModelConfig& c) {
  CheckMultiple(fields, "hidden_size", c.hidden_size, kBlock);
  CheckMultiple(fields, "q_lora_rank", c.q_lora_rank, kBlock);
  CheckMultiple(fields, "moe_intermediate_size", c.moe_intermediate_size, kBlock);
}

void ReadV4Rope(const json& object, JsonFields& fields, std::vector<std::string>* errors, ModelConfig* c) {
  std::optional<RopeScaling> scaling;
  const auto merge = [&](const RopeScaling& found, std::string_view where) {
    if (scaling.has_value() && *scaling != found) {
      fields.AddError(fmt::format("field \"{}\" disagrees with another form of the RoPE scaling", where));
    }
    scaling = found;
  };
  c->rope_theta = fields.RealOr({"rope_theta"}, 1.0, 1e12, 10000.0);
  c->compress_rope_theta = fields.RealOr({"compress_rope_theta"}, 1.0, 1e12, 160000.0);
  if (const json* published = fields.Object({"rope_scaling"}); published != nullptr) {
    merge(ReadRopeScaling(*published, "rope_scaling.", errors), "rope_scaling");
  }
  if (const json* parameters = fields.Object({"rope_parameters"}); parameters != nullptr) {
    JsonFields groups(*parameters, "rope_parameters.", errors);
    if (const json* main = groups.Object({"main"}); main != nullptr) {
      JsonFields main_fields(*main, "rope_parameters.main.", errors);
      CheckEqual(main_fields, {"rope_type", "type"}, "default");
      c->rope_theta = main_fields.RealOr({"rope_theta"}, 1.0, 1e12, c->rope_theta);
    }
    if (const json* compress = groups.Object({"compress"}); compress != nullptr) {
      JsonFields compress_fields(*compress, "rope_parameters.compress.", errors);
      c->compress_rope_theta = compress_fields.RealOr({"rope_theta"}, 1.0, 1e12, c->compress_rope_theta);
      // cos and sin are not scaled in V4 (trap 4).
      if (compress_fields.RealOr({"attention_factor"}, 0.0, 1e3, 1.0) != 1.0) {
        fields.AddError("field \"rope_parameters.compress.attention_factor\": expected 1.0");
      }
      merge(ReadRopeScaling(*compress, "rope_parameters.compress.", errors), "rope_parameters.compress");
    }
  }
  if (object.contains("rope_factor") || object.contains("original_seq_len")) {
    merge({.yarn = true,
           .factor = fields.Real({"rope_factor"}, 1.0, 1e6),
           .original_max_position_embeddings = fields.Int({"original_seq_len"}, 1, kMaxPositions),
           .beta_fast = fields.RealOr({"beta_fast"}, 1e-3, 1e6, 32.0),
           .beta_slow = fields.RealOr({"beta_slow"}, 1e-3, 1e6, 1.0)},
          "rope_factor");
  }
  if (!scaling.has_value()) {
    fields.AddError(
        "field \"rope_scaling\" is missing, expected {\"type\": \"yarn\", \"factor\", "
        "\"original_max_position_embeddings\", ...}");
  }
  c->rope_scaling = scaling.value_or(RopeScaling());
  c->rope_scaling.mscale = 1.0;
  c->rope_scaling.mscale_all_dim = 0.0;
}

// layer_types with compress_rates, as newer libraries write what was compress_ratios.
std::vector<int64_t> RatiosFromLayerTypes(const std::vector<std::string>& types, JsonFields& fields,
                                          std::vector<std::string>* errors) {
  int64_t sparse = 4, heavy = 128;
  if (const json* rates = fields.Lookup({"compress_rates"}); rates != nullptr && rates->is_object()) {
    JsonFields rate_fields(*rates, "compress_rates.", errors);
    sparse = rate_fields.IntOr({"compressed_sparse_attention"}, 1, 1 << 20, sparse);
    heavy = rate_fields.IntOr({"heavily_compressed_attention"}, 1, 1 << 20, heavy);
  } else if (rates != nullptr) {
    auto list = *fields.IntList({"compress_rates"}, 0, 1 << 20);
    if (list.size() >= types.size()) return list;
    fields.AddError(
        fmt::format("field \"compress_rates\": expected an object, or a list with one entry for each of {} "
                    "layer_types, found {} entries",
                    types.size(), list.size()));
  }
  std::vector<int64_t> ratios;
  for (const std::string& type : types) {
    if (type == "sliding_attention") {
      ratios.push_back(0);
    } else if (type == "compressed_sparse_attention") {
      ratios.push_back(sparse);
    } else if (type == "heavily_compressed_attention") {
      ratios.push_back(heavy);
    } else {
      fields.AddError(
          fmt::format("field \"layer_types[{}]\": expected sliding_attention, compressed_sparse_attention or "
                      "heavily_compressed_attention, found \"{}\"",
                      ratios.size(), type));
      break;
    }
  }
  return ratios;
}

// Normalises to one entry per main layer and MTP block; the list may be longer (DSpark, spec text 1), never shorter
// than the main layers. Returns a V4.1 verdict as a status, everything else goes to the collected errors.
absl::Status ReadCompressRatios(JsonFields& fields, std::vector<std::string>* errors, std::string_view source,
                                ModelConfig* c, int64_t* listed) {
  std::optional<std::vector<int64_t>> ratios = fields.IntList({"compress_ratios"}, 0, 1 << 20);
  const std::optional<std::vector<std::string>> types = fields.StringList({"layer_types"});
  const char* name = "compress_ratios";
  if (types.has_value()) {
    const std::vector<int64_t> derived = RatiosFromLayerTypes(*types, fields, errors);
    if (!ratios.has_value()) {
      ratios = derived;
      name = "layer_types";
    } else if (!std::equal(derived.begin(), derived.begin() + std::min(derived.size(), ratios->size()),
                           ratios->begin())) {
      fields.AddError("fields \"compress_ratios\" and \"layer_types\" disagree");
    }
  }
  if (!ratios.has_value()) {
    fields.AddError("field \"compress_ratios\" is missing, expected a list with one of 0, 4, 128 for each layer");
    return absl::OkStatus();
  }
  *listed = static_cast<int64_t>(ratios->size());
  if (*listed < c->num_hidden_layers) {
    fields.AddError(fmt::format("field \"{}\": expected at least num_hidden_layers = {} entries, found {}", name,
                                c->num_hidden_layers, *listed));
    return absl::OkStatus();
  }
  for (size_t i = 0; i < ratios->size(); ++i) {
    const int64_t ratio = (*ratios)[i];
    // 1 means "no compression" as 0 does (spec vision-and-cache 1.1).
    if (ratio != 0 && ratio != 1 && ratio != 4 && ratio != 128) {
      return RefuseV41(source, fmt::format("field \"{}[{}]\": expected 0, 4 or 128; the value {}", name, i, ratio));
    }
  }
  c->compress_ratios.assign(c->num_hidden_layers + c->num_mtp_layers, 0);
  for (size_t i = 0; i < std::min(c->compress_ratios.size(), ratios->size()); ++i) {
    c->compress_ratios[i] = (*ratios)[i] == 1 ? 0 : static_cast<int>((*ratios)[i]);
  }
  return absl::OkStatus();
}

void ReadHashLayers(JsonFields& fields, ModelConfig* c) {
  const std::optional<std::vector<std::string>> types = fields.StringList({"mlp_layer_types"});
  if (!types.has_value()) {
    c->num_hash_layers = fields.IntOr({"num_hash_layers", "n_hash_layers"}, 0, kMaxLayers, 3);
    if (c->num_hash_layers > c->num_hidden_layers) {
      fields.AddError(fmt::format("field \"num_hash_layers\": expected at most num_hidden_layers = {}, found {}",
                                  c->num_hidden_layers, c->num_hash_layers));
    }
    return;
  }
  int64_t hash = 0;
  for (size_t i = 0; i < types->size(); ++i) {
    const std::string& type = (*types)[i];
    if (type != "moe" && type != "hash_moe") {
      fields.AddError(
          fmt::format("field \"mlp_layer_types[{}]\": expected \"hash_moe\" or \"moe\", found \"{}\"", i, type));
      return;
    }
    if (type != "hash_moe") continue;
    if (static_cast<int64_t>(i) != hash) {
      fields.AddError(fmt::format("field \"mlp_layer_types[{}]\": hash_moe after moe; hash layers must come first", i));
      return;
    }
    ++hash;
  }
  if (static_cast<int64_t>(types->size()) < c->num_hidden_layers || hash > c->num_hidden_layers) {
    fields.AddError(
        fmt::format("field \"mlp_layer_types\": expected {} entries, found {}", c->num_hidden_layers, types->size()));
  }
  const int64_t counted = fields.IntOr({"num_hash_layers", "n_hash_layers"}, 0, kMaxLayers, hash);
  if (counted != hash) {
    fields.AddError(
        fmt::format("fields \"num_hash_layers\" ({}) and \"mlp_layer_types\" ({} hash_moe) disagree", counted, hash));
  }
  c->num_hash_layers = hash;
}

void ReadHeadDims(JsonFields& fields, ModelConfig* c) {
  c->head_dim = fields.Int({"head_dim"}, 2, kMaxHeadDim);
  const json* factor = fields.Lookup({"partial_rotary_factor"});
  if (factor != nullptr) {
    const double rotary = fields.Real({"partial_rotary_factor"}, 0.0, 1.0) * static_cast<double>(c->head_dim);
    const int64_t dims = static_cast<int64_t>(std::llround(rotary));
    if (std::abs(rotary - static_cast<double>(dims)) > 1e-6) {
      fields.AddError(fmt::format("field \"partial_rotary_factor\": {} of head_dim {} is not a whole number",
                                  ValueText(*factor), c->head_dim));
    }
    c->qk_rope_head_dim = fields.IntOr({"qk_rope_head_dim", "rope_head_dim"}, 2, kMaxHeadDim, dims);
    if (c->qk_rope_head_dim != dims) {
      fields.AddError(fmt::format("fields \"qk_rope_head_dim\" ({}) and \"partial_rotary_factor\" ({}) disagree",
                                  c->qk_rope_head_dim, ValueText(*factor)));
    }
  } else {
    c->qk_rope_head_dim = fields.Int({"qk_rope_head_dim", "rope_head_dim"}, 2, kMaxHeadDim);
  }
  if (c->qk_rope_head_dim % 2 != 0 || c->qk_rope_head_dim < 2 || c->qk_rope_head_dim >= c->head_dim) {
    fields.AddError(fmt::format("field \"qk_rope_head_dim\": expected an even number below head_dim = {}, found {}",
                                c->head_dim, c->qk_rope_head_dim));
  } else if ((c->head_dim - c->qk_rope_head_dim) % 64 != 0) {
    // KV rows are quantised in blocks of 64 (spec text 3.4).
    fields.AddError(
        fmt::format("field \"head_dim\": expected qk_rope_head_dim plus a multiple of 64, found {}", c->head_dim));
  }
}

// The vision fields under their usual names: those of `object`, and those of a vision_config inside it, whose names may
// lack the prefix.
json CollectVision(const json& object, JsonFields& fields) {
  constexpr std::string_view kPrefix = "vision_";
  json vision = json::object();
  for (const auto& [key, value] : object.items()) {
    if (key.rfind(kPrefix, 0) == 0 && !value.is_null()) vision[key] = value;
  }
  const json* nested = fields.Object({"vision_config"});
  vision.erase("vision_config");
  if (nested == nullptr) return vision;
  for (const auto& [key, value] : nested->items()) {
    if (value.is_null()) continue;
    const std::string name = key.rfind(kPrefix, 0) == 0 ? key : std::string(kPrefix) + key;
    const json& kept = vision.emplace(name, value).first.value();
    if (kept != value) {
      fields.AddError(fmt::format("fields \"{}\" ({}) and \"vision_config.{}\" ({}) disagree", name, ValueText(kept),
                                  key, ValueText(value)));
    }
  }
  if (!nested->empty() && !vision.contains("vision_n_layers")) {
    fields.AddError("field \"vision_config.n_layers\" is missing");
  }
  return vision;
}

void ReadVision(const json& object, JsonFields& all_fields, std::vector<std::string>* errors, ModelConfig* c) {
  const json collected = CollectVision(object, all_fields);
  JsonFields fields(collected, "", errors);
  VisionConfig& v = c->vision;
  v.n_layers = fields.IntOr({"vision_n_layers"}, 0, kMaxLayers, 0);
  if (v.n_layers == 0) return;
  v.dim = fields.Int({"vision_dim"}, 1, kMaxWidth);
  v.n_heads = fields.Int({"vision_n_heads"}, 1, kMaxHeads);
  v.inter_dim = fields.Int({"vision_inter_dim"}, 1, kMaxWidth);
  v.patch_size = fields.Int({"vision_patch_size"}, 1, 128);
  v.rope_theta = fields.RealOr({"vision_rope_theta"}, 1.0, 1e12, 10000.0);
  v.downsample_ratio = fields.Int({"vision_downsample_ratio"}, 1, 16);
  v.max_n_token = fields.Int({"vision_max_n_token"}, 16, 1 << 16);
  v.min_pixels = fields.IntOr({"vision_min_pixels"}, 0, 1 << 26, 0);
  v.max_wh_ratio = fields.IntOr({"vision_max_wh_ratio"}, 0, 1 << 16, 0);
  // Heads split into row and column halves of rotated pairs (spec vision-and-cache 3).
  if (v.n_heads > 0 && v.dim % (4 * v.n_heads) != 0) {
    fields.AddError(fmt::format("field \"vision_dim\": expected a multiple of 4 * vision_n_heads = {}, found {}",
                                4 * v.n_heads, v.dim));
  }
}

void ReadDSpark(const json& object, JsonFields& fields, int64_t listed_ratios, ModelConfig* c) {
  const bool present = std::any_of(object.items().begin(), object.items().end(),
                                   [](const auto& item) { return item.key().rfind("dspark_", 0) == 0; });
  if (!present) return;
  DSparkConfig dspark;
  dspark.block_size = fields.IntOr({"dspark_block_size"}, 1, 1024, 0);
  dspark.noise_token_id = fields.IntOr({"dspark_noise_token_id"}, 0, kMaxVocab, 0);
  dspark.markov_rank = fields.IntOr({"dspark_markov_rank"}, 1, kMaxWidth, 0);
  dspark.target_layer_ids =
      fields.IntList({"dspark_target_layer_ids"}, 0, c->num_hidden_layers - 1).value_or(std::vector<int64_t>());
  const int64_t extra = listed_ratios - c->num_hidden_layers;
  dspark.stages = extra >= 1 && extra <= 64 ? extra : 3;
  c->dspark = std::move(dspark);
  c->num_mtp_layers = 0;
}

absl::Status ReadV4(const json& object, JsonFields& fields, std::vector<std::string>* errors, std::string_view source,
                    ModelConfig* c) {
  HADAL_RETURN_IF_ERROR(CheckNotV41(object, source));
  ReadHeadDims(fields, c);
  c->o_groups = fields.Int({"o_groups"}, 1, kMaxHeads);
  c->o_lora_rank = fields.Int({"o_lora_rank"}, 1, kMaxWidth);
  c->sliding_window = fields.Int({"sliding_window", "window_size"}, 1, 1 << 20);
  c->index_n_heads = fields.Int({"index_n_heads"}, 1, kMaxHeads);
  c->index_head_dim = fields.Int({"index_head_dim"}, 2, kMaxHeadDim);
  c->index_topk = fields.Int({"index_topk"}, 1, 1 << 20);
  c->hc_mult = fields.IntOr({"hc_mult"}, 1, 8, 4);
  c->hc_sinkhorn_iters = fields.IntOr({"hc_sinkhorn_iters"}, 1, 1000, 20);
  c->hc_eps = fields.RealOr({"hc_eps"}, 0.0, 1.0, 1e-6);
  c->swiglu_limit = fields.RealOr({"swiglu_limit"}, 1e-6, 1e9, 10.0);
  c->scoring_func = ScoringFunc::kSqrtSoftplus;
  CheckEqual(fields, {"scoring_func", "score_func"}, "sqrtsoftplus");
  fields.IntOr({"num_key_value_heads"}, 1, 1, 1);
  ReadV4Rope(object, fields, errors, c);
  c->max_position_embeddings = fields.IntOr(
      {"max_position_embeddings"}, 1, kMaxPositions,
      std::min<double>(kMaxPositions,
                       c->rope_scaling.factor * static_cast<double>(c->rope_scaling.original_max_position_embeddings)));
  ReadHashLayers(fields, c);
  int64_t listed_ratios = 0;
  HADAL_RETURN_IF_ERROR(ReadCompressRatios(fields, errors, source, c, &listed_ratios));
  ReadDSpark(object, fields, listed_ratios, c);
  if (c->dspark.has_value() && !c->compress_ratios.empty()) c->compress_ratios.resize(c->num_hidden_layers);
  ReadVision(object, fields, errors, c);

  CheckBlocks(fields, *c);
  if (c->o_groups > 0 && c->num_attention_heads % c->o_groups != 0) {
    fields.AddError(fmt::format("field \"o_groups\": expected a divisor of num_attention_heads = {}, found {}",
                                c->num_attention_heads, c->o_groups));
  }
  if (c->o_groups * c->o_lora_rank > kMaxWidth || c->o_groups * c->o_lora_rank % kBlock != 0) {
    fields.AddError(
        fmt::format("fields \"o_groups\" and \"o_lora_rank\": expected a product of at most {} that is a "
                    "multiple of {}, found {}",
                    kMaxWidth, kBlock, c->o_groups * c->o_lora_rank));
  }
  // Hadamard transform of the indexer (spec text 3.6) and its FP4 blocks of 32.
  if (c->index_head_dim < 32 || (c->index_head_dim & (c->index_head_dim - 1)) != 0 ||
      c->index_head_dim < c->qk_rope_head_dim) {
    fields.AddError(
        fmt::format("field \"index_head_dim\": expected a power of two, at least 32 and qk_rope_head_dim, "
                    "found {}",
                    c->index_head_dim));
  }
  return absl::OkStatus();
}

void ReadV3Rope(JsonFields& fields, std::vector<std::string>* errors, ModelConfig* c) {
  const json* scaling = fields.Object({"rope_scaling", "rope_parameters"});
  c->rope_theta = fields.RealOr({"rope_theta"}, 1.0, 1e12, 10000.0);
  if (scaling == nullptr) return;
  JsonFields scaling_fields(*scaling, "rope_scaling.", errors);
  c->rope_theta = scaling_fields.RealOr({"rope_theta"}, 1.0, 1e12, c->rope_theta);
  c->rope_scaling = ReadRopeScaling(*scaling, "rope_scaling.", errors);
  if (!scaling_fields.BoolOr({"apply_yarn_scaling"}, true)) {
    fields.AddError("field \"rope_scaling.apply_yarn_scaling\": expected true, found false");
  }
}

// Spec deepseek-v32 1.1.
void ReadV3(const json& object, JsonFields& fields, std::vector<std::string>* errors, ModelConfig* c) {
  c->kv_lora_rank = fields.Int({"kv_lora_rank"}, 1, kMaxWidth);
  c->qk_nope_head_dim = fields.Int({"qk_nope_head_dim"}, 1, kMaxHeadDim);
  c->qk_rope_head_dim = fields.Int({"qk_rope_head_dim"}, 2, kMaxHeadDim);
  c->v_head_dim = fields.Int({"v_head_dim"}, 1, kMaxHeadDim);
  c->intermediate_size = fields.Int({"intermediate_size"}, 1, 1 << 20);
  c->first_k_dense_replace = fields.Int({"first_k_dense_replace"}, 0, kMaxLayers);
  c->moe_layer_freq = fields.IntOr({"moe_layer_freq"}, 1, kMaxLayers, 1);
  c->n_group = fields.IntOr({"n_group"}, 1, kMaxExperts, 1);
  c->topk_group = fields.IntOr({"topk_group"}, 1, kMaxExperts, 1);
  c->scoring_func = ScoringFunc::kSigmoid;
  CheckEqual(fields, {"scoring_func"}, "sigmoid");
  ReadV3Rope(fields, errors, c);
  c->max_position_embeddings = fields.Int({"max_position_embeddings"}, 1, kMaxPositions);

  // Sparse attention is on iff index_topk exists, whatever the architecture is called.
  const bool sparse = object.contains("index_topk") && !object["index_topk"].is_null();
  c->family = sparse ? ModelFamily::kV32 : ModelFamily::kV3;
  if (sparse) {
    c->index_n_heads = fields.Int({"index_n_heads"}, 1, kMaxHeads);
    c->index_head_dim = fields.Int({"index_head_dim"}, 2, kMaxHeadDim);
    c->index_topk = fields.Int({"index_topk"}, 1, 1 << 20);
    c->indexer_rope_interleave = fields.BoolOr({"indexer_rope_interleave"}, false);
    c->index_topk_freq = fields.IntOr({"index_topk_freq"}, 1, kMaxLayers, 1);
    c->index_skip_topk_offset = fields.IntOr({"index_skip_topk_offset"}, 0, kMaxLayers, 2);
    c->index_topk_pattern = fields.StringOr({"index_topk_pattern"}, "");
    if ((c->index_head_dim & (c->index_head_dim - 1)) != 0 || c->index_head_dim < c->qk_rope_head_dim) {
      fields.AddError(
          fmt::format("field \"index_head_dim\": expected a power of two, at least qk_rope_head_dim = {}, "
                      "found {}",
                      c->qk_rope_head_dim, c->index_head_dim));
    }
  }
  CheckBlocks(fields, *c);
  CheckMultiple(fields, "intermediate_size", c->intermediate_size, kBlock);
  CheckMultiple(fields, "qk_rope_head_dim", c->qk_rope_head_dim, 2);
  if (c->n_group > 0 && (c->n_routed_experts % c->n_group != 0 || c->topk_group > c->n_group)) {
    fields.AddError(
        fmt::format("fields \"n_group\" ({}) and \"topk_group\" ({}): expected n_group to divide "
                    "n_routed_experts = {} and topk_group to be at most n_group",
                    c->n_group, c->topk_group, c->n_routed_experts));
  } else if (c->n_group > 0 && c->num_experts_per_tok > c->topk_group * (c->n_routed_experts / c->n_group)) {
    fields.AddError(
        fmt::format("field \"num_experts_per_tok\": expected at most the {} experts of topk_group groups, "
                    "found {}",
                    c->topk_group * (c->n_routed_experts / c->n_group), c->num_experts_per_tok));
  }
}

}  // namespace

std::string_view FamilyName(ModelFamily family) {
  switch (family) {
    case ModelFamily::kV4:
      return "DeepSeek V4";
    case ModelFamily::kV32:
      return "DeepSeek V3.2";
    case ModelFamily::kV3:
      return "DeepSeek V3";
  }
  return "?";
}

bool ModelConfig::has_indexer(int64_t layer) const {
  if (family == ModelFamily::kV3) return false;
  if (family == ModelFamily::kV4) return compress_ratios[layer] == 4;
  if (layer >= num_hidden_layers) return true;
  if (!index_topk_pattern.empty()) {
    return layer >= static_cast<int64_t>(index_topk_pattern.size()) || index_topk_pattern[layer] != 'S';
  }
  return std::max<int64_t>(layer - index_skip_topk_offset + 1, 0) % index_topk_freq == 0;
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text, std::string_view source) {
  HADAL_ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, source, kMaxConfigBytes));
  ModelConfig config;
  HADAL_RETURN_IF_ERROR(FindArchitecture(object, source, &config));
  std::vector<std::string> errors;
  JsonFields fields(object, "", &errors);
  ReadCommon(fields, &errors, &config);
  if (config.family == ModelFamily::kV4) {
    HADAL_RETURN_IF_ERROR(ReadV4(object, fields, &errors, source, &config));
  } else {
    ReadV3(object, fields, &errors, &config);
  }
  if (!errors.empty()) return InvalidArgument("{}: {}", source, fmt::join(errors, "; "));
  return config;
}

}  // namespace hadal::checkpoint
