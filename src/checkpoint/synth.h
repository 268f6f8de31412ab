// Checkpoints of any published shape with random weights: on disk (hadal synth) or in memory (--load-format dummy).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_entry.h"

namespace hadal::checkpoint {

// "v4-flash", "v4-flash-base" (FP8 experts), "v4-flash-vision" (with a DSpark drafter, as published), "v4-pro", "v3.2".
// InvalidArgument lists these for other names.
std::vector<std::string_view> PresetNames();
absl::StatusOr<ModelConfig> PresetConfig(std::string_view name);

// What to change in a configuration, e.g. to make it small. Absent fields stay. Without compress_ratios, the list is
// cut or repeated (its last two entries) to the number of layers; MTP blocks have ratio 0.
struct ConfigOverrides {
  std::optional<int64_t> num_hidden_layers = {};
  std::optional<int64_t> num_mtp_layers = {};
  std::optional<int64_t> num_hash_layers = {};
  std::optional<int64_t> hidden_size = {};
  std::optional<int64_t> num_attention_heads = {};
  std::optional<int64_t> q_lora_rank = {};
  std::optional<int64_t> o_groups = {};
  std::optional<int64_t> o_lora_rank = {};
  std::optional<int64_t> moe_intermediate_size = {};
  std::optional<int64_t> n_routed_experts = {};
  std::optional<int64_t> num_experts_per_tok = {};
  std::optional<int64_t> vocab_size = {};
  std::optional<int64_t> index_topk = {};
  std::optional<std::vector<int>> compress_ratios = {};  // main layers, or main layers and MTP blocks
  std::optional<int64_t> intermediate_size = {};         // V3.x
  std::optional<int64_t> first_k_dense_replace = {};     // V3.x
};
// InvalidArgument, as ParseModelConfig would say it, if the result is not a possible model.
absl::StatusOr<ModelConfig> ApplyOverrides(ModelConfig config, const ConfigOverrides& overrides);

struct SynthOptions {
  uint64_t seed = 0;
  int64_t max_shard_bytes = int64_t{4} << 30;
  bool f32_scales = false;  // as base checkpoints have them; V3.x always has F32
  // A directory whose tokenizer.json and tokenizer_config.json are copied. Nothing else gives a synthetic checkpoint a
  // tokenizer: without it, only token ids can be fed to the model.
  std::string tokenizer_dir = {};
};

struct SynthReport {
  int64_t bytes = 0;  // of all files written
  int64_t tensors = 0;
  int shards = 0;
  double seconds = 0;
};

// Writes config.json, generation_config.json, shards and index into `dir`, which is created. ResourceExhausted with the
// numbers if the disk has too little room. The same configuration, options and seed give the same files.
absl::StatusOr<SynthReport> WriteSyntheticCheckpoint(const ModelConfig& config, const std::string& dir,
                                                     const SynthOptions& options);

// The weights that WriteSyntheticCheckpoint would write, in anonymous memory.
class DummyWeights : public WeightSource {
 public:
  // Includes the draft model if `draft`. `threads` share the filling. ResourceExhausted if the memory cannot be mapped;
  // check a MemoryPlan first, filling touches all of it.
  static absl::StatusOr<std::unique_ptr<DummyWeights>> Create(const ModelConfig& config, const SynthOptions& options,
                                                              bool draft, int threads);
  ~DummyWeights() override;

  const ModelConfig& config() const override;
  const TensorEntry* Find(std::string_view name) const override;
  const std::vector<TensorEntry>& tensors() const override;

 private:
  struct State;
  explicit DummyWeights(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace hadal::checkpoint
