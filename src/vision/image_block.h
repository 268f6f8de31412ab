// The block of tokens that stands for an image in the prompt (spec deepseek-v4-vision-and-cache 2.5 and 5.1).
//
// START, the image tokens with two rows interleaved column by column, END, and pads such that START sits at a position
// 3 modulo 4 and END at one 0 modulo 4: each compressed group of four tokens in between then holds image tokens only.
#pragma once

#include <cstdint>
#include <vector>

#include "vision/image_size.h"

namespace hadal::vision {

// Token id = id of the span's first reserved token + this.
enum class SpanToken : uint8_t { kStart = 0, kPad = 1, kImage = 2, kNewLine = 3, kEnd = 4 };

inline constexpr int64_t kSpanModulus = 4;  // START sits at the last position of a group of this many

// Pads before START of a block that begins at position `start` of the final prompt, in which earlier images are already
// expanded: 3, 2, 1 or 0.
constexpr int64_t LeadPads(int64_t start) { return kSpanModulus - 1 - start % kSpanModulus; }

// The token types of a block of llm_rows x llm_cols image tokens (both at least 1) that begins at position `start`:
// LeadPads(start) pads, then BlockLength(llm_rows, llm_cols) tokens from START to END. The pads depend on the position,
// so keep only blocks without them: start = 3 gives none.
std::vector<SpanToken> BuildImageBlock(int64_t llm_rows, int64_t llm_cols, int64_t start);

// For each kImage token of the block in order, the row of the aligner's output (raster order) that is its embedding:
// a permutation of 0 .. llm_rows * llm_cols - 1.
std::vector<int32_t> ImageTokenOrder(int64_t llm_rows, int64_t llm_cols);

// An image in the final prompt, its lead pads included.
struct SpanRecord {
  int64_t offset = 0;  // position of the first token
  int64_t length = 0;  // LeadPads(offset) + BlockLength
};

// Tokens that see each other: START..END, both inclusive; lead pads are outside and behave as text.
struct Span {
  int64_t start = 0;
  int64_t end = 0;

  bool operator==(const Span&) const = default;
};

// The span of a record that is longer than its lead pads.
constexpr Span SpanOf(const SpanRecord& record) {
  return {record.offset + LeadPads(record.offset), record.offset + record.length - 1};
}

}  // namespace hadal::vision
