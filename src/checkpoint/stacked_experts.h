// Experts that library re-saves store as one tensor per layer (spec deepseek-v4-text 2.5), seen as single experts.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_entry.h"

namespace hadal::checkpoint {

// If `tensor` is "<layer>.ffn.experts.gate_up_proj" [E, 2F, ...] (w1 rows first, then w3) or "....down_proj" [E, d,
// ...], or a scale of one, appends one entry per expert and matrix that points into it, and returns true.
// InvalidArgument if the shape cannot be cut so. Names are canonical already except for the stacked part.
absl::StatusOr<bool> SplitStackedExperts(ModelFamily family, const TensorEntry& tensor, std::vector<TensorEntry>* out);

}  // namespace hadal::checkpoint
