#include "platforms/cpu/workspace.h"

#include <sys/mman.h>

#include "base/status.h"

namespace hadal::cpu {

Workspace::~Workspace() {
  if (data_ != nullptr) munmap(data_, size_);
}

absl::Status Workspace::Grow(size_t bytes) {
  if (bytes <= size_) return absl::OkStatus();
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return ResourceExhausted("cannot reserve {} bytes of scratch memory", bytes);
  if (data_ != nullptr) munmap(data_, size_);
  data_ = static_cast<std::byte*>(mapped);
  size_ = bytes;
  madvise(data_, size_, MADV_HUGEPAGE);
  return absl::OkStatus();
}

}  // namespace hadal::cpu
