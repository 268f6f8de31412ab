// Bicubic resampling and the placement on a canvas.
#include "vision/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/status.h"

namespace hadal::vision {
namespace {

constexpr int kPrecisionBits = 22;  // Pillow: 32, less 8 for the pixel and 2 for overshoot
constexpr double kSupport = 2.0;    // of the bicubic kernel, in pixels of the coarser grid
constexpr uint8_t kPadLevel = 127;
constexpr size_t kChannels = 3;

double Cubic(double t) {
  constexpr double kA = -0.5;
  t = std::fabs(t);
  if (t < 1.0) return ((kA + 2.0) * t - (kA + 3.0)) * t * t + 1.0;
  if (t < 2.0) return (((t - 5.0) * t + 8.0) * t - 4.0) * kA;
  return 0.0;
}

// For each output position: the first input position, how many count, and their weights.
struct Taps {
  int count_max;
  std::vector<int> first;
  std::vector<int> count;
  std::vector<int32_t> weights;  // count_max for each output

  const int32_t* of(int out) const { return weights.data() + static_cast<size_t>(out) * count_max; }
};

Taps MakeTaps(int in_size, int out_size) {
  const double scale = static_cast<double>(in_size) / out_size;
  const double filter_scale = std::max(scale, 1.0);
  const double support = kSupport * filter_scale;
  const double step = 1.0 / filter_scale;
  Taps taps;
  taps.count_max = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.first.resize(out_size);
  taps.count.resize(out_size);
  taps.weights.resize(static_cast<size_t>(out_size) * taps.count_max);
  std::vector<double> kernel(taps.count_max);
  for (int out = 0; out < out_size; ++out) {
    const double centre = (out + 0.5) * scale;
    // Truncated towards zero as in Pillow, not rounded.
    // NOLINTNEXTLINE(bugprone-incorrect-roundings)
    const int low = std::max(0, static_cast<int>(centre - support + 0.5));
    // NOLINTNEXTLINE(bugprone-incorrect-roundings)
    const int high = std::min(in_size, static_cast<int>(centre + support + 0.5));
    double sum = 0.0;
    for (int i = low; i < high; ++i) {
      kernel[i - low] = Cubic((i - centre + 0.5) * step);
      sum += kernel[i - low];
    }
    int32_t* weights = taps.weights.data() + static_cast<size_t>(out) * taps.count_max;
    for (int j = 0; j < high - low; ++j) {
      const double k = sum != 0.0 ? kernel[j] / sum : kernel[j];
      weights[j] = static_cast<int32_t>(k * (1 << kPrecisionBits) + (k < 0 ? -0.5 : 0.5));
    }
    taps.first[out] = low;
    taps.count[out] = high - low;
  }
  return taps;
}

constexpr int32_t kHalf = 1 << (kPrecisionBits - 1);

uint8_t Clip8(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255)); }

// Rows [first_row, first_row + out->height) of the image, each resized to out->width.
void ResizeColumns(const RgbImage& image, int first_row, RgbImage* out) {
  const Taps taps = MakeTaps(image.width, out->width);
  for (int y = 0; y < out->height; ++y) {
    const uint8_t* source = image.row(first_row + y);
    uint8_t* target = out->row(y);
    for (int x = 0; x < out->width; ++x) {
      const uint8_t* pixel = source + static_cast<size_t>(taps.first[x]) * kChannels;
      const int32_t* weights = taps.of(x);
      int32_t r = kHalf;
      int32_t g = kHalf;
      int32_t b = kHalf;
      for (int j = 0; j < taps.count[x]; ++j, pixel += kChannels) {
        r += pixel[0] * weights[j];
        g += pixel[1] * weights[j];
        b += pixel[2] * weights[j];
      }
      target[x * kChannels] = Clip8(r);
      target[x * kChannels + 1] = Clip8(g);
      target[x * kChannels + 2] = Clip8(b);
    }
  }
}

