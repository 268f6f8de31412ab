#include "ops/combine_indices.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/status.h"

namespace hadal::ops {
namespace {

absl::Status ExpectSize(std::string_view name, int64_t expected, size_t found) {
  if (static_cast<int64_t>(found) == expected) return absl::OkStatus();
  return InvalidArgument("combine_topk_swa_indices: {} has {} elements, expected {}", name, found, expected);
}

absl::Status ExpectAtLeast(std::string_view name, int64_t least, int64_t found) {
  if (found >= least) return absl::OkStatus();
  return InvalidArgument("combine_topk_swa_indices: {} is {}, expected at least {}", name, found, least);
}

absl::Status CheckShape(const CombineIndicesArgs& args) {
  HADAL_RETURN_IF_ERROR(ExpectAtLeast("window", 1, args.window));
  HADAL_RETURN_IF_ERROR(ExpectAtLeast("ratio", 1, args.ratio));
  HADAL_RETURN_IF_ERROR(ExpectAtLeast("top_k", 0, args.top_k));
  HADAL_RETURN_IF_ERROR(ExpectAtLeast("compressed_rows", 0, args.compressed_rows));
  HADAL_RETURN_IF_ERROR(ExpectAtLeast("max_image_tokens", 0, args.max_image_tokens));
  const auto requests = static_cast<int64_t>(args.seq_lens.size());
  const int64_t most = std::numeric_limits<int32_t>::max() / std::max<int64_t>(requests, 1);
  if (args.rows_per_request > most) {
    return InvalidArgument("combine_topk_swa_indices: rows_per_request is {}, expected at most {} for {} requests",
                           args.rows_per_request, most, requests);
  }
  HADAL_RETURN_IF_ERROR(ExpectSize("query_start_loc", requests + 1, args.query_start_loc.size()));
  return ExpectSize("gather_lens", requests, args.gather_lens.size());
}

// With these bounds every index that the clamps let through lies in the rows of its own request.
absl::Status CheckRequest(const CombineIndicesArgs& args, size_t b) {
  const int64_t query = int64_t{args.query_start_loc[b + 1]} - args.query_start_loc[b];
  const int64_t seq = args.seq_lens[b];
  const int64_t gather = args.gather_lens[b];
  const int64_t room = args.rows_per_request - args.compressed_rows;
  if (query < 0 || query > seq) {
    return InvalidArgument("combine_topk_swa_indices: request {} has {} queries, expected 0 to its length {}", b, query,
                           seq);
  }
  if (gather < 0 || gather > std::min(seq, room)) {
    return InvalidArgument("combine_topk_swa_indices: gather_lens[{}] is {}, expected 0 to {}", b, gather,
                           std::min(seq, room));
  }
  return absl::OkStatus();
}

int32_t At(const std::optional<std::span<const int32_t>>& values, int64_t i) {
  return values.has_value() ? (*values)[static_cast<size_t>(i)] : 0;
}

}  // namespace

int64_t CombinedWidth(const CombineIndicesArgs& args) {
  constexpr int64_t kAlign = 128;
  return (args.top_k + args.window + args.max_image_tokens + kAlign - 1) / kAlign * kAlign;
}

absl::Status CheckCombineIndices(const CombineIndicesArgs& args) {
  if (args.left_visible.has_value() != args.right_visible.has_value()) {
    return InvalidArgument("left_visible and right_visible must be provided together");
  }
  HADAL_RETURN_IF_ERROR(CheckShape(args));
  for (size_t b = 0; b < args.seq_lens.size(); ++b) HADAL_RETURN_IF_ERROR(CheckRequest(args, b));
  const int64_t queries = CombinedQueries(args);
  HADAL_RETURN_IF_ERROR(ExpectSize("topk", queries * args.top_k, args.topk.size()));
  if (args.left_visible.has_value()) {
    HADAL_RETURN_IF_ERROR(ExpectSize("left_visible", queries, args.left_visible->size()));
    HADAL_RETURN_IF_ERROR(ExpectSize("right_visible", queries, args.right_visible->size()));
  }
  HADAL_RETURN_IF_ERROR(ExpectSize("indices", queries * CombinedWidth(args), args.indices.size()));
  return ExpectSize("lens", queries, args.lens.size());
}

int64_t CombinedQueries(const CombineIndicesArgs& args) {
  return int64_t{args.query_start_loc.back()} - args.query_start_loc.front();
}

void CombineIndicesOfQuery(const CombineIndicesArgs& args, int64_t query) {
  // The last request that begins at or before the query: requests without queries begin where the next one does.
  const int64_t start = args.query_start_loc.front() + query;
  const auto next = std::upper_bound(args.query_start_loc.begin(), args.query_start_loc.end(), start);
  const int64_t b = next - args.query_start_loc.begin() - 1;
  const int64_t end = args.query_start_loc[static_cast<size_t>(b) + 1];

  const CombineShape shape = {args.window,           args.ratio,           args.top_k,
                              args.rows_per_request, args.compressed_rows, CombinedWidth(args)};
  CombineRow row;
  row.request = b;
  row.seq_len = args.seq_lens[static_cast<size_t>(b)];
  row.gather_len = args.gather_lens[static_cast<size_t>(b)];
  row.position = row.seq_len - (end - start);
  row.left = At(args.left_visible, query);
  row.right = At(args.right_visible, query);
  args.lens[static_cast<size_t>(query)] =
      CombineIndicesRow(shape, row, args.topk.data() + query * args.top_k, args.indices.data() + query * shape.width);
}

}  // namespace hadal::ops
