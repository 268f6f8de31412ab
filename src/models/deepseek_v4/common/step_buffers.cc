#include "models/deepseek_v4/common/step_buffers.h"

#include <algorithm>

#include "base/carver.h"

namespace hadal::models::deepseek_v4 {

size_t CarveStepBuffers(const checkpoint::ModelConfig& c, const ModelLimits& limits, DType act, bool device,
                        std::byte* base, StepBuffers& out) {
  const int64_t t = limits.max_batch_tokens;
  const int64_t hc = c.hc_mult;
  Carver carver(base);
  const auto tensor = [&](int64_t rows, int64_t cols, DType dtype) {
    return ops::MakeTensor(carver.Take<std::byte>(DTypeBytes(dtype, rows * cols)), dtype, rows, cols);
  };
  const auto floats = [&](int64_t n) { return carver.Take<float>(n); };
  const auto ints = [&](int64_t n) { return carver.Take<int32_t>(n); };
  out.streams = tensor(t, hc * c.hidden_size, act);
  if (c.num_mtp_layers > 0) {
    out.draft_streams = tensor(t, hc * c.hidden_size, act);
    out.draft_inputs = tensor(t * hc, c.hidden_size, act);
  }
  out.x = tensor(t, c.hidden_size, act);
  out.y = tensor(t, c.hidden_size, act);
  out.post = floats(t * hc);
  out.comb = floats(t * hc * hc);
  out.q_latent = tensor(t, c.q_lora_rank, act);
  out.q = tensor(t, c.num_attention_heads * c.head_dim, act);
  out.attended = tensor(t, c.num_attention_heads * c.head_dim, act);
  out.kv = tensor(t, c.head_dim, act);
  out.grouped = tensor(t, c.o_groups * c.o_lora_rank, act);
  out.comp_kv = tensor(t, 2 * c.head_dim, DType::kF32);
  out.comp_gate = tensor(t, 2 * c.head_dim, DType::kF32);
  out.index_kv = tensor(t, 2 * c.index_head_dim, DType::kF32);
  out.index_gate = tensor(t, 2 * c.index_head_dim, DType::kF32);
  out.index_q = tensor(t, c.index_n_heads * c.index_head_dim, act);
  out.index_weights = tensor(t, c.index_n_heads, act);
  out.topk = ints(t * c.index_topk);
  out.gate_logits = tensor(t, c.n_routed_experts, DType::kF32);
  out.experts = ints(t * c.num_experts_per_tok);
  out.expert_weights = floats(t * c.num_experts_per_tok);
  for (auto& kind : out.rope) {
    for (float*& table : kind) table = floats(t * c.qk_rope_head_dim / 2);
  }
  out.head_in = tensor(limits.max_logit_rows, c.hidden_size, act);
  if (device) out.logits = tensor(limits.max_logit_rows, c.vocab_size, DType::kF32);
  return carver.used();
}

StepBuffers CutToRows(const StepBuffers& buffers, int64_t tokens, int64_t hc) {
  StepBuffers out = buffers;
  for (ops::Tensor* t : {&out.streams, &out.draft_streams, &out.x, &out.y, &out.q_latent, &out.q, &out.attended,
                         &out.kv, &out.grouped, &out.comp_kv, &out.comp_gate, &out.index_kv, &out.index_gate,
                         &out.index_q, &out.index_weights, &out.gate_logits}) {
    t->rows = tokens;
  }
  out.draft_inputs.rows = tokens * hc;
  return out;
}

ops::WorkspaceSpec WorkspaceFor(const checkpoint::ModelConfig& c, const ModelLimits& limits) {
  ops::WorkspaceSpec spec;
  spec.max_tokens = std::max(limits.max_batch_tokens, limits.max_logit_rows);
  spec.hidden = c.hidden_size;
  spec.hc_mult = c.hc_mult;
  const checkpoint::VisionConfig& v = c.vision;
  spec.max_linear_k = std::max({c.hidden_size, c.q_lora_rank, c.o_groups * c.o_lora_rank, c.moe_intermediate_size});
  spec.max_linear_n = std::max({c.num_attention_heads * c.head_dim, c.vocab_size, c.index_n_heads * c.index_head_dim});
  if (limits.images) {
    const int64_t squares = v.downsample_ratio * v.downsample_ratio;
    spec.max_linear_k = std::max({spec.max_linear_k, v.inter_dim, v.dim * squares, 3 * v.patch_size * v.patch_size});
    spec.max_linear_n = std::max({spec.max_linear_n, 2 * v.inter_dim, 3 * v.dim});
    spec.vision_rows = v.max_n_token * squares;
  }
  spec.heads = c.num_attention_heads;
  spec.head_dim = c.head_dim;
  spec.experts = c.n_routed_experts;
  spec.experts_per_token = c.num_experts_per_tok;
  spec.moe_intermediate = c.moe_intermediate_size;
  int64_t compressed = 0;
  for (const int ratio : c.compress_ratios) {
    if (ratio == 4) {
      spec.max_compressed_rows = limits.max_context / 4 + 1;
      compressed = std::max(compressed, std::min(c.index_topk, spec.max_compressed_rows));
    }
    if (ratio > 4) compressed = std::max(compressed, limits.max_context / ratio + 1);
  }
  spec.max_attended_rows = c.sliding_window + c.vision.max_n_token + compressed;
  spec.index_heads = c.index_n_heads;
  spec.index_head_dim = c.index_head_dim;
  return spec;
}

}  // namespace hadal::models::deepseek_v4
