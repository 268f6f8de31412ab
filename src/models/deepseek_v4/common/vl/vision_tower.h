// The vision tower and aligner: patches of an image to the embeddings of its tokens (spec
// deepseek-v4-vision-and-cache 3), as calls to ops::Ops.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"
#include "models/deepseek_v4/common/vl/vision_weights.h"
#include "models/model.h"
#include "ops/ops.h"

namespace hadal::models::deepseek_v4 {

// Patches of the largest image that the size rules give: every token of at most max_n_token covers r x r patches.
int64_t MaxPatches(const checkpoint::VisionConfig& vision);

class VisionTower {
 public:
  // `ops` must be reserved for the tower (WorkspaceFor with images) and outlive it; linears take `max_rows` rows at a
  // time.
  static absl::StatusOr<std::unique_ptr<VisionTower>> Create(const checkpoint::ModelConfig& config,
                                                             VisionWeights weights, ops::Ops* ops, int64_t max_rows);
  static size_t Bytes(const checkpoint::ModelConfig& config, DType act);

  // Model::EncodeImage; `out` is the host's.
  absl::Status Encode(const ImagePatches& image, ops::Tensor out);
  const VisionWeights& weights() const { return weights_; }

 private:
  struct Buffers {
    ops::Tensor pixels;              // [N, 3*p*p]
    ops::Tensor x, y, z;             // [N, dim]: residual, input of a block's half, its output
    ops::Tensor qkv;                 // [N, 3*dim]
    ops::Tensor packed;              // [3*heads*N, head_dim]
    ops::Tensor gate_up;             // [N, 2*inter]
    ops::Tensor hidden;              // [N, inter]
    ops::Tensor unfolded;            // [L, dim*r*r]
    ops::Tensor aligned, projected;  // [L, hidden]
    float* cos = nullptr;            // [N, head_dim/2]
    float* sin = nullptr;
    uint8_t* patches = nullptr;    // [N, 3*p*p]
    ops::Tensor embeddings;        // [L, hidden]: of the image's tokens in their order
    const void** order = nullptr;  // [L] rows of `aligned` in that order
  };

  VisionTower(checkpoint::ModelConfig config, VisionWeights weights, ops::Ops* ops, int64_t max_rows)
      : config_(std::move(config)), weights_(std::move(weights)), ops_(ops), max_rows_(max_rows) {}

  // Lays the buffers out for n patches and l squares of them; null only counts.
  static size_t Carve(const checkpoint::ModelConfig& config, DType act, int64_t n, int64_t l, std::byte* base,
                      Buffers* out);
  absl::Status Check(const ImagePatches& image, const ops::Tensor& out) const;
  void Linear(const ops::Tensor& x, const ops::LinearWeight& weight, const ops::Vector& bias, const ops::Tensor& out);
  void UploadAngles(int64_t rows, int64_t cols, const Buffers& b);
  void Block(const VisionBlockWeights& weights, const Buffers& b);

  checkpoint::ModelConfig config_;
  VisionWeights weights_;
  ops::Ops* ops_;
  int64_t max_rows_;
  ops::Buffer memory_;
  // What goes up for an image.
  std::vector<const void*> row_pointers_;
  std::vector<float> cos_, sin_;
};

}  // namespace hadal::models::deepseek_v4
