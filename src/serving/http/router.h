// From the target of a request to what serves it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "serving/protocol.h"
#include "serving/web/web_files.h"

namespace hadal::serving {

// The path of a target as it came over the wire: origin form or absolute form, without query, percent-decoded. Nothing
// for what is no path or tries to be another: "..", empty segments, bytes below 0x20, broken escapes. "*" stays.
std::optional<std::string> PathOf(std::string_view target);
// What stands behind the "?" of a target, as it came; empty if nothing does.
std::string_view QueryOf(std::string_view target);

struct Route {
  enum class Kind {
    kHealth,
    kPing,
    kVersion,
    kModels,
    kModel,
    kMetrics,
    kWeb,
    kEndpoint,
    kResponse,       // one that is stored
    kResponseItems,  // its input
  };
  Kind kind = Kind::kHealth;
  const Endpoint* endpoint = nullptr;  // of kEndpoint
  std::string name = {};               // of kModel: the model; of kResponse and kResponseItems: the response's id
  const WebFile* file = nullptr;       // of kWeb

  // Of "Allow".
  std::string_view methods() const {
    if (kind == Kind::kResponse) return "GET, HEAD, DELETE, OPTIONS";
    return kind == Kind::kEndpoint ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  }
  bool Takes(std::string_view method) const {
    if (kind == Kind::kEndpoint) return method == "POST";
    return method == "GET" || method == "HEAD" || (kind == Kind::kResponse && method == "DELETE");
  }
};

std::optional<Route> FindRoute(std::string_view path);

}  // namespace hadal::serving
