#include "serving/http/router.h"

#include <utility>

namespace hadal::serving {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::string_view kResponsePrefix = "/v1/responses/", kItemsSuffix = "/input_items";

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

bool GoodSegments(std::string_view path) {
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  path.remove_prefix(1);
  if (path.ends_with('/')) path.remove_suffix(1);  // a slash at the end makes no difference
  if (path.empty()) return true;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view segment = path.substr(0, slash);
    if (segment.empty() || segment == "." || segment == "..") return false;
    if (slash == path.npos) return true;
    path.remove_prefix(slash + 1);
  }
}

}  // namespace

std::optional<std::string> PathOf(std::string_view target) {
  if (target == "*") return std::string(target);
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const size_t slash = target.find('/', scheme.size());
    target = slash == target.npos ? "/" : target.substr(slash);
    break;
  }
  std::optional<std::string> path = PercentDecoded(target.substr(0, target.find_first_of("?#")));
  if (!path.has_value() || !path->starts_with('/') || !GoodSegments(*path)) return std::nullopt;
  if (path->size() > 1 && path->ends_with('/')) path->pop_back();
  return path;
}

std::string_view QueryOf(std::string_view target) {
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  return mark == target.npos ? std::string_view() : target.substr(mark + 1);
}

std::optional<Route> FindRoute(std::string_view path) {
  using Kind = Route::Kind;
  constexpr std::pair<std::string_view, Kind> kFixed[] = {
      {"/health", Kind::kHealth},    {"/ping", Kind::kPing},       {"/version", Kind::kVersion},
      {"/v1/models", Kind::kModels}, {"/metrics", Kind::kMetrics},
  };
  for (const auto& [name, kind] : kFixed) {
    if (path == name) return Route{.kind = kind};
  }
  if (path.starts_with(kModelPrefix)) {
    return Route{.kind = Kind::kModel, .name = std::string(path.substr(kModelPrefix.size()))};
  }
  if (path.starts_with(kResponsePrefix)) {
    std::string_view id = path.substr(kResponsePrefix.size());
    const bool items = id.ends_with(kItemsSuffix);
    if (items) id.remove_suffix(kItemsSuffix.size());
    if (id.empty() || id.find('/') != id.npos) return std::nullopt;
    return Route{.kind = items ? Kind::kResponseItems : Kind::kResponse, .name = std::string(id)};
  }
  for (const Endpoint& endpoint : Endpoints()) {
    if (path == endpoint.path) return Route{.kind = Kind::kEndpoint, .endpoint = &endpoint};
  }
  if (const WebFile* file = FindWebFile(path); file != nullptr) return Route{.kind = Kind::kWeb, .file = file};
  return std::nullopt;
}

}  // namespace hadal::serving
