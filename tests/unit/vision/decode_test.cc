// Decoding against checksums of what Pillow makes of the same files, every format and kind of pixel.
#include "vision/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/paths.h"
#include "unit/vision/images.h"

namespace hadal::vision {
namespace {

using testing::HasSubstr;

Bytes Sample(const std::string& name) { return ReadBytes(test::DataPath("vision/decode/" + name)); }

struct Case {
  const char* file;
  int width, height;
  uint32_t dropped;   // CRC-32 of R, G, B with AlphaMode::kDrop
  uint32_t on_white;  // with AlphaMode::kWhite
};

// From Pillow 9.4.0 with libjpeg-turbo 2.1.5 and libwebp 1.2.4: convert("RGB"), and convert("RGBA") pasted over white.
// The exception is grey16.png, where Pillow's conversion clips: there the high bytes of the values that it reads.
const Case kCases[] = {
    {"420.jpg", 37, 29, 0x2a1e39df, 0x2a1e39df},               // RGB
    {"422.jpg", 37, 29, 0x9d244efc, 0x9d244efc},               // RGB
    {"444.jpg", 37, 29, 0x18736105, 0x18736105},               // RGB
    {"animated.webp", 37, 29, 0x98fe6e0a, 0x98fe6e0a},         // RGB
    {"animated_offset.webp", 37, 29, 0x6ddc3b0e, 0x81ca37ee},  // RGBA
    {"bilevel.png", 37, 29, 0xd2a96288, 0xd2a96288},           // 1
    {"cmyk.jpg", 37, 29, 0x228c71c9, 0x228c71c9},              // CMYK
    {"cmyk_no_adobe.jpg", 37, 29, 0x228c71c9, 0x228c71c9},     // CMYK
    {"cmyk_no_adobe.jpg", 37, 29, 0x228c71c9, 0x228c71c9},     // CMYK
    {"grey.jpg", 37, 29, 0xec07a8a0, 0xec07a8a0},              // L
    {"grey.png", 37, 29, 0x80b5d0d8, 0x80b5d0d8},              // L
    {"grey16.png", 37, 29, 0x026cab38, 0x026cab38},            // I
    {"grey2.png", 37, 29, 0xb92fbe16, 0xb92fbe16},             // L
    {"grey4.png", 37, 29, 0xecb348b2, 0xecb348b2},             // L
    {"grey_alpha.png", 37, 29, 0x80b5d0d8, 0xbd4756b8},        // LA
    {"grey_alpha16.png", 37, 29, 0x026cab38, 0x20ca26d0},      // RGBA
    {"grey_key.png", 37, 29, 0x80b5d0d8, 0x3f46c533},          // L
    {"interlaced.png", 37, 29, 0x98fe6e0a, 0x98fe6e0a},        // RGB
    {"interlaced_rgba.png", 37, 29, 0x98fe6e0a, 0x27efe140},   // RGBA
    {"lossless.webp", 37, 29, 0x98fe6e0a, 0x98fe6e0a},         // RGB
    {"lossless_alpha.webp", 37, 29, 0x98fe6e0a, 0x27efe140},   // RGBA
    {"lossy.webp", 37, 29, 0xd9feb323, 0xd9feb323},            // RGB
    {"lossy_alpha.webp", 37, 29, 0xf82aed6e, 0xdfc89e64},      // RGBA
    {"orientation6.jpg", 37, 29, 0x6fde1cc4, 0x6fde1cc4},      // RGB
    {"palette.png", 37, 29, 0xfd979b16, 0xfd979b16},           // P
    {"palette4.png", 37, 29, 0x1d730409, 0x6f47d45c},          // P
    {"palette_trns.png", 37, 29, 0xaff41f79, 0x243d3d0c},      // P
    {"progressive.jpg", 37, 29, 0x6fde1cc4, 0x6fde1cc4},       // RGB
    {"rgb.png", 37, 29, 0x98fe6e0a, 0x98fe6e0a},               // RGB
    {"rgb16.png", 37, 29, 0x98fe6e0a, 0x98fe6e0a},             // RGB
    {"rgb_ids.jpg", 37, 29, 0x61fc4016, 0x61fc4016},           // RGB
    {"rgb_ids.jpg", 37, 29, 0x61fc4016, 0x61fc4016},           // RGB
    {"rgb_key.png", 37, 29, 0x98fe6e0a, 0x071bda94},           // RGB
    {"rgba.png", 37, 29, 0x98fe6e0a, 0x27efe140},              // RGBA
    {"rgba16.png", 37, 29, 0x98fe6e0a, 0x27efe140},            // RGBA
    {"ycck.jpg", 37, 29, 0x0e7073a2, 0x0e7073a2},              // CMYK
    {"ycck.jpg", 37, 29, 0x0e7073a2, 0x0e7073a2},              // CMYK
};

TEST(Decode, EqualsPillow) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.file);
    const Bytes bytes = Sample(c.file);
    const auto dropped = DecodeImage(bytes);
    ASSERT_TRUE(dropped.ok()) << dropped.status();
    EXPECT_EQ(dropped->width, c.width);
    EXPECT_EQ(dropped->height, c.height);
    EXPECT_EQ(Crc32(dropped->pixels), c.dropped);
    DecodeOptions white;
    white.alpha = AlphaMode::kWhite;
    const auto on_white = DecodeImage(bytes, white);
    ASSERT_TRUE(on_white.ok()) << on_white.status();
    EXPECT_EQ(Crc32(on_white->pixels), c.on_white);
  }
}

