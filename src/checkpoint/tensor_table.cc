// The table of a model, generated from its configuration, and lookups in it. The check is in tensor_check.cc.
#include "checkpoint/tensor_table.h"

#include "base/status.h"

namespace hadal::checkpoint {
namespace {

constexpr DTypeSet kScaleTypes = {DType::kF8E8M0, DType::kF32};
constexpr DTypeSet kFloats = {DType::kBF16, DType::kF32, DType::kF16};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Adds tensors under a prefix. Shapes are those of the spec's tables, in its symbols.
class Builder {
 public:
  Builder(ModelFamily family, std::vector<TensorSpec>* specs) : family_(family), specs_(specs) {}

  std::string prefix;
  TensorCategory category = TensorCategory::kOther;
  bool draft = false;  // everything belongs to the draft model

  void Add(std::string_view name, DType dtype, std::vector<int64_t> shape) {
    Add(name, {dtype}, dtype, std::move(shape));
  }

  void Add(std::string_view name, DTypeSet dtypes, DType preferred, std::vector<int64_t> shape) {
    specs_->push_back({.name = prefix + std::string(name),
                       .dtypes = dtypes,
                       .preferred = preferred,
                       .shape = std::move(shape),
                       .category = draft ? TensorCategory::kDraft : category});
  }

  // FP8 weight [out, in] with a scale for each 128x128 block.
  void Fp8(const std::string& module, int64_t out, int64_t in) {
    Add(module + ".weight", DType::kF8E4M3, {out, in});
    AddScale(module, 128, {CeilDiv(out, 128), CeilDiv(in, 128)});
  }

  // FP4 weight [out, in] with a scale for each 32 inputs of a row.
  void Fp4(const std::string& module, int64_t out, int64_t in) {
    Add(module + ".weight", DType::kF4E2M1, {out, in});
    AddScale(module, 32, {out, in / 32});
  }

  // One of the two, or kBF16 without a scale.
  void Linear(const std::string& module, DType dtype, int64_t out, int64_t in) {
    if (dtype == DType::kF8E4M3) return Fp8(module, out, in);
    if (dtype == DType::kF4E2M1) return Fp4(module, out, in);
    Add(module + ".weight", dtype, {out, in});
  }

 private:
  void AddScale(const std::string& module, int block, std::vector<int64_t> shape) {
    // V3.x publishes F32, V4 instruct checkpoints E8M0, V4 base checkpoints F32: the file decides (spec text 2.4).
    const DType preferred = family_ == ModelFamily::kV4 || block == 32 ? DType::kF8E8M0 : DType::kF32;
    Add(ScaleOf(module), kScaleTypes, preferred, std::move(shape));
    specs_->back().scale_block = block;
  }
  std::string ScaleOf(const std::string& module) const {
    return module + (family_ == ModelFamily::kV4 ? ".scale" : ".weight_scale_inv");
  }

