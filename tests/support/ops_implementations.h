// The implementations of ops.h that tests/unit/ops runs on. A platform joins the suite with one entry here (and its
// library in tests/unit/ops/CMakeLists.txt).
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "ops/reference/reference_ops.h"

namespace hadal::test {

struct OpsImplementation {
  std::string name;  // letters, digits and underscores: part of the test's name
  std::function<std::unique_ptr<ops::Ops>(ops::Numerics)> make;
};

inline void PrintTo(const OpsImplementation& implementation, std::ostream* out) { *out << implementation.name; }

inline std::vector<OpsImplementation> OpsImplementations() {
  return {
      {"reference", ops::MakeReferenceOps},
  };
}

}  // namespace hadal::test
