// The tensors of a V3.2, V3 or R1 checkpoint bound to the places where the forward pass uses them (spec deepseek-v32
// 2).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/memory_region.h"
#include "checkpoint/tensor_entry.h"
#include "models/weight_store.h"
#include "ops/ops.h"

namespace hadal::models::deepseek_v32 {

struct IndexerWeights {
  ops::LinearWeight wq_b;          // [Hi*Di, Rq]
  ops::LinearWeight wk;            // [Di, d]
  ops::LinearWeight weights_proj;  // [Hi, d] BF16
  ops::Vector k_norm, k_bias;      // [Di]
};

struct AttentionWeights {
  ops::LinearWeight q_a, q_b, kv_a, o;
  ops::Vector q_norm, kv_norm;
  ops::LinearWeight kv_b;  // [H*(nope + v), Rkv], of each head keys first, in the host's memory: what
                           // expanded prompts use
  // kv_b in two pieces, for attention over latents: queries to latents, latents to values. In the precision of the
  // file, but that transposed FP4 is kBF16, which holds it exactly: its scales run along the other side.
  ops::LinearWeight key_up;    // [H*Rkv, nope]: each head's rows of kv_b, transposed
  ops::LinearWeight value_up;  // [H*v, Rkv]
  IndexerWeights indexer;      // empty in layers that have none
};

struct LayerWeights {
  bool has_indexer = false;
  bool is_moe = false;
  ops::Vector input_norm, post_norm;
  AttentionWeights attn;
  ops::ExpertWeights dense;                 // layers that are not MoE
  ops::LinearWeight gate;                   // [E, d]
  const float* bias = nullptr;              // [E]
  std::vector<ops::ExpertWeights> experts;  // [E]
  ops::ExpertWeights shared;
};

struct MtpWeights {
  LayerWeights layer;
  ops::Vector enorm, hnorm, norm;
  ops::LinearWeight eh_proj;  // [d, 2d] BF16
  ops::LinearWeight head;     // [V, d] BF16
};

struct ModelWeights {
  ops::LinearWeight embed, head;  // BF16 [V, d]
  ops::Vector norm;
  std::vector<LayerWeights> layers;
  std::vector<MtpWeights> mtp;
  MemoryRegion split_kv_b;  // what key_up and value_up point to, or were copied to the device from
};

// Bytes of ModelWeights::split_kv_b, as config.kv_b_dtype has them.
size_t SplitKvBBytes(const checkpoint::ModelConfig& config);

// Fails, naming the tensor, when one is missing ("MTP speculative decoding layer I weights missing from checkpoint" for
// a whole MTP layer) or holds a scale that is not finite and above zero. Unimplemented for shapes of kv_b that cannot
// be split at scale blocks.
// `config` is that of the source, with num_mtp_layers as many as are to be bound. Weights lie where `store` puts them,
// which outlives them.
absl::StatusOr<std::unique_ptr<ModelWeights>> BindWeights(const checkpoint::WeightSource& source,
                                                          const checkpoint::ModelConfig& config, WeightStore& store);

}  // namespace hadal::models::deepseek_v32
