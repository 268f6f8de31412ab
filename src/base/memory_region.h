// Anonymous memory for what is large and lives long: weights, caches, step buffers, scratch. Zeroed; pages that are
// never touched never become resident.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"

namespace hadal {

class MemoryRegion {
 public:
  // ResourceExhausted naming `purpose` and the size. Regions of 2 MiB and more ask for huge pages: page walks cost a
  // memory-bound decode up to half its speed in a virtual machine (docs/performance.md).
  static absl::StatusOr<MemoryRegion> Map(size_t bytes, const char* purpose);

  MemoryRegion() = default;  // empty
  ~MemoryRegion();
  MemoryRegion(MemoryRegion&& other) noexcept;
  MemoryRegion& operator=(MemoryRegion&& other) noexcept;
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  // From now on a write is a fault.
  void MakeReadOnly();

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hadal
