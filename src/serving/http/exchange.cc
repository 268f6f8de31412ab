#include "serving/http/exchange.h"

#include <algorithm>

namespace hadal::serving {
namespace {

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool SameName(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return Lower(x) == Lower(y); });
}

}  // namespace

std::vector<std::string_view> HttpRequest::Header(std::string_view name) const {
  std::vector<std::string_view> values;
  for (const auto& [key, value] : headers) {
    if (SameName(key, name)) values.push_back(value);
  }
  return values;
}

}  // namespace hadal::serving
