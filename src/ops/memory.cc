#include "ops/memory.h"

#include <cstring>

#include "base/memory_region.h"
#include "base/status.h"

namespace hadal::ops {
namespace {

class Host final : public Memory {
 public:
  bool is_host() const override { return true; }
  absl::StatusOr<Buffer> Allocate(size_t bytes, const char* purpose) override {
    HADAL_ASSIGN_OR_RETURN(MemoryRegion region, MemoryRegion::Map(bytes, purpose));
    std::byte* data = region.data();
    // A function that is kept has to be copyable.
    auto owner = std::make_shared<MemoryRegion>(std::move(region));
    return Buffer(data, bytes, [owner](void*) mutable { owner.reset(); });
  }
  absl::StatusOr<Buffer> AllocateStaging(size_t bytes, const char* purpose) override {
    return Allocate(bytes, purpose);
  }
  void Upload(void* to, const void* from, size_t bytes) override { Copy(to, from, bytes); }
  void Download(void* to, const void* from, size_t bytes) override { Copy(to, from, bytes); }
  void Copy(void* to, const void* from, size_t bytes) override {
    if (to != from) std::memcpy(to, from, bytes);
  }
};

}  // namespace

Memory& HostMemory() {
  static Host memory;
  return memory;
}

}  // namespace hadal::ops
