// What the runtime knows of a model: one step over any mix of sequences, and the room it needs.
//
// A model holds its weights, its cache and the buffers of one step of max_batch_tokens rows, all reserved when it is
// created; a step allocates nothing. The cache is a pool of slabs (models/kv_layout.h). Either every sequence owns the
// slabs of a whole context (cache_slabs 0), or the caller says before each step which slabs hold which positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "checkpoint/model_config.h"
#include "models/kv_layout.h"
#include "ops/ops.h"

namespace hadal::models {

// How rows of the cache are stored (spec vision-and-cache 6.5, deepseek-v32 6.1).
enum class KvCacheDtype {
  kAuto,      // V4: fp8_ds_mla; V3.2: bf16, where the platform can; in f32 numerics rows stay fp32
  kFp8DsMla,  // V4: 584 bytes for a latent row of 512, 68 for an indexer key of 128; V3.2: 656 and 132, not lossless
  kBf16,
};

struct ModelLimits {
  int64_t max_seqs = 1;
  int64_t max_context = 4096;      // positions per sequence
  int64_t max_batch_tokens = 512;  // rows of one step
  int64_t max_logit_rows = 1;      // rows of one step whose logits are asked for
  int64_t max_draft_tokens = 0;    // positions behind a step's rows that drafts may write
  // First of the five consecutive ids of image tokens (start, pad, image, newline, end), from the tokenizer; 0: a step
  // has none.
  int32_t image_first_id = 0;
  bool images = false;  // EncodeImage is called; without, a vision checkpoint's tower is not built
  KvCacheDtype kv_cache_dtype = KvCacheDtype::kAuto;
  // V3.2: so many rows of a sequence in a step, or more, attend over latents expanded to keys and values of each head,
  // as far as these are all that they see (spec deepseek-v32 3.5 and 3.7); 0: none. A row's bits then depend on its
  // chunk.
  int64_t expand_rows = 0;
  int64_t block_size = 256;  // positions of a block: a multiple of 128 (V3.2: of 16)
  int64_t cache_slabs = 0;   // 0: max_seqs sequences of max_context positions, each with slabs of its own
};

// What the model keeps besides the weights, in bytes.
struct ModelMemory {
  size_t cache = 0;    // all sequences
  size_t scratch = 0;  // buffers of one step, the platform's workspace included
  KvLayout layout;     // of the cache
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

// One step. Rows of one sequence come in position order, and every earlier position that they may read has been
// computed into the slabs of the sequence's tables, by this sequence or another; rows of different sequences may mix. A
// position may be computed again (its last token was a draft that did not hold).
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
  // Draft: the row of the last step that each row goes on from, ascending; empty: the row of the same number.
  std::span<const int32_t> source_rows = {};
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

  // Groups of the cache, and the table of a sequence in one of them: [table_blocks] slab numbers, to be written between
  // steps by a caller that asked for cache_slabs. Slabs are numbered from 0. A model without a cache has no groups.
  virtual const KvLayout& kv_layout() const;
  virtual std::span<int32_t> BlockTable(int64_t group, int32_t seq);
  // The first `bytes` of a slab from or to host memory, between steps. Rows mean the same in another process with the
  // same weights, limits and platform.
  virtual void ReadSlab(int32_t slab, std::byte* to, int64_t bytes);
  virtual void WriteSlab(int32_t slab, const std::byte* from, int64_t bytes);

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
