#include "platforms/gpu/device.h"
#include "platforms/gpu/formats.h"
#include "platforms/gpu/kernels/moe.h"

namespace hadal::gpu::HADAL_GPU_NS {

void MoeScratch::Carve(const ops::WorkspaceSpec& /*spec*/, ops::Numerics /*numerics*/, Carver& /*carver*/) {}

}  // namespace hadal::gpu::HADAL_GPU_NS
