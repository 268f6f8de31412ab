// The decoders behind DecodeImage, one for each format, and what they share. Private to this library.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "vision/decode.h"

namespace hadal::vision {

// Each takes bytes that start with the format's magic. May throw std::bad_alloc, which DecodeImage catches.
absl::StatusOr<RgbImage> DecodeJpeg(std::span<const uint8_t> bytes, const DecodeOptions& options);
absl::StatusOr<RgbImage> DecodePng(std::span<const uint8_t> bytes, const DecodeOptions& options);
absl::StatusOr<RgbImage> DecodeWebp(std::span<const uint8_t> bytes, const DecodeOptions& options);

// InvalidArgument unless both sides are positive and the picture is within options.max_side and max_pixels.
absl::Status CheckImageSize(std::string_view format, int64_t width, int64_t height, const DecodeOptions& options);

// The message for a file that ends too early.
absl::Status Truncated(std::string_view format, size_t bytes);

// Lays `image.pixels`, which holds R, G, B, A for each pixel, over white and leaves R, G, B.
void ComposeOntoWhite(RgbImage* image);

}  // namespace hadal::vision
