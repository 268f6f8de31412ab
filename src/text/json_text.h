// JSON as the chat protocols write it: a parser that keeps every number as it was given, and the one printer whose
// bytes the encoders, the tool-call arguments and the golden vectors agree on (spec deepseek-v4-text 6.2, "JSON text
// everywhere"; deepseek-v32 7.2).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hadal::text {

// Keys keep their order. Always print with DumpJson: numbers that no machine type holds (see ParseJson) live in values
// of nlohmann's binary type, which JSON text cannot produce, and which .dump() would print as something else.
using Json = nlohmann::ordered_json;

// Arrays and objects inside one another; a body of serving-runtime 6.1 may not go deeper either.
inline constexpr int kMaxJsonDepth = 128;

// Parses one JSON text (RFC 8259, UTF-8). As in Python's json module the last of two equal keys wins and keeps the
// place of the first, and 1, 1.0 and -0.0 stay what they are. Integers outside [-2^63, 2^64) and floats outside the
// range of double keep their source spelling (see IsRawNumber). InvalidArgument, with the byte where it went wrong, for
// anything else: NaN and Infinity, bad UTF-8, lone surrogate escapes, text after the value, more than max_depth levels,
// numbers of 4932 digits and more. Time is linear in the text, keys of large objects included.
absl::StatusOr<Json> ParseJson(std::string_view text, int max_depth = kMaxJsonDepth);

// A number that ParseJson could only keep as its spelling.
bool IsRawNumber(const Json& value);
// That spelling; empty for any other value.
std::string_view RawNumber(const Json& value);

// Separators ", " and ": ", non-ASCII raw, Python's shortest round-trip floats (1.0, 1e-05, 1e+16, -0.0). NaN and
// infinities, which only a caller can put in, print as null. Never recurses, whatever the depth.
std::string DumpJson(const Json& value);

// Appends `utf8` as the inside of a JSON string: escapes ", \ and U+0000..U+001F (\b \f \n \r \t, else \u00xx), nothing
// more. Escapes of a concatenation are the concatenation of the escapes, so a string may be escaped piece by piece.
void AppendJsonEscaped(std::string_view utf8, std::string* out);
// `utf8` as a complete JSON string, quotes included.
std::string JsonQuoted(std::string_view utf8);

// repr() of a finite Python float.
std::string PythonFloat(double value);

}  // namespace hadal::text
