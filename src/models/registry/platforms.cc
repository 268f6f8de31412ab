#include "models/registry/platforms.h"

#include <charconv>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/status.h"
#include "ops/reference/reference_ops.h"
#include "platforms/cpu/cpu_ops.h"
#include "platforms/gpu/gpu_ops.h"
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

std::map<std::string, MakeOps, std::less<>>& AddedPlatforms() {
  static std::map<std::string, MakeOps, std::less<>> added;
  return added;
}

// A platform with the operators of one GPU. `device`: "cuda", or "cuda:1" for the second card.
template <typename Make, typename Describe>
[[maybe_unused]] absl::StatusOr<Platform> MakeGpu(const std::string& name, const std::string& device,
                                                  const ModelOptions& options, ops::Numerics numerics, Make make,
                                                  Describe describe) {
  gpu::GpuOptions wanted;
  wanted.numerics = numerics;
  wanted.deterministic = options.deterministic;
  wanted.fp8_products = options.fp8_products;
  if (device.size() > name.size()) {
    const char* begin = device.data() + name.size() + 1;
    const char* end = device.data() + device.size();
    const auto [stop, error] = std::from_chars(begin, end, wanted.device);
    if (error != std::errc() || stop != end || wanted.device < 0) {
      return InvalidArgument("device \"{}\"; expected {} or {}:N, the cards counted from 0", device, name, name);
    }
  }
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> ops, make(wanted));
  HADAL_ASSIGN_OR_RETURN(std::string description, describe(wanted));
  return Platform{name, std::move(description), std::move(ops)};
}

bool Names(const std::string& device, std::string_view platform) {
  return device.compare(0, platform.size(), platform) == 0 &&
         (device.size() == platform.size() || device[platform.size()] == ':');
}

absl::StatusOr<Platform> MakeCuda([[maybe_unused]] const std::string& device,
                                  [[maybe_unused]] const ModelOptions& options,
                                  [[maybe_unused]] ops::Numerics numerics) {
#if HADAL_HAS_CUDA
  return MakeGpu("cuda", device, options, numerics, gpu::cuda::MakeGpuOps, gpu::cuda::DescribeGpu);
#else
  return Unimplemented("this build has no cuda platform; available platforms: {}", AvailablePlatforms());
#endif
}
absl::StatusOr<Platform> MakeHip([[maybe_unused]] const std::string& device,
                                 [[maybe_unused]] const ModelOptions& options,
                                 [[maybe_unused]] ops::Numerics numerics) {
#if HADAL_HAS_HIP
  return MakeGpu("hip", device, options, numerics, gpu::hip::MakeGpuOps, gpu::hip::DescribeGpu);
#else
  return Unimplemented("this build has no hip platform; available platforms: {}", AvailablePlatforms());
#endif
}

}  // namespace

std::string AvailablePlatforms() {
  std::string out = "cpu, reference";
  if (HADAL_HAS_CUDA) out += ", cuda";
  if (HADAL_HAS_HIP) out += ", hip";
  for (const auto& [name, make] : AddedPlatforms()) out += ", " + name;
  return out;
}

void AddPlatform(const std::string& name, MakeOps make) { AddedPlatforms()[name] = make; }

absl::StatusOr<Platform> MakePlatform(const ModelOptions& options) {
  HADAL_ASSIGN_OR_RETURN(const ops::Numerics numerics, ParseNumerics(options.numerics));
  if (const auto added = AddedPlatforms().find(options.device); added != AddedPlatforms().end()) {
    HADAL_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> ops, added->second(options, numerics));
    return Platform{added->first, "added", std::move(ops)};
  }
  if (options.device == "cpu") return MakeCpu(options, numerics);
  if (options.device == "reference") return Platform{"reference", "plain loops, slow", ops::MakeReferenceOps(numerics)};
  if (Names(options.device, "cuda")) return MakeCuda(options.device, options, numerics);
  if (Names(options.device, "hip")) return MakeHip(options.device, options, numerics);
  if (options.device == "xpu") {
    const absl::Status status = xpu::MakeXpuOps().status();
    return Unimplemented("{}; available platforms: {}", Message(status), AvailablePlatforms());
  }
  if (options.device == "auto") {
    // A card that is there but cannot be used (another process has it, no kernels for it) is said and not passed over.
    const auto settled = [](const absl::StatusOr<Platform>& platform) {
      return platform.ok() || !absl::IsUnavailable(platform.status());
    };
    if (HADAL_HAS_CUDA) {
      absl::StatusOr<Platform> cuda = MakeCuda("cuda", options, numerics);
      if (settled(cuda)) return cuda;
    }
    if (HADAL_HAS_HIP) {
      absl::StatusOr<Platform> hip = MakeHip("hip", options, numerics);
      if (settled(hip)) return hip;
    }
    return MakeCpu(options, numerics);
  }
  return InvalidArgument("unknown device \"{}\"; expected auto, cpu, cuda, hip, xpu or reference", options.device);
}

}  // namespace hadal::models
