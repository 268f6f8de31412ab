#include "models/registry/platforms.h"

#include <utility>

#include "base/status.h"
#include "ops/reference/reference_ops.h"
#include "platforms/cpu/cpu_ops.h"
#include "platforms/xpu/xpu.h"

namespace hadal::models {
namespace {

absl::StatusOr<ops::Numerics> ParseNumerics(std::string_view name) {
  if (name == "published") return ops::Numerics::kPublished;
  if (name == "f32") return ops::Numerics::kF32;
  return InvalidArgument("unknown numerics \"{}\"; expected published or f32", name);
}

absl::StatusOr<Platform> MakeCpu(const ModelOptions& options, ops::Numerics numerics) {
  cpu::CpuOptions cpu;
  cpu.numerics = numerics;
  cpu.threads = options.threads;
  HADAL_ASSIGN_OR_RETURN(cpu.isa, cpu::ParseIsa(options.isa));
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> ops, cpu::MakeCpuOps(cpu));
  return Platform{"cpu", cpu::DescribeCpu(cpu), std::move(ops)};
}

}  // namespace

std::string AvailablePlatforms() { return "cpu, reference"; }

absl::StatusOr<Platform> MakePlatform(const ModelOptions& options) {
  HADAL_ASSIGN_OR_RETURN(const ops::Numerics numerics, ParseNumerics(options.numerics));
  if (options.device == "auto" || options.device == "cpu") return MakeCpu(options, numerics);
  if (options.device == "reference") return Platform{"reference", "plain loops, slow", ops::MakeReferenceOps(numerics)};
  if (options.device == "xpu") {
    const absl::Status status = xpu::MakeXpuOps().status();
    return Unimplemented("{}; available platforms: {}", Message(status), AvailablePlatforms());
  }
  if (options.device == "cuda" || options.device == "hip") {
    return Unimplemented("this build has no {} platform; available platforms: {}", options.device,
                         AvailablePlatforms());
  }
  return InvalidArgument("unknown device \"{}\"; expected auto, cpu, cuda, hip, xpu or reference", options.device);
}

}  // namespace hadal::models
