// Lays out the buffers of one step.
#pragma once

#include <cstddef>

#include "models/deepseek_v4/common/model.h"

namespace hadal::models::deepseek_v4 {

// Fills `out` with buffers from `base` on (null only counts) for limits.max_batch_tokens rows; returns the bytes used.
// `device`: operators cannot write to the host's logits.
size_t CarveStepBuffers(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act, bool device,
                        std::byte* base, StepBuffers& out);

// The same buffers with their row count set to `tokens`.
StepBuffers CutToRows(const StepBuffers& buffers, int64_t tokens, int64_t hc);

// Bounds for the platform's own scratch.
ops::WorkspaceSpec WorkspaceFor(const checkpoint::ModelConfig& config, const ModelLimits& limits);

}  // namespace hadal::models::deepseek_v4
