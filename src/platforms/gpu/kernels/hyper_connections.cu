// Hyper-connections. The products of a row with the small matrix are cut along the row, so that a step of few rows has
// work for the whole device: a block takes a chunk of columns for some rows and writes one partial sum of each output;
// a second kernel adds a row's chunks in order and does the rest.
#include <algorithm>

#include "platforms/gpu/device.h"
#include "platforms/gpu/kernels/row_access.h"
#include "platforms/gpu/kernels/rows.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

constexpr int kChunk = 512;                       // columns of a partial sum
constexpr int kTurns = kChunk / (kVec * kGroup);  // of a lane over them
constexpr int kOutputsOfGroup = 3;                // the weights of so many outputs stay in a group's registers
constexpr int kRowsOfPass = 4;                    // rows that share a reduction
constexpr int kMixGroups = 9;                     // most of a block: eight for outputs, one for the squares
constexpr int kMixThreads = kMixGroups * kGroup;
constexpr int kMostRowsOfBlock = 128;
constexpr int kMostHc = 8;
constexpr int kHcOfRegisters = 4;  // streams that a thread keeps

struct MixArgs {
  ops::Tensor streams;
  const int32_t* row_index;  // null: rows as they are
  int rows;
  int rows_of_block;
  const float* fn;  // [outputs, streams.cols]
  int outputs;
  float* partial;  // [rows, chunks, outputs + 1]; the last is the sum of squares
};

// Sums of kRowsOfPass rows over the lanes: lanes first part with half of the rows each, then with half of the rest. The
// additions of a row are those of a butterfly. Lane 8*r is left with row r (bits 4 and 3 of the lane).
HADAL_DEVICE float PassSum(const float* v) {
  const bool upper = (Lane() & 16) != 0;
  const bool odd = (Lane() & 8) != 0;
  float a = upper ? v[2] : v[0];
  float b = upper ? v[3] : v[1];
  a += ShuffleXor(upper ? v[0] : v[2], 16);
  b += ShuffleXor(upper ? v[1] : v[3], 16);
  const float given = odd ? a : b;
  float sum = (odd ? b : a) + ShuffleXor(given, 8);
  for (int mask = 4; mask > 0; mask /= 2) sum += ShuffleXor(sum, mask);
  return sum;
}

