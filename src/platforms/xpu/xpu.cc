#include "platforms/xpu/xpu.h"

#include "base/status.h"

namespace hadal::xpu {

absl::StatusOr<std::unique_ptr<ops::Ops>> MakeXpuOps() {
  return Unimplemented("DeepSeek models are not implemented for Intel GPUs (xpu)");
}

}  // namespace hadal::xpu
