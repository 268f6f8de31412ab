#include "platforms/gpu/device.h"
#include "platforms/gpu/formats.h"
#include "platforms/gpu/kernels/linear.h"

namespace hadal::gpu::HADAL_GPU_NS {

void LinearScratch::Carve(const ops::WorkspaceSpec& /*spec*/, ops::Numerics /*numerics*/, Carver& /*carver*/) {}

}  // namespace hadal::gpu::HADAL_GPU_NS
