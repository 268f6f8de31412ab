// How weights reach a model that consists of a language model and a vision part (spec
// deepseek-v4-vision-and-cache 7.2).
//
// The files' tensors are mapped to module names once and handed to the part that their first component names. A
// language model that finalizes its weights (repacks them) while loading is called exactly once, with everything that
// belongs to it; one that finalizes later may be called several times and is finalized by ProcessWeightsAfterLoading,
// once however often that is called. A part pulls tensors one by one; each is mapped only when it is asked for.
#pragma once

#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "checkpoint/tensor_entry.h"
#include "checkpoint/weight_map.h"

namespace hadal::models {

struct MappedTensor {
  std::string name;  // of the module, below its part
  int shard = -1;    // of a stacked module; -1: not stacked
  const checkpoint::TensorEntry* entry = nullptr;
};

// The next tensor, valid until the next call; null at the end.
using TensorStream = absl::FunctionRef<absl::StatusOr<const MappedTensor*>()>;

class WeightTarget {
 public:
  virtual ~WeightTarget() = default;
  virtual bool finalizes_during_load() const = 0;
  virtual absl::Status LoadWeights(TensorStream next) = 0;
  virtual absl::Status ProcessWeightsAfterLoading() = 0;
};

class PartLoader {
 public:
  // `vision` takes what is not the language model's and does not finalize. Both outlive the loader. InvalidArgument as
  // WeightMap::Create.
  static absl::StatusOr<PartLoader> Create(checkpoint::WeightMapRules rules, WeightTarget* language,
                                           WeightTarget* vision);

  // Maps and hands out `tensors` in their order. FailedPrecondition if a name is mapped already.
  absl::Status Load(std::span<const checkpoint::TensorEntry> tensors);
  // For loaders of any kind to call at the end, those that never call Load (dummy weights) included.
  absl::Status ProcessWeightsAfterLoading();

 private:
  PartLoader(checkpoint::WeightMap map, WeightTarget* language, WeightTarget* vision)
      : map_(std::move(map)), language_(language), vision_(vision) {}

  enum class Part { kDropped, kLanguage, kVision };
  absl::StatusOr<Part> Map(const checkpoint::TensorEntry& entry, MappedTensor* out) const;
  // All tensors of one part, as one group.
  absl::Status LoadPart(std::span<const checkpoint::TensorEntry> tensors, Part part, WeightTarget* target);
  // Runs of neighbours that belong to the same part, a group each.
  absl::Status LoadRuns(std::span<const checkpoint::TensorEntry> tensors);

  checkpoint::WeightMap map_;
  WeightTarget* language_;
  WeightTarget* vision_;
  bool finalized_ = false;
};

}  // namespace hadal::models
