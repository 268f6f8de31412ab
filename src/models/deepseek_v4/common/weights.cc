#include "models/deepseek_v4/common/weights.h"

#include <string>
#include <utility>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "models/weight_binder.h"

namespace hadal::models::deepseek_v4 {
namespace {

using checkpoint::ModelConfig;
using checkpoint::TensorEntry;

class Binder : private WeightBinder {
 public:
  Binder(const checkpoint::WeightSource& source, WeightStore& store)
      : WeightBinder(source, store, Scales::kExponents), config_(source.config()) {}

  absl::StatusOr<std::unique_ptr<ModelWeights>> Bind() {
    auto weights = std::make_unique<ModelWeights>();
    Linear("embed", weights->embed);
    Linear("head", weights->head);
    Norm("norm.weight", weights->norm);
    Hc("hc_head", weights->hc_head);
    for (int64_t i = 0; i < config_.num_hidden_layers && ok(); ++i) {
      Layer(fmt::format("layers.{}.", i), i, weights->layers.emplace_back());
    }
    for (int64_t j = 0; j < config_.num_mtp_layers && ok(); ++j) {
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
    if (!ok()) return status();
    return weights;
  }

 private:
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

  void TokenToExpert(const std::string& name, MoeWeights& moe) {
    const TensorEntry* entry = Get(name);
    if (entry == nullptr) return;
    Fail(checkpoint::CheckTokenExperts(*entry, config_.n_routed_experts));
    if (!ok()) return;
    std::vector<int32_t>& out = moe.host_token_to_expert;
    out.resize(entry->elements());
    for (int64_t i = 0; i < entry->elements(); ++i) {
      out[i] = entry->dtype == DType::kI64 ? static_cast<int32_t>(entry->as<int64_t>()[i]) : entry->as<int32_t>()[i];
    }
    moe.token_to_expert = Place(out.data(), entry->elements());
  }

  void Moe(const std::string& prefix, int64_t layer, MoeWeights& out) {
    Linear(prefix + "gate", out.gate);
    if (config_.is_hash_layer(layer)) {
      TokenToExpert(prefix + "gate.tid2eid", out);
    } else {
      Floats(prefix + "gate.bias", out.bias);
    }
    if (config_.has_vision()) Floats(prefix + "gate.bias_vl", out.bias_vl);
    out.experts.resize(config_.n_routed_experts);
    for (int64_t e = 0; e < config_.n_routed_experts && ok(); ++e) {
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

  const ModelConfig& config_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelWeights>> BindWeights(const checkpoint::WeightSource& source, WeightStore& store) {
  return Binder(source, store).Bind();
}

}  // namespace hadal::models::deepseek_v4
