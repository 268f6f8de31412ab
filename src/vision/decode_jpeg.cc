// DecodeJpeg: libjpeg-turbo, set up as Pillow sets it up (accurate integer DCT, smooth chroma upsampling).
//
// libjpeg leaves through error_exit, which must not return, so the calls sit in member functions that begin with setjmp
// and hold no object with a destructor; everything that must survive the jump is a member.
#include <cstdio>  // jpeglib.h needs FILE
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>

#include "base/status.h"
#include "vision/decode_formats.h"

namespace hadal::vision {
namespace {

// A progressive file may bring any number of scans, each of which costs a pass over all blocks, for a few bytes where
// all are empty. Encoders write about ten. So: so many scans, fewer for large images, but always some.
constexpr int64_t kMaxScans = 100;
constexpr int64_t kMinScans = 32;
constexpr int64_t kMaxScannedPixels = int64_t{1} << 31;

class JpegReader {
 public:
  explicit JpegReader(std::span<const uint8_t> bytes) : bytes_(bytes) {
    info_.err = jpeg_std_error(&errors_);
    errors_.error_exit = OnError;
    errors_.emit_message = OnMessage;
    errors_.output_message = [](j_common_ptr) {};
    info_.client_data = this;
    source_.init_source = [](j_decompress_ptr) {};
    source_.fill_input_buffer = [](j_decompress_ptr info) -> boolean { return Self(info).FailTruncated(); };
    source_.skip_input_data = Skip;
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.term_source = [](j_decompress_ptr) {};
    source_.next_input_byte = bytes.data();
    source_.bytes_in_buffer = bytes.size();
    progress_.progress_monitor = OnProgress;
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // Both return false on failure; error() then says why.
  bool ReadHeader() {
    if (setjmp(jump_) != 0) return false;
    jpeg_create_decompress(&info_);  // clears all but err and client_data
    info_.src = &source_;
    info_.progress = &progress_;
    jpeg_read_header(&info_, TRUE);
    return true;
  }
  // `rgb`: width x height x 3. `cmyk`: one row of width x 4, for images of four components.
  bool ReadPixels(uint8_t* rgb, uint8_t* cmyk) {
    if (setjmp(jump_) != 0) return false;
    info_.out_color_space = components() == 4 ? JCS_CMYK : JCS_RGB;
    info_.dct_method = JDCT_ISLOW;
    info_.do_fancy_upsampling = TRUE;
    jpeg_start_decompress(&info_);
    ReadRows(rgb, cmyk);
    jpeg_finish_decompress(&info_);  // reads on to the end marker: a file without one is truncated
    return true;
  }

  int64_t width() const { return info_.image_width; }
  int64_t height() const { return info_.image_height; }
  int components() const { return info_.num_components; }
  bool known_colours() const { return info_.jpeg_color_space != JCS_UNKNOWN; }

  absl::Status error() const {
    if (truncated_) return Truncated("JPEG", bytes_.size());
    if (out_of_memory_) return ResourceExhausted("JPEG image: not enough memory to decode it");
    return InvalidArgument("JPEG image: {}", message_.data());
  }

 private:
  template <typename Info>
  static JpegReader& Self(Info* info) {
    return *static_cast<JpegReader*>(info->client_data);
  }
  static void OnError(j_common_ptr info) {
    Self(info).out_of_memory_ = info->err->msg_code == JERR_OUT_OF_MEMORY;
    info->err->format_message(info, Self(info).message_.data());
    std::longjmp(Self(info).jump_, 1);
  }
  // Of the warnings, those end the decoding that say that coded data are missing or make no sense.
  static void OnMessage(j_common_ptr info, int level) {
    if (level >= 0) return;
    switch (info->err->msg_code) {
      case JWRN_JPEG_EOF:
      case JWRN_HIT_MARKER:
      case JWRN_HUFF_BAD_CODE:
      case JWRN_ARITH_BAD_CODE:
      case JWRN_MUST_RESYNC:
        OnError(info);
        break;
      default:
        break;
    }
  }
  static void OnProgress(j_common_ptr info) {
    JpegReader& self = Self(info);
    const int64_t limit = std::clamp(kMaxScannedPixels / (self.width() * self.height()), kMinScans, kMaxScans);
    if (self.info_.input_scan_number > limit) {
      std::snprintf(self.message_.data(), self.message_.size(), "expected at most %d scans, found more",
                    static_cast<int>(limit));
      std::longjmp(self.jump_, 1);
    }
  }
  static void Skip(j_decompress_ptr info, long count) {  // NOLINT(google-runtime-int): libjpeg's signature
    JpegReader& self = Self(info);
    if (count <= 0) return;
    if (static_cast<size_t>(count) > self.source_.bytes_in_buffer) self.FailTruncated();
    self.source_.next_input_byte += count;
    self.source_.bytes_in_buffer -= static_cast<size_t>(count);
  }
  [[noreturn]] boolean FailTruncated() {
    truncated_ = true;
    std::longjmp(jump_, 1);
  }

  void ReadRows(uint8_t* rgb, uint8_t* cmyk) {
    const size_t stride = static_cast<size_t>(info_.output_width) * 3;
    while (info_.output_scanline < info_.output_height) {
      uint8_t* row = rgb + info_.output_scanline * stride;
      JSAMPROW target = components() == 4 ? cmyk : row;
      jpeg_read_scanlines(&info_, &target, 1);
      if (components() == 4) CmykToRgb(cmyk, row);
    }
  }
  // Pillow takes every CMYK JPEG as Adobe writes them, with 255 for no ink: k - c * k / 255 of the inverted values.
  void CmykToRgb(const uint8_t* cmyk, uint8_t* rgb) const {
    for (size_t x = 0; x < info_.output_width; ++x, cmyk += 4, rgb += 3) {
      const uint32_t light = cmyk[3];
      for (size_t c = 0; c < 3; ++c) {
        const uint32_t v = (255u - cmyk[c]) * light + 128;
        rgb[c] = static_cast<uint8_t>(light - ((v + (v >> 8)) >> 8));
      }
    }
  }

  std::span<const uint8_t> bytes_;
  jpeg_decompress_struct info_ = {};
  jpeg_error_mgr errors_ = {};
  jpeg_source_mgr source_ = {};
  jpeg_progress_mgr progress_ = {};
  std::jmp_buf jump_ = {};
  std::array<char, JMSG_LENGTH_MAX> message_ = {};
  bool truncated_ = false;
  bool out_of_memory_ = false;
};

}  // namespace

absl::StatusOr<RgbImage> DecodeJpeg(std::span<const uint8_t> bytes, const DecodeOptions& options) {
  JpegReader reader(bytes);
  if (!reader.ReadHeader()) return reader.error();
  HADAL_RETURN_IF_ERROR(CheckImageSize("JPEG", reader.width(), reader.height(), options));
  const int components = reader.components();
  if ((components != 1 && components != 3 && components != 4) || !reader.known_colours()) {
    return InvalidArgument("JPEG image: expected grey, colour or CMYK, found {} components", components);
  }
  RgbImage image = RgbImage::Filled(static_cast<int>(reader.width()), static_cast<int>(reader.height()), 0);
  std::vector<uint8_t> cmyk(components == 4 ? static_cast<size_t>(image.width) * 4 : 0);
  if (!reader.ReadPixels(image.pixels.data(), cmyk.data())) return reader.error();
  return image;
}

}  // namespace hadal::vision
