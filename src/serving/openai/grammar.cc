// response_format and structured_outputs: what the text of an answer must look like (spec serving-runtime 5.7).
#include <algorithm>
#include <array>
#include <string>

#include "base/status.h"
#include "guided/response_format.h"
#include "serving/openai/request_parts.h"

namespace hadal::serving {
namespace {

using text::Json;

constexpr std::array kGuides = {"json", "regex", "choice", "grammar", "json_object", "structural_tag"};

// Whether it asks for anything.
absl::StatusOr<bool> CheckResponseFormat(const Fields& body) {
  HADAL_RETURN_IF_ERROR(body.CheckObject("response_format"));
  if (!body.Has("response_format")) return false;
  const Fields format(body["response_format"], "response_format");
  std::string type;
  HADAL_RETURN_IF_ERROR(format.Read("type", &type));
  if (type == "text") return false;
  if (type == "json_object" || type == "structural_tag") return true;
  if (type != "json_schema") {
    return format.Expected("type", "\"text\", \"json_object\", \"json_schema\" or \"structural_tag\"");
  }
  if (!format["json_schema"].is_object()) return format.Expected("json_schema", "an object");
  const Fields schema(format["json_schema"], "response_format.json_schema");
  std::string name;
  bool strict = false;
  HADAL_RETURN_IF_ERROR(schema.Read("name", &name));
  HADAL_RETURN_IF_ERROR(schema.Read("strict", &strict));
  if (!schema["schema"].is_object() && !schema["schema"].is_boolean())
    return schema.Expected("schema", "a JSON schema");
  return true;
}

absl::StatusOr<bool> CheckStructuredOutputs(const Fields& body) {
  HADAL_RETURN_IF_ERROR(body.CheckObject("structured_outputs"));
  if (!body.Has("structured_outputs")) return false;
  const Fields guide(body["structured_outputs"], "structured_outputs");
  const auto given = std::count_if(kGuides.begin(), kGuides.end(), [&](const char* name) { return guide.Has(name); });
  if (given == 1) return true;
  return InvalidArgument(
      "structured_outputs: expected one of json, regex, choice, grammar, json_object and structural_tag, found {}",
      given);
}

}  // namespace

absl::Status ReadFormats(const Fields& body, Job* job) {
  HADAL_ASSIGN_OR_RETURN(const bool format, CheckResponseFormat(body));
  HADAL_ASSIGN_OR_RETURN(const bool guide, CheckStructuredOutputs(body));
  if (format && guide) {
    return InvalidArgument("structured_outputs: expected no second guide beside response_format");
  }
  job->response_format = body["response_format"];
  job->structured_outputs = body["structured_outputs"];
  return absl::OkStatus();
}

absl::Status AttachGrammar(const runtime::Engine& engine, Job* job) {
  const Json body = {{"response_format", job->response_format}, {"structured_outputs", job->structured_outputs}};
  HADAL_ASSIGN_OR_RETURN(const std::optional<guided::GuidedSpec> spec, guided::ParseResponseFormat(body));
  if (!spec.has_value()) return absl::OkStatus();
  HADAL_ASSIGN_OR_RETURN(const std::shared_ptr<const guided::Grammar> grammar, engine.CompileGrammar(*spec));
  for (runtime::GenerateRequest& request : job->requests) request.grammar = grammar;
  return absl::OkStatus();
}

}  // namespace hadal::serving
