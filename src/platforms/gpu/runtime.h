// One GPU: its memory, its stream and what it is. The emulator has two devices in host memory, device 0 with waves of
// 32 lanes and device 1 with waves of 64, and nothing to wait for.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/memory.h"
#include "platforms/gpu/backend.h"

namespace hadal::gpu::HADAL_GPU_NS {

struct DeviceInfo {
  std::string name;
  std::string architecture;  // sm_90, gfx942, emulated
  int capability = 0;        // 10*major + minor; 0 where there is none
  int multiprocessors = 1;
  size_t memory_bytes = 0;
  size_t free_bytes = 0;        // when it was opened
  size_t shared_per_block = 0;  // most dynamic shared memory of a block
};

class Device final : public ops::Memory {
 public:
  // Unavailable where the driver or a device is missing; Unimplemented for an architecture that this build has no
  // kernels for. Both say what was looked for and what there is.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal);
  ~Device() override;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  Stream stream() const { return stream_; }

  // Waits for all that was enqueued. Internal, naming it, for an error of anything since the last call.
  absl::Status Synchronize();

  bool is_host() const override { return false; }
  std::optional<ops::FreeMemory> Free() const override;
  absl::StatusOr<ops::Buffer> Allocate(size_t bytes, const char* purpose) override;
  absl::StatusOr<ops::Buffer> AllocateStaging(size_t bytes, const char* purpose) override;
  void Upload(void* to, const void* from, size_t bytes) override;
  void Download(void* to, const void* from, size_t bytes) override;
  void Copy(void* to, const void* from, size_t bytes) override;

 private:
  Device() = default;

  DeviceInfo info_;
  Stream stream_;
};

}  // namespace hadal::gpu::HADAL_GPU_NS
