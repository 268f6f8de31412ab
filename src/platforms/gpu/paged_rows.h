// Rows of paged pools in kernels (ops/row_format.h says how they lie).
#pragma once

#include "ops/tensor.h"
#include "platforms/gpu/formats.h"

namespace hadal::gpu::HADAL_GPU_NS {

// Without initialisers, so that kernels can have arrays of it in shared memory.
struct RowAddress {
  unsigned char* values;
  unsigned char* scales;  // null: kPlain
};

inline constexpr int kFp8RowGroup = 64;
inline constexpr int kFp4RowGroup = 32;
inline constexpr int kFp8WideGroup = 128;

// Bytes of one row's values, and of its scales with their padding. Host code passes them to kernels that address many
// rows (RowSizes), so that a kernel does not switch over formats for each.
struct RowSizes {
  int64_t value_bytes = 0;
  int64_t scale_bytes = 0;
  bool scales_inside = false;  // kFp8DsMla656
};

HADAL_HOST_DEVICE RowSizes SizesOf(const ops::PagedRows& pool) {
  const int64_t wide = pool.cols - pool.tail;
  switch (pool.format) {
    case ops::RowFormat::kPlain:
      return {pool.cols * (pool.dtype == DType::kF32 ? 4 : 2), 0, false};
    case ops::RowFormat::kFp8DsMla:
      return {wide + 2 * pool.tail, (CeilDiv(wide, kFp8RowGroup) + 7) / 8 * 8, false};
    case ops::RowFormat::kMxfp4:
      return {pool.cols / 2, pool.cols / kFp4RowGroup, false};
    case ops::RowFormat::kFp8DsMla656:
      return {wide + CeilDiv(wide, kFp8WideGroup) * 4 + 2 * pool.tail, 0, true};
    case ops::RowFormat::kFp8Key:
      return {pool.cols, 4, false};
  }
  return {};
}

HADAL_DEVICE RowAddress AddressOf(const ops::PagedRows& pool, const RowSizes& sizes, int seq, int64_t position) {
  const ops::SlotMap& map = pool.map;
  int64_t block = position / map.block_rows;
  const int64_t row = position - block * map.block_rows;
  if (map.ring_blocks > 0) block %= map.ring_blocks;
  auto* page = static_cast<unsigned char*>(pool.data) +
               static_cast<int64_t>(map.blocks[seq * map.blocks_per_seq + block]) * pool.block_stride;
  RowAddress at = {page + row * sizes.value_bytes, nullptr};
  if (sizes.scales_inside) {
    at.scales = at.values + pool.cols - pool.tail;
  } else if (pool.format != ops::RowFormat::kPlain) {
    at.scales = page + map.block_rows * sizes.value_bytes + row * sizes.scale_bytes;
  }
  return at;
}

// Value i of a row, dequantised (as ops::DecodeRow gives it).
HADAL_DEVICE float RowValue(const ops::PagedRows& pool, RowAddress at, int64_t i) {
  const int64_t wide = pool.cols - pool.tail;
  switch (pool.format) {
    case ops::RowFormat::kPlain:
      return VectorAt(at.values, pool.dtype == DType::kBF16, i);
    case ops::RowFormat::kFp8DsMla:
      if (i >= wide) {
        const auto* tail = reinterpret_cast<const Bf16*>(at.values + wide);
        return ToFloat(tail[i - wide]);
      }
      return E4M3ToFloat(at.values[i]) * E8M0ToFloat(at.scales[i / kFp8RowGroup]);
    case ops::RowFormat::kMxfp4: {
      const unsigned code = (at.values[i / 2] >> (i % 2 * 4)) & 15u;
      return E2M1ToFloat(code) * E8M0ToFloat(at.scales[i / kFp4RowGroup]);
    }
    case ops::RowFormat::kFp8DsMla656: {
      if (i >= wide) {
        const auto* tail = reinterpret_cast<const Bf16*>(at.scales + CeilDiv(wide, kFp8WideGroup) * 4);
        return ToFloat(tail[i - wide]);
      }
      // The scale has 24 bits: the product is rounded to what attention computes with.
      return Round<Bf16>(E4M3ToFloat(at.values[i]) * reinterpret_cast<const float*>(at.scales)[i / kFp8WideGroup]);
    }
    case ops::RowFormat::kFp8Key:
      return E4M3ToFloat(at.values[i]) * *reinterpret_cast<const float*>(at.scales);
  }
  return 0;
}

}  // namespace hadal::gpu::HADAL_GPU_NS
