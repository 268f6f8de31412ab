// config.json in its forms, and everything that can be wrong with one.
#include "checkpoint/model_config.h"
#include "checkpoint/synth.h"
#include "support/paths.h"
#include "test_util.h"

namespace hadal::checkpoint {
namespace {

using nlohmann::json;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// Flash as it is published (spec deepseek-v4-text 1).
json FlashJson() {
  json j = json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "attention_bias": false, "bos_token_id": 0,
    "eos_token_id": 1, "expert_dtype": "fp4", "hc_eps": 1e-6, "hc_mult": 4, "hc_sinkhorn_iters": 20, "head_dim": 512,
    "hidden_act": "silu", "hidden_size": 4096, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512,
    "max_position_embeddings": 1048576, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 6, "num_hidden_layers": 43,
    "num_hash_layers": 3, "num_key_value_heads": 1, "num_nextn_predict_layers": 1, "o_groups": 8, "o_lora_rank": 1024,
    "q_lora_rank": 1024, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000, "routed_scaling_factor": 1.5,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
                            "weight_block_size": [128, 128]},
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 65536,
                     "type": "yarn"},
    "scoring_func": "sqrtsoftplus", "sliding_window": 128, "swiglu_limit": 10.0, "tie_word_embeddings": false,
    "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "vocab_size": 129280, "compress_rope_theta": 160000})");
  json ratios = {0, 0};
  for (int i = 0; i < 20; ++i) ratios.insert(ratios.end(), {4, 128});
  ratios.insert(ratios.end(), {4, 0});
  j["compress_ratios"] = ratios;
  return j;
}

// The same as a newer library saves it.
json ResavedJson() {
  json j = FlashJson();
  for (const char* key : {"rope_scaling", "rope_theta", "compress_rope_theta", "compress_ratios", "num_hash_layers",
                          "qk_rope_head_dim", "torch_dtype"}) {
    j.erase(key);
  }
  j["rope_parameters"] = json::parse(R"({
    "main": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.125},
    "compress": {"rope_type": "yarn", "rope_theta": 160000, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
                 "original_max_position_embeddings": 65536, "attention_factor": 1.0}})");
  json layers = {"sliding_attention", "sliding_attention"};
  for (int i = 0; i < 20; ++i)
    layers.insert(layers.end(), {"compressed_sparse_attention", "heavily_compressed_attention"});
  layers.push_back("compressed_sparse_attention");
  j["layer_types"] = layers;
  j["compress_rates"] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  j["mlp_layer_types"] = std::vector<std::string>(43, "moe");
  for (int i = 0; i < 3; ++i) j["mlp_layer_types"][i] = "hash_moe";
  j["partial_rotary_factor"] = 0.125;
  j["dtype"] = "bfloat16";
  return j;
}

// The same in the flat form of the reference implementation.
json ReferenceJson() {
  json j = json::parse(R"({
    "vocab_size": 129280, "dim": 4096, "moe_inter_dim": 2048, "n_layers": 43, "n_hash_layers": 3, "n_mtp_layers": 1,
    "n_heads": 64, "n_routed_experts": 256, "n_shared_experts": 1, "n_activated_experts": 6, "score_func": "sqrtsoftplus",
    "route_scale": 1.5, "swiglu_limit": 10.0, "q_lora_rank": 1024, "head_dim": 512, "rope_head_dim": 64, "o_groups": 8,
    "o_lora_rank": 1024, "window_size": 128, "original_seq_len": 65536, "rope_theta": 10000, "rope_factor": 16,
    "beta_fast": 32, "beta_slow": 1, "compress_rope_theta": 160000, "index_n_heads": 64, "index_head_dim": 128,
    "index_topk": 512, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "norm_eps": 1e-6, "dtype": "fp8",
    "scale_dtype": "fp8", "expert_dtype": "fp4"})");
  j["compress_ratios"] = FlashJson()["compress_ratios"];
  return j;
}

