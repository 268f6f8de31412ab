// Images of a prompt: placeholders become blocks of image tokens, and every position gets the embedding and the
// visibility that its image gives it (spec deepseek-v4-vision-and-cache 2.5, 4.1, 5.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"
#include "models/model.h"
#include "text/tokenizer.h"
#include "vision/image_block.h"
#include "vision/preprocess.h"

namespace hadal::runtime {

// Ids of the tokens that stand for images.
struct ImageTokenIds {
  int32_t placeholder = 0;  // of the prompt text
  int32_t first = 0;        // of the five kinds of block tokens, which are consecutive (vision::SpanToken)

  bool contains(int32_t id) const { return id == placeholder || (id >= first && id < first + 5); }
};

// Looks the tokens up by their exact names. InvalidArgument if one is missing ("Token not found in tokenizer") or the
// five are not consecutive.
absl::StatusOr<ImageTokenIds> FindImageTokens(const text::Tokenizer& tokenizer);

vision::SizeRules SizeRulesOf(const checkpoint::VisionConfig& vision);

// Tokens that one image takes at most, lead pads included.
inline int64_t MaxImageTokens(const checkpoint::VisionConfig& vision) {
  return vision.max_n_token + vision::kMaxLeadPads;
}

// An image and its place in the final prompt.
struct PlacedImage {
  std::shared_ptr<const vision::PreparedImage> image;
  vision::SpanRecord record;
};

// Replaces the placeholders of `ids`, left to right, by the blocks of `images`. InvalidArgument if their numbers
// differ.
absl::StatusOr<std::vector<PlacedImage>> ExpandImages(
    std::span<const std::shared_ptr<const vision::PreparedImage>> images, const ImageTokenIds& tokens,
    std::vector<int32_t>* ids);

// Embeddings of the images that a model has encoded, by content: a chat asks for the same ones with every turn. The
// least recently used go first. For one model and one thread.
class EmbeddingCache {
 public:
  using Rows = std::shared_ptr<const std::vector<std::byte>>;  // [tokens, hidden] act

  explicit EmbeddingCache(size_t capacity = size_t{256} << 20) : capacity_(capacity) {}

  Rows Find(const Sha256Digest& content_hash);
  // Kept unless it alone is larger than the capacity.
  void Put(const Sha256Digest& content_hash, Rows rows);
  size_t bytes() const { return bytes_; }

 private:
  std::list<std::pair<Sha256Digest, Rows>> entries_;  // the last used first; few, so that a search is a walk
  size_t capacity_;
  size_t bytes_ = 0;
};

// End of a chunk that begins at `begin` and should have up to `most` rows of `size`. Images are taken whole: a chunk
// ends before an image that does not fit into it, and one that begins with such an image is as long as the image
// (spec 5.3).
int64_t ChunkEnd(std::span<const PlacedImage> images, int64_t begin, int64_t most, int64_t size);

// What the images of a prompt mean for its positions.
class ImageContext {
 public:
  // Encodes the images that `cache` (may be null) does not have, except those that end before position `from`: their
  // rows are computed already. Errors of Model::EncodeImage.
  static absl::StatusOr<ImageContext> Create(models::Model* model, std::span<const PlacedImage> images,
                                             std::span<const int32_t> prompt, const ImageTokenIds& tokens,
                                             EmbeddingCache* cache = nullptr, int64_t from = 0);

  struct Row {
    const void* embedding = nullptr;  // null: the id's own
    int32_t left = 0, right = 0;      // tokens of its span that the row sees on either side
  };
  // Positions behind the prompt have none.
  Row At(int64_t position) const {
    if (position >= static_cast<int64_t>(rows_.size())) return {};
    return {rows_[position], left_[position], right_[position]};
  }
  // Completes the step of positions [begin, end).
  void Fill(int64_t begin, int64_t end, models::StepInput* step) const;

 private:
  std::vector<EmbeddingCache::Rows> embeddings_;  // of each image
  std::vector<const void*> rows_;                 // [prompt]
  std::vector<int32_t> left_, right_;             // [prompt]
};

}  // namespace hadal::runtime
