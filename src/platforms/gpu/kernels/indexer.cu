// IndexerTopk: scores of a chunk of tokens in scratch, then the choice, a block a token.
#include <algorithm>
#include <cmath>

#include "platforms/gpu/kernels/attention.h"
#include "platforms/gpu/kernels/attention_tiles.h"
#include "platforms/gpu/paged_rows.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

constexpr int kKeys = 16 * kAttentionWaves;  // of a block: 16 a wave
constexpr int kTokens = 8;                   // that share decoded keys

struct IndexerWork {
  ops::IndexerTopkArgs args;
  RowSizes sizes;
  bool vectors = false;  // keys lie at multiples of 16 bytes
  float scale = 0;
  int64_t first = 0;   // token of this launch
  int64_t tokens = 0;  // of this launch
  float* scores = nullptr;
  int64_t stride = 0;
};

HADAL_DEVICE int64_t VisibleRows(const IndexerWork& w, int64_t t) {
  return (static_cast<int64_t>(w.args.batch.positions[t]) + 1) / w.args.ratio;
}

// Whether a token's rows need scores at all.
HADAL_DEVICE bool NeedsScores(const IndexerWork& w, int64_t visible) {
  return visible > w.args.top_k || w.args.scores != nullptr;
}

HADAL_DEVICE void StoreScore(const IndexerWork& w, int64_t t, int64_t row, float score) {
  w.scores[(t - w.first) * w.stride + row] = score;
  if (w.args.scores != nullptr) w.args.scores[t * w.args.scores_stride + row] = score;
}

// Values 16*unit, ... of a key as bf16, exact; those behind its end are 0.
HADAL_DEVICE void DecodeKeyUnit(const IndexerWork& w, RowAddress at, int unit, Bf16* to) {
  const ops::PagedRows& pool = w.args.keys;
  const int64_t c = 16 * static_cast<int64_t>(unit);
  auto* out = reinterpret_cast<uint32_t*>(to);
  if (c + 16 <= pool.cols && pool.format == ops::RowFormat::kFp8Key) {
    const float scale = *reinterpret_cast<const float*>(at.scales);
    uint32_t words[4];
    if (w.vectors) {
      *reinterpret_cast<Bytes16*>(words) = *reinterpret_cast<const Bytes16*>(at.values + c);
    } else {
      memcpy(words, at.values + c, 16);
    }
    for (int i = 0; i < 8; ++i) {
      const uint32_t pair = words[i / 2] >> (i % 2 * 16);
      out[i] = PackBf16(E4M3ToFloat(static_cast<uint8_t>(pair)) * scale,
                        E4M3ToFloat(static_cast<uint8_t>(pair >> 8)) * scale);
    }
    return;
  }
  if (c + 16 <= pool.cols && pool.format == ops::RowFormat::kMxfp4) {
    const float scale = E8M0ToFloat(at.scales[c / kFp4RowGroup]);
    const unsigned char* from = at.values + c / 2;
    for (int i = 0; i < 8; ++i) {
      const unsigned codes = from[i];
      out[i] = PackBf16(E2M1ToFloat(codes & 15u) * scale, E2M1ToFloat(codes >> 4) * scale);
    }
    return;
  }
  if (w.vectors && c + 16 <= pool.cols && pool.format == ops::RowFormat::kPlain && pool.dtype == DType::kBF16) {
    const auto* from = reinterpret_cast<const Bytes16*>(at.values + 2 * c);
    reinterpret_cast<Bytes16*>(to)[0] = from[0];
    reinterpret_cast<Bytes16*>(to)[1] = from[1];
    return;
  }
  for (int i = 0; i < 16; ++i) to[i] = ToBf16(c + i < pool.cols ? RowValue(pool, at, c + i) : 0.0f);
}

HADAL_HOST_DEVICE int KeyStride(int64_t dim) { return static_cast<int>(CeilDiv(dim, 16)) * 16 + 8; }

