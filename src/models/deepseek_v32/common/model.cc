#include "models/deepseek_v32/common/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/carver.h"
#include "base/status.h"
#include "models/rope.h"
#include "models/step.h"

namespace hadal::models::deepseek_v32 {

using checkpoint::ModelConfig;
using ops::InputQuant;
using ops::LinearTarget;

namespace {

constexpr float kLayerNormEps = 1e-6f;  // of the indexer's keys (spec 3.1)

// Buffers for max_batch_tokens rows, carved from `base`; returns the bytes used. Null only counts.
size_t CarveStepBuffers(const ModelConfig& c, const ModelLimits& limits, DType act, bool device, std::byte* base,
                        StepBuffers& out) {
  const int64_t t = limits.max_batch_tokens;
  const int64_t heads = c.num_attention_heads;
  const int64_t row = c.kv_lora_rank + c.qk_rope_head_dim;
  Carver carver(base);
  const auto tensor = [&](int64_t rows, int64_t cols, DType dtype) {
    return ops::MakeTensor(carver.Take<std::byte>(DTypeBytes(dtype, rows * cols)), dtype, rows, cols);
  };
  const auto floats = [&](int64_t n) { return carver.Take<float>(n); };
  const auto ints = [&](int64_t n) { return carver.Take<int32_t>(n); };
  for (ops::Tensor* buffer : {&out.residual, &out.x, &out.y, &out.hidden}) {
    *buffer = tensor(t, c.hidden_size, act);
  }
  if (c.num_mtp_layers > 0) out.draft_in = tensor(t, 2 * c.hidden_size, act);
  out.q_latent = tensor(t, c.q_lora_rank, act);
  out.q = tensor(t, heads * (c.qk_nope_head_dim + c.qk_rope_head_dim), act);
  out.absorbed = tensor(t, heads * row, act);
  out.kv = tensor(t, row, act);
  out.latent_out = tensor(t, heads * c.kv_lora_rank, act);
  out.heads_out = tensor(t, heads * c.v_head_dim, act);
  if (c.index_topk > 0) {
    out.index_q = tensor(t, c.index_n_heads * c.index_head_dim, act);
    out.index_k = tensor(t, c.index_head_dim, act);
    out.index_weights = tensor(t, c.index_n_heads, DType::kF32);
    out.topk = ints(t * c.index_topk);
  }
  out.gate_logits = tensor(t, c.n_routed_experts, DType::kF32);
  out.experts = ints(t * c.num_experts_per_tok);
  out.expert_weights = floats(t * c.num_experts_per_tok);
  out.cos = floats(t * c.qk_rope_head_dim / 2);
  out.sin = floats(t * c.qk_rope_head_dim / 2);
  out.head_in = tensor(limits.max_logit_rows, c.hidden_size, act);
  if (device) out.logits = tensor(limits.max_logit_rows, c.vocab_size, DType::kF32);
  return carver.used();
}

// Latents that are expanded at most: all that a row with an indexer sees while it sees every row. Without one, a prompt
// of a usual length; the expanded heads of more would take more memory than a chunk is worth.
int64_t MostExpanded(const ModelConfig& c, const ModelLimits& limits) {
  constexpr int64_t kMost = 8192;
  if (limits.expand_rows == 0) return 0;
  return std::min(limits.max_context, c.index_topk > 0 ? c.index_topk : kMost);
}

ops::WorkspaceSpec WorkspaceFor(const ModelConfig& c, const ModelLimits& limits) {
  const int64_t heads = c.num_attention_heads;
  ops::WorkspaceSpec spec;
  spec.max_tokens = std::max(limits.max_batch_tokens, limits.max_logit_rows);
  spec.hidden = c.hidden_size;
  spec.hc_mult = 1;
  spec.any_scales = true;
  spec.max_linear_k =
      std::max({2 * c.hidden_size, c.q_lora_rank, heads * c.v_head_dim, c.moe_intermediate_size, c.intermediate_size});
  spec.max_linear_n = std::max({heads * (c.qk_nope_head_dim + c.qk_rope_head_dim), c.vocab_size,
                                c.index_n_heads * c.index_head_dim, c.intermediate_size});
  spec.heads = heads;
  spec.head_dim = c.kv_lora_rank + c.qk_rope_head_dim;
  spec.experts = c.n_routed_experts;
  spec.experts_per_token = c.num_experts_per_tok;
  spec.moe_intermediate = c.moe_intermediate_size;
  spec.dense_intermediate = c.intermediate_size;
  spec.max_attended_rows = c.index_topk > 0 ? std::min(c.index_topk, limits.max_context) : limits.max_context;
  spec.max_compressed_rows = c.index_topk > 0 ? limits.max_context : 0;
  spec.index_heads = c.index_n_heads;
  spec.index_head_dim = c.index_head_dim;
  spec.max_expanded_rows = MostExpanded(c, limits);
  spec.expanded_key = c.qk_nope_head_dim + c.qk_rope_head_dim;
  spec.expanded_value = c.v_head_dim;
  return spec;
}

absl::Status CheckConfig(const ModelConfig& c, const ModelLimits& limits) {
  if (limits.max_seqs < 1 || limits.max_context < 1 || limits.max_batch_tokens < 1 || limits.max_logit_rows < 1) {
    return InvalidArgument("limits must be positive: {} sequences of {} positions, {} rows per step, {} rows of logits",
                           limits.max_seqs, limits.max_context, limits.max_batch_tokens, limits.max_logit_rows);
  }
  if (limits.max_context > c.max_position_embeddings) {
    return InvalidArgument("a context of {} positions was asked for; the model was made for at most {}",
                           limits.max_context, c.max_position_embeddings);
  }
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"hidden_size", c.hidden_size},
                                    {"q_lora_rank", c.q_lora_rank},
                                    {"qk_rope_head_dim", c.qk_rope_head_dim},
                                    {"moe_intermediate_size", c.moe_intermediate_size},
                                    {"intermediate_size", c.intermediate_size}}) {
    if (value % 64 != 0) return Unimplemented("{} is {}; multiples of 64 are implemented", name, value);
  }
  for (const auto& [name, value, most] :
       {std::tuple<const char*, int64_t, int64_t>{"n_group", c.n_group, 64},
        {"n_routed_experts", c.n_routed_experts, 1024},
        {"qk_nope_head_dim", c.qk_nope_head_dim, c.kv_lora_rank + c.qk_rope_head_dim}}) {
    if (value > most) return Unimplemented("{} is {}; up to {} are implemented", name, value, most);
  }
  const checkpoint::RopeScaling& rope = c.rope_scaling;
  if (rope.yarn && rope.factor > 1 && rope.mscale != rope.mscale_all_dim) {
    return Unimplemented("rope_scaling: mscale is {} and mscale_all_dim {}; equal ones are implemented", rope.mscale,
                         rope.mscale_all_dim);
  }
  if (c.indexer_rope_interleave) return Unimplemented("indexer_rope_interleave: expected false");
  if (c.index_topk > 0 && c.index_head_dim < c.qk_rope_head_dim) {
    return Unimplemented("index_head_dim is {}; expected at least qk_rope_head_dim, which is {}", c.index_head_dim,
                         c.qk_rope_head_dim);
  }
  if (c.n_shared_experts != 1) return Unimplemented("n_shared_experts is {}; 1 is implemented", c.n_shared_experts);
  if (c.index_topk > 0 && !c.has_indexer(0)) {
    return InvalidArgument("layer 0 has no indexer and no layer before it whose choice it could share");
  }
  if (c.n_group < 1 || c.n_routed_experts % c.n_group != 0 || c.topk_group > c.n_group) {
    return InvalidArgument("{} experts in {} groups, {} of them chosen: expected equal groups", c.n_routed_experts,
                           c.n_group, c.topk_group);
  }
  return absl::OkStatus();
}