ModelConfig MustParse(const json& j) {
  auto config = ParseModelConfig(j.dump());
  EXPECT_TRUE(config.ok()) << Message(config.status());
  return config.ok() ? *std::move(config) : ModelConfig();
}

TEST(ModelConfig, ThreeFormsGiveTheSameModel) {
  const ModelConfig published = MustParse(FlashJson());
  EXPECT_EQ(published, *PresetConfig("v4-flash"));
  EXPECT_EQ(MustParse(ResavedJson()), published);
  EXPECT_EQ(MustParse(ReferenceJson()), published);
}

TEST(ModelConfig, ReadsFlash) {
  const ModelConfig c = MustParse(FlashJson());
  EXPECT_EQ(c.family, ModelFamily::kV4);
  EXPECT_EQ(c.hidden_size, 4096);
  EXPECT_EQ(c.compress_ratios.size(), 44u);
  EXPECT_EQ(c.compress_ratios[0], 0);
  EXPECT_EQ(c.compress_ratios[2], 4);
  EXPECT_EQ(c.compress_ratios[3], 128);
  EXPECT_EQ(c.compress_ratios[42], 4);
  EXPECT_EQ(c.compress_ratios[43], 0);
  EXPECT_EQ(c.rope_scaling.factor, 16.0);
  EXPECT_EQ(c.eos_token_ids, std::vector<int64_t>{1});
  EXPECT_TRUE(c.is_hash_layer(2));
  EXPECT_FALSE(c.is_hash_layer(3));
  EXPECT_FALSE(c.has_vision());
}

TEST(ModelConfig, DefaultsOfMissingKeys) {
  json j = FlashJson();
  for (const char* key : {"rms_norm_eps", "hc_eps", "hc_sinkhorn_iters", "hc_mult", "scoring_func", "swiglu_limit",
                          "rope_theta", "compress_rope_theta", "num_hash_layers", "max_position_embeddings"}) {
    j.erase(key);
  }
  EXPECT_EQ(MustParse(j), MustParse(FlashJson()));
}

// Trap 27.
TEST(ModelConfig, CompressRatiosOf43And44And46Entries) {
  json j = FlashJson();
  j["compress_ratios"].erase(43);
  EXPECT_EQ(MustParse(j), MustParse(FlashJson()));  // a missing MTP entry is 0
  j["compress_ratios"].insert(j["compress_ratios"].end(), {0, 0, 0});
  EXPECT_EQ(MustParse(j), MustParse(FlashJson()));
  j["compress_ratios"] = std::vector<int>(42, 4);
  ExpectError(ParseModelConfig(j.dump()), kInvalid, {"compress_ratios", "at least num_hidden_layers = 43", "found 42"});
  j["compress_ratios"] = std::vector<int>(44, 1);  // 1 is "no compression" as well
  EXPECT_EQ(MustParse(j).compress_ratios, std::vector<int>(44, 0));
}

TEST(ModelConfig, DSparkTakesTheRoomOfMtp) {
  json j = FlashJson();
  j["compress_ratios"].insert(j["compress_ratios"].end(), {0, 0});
  j["dspark_block_size"] = 5;
  j["dspark_target_layer_ids"] = {40, 41, 42};
  j["dspark_markov_rank"] = 256;
  j["dspark_noise_token_id"] = 128799;
  const ModelConfig c = MustParse(j);
  ASSERT_TRUE(c.dspark.has_value());
  EXPECT_EQ(c.dspark->stages, 3);
  EXPECT_EQ(c.dspark->target_layer_ids, (std::vector<int64_t>{40, 41, 42}));
  EXPECT_EQ(c.num_mtp_layers, 0);
  EXPECT_EQ(c.compress_ratios.size(), 43u);
}

