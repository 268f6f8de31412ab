// VisionAttention: queries and keys are rotated into args.packed, [3, heads, patches] rows, then a block takes 64
// queries of a head through all rows, chunk after chunk.
#include "platforms/gpu/kernels/attention.h"
#include "platforms/gpu/kernels/attention_tiles.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

constexpr int kRotateThreads = 256;

// Block: a patch.
template <typename T>
HADAL_GLOBAL(kRotateThreads)
RotateKernel(ops::VisionAttentionArgs args) {
  const int64_t n = BlockX();
  const int64_t half = args.rope.half;
  const int64_t d = args.head_dim;
  const T* from = static_cast<const T*>(args.qkv.data) + n * args.qkv.stride;
  for (int64_t i = ThreadX(); i < 3 * args.heads * half; i += ThreadsX()) {
    const int64_t head = i / half;  // of queries, keys, values in turn
    const int64_t c = i % half;
    const T* x = from + head * d + c;
    T* to = static_cast<T*>(args.packed.data) + (head * args.qkv.rows + n) * args.packed.stride + c;
    if (head < 2 * args.heads) {
      const float a = ToFloat(x[0]);
      const float b = ToFloat(x[half]);
      const float cos = args.rope.cos[n * half + c];
      const float sin = args.rope.sin[n * half + c];
      to[0] = FromFloat<T>(a * cos - b * sin);
      to[half] = FromFloat<T>(b * cos + a * sin);
    } else {
      to[0] = x[0];
      to[half] = x[half];
    }
  }
}

constexpr int kQueryTiles = 4;
constexpr int kQueries = 16 * kQueryTiles;  // of a block
constexpr int kMostDim = static_cast<int>(kMostVisionDim);
constexpr int kWaveTiles = kMostDim / 16 * kQueryTiles / kAttentionWaves;  // tiles of the result that a wave sums

HADAL_HOST_DEVICE int PatchStride(int64_t dim) { return static_cast<int>(CeilDiv(dim, 16)) * 16 + 8; }

// Rows [first, first + count) of a packed matrix, those behind its end 0.
HADAL_DEVICE void LoadPatches(const Bf16* from, int64_t from_stride, int64_t rows, int dim, int64_t first, int count,
                              Bf16* to, int stride) {
  const bool vectors = dim % 8 == 0 && from_stride % 8 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
  const int units = (stride - 8) / 8;
  for (int i = ThreadX(); i < count * units; i += ThreadsX()) {
    const int row = i / units;
    const int c = i % units * 8;
    const Bf16* at = from + (first + row) * from_stride + c;
    Bf16* out = to + row * stride + c;
    const bool there = first + row < rows;
    if (vectors && there && c + 8 <= dim) {
      *reinterpret_cast<Bytes16*>(out) = *reinterpret_cast<const Bytes16*>(at);
      continue;
    }
    for (int j = 0; j < 8; ++j) out[j] = there && c + j < dim ? at[j] : Bf16{0};
  }
}

template <int kChunk>
HADAL_HOST_DEVICE size_t VisionSharedBytes(int64_t dim) {
  const size_t stride = PatchStride(dim);
  return (kQueries + 2 * kChunk) * stride * 2 + kQueries * ScoreStride(kChunk) * 4 +
         2 * kQueries * ProbabilityStride(kChunk) * 2 + 4 * kQueries * 4 + kChunk;
}

