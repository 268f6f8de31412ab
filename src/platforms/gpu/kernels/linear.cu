#include <algorithm>

#include "platforms/gpu/device.h"
#include "platforms/gpu/formats.h"
#include "platforms/gpu/kernels/linear.h"
#include "platforms/gpu/kernels/product.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

// Rows that the way for few rows takes at once, and up to which it is always the better one: above, the weights are
// worth a place in shared memory if that leaves enough blocks.
constexpr int64_t kStripRows = kAsyncCopies ? 4 * Tile::kM : 2 * Tile::kM;
constexpr int64_t kFewRows = 2 * Tile::kM;

struct Job {
  Matrix weight;
  int weight_row;
  int n;
  int blocks_end;  // behind its last block in x, or its last strip
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

// The job of a block (or strip) of the launch, and in *block its number within the job.
HADAL_DEVICE const Job& FindJob(const Batch& batch, int* block) {
  int i = 0, begin = 0;
  while (i + 1 < batch.count && *block >= batch.jobs[i].blocks_end) begin = batch.jobs[i++].blocks_end;
  *block -= begin;
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
  int first_row = 0;
  HADAL_DEVICE void operator()(int row, int output, float value) const {
    if (job->bias != nullptr) value += VectorAt(job->bias, job->bias_bf16, output);
    const int64_t at = (first_row + row) * job->out_stride + output;
    if (job->out_f32) {
      static_cast<float*>(job->out)[at] = value;
    } else {
      static_cast<Bf16*>(job->out)[at] = ToBf16(value);
    }
  }
};

// The strips of all jobs, for each 16*kMT rows: those of one weight follow each other, which reads it from memory once.
template <int kMT, int kNT>
struct LinearStrips {
  const Batch& batch;
  int row_blocks;
  int strips, chunks, k;
  bool float_scales;
  HADAL_DEVICE explicit LinearStrips(const Batch& from)
      : batch(from),
        row_blocks(static_cast<int>(CeilDiv(from.rows, Tile::kM * kMT))),
        strips(from.jobs[from.count - 1].blocks_end * row_blocks),
        chunks(static_cast<int>(CeilDiv(from.k, kChunk))),
        k(from.k),
        float_scales(from.jobs[0].float_scales) {}
  HADAL_DEVICE Strip<StoreOutput> At(int strip) const {
    int block = strip / row_blocks;
    const int row = strip % row_blocks * Tile::kM * kMT;
    const Job& job = FindJob(batch, &block);
    Strip<StoreOutput> found = {MakeProblem(batch, job, 2), block * Tile::kN * kNT, {&job, row}};
    found.problem.x = static_cast<const unsigned char*>(found.problem.x) + row * batch.x_stride * 2;
    found.problem.rows = batch.rows - row < Tile::kM * kMT ? batch.rows - row : Tile::kM * kMT;
    return found;
  }
};

// More than 16 rows take the registers of a whole multiprocessor.
constexpr int StripThreads(int tiles) { return (tiles == 1 ? kStripWaves : kSharingWaves) * kMostWaveLanes; }

template <WeightFormat kFormat, bool kAligned, int kMT, int kNT>
HADAL_GLOBAL(StripThreads(kMT))
StripKernel(Batch batch, StripShape shape) {
  StripProducts<kFormat, kAligned, false, kMT, kNT>(LinearStrips<kMT, kNT>(batch), 0, shape,
                                                    DynamicShared<unsigned char>());
}

template <WeightFormat kFormat, bool kAligned, typename Shape>
HADAL_GLOBAL(Shape::kWaves* kMostWaveLanes)
TileKernel(Batch batch) {
  int block = BlockX();
  const Job& job = FindJob(batch, &block);
  const Problem p = MakeProblem(batch, job, 2);
  TileProduct<kFormat, kAligned, false, Shape>(p, BlockY() * Shape::kRows, block * Shape::kCols,
                                               DynamicShared<unsigned char>(), StoreOutput{&job});
}

template <WeightFormat kFormat, typename T>
HADAL_GLOBAL(kFmaThreads)
FmaKernel(Batch batch) {
  int block = BlockX();
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
void LaunchStrips(Stream stream, const ProductDevice& device, Batch batch) {
  const int64_t strips = CountBlocks(&batch, Tile::kN * kNT) * CeilDiv(batch.rows, Tile::kM * kMT);
  const StripShape strip = MakeStripShape({.rows = std::min(batch.rows, Tile::kM * kMT),
                                           .width = Tile::kN * kNT,
                                           .chunks = static_cast<int>(CeilDiv(batch.k, kChunk)),
                                           .strips = strips,
                                           .ring_bytes = StripRing<kFormat, kAligned, kNT>::Bytes(stream.wave),
                                           .most_waves = StripThreads(kMT) / kMostWaveLanes},
                                          device);
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(strip.blocks),
                             .threads = static_cast<unsigned>(strip.waves * stream.wave),
                             .shared_bytes = strip.shared_bytes};
  Launch<StripKernel<kFormat, kAligned, kMT, kNT>>(shape, stream, batch, strip);
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
void LaunchMatrixProduct(Stream stream, const ProductDevice& device, bool aligned, const Batch& batch) {
  int64_t outputs = 0;
  for (int i = 0; i < batch.count; ++i) outputs += batch.jobs[i].n;
  if (!aligned) {
    if (batch.rows <= Tile::kM) return LaunchStrips<kFormat, false, 1, 1>(stream, device, batch);
    if (batch.rows <= kFewRows) return LaunchStrips<kFormat, false, 2, 1>(stream, device, batch);
    return LaunchTiles<kFormat, false, SmallTile>(stream, batch);
  }
  // Strips of two tiles of outputs read activations half as often; of bf16 they would not fit into registers.
  constexpr int kWide = kFormat == WeightFormat::kBf16 ? 1 : 2;
  if (batch.rows <= Tile::kM) {
    // FP8 codes of one tile are enough for a wave while there are few activations.
    constexpr int64_t kOneTileRows = kFormat == WeightFormat::kFp8 ? 8 : 0;
    const bool wide = batch.rows > kOneTileRows && outputs / (kWide * Tile::kN) >= 2 * device.multiprocessors;
    return wide ? LaunchStrips<kFormat, true, 1, kWide>(stream, device, batch)
                : LaunchStrips<kFormat, true, 1, 1>(stream, device, batch);
  }
  if (batch.rows <= kFewRows) return LaunchStrips<kFormat, true, 2, kWide>(stream, device, batch);
  const int64_t small = CeilDiv(batch.rows, SmallTile::kRows) * CeilDiv(outputs, SmallTile::kCols);
  if (batch.rows <= 2 * kStripRows && small < 2 * device.multiprocessors && kAsyncCopies) {
    return LaunchStrips<kFormat, true, static_cast<int>(kStripRows / Tile::kM), kWide>(stream, device, batch);
  }
  const int64_t large = CeilDiv(batch.rows, LargeTile::kRows) * (outputs / LargeTile::kCols);
  if (large < device.multiprocessors) return LaunchTiles<kFormat, true, SmallTile>(stream, batch);
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

void LaunchLinear(Stream stream, const ProductDevice& device, const ops::Tensor& x, std::span<const LinearJob> jobs) {
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
      return LaunchMatrixProduct<WeightFormat::kFp8>(stream, device, aligned, batch);
    case DType::kF4E2M1:
      return LaunchMatrixProduct<WeightFormat::kFp4>(stream, device, aligned, batch);
    case DType::kBF16:
      return LaunchMatrixProduct<WeightFormat::kBf16>(stream, device, aligned, batch);
    default:
      return LaunchFma<WeightFormat::kF32, Bf16>(stream, batch);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
