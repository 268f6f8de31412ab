// response_format and structured_outputs: what the text of an answer must look like (spec serving-runtime 5.7).
#include "base/status.h"
#include "guided/response_format.h"
#include "serving/openai/request_parts.h"

namespace hadal::serving {

absl::StatusOr<std::shared_ptr<const guided::Grammar>> ReadGrammar(const Fields& body, const runtime::Engine& engine) {
  const text::Json formats = {{"response_format", body["response_format"]},
                              {"structured_outputs", body["structured_outputs"]}};
  HADAL_ASSIGN_OR_RETURN(const std::optional<guided::GuidedSpec> spec, guided::ParseResponseFormat(formats));
  if (!spec.has_value()) return std::shared_ptr<const guided::Grammar>();
  return engine.CompileGrammar(*spec);
}

}  // namespace hadal::serving