// Block (x, y): key tiles x, x + blocks, ... of tokens kTokens*y... The keys of a wave are the rows of its tiles and
// the heads their columns, so that the sum over heads stays in a wave. kSteps: steps of 16 dimensions, 0: any number.
template <int kSteps, bool kRound>
HADAL_GLOBAL(kAttentionThreads)
IndexerScoresKernel(IndexerWork w) {
  const ops::IndexerTopkArgs& args = w.args;
  const int d = static_cast<int>(args.head_dim);
  const int heads = static_cast<int>(args.heads);
  const int steps = kSteps > 0 ? kSteps : static_cast<int>(CeilDiv(d, 16));
  const int head_tiles = static_cast<int>(CeilDiv(heads, 16));
  const int stride = KeyStride(d);
  auto* keys = DynamicShared<Bf16>();
  Bf16* q = keys + kKeys * stride;
  auto* weights = reinterpret_cast<float*>(q + head_tiles * 16 * stride);
  const int64_t begin = w.first + static_cast<int64_t>(BlockY()) * kTokens;
  const int64_t end = begin + kTokens < w.first + w.tokens ? begin + kTokens : w.first + w.tokens;
  int64_t most = 0;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t visible = VisibleRows(w, t);
    if (NeedsScores(w, visible) && visible > most) most = visible;
  }
  for (int64_t first_key = static_cast<int64_t>(BlockX()) * kKeys; first_key < most;
       first_key += static_cast<int64_t>(BlocksX()) * kKeys) {
    int loaded = -1;  // the sequence whose keys are in shared memory
    int64_t loaded_rows = 0;
    Tile::A a[kSteps > 0 ? kSteps : 1];
    for (int64_t t = begin; t < end; ++t) {
      const int64_t visible = VisibleRows(w, t);
      if (!NeedsScores(w, visible) || visible <= first_key) continue;
      const int64_t rows = visible - first_key < kKeys ? visible - first_key : kKeys;
      const int seq = args.batch.seqs[t];
      BlockSync();  // the last token's queries are read
      const bool load = seq != loaded || rows > loaded_rows;
      if (load) {
        for (int i = ThreadX(); i < kKeys * steps; i += ThreadsX()) {
          const int row = i / steps;
          const int unit = i % steps;
          Bf16* to = keys + row * stride + unit * 16;
          if (row < rows) {
            DecodeKeyUnit(w, AddressOf(args.keys, w.sizes, seq, first_key + row), unit, to);
          } else {
            reinterpret_cast<Bytes16*>(to)[0] = reinterpret_cast<Bytes16*>(to)[1] = Bytes16{};
          }
        }
        loaded = seq;
        loaded_rows = rows;
      }
      const auto* from = static_cast<const Bf16*>(args.q.data) + t * args.q.stride;
      const bool vectors = d % 8 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
      for (int i = ThreadX(); i < head_tiles * 16 * steps * 2; i += ThreadsX()) {
        const int head = i / (steps * 2);
        const int c = i % (steps * 2) * 8;
        Bf16* to = q + head * stride + c;
        if (vectors && head < heads && c + 8 <= d) {
          *reinterpret_cast<Bytes16*>(to) = *reinterpret_cast<const Bytes16*>(from + head * d + c);
          continue;
        }
        for (int j = 0; j < 8; ++j) to[j] = head < heads && c + j < d ? from[head * d + c + j] : Bf16{0};
      }
      for (int head = ThreadX(); head < head_tiles * 16; head += ThreadsX()) {
        float v = 0;
        if (head < heads) {
          v = VectorAt(args.weights.data, args.weights.dtype == DType::kBF16, t * args.weights.stride + head) * w.scale;
        }
        weights[head] = kRound ? Round<Bf16>(v) : v;
      }
      BlockSync();
      if constexpr (kSteps > 0) {
        if (load) {
          for (int k = 0; k < kSteps; ++k) Tile::LoadA(&a[k], keys + WaveX() * 16 * stride + k * 16, stride);
        }
      }
      Tile::C scores;
      Tile::Zero(&scores);
      for (int tile = 0; tile < head_tiles; ++tile) {
        Tile::C dots;
        Tile::Zero(&dots);
        HADAL_UNROLL
        for (int k = 0; k < steps; ++k) {
          Tile::B b;
          Tile::LoadB(&b, q + tile * 16 * stride + k * 16, stride);
          if constexpr (kSteps == 0) Tile::LoadA(&a[0], keys + WaveX() * 16 * stride + k * 16, stride);
          Tile::Multiply(&dots, a[kSteps > 0 ? k : 0], b);
        }
        for (int i = 0; i < Tile::Sums(); ++i) {
          const float weight = weights[tile * 16 + Tile::Col(i)];
          // The ReLU comes before the weight, which may be negative.
          float dot = kRound ? Round<Bf16>(dots.v[i]) : dots.v[i];
          dot = dot < 0 ? 0.0f : dot;
          if constexpr (kRound) {
            scores.v[i] += Round<Bf16>(dot * weight);
          } else {
            scores.v[i] = Fma(dot, weight, scores.v[i]);
          }
        }
      }
      float sums[Tile::kMostRows];
      Tile::SumRows(scores, sums);
      for (int r = 0; r < Tile::Rows(); ++r) {
        const int row = WaveX() * 16 + Tile::RowAt(r);
        // One of the lanes that have the sum.
        if (Tile::Col(0) == 0 && row < rows) {
          StoreScore(w, t, first_key + row, kRound ? Round<Bf16>(sums[r]) : sums[r]);
        }
      }
    }
  }
}

