#include <algorithm>

#include "platforms/gpu/device.h"
#include "platforms/gpu/formats.h"
#include "platforms/gpu/kernels/linear.h"
#include "platforms/gpu/kernels/product.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

// Rows that the way for few rows takes; above, the weights are worth a place in shared memory.
constexpr int64_t kStripRows = 32;

struct Job {
  Matrix weight;
  int weight_row;
  int n;
  int blocks_end;  // behind its last block in x
  int64_t x_column;
  void* out;
  int64_t out_stride;
  const void* bias;
  bool float_scales;
  bool out_f32;
  bool bias_bf16;
};

struct Batch {
  const void* x;
  int64_t x_stride;
  int rows;
  int k;
  int count;
  Job jobs[kLinearJobs] = {};
};

// The job of this block, and in *block its number within the job.
HADAL_DEVICE const Job& FindJob(const Batch& batch, int* block) {
  int i = 0;
  while (i + 1 < batch.count && BlockX() >= batch.jobs[i].blocks_end) ++i;
  *block = BlockX() - (i > 0 ? batch.jobs[i - 1].blocks_end : 0);
  return batch.jobs[i];
}

HADAL_DEVICE Problem MakeProblem(const Batch& batch, const Job& job, int element_bytes) {
  Problem p;
  p.x = static_cast<const unsigned char*>(batch.x) + job.x_column * element_bytes;
  p.x_stride = batch.x_stride;
  p.rows = batch.rows;
  p.weights[0] = job.weight;
  p.weight_row = job.weight_row;
  p.n = job.n;
  p.k = batch.k;
  p.float_scales = job.float_scales;
  return p;
}

struct StoreOutput {
  const Job* job;
  HADAL_DEVICE void operator()(int row, int output, float value) const {
    if (job->bias != nullptr) value += VectorAt(job->bias, job->bias_bf16, output);
    const int64_t at = row * job->out_stride + output;
    if (job->out_f32) {
      static_cast<float*>(job->out)[at] = value;
    } else {
      static_cast<Bf16*>(job->out)[at] = ToBf16(value);
    }
  }
};

template <WeightFormat kFormat, bool kAligned, int kMT, int kNT>
HADAL_GLOBAL(kStripWaves* kMostWaveLanes)
StripKernel(Batch batch, int round_chunks) {
  int block = 0;
  const Job& job = FindJob(batch, &block);
  Problem p = MakeProblem(batch, job, 2);
  StripProduct<kFormat, kAligned, false, kMT, kNT>(p, block * Tile::kN * kNT, round_chunks, DynamicShared<float>(),
                                                   StoreOutput{&job});
}

template <WeightFormat kFormat, bool kAligned, typename Shape>
HADAL_GLOBAL(Shape::kWaves* kMostWaveLanes)
TileKernel(Batch batch) {
  int block = 0;
  const Job& job = FindJob(batch, &block);
  const Problem p = MakeProblem(batch, job, 2);
  TileProduct<kFormat, kAligned, false, Shape>(p, BlockY() * Shape::kRows, block * Shape::kCols,
                                               DynamicShared<unsigned char>(), StoreOutput{&job});
}

template <WeightFormat kFormat, typename T>
HADAL_GLOBAL(kFmaThreads)
FmaKernel(Batch batch) {
  int block = 0;
  const Job& job = FindJob(batch, &block);
  const Problem p = MakeProblem(batch, job, sizeof(T));
  FmaProduct<kFormat, T, false>(p, BlockY() * kFmaRows, block * kFmaOutputs, StoreOutput{&job});
}

HADAL_GLOBAL(kQuantThreads)
QuantiseKernel(ops::Tensor x, ops::Tensor to) {
  const int64_t block = BlockY() * static_cast<int64_t>(kQuantThreads / kGroup) + GroupX();
  if (block * kChunk >= x.cols) return;
  QuantiseBlock(static_cast<const Bf16*>(x.data) + BlockX() * x.stride,
                static_cast<Bf16*>(to.data) + BlockX() * to.stride, x.cols, block);
}

// Gives every job its blocks of `cols` outputs; the number of all.
unsigned CountBlocks(Batch* batch, int cols) {
  int blocks = 0;
  for (int i = 0; i < batch->count; ++i) {
    batch->jobs[i].blocks_end = blocks += static_cast<int>(CeilDiv(batch->jobs[i].n, cols));
  }
  return static_cast<unsigned>(blocks);
}

template <WeightFormat kFormat, bool kAligned, int kMT, int kNT>
void LaunchStrips(Stream stream, int multiprocessors, Batch batch) {
  const unsigned blocks = CountBlocks(&batch, Tile::kN * kNT);
  const StripShape strip = MakeStripShape(batch.rows, Tile::kN * kNT, batch.k, blocks < 2u * multiprocessors);
  const LaunchShape shape = {.blocks_x = blocks,
                             .threads = static_cast<unsigned>(strip.waves * stream.wave),
                             .shared_bytes = strip.shared_bytes};
  Launch<StripKernel<kFormat, kAligned, kMT, kNT>>(shape, stream, batch, strip.round_chunks);
}

template <WeightFormat kFormat, bool kAligned, typename Shape>
void LaunchTiles(Stream stream, Batch batch) {
  const LaunchShape shape = {.blocks_x = CountBlocks(&batch, Shape::kCols),
                             .blocks_y = static_cast<unsigned>(CeilDiv(batch.rows, Shape::kRows)),
                             .threads = static_cast<unsigned>(Shape::kWaves * stream.wave),
                             .shared_bytes = Shape::template SharedBytes<kFormat>()};
  Launch<TileKernel<kFormat, kAligned, Shape>>(shape, stream, batch);
}

