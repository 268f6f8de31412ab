// What a request body says about the form of the output: `response_format` (OpenAI) or `structured_outputs` (vLLM).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/status/statusor.h"
#include "guided/grammar.h"

namespace hadal::guided {

// Reads from the body of a request
//   response_format     {"type": "text"}, {"type": "json_object"}, or
//                       {"type": "json_schema", "json_schema": {"name", "schema", "strict", "description"}}
//   structured_outputs  one of {"json": schema, as object or text}, {"regex"}, {"choice": [...]}, {"grammar"},
//                       {"json_object": true}
// Nothing if neither constrains the output; null counts as absent. `strict` changes nothing: the schema always holds.
// InvalidArgument, naming the field, for anything else, and if both are given. The spec itself is checked by Compile.
absl::StatusOr<std::optional<GuidedSpec>> ParseResponseFormat(const nlohmann::ordered_json& body);

}  // namespace hadal::guided
