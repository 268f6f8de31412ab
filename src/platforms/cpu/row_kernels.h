// Vector kernels of the CPU platform that work on one row (one token, one head, one window), as a table per instruction
// set. Activations are `const void*` with their dtype (kBF16 or kF32); fp32 inside, one rounding on the way out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/tensor.h"

namespace hadal::cpu {

// Queries that attend_all takes together.
inline constexpr int64_t kAttendQueries = 8;

struct RowKernels {
  // fp32 copy of n activations, and back with one rounding.
  void (*load)(const void* src, DType dtype, int64_t n, float* dst);
  void (*store)(const float* src, int64_t n, void* dst, DType dtype);
  // Rounds n fp32 values to the grid of `dtype`, in place.
  void (*round)(float* x, int64_t n, DType dtype);
  // Quantise-dequantise in blocks that share a power-of-two scale; n is a multiple of block.
  void (*fake_e4m3)(float* x, int64_t n, int64_t block);
  void (*fake_e4m3_any_scale)(float* x, int64_t n, int64_t block);  // the scale is the largest magnitude / 448
  void (*fake_e2m1)(float* x, int64_t n, int64_t block);
  // The same quantisers to and from the codes of packed rows (ops/row_format.h): groups of 64 E4M3 and of 32 E2M1
  // values, an E8M0 byte each. n: a multiple of 16, for E2M1 of 32. Decoded values are exact, in bf16 and in fp32.
  void (*encode_e4m3)(const float* x, int64_t n, std::byte* codes, std::byte* scales);
  void (*encode_e2m1)(const float* x, int64_t n, std::byte* codes, std::byte* scales);
  void (*decode_e4m3)(const std::byte* codes, const std::byte* scales, int64_t n, uint16_t* out);
  void (*decode_e2m1)(const std::byte* codes, const std::byte* scales, int64_t n, float* out);
  // Values of E4M3 codes times a scale, to fp32 or, rounded, to bf16. n: a multiple of 16.
  void (*decode_e4m3_scaled)(const std::byte* codes, float scale, int64_t n, void* out, DType dtype);
  // Codes of x/scale. n: a multiple of 16.
  void (*encode_e4m3_scaled)(const float* x, int64_t n, float scale, std::byte* codes);
  // The largest magnitude of n values, a multiple of 16; NaN is passed over.
  float (*max_magnitude)(const float* x, int64_t n);
  // Sum of squares; and with every square rounded to the grid of `dtype` first.
  float (*sum_squares)(const float* x, int64_t n);
  float (*sum_rounded_squares)(const float* x, int64_t n, DType dtype);
  // y = x * factor * weight (weight may be empty); fp32, no rounding; may work in place.
  void (*scale_weight)(const float* x, int64_t n, float factor, ops::Vector weight, float* y);
  // Rotates adjacent pairs (x[2j], x[2j+1]), j < half, by (cos, sin); inverse: by the conjugate.
  void (*rope)(float* x, const float* cos, const float* sin, int64_t half, bool inverse);
  // In-place Sylvester-Hadamard transform of n = 2^i values, times n^-1/2.
  void (*hadamard)(float* x, int64_t n);
  // out[c] = sum_s pre[s] * streams[s*d + c]
  void (*hc_mix)(const float* streams, const float* pre, int64_t hc, int64_t d, float* out);
  // streams[k*d + c] = act(post[k]*o[c] + sum_j comb[j*hc + k] * streams[j*d + c]), in place; hc <= 8
  void (*hc_post)(const void* o, void* streams, DType dtype, const float* post, const float* comb, int64_t hc,
                  int64_t d);
  // Softmax over `slots` rows per channel, then the weighted sum: rows kv[s], gate[s] of `width` fp32; null rows are
  // absent.
  void (*pool)(const float* const* kv, const float* const* gate, int64_t slots, int64_t width, float* out);
  // h[i] = weight * silu(min(g, limit)) * clamp(u, -limit, limit); limit 0: no clamp
  void (*swiglu)(const float* g, const float* u, int64_t n, float limit, float weight, float* h);
  // Attention of `heads` (<= 8) queries q (fp32 [heads][dim]) over n shared rows, whose first value_dim values are
  // summed up (a multiple of 32): out fp32 [heads][value_dim]. scratch: heads * n fp32.
  // round: probabilities are rounded to the grid of `dtype` first.
  void (*attend)(const float* q, int64_t heads, int64_t dim, int64_t value_dim, const void* const* rows, DType dtype,
                 int64_t n, float softmax_scale, const float* sink, bool round, float* scratch, float* out);
  // x = softmax(scale * x), rounded to the grid of `dtype`.
  void (*softmax)(float* x, int64_t n, float scale, DType dtype);
  // scores[j] = sum_h weight[h] * relu(q_h . key_j) for n keys. qt: fp32 [dim][padded heads]; padded to 16 with zeros.
  // published: the roundings to bf16 of spec deepseek-v4-text 3.6 step 5.
  void (*index_scores)(const float* qt, const float* weight, int64_t padded_heads, int64_t dim, const void* const* keys,
                       DType dtype, int64_t n, bool published, float* scores);
  // Attention of kAttendQueries queries q (fp32 [queries][dim], dim a multiple of 4) over n rows: keys lie in columns
  // [dim][n], values in rows [n][dim]. scratch: kAttendQueries * n fp32; out: fp32 [queries][dim].
  void (*attend_all)(const float* q, int64_t dim, const void* keys, const void* values, DType dtype, int64_t n,
                     float softmax_scale, float* scratch, float* out);
  // x = act(x + y)
  void (*add)(const void* y, DType dtype, int64_t n, void* x);
  // out = act(act(silu(gate)) * up)
  void (*silu_mul)(const void* gate, const void* up, DType dtype, int64_t n, void* out);
};

enum class Isa : uint8_t { kAuto, kBaseline, kAvx2, kAvx512, kAmx };

// The table for the widest instruction set that the CPU has, at most `limit`.
const RowKernels& RowKernelsFor(Isa limit);

}  // namespace hadal::cpu
