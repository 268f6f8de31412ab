// From the bytes of an image file to everything the model needs of it (spec deepseek-v4-vision-and-cache 2).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/sha256.h"
#include "vision/decode.h"
#include "vision/image_size.h"

namespace hadal::vision {

// Independent of where in a prompt the image stands: lead pads are not part of it, so it may be kept and used again.
struct PreparedImage {
  ImageGrid grid;
  int original_width = 0;  // of the decoded file, pixels
  int original_height = 0;
  std::vector<uint8_t> patches_u8;  // [vit_rows * vit_cols, 3, patch, patch], see patches.h
  std::vector<int32_t> order;       // [llm_rows * llm_cols], see ImageTokenOrder
  // SHA-256 of the grid and the patches: equal for images that the model cannot tell apart. Prefix caches key on it,
  // for several users at once, hence a hash for which nobody can construct two images.
  Sha256Digest content_hash = {};
};

// Decodes, resizes and cuts. Errors: those of DecodeImage, SolveImageSize and FitInside.
absl::StatusOr<PreparedImage> PrepareImage(std::span<const uint8_t> bytes, const DecodeOptions& options = {},
                                           const SizeRules& rules = {});

// The same for an image that is decoded already.
absl::StatusOr<PreparedImage> PrepareImage(const RgbImage& image, const SizeRules& rules = {});

}  // namespace hadal::vision
