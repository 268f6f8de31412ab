#include "models/deepseek_v32/common/weights.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/float_formats.h"
#include "base/status.h"
#include "checkpoint/model_config.h"
#include "models/weight_binder.h"

namespace hadal::models::deepseek_v32 {
namespace {

using checkpoint::ModelConfig;

constexpr int64_t kScaleBlock = 128;

constexpr int64_t kFp4Block = 32;

int64_t Padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes of one layer's split kv_b.
struct KvBPieces {
  KvBPieces(const ModelConfig& c, DType dtype) {
    const int64_t key_values = c.num_attention_heads * c.qk_nope_head_dim * c.kv_lora_rank;
    const int64_t value_values = c.num_attention_heads * c.v_head_dim * c.kv_lora_rank;
    key_dtype = dtype == DType::kF4E2M1 ? DType::kBF16 : dtype;
    keys = DTypeBytes(key_dtype, key_values);
    values = DTypeBytes(dtype, value_values);
    constexpr int64_t kBlock = kScaleBlock * kScaleBlock, kMostScale = sizeof(float);
    if (dtype == DType::kF8E4M3) {
      key_scales = key_values / kBlock * kMostScale;
      value_scales = value_values / kBlock * kMostScale;
    } else if (dtype == DType::kF4E2M1) {
      value_scales = value_values / kFp4Block;
    }
  }
  int64_t total() const { return Padded(keys) + Padded(values) + Padded(key_scales) + Padded(value_scales); }

  DType key_dtype;
  int64_t keys, values;
  int64_t key_scales = 0, value_scales = 0;
};

// [rows, cols] to [cols, rows].
void Transpose(const std::byte* from, int64_t rows, int64_t cols, int64_t element, std::byte* to) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c)
      std::memcpy(to + (c * rows + r) * element, from + (r * cols + c) * element, element);
  }
}

// Rows [first, first + rows) of an FP4 weight, transposed; exact, since a code times a power of two has two bits.
void TransposeFp4(const ops::LinearWeight& w, int64_t first, int64_t rows, BFloat16* to) {
  for (int64_t r = 0; r < rows; ++r) {
    const auto* codes = static_cast<const uint8_t*>(w.data) + (first + r) * w.row_bytes();
    const auto* scales = static_cast<const uint8_t*>(w.scale) + (first + r) * (w.k / kFp4Block);
    for (int64_t c = 0; c < w.k; ++c) {
      const auto code = static_cast<uint8_t>(codes[c / 2] >> (c % 2 * 4) & 15);
      to[c * rows + r] = ToBFloat16(E2M1ToFloat(code) * E8M0ToFloat(scales[c / kFp4Block]));
    }
  }
}

class Binder : private WeightBinder {
 public:
  Binder(const checkpoint::WeightSource& source, const ModelConfig& config, WeightStore& store)
      : WeightBinder(source, store, Scales::kAny), source_(source), config_(config) {}

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
    split_ += Padded(bytes);
    return at;
  }

  // Of each head the first `nope` rows make keys, the others values.
  void SplitKvB(const std::string& module, AttentionWeights& out) {
    ops::LinearWeight kv_b;
    HostLinear(module, kv_b);
    if (!ok()) return;
    const KvBPieces pieces(config_, kv_b.dtype);
    const int64_t heads = config_.num_attention_heads;
    const int64_t nope = config_.qk_nope_head_dim, value = config_.v_head_dim, latent = config_.kv_lora_rank;
    out.key_up = out.value_up = kv_b;
    out.key_up.n = heads * latent;
    out.key_up.k = nope;
    out.key_up.dtype = pieces.key_dtype;
    out.value_up.n = heads * value;
    auto* keys = Take(pieces.keys);
    auto* values = Take(pieces.values);
    out.key_up.data = keys;
    out.value_up.data = values;
    const auto* from = static_cast<const std::byte*>(kv_b.data);
    const int64_t row = kv_b.row_bytes();
    for (int64_t h = 0; h < heads; ++h) {
      const std::byte* head = from + h * (nope + value) * row;
      if (kv_b.dtype == DType::kF4E2M1) {
        TransposeFp4(kv_b, h * (nope + value), nope, reinterpret_cast<BFloat16*>(keys) + h * latent * nope);
      } else {
        Transpose(head, nope, latent, DTypeBytes(kv_b.dtype, 1), keys + h * latent * nope * DTypeBytes(kv_b.dtype, 1));
      }
      std::memcpy(values + h * value * row, head + nope * row, value * row);
    }
    const int64_t key_bytes = heads * latent * DTypeBytes(pieces.key_dtype, nope);
    out.key_up.data = PlaceBytes(keys, key_bytes);
    out.value_up.data = PlaceBytes(values, heads * value * row);
    out.kv_b = kv_b;
    if (kv_b.scale == nullptr) return;
    // A scale is that of 128 x 128 values, also when they are transposed, or of 32 values of a row.
    const bool fp8 = kv_b.dtype == DType::kF8E4M3;
    const int64_t rows = fp8 ? kScaleBlock : 1;
    const int64_t element = DTypeBytes(kv_b.scale_dtype, 1);
    const int64_t cols = latent / (fp8 ? kScaleBlock : kFp4Block);
    const int64_t key_rows = nope / rows, value_rows = value / rows;
    auto* key_scales = Take(pieces.key_scales);
    auto* value_scales = Take(pieces.value_scales);
    out.key_up.scale = fp8 ? key_scales : nullptr;
    out.value_up.scale = value_scales;
    const auto* scales = static_cast<const std::byte*>(kv_b.scale);
    for (int64_t h = 0; h < heads; ++h) {
      const std::byte* head = scales + h * (key_rows + value_rows) * cols * element;
      if (fp8) Transpose(head, key_rows, cols, element, key_scales + h * cols * key_rows * element);
      std::memcpy(value_scales + h * value_rows * cols * element, head + key_rows * cols * element,
                  value_rows * cols * element);
    }
    if (fp8) out.key_up.scale = PlaceBytes(key_scales, heads * key_rows * cols * element);
    out.value_up.scale = PlaceBytes(value_scales, heads * value_rows * cols * element);
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

size_t SplitKvBBytes(const ModelConfig& c) {
  const int64_t layers = c.num_hidden_layers + c.num_mtp_layers;
  return static_cast<size_t>(layers * KvBPieces(c, c.kv_b_dtype).total());
}

absl::StatusOr<std::unique_ptr<ModelWeights>> BindWeights(const checkpoint::WeightSource& source, const ModelConfig& c,
                                                          WeightStore& store) {
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"qk_nope_head_dim", c.qk_nope_head_dim},
                                    {"v_head_dim", c.v_head_dim},
                                    {"kv_lora_rank", c.kv_lora_rank}}) {
    if (value % kScaleBlock != 0)
      return Unimplemented("{} is {}; multiples of {} are implemented", name, value, kScaleBlock);
  }
  return Binder(source, c, store).Bind();
}

}  // namespace hadal::models::deepseek_v32
