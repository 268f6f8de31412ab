// Vision operators of the CPU platform: pixels, the tower's attention and elementwise steps, the aligner's input, and
// the indices of image spans.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/float_formats.h"
#include "base/status.h"
#include "ops/combine_indices.h"
#include "platforms/cpu/cpu_ops_impl.h"
#include "platforms/cpu/vision_amx.h"

namespace hadal::cpu {
namespace {

std::byte* RowAt(const ops::Tensor& t, int64_t row, int64_t column = 0) {
  return static_cast<std::byte*>(t.data) + (row * t.stride + column) * DTypeBytes(t.dtype, 1);
}

// The 256 values of a pixel in the dtype of the buffer.
struct PixelTable {
  std::array<float, 256> f32;
  std::array<uint16_t, 256> bf16;

  PixelTable() {
    for (int i = 0; i < 256; ++i) {
      f32[i] = (static_cast<float>(i) / 255.0f - 0.5f) / 0.5f;
      bf16[i] = ToBFloat16(f32[i]).bits;
    }
  }
};

template <typename T>
void LookUpPixels(const std::array<T, 256>& table, const uint8_t* pixels, int64_t n, std::byte* out) {
  auto* values = reinterpret_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) values[i] = table[pixels[i]];
}

// The patches of one cell of the unfolded grid: `rows` x `cols` of them are inside the image.
struct GridCell {
  int64_t first = 0;  // row of its upper left patch
  int64_t rows = 0;
  int64_t cols = 0;
};

template <typename T>
void UnfoldCell(const ops::Tensor& x, const GridCell& cell, int64_t grid_cols, int64_t edge, std::byte* out) {
  auto* features = reinterpret_cast<T*>(out);
  for (int64_t p = 0; p < edge * edge; ++p) {
    const int64_t row = p / edge;
    const int64_t col = p % edge;
    const bool inside = row < cell.rows && col < cell.cols;
    const T* source = inside ? reinterpret_cast<const T*>(RowAt(x, cell.first + row * grid_cols + col)) : nullptr;
    for (int64_t c = 0; c < x.cols; ++c) features[c * edge * edge + p] = inside ? source[c] : T{0};
  }
}

}  // namespace

void CpuOps::PlaceEmbeddings(std::span<const void* const> rows, int64_t hc, ops::Tensor streams) {
  const int64_t bytes = DTypeBytes(streams.dtype, streams.cols / hc);
  pool_.ParallelFor(streams.rows, [&](int64_t t, int) {
    if (rows[t] == nullptr) return;
    for (int64_t s = 0; s < hc; ++s) std::memcpy(RowAt(streams, t) + s * bytes, rows[t], bytes);
  });
}

void CpuOps::NormalisePixels(const uint8_t* pixels, ops::Tensor out) {
  static const PixelTable table;
  pool_.ParallelFor(out.rows, [&](int64_t r, int) {
    const uint8_t* row = pixels + r * out.cols;
    if (out.dtype == DType::kBF16) {
      LookUpPixels(table.bf16, row, out.cols, RowAt(out, r));
    } else {
      LookUpPixels(table.f32, row, out.cols, RowAt(out, r));
    }
  });
}

void CpuOps::PackVisionRows(const ops::VisionAttentionArgs& args, int64_t first, int64_t count, float* columns) {
  const int64_t n = args.qkv.rows;
  const int64_t dim = args.head_dim;
  const int64_t half = dim / 2;
  const DType dtype = args.qkv.dtype;
  const int64_t element = DTypeBytes(dtype, 1);
  auto* queries = static_cast<std::byte*>(args.packed.data);
  std::byte* keys = queries + args.heads * n * dim * element;
  std::byte* values = keys + args.heads * n * dim * element;
  std::array<float, kMaxVisionHead> row;
  for (int64_t h = 0; h < args.heads; ++h) {
    const int64_t column = h * dim;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = first + i;
      const float* cos = args.rope.cos + t * half;
      const float* sin = args.rope.sin + t * half;
      kernels_.load(RowAt(args.qkv, t, column), dtype, dim, row.data());
      RotateHalves(row.data(), cos, sin, half);
      kernels_.store(row.data(), dim, queries + (h * n + t) * dim * element, dtype);
      kernels_.load(RowAt(args.qkv, t, args.heads * dim + column), dtype, dim, row.data());
      RotateHalves(row.data(), cos, sin, half);
      for (int64_t c = 0; c < dim; ++c) columns[c * count + i] = row[c];
      std::memcpy(values + (h * n + t) * dim * element, RowAt(args.qkv, t, 2 * args.heads * dim + column),
                  dim * element);
    }
    for (int64_t c = 0; c < dim; ++c) {
      kernels_.store(columns + c * count, count, keys + ((h * dim + c) * n + first) * element, dtype);
    }
  }
}

