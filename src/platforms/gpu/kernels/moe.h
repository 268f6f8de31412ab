// The mixture of experts: routing, and the experts' products, grouped by expert.
#pragma once

#include <cstdint>
#include <span>

#include "base/carver.h"
#include "ops/ops.h"
#include "platforms/gpu/backend.h"

namespace hadal::gpu::HADAL_GPU_NS {

// Where an expert's weights lie.
struct ExpertPointers {
  const void* data[3] = {};  // w1, w3, w2
  const void* scale[3] = {};
};

// What the experts of a layer have in common, and a table of them in device memory.
struct ExpertTable {
  const ExpertPointers* experts = nullptr;
  int64_t count = 0;
  DType dtype = DType::kBF16;
  bool float_scales = false;
  bool aligned = false;  // all weights on 16 bytes, in every row
  int64_t width = 0;     // of the hidden row

  // Of experts[0]. Whether `w` has the format and shape of the others is for CanJoin.
  static ExpertTable Of(const ops::ExpertWeights& expert);
  bool CanJoin(const ops::ExpertWeights& w, int64_t hidden) const;
};
ExpertPointers PointersOf(const ops::ExpertWeights& expert);
// All weights lie on 16 bytes, in every row.
bool AreAligned(const ops::ExpertWeights& expert);

// Rows of one expert that a block multiplies.
struct ExpertTask {
  int32_t expert;  // -1: the shared one
  int32_t slot;    // first
  int32_t rows;
};

// A slot is a row at an expert. The shared expert's come first, row by row; then those of every expert, in ascending
// order of rows.
struct MoeScratch {
  void Carve(const ops::WorkspaceSpec& spec, ops::Numerics numerics, Carver& carver);

  int32_t* slot_row = nullptr;
  float* slot_weight = nullptr;
  int32_t* choice_slot = nullptr;  // [T, k] slot of a row's choice, -1: none
  ExpertTask* tasks = nullptr;
  int32_t* task_count = nullptr;
  void* quantised = nullptr;  // [T, d] the input behind AQ
  void* hidden = nullptr;     // [slots, width] act
  void* out = nullptr;        // [slots, d] act
};

// Limits of the kernels.
inline constexpr int kMostExperts = 1024;
inline constexpr int kMostGroups = 64;   // of experts
inline constexpr int kMostChoices = 64;  // experts of a token

void LaunchMoeRoute(Stream stream, const ops::MoeRouteArgs& args);

// `shared` has no experts but a width where args.shared is set.
void LaunchMoeExperts(Stream stream, int multiprocessors, const ops::MoeExpertsArgs& args, const ExpertTable& routed,
                      const ExpertTable& shared, const MoeScratch& scratch);

}  // namespace hadal::gpu::HADAL_GPU_NS
