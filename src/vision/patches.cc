// Cutting patches and the table of normalised pixel values.
#include "vision/patches.h"

#include <array>

#include "base/status.h"

namespace hadal::vision {
namespace {

const std::array<BFloat16, 256>& Table() {
  static const std::array<BFloat16, 256> kTable = [] {
    std::array<BFloat16, 256> table;
    for (int v = 0; v < 256; ++v) table[v] = ToBFloat16((static_cast<float>(v) / 255.0f - 0.5f) / 0.5f);
    return table;
  }();
  return kTable;
}

}  // namespace

std::vector<uint8_t> CutPatches(const RgbImage& canvas, int patch) {
  HADAL_CHECK(patch > 0 && canvas.width % patch == 0 && canvas.height % patch == 0);
  std::vector<uint8_t> patches(canvas.pixels.size());
  uint8_t* out = patches.data();
  for (int top = 0; top < canvas.height; top += patch) {
    for (int left = 0; left < canvas.width; left += patch) {
      for (size_t channel = 0; channel < 3; ++channel) {
        for (int y = 0; y < patch; ++y) {
          const uint8_t* source = canvas.row(top + y) + static_cast<size_t>(left) * 3 + channel;
          for (int x = 0; x < patch; ++x) *out++ = source[static_cast<size_t>(x) * 3];
        }
      }
    }
  }
  return patches;
}

BFloat16 NormalisedPixel(uint8_t v) { return Table()[v]; }

void NormalisePixels(std::span<const uint8_t> pixels, std::span<BFloat16> out) {
  HADAL_CHECK(pixels.size() == out.size());
  const std::array<BFloat16, 256>& table = Table();
  for (size_t i = 0; i < pixels.size(); ++i) out[i] = table[pixels[i]];
}

}  // namespace hadal::vision