void CpuOps::PackVisionTiles(const ops::VisionAttentionArgs& args, int64_t first, int64_t count) {
  const int64_t n = args.qkv.rows;
  const int64_t dim = args.head_dim;
  const int64_t half = dim / 2;
  auto* queries = static_cast<uint16_t*>(args.packed.data);
  uint16_t* keys = queries + args.heads * n * dim;
  uint16_t* values = keys + args.heads * n * dim;
  std::array<float, kMaxVisionHead> row;
  std::array<uint16_t, kTileKeys * kMaxVisionHead> key_rows;
  std::array<uint16_t, kTileKeys * kMaxVisionHead> value_rows;
  for (int64_t h = 0; h < args.heads; ++h) {
    const auto rotate = [&](int64_t t, int64_t column, uint16_t* out) {
      kernels_.load(RowAt(args.qkv, t, column), DType::kBF16, dim, row.data());
      RotateHalves(row.data(), args.rope.cos + t * half, args.rope.sin + t * half, half);
      kernels_.store(row.data(), dim, out, DType::kBF16);
    };
    for (int64_t i = 0; i < count; ++i) {
      const int64_t t = first + i;
      rotate(t, h * dim, queries + (h * n + t) * dim);
      rotate(t, (args.heads + h) * dim, key_rows.data() + i * dim);
      std::memcpy(value_rows.data() + i * dim, RowAt(args.qkv, t, (2 * args.heads + h) * dim), dim * 2);
    }
    uint16_t* key_block = keys + (h * n + first) * dim;
    uint16_t* value_block = values + (h * n + first) * dim;
    if (count == kTileKeys) {
      PackTileBlock(key_rows.data(), value_rows.data(), count, dim, key_block, value_block);
    } else {
      std::copy_n(key_rows.data(), count * dim, key_block);
      std::copy_n(value_rows.data(), count * dim, value_block);
    }
  }
}

void CpuOps::VisionAttentionTiles(const ops::VisionAttentionArgs& args) {
  const int64_t n = args.qkv.rows;
  const int64_t dim = args.head_dim;
  pool_.ParallelFor((n + kTileKeys - 1) / kTileKeys, [&](int64_t task, int) {
    const int64_t first = task * kTileKeys;
    PackVisionTiles(args, first, std::min(kTileKeys, n - first));
  });

  const auto* queries = static_cast<const uint16_t*>(args.packed.data);
  const uint16_t* keys = queries + args.heads * n * dim;
  const uint16_t* values = keys + args.heads * n * dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const int64_t blocks = (n + kTileQueries - 1) / kTileQueries;
  pool_.ParallelFor(args.heads * blocks, [&](int64_t task, int worker) {
    const int64_t head = task / blocks * n * dim;
    const int64_t first = task % blocks * kTileQueries;
    const int64_t count = std::min(kTileQueries, n - first);
    std::array<float, kTileQueries * kMaxVisionHead> out;
    AttendAllAmx(queries + head + first * dim, count, dim, keys + head, values + head, n, scale,
                 scratch_.workers[worker].attention, out.data());
    for (int64_t i = 0; i < count; ++i) {
      kernels_.store(out.data() + i * dim, dim, RowAt(args.out, first + i, task / blocks * dim), DType::kBF16);
    }
  });
}

void CpuOps::VisionAttention(const ops::VisionAttentionArgs& args) {
  const int64_t dim = args.head_dim;
  HADAL_CHECK(dim % 4 == 0 && dim <= kMaxVisionHead && args.qkv.rows <= spec_.vision_rows);
  if (amx_.tiles && dim % 32 == 0 && args.qkv.dtype == DType::kBF16) {
    VisionAttentionTiles(args);
  } else {
    VisionAttentionRows(args);
  }
}

