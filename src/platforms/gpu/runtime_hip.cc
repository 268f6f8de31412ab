// ROCm's run-time library belongs to the user: 6 and 7 have kernels for MI300 and later, and neither is to be had when
// hadal is built. It is opened by name at the first use of a device, so that one binary starts with and without it.
//
// clang's start-up code registers the kernels of an object before main by functions of that library. Those here keep
// what they are told until a device has been opened that there are kernels for.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "platforms/gpu/runtime.h"

namespace hadal::gpu::hip {
namespace {

// Of the C interface, as far as it is used; the same in HIP 5, 6 and 7 (hip_runtime_api.h).
using Error = int;
constexpr Error kSuccess = 0;
constexpr Error kNotInitialized = 3;
constexpr unsigned kStreamNonBlocking = 1;
enum CopyKind { kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3 };

struct Dim3 {
  unsigned x, y, z;
};

// hipDeviceProp_tR0600 up to where it is read, with room for what a later version may write behind it.
struct Properties {
  char name[256];
  char uuid[16], luid[8];
  unsigned luid_node_mask;
  size_t memory_bytes, shared_per_block;
  int registers_per_block, wave;
  size_t pitch;
  int threads_per_block, threads_dim[3], grid_size[3], clock_rate;
  size_t constant_memory;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  int device_overlap, multiprocessors;
  char other[768];
  char architecture[256];  // gfx942:sramecc+:xnack-
  char room[4096];
};
static_assert(offsetof(Properties, shared_per_block) == 296 && offsetof(Properties, multiprocessors) == 388 &&
              offsetof(Properties, architecture) == 1160);

struct Library {
  Error (*get_device_count)(int*) = nullptr;
  Error (*get_device_properties)(Properties*, int) = nullptr;
  Error (*set_device)(int) = nullptr;
  Error (*mem_get_info)(size_t*, size_t*) = nullptr;
  Error (*stream_create)(void**, unsigned) = nullptr;
  Error (*stream_destroy)(void*) = nullptr;
  Error (*stream_synchronize)(void*) = nullptr;
  Error (*get_last_error)() = nullptr;
  const char* (*get_error_string)(Error) = nullptr;
  Error (*malloc)(void**, size_t) = nullptr;
  Error (*free)(void*) = nullptr;
  Error (*host_malloc)(void**, size_t, unsigned) = nullptr;
  Error (*host_free)(void*) = nullptr;
  Error (*memcpy_async)(void*, const void*, size_t, int, void*) = nullptr;
  Error (*memset_async)(void*, int, size_t, void*) = nullptr;
  Error (*launch_kernel)(const void*, Dim3, Dim3, void**, size_t, void*) = nullptr;
  Error (*push_call_configuration)(Dim3, Dim3, size_t, void*) = nullptr;
  Error (*pop_call_configuration)(Dim3*, Dim3*, size_t*, void**) = nullptr;
  void** (*register_fat_binary)(const void*) = nullptr;
  void (*register_function)(void**, const void*, char*, const char*, unsigned, void*, void*, Dim3*, Dim3*,
                            int*) = nullptr;
  void (*register_var)(void**, void*, char*, char*, int, size_t, int, int) = nullptr;
};

// Filled once by Load, before there is a Device, and read without a lock: a kernel is launched, and memory taken, by
// one.
Library g_hip;

// What start-up code registered.
struct Function {
  const void* host;
  char* device;
  const char* name;
  unsigned thread_limit;
};
struct Variable {
  void* host;
  char* host_name;
  char* device_name;
  int external;
  size_t size;
  int constant, global;
};
struct FatBinary {
  const void* wrapper;
  std::vector<Function> functions;
  std::vector<Variable> variables;
};
// Pointers are handed out as handles. Made at the first call: start-up code of another object may run before ours.
std::vector<std::unique_ptr<FatBinary>>& FatBinaries() {
  static auto* binaries = new std::vector<std::unique_ptr<FatBinary>>();
  return *binaries;
}

std::string Text(Error error) { return fmt::format("{} (hipError {})", g_hip.get_error_string(error), error); }

// Newest first; 5 is what Debian 12 has, and knows no device that there are kernels for.
constexpr std::array kNames = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so",
                               "libamdhip64.so.5"};

absl::StatusOr<void*> OpenLibrary() {
  // One that the process has already, under whatever name: two would each take the device's queues.
  for (const char* name : kNames) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD); handle != nullptr) return handle;
  }
  std::string reasons;
  for (const char* name : kNames) {
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL); handle != nullptr) return handle;
    const char* reason = dlerror();
    reasons += fmt::format("\n  {}", reason != nullptr ? reason : name);
  }
  return absl::UnavailableError(fmt::format(
      "no AMD GPU can be used: ROCm's run-time library is missing; expected libamdhip64 of ROCm 6 or 7 where "
      "the loader looks (ldconfig, LD_LIBRARY_PATH) or in /opt/rocm/lib:{}",
      reasons));
}

