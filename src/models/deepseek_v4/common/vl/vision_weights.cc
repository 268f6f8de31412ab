#include "models/deepseek_v4/common/vl/vision_weights.h"

#include <utility>

#include "base/status.h"

namespace hadal::models::deepseek_v4 {
namespace {

using checkpoint::TensorEntry;

// The first failure sticks; later calls do nothing.
class VisionBinder {
 public:
  VisionBinder(const std::map<std::string, const TensorEntry*, std::less<>>& tensors,
               std::vector<std::vector<float>>* converted, WeightStore* store)
      : tensors_(tensors), converted_(converted), store_(store) {}

  void Linear(const std::string& name, ops::LinearWeight* out) {
    const auto [data, entry] = Data(name);
    if (entry == nullptr) return;
    out->n = entry->shape[0];
    out->k = entry->shape[1];
    out->dtype = entry->dtype == DType::kF16 ? DType::kF32 : entry->dtype;
    out->data = data;
  }
  void Vector(const std::string& name, ops::Vector* out) {
    const auto [data, entry] = Data(name);
    if (entry == nullptr) return;
    *out = {data, entry->dtype == DType::kF16 ? DType::kF32 : entry->dtype, entry->elements()};
  }
  void Floats(const std::string& name, std::vector<float>* out) {
    const TensorEntry* entry = Find(name);
    if (entry == nullptr) return;
    absl::StatusOr<std::vector<float>> values = checkpoint::ReadFloats(*entry);
    if (values.ok()) {
      *out = *std::move(values);
    } else {
      status_ = values.status();
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  const TensorEntry* Find(const std::string& name) {
    if (!status_.ok()) return nullptr;
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) status_ = NotFound("tensor \"{}\" is not in the checkpoint", name);
    return it == tensors_.end() ? nullptr : it->second;
  }
  std::pair<const void*, const TensorEntry*> Data(const std::string& name) {
    const TensorEntry* entry = Find(name);
    if (entry == nullptr) return {nullptr, nullptr};
    if (entry->dtype != DType::kF16) return Place(entry->data, DTypeBytes(entry->dtype, entry->elements()), entry);
    absl::StatusOr<std::vector<float>> values = checkpoint::ReadFloats(*entry);
    if (!values.ok()) {
      status_ = values.status();
      return {nullptr, nullptr};
    }
    const std::vector<float>& kept = converted_->emplace_back(*std::move(values));
    return Place(kept.data(), static_cast<int64_t>(kept.size() * sizeof(float)), entry);
  }
  std::pair<const void*, const TensorEntry*> Place(const void* data, int64_t bytes, const TensorEntry* entry) {
    absl::StatusOr<const void*> place = store_->Place(data, static_cast<size_t>(bytes));
    if (place.ok()) return {*place, entry};
    status_ = place.status();
    return {nullptr, nullptr};
  }

  const std::map<std::string, const TensorEntry*, std::less<>>& tensors_;
  std::vector<std::vector<float>>* converted_;
  WeightStore* store_;
  absl::Status status_;
};

}  // namespace

absl::Status VisionWeightTarget::LoadWeights(TensorStream next) {
  while (true) {
    HADAL_ASSIGN_OR_RETURN(const MappedTensor* tensor, next());
    if (tensor == nullptr) return absl::OkStatus();
    tensors_[tensor->name] = tensor->entry;
  }
}

absl::StatusOr<VisionWeights> VisionWeightTarget::Bind(const checkpoint::ModelConfig& config, WeightStore& store) {
  VisionBinder binder(tensors_, &converted_, &store);
  VisionWeights out;
  binder.Linear("vision.patch_embed.proj.weight", &out.patch_embed);
  binder.Vector("vision.patch_embed.proj.bias", &out.patch_embed_bias);
  out.blocks.resize(config.vision.n_layers);
  for (int64_t i = 0; i < config.vision.n_layers; ++i) {
    VisionBlockWeights& block = out.blocks[i];
    const std::string prefix = fmt::format("vision.blocks.{}.", i);
    binder.Vector(prefix + "norm1.weight", &block.norm1);
    binder.Vector(prefix + "norm2.weight", &block.norm2);
    binder.Linear(prefix + "attn.wqkv.weight", &block.wqkv);
    binder.Vector(prefix + "attn.wqkv.bias", &block.wqkv_bias);
    binder.Linear(prefix + "attn.wo.weight", &block.wo);
    binder.Vector(prefix + "attn.wo.bias", &block.wo_bias);
    binder.Linear(prefix + "mlp.w1.weight", &block.w1);
    binder.Linear(prefix + "mlp.w2.weight", &block.w2);
  }
  binder.Vector("vision.norm.weight", &out.norm);
  binder.Linear("aligner.w1.weight", &out.aligner_w1);
  binder.Vector("aligner.w1.bias", &out.aligner_w1_bias);
  binder.Linear("aligner.w2.weight", &out.aligner_w2);
  binder.Vector("aligner.w2.bias", &out.aligner_w2_bias);
  binder.Floats("image_start", &out.start);
  binder.Floats("image_pad", &out.pad);
  binder.Floats("image_newline", &out.newline);
  binder.Floats("image_end", &out.end);
  if (!binder.status().ok()) return binder.status();
  return out;
}

}  // namespace hadal::models::deepseek_v4
