// response_format and structured_outputs: what the text of an answer must look like (spec serving-runtime 5.7).
#include <fmt/format.h>

#include "base/status.h"
#include "guided/response_format.h"
#include "serving/openai/request_parts.h"

namespace hadal::serving {

absl::StatusOr<std::shared_ptr<const guided::Grammar>> ReadGrammar(const Fields& body, const runtime::Engine& engine) {
  const text::Json formats = {{"response_format", body["response_format"]},
                              {"structured_outputs", body["structured_outputs"]}};
  HADAL_ASSIGN_OR_RETURN(const std::optional<guided::GuidedSpec> spec, guided::ParseResponseFormat(formats));
  if (!spec.has_value()) return std::shared_ptr<const guided::Grammar>();
  absl::StatusOr<std::shared_ptr<const guided::Grammar>> grammar = engine.CompileGrammar(*spec);
  if (grammar.ok()) return grammar;
  const char* field = body.Has("structured_outputs") ? "structured_outputs" : "response_format";
  return absl::Status(grammar.status().code(), fmt::format("{}: {}", field, Message(grammar.status())));
}

}  // namespace hadal::serving