// Spec trap 13: pixels of alpha 0 keep their colour.
TEST(Decode, DroppedAlphaKeepsColours) {
  const RgbImage opaque = DecodeImage(Sample("rgb.png")).value();
  EXPECT_EQ(DecodeImage(Sample("rgba.png"))->pixels, opaque.pixels);
  EXPECT_EQ(DecodeImage(Sample("lossless_alpha.webp"))->pixels, opaque.pixels);
}

// Spec trap 13: orientation 6 would swap the sides.
TEST(Decode, OrientationIsIgnored) {
  const auto image = DecodeImage(Sample("orientation6.jpg"));
  EXPECT_EQ(image->width, 37);
  EXPECT_EQ(image->height, 29);
  EXPECT_EQ(image->pixels, DecodeImage(Sample("progressive.jpg"))->pixels);  // the same picture, stored upright
}

TEST(Decode, FirstFrameOfAnimations) {
  EXPECT_EQ(DecodeImage(Sample("animated.webp"))->pixels, DecodeImage(Sample("rgb.png"))->pixels);
  // A first frame of 20 x 16 at (4, 6): around it black, or white.
  const RgbImage image = DecodeImage(Sample("animated_offset.webp")).value();
  EXPECT_EQ(image.row(5)[3 * 4], 0);
  EXPECT_EQ(image.row(6)[3 * 3], 0);
  EXPECT_NE(image.row(6)[3 * 4], 0);
  DecodeOptions white;
  white.alpha = AlphaMode::kWhite;
  EXPECT_EQ(DecodeImage(Sample("animated_offset.webp"), white)->row(28)[3 * 36], 255);
}

TEST(Decode, BytesAfterTheImageDoNotMatter) {
  for (const char* file : {"420.jpg", "rgb.png", "lossy.webp"}) {
    Bytes bytes = Sample(file);
    const RgbImage image = DecodeImage(bytes).value();
    bytes.insert(bytes.end(), 100, 0xAB);
    const auto longer = DecodeImage(bytes);
    ASSERT_TRUE(longer.ok()) << file << ": " << longer.status();
    EXPECT_EQ(longer->pixels, image.pixels);
  }
}

TEST(Decode, PiecesOfAMagicAreTruncatedFiles) {
  for (const std::string_view bytes : {"\xFF", "\xFF\xD8", "\x89PNG", "RI"}) {
    const auto image = DecodeImage({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    ASSERT_TRUE(absl::IsInvalidArgument(image.status()));
    EXPECT_THAT(std::string(image.status().message()), HasSubstr("expected a whole file"));
  }
}

TEST(Decode, OtherFormatsAreNamed) {
  using namespace std::string_literals;
  const std::pair<std::string, const char*> cases[] = {
      {"GIF89a\x01\x00"s, "GIF"},
      {"BM\x3a\x00\x00\x00"s, "BMP"},
      {"II*\0\x08\0\0\0"s, "TIFF"},
      {"\0\0\0\x1c"
       "ftypavif\0\0\0\0"s,
       "AVIF"},
      {"\0\0\0\x1c"
       "ftypheic\0\0\0\0"s,
       "HEIC"},
      {"\0\0\0\x1c"
       "ftypisom\0\0\0\0"s,
       "MP4"},
      {"\0\0\0\x0cJXL \r\n"s, "JPEG XL"},
      {"%PDF-1.7"s, "PDF"},
      {"RIFF\x10\0\0\0WAVEfmt "s, "RIFF"},
      {"<svg xmlns=\"http://www.w3.org/2000/svg\"/>"s, "SVG"},
      {"<?xml version=\"1.0\"?>\n<svg/>"s, "SVG"},
      {"\n <!DOCTYPE html><html>"s, "HTML"},
      {"hello"s, "text"},
      {"\x01\x02\x03\x04"s, "01 02 03 04"},
      {""s, "no bytes"},
  };
  for (const auto& [bytes, name] : cases) {
    const auto image = DecodeImage({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    ASSERT_TRUE(absl::IsInvalidArgument(image.status())) << name;
    EXPECT_THAT(std::string(image.status().message()), HasSubstr(name));
    EXPECT_THAT(std::string(image.status().message()), HasSubstr("expected a JPEG, PNG or WebP file"));
  }
}

}  // namespace
}  // namespace hadal::vision
