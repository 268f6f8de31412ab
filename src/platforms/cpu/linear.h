// Linear-layer kernels of the CPU platform: y = x * W^T with W in its published precision.
//
// Two backends, chosen by the CPU and the numerics, never by the number of rows:
//   simd  fp32 inputs, weights decoded to fp32 in L1, fused multiply-add (Highway: SSE4, AVX2, AVX-512)
//   amx   bf16 inputs, weights decoded to bf16 tiles, TDPBF16PS. FP8 and FP4 weights times their power-of-two scales
//   and
//         quantised activations are exact in bf16, so only the order of the fp32 sum differs from the simd backend.
// In both the order of the sum over k depends on k alone (DESIGN: promise 3; docs/numerics.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/ops.h"
#include "ops/tensor.h"
#include "platforms/cpu/row_kernels.h"

namespace hadal::cpu {

// How the input rows of a product are laid out for a backend.
enum class InputLayout : uint8_t {
  kF32Rows,   // simd: fp32 [m][k]
  kTiles,     // amx: bf16 [groups][k/32][16][group][2], inputs in order
  kTilesFp4,  // amx: the same with the inputs of each 128 in the order in which FP4 words unpack: tile s has inputs
              // 4j+s
};

// Rows prepared once for every product that shares them.
struct PackedInput {
  InputLayout layout = InputLayout::kF32Rows;
  int64_t m = 0;      // rows
  int64_t k = 0;      // inputs
  int64_t group = 1;  // rows per group; the last group is padded with zeros
  const void* data = nullptr;

  int64_t groups() const { return (m + group - 1) / group; }
};

// Rows per group for m rows: 1 for simd; amx uses up to 16 so that a tile is full.
int64_t GroupSize(InputLayout layout, int64_t m);
// Bytes that a PackedInput of m rows and k inputs occupies, rounded up to 64; it grows with m.
size_t PackedBytes(InputLayout layout, int64_t m, int64_t k);
// Offset of row `first` (a multiple of 16) in it, for m rows.
size_t PackedOffset(InputLayout layout, int64_t m, int64_t k, int64_t first);

// Weight rows a backend takes at a time; a task is a multiple of it.
inline constexpr int64_t kRowBlock = 128;
// Scratch of one worker for a block of kRowBlock weight rows and m input rows: decoded weights and sums.
inline constexpr size_t LinearScratchBytes(int64_t m) {
  return 192 * 1024 + static_cast<size_t>((m + 15) / 16 * 16) * kRowBlock * sizeof(float);
}

// The weight rows that a worker will most likely take behind the current ones: their memory is asked for in time. It
// may be wrong about that.
struct NextRows {
  const ops::LinearWeight* weight = nullptr;  // null: nothing follows
  int64_t row = 0;
};

// Products of weight rows [n0, n1), n1 - n0 <= kRowBlock, with every packed row.
// out: fp32 [m rounded up to a group][n1 - n0].
using LinearBlockFn = void (*)(const PackedInput& x, const ops::LinearWeight& w, int64_t n0, int64_t n1, NextRows next,
                               float* out, std::byte* scratch);
// Packs one group of rows: rows[i] points at the fp32 values of row i, count <= group.
using PackGroupFn = void (*)(const float* const* rows, int64_t count, int64_t k, int64_t group, InputLayout layout,
                             void* out);

struct LinearBackend {
  const char* name;
  bool tiles;  // takes tile layouts
  LinearBlockFn block;
  PackGroupFn pack_group;
};

// The simd backend for the widest instruction set of the CPU, at most `limit`.
LinearBackend SimdLinear(Isa limit);
// Null where the CPU or the kernel (arch_prctl) does not grant AMX.
const LinearBackend* AmxLinear();

// Layout that `backend` wants for products with `w`; kF32Rows (the simd backend then does the work) where amx has no
// path: fp32 weights, k that is no multiple of the tile, and inputs or scales that bf16 does not hold.
InputLayout LayoutFor(const LinearBackend& backend, const ops::LinearWeight& w, ops::InputQuant quant);

}  // namespace hadal::cpu
