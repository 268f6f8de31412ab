#include "platforms/gpu/device.h"
#include "platforms/gpu/formats.h"
#include "platforms/gpu/kernels/attention.h"

namespace hadal::gpu::HADAL_GPU_NS {

void AttentionScratch::Carve(const ops::WorkspaceSpec& /*spec*/, ops::Numerics /*numerics*/, Carver& /*carver*/) {}

}  // namespace hadal::gpu::HADAL_GPU_NS