// Block (chunk, rows). A group has up to three outputs at a time, the last group the squares.
template <typename T>
HADAL_GLOBAL_BLOCKS(kMixThreads, 1)
MixKernel(MixArgs args) {
  const int64_t n = args.streams.cols;
  const int64_t column = static_cast<int64_t>(BlockX()) * kChunk + kVec * Lane();
  const int first_row = BlockY() * args.rows_of_block;
  const int last_row = first_row + args.rows_of_block < args.rows ? first_row + args.rows_of_block : args.rows;
  const int groups = ThreadsX() / kGroup;
  const bool squares = GroupX() == groups - 1;
  const auto row_at = [&](int r) {
    const int row = r < args.rows ? r : args.rows - 1;
    return RowOf<const T>(args.streams, args.row_index == nullptr ? row : args.row_index[row]);
  };
  const auto out_at = [&](int r) {
    return args.partial + (static_cast<int64_t>(r) * BlocksX() + BlockX()) * (args.outputs + 1);
  };
  const int lane_row = Lane() / 8;

  if (squares) {
    for (int r0 = first_row; r0 < last_row; r0 += kRowsOfPass) {
      float sums[kRowsOfPass];
      HADAL_UNROLL
      for (int r = 0; r < kRowsOfPass; ++r) {
        const T* row = row_at(r0 + r);
        float sum = 0;
        HADAL_UNROLL
        for (int turn = 0; turn < kTurns; ++turn) {
          const int64_t i = column + turn * kVec * kGroup;
          float x[kVec];
          LoadVec(row + i, n - i, x);
          sum = AddSquares(x, sum);
        }
        sums[r] = sum;
      }
      const float sum = PassSum(sums);
      if (Lane() % 8 == 0 && r0 + lane_row < last_row) out_at(r0 + lane_row)[args.outputs] = sum;
    }
    return;
  }
  for (int o0 = GroupX() * kOutputsOfGroup; o0 < args.outputs; o0 += (groups - 1) * kOutputsOfGroup) {
    float w[kOutputsOfGroup][kTurns][kVec];
    HADAL_UNROLL
    for (int o = 0; o < kOutputsOfGroup; ++o) {
      const float* fn = args.fn + (o0 + o < args.outputs ? o0 + o : o0) * n;
      HADAL_UNROLL
      for (int turn = 0; turn < kTurns; ++turn) {
        const int64_t i = column + turn * kVec * kGroup;
        LoadVec(fn + i, n - i, w[o][turn]);
      }
    }
    for (int r0 = first_row; r0 < last_row; r0 += kRowsOfPass) {
      float sums[kOutputsOfGroup][kRowsOfPass] = {};
      HADAL_UNROLL
      for (int turn = 0; turn < kTurns; ++turn) {
        const int64_t i = column + turn * kVec * kGroup;
        float x[kRowsOfPass][kVec];
        HADAL_UNROLL
        for (int r = 0; r < kRowsOfPass; ++r) LoadVec(row_at(r0 + r) + i, n - i, x[r]);
        HADAL_UNROLL
        for (int o = 0; o < kOutputsOfGroup; ++o) {
          HADAL_UNROLL
          for (int r = 0; r < kRowsOfPass; ++r) {
            HADAL_UNROLL
            for (int e = 0; e < kVec; ++e) sums[o][r] = Fma(w[o][turn][e], x[r][e], sums[o][r]);
          }
        }
      }
      HADAL_UNROLL
      for (int o = 0; o < kOutputsOfGroup; ++o) {
        const float sum = PassSum(sums[o]);
        if (Lane() % 8 == 0 && r0 + lane_row < last_row && o0 + o < args.outputs) {
          out_at(r0 + lane_row)[o0 + o] = sum;
        }
      }
    }
  }
}

struct FinishArgs {
  ops::Tensor streams;
  const int32_t* row_index;
  int hc;
  const float* scale;
  const float* base;
  int sinkhorn_iters;
  float hc_eps;
  ops::Vector norm;
  float rms_eps;
  ops::Tensor out;
  float* post;
  float* comb;  // null: HcHead
  const float* partial;
  int chunks;
  int outputs;
  int comb_blocks;  // blocks that come first and turn outputs into post and comb, a group a row
};

HADAL_DEVICE float Sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }

// Sum of output o over the chunks of a row. Loads of sixteen chunks are under way at once.
HADAL_DEVICE float ChunkSum(const FinishArgs& args, int row, int o) {
  constexpr int kAtOnce = 16;
  const int width = args.outputs + 1;
  const float* partial = args.partial + static_cast<int64_t>(row) * args.chunks * width + o;
  float sum = 0;
  for (int c0 = 0; c0 < args.chunks; c0 += kAtOnce) {
    float v[kAtOnce];
    HADAL_UNROLL
    for (int c = 0; c < kAtOnce; ++c) v[c] = c0 + c < args.chunks ? partial[(c0 + c) * width] : 0.0f;
    HADAL_UNROLL
    for (int c = 0; c < kAtOnce; ++c) sum += v[c];
  }
  return sum;
}

