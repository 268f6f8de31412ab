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

  bool empty() const { return data == nullptr; }
};

inline Tensor MakeTensor(void* data, DType dtype, int64_t rows, int64_t cols) {
  return {data, dtype, rows, cols, cols};
}

// A weight vector or small table, in the dtype of the file (kBF16 or kF32).
struct Vector {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t size = 0;

  bool empty() const { return data == nullptr; }
};

// A linear layer's weight [n, k], row-major, in the published precision (spec deepseek-v4-text 2.2, 2.3):
//   kF8E4M3  scale grid [ceil(n/128), ceil(k/128)], kF8E8M0 or kF32
//   kF4E2M1  scale grid [n, k/32], kF8E8M0; two codes a byte, even input in the low nibble
//   kBF16, kF32  no scale
// value = code * scale; scales are powers of two (checked when the weight is bound).
struct LinearWeight {
  int64_t n = 0;
  int64_t k = 0;
  DType dtype = DType::kBF16;
  const void* data = nullptr;
  DType scale_dtype = DType::kF8E8M0;
  const void* scale = nullptr;

  bool empty() const { return data == nullptr; }
  int64_t row_bytes() const { return DTypeBytes(dtype, k); }
};

// Where row `position` of sequence `seq` lies in a pool of rows: blocks of `block_rows` rows, one table of block
// numbers a sequence. With ring_blocks > 0 the table is a ring and a position is found at position modulo
// ring_blocks*block_rows; the caller keeps the ring long enough that nothing still readable is overwritten.
struct SlotMap {
  const int32_t* blocks = nullptr;  // [sequences, blocks_per_seq]
  int64_t blocks_per_seq = 0;
  int32_t block_rows = 1;
  int32_t ring_blocks = 0;

  int64_t Slot(int32_t seq, int64_t position) const {
    int64_t block = position / block_rows;
    if (ring_blocks > 0) block %= ring_blocks;
    return static_cast<int64_t>(blocks[seq * blocks_per_seq + block]) * block_rows + position % block_rows;
  }
};

// A pool of equally wide rows addressed through a SlotMap: window KV, compressed KV, indexer keys, compressor state.
struct PagedRows {
  void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t cols = 0;
  SlotMap map;

  bool empty() const { return data == nullptr; }
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
