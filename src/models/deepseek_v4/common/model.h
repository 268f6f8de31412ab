// DeepSeek V4's forward pass, written once for all platforms as calls to ops::Ops (spec deepseek-v4-text 3 and 4).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/tensor_entry.h"
#include "models/deepseek_v4/common/cache.h"
#include "models/deepseek_v4/common/weights.h"
#include "models/model.h"
#include "models/step_staging.h"
#include "models/weight_store.h"
#include "ops/combine_indices.h"

namespace hadal::models::deepseek_v4 {

// Buffers of one step.
struct StepBuffers {
  ops::Tensor streams;               // [T, hc*d]
  ops::Tensor draft_streams;         // [T, hc*d]; with MTP
  ops::Tensor draft_inputs;          // [T*hc, d]; with MTP
  ops::Tensor x;                     // [T, d] input of a sub-block
  ops::Tensor y;                     // [T, d] its output
  float* post = nullptr;             // [T, hc]
  float* comb = nullptr;             // [T, hc, hc]
  ops::Tensor q_latent;              // [T, Rq]
  ops::Tensor q;                     // [T, H*D]
  ops::Tensor attended;              // [T, H*D]
  ops::Tensor kv;                    // [T, D]
  ops::Tensor grouped;               // [T, G*Ro]
  ops::Tensor comp_kv, comp_gate;    // f32 [T, 2*D]
  ops::Tensor index_kv, index_gate;  // f32 [T, 2*Di]
  ops::Tensor index_q;               // [T, Hi*Di]
  ops::Tensor index_weights;         // [T, Hi]
  int32_t* topk = nullptr;           // [T, Kt]
  ops::Tensor gate_logits;           // f32 [T, E]
  int32_t* experts = nullptr;        // [T, k]
  float* expert_weights = nullptr;   // [T, k]
  float* rope[2][2] = {};            // [plain, compressed][cos, sin]: [T, Dr/2]
  ops::Tensor head_in;               // [R, d]
  ops::Tensor logits;                // f32 [R, V]; where the host cannot be written to
};

class Model final : public models::Model {
 public:
  static absl::StatusOr<std::unique_ptr<Model>> Create(const checkpoint::WeightSource& weights,
                                                       std::unique_ptr<ops::Ops> ops, const ModelLimits& limits);
  // What Create would reserve beside the weights.
  static ModelMemory Plan(const checkpoint::ModelConfig& config, const ops::Ops& ops, const ModelLimits& limits);

  const checkpoint::ModelConfig& config() const override { return config_; }
  const ModelLimits& limits() const override { return limits_; }
  ModelMemory memory() const override { return Plan(config_, *ops_, limits_); }
  ops::Ops& ops() override { return *ops_; }
  const KvLayout& kv_layout() const override { return cache_->layout(); }
  std::span<int32_t> BlockTable(int64_t group, int32_t seq) override { return cache_->tables().Table(group, seq); }
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

  absl::Status CheckStep(const StepInput& step) const;
  // Positions, visible window and rotary angles of the step; `spans`: image spans widen the window.
  void PrepareStep(const StepInput& step, bool spans);
  void RunLayer(int64_t index, const LayerWeights& layer, const ops::Tensor& streams, StepObserver* observer);
  void Attention(int64_t index, const LayerWeights& layer, const ops::Tensor& x, const ops::Tensor& out,
                 StepObserver* observer);
  void ObserveStreams(int layer, const ops::Tensor& streams, StepObserver* observer);
  void IndexCompressed(int64_t index, const AttentionWeights& attn, const LayerCache& cache, StepObserver* observer);
  void Moe(int64_t index, const MoeWeights& moe, const ops::Tensor& x, const ops::Tensor& out, StepObserver* observer);
  absl::Status Logits(const StepInput& step, const ops::Tensor& streams, const ops::HcWeights& hc,
                      const ops::Vector& norm);
  ops::RopeAngles Angles(int ratio) const;

  checkpoint::ModelConfig config_;
  ModelLimits limits_;
  std::unique_ptr<ops::Ops> ops_;
  std::unique_ptr<WeightStore> store_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Cache> cache_;
  std::vector<float> plain_freqs_;       // layers of ratio 0 and MTP blocks
  std::vector<float> compressed_freqs_;  // every other layer
  ops::Buffer memory_;
  StepStaging staging_;
  std::vector<int32_t> window_begin_, window_end_;  // [max_batch_tokens], of this step
  std::vector<ops::WindowRange> seq_ranges_;        // [max_seqs] positions of the window rows that exist, of this step
  StepBuffers buffers_;                             // sized for max_batch_tokens
  StepBuffers step_;                                // the same, cut to the rows of this step
  StagedRows rows_;                                 // of this step
  ops::Buffer observed_scores_;                     // only when a step is observed
};

}  // namespace hadal::models::deepseek_v4
