// Reading the JSON of a request.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "guided/json_syntax.h"

namespace hadal::guided {

// InvalidArgument, with `what` in front, for text that is no JSON or has more than `max_depth` values inside one
// another.
absl::StatusOr<Json> ParseJsonText(std::string_view what, std::string_view text, int max_depth);

}  // namespace hadal::guided