// post and comb of a row by a group; c: [2, hc*hc] shared. The column step comes last in every round, the first round
// has no row step: the softmax stands for it.
HADAL_DEVICE void Sinkhorn(const FinishArgs& args, int row, float rho, float* c) {
  const int hc = args.hc;
  const int size = hc * hc;
  float* from = c;
  float* to = c + size;
  for (int o = hc + Lane(); o < args.outputs; o += kGroup) {
    const float mix = ChunkSum(args, row, o) * rho;
    if (o < 2 * hc) {
      args.post[static_cast<int64_t>(row) * hc + o - hc] = 2.0f * Sigmoid(mix * args.scale[1] + args.base[o]);
    } else {
      from[o - 2 * hc] = mix * args.scale[2] + args.base[o];
    }
  }
  GroupSync();
  for (int at = Lane(); at < size; at += kGroup) {
    const float* line = from + at / hc * hc;
    float largest = line[0];
    for (int k = 1; k < hc; ++k) largest = line[k] > largest ? line[k] : largest;
    float sum = 0;
    for (int k = 0; k < hc; ++k) sum += expf(line[k] - largest);
    to[at] = expf(from[at] - largest) / sum + args.hc_eps;
  }
  GroupSync();
  for (int step = 1; step < 2 * args.sinkhorn_iters || step == 1; ++step) {
    float* const swap = from;
    from = to;
    to = swap;
    const bool columns = step % 2 == 1;
    for (int at = Lane(); at < size; at += kGroup) {
      const float* line = columns ? from + at % hc : from + at / hc * hc;
      const int stride = columns ? hc : 1;
      float sum = 0;
      for (int k = 0; k < hc; ++k) sum += line[k * stride];
      to[at] = from[at] / (sum + args.hc_eps);
    }
    GroupSync();
  }
  for (int at = Lane(); at < size; at += kGroup) args.comb[static_cast<int64_t>(row) * size + at] = to[at];
}

// The first blocks do post and comb, each other block the collapse and the norm of a row.
template <typename T, int kMostThreads>
HADAL_GLOBAL_BLOCKS(kMostThreads, 1)
FinishKernel(FinishArgs args) {
  HADAL_SHARED float sums[kMostRowGroups];
  HADAL_SHARED float pre[kMostHc];
  const int hc = args.hc;
  const int64_t n = args.streams.cols;
  if (BlockX() < args.comb_blocks) {
    const int groups = ThreadsX() / kGroup;
    const auto row = static_cast<int64_t>(BlockX()) * groups + GroupX();
    if (row >= args.out.rows) return;
    const float squares = ChunkSum(args, static_cast<int>(row), args.outputs);
    Sinkhorn(args, static_cast<int>(row), InverseRms(squares, n, args.rms_eps),
             DynamicShared<float>() + GroupX() * 2 * hc * hc);
    return;
  }

  const int row = BlockX() - args.comb_blocks;
  const int64_t d = args.out.cols;
  const T* x = RowOf<const T>(args.streams, args.row_index == nullptr ? row : args.row_index[row]);
  const int64_t mine = kVec * ThreadX();
  float kept[kHcOfRegisters][kVec];
  HADAL_UNROLL
  for (int s = 0; s < kHcOfRegisters; ++s) {
    if (s < hc) LoadVec(x + s * d + mine, d - mine, kept[s]);
  }
  if (GroupX() == 0) {
    const float squares = ChunkSum(args, row, args.outputs);
    const float rho = InverseRms(squares, n, args.rms_eps);
    if (Lane() < hc) {
      const float mix = ChunkSum(args, row, Lane()) * rho;
      pre[Lane()] = Sigmoid(mix * args.scale[0] + args.base[Lane()]) + args.hc_eps;
    }
  }
  BlockSync();
  const auto collapse = [&](int64_t i, float* u) {
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) u[e] = 0;
    HADAL_UNROLL
    for (int s = 0; s < kHcOfRegisters; ++s) {
      if (s >= hc) break;
      float v[kVec];
      if (i == mine) {
        HADAL_UNROLL
        for (int e = 0; e < kVec; ++e) v[e] = kept[s][e];
      } else {
        LoadVec(x + s * d + i, d - i, v);
      }
      HADAL_UNROLL
      for (int e = 0; e < kVec; ++e) u[e] += pre[s] * v[e];
    }
    for (int s = kHcOfRegisters; s < hc; ++s) {
      float v[kVec];
      LoadVec(x + s * d + i, d - i, v);
      HADAL_UNROLL
      for (int e = 0; e < kVec; ++e) u[e] += pre[s] * v[e];
    }
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) u[e] = Round<T>(u[e]);
  };
  float first[kVec];
  collapse(mine, first);
  float squares = AddSquares(first, 0);
  for (int64_t i = mine + kVec * ThreadsX(); i < d; i += kVec * ThreadsX()) {
    float u[kVec];
    collapse(i, u);
    squares = AddSquares(u, squares);
  }
  const float rms = InverseRms(BlockSum(squares, sums), d, args.rms_eps);
  T* out = RowOf<T>(args.out, row);
  for (int64_t i = mine; i < d; i += kVec * ThreadsX()) {
    float u[kVec], w[kVec];
    LoadVec(args.norm, i, w);
    if (i == mine) {
      HADAL_UNROLL
      for (int e = 0; e < kVec; ++e) u[e] = first[e];
    } else {
      collapse(i, u);
    }
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) u[e] = w[e] * (u[e] * rms);
    StoreVec(out + i, d - i, u);
  }
}

