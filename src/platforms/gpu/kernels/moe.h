// The mixture of experts: routing, and the experts' products, grouped by expert.
#pragma once

#include <cstdint>
#include <span>

#include "base/carver.h"
#include "ops/ops.h"
#include "platforms/gpu/backend.h"

namespace hadal::gpu::HADAL_GPU_NS {

struct MoeScratch {
  void Carve(const ops::WorkspaceSpec& spec, ops::Numerics numerics, Carver& carver);
};

}  // namespace hadal::gpu::HADAL_GPU_NS
