// Two JSON Schemas to one that demands both, as far as that can be written as one schema (allOf, and $ref or anyOf
// beside other keywords).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "guided/json_syntax.h"

namespace hadal::guided {

// Keys of merged schemas that no schema text may hold.
inline constexpr const char* kPatternsKey = "\x01patterns";  // array of strings: all must match
inline constexpr const char* kChoicesKey = "\x01choices";    // array of arrays of schemas: one of each must hold

// Both must be free of $ref and allOf, with anyOf, oneOf and pattern under the keys above, or booleans. The result is
// as well, but its parts may hold allOf again. InvalidArgument, with `path`, for what cannot be merged.
absl::StatusOr<Json> MergeSchemas(const Json& a, const Json& b, const std::string& path);

// The types that `schema` names: an array, or null if it names none.
Json TypesOf(const Json& schema);

}  // namespace hadal::guided
