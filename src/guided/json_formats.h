// The values of JSON Schema's `format` that are enforced.
#pragma once

#include <optional>
#include <string_view>

namespace hadal::guided {

// A regex (regex.h) that the whole string must match, or nothing for a format that is not known.
std::optional<std::string_view> FormatRegex(std::string_view format);
// All names, for messages.
std::string_view FormatNames();

}  // namespace hadal::guided
