// What a model needs in memory, against what is free, before anything is loaded (DESIGN: Weights).
//
// Weights come from the tensor table (or the real checkpoint); caches from the row formats of
// spec deepseek-v4-vision-and-cache 6 and deepseek-v32 6. An engine that lays caches out differently passes its own
// numbers: they replace the estimates.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"

namespace hadal::checkpoint {

class Checkpoint;

enum class KvFormat { kFp8DsMla, kBf16 };
enum class IndexFormat { kMxfp4, kFp8 };  // of the V4 indexer keys; V3.2 stores FP8

struct MemoryRequest {
  int64_t context_length = 8192;  // tokens of one sequence
  int64_t max_seqs = 1;
  int64_t chunk_tokens = 512;  // rows of one prefill step
  KvFormat kv_format = KvFormat::kFp8DsMla;
  IndexFormat index_format = IndexFormat::kMxfp4;
  bool draft = false;  // the draft model's weights and cache too
  bool images = true;  // the vision tower's weights too

  // Exact numbers of an engine, in bytes; each replaces the estimate of its part.
  std::optional<int64_t> cache_bytes_per_sequence = {};
  std::optional<int64_t> cache_bytes = {};  // of one pool for all sequences
  std::optional<int64_t> scratch_bytes = {};
  int64_t extra_weight_bytes = 0;  // packed or converted copies beside the published weights
};

struct MemoryPlan {
  std::array<int64_t, kTensorCategories> weight_bytes{};  // indexed by TensorCategory
  int64_t extra_weight_bytes = 0;
  int64_t cache_bytes_per_token = 0;     // grows with the context
  int64_t cache_bytes_fixed = 0;         // of a sequence, whatever its length (V4: windows and compressor states)
  int64_t cache_bytes_per_sequence = 0;  // at context_length
  int64_t cache_bytes = 0;               // of max_seqs sequences
  int64_t scratch_bytes = 0;

  int64_t weights() const;
  int64_t total() const;
  std::string ToString() const;  // a few lines for people: every number with its unit
};

// Bytes that one more token adds to a sequence's cache, pages padded (spec vision-and-cache 6.7: V4-Flash 3,915 with
// FP8 index keys). Fractions of compressed rows are rounded up over the whole model.
double CacheBytesPerToken(const ModelConfig& config, KvFormat kv, IndexFormat index, bool draft);
// The part of a sequence's cache that does not grow: 3 window blocks a layer, 3 and 17 compressor state blocks.
int64_t CacheBytesFixed(const ModelConfig& config, KvFormat kv, bool draft);

// `checkpoint` may be null: weights are then those of the published formats.
MemoryPlan PlanMemory(const ModelConfig& config, const Checkpoint* checkpoint, const MemoryRequest& request);

struct AvailableMemory {
  int64_t bytes = 0;
  std::string source;  // "MemAvailable of /proc/meminfo", "memory.max of cgroup /x"
};

// The least of MemAvailable and what the limits of this process's cgroups (v2, v1) leave, reclaimable page cache
// counting as free. `root` is "" in production; tests point it at a directory with proc/ and sys/.
absl::StatusOr<AvailableMemory> ReadAvailableMemory(const std::string& root = "");

// ResourceExhausted with all numbers of the plan if it does not fit.
absl::Status CheckFits(const MemoryPlan& plan, const AvailableMemory& available);

// "1.50 GiB".
std::string BytesText(int64_t bytes);

}  // namespace hadal::checkpoint
