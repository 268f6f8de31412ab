// The platforms of this build, by name. The only place outside a platform's folder that includes one.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "models/registry/registry.h"
#include "ops/ops.h"

namespace hadal::models {

struct Platform {
  std::string name;         // cpu, reference
  std::string description;  // "amx + avx512, 2 threads"
  std::unique_ptr<ops::Ops> ops;
};

// "auto" takes the best platform present. Unimplemented (listing what exists) for a platform that this build or machine
// does not have; InvalidArgument for unknown names.
absl::StatusOr<Platform> MakePlatform(const ModelOptions& options);

}  // namespace hadal::models
