// Products of many rows on Hopper's tensor cores (sm_90a): FP8 weights, and experts in FP8 or FP4 whose rows are
// grouped by expert. The platform's dispatch asks whether a product can be done here (HopperLinearSupported) and has
// other kernels for what cannot.
//
// Numbers: inputs are e4m3 per 128 of k under fp32 scales. The tensor cores add up the 128 products of a block (with
// the 13 bits behind the largest term's exponent that they keep in FP8), the sum times its scales is added to an fp32
// accumulator, blocks in ascending order. So a row's bits depend on neither the number of rows nor the tiles that are
// chosen for it; but they are not those of a kernel that adds in another way.
//
// The error of fp32 results is 1.2e-4 of their size, of bf16 results 1.7e-3 (their rounding alone is 1.66e-3).
//
// Speed (H200, 2026-11-30, hopper_bench linear, hopper_bench moe; copies there move 4300 GB/s): with k >= 2048 and 512
// to 4096 rows 71 to 80 % of cuBLASLt's best FP8 figure without block scales (wo_b, 4096 rows: 1130 of 1458 TFLOP/s;
// wq_a 1043 of 1358; the worst is shared w1 with 512 rows, 59 to 69 %), with k = 1024 61 to 72 %, where a tile's end is
// not hidden behind the next. 4096 tokens over 256 FP4 experts, 6 each, d 4096, F 2048: w1 and w3 601, w2 509 TFLOP/s,
// 2.6 ms with all steps; FP8 experts 668 and 586, where weights are read at 3.5 and 3.1 TB/s.
//
// All pointers are to device memory unless a comment says otherwise. Nothing here allocates device memory, and
// but for LaunchHopperPrepareExperts the host waits for nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/tensor.h"
#include "platforms/gpu/backend.h"

namespace hadal::gpu::cuda {

// Inputs as the kernels take them.
struct HopperInput {
  uint8_t* codes = nullptr;  // [rows, k] e4m3, k rounded up to 128
  float* scales = nullptr;   // [k/128, scale_stride]
  int64_t rows = 0;
  int64_t k = 0;
  int64_t scale_stride = 0;

  // Scratch for `rows` inputs, and its division; memory is aligned to 256 bytes.
  static size_t Bytes(int64_t rows, int64_t k);
  static HopperInput Carve(void* memory, int64_t rows, int64_t k);
};

// x[T, k] bf16, quantised per 128 (spec deepseek-v4-text 3.1 AQ). input: rows T.
void LaunchHopperQuantize(Stream stream, const ops::Tensor& x, const HopperInput& input);

// Whether LaunchHopperLinear can multiply by this weight into `out` on this device.
bool HopperLinearSupported(const ops::LinearWeight& weight, const ops::Tensor& out);

struct HopperTarget {
  const ops::LinearWeight* weight = nullptr;  // kF8E4M3
  ops::Tensor out;                            // [T, n] bf16 or f32
};
inline constexpr int kHopperTargets = 4;

// out_i = x * W_i^T for up to kHopperTargets weights, in one launch. force_width: outputs of
// a tile (32, 64, 128), for measurements; 0 chooses. Nothing but speed depends on it.
void LaunchHopperLinear(Stream stream, const HopperInput& x, std::span<const HopperTarget> targets,
                        int force_width = 0);

// --- Experts ---

// A weight of every expert, as the kernels find it in device memory.
struct alignas(128) HopperExpert {
  uint8_t map[128];               // tensor map of the codes
  const void* scale = nullptr;    // E8M0 or f32 grid
  const uint8_t* base = nullptr;  // [n] FP4: E8M0 byte of the row's largest scale
};
struct HopperExperts {
  const HopperExpert* table = nullptr;  // [experts]
  int experts = 0;
  int64_t n = 0, k = 0;
  DType dtype = DType::kF4E2M1;
  bool scale_f32 = false;
};

// Whether experts of this weight's shape and dtype can be multiplied here.
bool HopperExpertsSupported(const ops::LinearWeight& weight);
// Device memory that a table of so many experts needs.
size_t HopperExpertsBytes(int64_t experts, int64_t n);
// Fills `memory` (aligned to 256 bytes) for weights of one shape and dtype. `inexact` is counted up for every FP4 row
// that e4m3 cannot express: its scales differ by more than 2^14 and the values under the small ones are not all zero.
// Experts with such rows must be left to other kernels. The host copies of `weights` are read before it returns.
HopperExperts LaunchHopperPrepareExperts(Stream stream, std::span<const ops::LinearWeight* const> weights, void* memory,
                                         int32_t* inexact);

inline constexpr int kHopperExperts = 1024, kHopperChoices = 32;  // at most: experts, choices of a token

// Which rows go to which expert, found out on the device. Rows of an expert are consecutive, from a multiple of 16 on.
struct HopperPlan {
  struct Tile {
    int32_t expert, row, rows;  // `rows` rows of the expert from `row` on
  };
  int32_t* first = nullptr;       // [experts + 1] first row of an expert
  int32_t* count = nullptr;       // [experts] its rows
  int32_t* row = nullptr;         // [tokens, experts_per_token] the row of a token's choice; -1: none
  float* weight = nullptr;        // [max_rows] the choice's weight
  Tile* tiles = nullptr;          // [max_tiles]
  int32_t* tile_count = nullptr;  // [1]
  int64_t tokens = 0, experts_per_token = 0, experts = 0;
  int64_t max_rows = 0, max_tiles = 0;

  static size_t Bytes(int64_t tokens, int64_t experts_per_token, int64_t experts);
  static HopperPlan Carve(void* memory, int64_t tokens, int64_t experts_per_token, int64_t experts);
};

// experts: [tokens, experts_per_token], -1 is skipped; weights: the same shape.
void LaunchHopperPlan(Stream stream, const int32_t* experts, const float* weights, const HopperPlan& plan);

// Row plan.row[t, i] of `input` = x[t], quantised. input: rows plan.max_rows.
void LaunchHopperScatter(Stream stream, const ops::Tensor& x, const HopperPlan& plan, const HopperInput& input);

struct HopperGroupedTarget {
  HopperExperts weights;
  ops::Tensor out;  // [max_rows, n] bf16
};
// Row r of out_i = x[r] * W_i(expert of r)^T, for up to kHopperTargets weights of one k and dtype. x: in the order of
// the weights' dtype.
void LaunchHopperGroupedLinear(Stream stream, const HopperInput& x, const HopperPlan& plan,
                               std::span<const HopperGroupedTarget> targets);

struct HopperSwiGlu {
  ops::Tensor gate, up;  // [max_rows, F] bf16
  float limit = 0;       // 0: no clamp
  bool weigh = true;     // hidden values are multiplied by the row's weight (V4)
};
// input = the hidden values silu(gate) * up of all rows of the plan, rounded to bf16 and quantised.
void LaunchHopperSwiGlu(Stream stream, const HopperSwiGlu& args, const HopperPlan& plan, const HopperInput& input);

// out[t] = bf16(sum over a token's choices, experts ascending, of rows[plan.row[t, i]] (times its weight if `weigh`),
// then shared[t] if there is one), in fp32. rows: [max_rows, d] bf16.
void LaunchHopperCombine(Stream stream, const ops::Tensor& rows, const int32_t* experts, const HopperPlan& plan,
                         bool weigh, const ops::Tensor& shared, const ops::Tensor& out);

}  // namespace hadal::gpu::cuda
