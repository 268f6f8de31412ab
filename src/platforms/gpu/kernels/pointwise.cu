// Operators without sums: rows that are copied or added, and the pointwise ones of the vision tower.
#include <algorithm>

#include "platforms/gpu/device.h"
#include "platforms/gpu/kernels/row_access.h"
#include "platforms/gpu/kernels/rows.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

constexpr int kThreads = 128;

// Blocks (row, part of the columns), a thread for kVec columns.
LaunchShape ByColumns(int64_t rows, int64_t cols) {
  const int64_t vecs = CeilDiv(cols, kVec);
  const int64_t threads = std::clamp<int64_t>(CeilDiv(vecs, kGroup) * kGroup, kGroup, kThreads);
  return {.blocks_x = static_cast<unsigned>(rows),
          .blocks_y = static_cast<unsigned>(CeilDiv(vecs, threads)),
          .threads = static_cast<unsigned>(threads)};
}
// The first column of the thread.
HADAL_DEVICE int64_t Column() { return kVec * (static_cast<int64_t>(BlockY()) * ThreadsX() + ThreadX()); }

template <typename T, typename Table>
HADAL_GLOBAL(kThreads)
EmbedKernel(const int32_t* ids, const Table* table, int64_t d, int hc, ops::Tensor streams) {
  const int64_t i = Column();
  if (i >= d) return;
  float v[kVec];
  LoadVec(table + ids[BlockX()] * d + i, d - i, v);
  for (int s = 0; s < hc; ++s) StoreVec(RowOf<T>(streams, BlockX()) + s * d + i, d - i, v);
}

template <typename T>
HADAL_GLOBAL(kThreads)
MtpCombineKernel(ops::Tensor e, ops::Tensor h, int hc, ops::Tensor streams) {
  const int64_t i = Column();
  const int64_t d = e.cols;
  if (i >= d) return;
  float from[kVec];
  LoadVec(RowOf<const T>(e, BlockX()) + i, d - i, from);
  for (int s = 0; s < hc; ++s) {
    float v[kVec];
    LoadVec(RowOf<const T>(h, static_cast<int64_t>(BlockX()) * hc + s) + i, d - i, v);
    HADAL_UNROLL
    for (int k = 0; k < kVec; ++k) v[k] = from[k] + v[k];
    StoreVec(RowOf<T>(streams, BlockX()) + s * d + i, d - i, v);
  }
}

template <typename T>
HADAL_GLOBAL(kThreads)
PlaceKernel(const void* const* rows, int64_t d, int hc, ops::Tensor streams) {
  const auto* row = static_cast<const T*>(rows[BlockX()]);
  const int64_t i = Column();
  if (row == nullptr || i >= d) return;
  float v[kVec];
  LoadVec(row + i, d - i, v);
  for (int s = 0; s < hc; ++s) StoreVec(RowOf<T>(streams, BlockX()) + s * d + i, d - i, v);
}

// Block (rows, part of the columns): rows_of_block rows in ascending order. Of rows that move up within one matrix a
// thread moves its columns of all; it has read a turn's rows before it writes the first of them, and no later turn
// reads what this one overwrites.
template <typename T>
HADAL_GLOBAL(kThreads)
GatherKernel(ops::Tensor from, const int32_t* rows, int64_t count, int64_t rows_of_block, ops::Tensor out) {
  constexpr int kTurn = 4;
  const int64_t i = Column();
  const int64_t n = from.cols;
  if (i >= n) return;
  const int64_t first = BlockX() * rows_of_block;
  const int64_t last = first + rows_of_block < count ? first + rows_of_block : count;
  for (int64_t r0 = first; r0 < last; r0 += kTurn) {
    float v[kTurn][kVec];
    HADAL_UNROLL
    for (int r = 0; r < kTurn; ++r) {
      if (r0 + r < last) LoadVec(RowOf<const T>(from, rows[r0 + r]) + i, n - i, v[r]);
    }
    HADAL_UNROLL
    for (int r = 0; r < kTurn; ++r) {
      if (r0 + r < last) StoreVec(RowOf<T>(out, r0 + r) + i, n - i, v[r]);
    }
  }
}

