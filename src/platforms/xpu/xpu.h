// Intel GPUs. Nothing runs there yet; the platform exists so that asking for it says so.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "ops/ops.h"

namespace hadal::xpu {

// Always Unimplemented: names the platforms to use instead.
absl::StatusOr<std::unique_ptr<ops::Ops>> MakeXpuOps();

}  // namespace hadal::xpu
