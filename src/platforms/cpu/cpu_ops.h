// The CPU platform: ops::Ops on SIMD kernels chosen at run time (SSE4, AVX2, AVX-512, AMX) and one thread pool.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ops/ops.h"
#include "platforms/cpu/row_kernels.h"

namespace hadal::cpu {

struct CpuOptions {
  ops::Numerics numerics = ops::Numerics::kPublished;
  int threads = 0;       // 0: as many as the process may use
  Isa isa = Isa::kAuto;  // the widest instruction set to use
};

// Fails when `isa` asks for what the CPU does not have.
absl::StatusOr<std::unique_ptr<ops::Ops>> MakeCpuOps(const CpuOptions& options);

// "auto", "baseline", "avx2", "avx512", "amx".
absl::StatusOr<Isa> ParseIsa(std::string_view name);
// What MakeCpuOps would use, e.g. "amx + avx512, 2 threads".
std::string DescribeCpu(const CpuOptions& options);

}  // namespace hadal::cpu
