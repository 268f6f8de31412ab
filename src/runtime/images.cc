#include "runtime/images.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "text/dsml.h"

namespace hadal::runtime {
namespace {

constexpr int kFirstSpanName = 431;
constexpr int kSpanKinds = 5;

absl::StatusOr<EmbeddingCache::Rows> Embeddings(models::Model* model, const vision::PreparedImage& image,
                                                EmbeddingCache* cache) {
  if (cache != nullptr) {
    if (EmbeddingCache::Rows known = cache->Find(image.content_hash)) return known;
  }
  const DType act = model->ops().act();
  const int64_t hidden = model->config().hidden_size;
  auto rows = std::make_shared<std::vector<std::byte>>(image.order.size() * DTypeBytes(act, hidden));
  const models::ImagePatches patches = {image.patches_u8, image.grid.vit_rows, image.grid.vit_cols, image.order};
  HADAL_RETURN_IF_ERROR(model->EncodeImage(
      patches, ops::MakeTensor(rows->data(), act, static_cast<int64_t>(image.order.size()), hidden)));
  if (cache != nullptr) cache->Put(image.content_hash, rows);
  return EmbeddingCache::Rows(std::move(rows));
}

}  // namespace

EmbeddingCache::Rows EmbeddingCache::Find(const Sha256Digest& content_hash) {
  const auto it =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry.first == content_hash; });
  if (it == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it);
  return it->second;
}

void EmbeddingCache::Put(const Sha256Digest& content_hash, Rows rows) {
  if (rows->size() > capacity_ || Find(content_hash) != nullptr) return;
  bytes_ += rows->size();
  entries_.emplace_front(content_hash, std::move(rows));
  while (bytes_ > capacity_) {
    bytes_ -= entries_.back().second->size();
    entries_.pop_back();
  }
}

absl::StatusOr<ImageTokenIds> FindImageTokens(const text::Tokenizer& tokenizer) {
  const auto find = [&](std::string_view name) -> absl::StatusOr<int32_t> {
    const std::optional<int32_t> id = tokenizer.TokenId(name);
    if (id.has_value()) return *id;
    return InvalidArgument("Token not found in tokenizer: {} (it stands for images)", name);
  };
  ImageTokenIds ids;
  HADAL_ASSIGN_OR_RETURN(ids.placeholder, find(text::kImageText));
  for (int i = 0; i < kSpanKinds; ++i) {
    const std::string name = fmt::format("<|place_holder_mm_span_{:04}|>", kFirstSpanName + i);
    HADAL_ASSIGN_OR_RETURN(const int32_t id, find(name));
    if (i == 0) ids.first = id;
    if (id != ids.first + i) {
      return InvalidArgument("tokenizer: expected {} to be token {}, behind its predecessors, found {}", name,
                             ids.first + i, id);
    }
  }
  return ids;
}

vision::SizeRules SizeRulesOf(const checkpoint::VisionConfig& vision) {
  vision::SizeRules rules;
  rules.patch = vision.patch_size;
  rules.downsample = vision.downsample_ratio;
  rules.max_tokens = vision.max_n_token;
  rules.min_pixels = vision.min_pixels;
  rules.max_wh_ratio = vision.max_wh_ratio;
  return rules;
}

absl::StatusOr<std::vector<PlacedImage>> ExpandImages(
    std::span<const std::shared_ptr<const vision::PreparedImage>> images, const ImageTokenIds& tokens,
    std::vector<int32_t>* ids) {
  const auto placeholders = static_cast<size_t>(std::count(ids->begin(), ids->end(), tokens.placeholder));
  if (placeholders != images.size()) {
    return InvalidArgument("the prompt has {} image placeholders and {} images: expected one image for each",
                           placeholders, images.size());
  }
  std::vector<PlacedImage> placed;
  if (images.empty()) return placed;
  std::vector<int32_t> out;
  for (const int32_t id : *ids) {
    if (id != tokens.placeholder) {
      out.push_back(id);
      continue;
    }
    const std::shared_ptr<const vision::PreparedImage>& image = images[placed.size()];
    const auto offset = static_cast<int64_t>(out.size());
    for (const vision::SpanToken kind : vision::BuildImageBlock(image->grid.llm_rows, image->grid.llm_cols, offset)) {
      out.push_back(tokens.first + static_cast<int32_t>(kind));
    }
    placed.push_back({image, {offset, static_cast<int64_t>(out.size()) - offset}});
  }
  *ids = std::move(out);
  return placed;
}

absl::StatusOr<ImageContext> ImageContext::Create(models::Model* model, std::span<const PlacedImage> images,
                                                  std::span<const int32_t> prompt, const ImageTokenIds& tokens,
                                                  EmbeddingCache* cache, int64_t from) {
  ImageContext context;
  if (images.empty()) return context;
  const checkpoint::ModelConfig& config = model->config();
  const int64_t row_bytes = DTypeBytes(model->ops().act(), config.hidden_size);
  context.rows_.assign(prompt.size(), nullptr);
  context.left_.assign(prompt.size(), 0);
  context.right_.assign(prompt.size(), 0);
  const int64_t most_left = config.vision.max_n_token - 1, most_right = config.vision.max_n_token;
  for (const PlacedImage& placed : images) {
    const vision::PreparedImage& image = *placed.image;
    const vision::SpanRecord& record = placed.record;
    if (record.offset < 0 || record.length < 1 || record.offset + record.length > static_cast<int64_t>(prompt.size())) {
      return InvalidArgument("an image at tokens {} to {} of a prompt of {}", record.offset,
                             record.offset + record.length, prompt.size());
    }
    if (record.offset + record.length <= from) continue;
    HADAL_ASSIGN_OR_RETURN(const EmbeddingCache::Rows rows, Embeddings(model, image, cache));
    context.embeddings_.push_back(rows);
    size_t next = 0;
    for (int64_t p = record.offset; p < record.offset + record.length; ++p) {
      const bool is_image = prompt[p] == tokens.first + static_cast<int32_t>(vision::SpanToken::kImage);
      if (is_image && next < image.order.size()) context.rows_[p] = rows->data() + row_bytes * next++;
    }
    if (next != image.order.size()) {
      return InvalidArgument("the block at token {} has {} image tokens; expected {}", record.offset, next,
                             image.order.size());
    }
    const vision::Span span = vision::SpanOf(record);
    for (int64_t p = span.start; p <= span.end; ++p) {
      context.left_[p] = static_cast<int32_t>(std::min(p - span.start, most_left));
      context.right_[p] = static_cast<int32_t>(std::min(span.end - p, most_right));
    }
  }
  return context;
}

int64_t ChunkEnd(std::span<const PlacedImage> images, int64_t begin, int64_t most, int64_t size) {
  int64_t end = std::min(size, begin + most);
  for (const PlacedImage& image : images) {
    const vision::SpanRecord& record = image.record;
    const int64_t behind = record.offset + record.length;
    if (end > record.offset && end < behind) end = record.offset > begin ? record.offset : behind;
  }
  return end;
}

void ImageContext::Fill(int64_t begin, int64_t end, models::StepInput* step) const {
  if (end > static_cast<int64_t>(rows_.size())) return;  // decoded tokens, or no images at all
  const auto part = [&](const auto& all) { return std::span(all).subspan(begin, end - begin); };
  step->embeddings = part(rows_);
  step->left_visible = part(left_);
  step->right_visible = part(right_);
}

}  // namespace hadal::runtime