// `image` holds the rows from first_row on of what `taps` were made for.
void ResizeRows(const RgbImage& image, const Taps& taps, int first_row, RgbImage* out) {
  const size_t bytes = static_cast<size_t>(out->width) * kChannels;
  std::vector<int32_t> sums(bytes);
  for (int y = 0; y < out->height; ++y) {
    std::fill(sums.begin(), sums.end(), kHalf);
    const int32_t* weights = taps.of(y);
    for (int j = 0; j < taps.count[y]; ++j) {
      const uint8_t* source = image.row(taps.first[y] - first_row + j);
      const int32_t weight = weights[j];
      int32_t* sum = sums.data();
      for (size_t i = 0; i < bytes; ++i) sum[i] += source[i] * weight;
    }
    uint8_t* target = out->row(y);
    for (size_t i = 0; i < bytes; ++i) target[i] = Clip8(sums[i]);
  }
}

int RoundHalfEven(double v) { return static_cast<int>(std::nearbyint(v)); }  // in the default rounding mode

}  // namespace

RgbImage ResizeBicubic(const RgbImage& image, int width, int height) {
  HADAL_CHECK(image.width > 0 && image.height > 0 && width > 0 && height > 0);
  if (width == image.width && height == image.height) return image;
  if (height == image.height) {
    RgbImage out = RgbImage::Filled(width, height, 0);
    ResizeColumns(image, 0, &out);
    return out;
  }
  const Taps taps = MakeTaps(image.height, height);
  RgbImage out = RgbImage::Filled(width, height, 0);
  if (width == image.width) {
    ResizeRows(image, taps, 0, &out);
    return out;
  }
  // A reduced height may leave rows at the borders that no output row needs.
  const int first_row = taps.first[0];
  const int last_row = taps.first[height - 1] + taps.count[height - 1];
  RgbImage narrow = RgbImage::Filled(width, last_row - first_row, 0);
  ResizeColumns(image, first_row, &narrow);
  ResizeRows(narrow, taps, first_row, &out);
  return out;
}

absl::StatusOr<Placement> FitInside(int width, int height, int canvas_width, int canvas_height) {
  const auto w = static_cast<double>(width);
  const auto h = static_cast<double>(height);
  const double ratio = w / h;
  const double canvas_ratio = static_cast<double>(canvas_width) / canvas_height;
  Placement place = {0, 0, canvas_width, canvas_height};
  if (ratio > canvas_ratio) place.height = RoundHalfEven(h / w * canvas_width);
  if (ratio < canvas_ratio) place.width = RoundHalfEven(w / h * canvas_height);
  if (place.width == 0 || place.height == 0) {
    return InvalidArgument(
        "image of {} x {} pixels: expected proportions that fit {} x {} pixels, found a side that shrinks to nothing",
        width, height, canvas_width, canvas_height);
  }
  if (place.width != canvas_width) {
    place.x = RoundHalfEven((canvas_width - place.width) * 0.5);
  } else {
    place.y = RoundHalfEven((canvas_height - place.height) * 0.5);
  }
  return place;
}

absl::StatusOr<RgbImage> ResizeToCanvas(const RgbImage& image, const ImageGrid& grid) {
  if (grid.stretch) return ResizeBicubic(image, grid.width, grid.height);
  HADAL_ASSIGN_OR_RETURN(const Placement place, FitInside(image.width, image.height, grid.width, grid.height));
  RgbImage content = ResizeBicubic(image, place.width, place.height);
  if (place.width == grid.width && place.height == grid.height) return content;
  RgbImage canvas = RgbImage::Filled(grid.width, grid.height, kPadLevel);
  for (int y = 0; y < place.height; ++y) {
    std::memcpy(canvas.row(place.y + y) + static_cast<size_t>(place.x) * kChannels, content.row(y),
                static_cast<size_t>(place.width) * kChannels);
  }
  return canvas;
}

}  // namespace hadal::vision
