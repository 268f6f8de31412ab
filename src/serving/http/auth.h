// The keys that clients may show.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "serving/http/exchange.h"

namespace hadal::serving {

class ApiKeys {
 public:
  void Add(std::string_view key);
  // Without keys everybody may.
  bool empty() const { return digests_.empty(); }
  // Time does not tell how much of a key was right: digests are compared, each to its end.
  bool Contains(std::string_view key) const;
  // Whether the request shows one: "Authorization: Bearer KEY", once; or x-api-key, where that is taken.
  bool Admits(const HttpRequest& request, bool takes_x_api_key) const;
  // Whose request it is: a digest of the key that it shows as "Authorization: Bearer KEY"; empty without keys, when all
  // are one's. Of requests that are admitted.
  std::string OwnerOf(const HttpRequest& request) const;

 private:
  std::vector<Sha256Digest> digests_;
};

}  // namespace hadal::serving
