// Image files: any bytes give a status or an image of the size that it says, within the limits, in both treatments of
// transparency. What decodes also runs through the whole preparation.
#include <cstdint>
#include <span>

#include "base/status.h"
#include "vision/decode.h"
#include "vision/preprocess.h"

using namespace hadal;
using namespace hadal::vision;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  DecodeOptions options;
  options.max_pixels = 1 << 16;
  SizeRules rules;  // small grids, so that most of the time goes into decoding
  rules.max_tokens = 64;
  rules.min_pixels = 7056;
  for (const AlphaMode alpha : {AlphaMode::kDrop, AlphaMode::kWhite}) {
    options.alpha = alpha;
    const absl::StatusOr<RgbImage> image = DecodeImage({data, size}, options);
    if (!image.ok()) {
      HADAL_CHECK(!image.status().message().empty());
      continue;
    }
    HADAL_CHECK(image->width > 0 && image->height > 0);
    const int64_t pixels = int64_t{image->width} * image->height;
    HADAL_CHECK(pixels <= options.max_pixels);
    HADAL_CHECK(static_cast<int64_t>(image->pixels.size()) == pixels * 3);
    const absl::StatusOr<PreparedImage> prepared = PrepareImage(*image, rules);
    HADAL_CHECK(prepared.ok() || absl::IsInvalidArgument(prepared.status()));
    if (prepared.ok()) HADAL_CHECK(prepared->grid.block_length + kMaxLeadPads <= rules.max_tokens);
  }
  return 0;
}
