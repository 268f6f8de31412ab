// Attention on AMX: every query of a token against the rows it sees, which all heads share (one KV head).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/row_format.h"

namespace hadal::cpu {

// Scratch of AttendAmx for up to n rows of `dim` values and `heads` heads, whatever value_dim is.
size_t AttendAmxScratch(int64_t n, int64_t heads, int64_t dim);

// out[h] = sum_j softmax_j(scale * q_h . row_j, sink_h) * row_j[0, value_dim), fp32 [heads][value_dim] (spec
// deepseek-v4-text 3.7, deepseek-v32 3.7).
//   q     bf16 [heads][dim], dim a multiple of 32, value_dim of 64
//   rows  n rows of dim values, each bf16 or, where it has scales, kFp8DsMla with `tail`
// Scores and sums are fp32. A probability enters the value product as the sum of two bf16 numbers, so it keeps 16 bits;
// with `round` it is normalised first and enters as one.
// The result of a head depends on its own query and the rows alone, not on the other heads of the call.
void AttendAmx(const uint16_t* q, int64_t heads, int64_t dim, int64_t value_dim, const ops::RowPlace* rows,
               int64_t tail, int64_t n, float scale, const float* sink, bool round, std::byte* scratch, float* out);

}  // namespace hadal::cpu
