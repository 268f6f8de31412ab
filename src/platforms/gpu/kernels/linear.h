// Products with weights in their published formats: Linear and GroupedLinear.
#pragma once

#include <cstdint>
#include <span>

#include "base/carver.h"
#include "ops/ops.h"
#include "platforms/gpu/backend.h"

namespace hadal::gpu::HADAL_GPU_NS {

struct LinearScratch {
  void Carve(const ops::WorkspaceSpec& spec, ops::Numerics numerics, Carver& carver);

  void* quantised = nullptr;    // activations behind InputQuant::kFp8
  int64_t quantised_bytes = 0;  // of which a call with more rows takes as many at a time as fit
  void* fast = nullptr;         // fast_paths.h
  size_t fast_bytes = 0;
};

// One product of a launch: outputs [first, first+n) of a weight from columns of x.
struct LinearJob {
  const ops::LinearWeight* weight = nullptr;
  int64_t first = 0;
  int64_t n = 0;
  int64_t x_column = 0;
  ops::Tensor out = {};  // its first n columns are written
  ops::Vector bias = {};
};

// to[row] = AQ(x[row], 128); to: bf16.
void LaunchQuantise(Stream stream, const ops::Tensor& x, const ops::Tensor& to);

// The jobs read the same rows of x, `k` of its columns each, and have weights of one format. multiprocessors: of the
// device, whose blocks a small product should fill.
void LaunchLinear(Stream stream, int multiprocessors, const ops::Tensor& x, std::span<const LinearJob> jobs);

// Jobs that one launch may take.
inline constexpr int kLinearJobs = 8;

}  // namespace hadal::gpu::HADAL_GPU_NS
