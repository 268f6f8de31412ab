// What a platform's kernels ask of the cache of a V3.2 model (spec deepseek-v32 4.5).
#pragma once

#include <cstdint>

namespace hadal::models::deepseek_v32 {

struct Traits {
  // Positions of the blocks that its attention and indexer kernels read: a block of the cache holds whole ones.
  int64_t kernel_block = 16;
  // kv_cache_dtype auto means fp8_ds_mla rows; else rows of bf16, which are always to be had.
  bool fp8_rows_by_default = false;
};

inline constexpr Traits kPlainTraits = {};

}  // namespace hadal::models::deepseek_v32
