// DecodeImage: which format the bytes are, the limits, and the helpers that the decoders share.
#include "vision/decode.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string>
#include <string_view>

#include "base/status.h"
#include "vision/decode_formats.h"

namespace hadal::vision {
namespace {

constexpr std::string_view kJpegMagic = "\xFF\xD8\xFF";
constexpr std::string_view kPngMagic = "\x89PNG\r\n\x1A\n";
constexpr std::string_view kRiffMagic = "RIFF";  // 4 bytes of length, then "WEBP"

// Names what the bytes are instead of a supported image, for the message: people send what their tools write, and a
// download that failed is a web page.
std::string Describe(std::string_view head) {
  const auto at = [head](size_t offset, std::string_view magic) {
    return head.size() >= offset && head.substr(offset).substr(0, magic.size()) == magic;
  };
  if (at(0, "GIF87a") || at(0, "GIF89a")) return "a GIF image";
  if (at(0, "BM")) return "a BMP image";
  if (at(0, std::string_view("II*\0", 4)) || at(0, std::string_view("MM\0*", 4))) return "a TIFF image";
  if (at(4, "ftypavif") || at(4, "ftypavis")) return "an AVIF image";
  if (at(4, "ftyphei") || at(4, "ftyphev") || at(4, "ftypmif1") || at(4, "ftypmsf1")) return "a HEIC image";
  if (at(4, "ftyp")) return "an MP4 or QuickTime file";
  if (at(0, "\xFF\x0A") || at(4, "JXL \r\n")) return "a JPEG XL image";
  if (at(4, "jP  \r\n") || at(0, "\xFF\x4F\xFF\x51")) return "a JPEG 2000 image";
  if (at(0, std::string_view("\0\0\1\0", 4))) return "an icon (ICO)";
  if (at(0, "%PDF")) return "a PDF document";
  if (at(0, "RIFF")) return "a RIFF file that is not WebP";
  std::string text;  // the first characters in lower case, without leading white space
  for (const char c : head.substr(0, 256)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    if (space && text.empty()) continue;
    if (byte < 0x20 && !space) {
      std::string hex;
      for (const char b : head.substr(0, 8)) hex += fmt::format(" {:02x}", static_cast<unsigned char>(b));
      return fmt::format("an unknown format starting with bytes{}", hex);
    }
    text += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  if (text.find("<svg") != std::string::npos) return "an SVG image";
  if (text.starts_with("<!doctype html") || text.starts_with("<html")) return "an HTML page";
  if (text.starts_with("<")) return "an XML document";
  return "text";
}

}  // namespace

absl::Status CheckImageSize(std::string_view format, int64_t width, int64_t height, const DecodeOptions& options) {
  if (width < 1 || height < 1) {
    return InvalidArgument("{} image: expected at least one pixel, found a size of {} x {}", format, width, height);
  }
  const int64_t max_side = std::min<int64_t>(options.max_side, std::numeric_limits<int32_t>::max());
  if (width > max_side || height > max_side) {
    return InvalidArgument("{} image: expected sides of at most {} pixels, found {} x {}", format, max_side, width,
                           height);
  }
  if (width * height > options.max_pixels) {
    return InvalidArgument("{} image: expected at most {} pixels, found {} x {}", format, options.max_pixels, width,
                           height);
  }
  return absl::OkStatus();
}

absl::Status Truncated(std::string_view format, size_t bytes) {
  return InvalidArgument("{} image: expected more data, found the end of the file after {} bytes (truncated)", format,
                         bytes);
}

void ComposeOntoWhite(RgbImage* image) {
  const size_t count = static_cast<size_t>(image->width) * image->height;
  uint8_t* pixels = image->pixels.data();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t alpha = pixels[4 * i + 3];
    for (size_t c = 0; c < 3; ++c) {
      // v / 255 rounded to nearest, for v <= 255 * 255.
      const uint32_t v = 255 * (255 - alpha) + pixels[4 * i + c] * alpha + 128;
      pixels[3 * i + c] = static_cast<uint8_t>((v + (v >> 8)) >> 8);
    }
  }
  image->pixels.resize(count * 3);
}

absl::StatusOr<RgbImage> DecodeImage(std::span<const uint8_t> bytes, const DecodeOptions& options) {
  if (bytes.empty()) return InvalidArgument("image: expected a JPEG, PNG or WebP file, found no bytes");
  if (bytes.size() > options.max_bytes) {
    return InvalidArgument("image: expected at most {} bytes, found {}", options.max_bytes, bytes.size());
  }
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 256));
  try {
    if (head.starts_with(kJpegMagic)) return DecodeJpeg(bytes, options);
    if (head.starts_with(kPngMagic)) return DecodePng(bytes, options);
    if (head.size() >= 12 && head.starts_with(kRiffMagic) && head.substr(8).starts_with("WEBP"))
      return DecodeWebp(bytes, options);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("image: not enough memory to decode it");
  }
  for (const std::string_view magic : {kJpegMagic, kPngMagic, kRiffMagic}) {
    if (magic.starts_with(head)) {
      return InvalidArgument("image: expected a whole file, found its first {} bytes only", bytes.size());
    }
  }
  return InvalidArgument("image: expected a JPEG, PNG or WebP file, found {}", Describe(head));
}

}  // namespace hadal::vision
