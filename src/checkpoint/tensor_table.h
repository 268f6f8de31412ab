// The closed set of tensors that a model of a given configuration has, and the check of a checkpoint against it
// (spec deepseek-v4-text 2.2 to 2.4, deepseek-v4-vision-and-cache 1.3, deepseek-v32 2, serving-runtime 3.3).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_entry.h"

namespace hadal::checkpoint {

// A set of dtypes.
class DTypeSet {
 public:
  constexpr DTypeSet() = default;
  constexpr DTypeSet(std::initializer_list<DType> dtypes) {
    for (DType dtype : dtypes) bits_ |= Bit(dtype);
  }
  constexpr bool contains(DType dtype) const { return (bits_ & Bit(dtype)) != 0; }
  std::string ToString() const;  // "F8_E8M0 or F32"

 private:
  static constexpr uint32_t Bit(DType dtype) { return 1u << static_cast<int>(dtype); }
  uint32_t bits_ = 0;
};

// What memory is spent on; also how tensors are grouped in reports.
enum class TensorCategory {
  kEmbedding,  // embed, head
  kAttention,  // projections, norms, sinks, compressors, indexers
  kExperts,    // routed
  kDense,      // shared experts, dense FFN layers
  kOther,      // router, hyper-connections, norms
  kVision,     // tower, aligner, image vectors
  kDraft,      // MTP or DSpark
};
inline constexpr int kTensorCategories = 7;
std::string_view CategoryName(TensorCategory category);

struct TensorSpec {
  std::string name;               // canonical
  DTypeSet dtypes;                // of the normalised entry (tensor_entry.h)
  DType preferred = DType::kF32;  // what published instruct checkpoints hold, and what synth writes
  std::vector<int64_t> shape;     // logical
  TensorCategory category = TensorCategory::kOther;
  int scale_block = 0;  // inputs that share a scale, if this is a scale: 128 (FP8) or 32 (FP4)

  bool is_scale() const { return scale_block > 0; }
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

class TensorTable {
 public:
  // Needs a resolved expert_dtype for V4 (kUnknown counts as kFp4). `draft` adds the MTP blocks (num_mtp_layers) or the
  // DSpark stages (config.dspark); without it the table is the main model alone.
  static TensorTable For(const ModelConfig& config, bool draft);

  TensorTable(TensorTable&&) = default;
  TensorTable& operator=(TensorTable&&) = default;

  const std::vector<TensorSpec>& specs() const& { return specs_; }
  std::vector<TensorSpec> specs() && { return std::move(specs_); }
  const TensorSpec* Find(std::string_view name) const;

 private:
  TensorTable() = default;

  std::vector<TensorSpec> specs_;
  std::unordered_map<std::string_view, size_t> index_;  // keys live in specs_
};

// Brings an entry to the form that tensor_entry.h promises, as its spec demands: I8/U8 [.., n/2] to F4 [.., n] for
// packed FP4, U8 to F8_E8M0 for scales. Other entries stay as they are.
void NormaliseEntry(const TensorSpec& spec, TensorEntry* entry);

struct TableCheck {
  std::vector<std::string> missing;     // names
  std::vector<std::string> mismatched;  // whole messages: tensor, expected, found, file
  std::vector<std::string> unexpected;  // names, except those of layers_beyond
  // Layers that the files hold beyond the configured ones, with their number of tensors: "layers.43" -> 1575.
  std::vector<std::pair<std::string, int64_t>> layers_beyond;
};

// `entries`: normalised, under canonical names.
TableCheck CheckTensors(const ModelConfig& config, const TensorTable& table, const std::vector<TensorEntry>& entries);

// "layers.12." -> 12 for names that begin so (also "mtp.0."); -1 otherwise. `stem` is "layers" or "mtp".
int64_t LayerOf(std::string_view name, std::string_view stem);

// Joins up to `shown` names and counts the rest, for messages.
std::string NameList(const std::vector<std::string>& names, size_t shown = 20);

}  // namespace hadal::checkpoint