// Block (x, y): queries 64*x..., head y.
template <int kChunk>
HADAL_GLOBAL(kAttentionThreads)
VisionAttentionKernel(ops::VisionAttentionArgs args, float scale) {
  const int d = static_cast<int>(args.head_dim);
  const int stride = PatchStride(d);
  const int steps = static_cast<int>(CeilDiv(d, 16));
  auto* q = DynamicShared<Bf16>();
  Bf16* keys = q + kQueries * stride;
  Bf16* values = keys + kChunk * stride;
  Bf16* high = values + kChunk * stride;
  Bf16* low = high + kQueries * ProbabilityStride(kChunk);
  auto* scores = reinterpret_cast<float*>(low + kQueries * ProbabilityStride(kChunk));
  float* tops = scores + kQueries * ScoreStride(kChunk);
  float* totals = tops + kQueries;
  float* kept = totals + kQueries;
  float* added = kept + kQueries;
  auto* seen = reinterpret_cast<uint8_t*>(added + kQueries);

  const int64_t n = args.qkv.rows;
  const int64_t head = BlockY();
  const int64_t first = static_cast<int64_t>(BlockX()) * kQueries;
  const int64_t part = args.heads * n * args.packed.stride;
  const auto* packed = static_cast<const Bf16*>(args.packed.data) + head * n * args.packed.stride;
  LoadPatches(packed, args.packed.stride, n, d, first, kQueries, q, stride);
  if (ThreadX() < kQueries) {
    tops[ThreadX()] = MinusInfinity();
    totals[ThreadX()] = 0;
  }
  // A wave sums 16 queries, and every second 16 columns.
  const int m = WaveX() % kQueryTiles;
  const int first_tile = WaveX() / kQueryTiles;
  constexpr int kTileStep = kAttentionWaves / kQueryTiles;
  Tile::C sums[kWaveTiles];
  HADAL_UNROLL
  for (Tile::C& c : sums) Tile::Zero(&c);
  for (int64_t chunk = 0; chunk < n; chunk += kChunk) {
    BlockSync();
    const int row_tiles = n - chunk < kChunk ? static_cast<int>(CeilDiv(n - chunk, 16)) : kChunk / 16;
    LoadPatches(packed + part, args.packed.stride, n, d, chunk, 16 * row_tiles, keys, stride);
    LoadPatches(packed + 2 * part, args.packed.stride, n, d, chunk, 16 * row_tiles, values, stride);
    if (ThreadX() < kChunk) seen[ThreadX()] = chunk + ThreadX() < n ? 1 : 0;
    BlockSync();
    ComputeScores<kQueryTiles, kChunk>(q, keys, row_tiles, stride, steps, scores);
    BlockSync();
    for (int query = GroupX(); query < kQueries; query += ThreadsX() / kGroup) {
      if (first + query >= n) break;
      QueryScores<kQueryTiles, kChunk> p(scores, query, scale, seen);
      const float sum = p.Exponentiate();
      p.Store(query, high, low);
      if (Lane() == 0) {
        const Merge merge = MergeOf(tops[query], p.top);
        totals[query] = Fma(totals[query], merge.kept, sum * merge.added);
        tops[query] = merge.top;
        kept[query] = merge.kept;
        added[query] = merge.added;
      }
    }
    BlockSync();
    const int offset = m * 16 * ProbabilityStride(kChunk);
    const Probabilities<kChunk, true> p(high + offset, low + offset, row_tiles);
    HADAL_UNROLL
    for (int j = 0; j < kWaveTiles; ++j) {
      const int tile = first_tile + kTileStep * j;
      if (tile >= steps) break;
      const Tile::C sum = p.Multiply(values + tile * 16, stride);
      HADAL_UNROLL
      for (int i = 0; i < Tile::Sums(); ++i) {
        const int query = m * 16 + Tile::Row(i);
        sums[j].v[i] = Fma(sums[j].v[i], kept[query], sum.v[i] * added[query]);
      }
    }
  }
  auto* out = static_cast<Bf16*>(args.out.data) + head * d;
  HADAL_UNROLL
  for (int j = 0; j < kWaveTiles; ++j) {
    HADAL_UNROLL
    for (int i = 0; i < Tile::Sums(); ++i) {
      const int query = m * 16 + Tile::Row(i);
      const int c = (first_tile + kTileStep * j) * 16 + Tile::Col(i);
      if (first + query < n && c < d) {
        out[(first + query) * args.out.stride + c] = ToBf16(sums[j].v[i] / totals[query]);
      }
    }
  }
}

