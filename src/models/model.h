// What the runtime knows of a model: one step over any mix of sequences, and the room it needs.
//
// A model holds its weights, the caches of max_seqs sequences and the buffers of one step of max_batch_tokens rows, all
// reserved when it is created; a step allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "ops/ops.h"

namespace hadal::models {

struct ModelLimits {
  int64_t max_seqs = 1;
  int64_t max_context = 4096;      // positions per sequence
  int64_t max_batch_tokens = 512;  // rows of one step
  int64_t max_logit_rows = 1;      // rows of one step whose logits are asked for
  // First of the five consecutive ids of image tokens (start, pad, image, newline, end), from the tokenizer; 0: a step
  // has none.
  int32_t image_first_id = 0;
  bool images = false;  // EncodeImage is called; without, a vision checkpoint's tower is not built
};

// What the model keeps besides the weights, in bytes.
struct ModelMemory {
  size_t cache = 0;    // all sequences
  size_t scratch = 0;  // buffers of one step, the platform's workspace included
};

// Looks into a step, for tests and tools; calls come in layer order. Layers count the MTP blocks behind the main ones.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // After layer `layer`, or -1 after the embedding: [T, hc*d].
  virtual void OnStreams(int /*layer*/, const ops::Tensor& /*streams*/) {}
  // Routing of a layer: logits [T, E]; experts and weights [T, k] may be changed before they are used.
  virtual void OnRoute(int /*layer*/, const ops::Tensor& /*logits*/, int32_t* /*experts*/, float* /*weights*/) {}
  // Indexer of a layer: scores [T, stride] (rows visible to each token only), topk [T, top_k] may be changed.
  virtual void OnIndex(int /*layer*/, const float* /*scores*/, int64_t /*stride*/, int32_t* /*topk*/) {}
};

// One step. Rows of one sequence come in position order and continue where its last step ended (position 0 starts a
// sequence afresh); rows of different sequences may mix.
struct StepInput {
  std::span<const int32_t> ids;
  std::span<const int32_t> positions;
  std::span<const int32_t> seqs;        // in [0, max_seqs)
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted
  float* logits = nullptr;              // [logit_rows, vocab], host memory
  StepObserver* observer = nullptr;
  // Vision: per row the embedding that stands in for that of its id, [hidden] act; null: the id's own. Empty: none.
  std::span<const void* const> embeddings = {};
  // Vision: tokens of its image span that a row sees on its left and right (spec vision-and-cache 5.1); both or
  // neither. Every row of a span has to be in the step. Draft ignores them.
  std::span<const int32_t> left_visible = {};
  std::span<const int32_t> right_visible = {};
};

// One preprocessed image.
struct ImagePatches {
  std::span<const uint8_t> pixels;  // [rows*cols, 3, p, p]
  int64_t rows = 0;                 // of patches
  int64_t cols = 0;
  std::span<const int32_t> order;  // aligner row of each image token
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const checkpoint::ModelConfig& config() const = 0;
  virtual const ModelLimits& limits() const = 0;
  virtual ModelMemory memory() const = 0;
  virtual ops::Ops& ops() = 0;

  // InvalidArgument if ids, positions, sequences or sizes are outside the limits; nothing is computed then.
  virtual absl::Status Forward(const StepInput& step) = 0;

  // Draft block `block` over the rows of the last Forward (or, for a further draft, of the last Draft): row i combines
  // that step's residual streams with ids[i], the token that follows it (spec deepseek-v4-text 4). Unimplemented when
  // the checkpoint has no such block.
  virtual absl::Status Draft(int block, const StepInput& step) = 0;

  // Embeddings of an image's tokens, in their order: out [order.size(), hidden] act. FailedPrecondition where there is
  // no vision tower; InvalidArgument for sizes that do not fit.
  virtual absl::Status EncodeImage(const ImagePatches& image, ops::Tensor out);
};

}  // namespace hadal::models
