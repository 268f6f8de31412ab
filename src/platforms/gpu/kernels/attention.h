// Attention over paged rows, the indexer's scores and choice, and the vision tower's attention.
#pragma once

#include <cstdint>

#include "base/carver.h"
#include "ops/ops.h"
#include "platforms/gpu/backend.h"

namespace hadal::gpu::HADAL_GPU_NS {

// What the kernels of published numerics have room for: shared memory holds a row and the queries of a block.
inline constexpr int64_t kMostAttentionDim = 576;
inline constexpr int64_t kMostAttentionValues = 512;
inline constexpr int64_t kMostIndexHeads = 64;
inline constexpr int64_t kMostIndexDim = 128;
inline constexpr int64_t kMostVisionDim = 128;

// What the launchers need to know of the device.
struct AttentionDevice {
  int multiprocessors = 1;
};

struct AttentionScratch {
  void Carve(const ops::WorkspaceSpec& spec, ops::Numerics numerics, Carver& carver);

  float* sums = nullptr;  // SparseAttention: sums of sections of a query's rows (kernels/attention.cu)
  int64_t sums_size = 0;
  float* scores = nullptr;  // IndexerTopk: [score_tokens, score_rows]
  int64_t score_tokens = 0;
  int64_t score_rows = 0;
};

void LaunchSparseAttention(Stream stream, const AttentionDevice& device, const AttentionScratch& scratch,
                           const ops::SparseAttentionArgs& args);
void LaunchIndexerTopk(Stream stream, const AttentionDevice& device, const AttentionScratch& scratch,
                       const ops::IndexerTopkArgs& args);
void LaunchVisionAttention(Stream stream, const ops::VisionAttentionArgs& args);

}  // namespace hadal::gpu::HADAL_GPU_NS