TEST(ModelConfig, EveryMissingDimensionIsNamed) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "q_lora_rank",
                          "head_dim", "qk_rope_head_dim", "o_groups", "o_lora_rank", "moe_intermediate_size",
                          "n_routed_experts", "num_experts_per_tok", "routed_scaling_factor", "sliding_window",
                          "index_n_heads", "index_head_dim", "index_topk", "rope_scaling", "compress_ratios"}) {
    SCOPED_TRACE(key);
    json j = FlashJson();
    j.erase(key);
    ExpectError(ParseModelConfig(j.dump()), kInvalid, {"config.json", fmt::format("\"{}\" is missing", key).c_str()});
    j[key] = nullptr;
    ExpectError(ParseModelConfig(j.dump()), kInvalid, {fmt::format("\"{}\" is missing", key).c_str()});
  }
}

TEST(ModelConfig, WrongValuesAreNamedWithWhatWasFound) {
  struct Case {
    const char* key;
    json value;
    const char* found;
  };
  const std::vector<Case> cases = {
      {"hidden_size", "wide", "found \"wide\""},
      {"hidden_size", 0, "found 0"},
      {"hidden_size", -4096, "found -4096"},
      {"hidden_size", 4096.5, "found 4096.5"},
      {"hidden_size", 1e300, "found 1e+300"},
      {"hidden_size", 18446744073709551615u, "found 18446744073709551615"},
      {"hidden_size", 4100, "multiple of 128"},
      {"hidden_size", json::array({1}), "found a list of 1"},
      {"num_hidden_layers", 100000, "found 100000"},
      {"n_routed_experts", 16000, "more than the"},
      {"num_experts_per_tok", 257, "at most n_routed_experts = 256"},
      {"n_shared_experts", 2, "found 2"},
      {"o_groups", 7, "divisor of num_attention_heads"},
      {"o_lora_rank", 65536, "product of at most"},
      {"qk_rope_head_dim", 63, "even number"},
      {"qk_rope_head_dim", 512, "below head_dim"},
      {"qk_rope_head_dim", 62, "multiple of 64"},
      {"index_head_dim", 96, "power of two"},
      {"num_hash_layers", 44, "at most num_hidden_layers"},
      {"num_key_value_heads", 8, "found 8"},
      {"hidden_act", "gelu", "expected \"silu\", found \"gelu\""},
      {"tie_word_embeddings", true, "expected false"},
      {"tie_word_embeddings", 1, "expected true or false"},
      {"scoring_func", "softmax", "sqrtsoftplus"},
      {"expert_dtype", "int4", "expected \"fp4\" or \"fp8\""},
      {"eos_token_id", json::array(), "at least one id"},
      {"rms_norm_eps", "tiny", "expected a number"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2}}, "found \"linear\""},
      {"rope_scaling", {{"type", "yarn"}}, "rope_scaling.factor"},
      {"rope_scaling", 16, "expected an object"},
      {"quantization_config", {{"quant_method", "awq"}}, "expected \"fp8\", found \"awq\""},
      {"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}}, "expected [128, 128]"},
      {"architectures", "DeepseekV4ForCausalLM", "expected a list of strings"},
      {"compress_ratios", json::array({"4"}), "compress_ratios[0]"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.found);
    json j = FlashJson();
    j[c.key] = c.value;
    ExpectError(ParseModelConfig(j.dump()), kInvalid, {c.key, c.found});
  }
}

TEST(ModelConfig, SpellingsThatDisagreeAreAnError) {
  json j = FlashJson();
  j["dim"] = 4096;
  EXPECT_EQ(MustParse(j), MustParse(FlashJson()));
  j["dim"] = 7168;
  ExpectError(ParseModelConfig(j.dump()), kInvalid, {"\"hidden_size\" (4096) and \"dim\" (7168) disagree"});

  j = ResavedJson();
  j["qk_rope_head_dim"] = 128;
  ExpectError(ParseModelConfig(j.dump()), kInvalid, {"qk_rope_head_dim", "partial_rotary_factor", "disagree"});
  j = ResavedJson();
  j["mlp_layer_types"][5] = "hash_moe";
  ExpectError(ParseModelConfig(j.dump()), kInvalid, {"mlp_layer_types[5]", "hash layers must come first"});
  j = ResavedJson();
  j["layer_types"][5] = "full_attention";
  ExpectError(ParseModelConfig(j.dump()), kInvalid, {"layer_types[5]", "full_attention"});
  j = ResavedJson();
  j["rope_scaling"] = FlashJson()["rope_scaling"];
  EXPECT_EQ(MustParse(j), MustParse(FlashJson()));
  j["rope_scaling"]["factor"] = 8;
  ExpectError(ParseModelConfig(j.dump()), kInvalid, {"disagrees with another form"});
}

