// The implementations of ops.h that tests/unit/ops runs on. A platform joins the suite with one entry here (and its
// library in tests/unit/ops/CMakeLists.txt).
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "ops/ops.h"
#include "ops/reference/reference_ops.h"
#include "platforms/cpu/cpu_ops.h"
#if HADAL_TEST_EMULATED_GPU || HADAL_TEST_CUDA
#include "platforms/gpu/gpu_ops.h"
#endif

namespace hadal::test {

struct OpsImplementation {
  std::string name;  // letters, digits and underscores: part of the test's name
  std::function<std::unique_ptr<ops::Ops>(ops::Numerics)> make;
};

inline void PrintTo(const OpsImplementation& implementation, std::ostream* out) { *out << implementation.name; }

// The CPU platform with one instruction set and thread count.
inline OpsImplementation CpuImplementation(const std::string& name, cpu::Isa isa, int threads) {
  return {name, [isa, threads](ops::Numerics numerics) {
            cpu::CpuOptions options;
            options.numerics = numerics;
            options.threads = threads;
            options.isa = isa;
            return *cpu::MakeCpuOps(options);
          }};
}

// The reference, and the CPU platform for every instruction set that this machine has.
inline std::vector<OpsImplementation> OpsImplementations() {
#if HADAL_TEST_CUDA
  // Null where there is no device: the tests are skipped.
  return {{"cuda", [](ops::Numerics numerics) -> std::unique_ptr<ops::Ops> {
             gpu::GpuOptions options;
             options.numerics = numerics;
             options.deterministic = true;
             auto made = gpu::cuda::MakeGpuOps(options);
             return made.ok() ? *std::move(made) : nullptr;
           }}};
#endif
  std::vector<OpsImplementation> out = {{"reference", ops::MakeReferenceOps}};
  const std::pair<const char*, cpu::Isa> isas[] = {{"cpu_baseline", cpu::Isa::kBaseline},
                                                   {"cpu_avx2", cpu::Isa::kAvx2},
                                                   {"cpu_avx512", cpu::Isa::kAvx512},
                                                   {"cpu_amx", cpu::Isa::kAmx}};
  for (const auto& [name, isa] : isas) {
    cpu::CpuOptions options;
    options.threads = 1;
    options.isa = isa;
    if (cpu::MakeCpuOps(options).ok()) out.push_back(CpuImplementation(name, isa, 2));
  }
#if HADAL_TEST_EMULATED_GPU
  // Kernels of GPUs, on fibers: device 0 has waves of 32 lanes, device 1 of 64.
  for (const int wave : {32, 64}) {
    out.push_back({wave == 32 ? "gpu_wave32" : "gpu_wave64", [wave](ops::Numerics numerics) {
                     gpu::emulated::GpuOptions options;
                     options.numerics = numerics;
                     options.device = wave == 32 ? 0 : 1;
                     options.deterministic = true;
                     return *gpu::emulated::MakeGpuOps(options);
                   }});
  }
#endif
  return out;
}

// Those that have a feature.
inline std::vector<OpsImplementation> OpsImplementations(ops::Feature feature) {
  std::vector<OpsImplementation> out;
  std::vector<OpsImplementation> all = OpsImplementations();
  for (OpsImplementation& implementation : all) {
    const std::unique_ptr<ops::Ops> ops = implementation.make(ops::Numerics::kF32);
    if (ops != nullptr && ops->Supports(feature)) out.push_back(std::move(implementation));
  }
  return out;
}

}  // namespace hadal::test
