#include "platforms/gpu/fast_paths.h"

#include <algorithm>
#include <array>

#include "base/status.h"
#include "platforms/nvidia/hopper_linear.h"

namespace hadal::gpu::cuda {
namespace {

constexpr int kHopper = 90;
constexpr int64_t kMostRows = 8192;  // quantised at a time

}  // namespace

size_t FastLinearBytes(const ops::WorkspaceSpec& spec, ops::Numerics numerics) {
  if (numerics == ops::Numerics::kF32 || spec.max_tokens < kFastLinearRows) return 0;
  return HopperInput::Bytes(std::min(spec.max_tokens, kMostRows), spec.max_linear_k);
}

bool FastLinearTakes(const DeviceInfo& device, const ops::Tensor& x, const ops::LinearTarget& target) {
  return device.capability == kHopper && x.dtype == DType::kBF16 && target.quant == ops::InputQuant::kFp8 &&
         target.bias.empty() && HopperLinearSupported(*target.weight, target.out);
}

void FastLinear(Stream stream, const ops::Tensor& x, std::span<const ops::LinearTarget* const> targets, void* scratch,
                size_t scratch_bytes) {
  int64_t most = std::min(x.rows, kMostRows);
  while (HopperInput::Bytes(most, x.cols) > scratch_bytes) most = most * 3 / 4;
  HADAL_CHECK(most > 0);
  const auto rows_of = [](const ops::Tensor& t, int64_t first, int64_t rows) {
    ops::Tensor part = t;
    part.data = static_cast<std::byte*>(t.data) + DTypeBytes(t.dtype, first * t.stride);
    part.rows = rows;
    return part;
  };
  for (int64_t first = 0; first < x.rows; first += most) {
    const int64_t rows = std::min(most, x.rows - first);
    const HopperInput input = HopperInput::Carve(scratch, rows, x.cols);
    LaunchHopperQuantize(stream, rows_of(x, first, rows), input);
    std::array<HopperTarget, kHopperTargets> group;
    for (size_t i = 0; i < targets.size(); i += kHopperTargets) {
      const size_t count = std::min<size_t>(kHopperTargets, targets.size() - i);
      for (size_t j = 0; j < count; ++j) {
        group[j] = {targets[i + j]->weight, rows_of(targets[i + j]->out, first, rows)};
      }
      LaunchHopperLinear(stream, input, {group.data(), count});
    }
  }
}

}  // namespace hadal::gpu::cuda