  ModelFamily family_;
  std::vector<TensorSpec>* specs_;
};

void AddV4Compressor(const std::string& module, int64_t ratio, int64_t width, int64_t hidden, Builder* b) {
  const int64_t channels = (ratio == 4 ? 2 : 1) * width;
  b->Add(module + ".ape", DType::kF32, {ratio, channels});
  b->Add(module + ".wkv.weight", DType::kBF16, {channels, hidden});
  b->Add(module + ".wgate.weight", DType::kBF16, {channels, hidden});
  b->Add(module + ".norm.weight", DType::kBF16, {width});
}

void AddV4Attention(const ModelConfig& c, int64_t ratio, Builder* b) {
  const int64_t d = c.hidden_size, heads = c.num_attention_heads * c.head_dim, o = c.o_groups * c.o_lora_rank;
  b->category = TensorCategory::kAttention;
  b->Add("attn.attn_sink", DType::kF32, {c.num_attention_heads});
  b->Fp8("attn.wq_a", c.q_lora_rank, d);
  b->Add("attn.q_norm.weight", DType::kBF16, {c.q_lora_rank});
  b->Fp8("attn.wq_b", heads, c.q_lora_rank);
  b->Fp8("attn.wkv", c.head_dim, d);
  b->Add("attn.kv_norm.weight", DType::kBF16, {c.head_dim});
  b->Fp8("attn.wo_a", o, heads / c.o_groups);
  b->Fp8("attn.wo_b", d, o);
  if (ratio > 0) AddV4Compressor("attn.compressor", ratio, c.head_dim, d, b);
  if (ratio == 4) {
    b->Fp8("attn.indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank);
    b->Add("attn.indexer.weights_proj.weight", DType::kBF16, {c.index_n_heads, d});
    AddV4Compressor("attn.indexer.compressor", ratio, c.index_head_dim, d, b);
  }
}

void AddV4Ffn(const ModelConfig& c, bool hash, Builder* b) {
  const int64_t d = c.hidden_size, f = c.moe_intermediate_size, experts = c.n_routed_experts;
  b->category = TensorCategory::kOther;
  b->Add("ffn.gate.weight", DType::kBF16, {experts, d});
  if (hash) {
    b->Add("ffn.gate.tid2eid", {DType::kI64, DType::kI32}, DType::kI64, {c.vocab_size, c.num_experts_per_tok});
  }
  // Hash layers carry a bias in vision checkpoints only (spec vision-and-cache 1.3).
  if (!hash || c.has_vision()) b->Add("ffn.gate.bias", DType::kF32, {experts});
  if (c.has_vision()) b->Add("ffn.gate.bias_vl", DType::kF32, {experts});
  b->category = TensorCategory::kExperts;
  for (int64_t e = 0; e < experts; ++e) {
    const std::string expert = fmt::format("ffn.experts.{}.", e);
    for (const char* w : {"w1", "w2", "w3"}) {
      const int64_t out = w[1] == '2' ? d : f, in = w[1] == '2' ? f : d;
      if (c.expert_dtype == ExpertDType::kFp8) {
        b->Fp8(expert + w, out, in);
      } else {
        b->Fp4(expert + w, out, in);
      }
    }
  }
  b->category = TensorCategory::kDense;
  b->Fp8("ffn.shared_experts.w1", f, d);
  b->Fp8("ffn.shared_experts.w2", d, f);
  b->Fp8("ffn.shared_experts.w3", f, d);
}

void AddV4HcHead(const ModelConfig& c, Builder* b) {
  b->category = TensorCategory::kOther;
  b->Add("hc_head_fn", DType::kF32, {c.hc_mult, c.hc_mult * c.hidden_size});
  b->Add("hc_head_base", DType::kF32, {c.hc_mult});
  b->Add("hc_head_scale", DType::kF32, {1});
}

void AddV4Block(const ModelConfig& c, int64_t ratio, bool hash, Builder* b) {
  const int64_t mix = (2 + c.hc_mult) * c.hc_mult;
  b->category = TensorCategory::kOther;
  b->Add("attn_norm.weight", DType::kBF16, {c.hidden_size});
  b->Add("ffn_norm.weight", DType::kBF16, {c.hidden_size});
  for (const char* part : {"attn", "ffn"}) {
    b->Add(fmt::format("hc_{}_fn", part), DType::kF32, {mix, c.hc_mult * c.hidden_size});
    b->Add(fmt::format("hc_{}_base", part), DType::kF32, {mix});
    b->Add(fmt::format("hc_{}_scale", part), DType::kF32, {3});
  }
  AddV4Attention(c, ratio, b);
  AddV4Ffn(c, hash, b);
}

void AddV4Mtp(const ModelConfig& c, Builder* b) {
  for (int64_t j = 0; j < c.num_mtp_layers; ++j) {
    b->prefix = fmt::format("mtp.{}.", j);
    AddV4Block(c, c.compress_ratios[c.num_hidden_layers + j], false, b);
    b->Fp8("e_proj", c.hidden_size, c.hidden_size);
    b->Fp8("h_proj", c.hidden_size, c.hidden_size);
    for (const char* norm : {"enorm.weight", "hnorm.weight", "norm.weight"}) {
      b->Add(norm, DType::kBF16, {c.hidden_size});
    }
    AddV4HcHead(c, b);
  }
}

// Spec serving-runtime 3.3.
void AddV4DSpark(const ModelConfig& c, Builder* b) {
  const int64_t d = c.hidden_size, rank = c.dspark->markov_rank;
  const int64_t taps = static_cast<int64_t>(c.dspark->target_layer_ids.size());
  for (int64_t s = 0; s < c.dspark->stages; ++s) {
    b->prefix = fmt::format("mtp.{}.", s);
    AddV4Block(c, 0, false, b);
    if (s == 0) {
      b->Fp8("main_proj", d, taps * d);
      b->Add("main_norm.weight", DType::kBF16, {d});
    }
    if (s == c.dspark->stages - 1) {
      b->Add("norm.weight", DType::kBF16, {d});
      AddV4HcHead(c, b);
      b->Add("markov_head.markov_w1.weight", kFloats, DType::kBF16, {c.vocab_size, rank});
      b->Add("markov_head.markov_w2.weight", kFloats, DType::kBF16, {c.vocab_size, rank});
      b->Add("confidence_head.proj.weight", kFloats, DType::kBF16, {1, d + rank});
    }
  }
}

// Spec vision-and-cache 1.3. Any float dtype is accepted; BF16 is published.
void AddVision(const ModelConfig& c, Builder* b) {
  const VisionConfig& v = c.vision;
  const auto add = [b](const std::string& name, std::vector<int64_t> shape) {
    b->Add(name, kFloats, DType::kBF16, std::move(shape));
  };
  b->category = TensorCategory::kVision;
  b->prefix = "vision.";
  add("patch_embed.proj.weight", {v.dim, 3 * v.patch_size * v.patch_size});
  add("patch_embed.proj.bias", {v.dim});
  for (int64_t i = 0; i < v.n_layers; ++i) {
    const std::string block = fmt::format("blocks.{}.", i);
    add(block + "norm1.weight", {v.dim});
    add(block + "norm2.weight", {v.dim});
    add(block + "attn.wqkv.weight", {3 * v.dim, v.dim});
    add(block + "attn.wqkv.bias", {3 * v.dim});
    add(block + "attn.wo.weight", {v.dim, v.dim});
    add(block + "attn.wo.bias", {v.dim});
    add(block + "mlp.w1.weight", {2 * v.inter_dim, v.dim});
    add(block + "mlp.w2.weight", {v.dim, v.inter_dim});
  }
  add("norm.weight", {v.dim});
  b->prefix = "";
  add("aligner.w1.weight", {c.hidden_size, v.dim * v.downsample_ratio * v.downsample_ratio});
  add("aligner.w1.bias", {c.hidden_size});
  add("aligner.w2.weight", {c.hidden_size, c.hidden_size});
  add("aligner.w2.bias", {c.hidden_size});
  for (const char* name : {"image_start", "image_pad", "image_newline", "image_end"}) add(name, {c.hidden_size});
}

void AddV4(const ModelConfig& c, bool draft, Builder* b) {
  b->category = TensorCategory::kEmbedding;
  b->Add("embed.weight", DType::kBF16, {c.vocab_size, c.hidden_size});
  b->Add("head.weight", DType::kBF16, {c.vocab_size, c.hidden_size});
  b->category = TensorCategory::kOther;
  b->Add("norm.weight", DType::kBF16, {c.hidden_size});
  AddV4HcHead(c, b);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    b->prefix = fmt::format("layers.{}.", i);
    AddV4Block(c, c.compress_ratios[i], c.is_hash_layer(i), b);
  }
  if (c.has_vision()) AddVision(c, b);
  if (!draft) return;
  b->draft = true;
  if (c.dspark.has_value()) {
    if (c.dspark->complete()) AddV4DSpark(c, b);
  } else {
    AddV4Mtp(c, b);
  }
}

void AddV3Attention(const ModelConfig& c, int64_t layer, Builder* b) {
  const int64_t d = c.hidden_size, heads = c.num_attention_heads;
  constexpr DTypeSet kNorm = {DType::kBF16, DType::kF32};  // "trust the file header" (spec deepseek-v32 10)
  b->category = TensorCategory::kAttention;
  b->Fp8("self_attn.q_a_proj", c.q_lora_rank, d);
  b->Add("self_attn.q_a_layernorm.weight", kNorm, DType::kBF16, {c.q_lora_rank});
  b->Fp8("self_attn.q_b_proj", heads * (c.qk_nope_head_dim + c.qk_rope_head_dim), c.q_lora_rank);
  b->Fp8("self_attn.kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim, d);
  b->Add("self_attn.kv_a_layernorm.weight", kNorm, DType::kBF16, {c.kv_lora_rank});
  b->Linear("self_attn.kv_b_proj", c.kv_b_dtype, heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank);
  b->Fp8("self_attn.o_proj", d, heads * c.v_head_dim);
  if (!c.has_indexer(layer)) return;
  b->Fp8("self_attn.indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank);
  b->Fp8("self_attn.indexer.wk", c.index_head_dim, d);
  b->Add("self_attn.indexer.k_norm.weight", kNorm, DType::kF32, {c.index_head_dim});
  b->Add("self_attn.indexer.k_norm.bias", kNorm, DType::kF32, {c.index_head_dim});
  b->Add("self_attn.indexer.weights_proj.weight", DType::kBF16, {c.index_n_heads, d});
}

void AddV3Mlp(const std::string& module, int64_t width, int64_t d, Builder* b) {
  b->Fp8(module + ".gate_proj", width, d);
  b->Fp8(module + ".up_proj", width, d);
  b->Fp8(module + ".down_proj", d, width);
}

void AddV3Ffn(const ModelConfig& c, int64_t layer, Builder* b) {
  const int64_t d = c.hidden_size;
  b->category = TensorCategory::kDense;
  if (!c.is_moe_layer(layer)) return AddV3Mlp("mlp", c.intermediate_size, d, b);
  AddV3Mlp("mlp.shared_experts", c.moe_intermediate_size, d, b);
  b->category = TensorCategory::kOther;
  b->Add("mlp.gate.weight", {DType::kBF16, DType::kF32}, DType::kBF16, {c.n_routed_experts, d});
  b->Add("mlp.gate.e_score_correction_bias", DType::kF32, {c.n_routed_experts});
  b->category = TensorCategory::kExperts;
  for (int64_t e = 0; e < c.n_routed_experts; ++e) {
    AddV3Mlp(fmt::format("mlp.experts.{}", e), c.moe_intermediate_size, d, b);
  }
}

void AddV3(const ModelConfig& c, bool draft, Builder* b) {
  constexpr DTypeSet kNorm = {DType::kBF16, DType::kF32};
  const int64_t d = c.hidden_size;
  b->category = TensorCategory::kEmbedding;
  b->Add("embed_tokens.weight", DType::kBF16, {c.vocab_size, d});
  b->Add("lm_head.weight", DType::kBF16, {c.vocab_size, d});
  b->category = TensorCategory::kOther;
  b->Add("norm.weight", kNorm, DType::kBF16, {d});
  const int64_t layers = c.num_hidden_layers + (draft ? c.num_mtp_layers : 0);
  for (int64_t i = 0; i < layers; ++i) {
    b->prefix = fmt::format("layers.{}.", i);
    b->draft = i >= c.num_hidden_layers;
    b->category = TensorCategory::kOther;
    b->Add("input_layernorm.weight", kNorm, DType::kBF16, {d});
    b->Add("post_attention_layernorm.weight", kNorm, DType::kBF16, {d});
    AddV3Attention(c, i, b);
    AddV3Ffn(c, i, b);
    if (!b->draft) continue;
    // With several MTP layers the embedding is taken from the first only (spec deepseek-v32 2, rule g); all carry it.
    b->Add("embed_tokens.weight", DType::kBF16, {c.vocab_size, d});
    b->Add("enorm.weight", kNorm, DType::kBF16, {d});
    b->Add("hnorm.weight", kNorm, DType::kBF16, {d});
    b->Add("eh_proj.weight", DType::kBF16, {d, 2 * d});
    b->Add("shared_head.norm.weight", kNorm, DType::kBF16, {d});
    b->Add("shared_head.head.weight", DType::kBF16, {c.vocab_size, d});
  }
}

}  // namespace

std::string DTypeSet::ToString() const {
  std::string text;
  for (int i = 0; i < 32; ++i) {
    if ((bits_ >> i & 1u) == 0) continue;
    if (!text.empty()) text += " or ";
    text += DTypeName(static_cast<DType>(i));
  }
  return text;
}

std::string_view CategoryName(TensorCategory category) {
  switch (category) {
    case TensorCategory::kEmbedding:
      return "embedding and head";
    case TensorCategory::kAttention:
      return "attention";
    case TensorCategory::kExperts:
      return "routed experts";
    case TensorCategory::kDense:
      return "shared experts and dense layers";
    case TensorCategory::kOther:
      return "routers, norms, hyper-connections";
    case TensorCategory::kVision:
      return "vision";
    case TensorCategory::kDraft:
      return "draft model";
  }
  return "?";
}

TensorTable TensorTable::For(const ModelConfig& config, bool draft) {
  TensorTable table;
  Builder builder(config.family, &table.specs_);
  if (config.family == ModelFamily::kV4) {
    AddV4(config, draft, &builder);
  } else {
    AddV3(config, draft, &builder);
  }
  table.index_.reserve(table.specs_.size());
  for (size_t i = 0; i < table.specs_.size(); ++i) table.index_.emplace(table.specs_[i].name, i);
  return table;
}

const TensorSpec* TensorTable::Find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &specs_[it->second];
}

}  // namespace hadal::checkpoint