// Opens the library and finds its functions; kernels are not registered yet.
absl::Status Load() {
  static std::mutex mutex;
  static bool loaded = false;
  const std::scoped_lock lock(mutex);
  if (loaded) return absl::OkStatus();
  HADAL_ASSIGN_OR_RETURN(void* handle, OpenLibrary());
  Library hip;
  std::string missing;
  const auto find = [&](const char* name, auto* function) {
    void* symbol = dlsym(handle, name);
    if (symbol == nullptr) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(symbol);
  };
  find("hipGetDeviceCount", &hip.get_device_count);
  find("hipSetDevice", &hip.set_device);
  find("hipMemGetInfo", &hip.mem_get_info);
  find("hipStreamCreateWithFlags", &hip.stream_create);
  find("hipStreamDestroy", &hip.stream_destroy);
  find("hipStreamSynchronize", &hip.stream_synchronize);
  find("hipGetLastError", &hip.get_last_error);
  find("hipGetErrorString", &hip.get_error_string);
  find("hipMalloc", &hip.malloc);
  find("hipFree", &hip.free);
  find("hipHostMalloc", &hip.host_malloc);
  find("hipHostFree", &hip.host_free);
  find("hipMemcpyAsync", &hip.memcpy_async);
  find("hipMemsetAsync", &hip.memset_async);
  find("hipLaunchKernel", &hip.launch_kernel);
  find("__hipPushCallConfiguration", &hip.push_call_configuration);
  find("__hipPopCallConfiguration", &hip.pop_call_configuration);
  find("__hipRegisterFatBinary", &hip.register_fat_binary);
  find("__hipRegisterFunction", &hip.register_function);
  find("__hipRegisterVar", &hip.register_var);
  if (!missing.empty()) {
    return absl::UnavailableError(
        fmt::format("no AMD GPU can be used: libamdhip64 has no {}; expected the library of ROCm 6 or 7", missing));
  }
  // From ROCm 6 on, and missed only where there is a device: whoever has an older library and none is told the latter.
  hip.get_device_properties =
      reinterpret_cast<Error (*)(Properties*, int)>(dlsym(handle, "hipGetDevicePropertiesR0600"));
  g_hip = hip;
  loaded = true;
  return absl::OkStatus();
}

