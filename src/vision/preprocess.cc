// PrepareImage: the steps in order, and the hash.
#include "vision/preprocess.h"

#include <new>
#include <utility>

#include "base/status.h"
#include "vision/image_block.h"
#include "vision/patches.h"
#include "vision/resample.h"

namespace hadal::vision {
namespace {

Sha256Digest HashContent(const ImageGrid& grid, const SizeRules& rules, std::span<const uint8_t> patches) {
  Sha256 hash;
  // The numbers that say how the patches lie, four bytes each with the low one first.
  for (const int64_t number : {int64_t{grid.vit_rows}, int64_t{grid.vit_cols}, rules.patch, rules.downsample}) {
    const auto v = static_cast<uint32_t>(number);
    const std::array<uint8_t, 4> bytes = {static_cast<uint8_t>(v), static_cast<uint8_t>(v >> 8),
                                          static_cast<uint8_t>(v >> 16), static_cast<uint8_t>(v >> 24)};
    hash.Update(bytes);
  }
  hash.Update(patches);
  return hash.Finish();
}

absl::StatusOr<PreparedImage> Prepare(const RgbImage& image, const SizeRules& rules) {
  PreparedImage prepared;
  HADAL_ASSIGN_OR_RETURN(prepared.grid, SolveImageSize(image.width, image.height, rules));
  HADAL_ASSIGN_OR_RETURN(const RgbImage canvas, ResizeToCanvas(image, prepared.grid));
  prepared.original_width = image.width;
  prepared.original_height = image.height;
  prepared.patches_u8 = CutPatches(canvas, static_cast<int>(rules.patch));
  prepared.order = ImageTokenOrder(prepared.grid.llm_rows, prepared.grid.llm_cols);
  prepared.content_hash = HashContent(prepared.grid, rules, prepared.patches_u8);
  return prepared;
}

}  // namespace

// Canvas and patches of hostile sizes may be more than there is memory for.
absl::StatusOr<PreparedImage> PrepareImage(const RgbImage& image, const SizeRules& rules) try {
  return Prepare(image, rules);
} catch (const std::bad_alloc&) {
  return ResourceExhausted("image of {} x {} pixels: not enough memory", image.width, image.height);
}

absl::StatusOr<PreparedImage> PrepareImage(std::span<const uint8_t> bytes, const DecodeOptions& options,
                                           const SizeRules& rules) {
  HADAL_ASSIGN_OR_RETURN(const RgbImage image, DecodeImage(bytes, options));
  return PrepareImage(image, rules);
}

}  // namespace hadal::vision
