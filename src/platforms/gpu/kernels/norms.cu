// RMS norms and rotary angles.
#include <algorithm>

#include "platforms/gpu/device.h"
#include "platforms/gpu/kernels/row_access.h"
#include "platforms/gpu/kernels/rows.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

// A block a row.
template <typename T>
HADAL_GLOBAL(kMostRowThreads)
RmsNormKernel(ops::Tensor x, ops::Vector weight, float eps, ops::Tensor out) {
  HADAL_SHARED float sums[kMostRowGroups];
  const int64_t n = x.cols;
  const BlockRow<T> row(RowOf<const T>(x, BlockX()), n);
  auto* to = RowOf<T>(out, BlockX());
  float v[kVec];
  float squares = 0;
  for (int64_t i = kVec * ThreadX(); i < n; i += kVec * ThreadsX()) {
    row.Load(i, v);
    squares = AddSquares(v, squares);
  }
  const float rms = InverseRms(BlockSum(squares, sums), n, eps);
  for (int64_t i = kVec * ThreadX(); i < n; i += kVec * ThreadsX()) {
    float w[kVec];
    LoadVec(weight, i, w);
    row.Load(i, v);
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) v[e] = w[e] * (v[e] * rms);
    StoreVec(to + i, n - i, v);
  }
}

// The norm takes the sum as it is, the residual its rounding. A thread reads what it writes before it writes it: the
// output may be the input.
template <typename T>
HADAL_GLOBAL(kMostRowThreads)
AddRmsNormKernel(ops::Tensor x, ops::Tensor residual, ops::Vector weight, float eps, ops::Tensor out) {
  HADAL_SHARED float sums[kMostRowGroups];
  const int64_t n = x.cols;
  auto* kept = RowOf<T>(residual, BlockX());
  auto* to = RowOf<T>(out, BlockX());
  const BlockRow<T> row(RowOf<const T>(x, BlockX()), n);
  const BlockRow<T> before(kept, n);
  float v[kVec], r[kVec];
  float squares = 0;
  for (int64_t i = kVec * ThreadX(); i < n; i += kVec * ThreadsX()) {
    row.Load(i, v);
    before.Load(i, r);
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) v[e] += r[e];
    squares = AddSquares(v, squares);
  }
  const float rms = InverseRms(BlockSum(squares, sums), n, eps);
  for (int64_t i = kVec * ThreadX(); i < n; i += kVec * ThreadsX()) {
    float w[kVec];
    LoadVec(weight, i, w);
    row.Load(i, v);
    before.Load(i, r);
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) v[e] += r[e];
    StoreVec(kept + i, n - i, v);
    HADAL_UNROLL
    for (int e = 0; e < kVec; ++e) v[e] = w[e] * (v[e] * rms);
    StoreVec(to + i, n - i, v);
  }
}

// Block (row, half of the output).
template <typename T>
HADAL_GLOBAL(kMostRowThreads)
MtpNormKernel(ops::Tensor e, ops::Tensor h, ops::Vector enorm, ops::Vector hnorm, float eps, const int32_t* positions,
              ops::Tensor out) {
  HADAL_SHARED float sums[kMostRowGroups];
  const bool hidden = BlockY() == 1;
  const int64_t n = e.cols;
  const bool zero = !hidden && positions[BlockX()] == 0;
  const BlockRow<T> row(hidden ? RowOf<const T>(h, BlockX()) : RowOf<const T>(e, BlockX()), zero ? 0 : n);
  auto* to = RowOf<T>(out, BlockX()) + (hidden ? n : 0);
  float v[kVec];
  float squares = 0;
  for (int64_t i = kVec * ThreadX(); i < n; i += kVec * ThreadsX()) {
    row.Load(i, v);
    squares = AddSquares(v, squares);
  }
  const float rms = InverseRms(BlockSum(squares, sums), n, eps);
  for (int64_t i = kVec * ThreadX(); i < n; i += kVec * ThreadsX()) {
    float w[kVec];
    if (hidden) {
      LoadVec(hnorm, i, w);
    } else {
      LoadVec(enorm, i, w);
    }
    row.Load(i, v);
    HADAL_UNROLL
    for (int k = 0; k < kVec; ++k) v[k] = w[k] * (v[k] * rms);
    StoreVec(to + i, n - i, v);
  }
}

