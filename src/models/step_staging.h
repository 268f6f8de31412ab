// The rows of a step, where operators read them: on a host platform they are the caller's own arrays, on a device they
// go there in one copy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "models/model.h"
#include "ops/memory.h"
#include "ops/tensor.h"

namespace hadal::models {

struct StagedRows {
  ops::BatchRows batch;
  std::span<const int32_t> logit_rows;
  std::span<const int32_t> source_rows;
  std::span<const void* const> embeddings;
  const int32_t* window_begin = nullptr;  // [T]; what Stage was given
  const int32_t* window_end = nullptr;
};

class StepStaging {
 public:
  StepStaging() = default;
  // Room for steps within `limits`, whose embeddings, if any, have `embedding_bytes` each. `memory` outlives it.
  static absl::StatusOr<StepStaging> Create(ops::Memory& memory, const ModelLimits& limits, int64_t embedding_bytes);
  // Bytes of each side that Create would reserve on a device.
  static size_t Bytes(const ModelLimits& limits, int64_t embedding_bytes);

  // The arrays stay as they are until the step was synchronised.
  StagedRows Stage(const StepInput& step, std::span<const int32_t> window_begin, std::span<const int32_t> window_end);

 private:
  ops::Memory* memory_ = nullptr;
  int64_t embedding_bytes_ = 0;
  ops::Buffer host_, device_;
};

// What operators wrote, for a host that looks into a step: the memory itself, or a copy of it.
template <typename T>
class HostView {
 public:
  HostView(ops::Memory& memory, T* device, int64_t count) : memory_(memory), device_(device), count_(count) {
    if (memory.is_host()) return;
    copy_.resize(static_cast<size_t>(count));
    memory.Download(copy_.data(), device, static_cast<size_t>(count) * sizeof(T));
  }
  T* data() { return memory_.is_host() ? device_ : copy_.data(); }
  // What the host changed goes back.
  void Return() {
    if (!memory_.is_host()) memory_.Upload(device_, copy_.data(), static_cast<size_t>(count_) * sizeof(T));
  }

 private:
  ops::Memory& memory_;
  T* device_;
  int64_t count_;
  std::vector<T> copy_;
};

}  // namespace hadal::models