template <typename T>
HADAL_GLOBAL(kThreads)
PixelsKernel(const uint8_t* pixels, ops::Tensor out) {
  const int64_t i = Column();
  const int64_t n = out.cols;
  if (i >= n) return;
  const uint8_t* from = pixels + BlockX() * n + i;
  float v[kVec];
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) v[e] = i + e < n ? (static_cast<float>(from[e]) / 255.0f - 0.5f) / 0.5f : 0.0f;
  StoreVec(RowOf<T>(out, BlockX()) + i, n - i, v);
}

template <typename T>
HADAL_GLOBAL(kThreads)
AddKernel(ops::Tensor x, ops::Tensor y) {
  const int64_t i = Column();
  const int64_t n = x.cols;
  if (i >= n) return;
  T* at = RowOf<T>(x, BlockX()) + i;
  float v[kVec], w[kVec];
  LoadVec(at, n - i, v);
  LoadVec(RowOf<const T>(y, BlockX()) + i, n - i, w);
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) v[e] += w[e];
  StoreVec(at, n - i, v);
}

template <typename T>
HADAL_GLOBAL(kThreads)
SiluMulKernel(ops::Tensor gate_up, ops::Tensor out) {
  const int64_t i = Column();
  const int64_t n = out.cols;
  if (i >= n) return;
  const T* row = RowOf<const T>(gate_up, BlockX());
  float g[kVec], u[kVec];
  LoadVec(row + i, n - i, g);
  LoadVec(row + n + i, n - i, u);
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) g[e] = Round<T>(g[e] / (1.0f + expf(-g[e]))) * u[e];
  StoreVec(RowOf<T>(out, BlockX()) + i, n - i, g);
}

template <typename T>
HADAL_GLOBAL(kThreads)
GeluKernel(ops::Tensor x) {
  constexpr float kRootHalf = 0.70710678118654752f;
  const int64_t i = Column();
  const int64_t n = x.cols;
  if (i >= n) return;
  T* at = RowOf<T>(x, BlockX()) + i;
  float v[kVec];
  LoadVec(at, n - i, v);
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) v[e] = v[e] / 2 * (1.0f + erff(v[e] * kRootHalf));
  StoreVec(at, n - i, v);
}

// Neighbouring threads write neighbouring features; what they read is a few rows, eight channels of which share a
// sector.
template <typename T>
HADAL_GLOBAL(kThreads)
UnfoldKernel(ops::Tensor x, int rows, int cols, int edge, ops::Tensor out) {
  const int feature = BlockY() * ThreadsX() + ThreadX();
  if (feature >= out.cols) return;
  const int across = static_cast<int>(CeilDiv(cols, edge));
  const int square = edge * edge;
  const int channel = feature / square;
  const int row = BlockX() / across * edge + feature % square / edge;
  const int col = BlockX() % across * edge + feature % edge;
  const bool inside = row < rows && col < cols;
  RowOf<T>(out, BlockX())[feature] =
      inside ? RowOf<const T>(x, static_cast<int64_t>(row) * cols + col)[channel] : FromFloat<T>(0.0f);
}

}  // namespace

void LaunchEmbed(Stream stream, const ops::BatchRows& batch, const ops::LinearWeight& table, int64_t hc,
                 const ops::Tensor& streams) {
  const LaunchShape shape = ByColumns(batch.tokens, table.k);
  const auto copies = static_cast<int>(hc);
  const auto* wide = static_cast<const float*>(table.data);
  const auto* narrow = static_cast<const Bf16*>(table.data);
  const bool f32 = streams.dtype == DType::kF32;
  if (table.dtype == DType::kF32) {
    if (f32) {
      Launch<EmbedKernel<float, float>>(shape, stream, batch.ids, wide, table.k, copies, streams);
    } else {
      Launch<EmbedKernel<Bf16, float>>(shape, stream, batch.ids, wide, table.k, copies, streams);
    }
  } else if (f32) {
    Launch<EmbedKernel<float, Bf16>>(shape, stream, batch.ids, narrow, table.k, copies, streams);
  } else {
    Launch<EmbedKernel<Bf16, Bf16>>(shape, stream, batch.ids, narrow, table.k, copies, streams);
  }
}

