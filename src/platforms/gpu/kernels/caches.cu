// What is written to the caches, and the indexer's queries, which go the way of its keys.
#include <cmath>

#include "platforms/gpu/device.h"
#include "platforms/gpu/kernels/row_store.h"
#include "platforms/gpu/kernels/rows.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

// A block a row.
template <typename T>
HADAL_GLOBAL(kMostRowThreads)
KvStoreKernel(ops::KvNormRopeStoreArgs args, bool simulate) {
  HADAL_SHARED float sums[kMostRowGroups];
  const int64_t t = BlockX();
  const int64_t n = args.kv.cols;
  const int64_t normed = args.norm.size;
  const BlockRow<T> row(RowOf<const T>(args.kv, t), n);
  float v[kVec];
  float squares = 0;
  for (int64_t i = kVec * ThreadX(); i < normed; i += kVec * ThreadsX()) {
    row.Load(i, v);
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) {
      if (i + e < normed) squares = Fma(v[e], v[e], squares);
    }
  }
  const float rms = InverseRms(BlockSum(squares, sums), normed, args.rms_eps);

  const int64_t half = args.rope.half;
  const RowSizes sizes = SizesOf(args.cache);
  const RowAddress at = AddressOf(args.cache, sizes, args.batch.seqs[t], args.batch.positions[t]);
  // All lanes take every turn: groups of values share a scale.
  for (int64_t first = 0; first < n; first += kVec * ThreadsX()) {
    const int64_t i = first + kVec * ThreadX();
    float w[kVec];
    LoadVec(args.norm, i, w);
    row.Load(i, v);
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) {
      if (i + e < normed) v[e] = Round<T>(w[e] * (v[e] * rms));
    }
    RotatePairs<T>(v, i, n - 2 * half, half, args.rope.cos + t * half, args.rope.sin + t * half);
    StoreLatent(args.cache, sizes, at, i, simulate ? n - 2 * half : 0, v);
  }
}

constexpr int kTeamThreads = 128;  // of a block of teams, if a team is no larger
constexpr int kMostTeamThreads = 512;
constexpr int kMostTeamGroups = kMostTeamThreads / kGroup;

// A team a head.
template <typename T>
HADAL_GLOBAL(kMostTeamThreads)
IndexerQueryKernel(ops::IndexerQueryArgs args, int team, float scale, bool simulate) {
  HADAL_SHARED float largest_of_groups[kMostTeamGroups];
  auto* exchange = DynamicShared<float>();
  const int64_t at = static_cast<int64_t>(BlockX()) * (ThreadsX() / team) + ThreadX() / team;
  const bool there = at < args.q.rows * args.heads;  // all threads meet at barriers
  const int64_t t = there ? at / args.heads : 0;
  const int64_t i = static_cast<int64_t>(ThreadX() % team) * kVec;
  const int64_t d = args.head_dim;
  const int64_t half = args.rope.half;
  T* head = RowOf<T>(args.q, t) + (there ? at - t * args.heads : 0) * d;
  float v[kVec];
  LoadVec(head + i, d - i, v);
  const float* cos_row = args.rope.cos + t * half;
  const float* sin_row = args.rope.sin + t * half;
  if (args.style == ops::IndexerStyle::kV32) {
    RotateHalves<T>(v, i, half, cos_row, sin_row, exchange);
    Hadamard<T>(v, d, team, scale, exchange);
    const float largest = TeamMax(LargestMagnitude(v), team, largest_of_groups);
    if (simulate) SimulateE4M3(v, largest);
  } else {
    RotatePairs<T>(v, i, d - 2 * half, half, cos_row, sin_row);
    Hadamard<T>(v, d, team, scale, exchange);
    constexpr int kLanes = kFp4RowGroup / kVec;
    const float largest = LanesMax(LargestMagnitude(v), team < kLanes ? team : kLanes);
    if (simulate) SimulateE2M1(v, largest);
  }
  if (there) StoreVec(head + i, d - i, v);
}

