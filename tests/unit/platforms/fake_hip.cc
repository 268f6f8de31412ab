#include "unit/platforms/fake_hip.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

using hadal::test::FakeHip;
using hadal::test::FakeLaunch;

namespace {

struct Dim3 {
  unsigned x, y, z;
};

FakeHip g_fake;
std::map<const void*, std::string> g_kernels;

int Fail(int error) {
  g_fake.last_error = error;
  return error;
}

int Allocate(void** at, size_t bytes) {
  constexpr int kOutOfMemory = 2;
  if (bytes > g_fake.memory) return Fail(kOutOfMemory);
  *at = std::malloc(bytes);
  return 0;
}

}  // namespace

// Signatures as in hip_runtime_api.h of ROCm 6 and 7, with plain types.
extern "C" {

FakeHip* FakeHipState() { return &g_fake; }

int hipGetDeviceCount(int* count) {
  constexpr int kNoDevice = 100;
  *count = g_fake.devices;
  return g_fake.devices > 0 ? 0 : Fail(kNoDevice);
}
int hipGetDevicePropertiesR0600(char* properties, int /*device*/) {
  constexpr size_t kSize = 1472;
  std::memset(properties, 0, kSize);
  std::strcpy(properties, "AMD Instinct MI300X");
  const size_t shared = 65536;
  const int multiprocessors = 304;
  std::memcpy(properties + 296, &shared, sizeof(shared));
  std::memcpy(properties + 388, &multiprocessors, sizeof(multiprocessors));
  std::strcpy(properties + 1160, g_fake.architecture.c_str());
  return 0;
}
int hipSetDevice(int /*device*/) { return 0; }
int hipMemGetInfo(size_t* free, size_t* total) {
  *free = g_fake.memory / 2;
  *total = g_fake.memory;
  return 0;
}
int hipStreamCreateWithFlags(void** stream, unsigned flags) {
  *stream = std::malloc(1);
  return flags == 1 ? 0 : Fail(1);
}
int hipStreamDestroy(void* stream) {
  std::free(stream);
  return 0;
}
int hipStreamSynchronize(void* /*stream*/) { return 0; }
int hipGetLastError() {
  const int error = g_fake.last_error;
  g_fake.last_error = 0;
  return error;
}
const char* hipGetErrorString(int error) {
  return error == 100 ? "no ROCm-capable device is detected" : error == 2 ? "out of memory" : "some error";
}
int hipMalloc(void** at, size_t bytes) { return Allocate(at, bytes); }
int hipFree(void* at) {
  std::free(at);
  return 0;
}
int hipHostMalloc(void** at, size_t bytes, unsigned /*flags*/) { return Allocate(at, bytes); }
int hipHostFree(void* at) { return hipFree(at); }
int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* /*stream*/) {
  g_fake.copies.push_back(kind);
  std::memcpy(to, from, bytes);
  return 0;
}
int hipMemsetAsync(void* at, int value, size_t bytes, void* /*stream*/) {
  std::memset(at, value, bytes);
  return 0;
}
int hipLaunchKernel(const void* kernel, Dim3 blocks, Dim3 threads, void** arguments, size_t shared_bytes,
                    void* stream) {
  if (g_fake.launch_error != 0) return Fail(g_fake.launch_error);
  g_fake.launches.push_back({.kernel = g_kernels[kernel],
                             .blocks = {blocks.x, blocks.y, blocks.z},
                             .threads = {threads.x, threads.y, threads.z},
                             .shared_bytes = shared_bytes,
                             .first_argument = arguments[0],
                             .stream = stream});
  return 0;
}
int __hipPushCallConfiguration(Dim3 /*blocks*/, Dim3 /*threads*/, size_t /*shared_bytes*/, void* /*stream*/) {
  return 0;
}
int __hipPopCallConfiguration(Dim3* /*blocks*/, Dim3* /*threads*/, size_t* /*shared_bytes*/, void** /*stream*/) {
  return 0;
}
void** __hipRegisterFatBinary(const void* wrapper) {
  g_fake.binaries.push_back(wrapper);
  return reinterpret_cast<void**>(g_fake.binaries.size());
}
void __hipRegisterFunction(void** binary, const void* host, char* /*device*/, const char* name,
                           unsigned /*thread_limit*/, void* /*thread*/, void* /*block*/, Dim3* /*threads*/,
                           Dim3* /*blocks*/, int* /*wave*/) {
  if (reinterpret_cast<uintptr_t>(binary) != g_fake.binaries.size()) std::abort();
  g_fake.functions.emplace_back(name);
  g_kernels[host] = name;
}
void __hipRegisterVar(void** /*binary*/, void* /*host*/, char* /*host_name*/, char* /*device_name*/, int /*external*/,
                      size_t /*size*/, int /*constant*/, int /*global*/) {}
}