// Field report B131, spec text 9.
TEST(ModelConfig, OtherArchitecturesAreRefusedByName) {
  const auto with = [](const char* key, const json& value) {
    json j = FlashJson();
    j[key] = value;
    return ParseModelConfig(j.dump());
  };
  ExpectError(with("model_type", "deepseek_v41"), kUnimplemented, {"V4.1", "supported: deepseek_v4"});
  ExpectError(with("architectures", {"DeepseekV41ForCausalLM"}), kUnimplemented, {"V4.1"});
  ExpectError(with("kv_source_layer_ids", {0, 1}), kUnimplemented, {"kv_source_layer_ids", "V4.1"});
  ExpectError(with("engram_dim", 7), kUnimplemented, {"engram_dim", "V4.1"});
  json ratios = FlashJson()["compress_ratios"];
  ratios[7] = 2;
  ExpectError(with("compress_ratios", ratios), kUnimplemented, {"compress_ratios[7]", "2", "V4.1"});
  ExpectError(with("model_type", "llama"), kUnimplemented, {"\"llama\"", "deepseek_v32", "deepseek_v3 "});
  ExpectError(with("architectures", {"LlamaForCausalLM"}), kUnimplemented, {"LlamaForCausalLM"});
  // A V3.2 type with a V4 architecture is neither.
  ExpectError(with("model_type", "deepseek_v32"), kUnimplemented, {"deepseek_v32", "DeepseekV4ForCausalLM"});
  json j = FlashJson();
  j.erase("model_type");
  j.erase("architectures");
  ExpectError(ParseModelConfig(j.dump()), kInvalid, {"model_type", "missing", "supported:"});
}

TEST(ModelConfig, RefusesWhatIsNoConfig) {
  ExpectError(ParseModelConfig(""), kInvalid, {"config.json: not valid JSON"});
  ExpectError(ParseModelConfig("[]"), kInvalid, {"expected a JSON object, found a list"});
  ExpectError(ParseModelConfig(std::string(1 << 21, ' ')), kInvalid, {"expected at most"});
  ExpectError(ParseModelConfig(std::string(100000, '[')), kInvalid, {"100000 levels deep"});
  ExpectError(ParseModelConfig("{\"a\": \"\xff\"}"), kInvalid, {"not valid JSON"});
}

TEST(ModelConfig, VisionFields) {
  json j = json::parse(ReadFile(test::BundledModel() + "/config.json"));
  const ModelConfig c = MustParse(j);
  EXPECT_TRUE(c.has_vision());
  EXPECT_EQ(c.vision.n_layers, 3);
  EXPECT_EQ(c.vision.max_wh_ratio, 8);
  EXPECT_EQ(c.compress_ratios, (std::vector<int>{0, 4, 128, 4, 128, 0}));
  for (const char* key : {"vision_dim", "vision_n_heads", "vision_inter_dim", "vision_patch_size",
                          "vision_downsample_ratio", "vision_max_n_token"}) {
    json without = j;
    without.erase(key);
    ExpectError(ParseModelConfig(without.dump()), kInvalid, {fmt::format("\"{}\" is missing", key).c_str()});
  }
  j["architectures"] = {"DeepseekV4ForConditionalGeneration"};
  EXPECT_TRUE(MustParse(j).has_vision());
  j["vision_n_layers"] = 0;
  EXPECT_FALSE(MustParse(j).has_vision());
}

