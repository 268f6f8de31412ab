// SHA-256 (FIPS 180-4), for keys that nobody may be able to forge: about 4 ms for a megabyte, so not for hash tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace hadal {

using Sha256Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  // May be called any number of times; only the bytes in sequence count.
  void Update(std::span<const uint8_t> bytes);
  // The digest of all bytes so far. The object is used up.
  Sha256Digest Finish();

 private:
  void Compress(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_ = {};
  uint64_t length_ = 0;  // bytes
};

// Lower-case hexadecimal digits.
std::string HexDigest(const Sha256Digest& digest);

}  // namespace hadal
