#include "models/deepseek_v4/common/module_weights.h"

#include <optional>

#include "base/status.h"

namespace hadal::models::deepseek_v4 {

absl::StatusOr<std::unique_ptr<ModuleWeights>> ModuleWeights::Create(const checkpoint::WeightSource& files,
                                                                     checkpoint::WeightMapRules text_rules,
                                                                     bool finalizes_during_load) {
  HADAL_ASSIGN_OR_RETURN(checkpoint::WeightMap map, checkpoint::WeightMap::Create(std::move(text_rules)));
  return std::unique_ptr<ModuleWeights>(new ModuleWeights(files, std::move(map), finalizes_during_load));
}

absl::Status ModuleWeights::LoadWeights(TensorStream next) {
  while (true) {
    HADAL_ASSIGN_OR_RETURN(const MappedTensor* tensor, next());
    if (tensor == nullptr) return absl::OkStatus();
    const bool added = loaded_.emplace(std::pair(tensor->name, tensor->shard), tensor->entry).second;
    if (!added) return InvalidArgument("two tensors mean module {} shard {}", tensor->name, tensor->shard);
  }
}

const checkpoint::TensorEntry* ModuleWeights::Find(std::string_view name) const {
  if (name.starts_with("mtp.")) return files_.Find(name);
  const absl::StatusOr<std::optional<checkpoint::MappedName>> mapped = map_.Apply(name);
  if (!mapped.ok() || !mapped->has_value()) return nullptr;
  const auto it = loaded_.find({(*mapped)->name, (*mapped)->shard.value_or(-1)});
  return it == loaded_.end() ? nullptr : it->second;
}

}  // namespace hadal::models::deepseek_v4