TEST(ModelConfig, NestedVisionFields) {
  const json flat = json::parse(ReadFile(test::BundledModel() + "/config.json"));
  const ModelConfig want = MustParse(flat);
  json prefixed = flat, bare = flat;
  for (const auto& [key, value] : flat.items()) {
    if (key.rfind("vision_", 0) != 0) continue;
    prefixed["vision_config"][key] = value;
    prefixed.erase(key);
    bare["vision_config"][key.substr(7)] = value;
    bare.erase(key);
  }
  EXPECT_EQ(MustParse(prefixed), want);
  EXPECT_EQ(MustParse(bare), want);
  // What a library adds, and the same said twice.
  bare["vision_config"]["model_type"] = "deepseek_v4_vision";
  bare["vision_dim"] = flat["vision_dim"];
  bare["vision_n_layers"] = nullptr;
  EXPECT_EQ(MustParse(bare), want);
  bare["vision_dim"] = 64;
  ExpectError(ParseModelConfig(bare.dump()), kInvalid,
              {"\"vision_dim\" (64) and \"vision_config.dim\" (128) disagree"});

  bare.erase("vision_dim");
  bare["vision_config"].erase("dim");
  ExpectError(ParseModelConfig(bare.dump()), kInvalid, {"\"vision_dim\" is missing"});
  bare["vision_config"].erase("n_layers");
  ExpectError(ParseModelConfig(bare.dump()), kInvalid, {"\"vision_config.n_layers\" is missing"});
  bare["vision_config"]["n_layers"] = 0;
  EXPECT_FALSE(MustParse(bare).has_vision());
  bare["vision_config"] = json::object();
  EXPECT_FALSE(MustParse(bare).has_vision());
  bare["vision_config"] = nullptr;
  EXPECT_FALSE(MustParse(bare).has_vision());
  bare["vision_config"] = 5;
  ExpectError(ParseModelConfig(bare.dump()), kInvalid, {"vision_config", "expected an object, found 5"});
}

// quantization_config.scale_fmt (spec deepseek-v32 3.1).
TEST(ModelConfig, ScalesOfActivations) {
  json j = json::parse(ModelConfigToJson(*PresetConfig("v3.2")));
  EXPECT_EQ(MustParse(j).activation_scales, ActivationScales::kPowersOfTwo);
  j["quantization_config"]["scale_fmt"] = "e8m0";
  ExpectError(ParseModelConfig(j.dump()), kInvalid,
              {"quantization_config.scale_fmt", "expected \"ue8m0\" or no such field, found \"e8m0\""});
  j["quantization_config"]["scale_fmt"] = 8;
  ExpectError(ParseModelConfig(j.dump()), kInvalid, {"quantization_config.scale_fmt", "found 8"});
  // As V3, R1 and V3.1 are published.
  j["quantization_config"].erase("scale_fmt");
  const ModelConfig any = MustParse(j);
  EXPECT_EQ(any.activation_scales, ActivationScales::kAny);
  EXPECT_EQ(MustParse(json::parse(ModelConfigToJson(any))), any);
  j["quantization_config"]["scale_fmt"] = nullptr;
  EXPECT_EQ(MustParse(j), any);
  // V4 knows powers of two only, said or not.
  for (json v4 : {FlashJson(), ResavedJson()}) {
    EXPECT_EQ(MustParse(v4).activation_scales, ActivationScales::kPowersOfTwo);
    v4["quantization_config"].erase("scale_fmt");
    EXPECT_EQ(MustParse(v4).activation_scales, ActivationScales::kPowersOfTwo);
    v4["quantization_config"]["scale_fmt"] = "float";
    ExpectError(ParseModelConfig(v4.dump()), kInvalid, {"quantization_config.scale_fmt"});
  }
}

