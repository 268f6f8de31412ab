#include "models/deepseek_v4/common/weights.h"

#include <cmath>
#include <string>
#include <utility>

#include "base/float_formats.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace hadal::models::deepseek_v4 {
namespace {

using checkpoint::ModelConfig;
using checkpoint::TensorEntry;

// Largest scale exponent that the kernels' exponent arithmetic takes: 448 * 2^100 and sums of it stay finite in bf16.
constexpr float kMaxScale = 0x1p100f;

absl::Status CheckScales(const TensorEntry& entry) {
  for (int64_t i = 0; i < entry.elements(); ++i) {
    const float scale = entry.dtype == DType::kF32 ? entry.as<float>()[i] : E8M0ToFloat(entry.as<uint8_t>()[i]);
    int exponent = 0;
    if (!(scale > 0) || scale > kMaxScale || std::frexp(scale, &exponent) != 0.5f) {
      return InvalidArgument("{}: scale [{}] is {}; expected a power of two of at most 2^100 (file {})", entry.name, i,
                             scale, entry.file);
    }
  }
  return absl::OkStatus();
}

class Binder {
 public:
  explicit Binder(const checkpoint::WeightSource& source) : source_(source), config_(source.config()) {}

  absl::StatusOr<std::unique_ptr<ModelWeights>> Bind() {
    auto weights = std::make_unique<ModelWeights>();
    Linear("embed", weights->embed);
    Linear("head", weights->head);
    Norm("norm.weight", weights->norm);
    Hc("hc_head", weights->hc_head);
    for (int64_t i = 0; i < config_.num_hidden_layers && status_.ok(); ++i) {
      Layer(fmt::format("layers.{}.", i), i, weights->layers.emplace_back());
    }
    for (int64_t j = 0; j < config_.num_mtp_layers && status_.ok(); ++j) {
      const std::string prefix = fmt::format("mtp.{}.", j);
      MtpWeights& mtp = weights->mtp.emplace_back();
      Layer(prefix, config_.num_hidden_layers + j, mtp.layer);
      Linear(prefix + "e_proj", mtp.e_proj);
      Linear(prefix + "h_proj", mtp.h_proj);
      Norm(prefix + "enorm.weight", mtp.enorm);
      Norm(prefix + "hnorm.weight", mtp.hnorm);
      Norm(prefix + "norm.weight", mtp.norm);
      Hc(prefix + "hc_head", mtp.hc_head);
    }
    if (!status_.ok()) return status_;
    return weights;
  }

 private:
  // The first failure sticks; later calls do nothing.
  const TensorEntry* Get(const std::string& name) {
    if (!status_.ok()) return nullptr;
    absl::StatusOr<const TensorEntry*> entry = source_.Get(name);
    if (!entry.ok()) {
      status_ = entry.status();
      return nullptr;
    }
    return *entry;
  }

  void Linear(const std::string& module, ops::LinearWeight& out) {
    const TensorEntry* weight = Get(module + ".weight");
    if (weight == nullptr) return;
    out.n = weight->shape[0];
    out.k = weight->shape[1];
    out.dtype = weight->dtype;
    out.data = weight->data;
    if (weight->dtype != DType::kF8E4M3 && weight->dtype != DType::kF4E2M1) return;
    const TensorEntry* scale = Get(module + ".scale");
    if (scale == nullptr) return;
    status_ = CheckScales(*scale);
    out.scale_dtype = scale->dtype;
    out.scale = scale->data;
  }
  void Norm(const std::string& name, ops::Vector& out) {
    if (const TensorEntry* entry = Get(name)) out = {entry->data, entry->dtype, entry->elements()};
  }
  void Floats(const std::string& name, const float*& out) {
    if (const TensorEntry* entry = Get(name)) out = entry->as<float>();
  }
  void Hc(const std::string& prefix, ops::HcWeights& out) {
    Floats(prefix + "_fn", out.fn);
    Floats(prefix + "_scale", out.scale);
    Floats(prefix + "_base", out.base);
  }
  void Compressor(const std::string& prefix, CompressorWeights& out) {
    Linear(prefix + "wkv", out.wkv);
    Linear(prefix + "wgate", out.wgate);
    Floats(prefix + "ape", out.ape);
    Norm(prefix + "norm.weight", out.norm);
  }
  void Expert(const std::string& prefix, ops::ExpertWeights& out) {
    Linear(prefix + "w1", out.w1);
    Linear(prefix + "w3", out.w3);
    Linear(prefix + "w2", out.w2);
  }

  void Attention(const std::string& prefix, int ratio, AttentionWeights& out) {
    Linear(prefix + "wq_a", out.wq_a);
    Linear(prefix + "wq_b", out.wq_b);
    Linear(prefix + "wkv", out.wkv);
    Linear(prefix + "wo_a", out.wo_a);
    Linear(prefix + "wo_b", out.wo_b);
    Norm(prefix + "q_norm.weight", out.q_norm);
    Norm(prefix + "kv_norm.weight", out.kv_norm);
    Floats(prefix + "attn_sink", out.sink);
    if (ratio > 0) Compressor(prefix + "compressor.", out.compressor);
    if (ratio == 4) {
      Linear(prefix + "indexer.wq_b", out.indexer.wq_b);
      Linear(prefix + "indexer.weights_proj", out.indexer.weights_proj);
      Compressor(prefix + "indexer.compressor.", out.indexer.compressor);
    }
  }

  void TokenToExpert(const std::string& name, std::vector<int32_t>& out) {
    const TensorEntry* entry = Get(name);
    if (entry == nullptr) return;
    status_ = checkpoint::CheckTokenExperts(*entry, config_.n_routed_experts);
    if (!status_.ok()) return;
    out.resize(entry->elements());
    for (int64_t i = 0; i < entry->elements(); ++i) {
      out[i] = entry->dtype == DType::kI64 ? static_cast<int32_t>(entry->as<int64_t>()[i]) : entry->as<int32_t>()[i];
    }
  }

  void Moe(const std::string& prefix, int64_t layer, MoeWeights& out) {
    Linear(prefix + "gate", out.gate);
    if (config_.is_hash_layer(layer)) {
      TokenToExpert(prefix + "gate.tid2eid", out.token_to_expert);
    } else {
      Floats(prefix + "gate.bias", out.bias);
    }
    if (config_.has_vision()) Floats(prefix + "gate.bias_vl", out.bias_vl);
    out.experts.resize(config_.n_routed_experts);
    for (int64_t e = 0; e < config_.n_routed_experts && status_.ok(); ++e) {
      Expert(fmt::format("{}experts.{}.", prefix, e), out.experts[e]);
    }
    Expert(prefix + "shared_experts.", out.shared);
  }

  void Layer(const std::string& prefix, int64_t layer, LayerWeights& out) {
    out.ratio = config_.compress_ratios[layer];
    Norm(prefix + "attn_norm.weight", out.attn_norm);
    Norm(prefix + "ffn_norm.weight", out.ffn_norm);
    Hc(prefix + "hc_attn", out.hc_attn);
    Hc(prefix + "hc_ffn", out.hc_ffn);
    Attention(prefix + "attn.", out.ratio, out.attn);
    Moe(prefix + "ffn.", layer, out.ffn);
  }

  const checkpoint::WeightSource& source_;
  const ModelConfig& config_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelWeights>> BindWeights(const checkpoint::WeightSource& source) {
  return Binder(source).Bind();
}

}  // namespace hadal::models::deepseek_v4
