// DecodeWebp: libwebp. Still images and the first frame of animations take the same way, as the frames of a container.
#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "base/status.h"
#include "vision/decode_formats.h"

namespace hadal::vision {
namespace {

struct DemuxerDeleter {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

struct Frame {
  Frame() = default;
  ~Frame() { WebPDemuxReleaseIterator(&iterator); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  WebPIterator iterator = {};
};

absl::Status Failure(VP8StatusCode code, size_t bytes) {
  switch (code) {
    case VP8_STATUS_OUT_OF_MEMORY:
      return ResourceExhausted("WebP image: not enough memory to decode it");
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return Truncated("WebP", bytes);
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return InvalidArgument("WebP image: it uses a feature that libwebp does not support");
    default:
      return InvalidArgument("WebP image: expected valid image data, found damaged data");
  }
}

}  // namespace

absl::StatusOr<RgbImage> DecodeWebp(std::span<const uint8_t> bytes, const DecodeOptions& options) {
  WebPBitstreamFeatures features;
  VP8StatusCode code = WebPGetFeatures(bytes.data(), bytes.size(), &features);
  if (code != VP8_STATUS_OK) return Failure(code, bytes.size());
  HADAL_RETURN_IF_ERROR(CheckImageSize("WebP", features.width, features.height, options));

  const WebPData data = {bytes.data(), bytes.size()};
  WebPDemuxState state = WEBP_DEMUX_PARSE_ERROR;
  const std::unique_ptr<WebPDemuxer, DemuxerDeleter> demuxer(WebPDemuxPartial(&data, &state));
  if (state == WEBP_DEMUX_PARSING_HEADER || state == WEBP_DEMUX_PARSED_HEADER) return Truncated("WebP", bytes.size());
  if (demuxer == nullptr || state != WEBP_DEMUX_DONE) return Failure(VP8_STATUS_BITSTREAM_ERROR, bytes.size());
  const auto width = static_cast<int64_t>(WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH));
  const auto height = static_cast<int64_t>(WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT));
  HADAL_RETURN_IF_ERROR(CheckImageSize("WebP", width, height, options));

  Frame frame;
  if (WebPDemuxGetFrame(demuxer.get(), 1, &frame.iterator) == 0) {
    return InvalidArgument("WebP image: expected a frame, found none");
  }
  const WebPIterator& part = frame.iterator;
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0)
    return Unimplemented("WebP image: libwebp has another version than expected");
  code = WebPGetFeatures(part.fragment.bytes, part.fragment.size, &config.input);
  if (code != VP8_STATUS_OK) return Failure(code, bytes.size());
  if (config.input.width != part.width || config.input.height != part.height || part.x_offset < 0 ||
      part.y_offset < 0 || part.x_offset + int64_t{part.width} > width ||
      part.y_offset + int64_t{part.height} > height) {
    return InvalidArgument("WebP image: expected a frame inside {} x {} pixels, found {} x {} at ({}, {})", width,
                           height, config.input.width, config.input.height, part.x_offset, part.y_offset);
  }

  // A part of the canvas that the frame leaves free is transparent black.
  const bool whole = part.width == width && part.height == height;
  const bool with_alpha = options.alpha == AlphaMode::kWhite && (config.input.has_alpha != 0 || !whole);
  const size_t channels = with_alpha ? 4 : 3;
  RgbImage image{static_cast<int>(width), static_cast<int>(height), {}};
  image.pixels.resize(static_cast<size_t>(width) * height * channels);

  const size_t stride = width * channels;
  const size_t begin = part.y_offset * stride + part.x_offset * channels;
  config.output.colorspace = with_alpha ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = image.pixels.data() + begin;
  config.output.u.RGBA.stride = static_cast<int>(stride);
  config.output.u.RGBA.size = image.pixels.size() - begin;
  code = WebPDecode(part.fragment.bytes, part.fragment.size, &config);
  WebPFreeDecBuffer(&config.output);
  if (code != VP8_STATUS_OK) return Failure(code, bytes.size());
  if (with_alpha) ComposeOntoWhite(&image);
  return image;
}

}  // namespace hadal::vision
