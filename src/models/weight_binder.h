// Binds a checkpoint's tensors to the places where a model uses them, by name. The first failure sticks: later calls do
// nothing, and status() tells it.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "checkpoint/tensor_entry.h"
#include "models/weight_store.h"
#include "ops/tensor.h"

namespace hadal::models {

// Which scales weights may have.
enum class Scales {
  kExponents,  // powers of two of at most 2^100, which kernels take into the exponent; others are InvalidArgument
  kAny,        // finite and above 0; LinearWeight::exponent_scales says which they are
};

class WeightBinder {
 public:
  // `source` and `store` outlive the binder and what it binds.
  WeightBinder(const checkpoint::WeightSource& source, WeightStore& store, Scales scales)
      : source_(source), store_(store), scales_(scales) {}

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (ok()) status_ = std::move(status);
  }

  // Null after a failure, which a missing tensor is. Its data are the host's.
  const checkpoint::TensorEntry* Get(const std::string& name);
  // `module`.weight and, if it is FP8 or FP4, its scale.
  void Linear(const std::string& module, ops::LinearWeight& out);
  void Norm(const std::string& name, ops::Vector& out);
  void Floats(const std::string& name, const float*& out);
  // As Linear, but the data stay the host's.
  void HostLinear(const std::string& module, ops::LinearWeight& out);
  // Where `count` values at `host` are for operators; null after a failure.
  template <typename T>
  const T* Place(const T* host, int64_t count) {
    return static_cast<const T*>(PlaceBytes(host, count * static_cast<int64_t>(sizeof(T))));
  }
  const void* PlaceBytes(const void* host, int64_t bytes);

 private:
  absl::Status CheckScales(const checkpoint::TensorEntry& entry, ops::LinearWeight& out) const;

  const checkpoint::WeightSource& source_;
  WeightStore& store_;
  const Scales scales_;
  absl::Status status_;
};

}  // namespace hadal::models
