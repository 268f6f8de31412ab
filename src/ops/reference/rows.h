// What every reference operator is made of: rows read to fp32 and written back with one rounding, weights decoded to
// fp32, the dot product, and quantise-dequantise of a row.
#pragma once

#include <cstdint>
#include <vector>

#include "base/float_formats.h"
#include "ops/ops.h"
#include "ops/tensor.h"

namespace hadal::ops::reference {

// Row `row` of a kBF16 or kF32 matrix as fp32, into out[0, t.cols).
void LoadRow(const Tensor& t, int64_t row, float* out);
std::vector<float> LoadRow(const Tensor& t, int64_t row);

// Writes values[0, t.cols) to row `row`, rounded once to the dtype of the matrix.
void StoreRow(const Tensor& t, int64_t row, const float* values);

// The same for row `position` of sequence `seq` of a pool. A packed pool quantises what is stored.
void LoadRow(const PagedRows& pool, int32_t seq, int64_t position, float* out);
void StoreRow(const PagedRows& pool, int32_t seq, int64_t position, const float* values);

std::vector<float> LoadVector(const Vector& v);

// Row `row` of a weight times its scales, into out[0, w.k) (spec deepseek-v4-text 2.3).
void DecodeWeightRow(const LinearWeight& w, int64_t row, float* out);

// fp32 dot product. Element i goes to partial sum i modulo 16 and the sums are added in order, so that a compiler may
// use vectors; the order depends on n alone.
inline float Dot(const float* a, const float* b, int64_t n) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (int lane = 0; i < n; ++i, ++lane) sums[lane] += a[i] * b[i];
  float total = 0;
  for (float sum : sums) total += sum;
  return total;
}

// 1/sqrt(mean of squares + eps) of x[0, n) (spec 3.1 RMSNorm).
float InverseRms(const float* x, int64_t n, float eps);

// Quantises a row of inputs as `quant` says, in blocks of 128.
void QuantiseInput(InputQuant quant, float* x, int64_t n);

// Quantise-dequantise in blocks of `block` values with power-of-two scales: E4M3 (spec 3.1, AQ) and E2M1 (spec 3.6).
// Values on either grid times such a scale are exact in bf16.
void SimulateFp8(float* x, int64_t n, int64_t block);
void SimulateFp4(float* x, int64_t n, int64_t block);

}  // namespace hadal::ops::reference
