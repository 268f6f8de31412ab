// One named tensor as the rest of the engine sees it, and the interface behind which real and dummy weights stand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"

namespace hadal::checkpoint {

struct ModelConfig;

// A read-only view of a tensor's bytes, row-major, little-endian.
//
// Entries that come out of a WeightSource are in one form whatever the files hold:
//   - names are the canonical ones (weight_map.h);
//   - packed FP4 is kF4E2M1 with the LOGICAL shape [out, in], though files may store I8/U8 [out, in/2];
//   - scales are kF8E8M0 or kF32, though files may store E8M0 bytes as U8;
//   - `data` is aligned to the size of an element (misaligned tensors are copied once when the checkpoint is opened).
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  // lives as long as the file or WeightSource it came from
  int64_t bytes = 0;
  std::string_view file = {};  // path of the file that holds it; "(dummy)" for generated weights
  bool droppable = false;      // data lies in a mapped file, whose pages the kernel can read again

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data);
  }
};

// "[4096, 1024]".
std::string ShapeText(const std::vector<int64_t>& shape);

// Values of a BF16, F16 or F32 tensor as fp32 (exact). InvalidArgument, naming the tensor, for other dtypes.
absl::StatusOr<std::vector<float>> ReadFloats(const TensorEntry& entry);

// Hints to the kernel about the mapped pages that hold the entry; no effect on values. Prefetch starts reading them;
// DropPages lets them go after a copy to a device was made (field report B121), ReleasePages lets go of this process's
// hold only, so that the next start finds the file in memory.
void Prefetch(const TensorEntry& entry);
void DropPages(const TensorEntry& entry);
void ReleasePages(const TensorEntry& entry);

// Where weights come from: Checkpoint (files) or DummyWeights (random). Thread-safe for concurrent readers.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const std::vector<TensorEntry>& tensors() const = 0;  // all of them

  // By canonical name, e.g. "layers.0.attn.wq_a.weight"; nullptr when there is none. The pointer stays valid as long as
  // the source.
  virtual const TensorEntry* Find(std::string_view name) const = 0;

  // Same, with NotFound naming the tensor and the source.
  absl::StatusOr<const TensorEntry*> Get(std::string_view name) const;
};

}  // namespace hadal::checkpoint
