// Image files to 8-bit RGB, with the values that Pillow's convert("RGB") gives (spec deepseek-v4-vision-and-cache 2.1).
//
// Formats, found by their first bytes and never by a name: JPEG, PNG, WebP. Of an animated file the first frame counts.
// Orientation tags, colour profiles and all other metadata are ignored: a photograph is taken as it is stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace hadal::vision {

// Pixels in rows from the top, three bytes R, G, B each, without padding.
struct RgbImage {
  int width = 0;   // pixels
  int height = 0;  // pixels
  std::vector<uint8_t> pixels;

  // An image of one grey level, or of zeros.
  static RgbImage Filled(int width, int height, uint8_t level) {
    return {width, height, std::vector<uint8_t>(static_cast<size_t>(width) * height * 3, level)};
  }
  uint8_t* row(int y) { return pixels.data() + static_cast<size_t>(y) * width * 3; }
  const uint8_t* row(int y) const { return pixels.data() + static_cast<size_t>(y) * width * 3; }
};

// What becomes of transparency.
enum class AlphaMode {
  kDrop,   // colours as stored, whatever their alpha: the reference implementation
  kWhite,  // laid over white, rounded as Pillow's paste does: what chat servers show the model
};

struct DecodeOptions {
  size_t max_bytes = size_t{64} << 20;  // of the file
  // Width x height. A decode takes at most 11 bytes a pixel (RGB, and the coefficients of a progressive CMYK JPEG), so
  // the default allows 0.7 GiB.
  int64_t max_pixels = int64_t{64} << 20;
  // Of width and of height. A resize keeps 16 bytes for each pixel of a row or a column.
  int64_t max_side = 65'535;
  AlphaMode alpha = AlphaMode::kDrop;
};

// Values, where there is a choice:
// - Grey is replicated, palettes are expanded, CMYK follows Pillow's formula with Adobe's inverted values.
// - Of 16-bit channels the high byte is taken. Pillow does so for all but plain grey, where it clips values above 255,
//   which makes photographs white.
// - An animation's first frame may cover a part of the canvas; the rest is black (kDrop) or white (kWhite).
//
// InvalidArgument for everything that is wrong with the bytes: another format (the message names it), a file or picture
// beyond the limits, a truncated or damaged file. The limits are checked before memory for pixels is taken. A JPEG
// whose coded data break off or contradict themselves is damaged, though a viewer may show the part before.
// ResourceExhausted if memory is short.
absl::StatusOr<RgbImage> DecodeImage(std::span<const uint8_t> bytes, const DecodeOptions& options = {});

}  // namespace hadal::vision
