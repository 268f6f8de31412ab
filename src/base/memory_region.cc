#include "base/memory_region.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace hadal {

absl::StatusOr<MemoryRegion> MemoryRegion::Map(size_t bytes, const char* purpose) {
  constexpr size_t kHugePage = size_t{2} << 20;
  MemoryRegion region;
  region.size_ = std::max<size_t>(bytes, 1);
  void* mapped =
      mmap(nullptr, region.size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return ResourceExhausted("cannot map {} bytes for {}: {}", bytes, purpose, std::strerror(errno));
  }
  region.data_ = static_cast<std::byte*>(mapped);
  if (region.size_ >= kHugePage) madvise(mapped, region.size_, MADV_HUGEPAGE);
  return region;
}

MemoryRegion::~MemoryRegion() {
  if (data_ != nullptr) munmap(data_, size_);
}

MemoryRegion::MemoryRegion(MemoryRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MemoryRegion& MemoryRegion::operator=(MemoryRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MemoryRegion::MakeReadOnly() {
  if (data_ != nullptr) mprotect(data_, size_, PROT_READ);
}

}  // namespace hadal
