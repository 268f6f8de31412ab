#include "runtime/startup_check.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/status.h"
#include "runtime/kv/kv_cache.h"

namespace hadal::runtime {

absl::Status CheckLogits(std::span<const float> logits) {
  constexpr const char* kAdvice =
      "the weights are damaged, or the kernels chosen for this machine are wrong: compare the files with the published "
      "checksums, then try --cpu-isa baseline or --device reference";
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float v) { return !std::isfinite(v); });
  if (bad != logits.end()) {
    return FailedPrecondition("start-up check: expected finite logits, found {} at token {}; {}", *bad,
                              bad - logits.begin(), kAdvice);
  }
  const auto [low, high] = std::minmax_element(logits.begin(), logits.end());
  if (low == logits.end() || *low == *high) {
    return FailedPrecondition("start-up check: expected logits that differ, found {} for every token; {}",
                              low == logits.end() ? 0.0f : *low, kAdvice);
  }
  return absl::OkStatus();
}

absl::Status CheckFirstLogits(models::Model* model) {
  const checkpoint::ModelConfig& config = model->config();
  // BOS and the first ordinary tokens behind it. Nine rows give two groups at ratio 4.
  const int64_t rows = std::min({int64_t{9}, model->limits().max_batch_tokens, model->limits().max_context});
  std::vector<int32_t> ids(static_cast<size_t>(rows)), positions(ids.size()), seqs(ids.size(), 0);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((3 + i) % config.vocab_size);
  ids[0] = static_cast<int32_t>(config.bos_token_id % config.vocab_size);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> logits(static_cast<size_t>(config.vocab_size));
  const auto last = static_cast<int32_t>(rows - 1);
  models::StepInput step;
  step.ids = ids;
  step.positions = positions;
  step.seqs = seqs;
  step.logit_rows = std::span(&last, 1);
  step.logits = logits.data();
  KvCache cache(model, {.prefix_cache = false});
  cache.Begin(0, {.prompt = ids});
  if (!cache.Reserve(0, rows)) return FailedPrecondition("start-up check: the cache has no room for {} tokens", rows);
  HADAL_RETURN_IF_ERROR(model->Forward(step));
  return CheckLogits(logits);
}

}  // namespace hadal::runtime
