#include "serving/http/auth.h"

namespace hadal::serving {
namespace {

Sha256Digest DigestOf(std::string_view text) {
  Sha256 hash;
  hash.Update({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  return hash.Finish();
}

bool IsBearer(std::string_view scheme) {
  constexpr std::string_view kBearer = "bearer ";
  if (scheme.size() < kBearer.size()) return false;
  for (size_t i = 0; i < kBearer.size(); ++i) {
    const char c = scheme[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != kBearer[i]) return false;
  }
  return true;
}

std::string_view KeyOf(std::string_view bearer) {
  std::string_view key = bearer.substr(std::string_view("bearer ").size());
  while (key.starts_with(' ')) key.remove_prefix(1);
  return key;
}

}  // namespace

void ApiKeys::Add(std::string_view key) { digests_.push_back(DigestOf(key)); }

bool ApiKeys::Contains(std::string_view key) const {
  const Sha256Digest digest = DigestOf(key);
  unsigned found = 0;
  for (const Sha256Digest& known : digests_) {
    unsigned different = 0;
    for (size_t i = 0; i < known.size(); ++i) different |= static_cast<unsigned>(known[i] ^ digest[i]);
    found |= different == 0 ? 1U : 0U;
  }
  return found != 0;
}

bool ApiKeys::Admits(const HttpRequest& request, bool takes_x_api_key) const {
  if (empty()) return true;
  const std::vector<std::string_view> bearer = request.Header("authorization");
  if (bearer.size() == 1 && IsBearer(bearer[0])) return Contains(KeyOf(bearer[0]));
  if (!bearer.empty() || !takes_x_api_key) return false;
  const std::vector<std::string_view> key = request.Header("x-api-key");
  return key.size() == 1 && Contains(key[0]);
}

std::string ApiKeys::OwnerOf(const HttpRequest& request) const {
  if (empty()) return {};
  const std::vector<std::string_view> bearer = request.Header("authorization");
  return bearer.size() == 1 && IsBearer(bearer[0]) ? HexDigest(DigestOf(KeyOf(bearer[0]))) : std::string();
}

}  // namespace hadal::serving