void LaunchMtpCombine(Stream stream, const ops::MtpCombineArgs& args) {
  const LaunchShape shape = ByColumns(args.e.rows, args.e.cols);
  const auto hc = static_cast<int>(args.hc);
  if (args.e.dtype == DType::kF32) {
    Launch<MtpCombineKernel<float>>(shape, stream, args.e, args.h, hc, args.streams);
  } else {
    Launch<MtpCombineKernel<Bf16>>(shape, stream, args.e, args.h, hc, args.streams);
  }
}

void LaunchPlaceEmbeddings(Stream stream, std::span<const void* const> rows, int64_t hc, const ops::Tensor& streams) {
  const int64_t d = streams.cols / hc;
  const LaunchShape shape = ByColumns(static_cast<int64_t>(rows.size()), d);
  const auto copies = static_cast<int>(hc);
  if (streams.dtype == DType::kF32) {
    Launch<PlaceKernel<float>>(shape, stream, rows.data(), d, copies, streams);
  } else {
    Launch<PlaceKernel<Bf16>>(shape, stream, rows.data(), d, copies, streams);
  }
}

void LaunchGatherRows(Stream stream, const ops::Tensor& from, std::span<const int32_t> rows, const ops::Tensor& out) {
  constexpr int64_t kRowsOfBlock = 4;
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t rows_of_block = from.data == out.data ? std::max<int64_t>(count, 1) : kRowsOfBlock;
  const LaunchShape shape = ByColumns(CeilDiv(count, rows_of_block), from.cols);
  if (from.dtype == DType::kF32) {
    Launch<GatherKernel<float>>(shape, stream, from, rows.data(), count, rows_of_block, out);
  } else {
    Launch<GatherKernel<Bf16>>(shape, stream, from, rows.data(), count, rows_of_block, out);
  }
}

void LaunchNormalisePixels(Stream stream, const uint8_t* pixels, const ops::Tensor& out) {
  const LaunchShape shape = ByColumns(out.rows, out.cols);
  if (out.dtype == DType::kF32) {
    Launch<PixelsKernel<float>>(shape, stream, pixels, out);
  } else {
    Launch<PixelsKernel<Bf16>>(shape, stream, pixels, out);
  }
}

void LaunchAdd(Stream stream, const ops::Tensor& x, const ops::Tensor& y) {
  const LaunchShape shape = ByColumns(x.rows, x.cols);
  if (x.dtype == DType::kF32) {
    Launch<AddKernel<float>>(shape, stream, x, y);
  } else {
    Launch<AddKernel<Bf16>>(shape, stream, x, y);
  }
}

void LaunchSiluMul(Stream stream, const ops::Tensor& gate_up, const ops::Tensor& out) {
  const LaunchShape shape = ByColumns(out.rows, out.cols);
  if (out.dtype == DType::kF32) {
    Launch<SiluMulKernel<float>>(shape, stream, gate_up, out);
  } else {
    Launch<SiluMulKernel<Bf16>>(shape, stream, gate_up, out);
  }
}

void LaunchGelu(Stream stream, const ops::Tensor& x) {
  const LaunchShape shape = ByColumns(x.rows, x.cols);
  if (x.dtype == DType::kF32) {
    Launch<GeluKernel<float>>(shape, stream, x);
  } else {
    Launch<GeluKernel<Bf16>>(shape, stream, x);
  }
}

void LaunchUnfoldGrid(Stream stream, const ops::Tensor& x, int64_t rows, int64_t cols, int64_t edge,
                      const ops::Tensor& out) {
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(out.rows),
                             .blocks_y = static_cast<unsigned>(CeilDiv(out.cols, kThreads)),
                             .threads = kThreads};
  const auto grid_rows = static_cast<int>(rows);
  const auto grid_cols = static_cast<int>(cols);
  const auto grid_edge = static_cast<int>(edge);
  if (x.dtype == DType::kF32) {
    Launch<UnfoldKernel<float>>(shape, stream, x, grid_rows, grid_cols, grid_edge, out);
  } else {
    Launch<UnfoldKernel<Bf16>>(shape, stream, x, grid_rows, grid_cols, grid_edge, out);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
