// One row of CombineTopkSwaIndices, for every implementation of it: the clamps at both ends are part of the function,
// so that no platform can go without them (spec vision-and-cache 5.6).
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "ops/ops.h"

namespace hadal::ops {

// Positions [begin, end) of the window that a query sees: W positions up to itself, or its whole image span if that
// reaches further. `first` and `seq_len` bound what exists.
struct WindowRange {
  int64_t begin = 0;
  int64_t end = 0;
};
inline WindowRange VisibleWindow(int64_t position, int64_t left, int64_t right, int64_t window, int64_t first,
                                 int64_t seq_len) {
  const int64_t begin = position - (window - 1) - std::max<int64_t>(left - (window - 1), 0);
  return {std::max({begin, int64_t{0}, first}), std::min(position + right + 1, seq_len)};
}

struct CombineRow {
  int64_t request = 0;  // its number in the workspace
  int64_t position = 0;
  int64_t left = 0;
  int64_t right = 0;
  int64_t seq_len = 0;
  int64_t gather_len = 0;
};
struct CombineShape {
  int64_t window = 0;
  int64_t ratio = 1;
  int64_t top_k = 0;
  int64_t rows_per_request = 0;
  int64_t compressed_rows = 0;
  int64_t width = 0;
};

// Fills indices[0, width) and returns the used columns. A chosen entry outside [0, compressed_rows) stays -1 and
// counts.
inline int32_t CombineIndicesRow(const CombineShape& shape, const CombineRow& row, const int32_t* topk,
                                 int32_t* indices) {
  const int64_t base = shape.rows_per_request * row.request;
  const int64_t chosen = shape.top_k > 0 ? std::min((row.position + 1) / shape.ratio, shape.top_k) : 0;
  int64_t at = 0;
  for (; at < chosen; ++at) {
    const bool valid = topk[at] >= 0 && topk[at] < shape.compressed_rows;
    indices[at] = valid ? static_cast<int32_t>(topk[at] + base) : -1;
  }
  const int64_t gathered = row.seq_len - row.gather_len;
  const WindowRange range = VisibleWindow(row.position, row.left, row.right, shape.window, gathered, row.seq_len);
  for (int64_t p = range.begin; p < range.end && at < shape.width; ++p) {
    indices[at++] = static_cast<int32_t>(base + shape.compressed_rows + p - gathered);
  }
  std::fill(indices + at, indices + shape.width, -1);
  return static_cast<int32_t>(at);
}

// What every implementation on the host does: the check, then CombineIndicesOfQuery for each of CombinedQueries, in any
// order.
absl::Status CheckCombineIndices(const CombineIndicesArgs& args);
int64_t CombinedQueries(const CombineIndicesArgs& args);
void CombineIndicesOfQuery(const CombineIndicesArgs& args, int64_t query);

}  // namespace hadal::ops
