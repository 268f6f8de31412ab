// The page at / and what it is made of, as bytes of the program.
#pragma once

#include <string_view>

namespace hadal::serving {

struct WebFile {
  std::string_view path;  // "/app.js"
  std::string_view media_type;
  std::string_view body;
};

// The file that a GET of `path` gives ("/" is the page itself); null if there is none.
const WebFile* FindWebFile(std::string_view path);

// What browsers are told with each: nothing from elsewhere is loaded or run, and nobody frames the page.
inline constexpr std::string_view kWebContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace hadal::serving