void CpuOps::VisionAttentionRows(const ops::VisionAttentionArgs& args) {
  const int64_t n = args.qkv.rows;
  const int64_t dim = args.head_dim;
  const DType dtype = args.qkv.dtype;
  pool_.ParallelFor((n + kPackRows - 1) / kPackRows, [&](int64_t task, int worker) {
    const int64_t first = task * kPackRows;
    PackVisionRows(args, first, std::min(kPackRows, n - first), scratch_.workers[worker].vectors);
  });

  const int64_t head_bytes = n * dim * DTypeBytes(dtype, 1);
  const auto* queries = static_cast<const std::byte*>(args.packed.data);
  const std::byte* keys = queries + args.heads * head_bytes;
  const std::byte* values = keys + args.heads * head_bytes;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  // A thread's tasks follow each other, so a head's keys and values stay in its L2 cache.
  const int64_t blocks = (n + kAttendQueries - 1) / kAttendQueries;
  pool_.ParallelFor(args.heads * blocks, [&](int64_t task, int worker) {
    WorkerScratch& scratch = scratch_.workers[worker];
    const int64_t h = task / blocks;
    const int64_t first = task % blocks * kAttendQueries;
    const int64_t count = std::min(kAttendQueries, n - first);
    float* q = scratch.vectors;
    float* out = q + kAttendQueries * dim;
    const std::byte* source = queries + h * head_bytes + first * dim * DTypeBytes(dtype, 1);
    kernels_.load(source, dtype, count * dim, q);
    std::fill(q + count * dim, q + kAttendQueries * dim, 0.0f);
    kernels_.attend_all(q, dim, keys + h * head_bytes, values + h * head_bytes, dtype, n, scale, scratch.scores, out);
    for (int64_t i = 0; i < count; ++i) {
      kernels_.store(out + i * dim, dim, RowAt(args.out, first + i, h * dim), args.out.dtype);
    }
  });
}

void CpuOps::Add(ops::Tensor x, ops::Tensor y) {
  pool_.ParallelFor(x.rows, [&](int64_t r, int) { kernels_.add(RowAt(y, r), x.dtype, x.cols, RowAt(x, r)); });
}

void CpuOps::SiluMul(ops::Tensor gate_up, ops::Tensor out) {
  pool_.ParallelFor(out.rows, [&](int64_t r, int) {
    kernels_.silu_mul(RowAt(gate_up, r), RowAt(gate_up, r, out.cols), out.dtype, out.cols, RowAt(out, r));
  });
}

void CpuOps::Gelu(ops::Tensor x) {
  constexpr int64_t kPiece = 256;
  constexpr float kRootHalf = 0.70710678118654752f;
  pool_.ParallelFor(x.rows, [&](int64_t r, int) {
    std::array<float, kPiece> v;
    for (int64_t c = 0; c < x.cols; c += kPiece) {
      const int64_t count = std::min(kPiece, x.cols - c);
      kernels_.load(RowAt(x, r, c), x.dtype, count, v.data());
      for (int64_t i = 0; i < count; ++i) v[i] = v[i] / 2 * (1.0f + std::erf(v[i] * kRootHalf));
      kernels_.store(v.data(), count, RowAt(x, r, c), x.dtype);
    }
  });
}

void CpuOps::UnfoldGrid(ops::Tensor x, int64_t rows, int64_t cols, int64_t edge, ops::Tensor out) {
  const int64_t cells = (cols + edge - 1) / edge;
  pool_.ParallelFor(out.rows, [&](int64_t r, int) {
    const int64_t row = r / cells * edge;
    const int64_t col = r % cells * edge;
    const GridCell cell = {row * cols + col, std::min(edge, rows - row), std::min(edge, cols - col)};
    if (x.dtype == DType::kBF16) {
      UnfoldCell<uint16_t>(x, cell, cols, edge, RowAt(out, r));
    } else {
      UnfoldCell<float>(x, cell, cols, edge, RowAt(out, r));
    }
  });
}

absl::Status CpuOps::CombineTopkSwaIndices(const ops::CombineIndicesArgs& args) {
  HADAL_RETURN_IF_ERROR(ops::CheckCombineIndices(args));
  pool_.ParallelFor(ops::CombinedQueries(args), [&](int64_t t, int) { ops::CombineIndicesOfQuery(args, t); });
  return absl::OkStatus();
}

}  // namespace hadal::cpu
