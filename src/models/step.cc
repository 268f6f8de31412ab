#include "models/step.h"

#include <array>

#include "base/status.h"
#include "models/step_staging.h"

namespace hadal::models {

absl::Status CheckStep(const StepInput& step, const checkpoint::ModelConfig& config, const ModelLimits& limits) {
  const auto tokens = static_cast<int64_t>(step.positions.size());
  if (tokens == 0 || tokens > limits.max_batch_tokens) {
    return InvalidArgument("a step of {} rows; expected 1 to {}", tokens, limits.max_batch_tokens);
  }
  if (step.positions.size() != step.ids.size() || step.seqs.size() != step.ids.size()) {
    return InvalidArgument("a step with {} ids, {} positions and {} sequence numbers; expected equal counts",
                           step.ids.size(), tokens, step.seqs.size());
  }
  if (!step.embeddings.empty() && step.embeddings.size() != step.ids.size()) {
    return InvalidArgument("a step with {} ids and {} embeddings; expected equal counts", tokens,
                           step.embeddings.size());
  }
  if (step.left_visible.empty() != step.right_visible.empty()) {
    return InvalidArgument("left_visible and right_visible must be provided together");
  }
  if (!step.left_visible.empty() &&
      (step.left_visible.size() != step.ids.size() || step.right_visible.size() != step.ids.size())) {
    return InvalidArgument("a step with {} ids, {} left_visible and {} right_visible; expected equal counts", tokens,
                           step.left_visible.size(), step.right_visible.size());
  }
  if (static_cast<int64_t>(step.logit_rows.size()) > limits.max_logit_rows) {
    return InvalidArgument("logits of {} rows; expected at most {}", step.logit_rows.size(), limits.max_logit_rows);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    if (step.ids[t] < 0 || step.ids[t] >= config.vocab_size) {
      return InvalidArgument("row {}: token id {}; expected 0 to {}", t, step.ids[t], config.vocab_size - 1);
    }
    if (step.positions[t] < 0 || step.positions[t] >= limits.max_context) {
      return InvalidArgument("row {}: position {}; the context has {} positions", t, step.positions[t],
                             limits.max_context);
    }
    if (step.seqs[t] < 0 || step.seqs[t] >= limits.max_seqs) {
      return InvalidArgument("row {}: sequence {}; expected 0 to {}", t, step.seqs[t], limits.max_seqs - 1);
    }
  }
  if (!step.source_rows.empty() && step.source_rows.size() != step.ids.size()) {
    return InvalidArgument("a step with {} ids and {} source rows; expected equal counts", tokens,
                           step.source_rows.size());
  }
  int32_t last_source = -1;
  for (const int32_t row : step.source_rows) {
    if (row <= last_source || row >= limits.max_batch_tokens) {
      return InvalidArgument("source row {} behind row {}; expected ascending rows of the last step", row, last_source);
    }
    last_source = row;
  }
  for (const int32_t row : step.logit_rows) {
    if (row < 0 || row >= tokens) return InvalidArgument("logits of row {}; the step has {} rows", row, tokens);
  }
  return absl::OkStatus();
}

absl::Status HeadLogits(ops::Ops& ops, const ops::Tensor& z, const ops::LinearWeight& head, const ops::Tensor& logits,
                        float* host) {
  const bool direct = ops.memory().is_host();
  const ops::Tensor out = ops::MakeTensor(direct ? host : logits.data, DType::kF32, z.rows, head.n);
  ops.Linear(z, std::array{ops::LinearTarget{&head, out, ops::InputQuant::kNone}});
  if (!direct) ops.memory().Download(host, out.data, static_cast<size_t>(z.rows * head.n) * sizeof(float));
  return ops.Synchronize();
}

void ObserveRoute(int layer, const ops::MoeRouteArgs& route, ops::Memory& memory, StepObserver* observer) {
  const ops::Tensor& on_device = route.logits;
  const int64_t chosen = on_device.rows * route.experts_per_token;
  HostView<float> logits(memory, static_cast<float*>(on_device.data), on_device.rows * on_device.cols);
  HostView<int32_t> experts(memory, route.experts, chosen);
  HostView<float> weights(memory, route.weights, chosen);
  observer->OnRoute(layer, ops::MakeTensor(logits.data(), DType::kF32, on_device.rows, on_device.cols), experts.data(),
                    weights.data());
  experts.Return();
  weights.Return();
}

float* ScoresForObserver(int64_t count, ops::Memory& memory, ops::Buffer* buffer) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  if (buffer->size() < bytes) {
    absl::StatusOr<ops::Buffer> larger = memory.Allocate(bytes, "scores to look at");
    if (!larger.ok()) return nullptr;
    *buffer = *std::move(larger);
  }
  return reinterpret_cast<float*>(buffer->data());
}

}  // namespace hadal::models
