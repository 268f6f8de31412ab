// The per-sequence state of a V4 model (spec deepseek-v4-text 3.11): window KV, compressed KV, indexer keys and the
// compressors' running state, each a pool of rows addressed by position.
//
// Window rows and compressor state live in rings that are longer than any step needs, so a step writes all its rows
// before anything reads them, and nothing has to be rolled back or reset: what a row may read follows from its position
// alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/memory_region.h"
#include "checkpoint/model_config.h"
#include "models/model.h"
#include "ops/tensor.h"

namespace hadal::models::deepseek_v4 {

struct LayerCache {
  ops::PagedRows window;       // [D]
  ops::PagedRows compressed;   // [D], ratio > 0
  ops::PagedRows state;        // f32 [2*c*D], ratio > 0
  ops::PagedRows index_keys;   // [Di], ratio 4
  ops::PagedRows index_state;  // f32 [4*Di], ratio 4
};

class Cache {
 public:
  // Bytes that Create would reserve.
  static size_t Bytes(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act);
  static absl::StatusOr<std::unique_ptr<Cache>> Create(const checkpoint::ModelConfig& config, const ModelLimits& limits,
                                                       DType act);

  // Main layers, then MTP blocks.
  const LayerCache& layer(int64_t i) const { return layers_[i]; }

 private:
  Cache() = default;
  // Lays everything out from `base`; null only counts.
  size_t Carve(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act, std::byte* base);

  std::vector<LayerCache> layers_;
  std::vector<std::unique_ptr<std::vector<int32_t>>> tables_;
  MemoryRegion memory_;
};

}  // namespace hadal::models::deepseek_v4
