// Image files that are damaged, cut off or made to cost memory: a status that says so, never a crash or another size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "support/paths.h"
#include "unit/vision/images.h"
#include "vision/decode.h"
#include "vision/preprocess.h"

namespace hadal::vision {
namespace {

using testing::HasSubstr;

Bytes Sample(const std::string& name) { return ReadBytes(test::DataPath("vision/decode/" + name)); }

std::vector<std::string> SampleNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test::DataPath("vision/decode"))) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  EXPECT_GT(names.size(), 30u);
  return names;
}

// A vector of exactly the given bytes, so that a sanitizer sees a read past them.
absl::StatusOr<RgbImage> DecodePrefix(const Bytes& bytes, size_t length, const DecodeOptions& options = {}) {
  return DecodeImage(Bytes(bytes.begin(), bytes.begin() + static_cast<int64_t>(length)), options);
}

void ExpectRefused(const absl::StatusOr<RgbImage>& image, const char* why) {
  ASSERT_TRUE(absl::IsInvalidArgument(image.status())) << image.status();
  EXPECT_THAT(std::string(image.status().message()), HasSubstr(why));
}

TEST(HostileImages, EveryTruncationIsRefused) {
  std::mt19937 random(2);
  for (const std::string& name : SampleNames()) {
    const Bytes bytes = Sample(name);
    std::vector<size_t> lengths;
    for (size_t i = 0; i < 16; ++i) lengths.push_back(bytes.size() * i / 16);
    for (size_t i = 1; i <= 16; ++i) lengths.push_back(bytes.size() - i);
    for (int i = 0; i < 64; ++i) lengths.push_back(random() % bytes.size());
    for (const size_t length : lengths) {
      const auto image = DecodePrefix(bytes, length);
      ASSERT_TRUE(absl::IsInvalidArgument(image.status())) << name << " cut to " << length << ": " << image.status();
    }
  }
}

TEST(HostileImages, TruncationIsCalledSo) {
  for (const char* name : {"420.jpg", "progressive.jpg", "rgb.png", "interlaced.png", "lossy.webp", "lossless.webp"}) {
    const Bytes bytes = Sample(name);
    SCOPED_TRACE(name);
    ExpectRefused(DecodePrefix(bytes, bytes.size() * 3 / 4), "truncated");
  }
}

void CheckDamaged(const Bytes& bytes) {
  DecodeOptions options;
  options.max_pixels = 1 << 20;
  for (const AlphaMode alpha : {AlphaMode::kDrop, AlphaMode::kWhite}) {
    options.alpha = alpha;
    const auto image = DecodeImage(bytes, options);
    if (image.ok()) {
      ASSERT_GE(image->width, 1);
      ASSERT_GE(image->height, 1);
      ASSERT_EQ(image->pixels.size(), size_t{3} * image->width * image->height);
      ASSERT_LE(image->pixels.size(), size_t{3} << 20);
    } else {
      ASSERT_TRUE(absl::IsInvalidArgument(image.status())) << image.status();
      ASSERT_FALSE(image.status().message().empty());
    }
  }
}

TEST(HostileImages, FlippedBits) {
  std::mt19937 random(3);
  for (const std::string& name : SampleNames()) {
    SCOPED_TRACE(name);
    const Bytes bytes = Sample(name);
    for (int i = 0; i < 200 && !::testing::Test::HasFatalFailure(); ++i) {
      Bytes damaged = bytes;
      const int flips = 1 + static_cast<int>(random() % 4);
      // Half of them in the headers, where they do most.
      const size_t range = i % 2 == 0 ? damaged.size() : std::min<size_t>(damaged.size(), 64);
      for (int flip = 0; flip < flips; ++flip) damaged[random() % range] ^= static_cast<uint8_t>(1u << (random() % 8));
      CheckDamaged(damaged);
    }
  }
}

TEST(HostileImages, RandomBytesAfterAMagic) {
  std::mt19937 random(4);
  for (const char* name : {"420.jpg", "rgb.png", "lossy.webp"}) {
    const Bytes sample = Sample(name);
    for (int i = 0; i < 200 && !::testing::Test::HasFatalFailure(); ++i) {
      Bytes bytes(sample.begin(), sample.begin() + 12 + static_cast<int64_t>(random() % 30));
      while (bytes.size() < 300) bytes.push_back(static_cast<uint8_t>(random()));
      CheckDamaged(bytes);
    }
  }
}

// Files of a few bytes that claim many pixels.

Bytes JpegOfSize(uint32_t width, uint32_t height) {
  Bytes bytes = Sample("420.jpg");
  for (size_t i = 2; i + 9 < bytes.size(); i += 2 + size_t{bytes[i + 2]} * 256 + bytes[i + 3]) {
    if (bytes[i + 1] != 0xC0) continue;  // the frame header: length 2, precision 1, height 2, width 2
    bytes[i + 5] = static_cast<uint8_t>(height >> 8);
    bytes[i + 6] = static_cast<uint8_t>(height);
    bytes[i + 7] = static_cast<uint8_t>(width >> 8);
    bytes[i + 8] = static_cast<uint8_t>(width);
    return bytes;
  }
  ADD_FAILURE() << "no frame header";
  return bytes;
}

