#include "models/step_staging.h"

#include <cstring>

#include "base/carver.h"
#include "base/status.h"

namespace hadal::models {
namespace {

// One after the other, for as many rows as there are.
struct Layout {
  Layout(Carver& carver, int64_t tokens, int64_t logit_rows_count, int64_t embedding_rows, int64_t embedding_bytes)
      : ids(carver.Take<int32_t>(tokens)),
        positions(carver.Take<int32_t>(tokens)),
        seqs(carver.Take<int32_t>(tokens)),
        source_rows(carver.Take<int32_t>(tokens)),
        window_begin(carver.Take<int32_t>(tokens)),
        window_end(carver.Take<int32_t>(tokens)),
        logit_rows(carver.Take<int32_t>(logit_rows_count)),
        pointers(carver.Take<const void*>(embedding_rows > 0 ? tokens : 0)),
        embeddings(carver.Take<std::byte>(embedding_rows * embedding_bytes)) {}

  int32_t *ids, *positions, *seqs, *source_rows, *window_begin, *window_end, *logit_rows;
  const void** pointers;
  std::byte* embeddings;
};

void Fill(int32_t* to, std::span<const int32_t> from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
}

}  // namespace

size_t StepStaging::Bytes(const ModelLimits& limits, int64_t embedding_bytes) {
  Carver carver(nullptr);
  Layout(carver, limits.max_batch_tokens, limits.max_logit_rows, limits.images ? limits.max_batch_tokens : 0,
         embedding_bytes);
  return carver.used();
}

absl::StatusOr<StepStaging> StepStaging::Create(ops::Memory& memory, const ModelLimits& limits,
                                                int64_t embedding_bytes) {
  StepStaging staging;
  staging.memory_ = &memory;
  staging.embedding_bytes_ = embedding_bytes;
  if (memory.is_host()) return staging;
  const size_t bytes = Bytes(limits, embedding_bytes);
  HADAL_ASSIGN_OR_RETURN(staging.host_, memory.AllocateStaging(bytes, "the rows of a step"));
  HADAL_ASSIGN_OR_RETURN(staging.device_, memory.Allocate(bytes, "the rows of a step"));
  return staging;
}

StagedRows StepStaging::Stage(const StepInput& step, std::span<const int32_t> window_begin,
                              std::span<const int32_t> window_end) {
  const auto tokens = static_cast<int64_t>(step.ids.size());
  if (memory_->is_host()) {
    return {{tokens, step.ids.data(), step.positions.data(), step.seqs.data()},
            step.logit_rows,
            step.source_rows,
            step.embeddings,
            window_begin.data(),
            window_end.data()};
  }
  int64_t embedded = 0;
  for (const void* row : step.embeddings) embedded += row != nullptr ? 1 : 0;
  const auto logit_rows = static_cast<int64_t>(step.logit_rows.size());
  Carver host_carver(host_.data()), device_carver(device_.data());
  const Layout host(host_carver, tokens, logit_rows, embedded, embedding_bytes_);
  const Layout device(device_carver, tokens, logit_rows, embedded, embedding_bytes_);
  HADAL_CHECK(host_carver.used() <= host_.size());
  Fill(host.ids, step.ids);
  Fill(host.positions, step.positions);
  Fill(host.seqs, step.seqs);
  Fill(host.source_rows, step.source_rows);
  Fill(host.logit_rows, step.logit_rows);
  Fill(host.window_begin, window_begin);
  Fill(host.window_end, window_end);
  if (embedded > 0) {
    int64_t next = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      host.pointers[t] = nullptr;
      if (step.embeddings[t] == nullptr) continue;
      std::memcpy(host.embeddings + next * embedding_bytes_, step.embeddings[t], embedding_bytes_);
      host.pointers[t] = device.embeddings + next * embedding_bytes_;
      ++next;
    }
  }
  memory_->Upload(device_.data(), host_.data(), host_carver.used());
  StagedRows rows;
  rows.batch = {tokens, device.ids, device.positions, device.seqs};
  rows.logit_rows = {device.logit_rows, step.logit_rows.size()};
  rows.source_rows = {device.source_rows, step.source_rows.size()};
  if (embedded > 0) rows.embeddings = {device.pointers, static_cast<size_t>(tokens)};
  rows.window_begin = device.window_begin;
  rows.window_end = device.window_end;
  return rows;
}

}  // namespace hadal::models
