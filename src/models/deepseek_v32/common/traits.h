// What a platform's kernels ask of the cache of a V3.2 model (spec deepseek-v32 4.5).
#pragma once

#include <cstdint>

namespace hadal::models::deepseek_v32 {

struct Traits {
  // Positions of the blocks that its attention and indexer kernels read: a block of the cache holds whole ones.
  int64_t kernel_block = 16;
  // fp8_ds_mla rows are what the attention kernel reads; rows of bf16 are refused, and auto means fp8.
  bool needs_fp8_rows = false;
};

inline constexpr Traits kPlainTraits = {};

}  // namespace hadal::models::deepseek_v32
