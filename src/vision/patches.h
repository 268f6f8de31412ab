// A canvas cut into patches, and their values as the vision tower takes them (spec deepseek-v4-vision-and-cache 2.4).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/float_formats.h"
#include "vision/decode.h"

namespace hadal::vision {

// [rows * cols, 3, patch, patch] u8: patches in raster order, the channels of a patch one after the other. The sides of
// the canvas are multiples of `patch`.
std::vector<uint8_t> CutPatches(const RgbImage& canvas, int patch);

// (v / 255 - 0.5) / 0.5 in fp32, rounded to bf16.
BFloat16 NormalisedPixel(uint8_t v);

// The same for many; `out` is as long as `pixels`.
void NormalisePixels(std::span<const uint8_t> pixels, std::span<BFloat16> out);

}  // namespace hadal::vision