// Tells the library of the kernels, once. After the device's architecture is known to be one of ours: older libraries
// end the process when they are given code for no device of the machine.
void RegisterKernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const std::unique_ptr<FatBinary>& binary : FatBinaries()) {
      void** module = g_hip.register_fat_binary(binary->wrapper);
      for (const Function& f : binary->functions) {
        g_hip.register_function(module, f.host, f.device, f.name, f.thread_limit, nullptr, nullptr, nullptr, nullptr,
                                nullptr);
      }
      for (const Variable& v : binary->variables) {
        g_hip.register_var(module, v.host, v.host_name, v.device_name, v.external, v.size, v.constant, v.global);
      }
    }
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int ordinal) {
  HADAL_RETURN_IF_ERROR(Load());
  int count = 0;
  if (const Error error = g_hip.get_device_count(&count); error != kSuccess || count == 0) {
    return absl::UnavailableError(
        fmt::format("no AMD GPU can be used: {}; expected a device and its driver (amdgpu, /dev/kfd)",
                    error == kSuccess ? "the driver found none" : Text(error)));
  }
  if (ordinal < 0 || ordinal >= count) return NotFound("device {}; this machine has {} (from 0)", ordinal, count);
  if (g_hip.get_device_properties == nullptr) {
    return absl::UnavailableError("no AMD GPU can be used: libamdhip64 is older than ROCm 6; expected ROCm 6 or 7");
  }
  Properties properties = {};
  if (const Error error = g_hip.get_device_properties(&properties, ordinal); error != kSuccess) {
    return absl::UnavailableError(fmt::format("device {}: {}", ordinal, Text(error)));
  }
  const std::string_view full(properties.architecture);
  const std::string architecture(full.substr(0, full.find(':')));
  if (architecture != "gfx942" && architecture != "gfx950") {
    return Unimplemented("device {} ({}) is {}; this build has kernels for gfx942 (MI300) and gfx950 (MI350)", ordinal,
                         properties.name, architecture);
  }
  RegisterKernels();
  size_t free = 0, total = 0;
  void* stream = nullptr;
  Error error = g_hip.set_device(ordinal);
  if (error == kSuccess) error = g_hip.mem_get_info(&free, &total);
  if (error == kSuccess) error = g_hip.stream_create(&stream, kStreamNonBlocking);
  if (error != kSuccess) {
    return absl::UnavailableError(fmt::format("device {} ({}): {}", ordinal, properties.name, Text(error)));
  }
  (void)g_hip.get_last_error();  // of an attempt that failed before
  std::unique_ptr<Device> device(new Device());
  device->stream_ = {.handle = stream, .wave = 64};
  device->info_ = {.name = properties.name,
                   .architecture = architecture,
                   .multiprocessors = properties.multiprocessors,
                   .memory_bytes = total,
                   .free_bytes = free,
                   .shared_per_block = properties.shared_per_block};
  return device;
}

Device::~Device() { (void)g_hip.stream_destroy(stream_.handle); }

absl::Status Device::Synchronize() {
  Error error = g_hip.stream_synchronize(stream_.handle);
  const Error last = g_hip.get_last_error();  // always asked: it forgets what it told
  if (error == kSuccess) error = last;
  if (error == kSuccess) return absl::OkStatus();
  return absl::InternalError(fmt::format("{} ({}): {}", info_.name, info_.architecture, Text(error)));
}

std::optional<ops::FreeMemory> Device::Free() const {
  size_t free = 0, total = 0;
  if (g_hip.mem_get_info(&free, &total) != kSuccess) return std::nullopt;
  return ops::FreeMemory{static_cast<int64_t>(free), info_.name};
}

absl::StatusOr<ops::Buffer> Device::Allocate(size_t bytes, const char* purpose) {
  void* data = nullptr;
  const size_t size = std::max<size_t>(bytes, 1);
  if (const Error error = g_hip.malloc(&data, size); error != kSuccess) {
    size_t free = 0, total = 0;
    (void)g_hip.mem_get_info(&free, &total);
    (void)g_hip.get_last_error();  // it does not stick to later calls
    return ResourceExhausted("cannot allocate {} bytes for {} on {}: {} of {} bytes are free: {}", bytes, purpose,
                             info_.name, free, total, Text(error));
  }
  (void)g_hip.memset_async(data, 0, size, stream_.handle);
  return ops::Buffer(data, bytes, [](void* p) { (void)g_hip.free(p); });
}

absl::StatusOr<ops::Buffer> Device::AllocateStaging(size_t bytes, const char* purpose) {
  void* data = nullptr;
  const size_t size = std::max<size_t>(bytes, 1);
  if (const Error error = g_hip.host_malloc(&data, size, 0); error != kSuccess) {
    (void)g_hip.get_last_error();
    return ResourceExhausted("cannot pin {} bytes of host memory for {}: {}", bytes, purpose, Text(error));
  }
  std::fill_n(static_cast<std::byte*>(data), size, std::byte{});
  return ops::Buffer(data, bytes, [](void* p) { (void)g_hip.host_free(p); });
}

