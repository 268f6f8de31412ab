// The tensors of a V4 checkpoint bound to the places where the forward pass uses them (spec deepseek-v4-text 2.2).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/tensor_entry.h"
#include "models/weight_store.h"
#include "ops/ops.h"

namespace hadal::models::deepseek_v4 {

struct CompressorWeights {
  ops::LinearWeight wkv;       // [c*Dc, d]
  ops::LinearWeight wgate;     // [c*Dc, d]
  const float* ape = nullptr;  // [ratio, c*Dc]
  ops::Vector norm;            // [Dc]
};

struct IndexerWeights {
  ops::LinearWeight wq_b;          // [Hi*Di, Rq]
  ops::LinearWeight weights_proj;  // [Hi, d]
  CompressorWeights compressor;
};

struct AttentionWeights {
  ops::LinearWeight wq_a, wq_b, wkv, wo_a, wo_b;
  ops::Vector q_norm, kv_norm;
  const float* sink = nullptr;   // [H]
  CompressorWeights compressor;  // ratio > 0
  IndexerWeights indexer;        // ratio 4
};

struct MoeWeights {
  ops::LinearWeight gate;                     // [E, d]
  const float* bias = nullptr;                // [E]; null on hash layers (a vision checkpoint's is not used there)
  const float* bias_vl = nullptr;             // [E]; vision checkpoints
  const int32_t* token_to_expert = nullptr;   // [V, k]; hash layers
  std::vector<int32_t> host_token_to_expert;  // what it is a copy of
  std::vector<ops::ExpertWeights> experts;    // [E]
  ops::ExpertWeights shared;
};

struct LayerWeights {
  int ratio = 0;
  ops::Vector attn_norm, ffn_norm;
  ops::HcWeights hc_attn, hc_ffn;
  AttentionWeights attn;
  MoeWeights ffn;
};

struct MtpWeights {
  LayerWeights layer;
  ops::LinearWeight e_proj, h_proj;
  ops::Vector enorm, hnorm, norm;
  ops::HcWeights hc_head;
};

struct ModelWeights {
  ops::LinearWeight embed, head;  // BF16 [V, d]
  ops::Vector norm;
  ops::HcWeights hc_head;
  std::vector<LayerWeights> layers;
  std::vector<MtpWeights> mtp;
};

// Fails, naming the tensor, when one is missing or holds a scale that is no power of two in [2^-127, 2^100] (the
// kernels take scales into the exponent; see docs/numerics.md). Values are read for scales only. Weights lie where
// `store` puts them, which outlives them.
absl::StatusOr<std::unique_ptr<ModelWeights>> BindWeights(const checkpoint::WeightSource& source, WeightStore& store);

}  // namespace hadal::models::deepseek_v4