ops::BatchRows RowsOf(const ops::BatchRows& batch, int64_t first, int64_t count) {
  return {count, batch.ids + first, batch.positions + first, batch.seqs + first};
}
ops::Tensor RowsOf(ops::Tensor t, int64_t first, int64_t count) {
  t.data = static_cast<std::byte*>(t.data) + DTypeBytes(t.dtype, first * t.stride);
  t.rows = count;
  return t;
}

// Without the blocks that nobody drafts with (spec 2, rule c).
ModelConfig Loaded(ModelConfig config, const ModelLimits& limits) {
  if (limits.max_draft_tokens == 0) config.num_mtp_layers = 0;
  return config;
}

absl::Status CheckPlatform(const ModelConfig& c, const ModelLimits& limits, const ops::Ops& ops) {
  if (limits.expand_rows > 0 && !ops.Supports(ops::Feature::kExpandedAttention)) {
    return Unimplemented("mla_prefill: the expanded form is not implemented for {}; expected absorbed", ops.name());
  }
  if (c.activation_scales != checkpoint::ActivationScales::kPowersOfTwo &&
      !ops.Supports(ops::Feature::kAnyActivationScales)) {
    return Unimplemented(
        "activation scales that are no powers of two (no scale_fmt in quantization_config) are not implemented for {}",
        ops.name());
  }
  return absl::OkStatus();
}

}  // namespace