constexpr int kAngleThreads = 128;
constexpr int kAngleFreqs = 64;  // of one launch

struct Freqs {
  float values[kAngleFreqs];
};

// In double, as the reference: a few thousand numbers a step.
HADAL_GLOBAL(kAngleThreads)
RopeAnglesKernel(const int32_t* positions, int64_t tokens, Freqs freqs, int count, int64_t first, int64_t half,
                 float* cos_out, float* sin_out) {
  const int64_t at = static_cast<int64_t>(BlockX()) * ThreadsX() + ThreadX();
  const int64_t t = at / count;
  const int j = static_cast<int>(at - t * count);
  if (t >= tokens) return;
  const float angle = static_cast<float>(positions[t]) * freqs.values[j];  // the product is fp32
  cos_out[t * half + first + j] = static_cast<float>(cos(static_cast<double>(angle)));
  sin_out[t * half + first + j] = static_cast<float>(sin(static_cast<double>(angle)));
}

constexpr int kHeadThreads = 128;  // of a block: a group a head
constexpr int kGroupValues = kVec * kGroup;

template <typename T>
HADAL_GLOBAL(kHeadThreads)
QNormRopeKernel(ops::Tensor q, int64_t heads, int64_t d, bool normalize, float eps, ops::RopeAngles rope) {
  const int64_t at = static_cast<int64_t>(BlockX()) * (kHeadThreads / kGroup) + GroupX();
  if (at >= q.rows * heads) return;
  const int64_t t = at / heads;
  T* head = RowOf<T>(q, t) + (at - t * heads) * d;
  // The published widths, 128 and 512, stay in registers.
  constexpr int kKept = 2;
  const int64_t lane = kVec * Lane();
  float kept[kKept][kVec];
  HADAL_UNROLL
  for (int c = 0; c < kKept; ++c) LoadVec(head + lane + c * kGroupValues, d - lane - c * kGroupValues, kept[c]);

  float inverse_rms = 1;
  if (normalize) {
    float squares = 0;
    HADAL_UNROLL
    for (int c = 0; c < kKept; ++c) {
      HADAL_UNROLL
      for (int e = 0; e < kVec; ++e) squares += Round<T>(kept[c][e] * kept[c][e]);
    }
    for (int64_t i = lane + kKept * kGroupValues; i < d; i += kGroupValues) {
      float v[kVec];
      LoadVec(head + i, d - i, v);
      HADAL_UNROLL
      for (int e = 0; e < kVec; ++e) squares += Round<T>(v[e] * v[e]);
    }
    const float mean = Round<T>(Round<T>(GroupSum(squares) / static_cast<float>(d)) + eps);
    inverse_rms = Round<T>(1.0f / sqrtf(mean));
  }
  const float* cos_row = rope.cos + t * rope.half;
  const float* sin_row = rope.sin + t * rope.half;
  const auto finish = [&](int64_t i, float* v) {
    if (normalize) {
      HADAL_UNROLL
      for (int e = 0; e < kVec; ++e) v[e] = Round<T>(v[e] * inverse_rms);
    } else if (i + kVec <= d - 2 * rope.half) {
      return;  // as it is
    }
    RotatePairs<T>(v, i, d - 2 * rope.half, rope.half, cos_row, sin_row);
    StoreVec(head + i, d - i, v);
  };
  HADAL_UNROLL
  for (int c = 0; c < kKept; ++c) finish(lane + c * kGroupValues, kept[c]);
  for (int64_t i = lane + kKept * kGroupValues; i < d; i += kGroupValues) {
    float v[kVec];
    LoadVec(head + i, d - i, v);
    finish(i, v);
  }
}

constexpr int kTailThreads = 128;

// Block (row, part of the heads); a thread has kVec rotary values of a head.
template <typename T>
HADAL_GLOBAL(kTailThreads)
RopeTailKernel(ops::Tensor q, int64_t heads, int64_t head_dim, ops::RopeAngles rope, ops::Tensor out, int64_t out_dim) {
  const int64_t rotary = 2 * rope.half;
  const auto chunks = static_cast<int>(CeilDiv(rotary, kVec));
  const int at = BlockY() * ThreadsX() + ThreadX();
  const int h = at / chunks;
  if (h >= heads) return;
  const int64_t i = static_cast<int64_t>(at - h * chunks) * kVec;
  const int64_t t = BlockX();
  float v[kVec];
  LoadVec(RowOf<const T>(q, t) + (h + 1) * head_dim - rotary + i, rotary - i, v);
  RotatePairs<T>(v, i, 0, rope.half, rope.cos + t * rope.half, rope.sin + t * rope.half);
  StoreVec(RowOf<T>(out, t) + (h + 1) * out_dim - rotary + i, rotary - i, v);
}

}  // namespace

