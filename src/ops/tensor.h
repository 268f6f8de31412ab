// Views that operators take. The caller owns all memory; on a GPU platform the pointers are device pointers.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace hadal::ops {

// A [rows, cols] matrix whose rows lie `stride` elements apart. Activations are kBF16 in published numerics and kF32 in
// f32 numerics; an operator rounds once, to the dtype of the buffer it writes.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  constexpr bool empty() const { return data == nullptr; }
};

inline Tensor MakeTensor(void* data, DType dtype, int64_t rows, int64_t cols) {
  return {data, dtype, rows, cols, cols};
}

// A weight vector or small table, in the dtype of the file (kBF16 or kF32).
struct Vector {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t size = 0;

  constexpr bool empty() const { return data == nullptr; }
};

// A linear layer's weight [n, k], row-major, in the published precision (spec deepseek-v4-text 2.2, 2.3):
//   kF8E4M3  scale grid [ceil(n/128), ceil(k/128)], kF8E8M0 or kF32
//   kF4E2M1  scale grid [n, k/32], kF8E8M0; two codes a byte, even input in the low nibble
//   kBF16, kF32  no scale
// value = code * scale. Whether every scale is a power of two is found out when the weight is bound: kernels that take
// scales into the exponent leave other weights to those that multiply.
struct LinearWeight {
  int64_t n = 0;
  int64_t k = 0;
  DType dtype = DType::kBF16;
  const void* data = nullptr;
  DType scale_dtype = DType::kF8E8M0;
  const void* scale = nullptr;
  bool exponent_scales = true;  // powers of two

  constexpr bool empty() const { return data == nullptr; }
  int64_t row_bytes() const { return DTypeBytes(dtype, k); }
};

// Where row `position` of sequence `seq` lies in a pool of blocks: blocks of `block_rows` rows, one table of block
// numbers a sequence. With ring_blocks > 0 the table is a ring and a position's block is found at its number modulo
// ring_blocks; the caller keeps the ring long enough that nothing still readable is overwritten.
struct SlotMap {
  const int32_t* blocks = nullptr;  // [sequences, blocks_per_seq]
  int64_t blocks_per_seq = 0;
  int32_t block_rows = 1;
  int32_t ring_blocks = 0;

  int64_t Block(int32_t seq, int64_t position) const {
    int64_t block = position / block_rows;
    if (ring_blocks > 0) block %= ring_blocks;
    return blocks[seq * blocks_per_seq + block];
  }
  int64_t RowInBlock(int64_t position) const { return position % block_rows; }
};

// How a pool stores its rows (spec deepseek-v4-vision-and-cache 6.2 and 6.3). Packed formats hold exactly what the
// published numerics round a row to, so that reading one gives back the values that a plain row would hold.
enum class RowFormat {
  kPlain,     // values of `dtype`, row after row
  kFp8DsMla,  // e4m3 and, for the last `tail` values, bf16; behind all rows of the block an E8M0 scale per 64 e4m3
              // values, padded to 8 bytes a row
  kMxfp4,     // e2m1, two a byte, even value in the low nibble; behind all rows of the block an E8M0 scale per 32
  // DeepSeek V3.2 (spec deepseek-v32 6.1, 6.2).
  kFp8DsMla656,  // e4m3, then an fp32 scale (any, amax/448) per 128 e4m3 values, then `tail` bf16 values, row by row
  kFp8Key,       // e4m3; behind all rows of the block an fp32 scale (a power of two) for each row
};

// A pool of equally wide rows addressed through a SlotMap: window KV, compressed KV, indexer keys, compressor state.
struct PagedRows {
  void* data = nullptr;
  DType dtype = DType::kBF16;  // of the values when they are used; kPlain: and as they are stored
  int64_t cols = 0;
  SlotMap map;
  RowFormat format = RowFormat::kPlain;
  int64_t tail = 0;          // kFp8DsMla, kFp8DsMla656
  int64_t block_stride = 0;  // bytes from a block to the next, at least PageBytes of its rows; pools may interleave

  constexpr bool empty() const { return data == nullptr; }
};

// The rows of one forward step: any mix of sequences, prompt chunks and decode tokens. A sequence's rows are in
// position order; different sequences may interleave.
struct BatchRows {
  int64_t tokens = 0;
  const int32_t* ids = nullptr;        // [tokens] vocabulary ids
  const int32_t* positions = nullptr;  // [tokens] absolute positions, from 0
  const int32_t* seqs = nullptr;       // [tokens] index into the slot maps
};

}  // namespace hadal::ops
