#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "platforms/gpu/runtime.h"

namespace hadal::gpu::cuda {
namespace {

// Compute capabilities that there are kernels for; later ones of a major number run the code of the one before.
constexpr std::array kBuilt = {80, 89, 90, 100, 120};

const char* Text(cudaError_t error) { return cudaGetErrorString(error); }

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int ordinal) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return absl::UnavailableError(
        fmt::format("no NVIDIA GPU can be used: {}; expected a device and its driver (CUDA {})",
                    error == cudaSuccess ? "the driver found none" : Text(error), CUDART_VERSION / 1000));
  }
  if (ordinal < 0 || ordinal >= count) return NotFound("device {}; this machine has {} (from 0)", ordinal, count);
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal); error != cudaSuccess) {
    return absl::UnavailableError(fmt::format("device {}: {}", ordinal, Text(error)));
  }
  const int capability = 10 * properties.major + properties.minor;
  const bool built = std::any_of(kBuilt.begin(), kBuilt.end(),
                                 [&](int with) { return with / 10 == properties.major && with <= capability; });
  if (!built) {
    return Unimplemented("device {} ({}) is sm_{}; this build has kernels for sm_80, sm_89, sm_90, sm_100 and sm_120",
                         ordinal, properties.name, capability);
  }
  if (const cudaError_t error = cudaSetDevice(ordinal); error != cudaSuccess) {
    return absl::UnavailableError(fmt::format("device {} ({}): {}", ordinal, properties.name, Text(error)));
  }
  std::unique_ptr<Device> device(new Device());
  size_t free = 0, total = 0;
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaMemGetInfo(&free, &total);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) {
    return absl::UnavailableError(fmt::format("device {} ({}): {}", ordinal, properties.name, Text(error)));
  }
  device->stream_.handle = stream;
  device->stream_.early = capability >= 90;
  device->info_ = {.name = properties.name,
                   .architecture = fmt::format("sm_{}", capability),
                   .capability = capability,
                   .multiprocessors = properties.multiProcessorCount,
                   .memory_bytes = total,
                   .free_bytes = free,
                   .shared_per_block = properties.sharedMemPerBlockOptin};
  return device;
}

Device::~Device() { cudaStreamDestroy(static_cast<cudaStream_t>(stream_.handle)); }

absl::Status Device::Synchronize() {
  cudaError_t error = cudaStreamSynchronize(static_cast<cudaStream_t>(stream_.handle));
  if (error == cudaSuccess) error = cudaGetLastError();
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(fmt::format("{} ({}): {}", info_.name, info_.architecture, Text(error)));
}

std::optional<ops::FreeMemory> Device::Free() const {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return std::nullopt;
  return ops::FreeMemory{static_cast<int64_t>(free), info_.name};
}

absl::StatusOr<ops::Buffer> Device::Allocate(size_t bytes, const char* purpose) {
  void* data = nullptr;
  const size_t size = std::max<size_t>(bytes, 1);
  if (const cudaError_t error = cudaMalloc(&data, size); error != cudaSuccess) {
    size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    (void)cudaGetLastError();  // it does not stick to later calls
    return ResourceExhausted("cannot allocate {} bytes for {} on {}: {} of {} bytes are free ({})", bytes, purpose,
                             info_.name, free, total, Text(error));
  }
  (void)cudaMemsetAsync(data, 0, size, static_cast<cudaStream_t>(stream_.handle));
  return ops::Buffer(data, bytes, [](void* p) { (void)cudaFree(p); });
}

absl::StatusOr<ops::Buffer> Device::AllocateStaging(size_t bytes, const char* purpose) {
  void* data = nullptr;
  const size_t size = std::max<size_t>(bytes, 1);
  if (const cudaError_t error = cudaMallocHost(&data, size); error != cudaSuccess) {
    (void)cudaGetLastError();
    return ResourceExhausted("cannot pin {} bytes of host memory for {}: {}", bytes, purpose, Text(error));
  }
  std::fill_n(static_cast<std::byte*>(data), size, std::byte{});
  return ops::Buffer(data, bytes, [](void* p) { (void)cudaFreeHost(p); });
}

// Errors stick to the stream and are told by Synchronize.
void Device::Upload(void* to, const void* from, size_t bytes) {
  (void)cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream_.handle));
}
void Device::Download(void* to, const void* from, size_t bytes) {
  (void)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream_.handle));
  (void)cudaStreamSynchronize(static_cast<cudaStream_t>(stream_.handle));
}
void Device::Copy(void* to, const void* from, size_t bytes) {
  (void)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream_.handle));
}

}  // namespace hadal::gpu::cuda