TEST(ModelConfig, V3Family) {
  json j = json::parse(ModelConfigToJson(*PresetConfig("v3.2")));
  EXPECT_EQ(MustParse(j).family, ModelFamily::kV32);
  EXPECT_TRUE(MustParse(j).has_indexer(0));
  // RoPE as newer loaders present it.
  json renamed = j;
  renamed["rope_parameters"] = j["rope_scaling"];
  renamed["rope_parameters"]["rope_type"] = "yarn";
  renamed["rope_parameters"].erase("type");
  renamed["rope_parameters"]["rope_theta"] = 10000;
  renamed.erase("rope_scaling");
  renamed.erase("rope_theta");
  EXPECT_EQ(MustParse(renamed), MustParse(j));
  // Sparse attention iff index_topk exists.
  json dense = j;
  dense.erase("index_topk");
  EXPECT_EQ(MustParse(dense).family, ModelFamily::kV3);
  EXPECT_FALSE(MustParse(dense).has_indexer(0));
  dense["architectures"] = {"DeepseekV3ForCausalLM"};
  dense["model_type"] = "deepseek_v3";
  EXPECT_EQ(MustParse(dense).family, ModelFamily::kV3);
  for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "intermediate_size",
                          "first_k_dense_replace", "max_position_embeddings"}) {
    json without = j;
    without.erase(key);
    ExpectError(ParseModelConfig(without.dump()), kInvalid, {fmt::format("\"{}\" is missing", key).c_str()});
  }
  j["n_group"] = 7;
  ExpectError(ParseModelConfig(j.dump()), kInvalid, {"n_group", "divide"});
}

// Spec deepseek-v32 1.1, optional keys.
TEST(ModelConfig, IndexerLayers) {
  ModelConfig c = *PresetConfig("v3.2");
  c.index_topk_freq = 4;
  c.index_skip_topk_offset = 2;
  EXPECT_TRUE(c.has_indexer(0));   // max(0 - 2 + 1, 0) = 0
  EXPECT_TRUE(c.has_indexer(1));   // 0
  EXPECT_FALSE(c.has_indexer(2));  // 1
  EXPECT_TRUE(c.has_indexer(5));   // 4
  EXPECT_TRUE(c.has_indexer(61));  // MTP
  c.index_topk_pattern = "FS";
  EXPECT_TRUE(c.has_indexer(0));
  EXPECT_FALSE(c.has_indexer(1));
  EXPECT_TRUE(c.has_indexer(2));
}

TEST(ModelConfig, WritesWhatItReads) {
  for (std::string_view name : PresetNames()) {
    SCOPED_TRACE(name);
    const ModelConfig preset = *PresetConfig(name);
    EXPECT_EQ(MustParse(json::parse(ModelConfigToJson(preset))), preset);
  }
}

TEST(GenerationConfig, IdsAsNumberOrList) {
  auto g =
      ParseGenerationConfig(R"({"bos_token_id":0,"eos_token_id":1,"do_sample":true,"temperature":1.0,"top_p":0.95})");
  ASSERT_TRUE(g.ok()) << Message(g.status());
  EXPECT_EQ(g->eos_token_ids, std::vector<int64_t>{1});
  EXPECT_EQ(g->top_p, 0.95);
  EXPECT_EQ(g->do_sample, true);
  EXPECT_FALSE(g->top_k.has_value());
  g = ParseGenerationConfig(R"({"eos_token_id":[1,128805]})");
  ASSERT_TRUE(g.ok()) << Message(g.status());
  EXPECT_EQ(g->eos_token_ids, (std::vector<int64_t>{1, 128805}));
  EXPECT_TRUE(ParseGenerationConfig("{}").ok());
  ExpectError(ParseGenerationConfig(R"({"temperature":-1})"), kInvalid, {"temperature", "found -1"});
  ExpectError(ParseGenerationConfig(R"({"eos_token_id":"x"})"), kInvalid, {"eos_token_id", "found \"x\""});
  ExpectError(ParseGenerationConfig(R"({"eos_token_id":[1,-2]})"), kInvalid, {"eos_token_id[1]", "found -2"});
}

}  // namespace
}  // namespace hadal::checkpoint