constexpr int kPostThreads = 128;

// Block (row, part of the columns); a thread has the same columns of all streams.
template <typename T>
HADAL_GLOBAL(kPostThreads)
PostKernel(ops::Tensor layer_out, ops::Tensor streams, int hc, const float* post, const float* comb) {
  const int64_t d = layer_out.cols;
  const int64_t t = BlockX();
  const int64_t i = kVec * (static_cast<int64_t>(BlockY()) * ThreadsX() + ThreadX());
  if (i >= d) return;
  T* x = RowOf<T>(streams, t);
  post += t * hc;
  comb += t * hc * hc;
  float o[kVec], kept[kMostHc][kVec];
  LoadVec(RowOf<const T>(layer_out, t) + i, d - i, o);
  HADAL_UNROLL
  for (int j = 0; j < kMostHc; ++j) {
    if (j < hc) LoadVec(x + j * d + i, d - i, kept[j]);
  }
  for (int k = 0; k < hc; ++k) {
    float sum[kVec] = {};
    HADAL_UNROLL
    for (int j = 0; j < kMostHc; ++j) {
      if (j >= hc) break;
      const float weight = comb[j * hc + k];  // over the first index: column k
      HADAL_UNROLL
      for (int e = 0; e < kVec; ++e) sum[e] += weight * kept[j][e];
    }
    const float weight = post[k];
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) sum[e] = weight * o[e] + sum[e];
    StoreVec(x + k * d + i, d - i, sum);
  }
}

void LaunchMix(Stream stream, const ops::Tensor& streams, const int32_t* row_index, int64_t rows, const float* fn,
               int outputs, float* partial, int multiprocessors) {
  const int64_t chunks = CeilDiv(streams.cols, kChunk);
  // Two blocks for each multiprocessor where there are so few rows; else as many rows as make a weight worth loading.
  const int64_t rows_of_block =
      std::clamp<int64_t>(CeilDiv(rows * chunks, 2 * static_cast<int64_t>(multiprocessors)), 1, kMostRowsOfBlock);
  const MixArgs args = {
      .streams = streams,
      .row_index = row_index,
      .rows = static_cast<int>(rows),
      .rows_of_block = static_cast<int>(CeilDiv(rows_of_block, kRowsOfPass)) * kRowsOfPass,
      .fn = fn,
      .outputs = outputs,
      .partial = partial,
  };
  const int groups = std::min<int>(static_cast<int>(CeilDiv(outputs, kOutputsOfGroup)) + 1, kMixGroups);
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(chunks),
                             .blocks_y = static_cast<unsigned>(CeilDiv(rows, args.rows_of_block)),
                             .threads = static_cast<unsigned>(groups) * kGroup};
  if (streams.dtype == DType::kF32) {
    Launch<MixKernel<float>>(shape, stream, args);
  } else {
    Launch<MixKernel<Bf16>>(shape, stream, args);
  }
}

