// Scratch memory of the CPU platform: one anonymous mapping, carved once by Reserve(). Pages that no step touches never
// become resident.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace hadal::cpu {

class Workspace {
 public:
  Workspace() = default;
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Grows to at least `bytes`; what was carved before is invalid afterwards.
  absl::Status Grow(size_t bytes);
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Hands out 64-byte aligned pieces of a buffer; with a null buffer it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <typename T>
  T* Take(int64_t count) {
    T* out = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return out;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace hadal::cpu
