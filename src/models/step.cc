#include "models/step.h"

#include <cstring>

#include "base/status.h"

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

// Rows move up only: rows are ascending, so none is overwritten before it has been taken.
void GatherRows(std::span<const int32_t> rows, const ops::Tensor& states) {
  const int64_t bytes = DTypeBytes(states.dtype, states.cols);
  auto* data = static_cast<std::byte*>(states.data);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != static_cast<int32_t>(i)) std::memcpy(data + i * bytes, data + rows[i] * bytes, bytes);
  }
}

}  // namespace hadal::models
