// SHA-256 against the examples of FIPS 180-4 (NIST's "SHA256.pdf" and SHA256ShortMsg), in pieces and at once.
#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace hadal {
namespace {

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Hash(std::string_view text) {
  Sha256 hash;
  hash.Update(Bytes(text));
  return HexDigest(hash.Finish());
}

TEST(Sha256, Examples) {
  EXPECT_EQ(Hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hash(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, EveryCutGivesTheSame) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 7);
  for (size_t length = 0; length <= text.size(); ++length) {
    const std::string_view part = std::string_view(text).substr(0, length);
    const std::string whole = Hash(part);
    for (const size_t cut : {length / 3, length / 2, length - length / 5}) {
      Sha256 hash;
      hash.Update(Bytes(part.substr(0, cut)));
      hash.Update({});
      hash.Update(Bytes(part.substr(cut)));
      ASSERT_EQ(HexDigest(hash.Finish()), whole) << length << " cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace hadal
