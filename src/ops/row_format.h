// How rows lie in the pages of a pool (RowFormat): sizes, addresses, and the scalar encoding that every vectorised one
// is tested against (spec deepseek-v4-vision-and-cache 6.2 and 6.3).
//
// A page holds the values of all its rows, then the scales of all its rows. Packed pages belong to published numerics;
// reading a row gives the values that quantise-dequantise in place would leave in a plain bf16 row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "ops/tensor.h"

namespace hadal::ops {

// Values that share a scale.
inline constexpr int64_t kFp8RowGroup = 64;
inline constexpr int64_t kFp4RowGroup = 32;
inline constexpr int64_t kFp8WideGroup = 128;  // kFp8DsMla656

// Bytes of one row's values, and of its scales with their padding.
inline int64_t RowValueBytes(RowFormat format, DType dtype, int64_t cols, int64_t tail) {
  switch (format) {
    case RowFormat::kPlain:
      return DTypeBytes(dtype, cols);
    case RowFormat::kFp8DsMla:
      return cols - tail + 2 * tail;
    case RowFormat::kMxfp4:
      return cols / 2;
    case RowFormat::kFp8DsMla656:
      return cols - tail + (cols - tail + kFp8WideGroup - 1) / kFp8WideGroup * 4 + 2 * tail;
    case RowFormat::kFp8Key:
      return cols;
  }
  return 0;
}
inline int64_t RowScaleBytes(RowFormat format, int64_t cols, int64_t tail) {
  constexpr int64_t kFp8Align = 8;
  switch (format) {
    case RowFormat::kPlain:
      return 0;
    case RowFormat::kFp8DsMla: {
      const int64_t scales = (cols - tail + kFp8RowGroup - 1) / kFp8RowGroup;
      return (scales + kFp8Align - 1) / kFp8Align * kFp8Align;
    }
    case RowFormat::kMxfp4:
      return cols / kFp4RowGroup;
    case RowFormat::kFp8DsMla656:  // within the row
      return 0;
    case RowFormat::kFp8Key:
      return 4;
  }
  return 0;
}

// Payload bytes of a page of `rows` rows. cols of kMxfp4 is a multiple of 32; tail counts for kFp8DsMla only.
int64_t PageBytes(RowFormat format, DType dtype, int64_t cols, int64_t tail, int64_t rows);

// Where a row lies.
struct RowPlace {
  std::byte* values = nullptr;
  std::byte* scales = nullptr;  // null: kPlain
};

// The bf16 values of a kFp8DsMla656 row.
inline std::byte* WideTail(RowPlace place, int64_t cols, int64_t tail) {
  return place.values + RowValueBytes(RowFormat::kFp8DsMla656, DType::kBF16, cols, tail) - 2 * tail;
}

// Addresses of the rows of one pool.
class RowPlaces {
 public:
  explicit RowPlaces(const PagedRows& pool)
      : pool_(pool),
        value_bytes_(RowValueBytes(pool.format, pool.dtype, pool.cols, pool.tail)),
        scale_bytes_(RowScaleBytes(pool.format, pool.cols, pool.tail)) {}

  RowPlace At(int32_t seq, int64_t position) const {
    std::byte* page = static_cast<std::byte*>(pool_.data) + pool_.map.Block(seq, position) * pool_.block_stride;
    const int64_t row = pool_.map.RowInBlock(position);
    RowPlace place = {page + row * value_bytes_, nullptr};
    if (pool_.format == RowFormat::kFp8DsMla656) {
      place.scales = place.values + pool_.cols - pool_.tail;
    } else if (pool_.format != RowFormat::kPlain) {
      place.scales = page + pool_.map.block_rows * value_bytes_ + row * scale_bytes_;
    }
    return place;
  }

 private:
  const PagedRows& pool_;
  int64_t value_bytes_;
  int64_t scale_bytes_;
};

// Scale of a group of kFp8DsMla656 whose largest magnitude is amax (spec deepseek-v32 6.1).
float WideScale(float amax);

// Writes values[0, cols) as row `position` of sequence `seq`, quantised as the format says. Values that a packed row
// gave back, or that were quantised and dequantised before, are kept exactly. NaN: kMxfp4 has none and marks the whole
// group (scale byte 255).
void EncodeRow(const PagedRows& pool, int32_t seq, int64_t position, const float* values);
void DecodeRow(const PagedRows& pool, int32_t seq, int64_t position, float* values);

}  // namespace hadal::ops
