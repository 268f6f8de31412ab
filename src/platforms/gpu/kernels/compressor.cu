// KV compression over time: one kernel appends the batch to the state, a second one emits the windows that it
// completes.
#include <algorithm>
#include <cmath>

#include "platforms/gpu/device.h"
#include "platforms/gpu/kernels/row_store.h"
#include "platforms/gpu/kernels/rows.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

constexpr int kOverlapRatio = 4;  // windows of this ratio also pool the window before them
constexpr int kAppendThreads = 128;
constexpr int kEmitThreads = 1024;
constexpr int kQuad = 4;  // channels that a thread pools: sixteen bytes of state

// Block (row, part of the channels).
HADAL_GLOBAL(kAppendThreads)
AppendKernel(ops::Tensor kv, ops::Tensor gate, const float* ape, int ratio, ops::BatchRows batch,
             ops::PagedRows state) {
  const int64_t t = BlockX();
  const int64_t channels = kv.cols;
  const int64_t i = kVec * (static_cast<int64_t>(BlockY()) * ThreadsX() + ThreadX());
  if (i >= channels) return;
  const int position = batch.positions[t];
  auto* row = reinterpret_cast<float*>(AddressOf(state, SizesOf(state), batch.seqs[t], position).values);
  float v[kVec], logit[kVec], bias[kVec];
  LoadVec(RowOf<const float>(kv, t) + i, channels - i, v);
  LoadVec(RowOf<const float>(gate, t) + i, channels - i, logit);
  LoadVec(ape + position % ratio * channels + i, channels - i, bias);
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) logit[e] += bias[e];
  StoreVec(row + i, channels - i, v);
  StoreVec(row + channels + i, channels - i, logit);
}

struct EmitArgs {
  ops::Vector norm;
  float rms_eps;
  int ratio;
  int width;
  int channels;
  int slices;
  int half;
  bool indexer_keys;
  bool published;
  float hadamard_scale;
  float freqs[kCompressFreqs];
  ops::BatchRows batch;
  ops::PagedRows state, output;
};

HADAL_DEVICE void LoadQuad(const float* at, int count, float* v) {
  if (count >= kQuad && IsAligned(at, 16)) {
    const Bytes16 raw = *reinterpret_cast<const Bytes16*>(at);
    HADAL_UNROLL
    for (int e = 0; e < kQuad; ++e) v[e] = BitsFloat(raw.words[e]);
    return;
  }
  HADAL_UNROLL
  for (int e = 0; e < kQuad; ++e) v[e] = e < count ? at[e] : 0.0f;
}