template <WeightFormat kFormat, typename T>
void LaunchFma(Stream stream, Batch batch) {
  const LaunchShape shape = {.blocks_x = CountBlocks(&batch, kFmaOutputs),
                             .blocks_y = static_cast<unsigned>(CeilDiv(batch.rows, kFmaRows)),
                             .threads = kFmaThreads};
  Launch<FmaKernel<kFormat, T>>(shape, stream, batch);
}

// Where the kernel of a product is chosen. The ways of product.h have the same bits, so that rows may decide.
template <WeightFormat kFormat>
void LaunchMatrixProduct(Stream stream, int multiprocessors, bool aligned, const Batch& batch) {
  int64_t outputs = 0;
  for (int i = 0; i < batch.count; ++i) outputs += batch.jobs[i].n;
  if (batch.rows <= kStripRows) {
    // Two tiles of outputs a wave, which share the reads of activations, where that leaves enough blocks and registers:
    // of FP8 the next chunk's codes would not fit any more, which is worth more while there are few activations.
    constexpr int64_t kOneTileRows = kFormat == WeightFormat::kFp8 ? 8 : 0;
    constexpr int kWide = kFormat == WeightFormat::kBf16 ? 1 : 2;
    const bool wide = batch.rows > kOneTileRows && outputs / (kWide * Tile::kN) >= 2 * multiprocessors;
    if (batch.rows > Tile::kM) {
      return aligned ? LaunchStrips<kFormat, true, 2, 1>(stream, multiprocessors, batch)
                     : LaunchStrips<kFormat, false, 2, 1>(stream, multiprocessors, batch);
    }
    if (!aligned) return LaunchStrips<kFormat, false, 1, 1>(stream, multiprocessors, batch);
    return wide ? LaunchStrips<kFormat, true, 1, kWide>(stream, multiprocessors, batch)
                : LaunchStrips<kFormat, true, 1, 1>(stream, multiprocessors, batch);
  }
  if (!aligned) return LaunchTiles<kFormat, false, SmallTile>(stream, batch);
  const int64_t large = CeilDiv(batch.rows, LargeTile::kRows) * (outputs / LargeTile::kCols);
  if (large < multiprocessors) return LaunchTiles<kFormat, true, SmallTile>(stream, batch);
  LaunchTiles<kFormat, true, LargeTile>(stream, batch);
}

bool OnSixteen(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

void LinearScratch::Carve(const ops::WorkspaceSpec& spec, ops::Numerics numerics, Carver& carver) {
  if (numerics == ops::Numerics::kF32) return;
  quantised_bytes = spec.max_tokens * (spec.max_linear_k + 7) / 8 * 8 * static_cast<int64_t>(sizeof(Bf16));
  quantised = carver.Take<std::byte>(quantised_bytes);
}

void LaunchQuantise(Stream stream, const ops::Tensor& x, const ops::Tensor& to) {
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(x.rows),
                             .blocks_y = static_cast<unsigned>(CeilDiv(x.cols, kChunk * (kQuantThreads / kGroup))),
                             .threads = kQuantThreads};
  Launch<QuantiseKernel>(shape, stream, x, to);
}

void LaunchLinear(Stream stream, int multiprocessors, const ops::Tensor& x, std::span<const LinearJob> jobs) {
  const ops::LinearWeight& first = *jobs[0].weight;
  Batch batch = {.x = x.data,
                 .x_stride = x.stride,
                 .rows = static_cast<int>(x.rows),
                 .k = static_cast<int>(first.k),
                 .count = static_cast<int>(jobs.size())};
  // Sixteen bytes at a time are on sixteen bytes, in every row.
  bool aligned = OnSixteen(x.data) && x.stride % 8 == 0 && first.row_bytes() % 16 == 0 && first.k % 8 == 0;
  for (int i = 0; i < batch.count; ++i) {
    const LinearJob& job = jobs[i];
    const ops::LinearWeight& w = *job.weight;
    aligned = aligned && OnSixteen(w.data) && job.x_column % 8 == 0;
    batch.jobs[i] = {.weight = {w.data, w.scale},
                     .weight_row = static_cast<int>(job.first),
                     .n = static_cast<int>(job.n),
                     .blocks_end = 0,
                     .x_column = job.x_column,
                     .out = job.out.data,
                     .out_stride = job.out.stride,
                     .bias = job.bias.data,
                     .float_scales = w.scale_dtype == DType::kF32,
                     .out_f32 = job.out.dtype == DType::kF32,
                     .bias_bf16 = job.bias.dtype == DType::kBF16};
  }
  if (x.dtype == DType::kF32) {
    switch (first.dtype) {
      case DType::kF8E4M3:
        return LaunchFma<WeightFormat::kFp8, float>(stream, batch);
      case DType::kF4E2M1:
        return LaunchFma<WeightFormat::kFp4, float>(stream, batch);
      case DType::kBF16:
        return LaunchFma<WeightFormat::kBf16, float>(stream, batch);
      default:
        return LaunchFma<WeightFormat::kF32, float>(stream, batch);
    }
  }
  switch (first.dtype) {
    case DType::kF8E4M3:
      return LaunchMatrixProduct<WeightFormat::kFp8>(stream, multiprocessors, aligned, batch);
    case DType::kF4E2M1:
      return LaunchMatrixProduct<WeightFormat::kFp4>(stream, multiprocessors, aligned, batch);
    case DType::kBF16:
      return LaunchMatrixProduct<WeightFormat::kBf16>(stream, multiprocessors, aligned, batch);
    default:
      return LaunchFma<WeightFormat::kF32, Bf16>(stream, batch);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
