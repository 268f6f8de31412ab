#include "models/deepseek_v4/common/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "models/deepseek_v4/common/step_buffers.h"
#include "models/rope.h"
#include "models/step.h"
#include "ops/combine_indices.h"

namespace hadal::models::deepseek_v4 {

using ops::InputQuant;
using ops::LinearTarget;

Model::Model(const checkpoint::ModelConfig& config, std::unique_ptr<ops::Ops> ops, const ModelLimits& limits)
    : config_(config),
      limits_(limits),
      ops_(std::move(ops)),
      plain_freqs_(RopeFrequencies(config.rope_theta, config.qk_rope_head_dim)),
      compressed_freqs_(YarnFrequencies(config.compress_rope_theta, config.qk_rope_head_dim, config.rope_scaling)),
      seq_ranges_(std::max<int64_t>(limits.max_seqs, 0)) {}

ModelMemory Model::Plan(const checkpoint::ModelConfig& config, const ops::Ops& ops, const ModelLimits& limits) {
  StepBuffers unused;
  ModelMemory memory;
  const bool device = !ops.memory().is_host();
  memory.cache = Cache::Bytes(config, limits, ops.act());
  memory.scratch = CarveStepBuffers(config, limits, ops.act(), device, nullptr, unused) +
                   ops.WorkspaceBytes(WorkspaceFor(config, limits)) +
                   (device ? StepStaging::Bytes(limits, DTypeBytes(ops.act(), config.hidden_size)) : 0);
  memory.layout = Cache::Layout(config, limits, ops.act());
  return memory;
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const checkpoint::WeightSource& weights,
                                                     std::unique_ptr<ops::Ops> ops, const ModelLimits& limits) {
  if (limits.max_seqs < 1 || limits.max_context < 1 || limits.max_batch_tokens < 1 || limits.max_logit_rows < 1) {
    return InvalidArgument("limits must be positive: {} sequences of {} positions, {} rows per step, {} rows of logits",
                           limits.max_seqs, limits.max_context, limits.max_batch_tokens, limits.max_logit_rows);
  }
  std::unique_ptr<Model> model(new Model(weights.config(), std::move(ops), limits));
  const checkpoint::ModelConfig& c = model->config_;
  constexpr int64_t kMostExperts = 1024;
  if (c.n_routed_experts > kMostExperts) {
    return Unimplemented("n_routed_experts is {}; up to {} are implemented", c.n_routed_experts, kMostExperts);
  }
  if (c.hc_mult > 8) return Unimplemented("hc_mult is {}; up to 8 residual streams are implemented", c.hc_mult);
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"hidden_size", c.hidden_size},
                                    {"head_dim", c.head_dim},
                                    {"q_lora_rank", c.q_lora_rank},
                                    {"moe_intermediate_size", c.moe_intermediate_size}}) {
    if (value % 64 != 0) return Unimplemented("{} is {}; multiples of 64 are implemented", name, value);
  }
  if (limits.max_context > c.max_position_embeddings) {
    return InvalidArgument("a context of {} positions was asked for; the model was made for at most {}",
                           limits.max_context, c.max_position_embeddings);
  }
  ops::Ops& on = *model->ops_;
  ops::Memory& memory = on.memory();
  const DType act = on.act();
  const bool device = !memory.is_host();
  model->store_ = std::make_unique<WeightStore>(memory);
  HADAL_ASSIGN_OR_RETURN(model->weights_, BindWeights(weights, *model->store_));
  for (const LayerWeights& layer : model->weights_->layers) HADAL_RETURN_IF_ERROR(on.PrepareExperts(layer.ffn.experts));
  for (const MtpWeights& mtp : model->weights_->mtp) HADAL_RETURN_IF_ERROR(on.PrepareExperts(mtp.layer.ffn.experts));
  HADAL_ASSIGN_OR_RETURN(model->cache_, Cache::Create(c, limits, act, memory));
  HADAL_RETURN_IF_ERROR(on.Reserve(WorkspaceFor(c, limits)));
  const size_t bytes = CarveStepBuffers(c, limits, act, device, nullptr, model->buffers_);
  HADAL_ASSIGN_OR_RETURN(model->memory_, memory.Allocate(bytes, "the buffers of a step"));
  CarveStepBuffers(c, limits, act, device, model->memory_.data(), model->buffers_);
  HADAL_ASSIGN_OR_RETURN(model->staging_, StepStaging::Create(memory, limits, DTypeBytes(act, c.hidden_size)));
  model->window_begin_.resize(static_cast<size_t>(limits.max_batch_tokens));
  model->window_end_.resize(static_cast<size_t>(limits.max_batch_tokens));
  HADAL_RETURN_IF_ERROR(on.Synchronize());  // what was copied may go
  return model;
}