// Errors stick to the stream and are told by Synchronize.
void Device::Upload(void* to, const void* from, size_t bytes) {
  (void)g_hip.memcpy_async(to, from, bytes, kHostToDevice, stream_.handle);
}
void Device::Download(void* to, const void* from, size_t bytes) {
  (void)g_hip.memcpy_async(to, from, bytes, kDeviceToHost, stream_.handle);
  (void)g_hip.stream_synchronize(stream_.handle);
}
void Device::Copy(void* to, const void* from, size_t bytes) {
  (void)g_hip.memcpy_async(to, from, bytes, kDeviceToDevice, stream_.handle);
}

}  // namespace hadal::gpu::hip

// What clang's start-up code and the launches of device.h call. Hidden: the library that is opened has functions of the
// same names, and calls its own.
// NOLINTBEGIN(readability-identifier-naming): the names are clang's.
#define HADAL_HIP_ENTRY extern "C" __attribute__((visibility("hidden")))

using hadal::gpu::hip::Dim3;
using hadal::gpu::hip::FatBinaries;
using hadal::gpu::hip::FatBinary;
using hadal::gpu::hip::g_hip;

HADAL_HIP_ENTRY void** __hipRegisterFatBinary(const void* wrapper);
HADAL_HIP_ENTRY void __hipRegisterFunction(void** binary, const void* host, char* device, const char* name,
                                           unsigned thread_limit, void* thread, void* block, Dim3* threads,
                                           Dim3* blocks, int* wave);
HADAL_HIP_ENTRY void __hipRegisterVar(void** binary, void* host, char* host_name, char* device_name, int external,
                                      size_t size, int constant, int global);
HADAL_HIP_ENTRY void __hipUnregisterFatBinary(void** binary);
HADAL_HIP_ENTRY int __hipPushCallConfiguration(Dim3 blocks, Dim3 threads, size_t shared_bytes, void* stream);
HADAL_HIP_ENTRY int __hipPopCallConfiguration(Dim3* blocks, Dim3* threads, size_t* shared_bytes, void** stream);
HADAL_HIP_ENTRY int hipLaunchKernel(const void* kernel, Dim3 blocks, Dim3 threads, void** arguments,
                                    size_t shared_bytes, void* stream);

void** __hipRegisterFatBinary(const void* wrapper) {
  FatBinaries().push_back(std::make_unique<FatBinary>(FatBinary{wrapper, {}, {}}));
  return reinterpret_cast<void**>(FatBinaries().back().get());
}
void __hipRegisterFunction(void** binary, const void* host, char* device, const char* name, unsigned thread_limit,
                           void* /*thread*/, void* /*block*/, Dim3* /*threads*/, Dim3* /*blocks*/, int* /*wave*/) {
  reinterpret_cast<FatBinary*>(binary)->functions.push_back({host, device, name, thread_limit});
}
void __hipRegisterVar(void** binary, void* host, char* host_name, char* device_name, int external, size_t size,
                      int constant, int global) {
  reinterpret_cast<FatBinary*>(binary)->variables.push_back(
      {host, host_name, device_name, external, size, constant, global});
}
// At exit, when the library may be gone already: it was opened after this was registered to be called.
void __hipUnregisterFatBinary(void** /*binary*/) {}

int __hipPushCallConfiguration(Dim3 blocks, Dim3 threads, size_t shared_bytes, void* stream) {
  if (g_hip.push_call_configuration == nullptr) return hadal::gpu::hip::kNotInitialized;
  return g_hip.push_call_configuration(blocks, threads, shared_bytes, stream);
}
int __hipPopCallConfiguration(Dim3* blocks, Dim3* threads, size_t* shared_bytes, void** stream) {
  if (g_hip.pop_call_configuration == nullptr) return hadal::gpu::hip::kNotInitialized;
  return g_hip.pop_call_configuration(blocks, threads, shared_bytes, stream);
}
int hipLaunchKernel(const void* kernel, Dim3 blocks, Dim3 threads, void** arguments, size_t shared_bytes,
                    void* stream) {
  if (g_hip.launch_kernel == nullptr) return hadal::gpu::hip::kNotInitialized;
  return g_hip.launch_kernel(kernel, blocks, threads, arguments, shared_bytes, stream);
}
// NOLINTEND(readability-identifier-naming)
