// Where a platform's tensors live. Models ask it for everything an operator reads or writes: weights, caches, buffers,
// the rows of a step.
//
// On a host platform device memory is host memory: Upload and Download between equal addresses do nothing, and Place
// gives back what it got.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hadal::ops {

// Owns memory of a platform; it may not outlive the platform's Ops.
class Buffer {
 public:
  Buffer() = default;  // empty
  Buffer(void* data, size_t size, std::function<void(void*)> release)
      : data_(static_cast<std::byte*>(data)), size_(size), release_(std::move(release)) {}
  ~Buffer() { Reset(); }
  Buffer(Buffer&& other) noexcept { Swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      Reset();
      Swap(other);
    }
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void Reset() {
    if (data_ != nullptr && release_) release_(data_);
    data_ = nullptr;
    size_ = 0;
    release_ = nullptr;
  }
  void Swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(release_, other.release_);
  }

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::function<void(void*)> release_;
};

struct FreeMemory {
  int64_t bytes = 0;
  std::string source;  // "NVIDIA H200"
};

class Memory {
 public:
  virtual ~Memory() = default;

  // Whether the host can read and write what Allocate gives.
  virtual bool is_host() const = 0;
  // What can be allocated, of a device with memory of its own; nothing for the host's, which others use too.
  virtual std::optional<FreeMemory> Free() const { return std::nullopt; }
  // Zeroed, aligned to 256 bytes. ResourceExhausted naming `purpose`, the size and what is free.
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes, const char* purpose) = 0;
  // Host memory that Upload takes without waiting (pinned, on a GPU); zeroed.
  virtual absl::StatusOr<Buffer> AllocateStaging(size_t bytes, const char* purpose) = 0;

  // In the order of the operators' calls. `from` of Upload may be changed once the step that it belongs to has been
  // synchronised; Download waits, also for all operators before it.
  virtual void Upload(void* to, const void* from, size_t bytes) = 0;
  virtual void Download(void* to, const void* from, size_t bytes) = 0;
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;  // both of this platform; they do not overlap
};

// The memory of host platforms.
Memory& HostMemory();

}  // namespace hadal::ops
