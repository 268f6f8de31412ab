// The per-sequence state of a V3.2 model (spec deepseek-v32 6): latent rows and indexer keys of every layer, in one
// pool of slabs with one table a sequence. Every row is addressed by its position; a draft that did not hold is written
// again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"
#include "models/block_tables.h"
#include "models/deepseek_v32/common/traits.h"
#include "models/kv_layout.h"
#include "models/model.h"
#include "ops/memory.h"
#include "ops/tensor.h"

namespace hadal::models::deepseek_v32 {

struct LayerCache {
  ops::PagedRows latent;      // [Rkv + rope]
  ops::PagedRows index_keys;  // [Di]; layers with an indexer
};

class Cache {
 public:
  // InvalidArgument for a dtype that `act` or the platform excludes, a block size that does not hold whole blocks of
  // its kernels, and fp8 rows of a model whose latents are not made for them.
  static absl::Status Check(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act,
                            const Traits& traits);
  // Groups and sizes, before anything is reserved. These take limits as Resolve leaves them.
  static KvLayout Layout(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act);
  // Bytes that Create would reserve.
  static size_t Bytes(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act);
  static absl::StatusOr<std::unique_ptr<Cache>> Create(const checkpoint::ModelConfig& config, const ModelLimits& limits,
                                                       DType act, ops::Memory& memory);
  // What kv_cache_dtype auto means.
  static ModelLimits Resolve(ModelLimits limits, DType act, const Traits& traits);

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

}  // namespace hadal::models::deepseek_v32
