// Puts a model's weights where its operators read them: on a host platform they stay where they are, on a device they
// are copied there, once.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/memory.h"

namespace hadal::models {

class WeightStore {
 public:
  // `memory` outlives the store, and the store what it placed.
  explicit WeightStore(ops::Memory& memory) : memory_(memory) {}

  ops::Memory& memory() { return memory_; }
  // Where `bytes` bytes at `host` are for operators. The same address gives the same place. ResourceExhausted when the
  // device is full.
  absl::StatusOr<const void*> Place(const void* host, size_t bytes);
  // Bytes that lie on the device.
  size_t bytes() const { return bytes_; }

 private:
  ops::Memory& memory_;
  std::vector<ops::Buffer> slabs_;
  size_t left_ = 0;  // free bytes at the end of the last slab
  size_t bytes_ = 0;
  std::unordered_map<const void*, const void*> placed_;
};

}  // namespace hadal::models