Bytes WebpOfSize(uint32_t width, uint32_t height) {
  Bytes bytes = Sample("animated.webp");  // RIFF, WEBP, VP8X: the canvas, less one, at bytes 24 and 27
  for (int i = 0; i < 3; ++i) {
    bytes[24 + i] = static_cast<uint8_t>((width - 1) >> (8 * i));
    bytes[27 + i] = static_cast<uint8_t>((height - 1) >> (8 * i));
  }
  return bytes;
}

TEST(HostileImages, ManyPixelsAreRefusedByTheHeader) {
  ExpectRefused(DecodeImage(PngStart(10'000, 10'000)), "67108864 pixels, found 10000 x 10000");
  ExpectRefused(DecodeImage(JpegOfSize(10'000, 10'000)), "67108864 pixels, found 10000 x 10000");
  ExpectRefused(DecodeImage(WebpOfSize(10'000, 10'000)), "67108864 pixels, found 10000 x 10000");
  ExpectRefused(DecodeImage(PngStart(100'000, 10)), "65535 pixels, found 100000 x 10");
  ExpectRefused(DecodeImage(PngStart(0xFFFFFFFF, 0xFFFFFFFF)), "found 4294967295 x 4294967295");
  DecodeOptions small;
  small.max_pixels = 37 * 29 - 1;
  for (const char* name : {"420.jpg", "rgb.png", "lossy.webp"}) {
    ExpectRefused(DecodeImage(Sample(name), small), "at most 1072 pixels, found 37 x 29");
  }
  small.max_pixels = 37 * 29;
  for (const char* name : {"420.jpg", "rgb.png", "lossy.webp"}) EXPECT_TRUE(DecodeImage(Sample(name), small).ok());
}

TEST(HostileImages, LargeFilesAreRefused) {
  const Bytes bytes = Sample("rgb.png");
  DecodeOptions options;
  options.max_bytes = bytes.size();
  EXPECT_TRUE(DecodeImage(bytes, options).ok());
  options.max_bytes = bytes.size() - 1;
  ExpectRefused(DecodeImage(bytes, options), "image: expected at most");
}

TEST(HostileImages, ZeroSize) {
  ExpectRefused(DecodeImage(PngStart(0, 5)), "found a size of 0 x 5");
  ExpectRefused(DecodeImage(PngStart(5, 0)), "found a size of 5 x 0");
  ExpectRefused(DecodeImage(JpegOfSize(0, 5)), "JPEG image: ");
  ExpectRefused(DecodeImage(JpegOfSize(5, 0)), "JPEG image: ");
}

// The canvas of an animation shrunk below its frame.
TEST(HostileImages, FrameOutsideTheCanvas) {
  for (const uint32_t size : {1u, 10u, 36u}) ExpectRefused(DecodeImage(WebpOfSize(size, size)), "WebP image: ");
}

// A progressive file whose first scan is repeated: each costs a pass over the image.
TEST(HostileImages, ScansWithoutEnd) {
  const Bytes bytes = Sample("progressive.jpg");
  const auto marker = [&](size_t at) { return bytes[at] == 0xFF && bytes[at + 1] != 0; };
  size_t begin = 2;
  while (!marker(begin) || bytes[begin + 1] != 0xDA) ++begin;
  size_t end = begin + 2;
  while (!marker(end)) ++end;
  const auto with_scans = [&](int count) {
    Bytes out(bytes.begin(), bytes.begin() + static_cast<int64_t>(begin));
    for (int i = 0; i < count; ++i) {
      out.insert(out.end(), bytes.begin() + static_cast<int64_t>(begin), bytes.begin() + static_cast<int64_t>(end));
    }
    out.insert(out.end(), bytes.begin() + static_cast<int64_t>(end), bytes.end());
    return out;
  };
  EXPECT_EQ(DecodeImage(with_scans(20))->pixels, DecodeImage(bytes)->pixels);
  ExpectRefused(DecodeImage(with_scans(200)), "expected at most 100 scans");
}

// Chunks of text that would unpack to much more, and a profile that is none.
TEST(HostileImages, MetadataIsNotRead) {
  const Bytes sample = Sample("rgb.png");
  const RgbImage image = DecodeImage(sample).value();
  for (const char* type : {"iCCP", "zTXt", "iTXt", "eXIf", "sPLT", "gAMA", "hIST", "abCd"}) {
    constexpr size_t kHeaderEnd = 33;
    Bytes bytes(sample.begin(), sample.begin() + kHeaderEnd);
    AppendPngChunk(type, Bytes(1000, 0x41), &bytes);
    bytes.insert(bytes.end(), sample.begin() + kHeaderEnd, sample.end());
    const auto decoded = DecodeImage(bytes);
    ASSERT_TRUE(decoded.ok()) << type << ": " << decoded.status();
    EXPECT_EQ(decoded->pixels, image.pixels);
  }
}

TEST(HostileImages, DamagedDataAreNotShownInPart) {
  Bytes bytes = Sample("rgb.png");
  bytes[bytes.size() / 2] ^= 1;
  ExpectRefused(DecodeImage(bytes), "PNG image: ");
}

}  // namespace
}  // namespace hadal::vision