float SoftmaxScale(const ModelConfig& config) {
  const auto dims = static_cast<double>(config.qk_nope_head_dim + config.qk_rope_head_dim);
  const checkpoint::RopeScaling& rope = config.rope_scaling;
  double m = 1;
  if (rope.yarn && rope.factor > 1 && rope.mscale_all_dim != 0)
    m = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1;
  return static_cast<float>(m * m / std::sqrt(dims));
}

Model::Model(const ModelConfig& config, std::unique_ptr<ops::Ops> ops, const ModelLimits& limits)
    : config_(config),
      limits_(limits),
      ops_(std::move(ops)),
      freqs_(YarnFrequencies(config.rope_theta, config.qk_rope_head_dim, config.rope_scaling)),
      softmax_scale_(SoftmaxScale(config)),
      input_quant_(config.activation_scales == checkpoint::ActivationScales::kPowersOfTwo ? InputQuant::kFp8
                                                                                          : InputQuant::kFp8AnyScale) {}

ModelMemory Model::Plan(const ModelConfig& config, const ops::Ops& ops, const ModelLimits& wanted,
                        const Traits& traits) {
  const ModelConfig loaded = Loaded(config, wanted);
  const ModelLimits limits = Cache::Resolve(wanted, ops.act(), traits);
  StepBuffers unused;
  ModelMemory memory;
  const bool device = !ops.memory().is_host();
  memory.cache = Cache::Bytes(loaded, limits, ops.act());
  memory.scratch = CarveStepBuffers(loaded, limits, ops.act(), device, nullptr, unused) +
                   ops.WorkspaceBytes(WorkspaceFor(loaded, limits)) + SplitKvBBytes(loaded) +
                   (device ? StepStaging::Bytes(limits, 0) : 0);
  memory.layout = Cache::Layout(loaded, limits, ops.act());
  return memory;
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const checkpoint::WeightSource& weights,
                                                     std::unique_ptr<ops::Ops> ops, const ModelLimits& wanted,
                                                     const Traits& traits) {
  const ModelLimits limits = Cache::Resolve(wanted, ops->act(), traits);
  HADAL_RETURN_IF_ERROR(CheckConfig(weights.config(), limits));
  HADAL_RETURN_IF_ERROR(Cache::Check(weights.config(), limits, ops->act(), traits));
  HADAL_RETURN_IF_ERROR(CheckPlatform(weights.config(), limits, *ops));
  std::unique_ptr<Model> model(new Model(Loaded(weights.config(), limits), std::move(ops), limits));
  const ModelConfig& c = model->config_;
  ops::Ops& on = *model->ops_;
  ops::Memory& memory = on.memory();
  const DType act = on.act();
  const bool device = !memory.is_host();
  model->store_ = std::make_unique<WeightStore>(memory);
  HADAL_ASSIGN_OR_RETURN(model->weights_, BindWeights(weights, c, *model->store_));
  for (const LayerWeights& layer : model->weights_->layers) HADAL_RETURN_IF_ERROR(on.PrepareExperts(layer.experts));
  for (const MtpWeights& mtp : model->weights_->mtp) HADAL_RETURN_IF_ERROR(on.PrepareExperts(mtp.layer.experts));
  model->segments_.reserve(static_cast<size_t>(limits.max_batch_tokens));
  HADAL_ASSIGN_OR_RETURN(model->cache_, Cache::Create(c, limits, act, memory));
  HADAL_RETURN_IF_ERROR(on.Reserve(WorkspaceFor(c, limits)));
  const size_t bytes = CarveStepBuffers(c, limits, act, device, nullptr, model->buffers_);
  HADAL_ASSIGN_OR_RETURN(model->memory_, memory.Allocate(bytes, "the buffers of a step"));
  CarveStepBuffers(c, limits, act, device, model->memory_.data(), model->buffers_);
  HADAL_ASSIGN_OR_RETURN(model->staging_, StepStaging::Create(memory, limits, 0));
  HADAL_RETURN_IF_ERROR(on.Synchronize());  // what was copied may go
  if (device) model->weights_->split_kv_b = MemoryRegion();
  return model;
}

