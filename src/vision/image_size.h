// The canvas of an image and its grids of patches and tokens (spec deepseek-v4-vision-and-cache 2.2).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace hadal::vision {

// The vision fields of config.json (spec 1.1); the defaults are those of DeepSeek-V4-Flash-Vision.
struct SizeRules {
  int64_t patch = 14;           // edge of a patch in pixels
  int64_t downsample = 3;       // patches along the edge of a token
  int64_t max_tokens = 384;     // for one image, its alignment pads included
  int64_t min_pixels = 147456;  // smaller images are enlarged
  int64_t max_wh_ratio = 8;     // wider images are squeezed; tall ones are not. 0: none
};

struct ImageGrid {
  int width = 0;     // of the canvas, pixels: the spec's bw
  int height = 0;    // bh
  int vit_cols = 0;  // patches: width / patch
  int vit_rows = 0;
  int llm_cols = 0;  // tokens: vit_cols / downsample, rounded up
  int llm_rows = 0;
  int block_length = 0;  // tokens of the block from START to END, without alignment pads: the spec's n
  bool stretch = false;  // the image fills the canvas, distorted; otherwise it is centred, and grey is around it

  bool operator==(const ImageGrid&) const = default;
};

// The token slots that the alignment of a block may take (spec 2.5); they are kept free of max_tokens.
inline constexpr int64_t kMaxLeadPads = 3;

// Tokens from START to END of a block of llm_rows x llm_cols image tokens: their rows in pairs, each row ended by a
// NEW_LINE, and pads to a multiple of four plus two.
constexpr int64_t BlockLength(int64_t llm_rows, int64_t llm_cols) {
  const int64_t pairs = (llm_rows + 1) / 2;
  const int64_t pair_area = pairs * (llm_cols + 1);
  return pair_area * 2 + (pair_area % 2) * 2 + 2;
}

// `width` and `height`: of the decoded image, pixels, 1 to 2^31 - 1. The result keeps block_length + kMaxLeadPads
// within rules.max_tokens. InvalidArgument for other sizes, and for rules that leave no grid.
absl::StatusOr<ImageGrid> SolveImageSize(int64_t width, int64_t height, const SizeRules& rules);

}  // namespace hadal::vision
