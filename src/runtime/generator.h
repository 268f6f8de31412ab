// Generation of one sequence, for callers that wait for it: a request of its own on an executor.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "models/model.h"
#include "runtime/executor.h"
#include "runtime/request.h"

namespace hadal::runtime {

// After each token and once at the end, with the text that became certain; often none. Returns false to cancel.
using OnEvents = absl::FunctionRef<bool(const std::vector<text::OutputEvent>&)>;

class Generator {
 public:
  // `executor` must outlive the generator. Requests that others have submitted there go on beside its own.
  explicit Generator(Executor* executor) : executor_(executor) {}

  // `cancel` (may be null) is looked at between steps; what was generated so far comes back.
  // InvalidArgument for a request that cannot be run, before anything is computed; FailedPrecondition for images where
  // the model takes none; ResourceExhausted if the cache is too small for it; Internal for logits that are not finite.
  absl::StatusOr<GenerateResult> Generate(const GenerateRequest& request, OnEvents on_events,
                                          const std::atomic<bool>* cancel = nullptr);

 private:
  Executor* executor_;
};

}  // namespace hadal::runtime