void Model::PrepareStep(const StepInput& step) {
  const auto tokens = static_cast<int64_t>(step.ids.size());
  rows_ = staging_.Stage(step, {}, {});
  cache_->tables().Commit(step.seqs);
  step_ = buffers_;
  for (ops::Tensor* t : {&step_.residual, &step_.x, &step_.y, &step_.hidden, &step_.draft_in, &step_.q_latent, &step_.q,
                         &step_.absorbed, &step_.kv, &step_.latent_out, &step_.heads_out, &step_.index_q,
                         &step_.index_k, &step_.index_weights, &step_.gate_logits}) {
    t->rows = tokens;
  }
  CutSegments(step);
  ops_->ComputeRopeAngles(rows_.batch, freqs_, step_.cos, step_.sin);
}

absl::Status Model::Forward(const StepInput& step) {
  HADAL_RETURN_IF_ERROR(CheckStep(step, config_, limits_));
  if (!step.embeddings.empty()) return InvalidArgument("embeddings: DeepSeek V3.2 takes token ids only");
  PrepareStep(step);
  ops_->Embed(rows_.batch, weights_->embed, 1, step_.residual);
  ObserveStreams(-1, false, step.observer);
  for (size_t i = 0; i < weights_->layers.size(); ++i) {
    RunLayer(static_cast<int64_t>(i), weights_->layers[i], i == 0, step.observer);
  }
  FinishNorm(weights_->norm);
  return Logits(step, weights_->head);
}

// The hidden states of the last step stand in buffers_.hidden.
absl::Status Model::Draft(int block, const StepInput& step) {
  if (limits_.max_draft_tokens == 0) {
    return FailedPrecondition("draft block {}: none was loaded, since max_draft_tokens is 0", block);
  }
  if (block < 0 || block >= static_cast<int>(weights_->mtp.size())) {
    return Unimplemented("draft block {}; the checkpoint has {}", block, weights_->mtp.size());
  }
  HADAL_RETURN_IF_ERROR(CheckStep(step, config_, limits_));
  PrepareStep(step);
  const MtpWeights& mtp = weights_->mtp[block];
  if (!rows_.source_rows.empty()) ops_->GatherRows(step_.hidden, rows_.source_rows, step_.hidden);
  ops_->Embed(rows_.batch, weights_->embed, 1, step_.x);
  ops_->MtpNorm({step_.x, step_.hidden, mtp.enorm, mtp.hnorm, static_cast<float>(config_.rms_norm_eps), rows_.batch,
                 step_.draft_in});
  ops_->Linear(step_.draft_in, std::array{LinearTarget{&mtp.eh_proj, step_.residual, InputQuant::kNone}});
  const int64_t layer = config_.num_hidden_layers + block;
  ObserveStreams(layer - 1, false, step.observer);
  RunLayer(layer, mtp.layer, true, step.observer);
  FinishNorm(mtp.norm);
  return Logits(step, mtp.head);
}

void Model::ObserveStreams(int64_t layer, bool with_output, StepObserver* observer) {
  if (observer == nullptr) return;
  const ops::Tensor& from = step_.residual;
  const int64_t bytes = DTypeBytes(from.dtype, from.rows * from.cols);
  // The sum of both is made by an operator, in a buffer that the next layer fills anew.
  ops::Tensor sum = step_.hidden;
  ops_->memory().Copy(sum.data, from.data, static_cast<size_t>(bytes));
  if (with_output) ops_->Add(sum, step_.y);
  HostView<std::byte> view(ops_->memory(), static_cast<std::byte*>(sum.data), bytes);
  observer->OnStreams(static_cast<int>(layer), ops::MakeTensor(view.data(), from.dtype, from.rows, from.cols));
}

void Model::RunLayer(int64_t index, const LayerWeights& layer, bool first, StepObserver* observer) {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  if (first) {
    ops_->RmsNorm(step_.residual, layer.input_norm, eps, step_.x);
  } else {
    ops_->AddRmsNorm({step_.y, step_.residual, layer.input_norm, eps, step_.x});
  }
  Attention(index, layer, observer);
  ops_->AddRmsNorm({step_.y, step_.residual, layer.post_norm, eps, step_.x});
  FeedForward(index, layer, observer);
  ObserveStreams(index, true, observer);
}

