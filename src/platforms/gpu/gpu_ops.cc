#include <utility>

#include "base/status.h"
#include "platforms/gpu/fast_paths.h"
#include "platforms/gpu/gpu_ops_impl.h"

#define HADAL_STRING_OF(x) HADAL_STRING_OF_INNER(x)
#define HADAL_STRING_OF_INNER(x) #x

namespace hadal::gpu::HADAL_GPU_NS {

GpuOps::GpuOps(const GpuOptions& options, std::unique_ptr<Device> device)
    : options_(options), device_(std::move(device)) {}
GpuOps::~GpuOps() = default;

std::string_view GpuOps::name() const { return HADAL_STRING_OF(HADAL_GPU_NS); }

size_t GpuOps::Carve(const ops::WorkspaceSpec& spec, std::byte* base) {
  Carver carver(base);
  rows_.Carve(spec, options_.numerics, carver);
  linear_.Carve(spec, options_.numerics, carver);
  constexpr size_t kFastAlignment = 256;
  const auto take_fast = [&](size_t bytes) -> std::byte* {
    auto* fast = carver.Take<std::byte>(static_cast<int64_t>(bytes + kFastAlignment));
    if (fast == nullptr) return nullptr;
    return fast + (kFastAlignment - reinterpret_cast<uintptr_t>(fast) % kFastAlignment) % kFastAlignment;
  };
  linear_.fast_bytes = fast_products() ? FastLinearBytes(spec, options_.numerics) : 0;
  linear_.fast = take_fast(linear_.fast_bytes);
  fast_experts_ = take_fast(fast_products() ? FastExpertsBytes(spec, options_.numerics) : 0);
  moe_.Carve(spec, options_.numerics, carver);
  attention_.Carve(spec, options_.numerics, carver);
  return carver.used();
}

size_t GpuOps::WorkspaceBytes(const ops::WorkspaceSpec& spec) const {
  Carver carver(nullptr);
  RowsScratch().Carve(spec, options_.numerics, carver);
  LinearScratch().Carve(spec, options_.numerics, carver);
  constexpr size_t kFastAlignment = 256;
  for (const auto bytes_of : {FastLinearBytes, FastExpertsBytes}) {
    carver.Take<std::byte>(
        static_cast<int64_t>((fast_products() ? bytes_of(spec, options_.numerics) : 0) + kFastAlignment));
  }
  MoeScratch().Carve(spec, options_.numerics, carver);
  AttentionScratch().Carve(spec, options_.numerics, carver);
  return carver.used();
}

absl::Status GpuOps::Reserve(const ops::WorkspaceSpec& spec) {
  HADAL_RETURN_IF_ERROR(Synchronize());  // nothing uses the old scratch any more
  HADAL_ASSIGN_OR_RETURN(workspace_, device_->Allocate(WorkspaceBytes(spec), "the operators' scratch"));
  spec_ = spec;
  Carve(spec, workspace_.data());
  return absl::OkStatus();
}

absl::Status GpuOps::Synchronize() { return device_->Synchronize(); }

absl::StatusOr<std::unique_ptr<ops::Ops>> MakeGpuOps(const GpuOptions& options) {
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::Open(options.device));
  return std::make_unique<GpuOps>(options, std::move(device));
}

absl::StatusOr<std::string> DescribeGpu(const GpuOptions& options) {
  HADAL_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, Device::Open(options.device));
  const DeviceInfo& info = device->info();
  return fmt::format("{}, {}, {} multiprocessors", info.name, info.architecture, info.multiprocessors);
}

}  // namespace hadal::gpu::HADAL_GPU_NS
