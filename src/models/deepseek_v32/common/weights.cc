#include "models/deepseek_v32/common/weights.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/status.h"
#include "checkpoint/model_config.h"
#include "models/weight_binder.h"

namespace hadal::models::deepseek_v32 {
namespace {

using checkpoint::ModelConfig;

constexpr int64_t kScaleBlock = 128;

class Binder : private WeightBinder {
 public:
  Binder(const checkpoint::WeightSource& source, WeightStore& store)
      : WeightBinder(source, store, Scales::kAny), source_(source), config_(source.config()) {}

  absl::StatusOr<std::unique_ptr<ModelWeights>> Bind() {
    auto weights = std::make_unique<ModelWeights>();
    HADAL_ASSIGN_OR_RETURN(weights->split_kv_b, MemoryRegion::Map(SplitKvBBytes(config_), "the split kv_b_proj"));
    split_ = weights->split_kv_b.data();
    Linear("embed_tokens", weights->embed);
    Linear("lm_head", weights->head);
    Norm("norm.weight", weights->norm);
    for (int64_t i = 0; i < config_.num_hidden_layers && ok(); ++i) Layer(i, weights->layers.emplace_back());
    for (int64_t j = 0; j < config_.num_mtp_layers && ok(); ++j) {
      Mtp(config_.num_hidden_layers + j, weights->mtp.emplace_back());
    }
    if (!ok()) return status();
    return weights;
  }

 private:
  void Mlp(const std::string& prefix, ops::ExpertWeights& out) {
    Linear(prefix + "gate_proj", out.w1);
    Linear(prefix + "up_proj", out.w3);
    Linear(prefix + "down_proj", out.w2);
    // The two have one input, packed once: the wider layout serves both.
    out.w1.exponent_scales = out.w3.exponent_scales = out.w1.exponent_scales && out.w3.exponent_scales;
  }

  std::byte* Take(int64_t bytes) {
    std::byte* at = split_;
    split_ += (bytes + 63) / 64 * 64;
    return at;
  }

  // Of each head the first `nope` rows make keys, the others values. Blocks of 128 x 128 values share a scale, also
  // when they are transposed.
  void SplitKvB(const std::string& module, AttentionWeights& out) {
    ops::LinearWeight kv_b;
    HostLinear(module, kv_b);
    if (!ok()) return;
    const int64_t heads = config_.num_attention_heads;
    const int64_t nope = config_.qk_nope_head_dim, value = config_.v_head_dim, latent = config_.kv_lora_rank;
    const int64_t element = DTypeBytes(kv_b.dtype, 1);
    const bool fp8 = kv_b.dtype == DType::kF8E4M3;
    out.key_up = out.value_up = kv_b;
    out.key_up.n = heads * latent;
    out.key_up.k = nope;
    out.value_up.n = heads * value;
    auto* keys = Take(heads * latent * nope * element);
    auto* values = Take(heads * value * latent * element);
    out.key_up.data = keys;
    out.value_up.data = values;
    const auto* from = static_cast<const std::byte*>(kv_b.data);
    for (int64_t h = 0; h < heads; ++h) {
      const std::byte* head = from + h * (nope + value) * latent * element;
      for (int64_t r = 0; r < nope; ++r) {
        for (int64_t c = 0; c < latent; ++c) {
          std::memcpy(keys + ((h * latent + c) * nope + r) * element, head + (r * latent + c) * element, element);
        }
      }
      std::memcpy(values + h * value * latent * element, head + nope * latent * element, value * latent * element);
    }
    out.key_up.data = PlaceBytes(keys, heads * latent * nope * element);
    out.value_up.data = PlaceBytes(values, heads * value * latent * element);
    if (!fp8) return;
    const int64_t scale_element = DTypeBytes(kv_b.scale_dtype, 1);
    const int64_t key_rows = nope / kScaleBlock, value_rows = value / kScaleBlock, cols = latent / kScaleBlock;
    auto* key_scales = Take(heads * key_rows * cols * scale_element);
    auto* value_scales = Take(heads * value_rows * cols * scale_element);
    out.key_up.scale = key_scales;
    out.value_up.scale = value_scales;
    const auto* scales = static_cast<const std::byte*>(kv_b.scale);
    for (int64_t h = 0; h < heads; ++h) {
      const std::byte* head = scales + h * (key_rows + value_rows) * cols * scale_element;
      for (int64_t r = 0; r < key_rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          std::memcpy(key_scales + ((h * cols + c) * key_rows + r) * scale_element,
                      head + (r * cols + c) * scale_element, scale_element);
        }
      }
      std::memcpy(value_scales + h * value_rows * cols * scale_element, head + key_rows * cols * scale_element,
                  value_rows * cols * scale_element);
    }
    out.key_up.scale = PlaceBytes(key_scales, heads * key_rows * cols * scale_element);
    out.value_up.scale = PlaceBytes(value_scales, heads * value_rows * cols * scale_element);
  }

