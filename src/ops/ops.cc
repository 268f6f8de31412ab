#include "ops/ops.h"

#include <cstring>

#include "base/status.h"

namespace hadal::ops {

// Ascending rows move up only: none is overwritten before it has been taken.
void Ops::GatherRows(Tensor from, std::span<const int32_t> rows, Tensor out) {
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(out.data);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto* row = source + DTypeBytes(from.dtype, rows[i] * from.stride);
    auto* to = target + DTypeBytes(out.dtype, static_cast<int64_t>(i) * out.stride);
    if (row != to) std::memmove(to, row, static_cast<size_t>(DTypeBytes(from.dtype, from.cols)));
  }
}

void Ops::ExpandedAttention(const ExpandedAttentionArgs& /*args*/) {
  HADAL_CHECK(false);  // Supports says so, and models ask
}

}  // namespace hadal::ops
