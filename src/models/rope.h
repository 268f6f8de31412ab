// Rotary frequencies of the DeepSeek family (spec deepseek-v4-text 3.1).
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"

namespace hadal::models {

// f_j = base^(-2j/dims) for j < dims/2, fp32.
std::vector<float> RopeFrequencies(double base, int64_t dims);

// The same blended towards f_j/factor by YaRN's ramp. No mscale: V4 scales neither cos/sin nor the softmax.
std::vector<float> YarnFrequencies(double base, int64_t dims, const checkpoint::RopeScaling& scaling);

}  // namespace hadal::models