  void Attention(const std::string& prefix, bool indexer, AttentionWeights& out) {
    Linear(prefix + "q_a_proj", out.q_a);
    Linear(prefix + "q_b_proj", out.q_b);
    Linear(prefix + "kv_a_proj_with_mqa", out.kv_a);
    Linear(prefix + "o_proj", out.o);
    Norm(prefix + "q_a_layernorm.weight", out.q_norm);
    Norm(prefix + "kv_a_layernorm.weight", out.kv_norm);
    SplitKvB(prefix + "kv_b_proj", out);
    if (!indexer) return;
    Linear(prefix + "indexer.wq_b", out.indexer.wq_b);
    Linear(prefix + "indexer.wk", out.indexer.wk);
    Linear(prefix + "indexer.weights_proj", out.indexer.weights_proj);
    Norm(prefix + "indexer.k_norm.weight", out.indexer.k_norm);
    Norm(prefix + "indexer.k_norm.bias", out.indexer.k_bias);
  }

  void Layer(int64_t index, LayerWeights& out) {
    const std::string prefix = fmt::format("layers.{}.", index);
    out.has_indexer = config_.has_indexer(index);
    out.is_moe = config_.is_moe_layer(index);
    Norm(prefix + "input_layernorm.weight", out.input_norm);
    Norm(prefix + "post_attention_layernorm.weight", out.post_norm);
    Attention(prefix + "self_attn.", out.has_indexer, out.attn);
    if (!out.is_moe) return Mlp(prefix + "mlp.", out.dense);
    Linear(prefix + "mlp.gate", out.gate);
    Floats(prefix + "mlp.gate.e_score_correction_bias", out.bias);
    out.experts.resize(static_cast<size_t>(config_.n_routed_experts));
    for (int64_t e = 0; e < config_.n_routed_experts && ok(); ++e) {
      Mlp(fmt::format("{}mlp.experts.{}.", prefix, e), out.experts[e]);
    }
    Mlp(prefix + "mlp.shared_experts.", out.shared);
  }

  void Mtp(int64_t index, MtpWeights& out) {
    const std::string prefix = fmt::format("layers.{}.", index);
    if (ok() && !source_.Get(prefix + "eh_proj.weight").ok()) {
      Fail(InvalidArgument("MTP speculative decoding layer {} weights missing from checkpoint", index));
      return;
    }
    Layer(index, out.layer);
    Norm(prefix + "enorm.weight", out.enorm);
    Norm(prefix + "hnorm.weight", out.hnorm);
    Norm(prefix + "shared_head.norm.weight", out.norm);
    Linear(prefix + "eh_proj", out.eh_proj);
    Linear(prefix + "shared_head.head", out.head);
  }

  const checkpoint::WeightSource& source_;
  const ModelConfig& config_;
  std::byte* split_ = nullptr;
};

}  // namespace

// Two bytes a value: kv_b may be BF16.
size_t SplitKvBBytes(const ModelConfig& c) {
  constexpr int64_t kPieces = 4, kPadding = 64;
  const int64_t values = c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim) * c.kv_lora_rank;
  const int64_t scales = values / kScaleBlock / kScaleBlock;
  const int64_t layers = c.num_hidden_layers + c.num_mtp_layers;
  return static_cast<size_t>(layers * (2 * values + 4 * scales + kPieces * kPadding));
}

absl::StatusOr<std::unique_ptr<ModelWeights>> BindWeights(const checkpoint::WeightSource& source, WeightStore& store) {
  const ModelConfig& c = source.config();
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"qk_nope_head_dim", c.qk_nope_head_dim},
                                    {"v_head_dim", c.v_head_dim},
                                    {"kv_lora_rank", c.kv_lora_rank}}) {
    if (value % kScaleBlock != 0)
      return Unimplemented("{} is {}; multiples of {} are implemented", name, value, kScaleBlock);
  }
  return Binder(source, store).Bind();
}

}  // namespace hadal::models::deepseek_v32