// fp32: block (x, y): keys 32*x..., token y. A thread has a key and a quarter of the heads.
constexpr int kPlainThreads = 128;
HADAL_GLOBAL(kPlainThreads) PlainScoresKernel(IndexerWork w) {
  HADAL_SHARED float parts[kPlainThreads];
  const ops::IndexerTopkArgs& args = w.args;
  const int64_t t = w.first + BlockY();
  const int64_t visible = VisibleRows(w, t);
  if (!NeedsScores(w, visible)) return;
  const int d = static_cast<int>(args.head_dim);
  const int heads = static_cast<int>(args.heads);
  auto* keys = DynamicShared<float>();  // [32, d + 1]
  const auto* q = static_cast<const float*>(args.q.data) + t * args.q.stride;
  for (int64_t first = static_cast<int64_t>(BlockX()) * kGroup; first < visible;
       first += static_cast<int64_t>(BlocksX()) * kGroup) {
    BlockSync();
    for (int i = ThreadX(); i < kGroup * d; i += ThreadsX()) {
      if (first + i / d >= visible) break;
      const RowAddress at = AddressOf(args.keys, w.sizes, args.batch.seqs[t], first + i / d);
      keys[i / d * (d + 1) + i % d] = RowValue(args.keys, at, i % d);
    }
    BlockSync();
    const bool there = first + Lane() < visible;
    float sum = 0;
    for (int head = GroupX(); there && head < heads; head += kPlainThreads / kGroup) {
      float dot = 0;
      for (int c = 0; c < d; ++c) dot = Fma(q[head * d + c], keys[Lane() * (d + 1) + c], dot);
      const float weight =
          VectorAt(args.weights.data, args.weights.dtype == DType::kBF16, t * args.weights.stride + head) * w.scale;
      sum = Fma(dot < 0 ? 0.0f : dot, weight, sum);
    }
    parts[ThreadX()] = sum;
    BlockSync();
    if (ThreadX() < kGroup && there) {
      for (int part = 1; part < kPlainThreads / kGroup; ++part) sum += parts[part * kGroup + Lane()];
      StoreScore(w, t, first + Lane(), sum);
    }
  }
}

// Scores as numbers whose order is the scores': NaN counts as minus infinity, -0 as 0.
HADAL_DEVICE unsigned OrderOf(float score) {
  if (!(score == score)) score = MinusInfinity();
  const unsigned bits = FloatBits(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Sums of what the threads before this one have; `groups` has a value for each group.
HADAL_DEVICE int BlockExclusiveSum(int value, int* groups) {
  int sum = value;
  for (int distance = 1; distance < kGroup; distance *= 2) {
    const int other = Shuffle(sum, Lane() >= distance ? Lane() - distance : Lane());
    if (Lane() >= distance) sum += other;
  }
  if (Lane() == kGroup - 1) groups[GroupX()] = sum;
  BlockSync();
  int before = 0;
  for (int g = 0; g < GroupX(); ++g) before += groups[g];
  BlockSync();
  return before + sum - value;
}

// Block: a token. A radix select, 8 bits a pass from the top: the threshold is the top_k-th largest score; all above it
// are chosen, and of those equal to it the first.
constexpr int kSelectThreads = 512;
constexpr int kDigits = 256;
constexpr int kCopies = 8;  // of the histogram: scores share their first bits, and additions to one address queue up
HADAL_GLOBAL(kSelectThreads) SelectKernel(IndexerWork w, int passes) {
  HADAL_SHARED int histogram[kCopies][kDigits];
  HADAL_SHARED int groups[kSelectThreads / kGroup];
  HADAL_SHARED unsigned shared_prefix;
  HADAL_SHARED int shared_need;
  const ops::IndexerTopkArgs& args = w.args;
  const int64_t t = w.first + BlockX();
  const int64_t visible = VisibleRows(w, t);
  const int64_t top_k = args.top_k;
  int32_t* out = args.out + t * top_k;
  if (visible <= top_k) {
    for (int64_t i = ThreadX(); i < top_k; i += ThreadsX()) out[i] = i < visible ? static_cast<int32_t>(i) : -1;
    return;
  }
  const float* scores = w.scores + BlockX() * w.stride;
  unsigned prefix = 0;  // the digits of the threshold that are known
  unsigned mask = 0;
  int need = static_cast<int>(top_k);  // rows still to be found among those with that prefix
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = 24 - 8 * pass;
    for (int i = ThreadX(); i < kCopies * kDigits; i += ThreadsX()) histogram[i / kDigits][i % kDigits] = 0;
    BlockSync();
    for (int64_t i = ThreadX(); i < visible; i += ThreadsX()) {
      const unsigned order = OrderOf(scores[i]);
      if ((order & mask) == prefix) AtomicAdd(&histogram[GroupX() % kCopies][(order >> shift) & 255u], 1);
    }
    BlockSync();
    // Thread i looks at digit 255 - i: how many rows have a higher one.
    int count = 0;
    if (ThreadX() < kDigits) {
      for (const auto& copy : histogram) count += copy[kDigits - 1 - ThreadX()];
    }
    const int above = BlockExclusiveSum(count, groups);
    if (above < need && above + count >= need) {
      shared_prefix = prefix | static_cast<unsigned>(kDigits - 1 - ThreadX()) << shift;
      shared_need = need - above;
    }
    BlockSync();
    prefix = shared_prefix;
    need = shared_need;
    mask |= 255u << shift;
  }
  // A thread has a run of rows, so that one sum over the block gives all places.
  const int64_t run = CeilDiv(visible, kSelectThreads);
  const int64_t begin = ThreadX() * run < visible ? ThreadX() * run : visible;
  const int64_t end = begin + run < visible ? begin + run : visible;
  int above = 0;
  int equal = 0;
  for (int64_t i = begin; i < end; ++i) {
    const unsigned order = OrderOf(scores[i]) & mask;
    above += order > prefix ? 1 : 0;
    equal += order == prefix ? 1 : 0;
  }
  const int equal_before = BlockExclusiveSum(equal, groups);
  int place = BlockExclusiveSum(above, groups) + (equal_before < need ? equal_before : need);
  int ties = need - equal_before;
  for (int64_t i = begin; i < end; ++i) {
    const unsigned order = OrderOf(scores[i]) & mask;
    if (order > prefix || (order == prefix && ties-- > 0)) out[place++] = static_cast<int32_t>(i);
  }
}

template <int kSteps, bool kRound>
void LaunchScores(Stream stream, const LaunchShape& shape, const IndexerWork& work) {
  Launch<IndexerScoresKernel<kSteps, kRound>>(shape, stream, work);
}

}  // namespace

