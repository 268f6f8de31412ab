#include "runtime/generator.h"

#include <utility>

#include "base/status.h"

namespace hadal::runtime {

absl::StatusOr<GenerateResult> Generator::Generate(const GenerateRequest& request, OnEvents on_events,
                                                   const std::atomic<bool>* cancel) {
  std::optional<absl::StatusOr<GenerateResult>> done;
  RequestCallbacks callbacks;
  callbacks.on_events = [&](const std::vector<text::OutputEvent>& events) { return on_events(events); };
  callbacks.on_done = [&](absl::StatusOr<GenerateResult> result) { done = std::move(result); };
  HADAL_ASSIGN_OR_RETURN(const int64_t id, executor_->Submit(request, std::move(callbacks)));
  while (!done.has_value()) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      executor_->Abort(id);
    } else {
      HADAL_CHECK(executor_->Step());
    }
  }
  return *std::move(done);
}

}  // namespace hadal::runtime
