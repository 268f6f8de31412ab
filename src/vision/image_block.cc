// Building the token types and the order of image tokens.
#include "vision/image_block.h"

#include "base/status.h"

namespace hadal::vision {
namespace {

// Calls visit(row, column) for the cells of the block's body in order: pairs of rows, in each pair column by column.
// The grid has an even number of rows and one column more than there are image tokens.
template <typename Visit>
void ForEachCell(int64_t llm_rows, int64_t llm_cols, Visit visit) {
  for (int64_t top = 0; top < llm_rows; top += 2) {
    for (int64_t column = 0; column <= llm_cols; ++column) {
      visit(top, column);
      visit(top + 1, column);
    }
  }
}

}  // namespace

std::vector<SpanToken> BuildImageBlock(int64_t llm_rows, int64_t llm_cols, int64_t start) {
  HADAL_CHECK(llm_rows > 0 && llm_cols > 0 && start >= 0);
  const int64_t length = LeadPads(start) + BlockLength(llm_rows, llm_cols);
  std::vector<SpanToken> types;
  types.reserve(length);
  types.assign(LeadPads(start), SpanToken::kPad);
  types.push_back(SpanToken::kStart);
  ForEachCell(llm_rows, llm_cols, [&](int64_t row, int64_t column) {
    if (row == llm_rows) {
      types.push_back(SpanToken::kPad);  // the row that completes the last pair
    } else {
      types.push_back(column == llm_cols ? SpanToken::kNewLine : SpanToken::kImage);
    }
  });
  types.resize(length - 1, SpanToken::kPad);
  types.push_back(SpanToken::kEnd);
  return types;
}

std::vector<int32_t> ImageTokenOrder(int64_t llm_rows, int64_t llm_cols) {
  HADAL_CHECK(llm_rows > 0 && llm_cols > 0);
  std::vector<int32_t> order;
  order.reserve(llm_rows * llm_cols);
  ForEachCell(llm_rows, llm_cols, [&](int64_t row, int64_t column) {
    if (row < llm_rows && column < llm_cols) order.push_back(static_cast<int32_t>(row * llm_cols + column));
  });
  return order;
}

}  // namespace hadal::vision