void Model::Attention(int64_t index, const LayerWeights& layer, StepObserver* observer) {
  const AttentionWeights& attn = layer.attn;
  const LayerCache& cache = cache_->layer(index);
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const ops::RopeAngles rope = {step_.cos, step_.sin, config_.qk_rope_head_dim / 2};
  const std::array<LinearTarget, 4> inputs = {
      LinearTarget{&attn.q_a, step_.q_latent, input_quant_}, LinearTarget{&attn.kv_a, step_.kv, input_quant_},
      LinearTarget{&attn.indexer.wk, step_.index_k, input_quant_},
      LinearTarget{&attn.indexer.weights_proj, step_.index_weights, InputQuant::kNone}};
  ops_->Linear(step_.x, {inputs.data(), layer.has_indexer ? size_t{4} : size_t{2}});
  ops_->RmsNorm(step_.q_latent, attn.q_norm, eps, step_.q_latent);
  const std::array<LinearTarget, 2> queries = {LinearTarget{&attn.q_b, step_.q, input_quant_},
                                               LinearTarget{&attn.indexer.wq_b, step_.index_q, input_quant_}};
  ops_->Linear(step_.q_latent, {queries.data(), layer.has_indexer ? size_t{2} : size_t{1}});
  ops_->KvNormRopeStore({step_.kv, attn.kv_norm, eps, rope, rows_.batch, cache.latent, false});
  if (layer.has_indexer) ChooseRows(index, layer, cache, observer);

  for (const auto& [first, count, expanded] : segments_) {
    if (expanded) {
      AttendExpanded(attn, cache, first, count);
    } else {
      AttendAbsorbed(attn, cache, first, count);
    }
  }
  ops_->Linear(step_.heads_out, std::array{LinearTarget{&attn.o, step_.y, input_quant_}});
}

void Model::CutSegments(const StepInput& step) {
  const auto tokens = static_cast<int64_t>(step.ids.size());
  segments_.clear();
  const int64_t most = MostExpanded(config_, limits_);
  const auto add = [&](int64_t first, int64_t count, bool expanded) {
    if (count == 0) return;
    if (!expanded && !segments_.empty() && !segments_.back().expanded) {
      segments_.back().count += count;
    } else {
      segments_.push_back({first, count, expanded});
    }
  };
  if (most == 0) return add(0, tokens, false);
  for (int64_t first = 0, end = 0; first < tokens; first = end) {
    // Neighbouring rows of a sequence; those in front that see no more than can be expanded.
    const int32_t position = step.positions[first];
    for (end = first + 1;
         end < tokens && step.seqs[end] == step.seqs[first] && step.positions[end] == position + (end - first);) {
      ++end;
    }
    const int64_t short_rows = std::clamp<int64_t>(most - position, 0, end - first);
    const bool expanded = short_rows >= limits_.expand_rows;
    add(first, short_rows, expanded);
    add(first + short_rows, end - first - short_rows, false);
  }
}

// Queries in the space of the latents: the absorbed part, then the rotary one.
void Model::AttendAbsorbed(const AttentionWeights& attn, const LayerCache& cache, int64_t first, int64_t count) {
  const int64_t heads = config_.num_attention_heads, half = config_.qk_rope_head_dim / 2;
  const int64_t query_dim = config_.qk_nope_head_dim + config_.qk_rope_head_dim;
  const int64_t row_dim = config_.kv_lora_rank + config_.qk_rope_head_dim;
  const ops::RopeAngles rope = {step_.cos + first * half, step_.sin + first * half, half};
  const ops::Tensor q = RowsOf(step_.q, first, count), absorbed = RowsOf(step_.absorbed, first, count);
  const ops::Tensor latent_out = RowsOf(step_.latent_out, first, count);
  ops_->GroupedLinear({q, &attn.key_up, heads, absorbed, query_dim, row_dim});
  ops_->RopeTail({q, heads, query_dim, rope, absorbed, row_dim});
  ops::SparseAttentionArgs args;
  args.q = absorbed;
  args.heads = heads;
  args.head_dim = row_dim;
  args.value_dim = config_.kv_lora_rank;
  args.softmax_scale = softmax_scale_;
  args.round_probabilities = true;
  args.batch = RowsOf(rows_.batch, first, count);
  args.compressed = cache.latent;
  args.ratio = 1;
  args.topk = config_.index_topk > 0 ? step_.topk + first * config_.index_topk : nullptr;
  args.topk_stride = config_.index_topk;
  args.out = latent_out;
  ops_->SparseAttention(args);
  ops_->GroupedLinear({latent_out, &attn.value_up, heads, RowsOf(step_.heads_out, first, count)});
}

