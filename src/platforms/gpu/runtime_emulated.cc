#include <cstdlib>
#include <cstring>

#include "base/status.h"
#include "platforms/gpu/runtime.h"

namespace hadal::gpu::emulated {
namespace {

absl::StatusOr<ops::Buffer> HostBuffer(size_t bytes, const char* purpose) {
  constexpr size_t kAlignment = 256;
  const size_t size = (bytes + kAlignment) / kAlignment * kAlignment;  // at least one unit
  void* data = std::aligned_alloc(kAlignment, size);
  if (data == nullptr) return ResourceExhausted("cannot allocate {} bytes for {}", bytes, purpose);
  std::memset(data, 0, size);
  return ops::Buffer(data, bytes, std::free);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int ordinal) {
  if (ordinal != 0 && ordinal != 1) return NotFound("device {}; there are two emulated devices, 0 and 1", ordinal);
  std::unique_ptr<Device> device(new Device());
  constexpr size_t kShared = size_t{227} << 10;
  device->info_ = {
      .name = "emulated GPU", .architecture = "emulated", .multiprocessors = 4, .shared_per_block = kShared};
  device->stream_.wave = ordinal == 0 ? 32 : 64;
  return device;
}
Device::~Device() = default;
absl::Status Device::Synchronize() { return absl::OkStatus(); }

std::optional<ops::FreeMemory> Device::Free() const { return std::nullopt; }
absl::StatusOr<ops::Buffer> Device::Allocate(size_t bytes, const char* purpose) { return HostBuffer(bytes, purpose); }
absl::StatusOr<ops::Buffer> Device::AllocateStaging(size_t bytes, const char* purpose) {
  return HostBuffer(bytes, purpose);
}
void Device::Upload(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void Device::Download(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void Device::Copy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

}  // namespace hadal::gpu::emulated