// A team a row.
template <typename T>
HADAL_GLOBAL(kMostTeamThreads)
IndexerKeyKernel(ops::IndexerKeyStoreArgs args, int team, float scale, bool simulate) {
  HADAL_SHARED float scratch[kMostTeamGroups];
  auto* exchange = DynamicShared<float>();
  const int64_t at = static_cast<int64_t>(BlockX()) * (ThreadsX() / team) + ThreadX() / team;
  const bool there = at < args.k.rows;
  const int64_t t = there ? at : 0;
  const int64_t i = static_cast<int64_t>(ThreadX() % team) * kVec;
  const int64_t d = args.k.cols;
  const int64_t half = args.rope.half;
  float v[kVec], w[kVec], bias[kVec];
  LoadVec(RowOf<const T>(args.k, t) + i, d - i, v);
  LoadVec(args.norm, i, w);
  LoadVec(args.bias, i, bias);

  float sum = 0;
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) sum += v[e];
  const float mean = TeamSum(sum, team, scratch) / static_cast<float>(d);
  float squares = 0;
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) {
    if (i + e < d) squares = Fma(v[e] - mean, v[e] - mean, squares);
  }
  const float inverse = InverseRms(TeamSum(squares, team, scratch), d, args.eps);
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) v[e] = i + e < d ? Round<T>((v[e] - mean) * inverse * w[e] + bias[e]) : 0.0f;

  RotateHalves<T>(v, i, half, args.rope.cos + t * half, args.rope.sin + t * half, exchange);
  Hadamard<T>(v, d, team, scale, exchange);
  const float largest = TeamMax(LargestMagnitude(v), team, scratch);
  if (!there) return;
  const RowAddress row = AddressOf(args.keys, SizesOf(args.keys), args.batch.seqs[t], args.batch.positions[t]);
  if (args.keys.format == ops::RowFormat::kPlain) {
    if (simulate) SimulateE4M3(v, largest);
    StorePlain(args.keys, row, i, v);
    return;
  }
  const float key_scale = E8M0ToFloat(static_cast<uint8_t>(E4M3ScaleByte(largest)));
  uint8_t codes[kVec];
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) codes[e] = FloatToE4M3(v[e] / key_scale);
  StoreCodes(row.values + i, d - i, codes);
  if (i == 0) StoreWord(row.scales, FloatBits(key_scale));
}

float HadamardScale(int64_t d) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(d))); }

// Blocks of teams for `rows` rows.
LaunchShape TeamShape(int64_t rows, int team, bool exchanges) {
  const int threads = team > kTeamThreads ? team : kTeamThreads;
  return {.blocks_x = static_cast<unsigned>(CeilDiv(rows, threads / team)),
          .threads = static_cast<unsigned>(threads),
          .shared_bytes = exchanges || team > kGroup ? ExchangeFloats(threads) * sizeof(float) : 0};
}

}  // namespace

void LaunchKvNormRopeStore(Stream stream, const ops::KvNormRopeStoreArgs& args, bool published) {
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(args.batch.tokens), .threads = RowThreads(args.kv.cols)};
  const bool simulate = published && args.simulate;
  if (args.kv.dtype == DType::kF32) {
    Launch<KvStoreKernel<float>>(shape, stream, args, simulate);
  } else {
    Launch<KvStoreKernel<Bf16>>(shape, stream, args, simulate);
  }
}

void LaunchIndexerQuery(Stream stream, const ops::IndexerQueryArgs& args, bool published) {
  const int team = TeamOf(args.head_dim);
  const float scale = HadamardScale(args.head_dim);
  const LaunchShape shape = TeamShape(args.q.rows * args.heads, team, args.style == ops::IndexerStyle::kV32);
  if (args.q.dtype == DType::kF32) {
    Launch<IndexerQueryKernel<float>>(shape, stream, args, team, scale, published);
  } else {
    Launch<IndexerQueryKernel<Bf16>>(shape, stream, args, team, scale, published);
  }
}

void LaunchIndexerKeyStore(Stream stream, const ops::IndexerKeyStoreArgs& args, bool published) {
  const int team = TeamOf(args.k.cols);
  const float scale = HadamardScale(args.k.cols);
  const LaunchShape shape = TeamShape(args.k.rows, team, true);
  if (args.k.dtype == DType::kF32) {
    Launch<IndexerKeyKernel<float>>(shape, stream, args, team, scale, published);
  } else {
    Launch<IndexerKeyKernel<Bf16>>(shape, stream, args, team, scale, published);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