absl::Status Model::CheckStep(const StepInput& step) const {
  // Embeddings do not replace ids: routing needs them (spec vision-and-cache 4.2).
  if (step.ids.empty() && !step.positions.empty() && config_.num_hash_layers > 0) {
    return InvalidArgument("DeepSeek V4 hash MoE routing requires input_ids.");
  }
  if (step.ids.empty() && !step.positions.empty() && config_.has_vision()) {
    return InvalidArgument("DeepSeek V4 vision MoE routing requires input_ids.");
  }
  return models::CheckStep(step, config_, limits_);
}

void Model::PrepareStep(const StepInput& step, bool spans) {
  const auto tokens = static_cast<int64_t>(step.ids.size());
  step_ = CutToRows(buffers_, tokens, config_.hc_mult);
  // What there is of each sequence once this step is stored: the window's rows before its first row, up to its last.
  for (int64_t t = 0; t < tokens; ++t) seq_ranges_[step.seqs[t]] = {-1, 0};
  for (int64_t t = 0; t < tokens; ++t) {
    ops::WindowRange& range = seq_ranges_[step.seqs[t]];
    const int64_t position = step.positions[t];
    if (range.begin < 0) range.begin = std::max<int64_t>(0, position - (config_.sliding_window - 1));
    range.end = std::max(range.end, position + 1);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    const bool in_span = spans && !step.left_visible.empty();
    const ops::WindowRange& exists = seq_ranges_[step.seqs[t]];
    const ops::WindowRange seen =
        ops::VisibleWindow(step.positions[t], in_span ? step.left_visible[t] : 0, in_span ? step.right_visible[t] : 0,
                           config_.sliding_window, exists.begin, exists.end);
    window_begin_[t] = static_cast<int32_t>(seen.begin);
    window_end_[t] = static_cast<int32_t>(seen.end);
  }
  const auto count = static_cast<size_t>(tokens);
  rows_ = staging_.Stage(step, std::span(window_begin_).first(count), std::span(window_end_).first(count));
  cache_->tables().Commit(step.seqs);
  ops_->ComputeRopeAngles(rows_.batch, plain_freqs_, step_.rope[0][0], step_.rope[0][1]);
  ops_->ComputeRopeAngles(rows_.batch, compressed_freqs_, step_.rope[1][0], step_.rope[1][1]);
}

ops::RopeAngles Model::Angles(int ratio) const {
  const auto& tables = step_.rope[ratio > 0 ? 1 : 0];
  return {tables[0], tables[1], config_.qk_rope_head_dim / 2};
}

absl::Status Model::Forward(const StepInput& step) {
  HADAL_RETURN_IF_ERROR(CheckStep(step));
  PrepareStep(step, true);
  ops_->Embed(rows_.batch, weights_->embed, config_.hc_mult, step_.streams);
  if (!rows_.embeddings.empty()) ops_->PlaceEmbeddings(rows_.embeddings, config_.hc_mult, step_.streams);
  ObserveStreams(-1, step_.streams, step.observer);
  for (size_t i = 0; i < weights_->layers.size(); ++i) {
    RunLayer(static_cast<int64_t>(i), weights_->layers[i], step_.streams, step.observer);
  }
  if (!buffers_.draft_streams.empty()) {
    ops_->memory().Copy(buffers_.draft_streams.data, step_.streams.data,
                        DTypeBytes(step_.streams.dtype, step_.streams.rows * step_.streams.cols));
  }
  return Logits(step, step_.streams, weights_->hc_head, weights_->norm);
}

absl::Status Model::Draft(int block, const StepInput& step) {
  if (block < 0 || block >= static_cast<int>(weights_->mtp.size())) {
    return Unimplemented("draft block {}; the checkpoint has {}", block, weights_->mtp.size());
  }
  HADAL_RETURN_IF_ERROR(CheckStep(step));
  PrepareStep(step, false);
  const MtpWeights& mtp = weights_->mtp[block];
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const int64_t hc = config_.hc_mult;
  const int64_t d = config_.hidden_size;
  ops::Tensor streams = step_.draft_streams;
  if (!rows_.source_rows.empty()) ops_->GatherRows(streams, rows_.source_rows, streams);
  // e = e_proj(RMSNorm(embed[next])), broadcast over the streams; every stream goes through h_proj.
  ops_->Embed(rows_.batch, weights_->embed, 1, step_.x);
  if (!rows_.embeddings.empty()) ops_->PlaceEmbeddings(rows_.embeddings, 1, step_.x);
  ops_->RmsNorm(step_.x, mtp.enorm, eps, step_.x);
  ops_->Linear(step_.x, std::array{LinearTarget{&mtp.e_proj, step_.y, InputQuant::kFp8}});
  ops::Tensor per_stream = ops::MakeTensor(streams.data, streams.dtype, streams.rows * hc, d);
  ops_->RmsNorm(per_stream, mtp.hnorm, eps, step_.draft_inputs);
  // T*hc rows, no more at a time than the workspace holds.
  for (int64_t first = 0; first < per_stream.rows; first += limits_.max_batch_tokens) {
    const int64_t rows = std::min(limits_.max_batch_tokens, per_stream.rows - first);
    const auto part = [&](const ops::Tensor& t) {
      return ops::MakeTensor(static_cast<std::byte*>(t.data) + DTypeBytes(t.dtype, first * d), t.dtype, rows, d);
    };
    ops_->Linear(part(step_.draft_inputs), std::array{LinearTarget{&mtp.h_proj, part(per_stream), InputQuant::kFp8}});
  }
  ops_->MtpCombine({step_.y, per_stream, hc, streams});
  const int64_t index = config_.num_hidden_layers + block;
  RunLayer(index, mtp.layer, streams, step.observer);
  return Logits(step, streams, mtp.hc_head, mtp.norm);
}

