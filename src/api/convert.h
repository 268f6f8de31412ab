// Between the types of hadal.hpp and those of the runtime. Internal to libhadal.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hadal/hadal.hpp"
#include "runtime/engine.h"
#include "runtime/request.h"

namespace hadal::api {

Error ToError(const absl::Status& status);

// InvalidArgument names the option.
absl::StatusOr<runtime::EngineOptions> ToEngineOptions(const EngineOptions& options);
// The options of a JSON object whose members have the names of EngineOptions. InvalidArgument for unknown names and
// wrong types.
absl::StatusOr<EngineOptions> ReadEngineOptions(std::string_view json);

// InvalidArgument names the field at fault ("messages[1].role: expected ..., found ..."); FailedPrecondition for images
// where the model takes none.
absl::StatusOr<runtime::GenerateRequest> ToGenerateRequest(const Request& request, const runtime::Engine& engine);

Answer ToAnswer(runtime::GenerateResult result);
std::vector<Event> ToEvents(std::vector<text::OutputEvent> events);

}  // namespace hadal::api
