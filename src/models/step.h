// What the models of all families do with a step's rows.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "models/model.h"
#include "ops/tensor.h"

namespace hadal::models {

// InvalidArgument, naming the row, if ids, positions, sequences or sizes are outside the limits.
absl::Status CheckStep(const StepInput& step, const checkpoint::ModelConfig& config, const ModelLimits& limits);

// Row i of `states` becomes row rows[i], ascending (StepInput::source_rows); empty: nothing moves.
void GatherRows(std::span<const int32_t> rows, const ops::Tensor& states);

}  // namespace hadal::models