void Model::RunLayer(int64_t index, const LayerWeights& layer, const ops::Tensor& streams, StepObserver* observer) {
  const auto sub_block = [&](const ops::HcWeights& hc, const ops::Vector& norm, auto&& body) {
    ops_->HcPre({streams, config_.hc_mult, hc, static_cast<int>(config_.hc_sinkhorn_iters),
                 static_cast<float>(config_.hc_eps), norm, static_cast<float>(config_.rms_norm_eps), step_.x,
                 step_.post, step_.comb});
    body();
    ops_->HcPost({step_.y, streams, config_.hc_mult, step_.post, step_.comb});
  };
  sub_block(layer.hc_attn, layer.attn_norm, [&] { Attention(index, layer, step_.x, step_.y, observer); });
  sub_block(layer.hc_ffn, layer.ffn_norm, [&] { Moe(index, layer.ffn, step_.x, step_.y, observer); });
  ObserveStreams(static_cast<int>(index), streams, observer);
}

void Model::ObserveStreams(int layer, const ops::Tensor& streams, StepObserver* observer) {
  if (observer == nullptr) return;
  const int64_t bytes = DTypeBytes(streams.dtype, streams.rows * streams.cols);
  HostView<std::byte> view(ops_->memory(), static_cast<std::byte*>(streams.data), bytes);
  observer->OnStreams(layer, ops::MakeTensor(view.data(), streams.dtype, streams.rows, streams.cols));
}

void Model::Attention(int64_t index, const LayerWeights& layer, const ops::Tensor& x, const ops::Tensor& out,
                      StepObserver* observer) {
  const AttentionWeights& attn = layer.attn;
  const LayerCache& cache = cache_->layer(index);
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const ops::RopeAngles rope = Angles(layer.ratio);
  const bool overlap = layer.ratio == 4;

  // Everything that reads x, in one pass over it.
  ops::Tensor comp_kv = step_.comp_kv;
  ops::Tensor comp_gate = step_.comp_gate;
  std::array<LinearTarget, 7> targets = {LinearTarget{&attn.wq_a, step_.q_latent, InputQuant::kFp8},
                                         LinearTarget{&attn.wkv, step_.kv, InputQuant::kFp8}};
  size_t count = 2;
  if (layer.ratio > 0) {
    // A compressor without overlap fills half the buffer's width.
    comp_kv.cols = comp_gate.cols = comp_kv.stride = comp_gate.stride = attn.compressor.wkv.n;
    targets[count++] = {&attn.compressor.wkv, comp_kv, InputQuant::kNone};
    targets[count++] = {&attn.compressor.wgate, comp_gate, InputQuant::kNone};
  }
  if (overlap) {
    targets[count++] = {&attn.indexer.compressor.wkv, step_.index_kv, InputQuant::kNone};
    targets[count++] = {&attn.indexer.compressor.wgate, step_.index_gate, InputQuant::kNone};
    targets[count++] = {&attn.indexer.weights_proj, step_.index_weights, InputQuant::kNone};
  }
  ops_->Linear(x, {targets.data(), count});

  ops_->RmsNorm(step_.q_latent, attn.q_norm, eps, step_.q_latent);
  std::array<LinearTarget, 2> query = {LinearTarget{&attn.wq_b, step_.q, InputQuant::kFp8},
                                       LinearTarget{&attn.indexer.wq_b, step_.index_q, InputQuant::kFp8}};
  ops_->Linear(step_.q_latent, {query.data(), overlap ? size_t{2} : size_t{1}});
  ops_->QNormRope({step_.q, config_.num_attention_heads, config_.head_dim, true, eps, rope});
  ops_->KvNormRopeStore({step_.kv, attn.kv_norm, eps, rope, rows_.batch, cache.window});
  if (layer.ratio > 0) {
    ops_->Compress({comp_kv, comp_gate, attn.compressor.ape, attn.compressor.norm, eps, layer.ratio, config_.head_dim,
                    compressed_freqs_, false, rows_.batch, cache.state, cache.compressed});
  }
  if (overlap) IndexCompressed(index, attn, cache, observer);

  ops::SparseAttentionArgs args;
  args.q = step_.q;
  args.heads = config_.num_attention_heads;
  args.head_dim = config_.head_dim;
  args.sink = attn.sink;
  args.softmax_scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  args.batch = rows_.batch;
  args.window = cache.window;
  args.window_begin = rows_.window_begin;
  args.window_end = rows_.window_end;
  args.compressed = cache.compressed;
  args.ratio = layer.ratio;
  args.topk = overlap ? step_.topk : nullptr;
  args.topk_stride = config_.index_topk;
  args.rope = rope;
  args.out = step_.attended;
  ops_->SparseAttention(args);
  ops_->GroupedLinear({step_.attended, &attn.wo_a, config_.o_groups, step_.grouped});
  ops_->Linear(step_.grouped, std::array{LinearTarget{&attn.wo_b, out, InputQuant::kFp8}});
}

