// The per-sequence state of a V4 model (spec deepseek-v4-text 3.11, deepseek-v4-vision-and-cache 6): window KV,
// compressed KV, indexer keys and the compressors' running state, in one pool of slabs.
//
// Every row is addressed by its position, through the tables of its group, and what a row may read follows from its
// position alone. So nothing has to be rolled back when a draft does not hold: its rows are written again. A step
// writes all its rows before anything reads them; a table's ring is long enough for the longest step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"
#include "models/block_tables.h"
#include "models/kv_layout.h"
#include "models/model.h"
#include "ops/memory.h"
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
  // InvalidArgument for a dtype that `act` excludes, or a block size that is no multiple of 128.
  static absl::Status Check(const ModelLimits& limits, DType act);
  // Groups and sizes, before anything is reserved.
  static KvLayout Layout(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act);
  // Bytes that Create would reserve.
  static size_t Bytes(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act);
  // `memory` outlives the cache.
  static absl::StatusOr<std::unique_ptr<Cache>> Create(const checkpoint::ModelConfig& config, const ModelLimits& limits,
                                                       DType act, ops::Memory& memory);

  const KvLayout& layout() const { return layout_; }
  BlockTables& tables() { return tables_; }
  std::byte* slab(int32_t number) const { return memory_.data() + number * layout_.slab_bytes; }
  // Main layers, then MTP blocks.
  const LayerCache& layer(int64_t i) const { return layers_[i]; }

 private:
  Cache() = default;

  KvLayout layout_;
  std::vector<LayerCache> layers_;
  BlockTables tables_;
  ops::Buffer memory_;
};

}  // namespace hadal::models::deepseek_v4
