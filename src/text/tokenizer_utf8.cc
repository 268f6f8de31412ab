// UTF-8 stepping, validation and lossy conversion.
#include "text/tokenizer_utf8.h"

#include <cstdint>
#include <cstring>

namespace hadal::text {
namespace {

bool IsContinuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

}  // namespace

Utf8Step NextUtf8(std::string_view bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  const unsigned char lead = p[0];
  if (lead < 0x80) return {Utf8Step::Kind::kChar, 1};
  // Length by lead byte, and the range of the second byte where it is narrower than 80..BF.
  size_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Step::Kind::kInvalid, 1};
  }
  if (bytes.size() < 2) return {Utf8Step::Kind::kTruncated, 1};
  if (p[1] < low || p[1] > high) return {Utf8Step::Kind::kInvalid, 1};
  for (size_t i = 2; i < length; ++i) {
    if (i == bytes.size()) return {Utf8Step::Kind::kTruncated, i};
    if (!IsContinuation(p[i])) return {Utf8Step::Kind::kInvalid, i};
  }
  return {Utf8Step::Kind::kChar, length};
}

size_t ValidUtf8Prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    // Runs of ASCII, eight bytes at a time.
    while (at + 8 <= bytes.size()) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + at, 8);
      if ((word & 0x8080808080808080u) != 0) break;
      at += 8;
    }
    if (at == bytes.size()) break;
    const Utf8Step step = NextUtf8(bytes.substr(at));
    if (step.kind != Utf8Step::Kind::kChar) break;
    at += step.length;
  }
  return at;
}

void AppendLossyUtf8(std::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    const size_t valid = ValidUtf8Prefix(bytes);
    out->append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    const Utf8Step step = NextUtf8(bytes);
    out->append(kReplacementCharacter);
    bytes.remove_prefix(step.length);
  }
}

}  // namespace hadal::text
