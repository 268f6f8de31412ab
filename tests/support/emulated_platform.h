// The GPU's operators on the emulator as platforms of the registry: whole models then take the way of a device, whose
// memory is not the host's.
#pragma once

#if HADAL_TEST_EMULATED_GPU
#include <memory>

#include "models/registry/registry.h"
#include "platforms/gpu/gpu_ops.h"
#endif

namespace hadal::test {

#if HADAL_TEST_EMULATED_GPU
template <int kDevice>
absl::StatusOr<std::unique_ptr<ops::Ops>> MakeEmulated(const models::ModelOptions& /*options*/,
                                                       ops::Numerics numerics) {
  gpu::GpuOptions options;
  options.numerics = numerics;
  options.device = kDevice;
  return gpu::emulated::MakeGpuOps(options);
}
#endif

// Registers gpu_wave32 and gpu_wave64, once. Nothing where there is no emulator.
inline void AddEmulatedPlatforms() {
#if HADAL_TEST_EMULATED_GPU
  static const bool kAdded = [] {
    models::AddPlatform("gpu_wave32", MakeEmulated<0>);
    models::AddPlatform("gpu_wave64", MakeEmulated<1>);
    return true;
  }();
  static_cast<void>(kAdded);
#endif
}

}  // namespace hadal::test
