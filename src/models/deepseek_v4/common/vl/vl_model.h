// V4 Vision: the text model with a vision tower in front of it, the same for every platform (spec
// deepseek-v4-vision-and-cache 1.2, 4.1).
//
// Image rows of a step carry their embedding; the learned vectors of the other image tokens are put in here. Raw ids go
// on to the text model beside the embeddings, since routing depends on them.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/memory_region.h"
#include "checkpoint/tensor_entry.h"
#include "models/deepseek_v4/common/model.h"
#include "models/deepseek_v4/common/vl/vision_tower.h"
#include "models/deepseek_v4/common/vl/vision_weights.h"
#include "models/deepseek_v4/common/vl/vl_shim.h"
#include "models/model.h"
#include "models/weight_store.h"

namespace hadal::models::deepseek_v4 {

class VlModel final : public models::Model {
 public:
  static absl::StatusOr<std::unique_ptr<VlModel>> Create(const checkpoint::WeightSource& weights,
                                                         std::unique_ptr<ops::Ops> ops, const ModelLimits& limits,
                                                         const VlShim& shim = kPlainShim);
  static ModelMemory Plan(const checkpoint::ModelConfig& config, const ops::Ops& ops, const ModelLimits& limits);

  const checkpoint::ModelConfig& config() const override { return text_->config(); }
  const ModelLimits& limits() const override { return text_->limits(); }
  ModelMemory memory() const override { return Plan(text_->config(), text_->ops(), text_->limits()); }
  ops::Ops& ops() override { return text_->ops(); }
  const KvLayout& kv_layout() const override { return text_->kv_layout(); }
  std::span<int32_t> BlockTable(int64_t group, int32_t seq) override { return text_->BlockTable(group, seq); }
  void ReadSlab(int32_t slab, std::byte* to, int64_t bytes) override { text_->ReadSlab(slab, to, bytes); }
  void WriteSlab(int32_t slab, const std::byte* from, int64_t bytes) override { text_->WriteSlab(slab, from, bytes); }

  absl::Status Forward(const StepInput& step) override;
  absl::Status Draft(int block, const StepInput& step) override;
  absl::Status EncodeImage(const ImagePatches& image, ops::Tensor out) override;

 private:
  VlModel() = default;

  // `step` with the learned vectors of its image tokens among its embeddings.
  StepInput Merge(const StepInput& step);

  std::unique_ptr<models::Model> text_;
  VisionWeightTarget vision_;  // keeps converted weights
  std::unique_ptr<WeightStore> store_;
  std::unique_ptr<VisionTower> tower_;
  MemoryRegion vectors_;              // [4, hidden] act: start, pad, newline, end
  std::vector<const void*> of_kind_;  // of the five kinds of image tokens
  std::vector<const void*> merged_;   // [max_batch_tokens]
};

}  // namespace hadal::models::deepseek_v4
