#include "serving/answer.h"

namespace hadal::serving {

bool NeedsEmptyText(const Job& job, const runtime::GenerateResult& result) {
  if (!result.content.empty() || !result.tool_calls.empty()) return false;
  const bool reasoned = job.include_reasoning && !result.reasoning.empty();
  return !reasoned || result.finish_reason != runtime::FinishReason::kLength;
}

}  // namespace hadal::serving
