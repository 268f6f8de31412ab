// Weights of the vision tower, the aligner and the learned vectors (spec deepseek-v4-vision-and-cache 1.3).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"
#include "models/weight_loading.h"
#include "models/weight_store.h"
#include "ops/tensor.h"

namespace hadal::models::deepseek_v4 {

struct VisionBlockWeights {
  ops::Vector norm1, norm2;        // [dim]
  ops::LinearWeight wqkv, wo;      // [3*dim, dim], [dim, dim]
  ops::Vector wqkv_bias, wo_bias;  // [3*dim], [dim]
  ops::LinearWeight w1, w2;        // [2*inter, dim] gate then up, [dim, inter]
};

struct VisionWeights {
  ops::LinearWeight patch_embed;  // [dim, 3*p*p]
  ops::Vector patch_embed_bias;
  std::vector<VisionBlockWeights> blocks;
  ops::Vector norm;
  ops::LinearWeight aligner_w1, aligner_w2;  // [hidden, dim*r*r], [hidden, hidden]
  ops::Vector aligner_w1_bias, aligner_w2_bias;
  std::vector<float> start, pad, newline, end;  // [hidden]
};

// Takes the vision part's tensors as they are loaded, and binds them.
class VisionWeightTarget final : public WeightTarget {
 public:
  bool finalizes_during_load() const override { return false; }
  absl::Status LoadWeights(TensorStream next) override;
  absl::Status ProcessWeightsAfterLoading() override { return absl::OkStatus(); }

  // NotFound naming the tensor that is missing. BF16 and F32 are used as they are, F16 is converted. Weights lie where
  // `store` puts them, which outlives them; the learned vectors are the host's.
  absl::StatusOr<VisionWeights> Bind(const checkpoint::ModelConfig& config, WeightStore& store);

 private:
  std::map<std::string, const checkpoint::TensorEntry*, std::less<>> tensors_;
  std::vector<std::vector<float>> converted_;  // F16 tensors; outlives the weights with this object
};

}  // namespace hadal::models::deepseek_v4
