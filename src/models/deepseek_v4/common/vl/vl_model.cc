#include "models/deepseek_v4/common/vl/vl_model.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/float_formats.h"
#include "base/status.h"
#include "checkpoint/weight_map.h"
#include "models/deepseek_v4/common/module_weights.h"
#include "models/weight_loading.h"

namespace hadal::models::deepseek_v4 {
namespace {

constexpr int64_t kImageTokenKinds = 5;

void StoreAct(const std::vector<float>& values, DType act, std::byte* out) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (act == DType::kF32) {
      std::memcpy(out + 4 * i, &values[i], 4);
    } else {
      const uint16_t bits = ToBFloat16(values[i]).bits;
      std::memcpy(out + 2 * i, &bits, 2);
    }
  }
}

}  // namespace

ModelMemory VlModel::Plan(const checkpoint::ModelConfig& config, const ops::Ops& ops, const ModelLimits& limits) {
  ModelMemory memory = deepseek_v4::Model::Plan(config, ops, limits);
  if (limits.images) memory.scratch += VisionTower::Bytes(config, ops.act());
  return memory;
}

absl::StatusOr<std::unique_ptr<VlModel>> VlModel::Create(const checkpoint::WeightSource& weights,
                                                         std::unique_ptr<ops::Ops> ops, const ModelLimits& limits,
                                                         const VlShim& shim) {
  std::unique_ptr<VlModel> model(new VlModel());
  const checkpoint::WeightMapRules text_rules = shim.text_rules(weights.config().expert_dtype);
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<ModuleWeights> text,
                         ModuleWeights::Create(weights, text_rules, shim.finalizes_during_load));
  HADAL_ASSIGN_OR_RETURN(PartLoader loader, PartLoader::Create(checkpoint::V4VisionRules(text_rules, limits.images),
                                                               text.get(), &model->vision_));
  HADAL_RETURN_IF_ERROR(loader.Load(weights.tensors()));
  HADAL_RETURN_IF_ERROR(loader.ProcessWeightsAfterLoading());
  HADAL_ASSIGN_OR_RETURN(model->text_, deepseek_v4::Model::Create(*text, std::move(ops), limits));
  if (!limits.images) return model;

  ops::Ops& shared = model->text_->ops();
  model->store_ = std::make_unique<WeightStore>(shared.memory());
  HADAL_ASSIGN_OR_RETURN(VisionWeights vision, model->vision_.Bind(weights.config(), *model->store_));
  const int64_t row_bytes = DTypeBytes(shared.act(), weights.config().hidden_size);
  HADAL_ASSIGN_OR_RETURN(model->vectors_, MemoryRegion::Map(4 * row_bytes, "the learned image vectors"));
  std::array<const void*, 4> rows;
  const std::vector<float>* values[] = {&vision.start, &vision.pad, &vision.newline, &vision.end};
  for (int i = 0; i < 4; ++i) {
    std::byte* row = model->vectors_.data() + i * row_bytes;
    StoreAct(*values[i], shared.act(), row);
    rows[i] = row;
  }
  // Ids in their order: start, pad, image, newline, end. An image token without an embedding of its own takes the
  // pad's.
  model->of_kind_ = {rows[0], rows[1], rows[1], rows[2], rows[3]};
  model->merged_.resize(limits.max_batch_tokens);
  HADAL_ASSIGN_OR_RETURN(model->tower_,
                         VisionTower::Create(weights.config(), std::move(vision), &shared, limits.max_batch_tokens));
  return model;
}

StepInput VlModel::Merge(const StepInput& step) {
  const int32_t first = limits().image_first_id;
  const size_t tokens = step.ids.size();
  if (tower_ == nullptr || first <= 0 || tokens > merged_.size()) return step;
  if (!step.embeddings.empty() && step.embeddings.size() != tokens) return step;  // the text model says so
  bool any = false;
  for (size_t t = 0; t < tokens; ++t) {
    merged_[t] = step.embeddings.empty() ? nullptr : step.embeddings[t];
    const int64_t kind = static_cast<int64_t>(step.ids[t]) - first;
    if (merged_[t] == nullptr && kind >= 0 && kind < kImageTokenKinds) merged_[t] = of_kind_[kind];
    any = any || merged_[t] != nullptr;
  }
  StepInput merged = step;
  merged.embeddings = any ? std::span<const void* const>(merged_).first(tokens) : std::span<const void* const>();
  return merged;
}

absl::Status VlModel::Forward(const StepInput& step) { return text_->Forward(Merge(step)); }
absl::Status VlModel::Draft(int block, const StepInput& step) { return text_->Draft(block, Merge(step)); }

absl::Status VlModel::EncodeImage(const ImagePatches& image, ops::Tensor out) {
  if (tower_ == nullptr) return models::Model::EncodeImage(image, out);
  return tower_->Encode(image, out);
}

}  // namespace hadal::models::deepseek_v4