void Model::AttendExpanded(const AttentionWeights& attn, const LayerCache& cache, int64_t first, int64_t count) {
  const int64_t heads = config_.num_attention_heads, half = config_.qk_rope_head_dim / 2;
  const ops::Tensor q = RowsOf(step_.q, first, count);
  ops_->QNormRope({q,
                   heads,
                   config_.qk_nope_head_dim + config_.qk_rope_head_dim,
                   false,
                   0,
                   {step_.cos + first * half, step_.sin + first * half, half}});
  ops::ExpandedAttentionArgs args;
  args.q = q;
  args.heads = heads;
  args.value_dim = config_.v_head_dim;
  args.kv_b = &attn.kv_b;
  args.quant = attn.kv_b.dtype == DType::kBF16 ? InputQuant::kNone : input_quant_;
  args.softmax_scale = softmax_scale_;
  args.batch = RowsOf(rows_.batch, first, count);
  args.latent = cache.latent;
  args.out = RowsOf(step_.heads_out, first, count);
  args.round_probabilities = true;
  ops_->ExpandedAttention(args);
}

// Keys are stored whether or not there is anything to choose from yet (spec 3.6, top-k contract 1).
void Model::ChooseRows(int64_t index, const LayerWeights& layer, const LayerCache& cache, StepObserver* observer) {
  const ops::RopeAngles rope = {step_.cos, step_.sin, config_.qk_rope_head_dim / 2};
  const IndexerWeights& indexer = layer.attn.indexer;
  ops_->IndexerKeyStore(
      {step_.index_k, indexer.k_norm, indexer.k_bias, kLayerNormEps, rope, rows_.batch, cache.index_keys});
  ops_->IndexerQuery({step_.index_q, config_.index_n_heads, config_.index_head_dim, rope, ops::IndexerStyle::kV32});
  ops::IndexerTopkArgs args;
  args.q = step_.index_q;
  args.weights = step_.index_weights;
  args.heads = config_.index_n_heads;
  args.head_dim = config_.index_head_dim;
  args.ratio = 1;
  args.top_k = config_.index_topk;
  args.batch = rows_.batch;
  args.keys = cache.index_keys;
  args.out = step_.topk;
  args.style = ops::IndexerStyle::kV32;
  if (observer != nullptr) {
    args.scores_stride = limits_.max_context;
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

void Model::FeedForward(int64_t index, const LayerWeights& layer, StepObserver* observer) {
  ops::MoeExpertsArgs experts;
  experts.x = step_.x;
  experts.weigh_outputs = true;
  experts.quant = input_quant_;
  experts.out = step_.y;
  if (!layer.is_moe) {
    experts.shared = &layer.dense;
    ops_->MoeExperts(experts);
    return;
  }
  ops_->Linear(step_.x, std::array{LinearTarget{&layer.gate, step_.gate_logits, InputQuant::kNone}});
  ops::MoeRouteArgs route;
  route.logits = step_.gate_logits;
  route.bias = layer.bias;
  route.experts_per_token = config_.num_experts_per_tok;
  route.scale = static_cast<float>(config_.routed_scaling_factor);
  route.scores = config_.scoring_func == checkpoint::ScoringFunc::kSigmoid ? ops::RouterScores::kSigmoid
                                                                           : ops::RouterScores::kSqrtSoftplus;
  route.groups = config_.n_group;
  route.topk_groups = config_.topk_group;
  route.normalise = config_.norm_topk_prob;
  route.batch = rows_.batch;
  route.experts = step_.experts;
  route.weights = step_.expert_weights;
  ops_->MoeRoute(route);
  if (observer != nullptr) ObserveRoute(static_cast<int>(index), route, ops_->memory(), observer);
  experts.experts = step_.experts;
  experts.weights = step_.expert_weights;
  experts.experts_per_token = config_.num_experts_per_tok;
  experts.routed = layer.experts;
  experts.shared = &layer.shared;
  ops_->MoeExperts(experts);
}

void Model::FinishNorm(const ops::Vector& norm) {
  ops_->AddRmsNorm({step_.y, step_.residual, norm, static_cast<float>(config_.rms_norm_eps), step_.hidden});
}

absl::Status Model::Logits(const StepInput& step, const ops::LinearWeight& head) {
  if (step.logit_rows.empty()) return ops_->Synchronize();
  ops::Tensor z = step_.head_in;
  z.rows = static_cast<int64_t>(step.logit_rows.size());
  ops_->GatherRows(step_.hidden, rows_.logit_rows, z);
  return HeadLogits(*ops_, z, head, step_.logits, step.logits);
}

}  // namespace hadal::models::deepseek_v32
