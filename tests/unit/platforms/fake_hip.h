// A stand-in for ROCm's run-time library in host memory: what it was told, and what it answers. Built as
// libamdhip64.so.7, which hip_runtime_test finds before any other.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace hadal::test {

struct FakeLaunch {
  std::string kernel;  // mangled
  unsigned blocks[3], threads[3];
  size_t shared_bytes;
  const void* first_argument;
  void* stream;
};

struct FakeHip {
  int devices = 1;
  std::string architecture = "gfx942:sramecc+:xnack-";
  size_t memory = size_t{1} << 20;
  int launch_error = 0;

  std::vector<const void*> binaries;   // wrappers
  std::vector<std::string> functions;  // mangled names of kernels
  std::vector<FakeLaunch> launches;
  std::vector<int> copies;  // kinds
  int last_error = 0;
};

}  // namespace hadal::test
