// Helpers of the vision tests: files, checksums, the synthetic image of the specification, PNG files made in memory.
#pragma once

#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vision/decode.h"

namespace hadal::vision {

using Bytes = std::vector<uint8_t>;

// Empty if the file cannot be read.
inline Bytes ReadBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// CRC-32 as zlib and PNG have it.
inline uint32_t Crc32(std::span<const uint8_t> bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

// The image of spec 2.3: R = 3x + 5y, G = 7x + 11y, B = 13x + 17y, each modulo 256.
inline RgbImage SyntheticImage(int width, int height) {
  RgbImage image = RgbImage::Filled(width, height, 0);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      uint8_t* pixel = image.row(y) + static_cast<size_t>(x) * 3;
      pixel[0] = static_cast<uint8_t>(3 * x + 5 * y);
      pixel[1] = static_cast<uint8_t>(7 * x + 11 * y);
      pixel[2] = static_cast<uint8_t>(13 * x + 17 * y);
    }
  }
  return image;
}

inline void AppendBigEndian32(uint32_t v, Bytes* out) {
  for (int shift = 24; shift >= 0; shift -= 8) out->push_back(static_cast<uint8_t>(v >> shift));
}

inline void AppendPngChunk(std::string_view type, const Bytes& data, Bytes* out) {
  AppendBigEndian32(static_cast<uint32_t>(data.size()), out);
  Bytes body(type.begin(), type.end());
  body.insert(body.end(), data.begin(), data.end());
  out->insert(out->end(), body.begin(), body.end());
  AppendBigEndian32(Crc32(body), out);
}

// A PNG file up to and with its IHDR: 8-bit RGB of the given size.
inline Bytes PngStart(uint32_t width, uint32_t height) {
  Bytes out = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  Bytes header;
  AppendBigEndian32(width, &header);
  AppendBigEndian32(height, &header);
  for (const int v : {8, 2, 0, 0, 0}) header.push_back(static_cast<uint8_t>(v));
  AppendPngChunk("IHDR", header, &out);
  return out;
}

// A whole PNG file of `image`, its data stored without compression.
inline Bytes EncodePng(const RgbImage& image) {
  Bytes raw;
  for (int y = 0; y < image.height; ++y) {
    raw.push_back(0);  // no filter
    raw.insert(raw.end(), image.row(y), image.row(y) + static_cast<size_t>(image.width) * 3);
  }
  Bytes zlib = {0x78, 0x01};
  uint32_t a = 1;
  uint32_t b = 0;
  for (const uint8_t byte : raw) {
    a = (a + byte) % 65521;
    b = (b + a) % 65521;
  }
  constexpr size_t kBlock = 65535;
  for (size_t at = 0; at < raw.size(); at += kBlock) {
    const size_t length = raw.size() - at < kBlock ? raw.size() - at : kBlock;
    zlib.push_back(at + length == raw.size() ? 1 : 0);
    zlib.push_back(static_cast<uint8_t>(length));
    zlib.push_back(static_cast<uint8_t>(length >> 8));
    zlib.push_back(static_cast<uint8_t>(~length));
    zlib.push_back(static_cast<uint8_t>(~length >> 8));
    zlib.insert(zlib.end(), raw.begin() + at, raw.begin() + at + length);
  }
  AppendBigEndian32(b << 16 | a, &zlib);
  Bytes out = PngStart(static_cast<uint32_t>(image.width), static_cast<uint32_t>(image.height));
  AppendPngChunk("IDAT", zlib, &out);
  AppendPngChunk("IEND", {}, &out);
  return out;
}

}  // namespace hadal::vision