// A block a row of the batch; those that end no window are done at once. The slots of a window are cut into slices that
// depend on ratio and width; a thread pools four channels of a slice, and slices are added in order.
template <typename T>
HADAL_GLOBAL(kEmitThreads)
EmitKernel(EmitArgs args) {
  HADAL_SHARED float sums[kEmitThreads / kGroup];
  HADAL_SHARED float cosines[kCompressFreqs];
  HADAL_SHARED float sines[kCompressFreqs];
  const int position = args.batch.positions[BlockX()];
  if ((static_cast<int64_t>(position) + 1) % args.ratio != 0) return;
  const int seq = args.batch.seqs[BlockX()];
  const int window = position / args.ratio;
  const int first = window * args.ratio;
  const bool overlap = args.ratio == kOverlapRatio;
  const int width = args.width;
  const int slots = overlap ? 2 * args.ratio : args.ratio;
  const int skipped = overlap && window == 0 ? args.ratio : 0;  // the first window has none before it

  // Shared: two arrays [slices, width], the pooled row [width], and for Hadamard of wide rows an exchange.
  auto* largest_of = DynamicShared<float>();
  float* weighted_of = largest_of + args.slices * width;
  float* pooled = weighted_of + args.slices * width;
  float* exchange = pooled + width;

  if (ThreadX() < args.half) {
    const float angle = static_cast<float>(first) * args.freqs[ThreadX()];
    cosines[ThreadX()] = static_cast<float>(cos(static_cast<double>(angle)));
    sines[ThreadX()] = static_cast<float>(sin(static_cast<double>(angle)));
  }

  const int columns = static_cast<int>(CeilDiv(width, kQuad));
  const int slice = ThreadX() / columns;
  const int channel = (ThreadX() - slice * columns) * kQuad;
  const int count = width - channel;
  const bool pools = slice < args.slices;
  const int slots_of_slice = static_cast<int>(CeilDiv(slots, args.slices));
  const int begin = slice * slots_of_slice > skipped ? slice * slots_of_slice : skipped;
  const int end = (slice + 1) * slots_of_slice < slots ? (slice + 1) * slots_of_slice : slots;
  const RowSizes sizes = SizesOf(args.state);
  // Values of slot s; the gates lie `channels` behind. Series A of the window before, series B of this one.
  const auto slot = [&](int s) {
    const int p = overlap ? first - args.ratio + s : first + s;
    const int series = overlap && s >= args.ratio ? width : 0;
    return reinterpret_cast<const float*>(AddressOf(args.state, sizes, seq, p).values) + series + channel;
  };
  float largest[kQuad], sum[kQuad], weighted[kQuad];
  HADAL_UNROLL
  for (int e = 0; e < kQuad; ++e) {
    largest[e] = BitsFloat(0xFF800000u);
    sum[e] = 0;
    weighted[e] = 0;
  }
  if (pools) {
    for (int s = begin; s < end; ++s) {
      float gate[kQuad];
      LoadQuad(slot(s) + args.channels, count, gate);
      HADAL_UNROLL
      for (int e = 0; e < kQuad; ++e) largest[e] = gate[e] > largest[e] ? gate[e] : largest[e];
    }
    HADAL_UNROLL
    for (int e = 0; e < kQuad; ++e) {
      if (e < count) largest_of[slice * width + channel + e] = largest[e];
    }
  }
  BlockSync();
  if (pools) {
    for (int s = 0; s < args.slices; ++s) {
      HADAL_UNROLL
      for (int e = 0; e < kQuad; ++e) {
        const float other = e < count ? largest_of[s * width + channel + e] : 0.0f;
        largest[e] = other > largest[e] ? other : largest[e];
      }
    }
    for (int s = begin; s < end; ++s) {
      const float* at = slot(s);
      float value[kQuad], gate[kQuad];
      LoadQuad(at, count, value);
      LoadQuad(at + args.channels, count, gate);
      HADAL_UNROLL
      for (int e = 0; e < kQuad; ++e) {
        const float weight = expf(gate[e] - largest[e]);
        sum[e] += weight;
        weighted[e] = Fma(value[e], weight, weighted[e]);
      }
    }
  }
  BlockSync();
  float* sum_of = largest_of;
  if (pools) {
    HADAL_UNROLL
    for (int e = 0; e < kQuad; ++e) {
      if (e >= count) continue;
      sum_of[slice * width + channel + e] = sum[e];
      weighted_of[slice * width + channel + e] = weighted[e];
    }
  }
  BlockSync();
  for (int c = ThreadX(); c < width; c += ThreadsX()) {
    float total = 0;
    float row = 0;
    for (int s = 0; s < args.slices; ++s) {
      total += sum_of[s * width + c];
      row += weighted_of[s * width + c];
    }
    pooled[c] = Round<T>(row / total);
  }
  BlockSync();

  const int i = kVec * ThreadX();
  float v[kVec], w[kVec];
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) v[e] = i + e < width ? pooled[i + e] : 0.0f;
  LoadVec(args.norm, i, w);
  const float rms = InverseRms(BlockSum(AddSquares(v, 0), sums), width, args.rms_eps);
  HADAL_UNROLL
  for (int e = 0; e < kVec; ++e) v[e] = Round<T>(w[e] * (v[e] * rms));
  RotatePairs<T>(v, i, width - 2 * args.half, args.half, cosines, sines);
  const RowAddress at = AddressOf(args.output, SizesOf(args.output), seq, window);
  if (args.indexer_keys) {
    Hadamard<T>(v, width, width > kVec ? width / kVec : 1, args.hadamard_scale, exchange);
    if (i / (kVec * kGroup) * (kVec * kGroup) < width) StoreFp4Key(args.output, at, i, args.published, v);
  } else if (i / (kVec * kGroup) * (kVec * kGroup) < width) {  // whole groups
    StoreLatent(args.output, SizesOf(args.output), at, i, args.published ? width - 2 * args.half : 0, v);
  }
}

// As many slices of at least four slots as threads allow.
int SlicesOf(int slots, int columns) { return std::max(1, std::min(slots / 4, kEmitThreads / columns)); }

}  // namespace

void LaunchCompress(Stream stream, const ops::CompressArgs& args, bool published) {
  const int64_t channels = args.kv.cols;
  const int64_t append_threads = CeilDiv(channels, kVec);
  Launch<AppendKernel>({.blocks_x = static_cast<unsigned>(args.batch.tokens),
                        .blocks_y = static_cast<unsigned>(CeilDiv(append_threads, kAppendThreads)),
                        .threads = kAppendThreads},
                       stream, args.kv, args.gate, args.ape, static_cast<int>(args.ratio), args.batch, args.state);

  const int columns = static_cast<int>(CeilDiv(args.width, kQuad));
  EmitArgs emit = {.norm = args.norm,
                   .rms_eps = args.rms_eps,
                   .ratio = args.ratio,
                   .width = static_cast<int>(args.width),
                   .channels = static_cast<int>(channels),
                   .slices = SlicesOf(args.ratio == kOverlapRatio ? 2 * args.ratio : args.ratio, columns),
                   .half = static_cast<int>(args.rope_freqs.size()),
                   .indexer_keys = args.indexer_keys,
                   .published = published,
                   .hadamard_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.width))),
                   .freqs = {},
                   .batch = args.batch,
                   .state = args.state,
                   .output = args.output};
  std::copy(args.rope_freqs.begin(), args.rope_freqs.end(), emit.freqs);
  const auto threads = static_cast<unsigned>(CeilDiv(std::max(emit.slices * columns, emit.half), kGroup)) * kGroup;
  const bool exchanges = args.indexer_keys && TeamOf(args.width) > kGroup;
  const int64_t floats =
      (2 * emit.slices + 1) * args.width + (exchanges ? ExchangeFloats(static_cast<int>(threads)) : 0);
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(args.batch.tokens),
                             .threads = threads,
                             .shared_bytes = static_cast<size_t>(floats) * sizeof(float)};
  if (args.output.dtype == DType::kF32) {
    Launch<EmitKernel<float>>(shape, stream, emit);
  } else {
    Launch<EmitKernel<Bf16>>(shape, stream, emit);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