void LaunchRmsNorm(Stream stream, const ops::Tensor& x, const ops::Vector& weight, float eps, const ops::Tensor& out) {
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(x.rows), .threads = RowThreads(x.cols)};
  if (x.dtype == DType::kF32) {
    Launch<RmsNormKernel<float>>(shape, stream, x, weight, eps, out);
  } else {
    Launch<RmsNormKernel<Bf16>>(shape, stream, x, weight, eps, out);
  }
}

void LaunchAddRmsNorm(Stream stream, const ops::AddRmsNormArgs& args) {
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(args.x.rows), .threads = RowThreads(args.x.cols)};
  if (args.x.dtype == DType::kF32) {
    Launch<AddRmsNormKernel<float>>(shape, stream, args.x, args.residual, args.norm, args.rms_eps, args.out);
  } else {
    Launch<AddRmsNormKernel<Bf16>>(shape, stream, args.x, args.residual, args.norm, args.rms_eps, args.out);
  }
}

void LaunchMtpNorm(Stream stream, const ops::MtpNormArgs& args) {
  const LaunchShape shape = {
      .blocks_x = static_cast<unsigned>(args.e.rows), .blocks_y = 2, .threads = RowThreads(args.e.cols)};
  if (args.e.dtype == DType::kF32) {
    Launch<MtpNormKernel<float>>(shape, stream, args.e, args.h, args.enorm, args.hnorm, args.rms_eps,
                                 args.batch.positions, args.out);
  } else {
    Launch<MtpNormKernel<Bf16>>(shape, stream, args.e, args.h, args.enorm, args.hnorm, args.rms_eps,
                                args.batch.positions, args.out);
  }
}

void LaunchRopeAngles(Stream stream, const ops::BatchRows& batch, std::span<const float> freqs, float* cos,
                      float* sin) {
  const auto half = static_cast<int64_t>(freqs.size());
  for (int64_t first = 0; first < half; first += kAngleFreqs) {
    const auto count = static_cast<int>(std::min<int64_t>(half - first, kAngleFreqs));
    Freqs part = {};
    std::copy_n(freqs.begin() + first, count, part.values);
    const LaunchShape shape = {.blocks_x = static_cast<unsigned>(CeilDiv(batch.tokens * count, kAngleThreads)),
                               .threads = kAngleThreads};
    Launch<RopeAnglesKernel>(shape, stream, batch.positions, batch.tokens, part, count, first, half, cos, sin);
  }
}

void LaunchQNormRope(Stream stream, const ops::QNormRopeArgs& args) {
  const LaunchShape shape = {
      .blocks_x = static_cast<unsigned>(CeilDiv(args.q.rows * args.heads, kHeadThreads / kGroup)),
      .threads = kHeadThreads};
  if (args.q.dtype == DType::kF32) {
    Launch<QNormRopeKernel<float>>(shape, stream, args.q, args.heads, args.head_dim, args.normalize, args.rms_eps,
                                   args.rope);
  } else {
    Launch<QNormRopeKernel<Bf16>>(shape, stream, args.q, args.heads, args.head_dim, args.normalize, args.rms_eps,
                                  args.rope);
  }
}

void LaunchRopeTail(Stream stream, const ops::RopeTailArgs& args) {
  const int64_t chunks = args.heads * CeilDiv(2 * args.rope.half, kVec);
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(args.q.rows),
                             .blocks_y = static_cast<unsigned>(CeilDiv(chunks, kTailThreads)),
                             .threads = kTailThreads};
  if (args.q.dtype == DType::kF32) {
    Launch<RopeTailKernel<float>>(shape, stream, args.q, args.heads, args.head_dim, args.rope, args.out, args.out_dim);
  } else {
    Launch<RopeTailKernel<Bf16>>(shape, stream, args.q, args.heads, args.head_dim, args.rope, args.out, args.out_dim);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
