// NVIDIA: the sparse attention kernel and the indexer page through 64 positions, and read packed rows (spec
// deepseek-v32 3.7, 4.5).
#pragma once

#include "models/deepseek_v32/common/traits.h"

namespace hadal::models::deepseek_v32::nvidia {

inline constexpr Traits kTraits = {.kernel_block = 64, .fp8_rows_by_default = true};

}  // namespace hadal::models::deepseek_v32::nvidia
