// DecodePng: libpng, every colour type to 8-bit RGB.
//
// libpng leaves through its error function, which must not return; see decode_jpeg.cc for how the jump is contained.
#include <png.h>

#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "base/status.h"
#include "vision/decode_formats.h"

namespace hadal::vision {
namespace {

class PngReader {
 public:
  explicit PngReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  // Both return false on failure; error() then says why.
  bool ReadHeader() {
    if (setjmp(jump_) != 0) return false;
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, OnError, [](png_structp, png_const_charp) {});
    if (png_ == nullptr) return FailMemory();
    info_ = png_create_info_struct(png_);
    if (info_ == nullptr) return FailMemory();
    png_set_read_fn(png_, this, OnRead);
    // Our own limit is on pixels. Text, profiles and the like are skipped unread.
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(png_, info_);
    return true;
  }

  bool transparent() const {
    return (png_get_color_type(png_, info_) & PNG_COLOR_MASK_ALPHA) != 0 ||
           png_get_valid(png_, info_, PNG_INFO_tRNS) != 0;
  }
  int64_t width() const { return png_get_image_width(png_, info_); }
  int64_t height() const { return png_get_image_height(png_, info_); }

  // `pixels`: width x height x 3, or x 4 with alpha.
  bool ReadPixels(uint8_t* pixels, bool with_alpha) {
    if (setjmp(jump_) != 0) return false;
    const int colour = png_get_color_type(png_, info_);
    if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if (colour == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png_);
    if (with_alpha) {
      png_set_tRNS_to_alpha(png_);
    } else {
      png_set_strip_alpha(png_);
    }
    png_set_strip_16(png_);  // the high byte, as Pillow takes it; png_set_scale_16 would round
    png_set_gray_to_rgb(png_);
    const int passes = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    const size_t stride = static_cast<size_t>(width()) * (with_alpha ? 4 : 3);
    if (png_get_rowbytes(png_, info_) != stride) png_error(png_, "unexpected row size");
    for (int pass = 0; pass < passes; ++pass) {
      for (int64_t y = 0; y < height(); ++y) png_read_row(png_, pixels + y * stride, nullptr);
    }
    png_read_end(png_, nullptr);
    return true;
  }

  absl::Status error() const {
    if (truncated_) return Truncated("PNG", bytes_.size());
    if (out_of_memory_) return ResourceExhausted("PNG image: not enough memory to decode it");
    return InvalidArgument("PNG image: {}", message_.data());
  }

 private:
  bool FailMemory() {
    out_of_memory_ = true;
    return false;
  }
  static void OnError(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(self->message_.data(), self->message_.size(), "%s", message);
    std::longjmp(self->jump_, 1);
  }
  static void OnRead(png_structp png, png_bytep out, size_t count) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self->bytes_.size() - self->at_) {
      self->truncated_ = true;
      std::longjmp(self->jump_, 1);
    }
    std::memcpy(out, self->bytes_.data() + self->at_, count);
    self->at_ += count;
  }

  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_ = {};
  std::array<char, 256> message_ = {};
  bool truncated_ = false;
  bool out_of_memory_ = false;
};

uint32_t BigEndian32(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

}  // namespace

absl::StatusOr<RgbImage> DecodePng(std::span<const uint8_t> bytes, const DecodeOptions& options) {
  // The size stands in the first chunk: signature 8, length 4, "IHDR", width 4, height 4. Checked here for a message
  // that says the numbers; libpng's "Invalid IHDR data" does not.
  constexpr size_t kWidthAt = 16;
  if (bytes.size() < kWidthAt + 8) return Truncated("PNG", bytes.size());
  HADAL_RETURN_IF_ERROR(
      CheckImageSize("PNG", BigEndian32(bytes.data() + kWidthAt), BigEndian32(bytes.data() + kWidthAt + 4), options));
  PngReader reader(bytes);
  if (!reader.ReadHeader()) return reader.error();
  HADAL_RETURN_IF_ERROR(CheckImageSize("PNG", reader.width(), reader.height(), options));

  const bool with_alpha = options.alpha == AlphaMode::kWhite && reader.transparent();
  RgbImage image{static_cast<int>(reader.width()), static_cast<int>(reader.height()), {}};
  image.pixels.resize(static_cast<size_t>(image.width) * image.height * (with_alpha ? 4 : 3));
  if (!reader.ReadPixels(image.pixels.data(), with_alpha)) return reader.error();
  if (with_alpha) ComposeOntoWhite(&image);
  return image;
}

}  // namespace hadal::vision
