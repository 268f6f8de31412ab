// Resizing as Pillow does it, to the byte (spec deepseek-v4-vision-and-cache 2.3).
#pragma once

#include "absl/status/statusor.h"
#include "vision/decode.h"
#include "vision/image_size.h"

namespace hadal::vision {

// Antialiased bicubic (a = -0.5) in 22-bit fixed point, columns first, rounded to 8 bits between the passes. Equals
// Pillow's Image.resize((width, height), BICUBIC). Both images have at least one pixel.
RgbImage ResizeBicubic(const RgbImage& image, int width, int height);

// Where the image lies on the canvas, pixels.
struct Placement {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;

  bool operator==(const Placement&) const = default;
};

// The largest size of the image's proportions inside canvas_width x canvas_height, centred; halves round to even.
// InvalidArgument where a side would round to no pixel at all, at proportions around 1:16000.
absl::StatusOr<Placement> FitInside(int width, int height, int canvas_width, int canvas_height);

// The canvas grid.width x grid.height: the image stretched over it, or fitted inside and surrounded by grey (127).
// Errors as FitInside.
absl::StatusOr<RgbImage> ResizeToCanvas(const RgbImage& image, const ImageGrid& grid);

}  // namespace hadal::vision