void Model::IndexCompressed(int64_t index, const AttentionWeights& attn, const LayerCache& cache,
                            StepObserver* observer) {
  const CompressorWeights& compressor = attn.indexer.compressor;
  ops_->Compress({step_.index_kv, step_.index_gate, compressor.ape, compressor.norm,
                  static_cast<float>(config_.rms_norm_eps), 4, config_.index_head_dim, compressed_freqs_, true,
                  rows_.batch, cache.index_state, cache.index_keys});
  ops_->IndexerQuery({step_.index_q, config_.index_n_heads, config_.index_head_dim, Angles(4)});
  ops::IndexerTopkArgs args;
  args.q = step_.index_q;
  args.weights = step_.index_weights;
  args.heads = config_.index_n_heads;
  args.head_dim = config_.index_head_dim;
  args.ratio = 4;
  args.top_k = config_.index_topk;
  args.batch = rows_.batch;
  args.keys = cache.index_keys;
  args.out = step_.topk;
  if (observer != nullptr) {
    args.scores_stride = limits_.max_context / 4 + 1;
    args.scores = ScoresForObserver(rows_.batch.tokens * args.scores_stride, ops_->memory(), &observed_scores_);
  }
  ops_->IndexerTopk(args);
  if (args.scores != nullptr) {
    HostView<float> scores(ops_->memory(), args.scores, rows_.batch.tokens * args.scores_stride);
    HostView<int32_t> topk(ops_->memory(), step_.topk, rows_.batch.tokens * args.top_k);
    observer->OnIndex(static_cast<int>(index), scores.data(), args.scores_stride, topk.data());
    topk.Return();
  }
}

void Model::Moe(int64_t index, const MoeWeights& moe, const ops::Tensor& x, const ops::Tensor& out,
                StepObserver* observer) {
  ops_->Linear(x, std::array{LinearTarget{&moe.gate, step_.gate_logits, InputQuant::kNone}});
  ops::MoeRouteArgs route;
  route.logits = step_.gate_logits;
  route.bias = moe.bias;
  route.bias_vl = moe.bias_vl;
  route.token_to_expert = moe.token_to_expert;
  route.image_first = limits_.image_first_id;
  route.experts_per_token = config_.num_experts_per_tok;
  route.scale = static_cast<float>(config_.routed_scaling_factor);
  route.batch = rows_.batch;
  route.experts = step_.experts;
  route.weights = step_.expert_weights;
  ops_->MoeRoute(route);
  if (observer != nullptr) {
    ObserveRoute(static_cast<int>(index), route, ops_->memory(), observer);
  }
  ops::MoeExpertsArgs experts;
  experts.x = x;
  experts.experts = step_.experts;
  experts.weights = step_.expert_weights;
  experts.experts_per_token = config_.num_experts_per_tok;
  experts.routed = moe.experts;
  experts.shared = &moe.shared;
  experts.swiglu_limit = static_cast<float>(config_.swiglu_limit);
  experts.out = out;
  ops_->MoeExperts(experts);
}

absl::Status Model::Logits(const StepInput& step, const ops::Tensor& streams, const ops::HcWeights& hc,
                           const ops::Vector& norm) {
  if (step.logit_rows.empty()) return ops_->Synchronize();
  ops::Tensor z = step_.head_in;
  z.rows = static_cast<int64_t>(step.logit_rows.size());
  ops_->HcHead({streams, config_.hc_mult, hc, static_cast<float>(config_.hc_eps), norm,
                static_cast<float>(config_.rms_norm_eps), z, rows_.logit_rows});
  return HeadLogits(*ops_, z, weights_->head, step_.logits, step.logits);
}

}  // namespace hadal::models::deepseek_v4