// fp32: block (patch, head).
constexpr int kPlainThreads = 128;
HADAL_GLOBAL(kPlainThreads) PlainVisionKernel(ops::VisionAttentionArgs args, float scale) {
  HADAL_SHARED float q[kMostDim];
  HADAL_SHARED float p[kPlainThreads];
  HADAL_SHARED float scratch[kPlainThreads / kGroup];
  const int64_t n = args.qkv.rows;
  const int64_t d = args.head_dim;
  const int64_t head = BlockY();
  const int64_t stride = args.packed.stride;
  const auto* queries = static_cast<const float*>(args.packed.data) + head * n * stride;
  const float* keys = queries + args.heads * n * stride;
  const float* values = keys + args.heads * n * stride;
  if (ThreadX() < d) q[ThreadX()] = queries[BlockX() * stride + ThreadX()];
  BlockSync();
  float top = MinusInfinity();
  float total = 0;
  float sum = 0;  // of column ThreadX()
  for (int64_t chunk = 0; chunk < n; chunk += kPlainThreads) {
    const int64_t rows = n - chunk < kPlainThreads ? n - chunk : kPlainThreads;
    float score = MinusInfinity();
    if (ThreadX() < rows) {
      score = 0;
      for (int64_t c = 0; c < d; ++c) score = Fma(q[c], keys[(chunk + ThreadX()) * stride + c], score);
      score *= scale;
    }
    const float largest = BlockMax(score, scratch);
    const Merge merge = MergeOf(top, largest);
    const float e = ThreadX() < rows ? expf(score - largest) : 0.0f;
    p[ThreadX()] = e;
    total = Fma(total, merge.kept, BlockSum(e, scratch) * merge.added);
    top = merge.top;
    if (ThreadX() < d) {
      float part = 0;
      for (int64_t row = 0; row < rows; ++row) part = Fma(p[row], values[(chunk + row) * stride + ThreadX()], part);
      sum = Fma(sum, merge.kept, part * merge.added);
    }
    BlockSync();
  }
  if (ThreadX() < d) {
    static_cast<float*>(args.out.data)[BlockX() * args.out.stride + head * d + ThreadX()] = sum / total;
  }
}

template <int kChunk>
void LaunchTiles(Stream stream, const ops::VisionAttentionArgs& args, float scale) {
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(CeilDiv(args.qkv.rows, kQueries)),
                             .blocks_y = static_cast<unsigned>(args.heads),
                             .threads = static_cast<unsigned>(kAttentionWaves * stream.wave),
                             .shared_bytes = VisionSharedBytes<kChunk>(args.head_dim)};
  Launch<VisionAttentionKernel<kChunk>>(shape, stream, args, scale);
}

}  // namespace

// The one place that chooses a kernel.
void LaunchVisionAttention(Stream stream, const ops::VisionAttentionArgs& args) {
  const float scale = 1.0f / sqrtf(static_cast<float>(args.head_dim));
  const LaunchShape patches = {.blocks_x = static_cast<unsigned>(args.qkv.rows), .threads = kRotateThreads};
  if (args.qkv.dtype == DType::kF32) {
    Launch<RotateKernel<float>>(patches, stream, args);
    const LaunchShape shape = {.blocks_x = static_cast<unsigned>(args.qkv.rows),
                               .blocks_y = static_cast<unsigned>(args.heads),
                               .threads = kPlainThreads};
    Launch<PlainVisionKernel>(shape, stream, args, scale);
    return;
  }
  Launch<RotateKernel<Bf16>>(patches, stream, args);
  if (stream.wave == 64) {
    LaunchTiles<32>(stream, args, scale);  // LDS has 64 KiB
  } else {
    LaunchTiles<64>(stream, args, scale);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
