#include "models/deepseek_v4/common/cache.h"

#include <numeric>

#include "base/status.h"

namespace hadal::models::deepseek_v4 {
namespace {

// Rows per block of a slot map (spec deepseek-v4-vision-and-cache 6.1).
constexpr int32_t kBlockRows = 64;

int64_t BlocksFor(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

}  // namespace

size_t Cache::Carve(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act, std::byte* base) {
  size_t used = 0;
  const auto pool = [&](int64_t rows_per_seq, bool ring, DType dtype, int64_t cols) {
    const int64_t blocks = BlocksFor(rows_per_seq);
    ops::PagedRows rows;
    rows.dtype = dtype;
    rows.cols = cols;
    rows.map.block_rows = kBlockRows;
    rows.map.blocks_per_seq = blocks;
    rows.map.ring_blocks = ring ? static_cast<int32_t>(blocks) : 0;
    if (base != nullptr) {
      rows.data = base + used;
      // Sequence s owns blocks s*blocks ... (s+1)*blocks-1.
      auto table = std::make_unique<std::vector<int32_t>>(limits.max_seqs * blocks);
      std::iota(table->begin(), table->end(), 0);
      rows.map.blocks = table->data();
      tables_.push_back(std::move(table));
    }
    used += static_cast<size_t>(limits.max_seqs * blocks * kBlockRows) * DTypeBytes(dtype, cols);
    used = (used + 4095) / 4096 * 4096;
    return rows;
  };
  layers_.clear();
  const int64_t step = limits.max_batch_tokens;
  for (const int ratio : config.compress_ratios) {
    LayerCache cache;
    cache.window = pool(config.sliding_window - 1 + step, true, act, config.head_dim);
    if (ratio > 0) {
      const int64_t series = ratio == 4 ? 2 : 1;
      const int64_t state_rows = ratio * series + step;
      const int64_t windows = limits.max_context / ratio + 1;
      cache.compressed = pool(windows, false, act, config.head_dim);
      cache.state = pool(state_rows, true, DType::kF32, 2 * series * config.head_dim);
      if (ratio == 4) {
        cache.index_keys = pool(windows, false, act, config.index_head_dim);
        cache.index_state = pool(state_rows, true, DType::kF32, 2 * series * config.index_head_dim);
      }
    }
    layers_.push_back(cache);
  }
  return used;
}

size_t Cache::Bytes(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act) {
  Cache counter;
  return counter.Carve(config, limits, act, nullptr);
}

absl::StatusOr<std::unique_ptr<Cache>> Cache::Create(const checkpoint::ModelConfig& config, const ModelLimits& limits,
                                                     DType act) {
  std::unique_ptr<Cache> cache(new Cache());
  HADAL_ASSIGN_OR_RETURN(cache->memory_, MemoryRegion::Map(Bytes(config, limits, act), "the cache"));
  cache->Carve(config, limits, act, cache->memory_.data());
  return cache;
}

}  // namespace hadal::models::deepseek_v4
