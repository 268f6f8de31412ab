// What the models of all families do with a step's rows.
#pragma once

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "models/model.h"
#include "ops/ops.h"

namespace hadal::models {

// InvalidArgument, naming the row, if ids, positions, sequences or sizes are outside the limits.
absl::Status CheckStep(const StepInput& step, const checkpoint::ModelConfig& config, const ModelLimits& limits);

// host = z * head^T, f32 [z.rows, V], and waits for the step. `logits` (f32, at least as many rows) takes them where
// operators cannot write to the host.
absl::Status HeadLogits(ops::Ops& ops, const ops::Tensor& z, const ops::LinearWeight& head, const ops::Tensor& logits,
                        float* host);

// StepObserver::OnRoute with what `route` wrote; what the observer changes is written back.
void ObserveRoute(int layer, const ops::MoeRouteArgs& route, ops::Memory& memory, StepObserver* observer);

// Room for `count` scores of an observed step; null when there is none. `buffer` keeps it.
float* ScoresForObserver(int64_t count, ops::Memory& memory, ops::Buffer* buffer);

}  // namespace hadal::models
