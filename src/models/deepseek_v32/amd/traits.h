// AMD: kernels of blocks of 16 and 32 positions, of which 16 divides both; rows of bf16 are as good as packed ones
// (spec deepseek-v32 4.5).
#pragma once

#include "models/deepseek_v32/common/traits.h"

namespace hadal::models::deepseek_v32::amd {

inline constexpr Traits kTraits = {.kernel_block = 16, .fp8_rows_by_default = false};

}  // namespace hadal::models::deepseek_v32::amd