void LaunchFinish(Stream stream, FinishArgs args) {
  const unsigned threads = RowThreads(args.out.cols);
  const int groups = static_cast<int>(threads) / kGroup;
  args.comb_blocks = args.comb == nullptr ? 0 : static_cast<int>(CeilDiv(args.out.rows, groups));
  const LaunchShape shape = {
      .blocks_x = static_cast<unsigned>(args.out.rows + args.comb_blocks),
      .threads = threads,
      .shared_bytes = args.comb == nullptr ? 0 : sizeof(float) * static_cast<size_t>(groups * 2 * args.hc * args.hc)};
  constexpr unsigned kFewThreads = 512;  // leave enough registers for all that a thread keeps
  const bool few = threads <= kFewThreads;
  if (args.streams.dtype == DType::kF32) {
    if (few) {
      Launch<FinishKernel<float, kFewThreads>>(shape, stream, args);
    } else {
      Launch<FinishKernel<float, kMostRowThreads>>(shape, stream, args);
    }
  } else if (few) {
    Launch<FinishKernel<Bf16, kFewThreads>>(shape, stream, args);
  } else {
    Launch<FinishKernel<Bf16, kMostRowThreads>>(shape, stream, args);
  }
}

}  // namespace

void RowsScratch::Carve(const ops::WorkspaceSpec& spec, ops::Numerics /*numerics*/, Carver& carver) {
  const int64_t chunks = CeilDiv(spec.hc_mult * spec.hidden, kChunk);
  hc_partial = carver.Take<float>(spec.max_tokens * chunks * ((2 + spec.hc_mult) * spec.hc_mult + 1));
}

void LaunchHcPre(Stream stream, const ops::HcPreArgs& args, const RowsScratch& scratch, int multiprocessors) {
  const int outputs = static_cast<int>((2 + args.hc) * args.hc);
  LaunchMix(stream, args.streams, nullptr, args.streams.rows, args.weights.fn, outputs, scratch.hc_partial,
            multiprocessors);
  LaunchFinish(stream, {.streams = args.streams,
                        .row_index = nullptr,
                        .hc = static_cast<int>(args.hc),
                        .scale = args.weights.scale,
                        .base = args.weights.base,
                        .sinkhorn_iters = args.sinkhorn_iters,
                        .hc_eps = args.hc_eps,
                        .norm = args.norm,
                        .rms_eps = args.rms_eps,
                        .out = args.out,
                        .post = args.post,
                        .comb = args.comb,
                        .partial = scratch.hc_partial,
                        .chunks = static_cast<int>(CeilDiv(args.streams.cols, kChunk)),
                        .outputs = outputs,
                        .comb_blocks = 0});
}

void LaunchHcPost(Stream stream, const ops::HcPostArgs& args) {
  const int64_t threads = CeilDiv(args.layer_out.cols, kVec);
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(args.streams.rows),
                             .blocks_y = static_cast<unsigned>(CeilDiv(threads, kPostThreads)),
                             .threads = kPostThreads};
  const auto hc = static_cast<int>(args.hc);
  if (args.streams.dtype == DType::kF32) {
    Launch<PostKernel<float>>(shape, stream, args.layer_out, args.streams, hc, args.post, args.comb);
  } else {
    Launch<PostKernel<Bf16>>(shape, stream, args.layer_out, args.streams, hc, args.post, args.comb);
  }
}

void LaunchHcHead(Stream stream, const ops::HcHeadArgs& args, const RowsScratch& scratch, int multiprocessors) {
  if (args.out.rows == 0) return;
  const int outputs = static_cast<int>(args.hc);
  LaunchMix(stream, args.streams, args.row_index.data(), args.out.rows, args.weights.fn, outputs, scratch.hc_partial,
            multiprocessors);
  LaunchFinish(stream, {.streams = args.streams,
                        .row_index = args.row_index.data(),
                        .hc = static_cast<int>(args.hc),
                        .scale = args.weights.scale,
                        .base = args.weights.base,
                        .sinkhorn_iters = 0,
                        .hc_eps = args.hc_eps,
                        .norm = args.norm,
                        .rms_eps = args.rms_eps,
                        .out = args.out,
                        .post = nullptr,
                        .comb = nullptr,
                        .partial = scratch.hc_partial,
                        .chunks = static_cast<int>(CeilDiv(args.streams.cols, kChunk)),
                        .outputs = outputs,
                        .comb_blocks = 0});
}

}  // namespace hadal::gpu::HADAL_GPU_NS