// The one place that chooses a kernel.
void LaunchIndexerTopk(Stream stream, const AttentionDevice& device, const AttentionScratch& scratch,
                       const ops::IndexerTopkArgs& args) {
  IndexerWork work;
  work.args = args;
  work.sizes = SizesOf(args.keys);
  work.vectors = reinterpret_cast<uintptr_t>(args.keys.data) % 16 == 0 && args.keys.block_stride % 16 == 0 &&
                 work.sizes.value_bytes % 16 == 0;
  work.scale = static_cast<float>(
      1.0 / (std::sqrt(static_cast<double>(args.head_dim)) * std::sqrt(static_cast<double>(args.heads))));
  work.scores = scratch.scores;
  work.stride = scratch.score_rows;
  const bool published = args.q.dtype == DType::kBF16;
  const bool round = published && args.style == ops::IndexerStyle::kV4;
  constexpr int64_t kMostBlocks = 65535;
  for (work.first = 0; work.first < args.batch.tokens; work.first += work.tokens) {
    work.tokens = std::min({scratch.score_tokens, kMostBlocks, args.batch.tokens - work.first});
    // The host does not know how many rows are visible: blocks take tile after tile.
    const int64_t most_blocks = 8 * static_cast<int64_t>(device.multiprocessors);
    LaunchShape shape;
    if (published) {
      const int64_t stride = KeyStride(args.head_dim);
      const int64_t heads = CeilDiv(args.heads, 16) * 16;
      shape.blocks_x = static_cast<unsigned>(std::min(CeilDiv(work.stride, kKeys), most_blocks));
      shape.blocks_y = static_cast<unsigned>(CeilDiv(work.tokens, kTokens));
      shape.threads = static_cast<unsigned>(kAttentionWaves * stream.wave);
      shape.shared_bytes = static_cast<size_t>((kKeys + heads) * stride * 2 + heads * 4);
      constexpr int64_t kUsualDim = 128;
      if (args.head_dim == kUsualDim) {
        round ? LaunchScores<8, true>(stream, shape, work) : LaunchScores<8, false>(stream, shape, work);
      } else {
        round ? LaunchScores<0, true>(stream, shape, work) : LaunchScores<0, false>(stream, shape, work);
      }
    } else {
      shape.blocks_x = static_cast<unsigned>(std::min(CeilDiv(work.stride, kGroup), most_blocks));
      shape.blocks_y = static_cast<unsigned>(work.tokens);
      shape.threads = kPlainThreads;
      shape.shared_bytes = static_cast<size_t>(kGroup * (args.head_dim + 1)) * sizeof(float);
      Launch<PlainScoresKernel>(shape, stream, work);
    }
    shape = {.blocks_x = static_cast<unsigned>(work.tokens), .threads = kSelectThreads};
    // Scores that are bf16 have nothing in their last 16 bits.
    Launch<SelectKernel>(shape, stream, work, round ? 2 : 4);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
