// Attention over paged rows, the indexer's scores and choice, and the vision tower's attention and pointwise kernels.
#pragma once

#include <cstdint>
#include <span>

#include "base/carver.h"
#include "ops/ops.h"
#include "platforms/gpu/backend.h"

namespace hadal::gpu::HADAL_GPU_NS {

struct AttentionScratch {
  void Carve(const ops::WorkspaceSpec& spec, ops::Numerics numerics, Carver& carver);
};

}  // namespace hadal::gpu::HADAL_GPU_NS
