// SolveImageSize. Double arithmetic stays in the order in which the specification writes it: the results are rounded
// down, so another order gives another grid.
#include "vision/image_size.h"

#include <cmath>
#include <limits>

#include "base/status.h"

namespace hadal::vision {
namespace {

struct Canvas {
  int64_t width;
  int64_t height;
};

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t CanvasBlockLength(const Canvas& canvas, const SizeRules& rules) {
  return BlockLength(CeilDiv(canvas.height / rules.patch, rules.downsample),
                     CeilDiv(canvas.width / rules.patch, rules.downsample));
}

// The largest canvas of about the shape width x height whose block fits `budget` tokens, before the pads of its pairs.
// {0, 0} if there is none.
Canvas Solve(int64_t width, int64_t height, int64_t budget, const SizeRules& rules) {
  if (budget < 4) return {0, 0};
  const int64_t token = rules.patch * rules.downsample;  // edge in pixels
  const auto w = static_cast<double>(width);
  const auto h = static_cast<double>(height);
  const double ratio = h / w;
  const double columns = std::sqrt(static_cast<double>(budget - 2) / ratio + 0.25) - 0.5;
  const double rows = columns * ratio;
  if (columns < 1) {  // extremely tall
    const int64_t even_rows = (budget - 2) / 2 / 2 * 2;
    return {token, even_rows * token};
  }
  if (rows < 2) {  // extremely wide
    const int64_t one_less = (budget - 2) / 2 - 1;
    return one_less > 1 ? Canvas{one_less * token, 2 * token} : Canvas{0, 0};
  }
  const auto whole_columns = static_cast<int64_t>(columns);
  const int64_t even_rows = static_cast<int64_t>(rows) / 2 * 2;
  const double beta =
      std::fmin(static_cast<double>(whole_columns * token) / w, static_cast<double>(even_rows * token) / h);
  const auto patch = static_cast<double>(rules.patch);
  return {static_cast<int64_t>(std::floor(w * beta / patch)) * rules.patch,
          static_cast<int64_t>(std::floor(h * beta / patch)) * rules.patch};
}

absl::Status CheckRules(const SizeRules& rules) {
  constexpr int64_t kMaxPatch = 128;          // published models have 14
  constexpr int64_t kMaxDownsample = 16;      // and 3
  constexpr int64_t kMaxTokens = 1 << 16;     // and 384 or 1024; with these three a canvas side fits int
  constexpr int64_t kMaxMinPixels = 1 << 26;  // as many as a file may have
  if (rules.patch < 1 || rules.patch > kMaxPatch || rules.downsample < 1 || rules.downsample > kMaxDownsample ||
      rules.max_tokens < 1 || rules.max_tokens > kMaxTokens || rules.min_pixels < 0 ||
      rules.min_pixels > kMaxMinPixels || rules.max_wh_ratio < 0 || rules.max_wh_ratio > kMaxTokens) {
    return InvalidArgument(
        "image size rules: expected positive fields of sensible size, found patch {}, downsample {}, max_tokens {}, "
        "min_pixels {}, max_wh_ratio {}",
        rules.patch, rules.downsample, rules.max_tokens, rules.min_pixels, rules.max_wh_ratio);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImageGrid> SolveImageSize(int64_t width, int64_t height, const SizeRules& rules) {
  HADAL_RETURN_IF_ERROR(CheckRules(rules));
  constexpr int64_t kMaxSide = std::numeric_limits<int32_t>::max();
  if (width < 1 || height < 1 || width > kMaxSide || height > kMaxSide) {
    return InvalidArgument("image: expected sides of 1 to {} pixels, found {} x {}", kMaxSide, width, height);
  }
  int64_t w = width;
  int64_t h = height;
  if (rules.max_wh_ratio > 0 && w > h * rules.max_wh_ratio) w = h * rules.max_wh_ratio;
  if (w * h < rules.min_pixels) {
    const double scale = std::sqrt(static_cast<double>(rules.min_pixels) / static_cast<double>(w * h));
    w = static_cast<int64_t>(static_cast<double>(w) * scale);
    h = static_cast<int64_t>(static_cast<double>(h) * scale);
  }
  Canvas canvas = {CeilDiv(w, rules.patch) * rules.patch, CeilDiv(h, rules.patch) * rules.patch};
  const int64_t limit = rules.max_tokens - kMaxLeadPads;
  for (int64_t budget = limit; CanvasBlockLength(canvas, rules) > limit; --budget) {
    canvas = Solve(w, h, budget, rules);
    if (canvas.width < rules.patch || canvas.height < rules.patch) {
      return InvalidArgument("image of {} x {} pixels: expected a grid of tokens for it, found none within {} tokens",
                             width, height, rules.max_tokens);
    }
  }

  ImageGrid grid;
  grid.width = static_cast<int>(canvas.width);
  grid.height = static_cast<int>(canvas.height);
  grid.vit_cols = static_cast<int>(canvas.width / rules.patch);
  grid.vit_rows = static_cast<int>(canvas.height / rules.patch);
  grid.llm_cols = static_cast<int>(CeilDiv(grid.vit_cols, rules.downsample));
  grid.llm_rows = static_cast<int>(CeilDiv(grid.vit_rows, rules.downsample));
  grid.block_length = static_cast<int>(CanvasBlockLength(canvas, rules));
  grid.stretch = rules.max_wh_ratio > 0 && width >= rules.max_wh_ratio * height;
  return grid;
}

}  // namespace hadal::vision
