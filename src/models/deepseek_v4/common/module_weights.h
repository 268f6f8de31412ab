// Weights as the loader hands them to the text model, under the names of its modules, found again by published name.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "checkpoint/tensor_entry.h"
#include "checkpoint/weight_map.h"
#include "models/weight_loading.h"

namespace hadal::models::deepseek_v4 {

class ModuleWeights final : public checkpoint::WeightSource, public WeightTarget {
 public:
  // `files` has the configuration, and the draft blocks, which the text model's map drops: they are loaded from the
  // same files by whoever drafts. `text_rules` map published names to module names. `files` must outlive this.
  static absl::StatusOr<std::unique_ptr<ModuleWeights>> Create(const checkpoint::WeightSource& files,
                                                               checkpoint::WeightMapRules text_rules,
                                                               bool finalizes_during_load = true);

  bool finalizes_during_load() const override { return finalizes_during_load_; }
  absl::Status LoadWeights(TensorStream next) override;
  absl::Status ProcessWeightsAfterLoading() override { return absl::OkStatus(); }

  const checkpoint::ModelConfig& config() const override { return files_.config(); }
  const std::vector<checkpoint::TensorEntry>& tensors() const override { return files_.tensors(); }
  const checkpoint::TensorEntry* Find(std::string_view name) const override;

 private:
  ModuleWeights(const checkpoint::WeightSource& files, checkpoint::WeightMap map, bool finalizes_during_load)
      : files_(files), map_(std::move(map)), finalizes_during_load_(finalizes_during_load) {}

  const checkpoint::WeightSource& files_;
  checkpoint::WeightMap map_;
  bool finalizes_during_load_;
  std::map<std::pair<std::string, int>, const checkpoint::TensorEntry*> loaded_;
};

}  // namespace hadal::models::deepseek_v4
