#include "serving/openai/data_uri.h"

#include <string>

#include "absl/strings/escaping.h"
#include "base/status.h"

namespace hadal::serving {
namespace {

constexpr std::string_view kExpected = "a data: URI like data:image/png;base64,... of a PNG, JPEG or WebP image";

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// What a scheme, a media type or an encoding looks like in a message.
std::string Shown(std::string_view text) {
  constexpr size_t kMost = 40;
  std::string shown;
  for (const char c : text.substr(0, kMost)) shown += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kMost ? shown + "..." : shown;
}

bool IsBase64(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '/';
}

}  // namespace

absl::StatusOr<std::vector<uint8_t>> DecodeBase64(std::string_view text) {
  size_t padding = 0;
  while (padding < 2 && text.size() > padding && text[text.size() - 1 - padding] == '=') ++padding;
  const size_t digits = text.size() - padding;
  for (size_t i = 0; i < digits; ++i) {
    if (!IsBase64(text[i])) return InvalidArgument("not valid base64: character {} is none of its alphabet", i);
  }
  if (text.size() % 4 != 0) {
    return InvalidArgument("not valid base64: expected a multiple of 4 characters, padding included, found {}",
                           text.size());
  }
  std::string bytes;
  if (!absl::Base64Unescape({text.data(), text.size()}, &bytes) || bytes.size() != text.size() / 4 * 3 - padding) {
    return InvalidArgument("not valid base64: the last group of 4 characters stands for no bytes");
  }
  return std::vector<uint8_t>(bytes.begin(), bytes.end());
}

absl::StatusOr<std::vector<uint8_t>> DecodeImageUri(std::string_view uri, size_t max_bytes) {
  const size_t colon = uri.find(':');
  const std::string scheme = Lower(uri.substr(0, colon == uri.npos ? 0 : colon));
  if (scheme == "http" || scheme == "https") {
    return InvalidArgument("images are not fetched from the network: expected {}, found an {} URL", kExpected, scheme);
  }
  if (scheme == "file") {
    return InvalidArgument("files are not read for a request: expected {}, found a file URL", kExpected);
  }
  if (scheme != "data") return InvalidArgument("expected {}, found \"{}\"", kExpected, Shown(uri));
  uri.remove_prefix(colon + 1);
  const size_t comma = uri.find(',');
  if (comma == uri.npos) return InvalidArgument("expected {}, found no comma", kExpected);
  const std::string head = Lower(uri.substr(0, comma));
  const size_t semicolon = head.find(';');
  const std::string_view type = std::string_view(head).substr(0, semicolon);
  if (type != "image/png" && type != "image/jpeg" && type != "image/jpg" && type != "image/webp") {
    return InvalidArgument("expected {}, found the media type \"{}\"", kExpected, Shown(type));
  }
  if (semicolon == head.npos || std::string_view(head).substr(semicolon) != ";base64") {
    return InvalidArgument("expected {}, found \"{}\" without base64", kExpected, Shown(head));
  }
  const std::string_view data = uri.substr(comma + 1);
  if (data.empty()) return InvalidArgument("expected {}, found one without data", kExpected);
  if (data.size() > (max_bytes + 2) / 3 * 4) {
    return InvalidArgument("expected an image of at most {} bytes, found {}", max_bytes, data.size() / 4 * 3);
  }
  return DecodeBase64(data);
}

}  // namespace hadal::serving
