// Kernels over the rows of a step that are bound by memory: embeddings, norms, rotations, what is written to the
// caches, hyper-connections, compressors. Each launcher is one operator of ops/ops.h, which says what it computes.
#pragma once

#include <cstdint>
#include <span>

#include "base/carver.h"
#include "ops/ops.h"
#include "platforms/gpu/backend.h"

namespace hadal::gpu::HADAL_GPU_NS {

// Scratch of these kernels.
struct RowsScratch {
  void Carve(const ops::WorkspaceSpec& spec, ops::Numerics numerics, Carver& carver);
};

void LaunchRmsNorm(Stream stream, const ops::Tensor& x, const ops::Vector& weight, float eps, const ops::Tensor& out);

}  // namespace hadal::gpu::HADAL_GPU_NS
