// The forward pass of DeepSeek V3.2, V3 and R1, written once for all platforms as calls to ops::Ops (spec deepseek-v32
// 3 and 5).
//
// Attention runs in its absorbed form over latent rows, in prefill as in decode: a row then has the same bits whether
// it was computed in a prompt or as an answer (spec 3.5; docs/numerics.md). With ModelLimits::expand_rows the rows of
// longer chunks attend in the MHA form instead.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/tensor_entry.h"
#include "models/deepseek_v32/common/cache.h"
#include "models/deepseek_v32/common/weights.h"
#include "models/model.h"
#include "models/step_staging.h"
#include "models/weight_store.h"

namespace hadal::models::deepseek_v32 {

// Softmax scale of attention: (nope + rope)^-1/2, times the square of YaRN's 0.1*mscale_all_dim*ln(factor) + 1 (spec
// 3.4).
float SoftmaxScale(const checkpoint::ModelConfig& config);

// Buffers of one step.
struct StepBuffers {
  ops::Tensor residual;             // [T, d]
  ops::Tensor x;                    // [T, d] input of a sub-block
  ops::Tensor y;                    // [T, d] its output
  ops::Tensor hidden;               // [T, d] behind the last norm: what heads and MTP blocks read
  ops::Tensor draft_in;             // [T, 2*d]; with MTP
  ops::Tensor q_latent;             // [T, Rq]
  ops::Tensor q;                    // [T, H*(nope + rope)]
  ops::Tensor absorbed;             // [T, H*(Rkv + rope)]
  ops::Tensor kv;                   // [T, Rkv + rope]
  ops::Tensor latent_out;           // [T, H*Rkv]
  ops::Tensor heads_out;            // [T, H*v]
  ops::Tensor index_q;              // [T, Hi*Di]
  ops::Tensor index_k;              // [T, Di]
  ops::Tensor index_weights;        // f32 [T, Hi]
  int32_t* topk = nullptr;          // [T, Kt]; layers without an indexer read the last choice
  ops::Tensor gate_logits;          // f32 [T, E]
  int32_t* experts = nullptr;       // [T, k]
  float* expert_weights = nullptr;  // [T, k]
  float* cos = nullptr;             // [T, rope/2]
  float* sin = nullptr;             // [T, rope/2]
  ops::Tensor head_in;              // [R, d]
  ops::Tensor logits;               // f32 [R, V]; where the host cannot be written to
};

class Model final : public models::Model {
 public:
  static absl::StatusOr<std::unique_ptr<Model>> Create(const checkpoint::WeightSource& weights,
                                                       std::unique_ptr<ops::Ops> ops, const ModelLimits& wanted,
                                                       const Traits& traits = kPlainTraits);
  // What Create would reserve beside the weights; the split kv_b counts as scratch. Without max_draft_tokens neither
  // has room for MTP blocks, and a model has none (spec 2, rule c).
  static ModelMemory Plan(const checkpoint::ModelConfig& config, const ops::Ops& ops, const ModelLimits& wanted,
                          const Traits& traits = kPlainTraits);

  const checkpoint::ModelConfig& config() const override { return config_; }
  const ModelLimits& limits() const override { return limits_; }
  ModelMemory memory() const override { return Plan(config_, *ops_, limits_); }  // limits_ are resolved
  ops::Ops& ops() override { return *ops_; }
  const KvLayout& kv_layout() const override { return cache_->layout(); }
  std::span<int32_t> BlockTable(int64_t /*group*/, int32_t seq) override { return cache_->tables().Table(0, seq); }
  void ReadSlab(int32_t slab, std::byte* to, int64_t bytes) override {
    ops_->memory().Download(to, cache_->slab(slab), static_cast<size_t>(bytes));
  }
  void WriteSlab(int32_t slab, const std::byte* from, int64_t bytes) override {
    ops_->memory().Upload(cache_->slab(slab), from, static_cast<size_t>(bytes));
  }

  absl::Status Forward(const StepInput& step) override;
  absl::Status Draft(int block, const StepInput& step) override;

 private:
  Model(const checkpoint::ModelConfig& config, std::unique_ptr<ops::Ops> ops, const ModelLimits& limits);

  void PrepareStep(const StepInput& step);
  // The layer's sub-blocks: from `residual` (and y, unless it is the first) to residual and y.
  void RunLayer(int64_t index, const LayerWeights& layer, bool first, StepObserver* observer);
  void Attention(int64_t index, const LayerWeights& layer, StepObserver* observer);
  // The two forms, for rows [first, first + count) of the step: from q to heads_out.
  void AttendAbsorbed(const AttentionWeights& attn, const LayerCache& cache, int64_t first, int64_t count);
  void AttendExpanded(const AttentionWeights& attn, const LayerCache& cache, int64_t first, int64_t count);
  // Which rows of the step attend in which form.
  void CutSegments(const StepInput& step);
  void ChooseRows(int64_t index, const LayerWeights& layer, const LayerCache& cache, StepObserver* observer);
  void FeedForward(int64_t index, const LayerWeights& layer, StepObserver* observer);
  // hidden = RMSNorm(y + residual).
  void FinishNorm(const ops::Vector& norm);
  absl::Status Logits(const StepInput& step, const ops::LinearWeight& head);
  void ObserveStreams(int64_t layer, bool with_output, StepObserver* observer);

  checkpoint::ModelConfig config_;  // num_mtp_layers: of those that are loaded
  ModelLimits limits_;
  std::unique_ptr<ops::Ops> ops_;
  std::unique_ptr<WeightStore> store_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Cache> cache_;
  std::vector<float> freqs_;
  float softmax_scale_;
  ops::InputQuant input_quant_;
  ops::Buffer memory_;
  StepStaging staging_;
  StepBuffers buffers_;  // sized for max_batch_tokens
  StepBuffers step_;     // the same, cut to the rows of this step
  StagedRows rows_;      // of this step
  struct Segment {
    int64_t first, count;
    bool expanded;
  };
  std::vector<Segment> segments_;  // of the step's rows, in order
  // Only when a step is observed.
  ops::Buffer observed_scores_;
};

}  // namespace hadal::models::deepseek_v32
