// A model directory as a user downloads it: config.json, shards and index, checked as a whole before any weight is
// read.
//
//   HADAL_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> ckpt, Checkpoint::Open(dir));
//   const TensorEntry* wq_a = ckpt->Find("layers.0.attn.wq_a.weight");
//
// Open maps the files and reads their headers only. It fails, naming every tensor concerned, when a tensor is missing,
// misshapen or of a dtype that the model does not have; what it did not expect it reports in warnings().
//
// Canonical names (weight_map.h): V4 the published names of spec deepseek-v4-text 2.2, V3.x the published names of
// spec deepseek-v32 2 without the leading "model.". Scales are "<module>.scale" in V4 and "<module>.weight_scale_inv"
// in V3.x. Slices of stacked experts appear under the names of the single experts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_entry.h"

namespace hadal::checkpoint {

// What stands under "mtp.*" (V4) or behind the last layer (V3.x). Field report B97.
enum class DraftKind { kNone, kMtp, kDSpark };

class Checkpoint : public WeightSource {
 public:
  // NotFound/InvalidArgument/Unimplemented as said above. `dir` is a directory.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& dir);
  ~Checkpoint() override;

  // expert_dtype and kv_b_dtype are resolved; num_mtp_layers is 0 if the files hold no MTP block (a warning says so).
  const ModelConfig& config() const override;
  const GenerationConfig& generation_config() const;
  // Also takes names with one leading "model.".
  const TensorEntry* Find(std::string_view name) const override;

  const std::vector<TensorEntry>& tensors() const override;  // sorted by name
  DraftKind draft() const;
  const std::vector<std::string>& warnings() const;
  const std::vector<std::string>& files() const;  // paths of the shards
  int64_t tensor_bytes() const;                   // of all known tensors
  int64_t realigned_bytes() const;                // held in copies because the file placed them misaligned
  const std::string& dir() const;

  // Copies the weights into huge pages of memory, which a memory-bound decode reads up to twice as fast as mapped files
  // (docs/performance.md): those of the model's table, MTP blocks with `draft`, the vision tower with `images`. All
  // others stay mapped. ResourceExhausted, with nothing changed, if there is no address space. `report` is called with
  // the bytes done.
  absl::Status CopyToMemory(int threads, bool draft, bool images, absl::FunctionRef<void(int64_t)> report);

  // Reads values that would poison a run: see CheckScale and CheckTokenExperts. Reads all scales (about 3 % of an FP4
  // checkpoint).
  absl::Status CheckValues() const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// InvalidArgument naming tensor and element if a scale is NaN (E8M0 byte 0xFF), or F32 and NaN, infinite or not
// positive.
absl::Status CheckScale(const TensorEntry& entry);

// InvalidArgument naming the row if an entry of a tid2eid table (I64 or I32 [vocab, k]) is not in [0, experts).
absl::Status CheckTokenExperts(const TensorEntry& entry, int64_t experts);

}  // namespace hadal::checkpoint
