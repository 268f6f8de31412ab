// SparseAttention. The rows that a query sees have slots: those of the window, then the compressed ones as listed. 64
// slots (32 on AMD) are a chunk; chunks are merged into sections and sections into the result, each in ascending order.
// How many chunks a section has depends on the number of slots alone: one, up to kMostSections chunks.
//
// A step of many queries gives a block a query and 64 of its heads (16 on AMD), whose rows it decodes once for all of
// them. A step of few gives every section its own block, whose sums a second kernel merges: the same sums in the same
// order, and so the same bits. Rounded probabilities need the sum of all before the first is rounded, so that the
// scores are computed twice.
#include <algorithm>

#include "platforms/gpu/kernels/attention.h"
#include "platforms/gpu/kernels/attention_tiles.h"
#include "platforms/gpu/paged_rows.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

constexpr int kMostSections = 32;
constexpr int kWaveTiles = 4;  // tiles of 16 values that a wave sums
constexpr int64_t kMostValues = kMostAttentionValues;
static_assert(kMostValues == 16 * kAttentionWaves * kWaveTiles);

enum class SparsePass {
  kWhole,       // a block does all sections of its query, and writes the result
  kStatistics,  // largest score and sum of a section
  kSections,    // the same and the sum of the values
};

struct SparseWork {
  ops::SparseAttentionArgs args;
  RowSizes window_sizes, compressed_sizes;
  bool window_vectors = false, compressed_vectors = false;  // rows lie at multiples of 16 bytes
  int64_t value_dim = 0;
  int64_t first = 0;  // token of block y = 0
  SparsePass pass = SparsePass::kWhole;
  // Of sections: [tokens, heads, kMostSections, value_dim], and [tokens, heads, kMostSections] twice. kWhole with more
  // than one section: what a thread has merged so far.
  float* sums = nullptr;
  float* tops = nullptr;
  float* totals = nullptr;
};

// The slots of one query.
struct Slots {
  int64_t window_begin = 0, window_rows = 0;
  int64_t existing = 0, listed = 0;
  const int32_t* list = nullptr;
  int seq = 0;
  int chunks = 0, section_chunks = 0, sections = 0;
  int64_t count = 0;

  HADAL_DEVICE Slots(const ops::SparseAttentionArgs& args, int64_t t, int chunk) {
    seq = args.batch.seqs[t];
    if (args.window.data != nullptr) {
      window_begin = args.window_begin[t];
      const int64_t rows = args.window_end[t] - window_begin;
      window_rows = rows > 0 ? rows : 0;
    }
    if (args.compressed.data != nullptr && args.ratio != 0) {
      existing = (static_cast<int64_t>(args.batch.positions[t]) + 1) / args.ratio;
      listed = args.topk == nullptr ? existing : args.topk_stride;
      if (args.topk != nullptr) list = args.topk + t * args.topk_stride;
    }
    count = window_rows + listed;
    chunks = static_cast<int>(CeilDiv(count, chunk));
    section_chunks = static_cast<int>(CeilDiv(chunks > 0 ? chunks : 1, kMostSections));
    sections = static_cast<int>(CeilDiv(chunks, section_chunks));
  }

  // The compressed row of a slot behind the window, -1: none.
  HADAL_DEVICE int64_t Compressed(int64_t slot) const {
    const int64_t i = slot - window_rows;
    if (i >= listed) return -1;
    if (list == nullptr) return i;
    const int64_t row = list[i];
    return row < existing ? row : -1;
  }
};

struct SlotAddress {
  RowAddress at;
  bool window = false;
  bool seen = false;
};

HADAL_DEVICE SlotAddress AddressOfSlot(const SparseWork& w, const Slots& slots, int64_t slot) {
  if (slot < slots.window_rows) {
    return {AddressOf(w.args.window, w.window_sizes, slots.seq, slots.window_begin + slot), true, true};
  }
  const int64_t row = slots.Compressed(slot);
  if (row < 0) return {};
  return {AddressOf(w.args.compressed, w.compressed_sizes, slots.seq, row), false, true};
}

// What a head's sums are multiplied with in the end: the sink enters the denominator only.
HADAL_DEVICE float Normaliser(float top, float total, float sink) {
  if (top == MinusInfinity()) return 0.0f;
  const float largest = top > sink ? top : sink;
  const float scale = expf(top - largest);
  return scale / (total * scale + expf(sink - largest));
}

// Values c and c+1 of a head's result, rounded, rotated back if they belong to the tail, and stored.
template <typename T>
HADAL_DEVICE void StorePair(const SparseWork& w, int64_t t, int64_t head, int64_t c, float x, float y) {
  const ops::RopeAngles& rope = w.args.rope;
  x = Round<T>(x);
  y = Round<T>(y);
  const int64_t tail = w.value_dim - 2 * rope.half;
  if (c >= tail) {
    const int64_t at = t * rope.half + (c - tail) / 2;
    const float cos = rope.cos[at];
    const float sin = rope.sin[at];
    const float turned = x * cos + y * sin;
    y = y * cos - x * sin;
    x = turned;
  }
  T* to = static_cast<T*>(w.args.out.data) + t * w.args.out.stride + head * w.value_dim + c;
  to[0] = FromFloat<T>(x);
  if (c + 1 < w.value_dim) to[1] = FromFloat<T>(y);
}

// Values 16*unit, ... of a row as bf16; those behind its end are 0.
HADAL_DEVICE void DecodeUnit(const ops::PagedRows& pool, RowAddress at, bool vectors, int unit, Bf16* to) {
  const int64_t c = 16 * static_cast<int64_t>(unit);
  auto* out = reinterpret_cast<Bytes16*>(to);
  const int64_t wide = pool.cols - pool.tail;
  if (vectors && c + 16 <= pool.cols) {
    if (pool.format == ops::RowFormat::kPlain && pool.dtype == DType::kBF16) {
      const auto* from = reinterpret_cast<const Bytes16*>(at.values + 2 * c);
      out[0] = from[0];
      out[1] = from[1];
      return;
    }
    const bool inside = pool.format == ops::RowFormat::kFp8DsMla656;
    if ((pool.format == ops::RowFormat::kFp8DsMla || inside) && wide % 16 == 0) {
      if (c >= wide) {
        const unsigned char* tail = inside ? at.scales + CeilDiv(wide, kFp8WideGroup) * 4 : at.values + wide;
        const auto* from = reinterpret_cast<const Bytes16*>(tail + 2 * (c - wide));
        out[0] = from[0];
        out[1] = from[1];
        return;
      }
      const Bytes16 codes = *reinterpret_cast<const Bytes16*>(at.values + c);
      const float scale = inside ? reinterpret_cast<const float*>(at.scales)[c / kFp8WideGroup]
                                 : E8M0ToFloat(at.scales[c / kFp8RowGroup]);
      for (int half = 0; half < 2; ++half) {
        Bytes16 values;
        for (int i = 0; i < 4; ++i) {
          const uint32_t pair = codes.words[half * 2 + i / 2] >> (i % 2 * 16);
          values.words[i] = PackBf16(E4M3ToFloat(static_cast<uint8_t>(pair)) * scale,
                                     E4M3ToFloat(static_cast<uint8_t>(pair >> 8)) * scale);
        }
        out[half] = values;
      }
      return;
    }
  }
  for (int i = 0; i < 16; ++i) to[i] = ToBf16(c + i < pool.cols ? RowValue(pool, at, c + i) : 0.0f);
}

// Shared memory of a block.
template <int kHeadTiles, int kChunk>
struct SparseShared {
  static constexpr int kHeads = 16 * kHeadTiles;
  static constexpr int kScores = ScorePlanes(kHeadTiles) * kHeads * ScoreStride(kChunk);
  static constexpr int kProbabilities = kHeads * ProbabilityStride(kChunk);

  Bf16* q;     // [kHeads, stride]
  Bf16* rows;  // [kChunk, stride]; in the end the result [kHeads, stride]
  Bf16* high;  // probabilities
  Bf16* low;   // unless they are rounded
  float* scores;
  RowAddress* addresses;  // [kChunk]
  uint8_t* seen;          // [kChunk] 0: a slot without row, 1: compressed, 2: window
  int* counts;            // [3] rows of this chunk, and of the ones before and behind it
  // [kHeads] each: of the section and of all before it; how the next is merged; of all chunks.
  float *top, *total, *all_top, *all_total, *kept, *added, *final_top, *final_total;
  int stride;

  static_assert(kChunk % kGroup == 0 && kHeads <= kChunk * 2);

  HADAL_HOST_DEVICE static int Stride(int64_t head_dim) { return static_cast<int>(CeilDiv(head_dim, 16)) * 16 + 8; }
  HADAL_HOST_DEVICE static size_t Bytes(int64_t head_dim, bool low) {
    const size_t stride = Stride(head_dim);
    return (kHeads + kRowsTaken()) * stride * 2 + (low ? 2 : 1) * kProbabilities * 2 + kScores * 4 +
           kChunk * (sizeof(RowAddress) + 1) + 16 + 8 * kHeads * 4;
  }
  // The result goes where the rows were.
  HADAL_HOST_DEVICE static constexpr int kRowsTaken() { return kChunk > kHeads ? kChunk : kHeads; }

  HADAL_DEVICE SparseShared(unsigned char* at, int64_t head_dim, bool with_low) {
    stride = Stride(head_dim);
    const auto take = [&at](size_t bytes) {
      unsigned char* taken = at;
      at += bytes;
      return taken;
    };
    q = reinterpret_cast<Bf16*>(take(static_cast<size_t>(kHeads) * stride * 2));
    rows = reinterpret_cast<Bf16*>(take(static_cast<size_t>(kRowsTaken()) * stride * 2));
    high = reinterpret_cast<Bf16*>(take(kProbabilities * 2));
    low = with_low ? reinterpret_cast<Bf16*>(take(kProbabilities * 2)) : nullptr;
    scores = reinterpret_cast<float*>(take(kScores * 4));
    addresses = reinterpret_cast<RowAddress*>(take(kChunk * sizeof(RowAddress)));
    float** const heads[] = {&top, &total, &all_top, &all_total, &kept, &added, &final_top, &final_total};
    for (float** head : heads) *head = reinterpret_cast<float*>(take(kHeads * 4));
    counts = reinterpret_cast<int*>(take(16));
    seen = take(kChunk);
  }
};

// Block (x, y, z): heads 16*kHeadTiles*x..., token y, section z.
template <int kHeadTiles, int kChunk, bool kRound>
HADAL_GLOBAL(kAttentionThreads)
SparseAttentionKernel(SparseWork w) {
  using Shared = SparseShared<kHeadTiles, kChunk>;
  constexpr int kHeads = Shared::kHeads;
  const ops::SparseAttentionArgs& args = w.args;
  const int64_t t = w.first + BlockY();
  const Slots slots(args, t, kChunk);
  const bool whole = w.pass == SparsePass::kWhole;
  if (!whole && BlockZ() >= slots.sections) return;
  // Sections of one chunk are merged as chunks of one section.
  const bool flat = slots.section_chunks == 1;
  const int section_chunks = whole && flat ? slots.chunks : slots.section_chunks;
  const int first_section = whole ? 0 : BlockZ();
  const int end_section = whole ? (flat ? 1 : slots.sections) : first_section + 1;

  const int64_t d = args.head_dim;
  const int steps = static_cast<int>(CeilDiv(d, 16));
  const int value_tiles = static_cast<int>(CeilDiv(w.value_dim, 16));
  const int64_t first_head = static_cast<int64_t>(BlockX()) * kHeads;
  const Shared s(DynamicShared<unsigned char>(), d, !kRound);

  // Queries; heads and dims that are not there are 0.
  {
    const auto* q = static_cast<const Bf16*>(args.q.data) + t * args.q.stride + first_head * d;
    const bool vectors = d % 8 == 0 && reinterpret_cast<uintptr_t>(q) % 16 == 0;
    for (int i = ThreadX(); i < kHeads * steps * 2; i += ThreadsX()) {
      const int head = i / (steps * 2);
      const int c = i % (steps * 2) * 8;
      Bf16* to = s.q + head * s.stride + c;
      if (vectors && first_head + head < args.heads && c + 8 <= d) {
        *reinterpret_cast<Bytes16*>(to) = *reinterpret_cast<const Bytes16*>(q + head * d + c);
        continue;
      }
      for (int j = 0; j < 8; ++j) to[j] = first_head + head < args.heads && c + j < d ? q[head * d + c + j] : Bf16{0};
    }
  }
  if (ThreadX() < 3) s.counts[ThreadX()] = 0;
  BlockSync();

  // Largest score and sum of a head in all sections, of the pass before this one.
  if constexpr (kRound) {
    if (w.pass == SparsePass::kSections && ThreadX() < kHeads) {
      float top = MinusInfinity();
      float total = 0;
      const int64_t head = first_head + ThreadX();
      if (head < args.heads) {
        const int64_t at = (BlockY() * args.heads + head) * kMostSections;
        for (int section = 0; section < slots.sections; ++section) {
          const Merge merge = MergeOf(top, w.tops[at + section]);
          total = Fma(total, merge.kept, w.totals[at + section] * merge.added);
          top = merge.top;
        }
      }
      s.all_top[ThreadX()] = top;
      s.all_total[ThreadX()] = total;
    }
  }

  Tile::C sums[kHeadTiles][kWaveTiles];
  int turn = 0;  // of counts
  for (int pass = kRound && w.pass != SparsePass::kSections ? 0 : 1; pass < 2; ++pass) {
    const bool statistics = pass == 0;
    if constexpr (kRound) {
      if (!statistics) {
        BlockSync();
        if (ThreadX() < kHeads) {
          const int64_t head = first_head + ThreadX();
          const float sink = args.sink == nullptr || head >= args.heads ? MinusInfinity() : args.sink[head];
          const float top = s.all_top[ThreadX()];
          const float largest = top > sink ? top : sink;
          s.final_top[ThreadX()] = largest;
          s.final_total[ThreadX()] =
              top == MinusInfinity() ? 1.0f : s.all_total[ThreadX()] * expf(top - largest) + expf(sink - largest);
        }
      }
    }
    BlockSync();
    if (ThreadX() < kHeads) {
      s.all_top[ThreadX()] = MinusInfinity();
      s.all_total[ThreadX()] = 0;
    }
    for (int section = first_section; section < end_section; ++section) {
      if (ThreadX() < kHeads) {
        s.top[ThreadX()] = MinusInfinity();
        s.total[ThreadX()] = 0;
      }
      HADAL_UNROLL
      for (auto& head : sums) {
        HADAL_UNROLL
        for (Tile::C& c : head) Tile::Zero(&c);
      }
      const int first_chunk = section * section_chunks;
      const int end_chunk = first_chunk + section_chunks < slots.chunks ? first_chunk + section_chunks : slots.chunks;
      for (int chunk = first_chunk; chunk < end_chunk; ++chunk) {
        const int now = turn;
        turn = turn == 2 ? 0 : turn + 1;
        if (ThreadX() == 0) s.counts[turn] = 0;
        if (ThreadX() < kChunk) {
          const SlotAddress slot = AddressOfSlot(w, slots, static_cast<int64_t>(chunk) * kChunk + ThreadX());
          s.addresses[ThreadX()] = slot.at;
          s.seen[ThreadX()] = static_cast<uint8_t>(!slot.seen ? 0 : slot.window ? 2 : 1);
          if (slot.seen) AtomicAdd(&s.counts[now], 1);
        }
        BlockSync();
        if (s.counts[now] == 0) continue;
        const int64_t rest = slots.count - static_cast<int64_t>(chunk) * kChunk;
        const int row_tiles = rest < kChunk ? static_cast<int>(CeilDiv(rest, 16)) : kChunk / 16;

        for (int i = ThreadX(); i < 16 * row_tiles * steps; i += ThreadsX()) {
          const int row = i / steps;
          const int unit = i % steps;
          Bf16* to = s.rows + row * s.stride + unit * 16;
          const int seen = s.seen[row];
          if (seen == 0) {
            reinterpret_cast<Bytes16*>(to)[0] = reinterpret_cast<Bytes16*>(to)[1] = Bytes16{};
          } else if (seen == 2) {
            DecodeUnit(args.window, s.addresses[row], w.window_vectors, unit, to);
          } else {
            DecodeUnit(args.compressed, s.addresses[row], w.compressed_vectors, unit, to);
          }
        }
        BlockSync();
        ComputeScores<kHeadTiles, kChunk>(s.q, s.rows, row_tiles, s.stride, steps, s.scores);
        BlockSync();
        for (int head = GroupX(); head < kHeads; head += ThreadsX() / kGroup) {
          QueryScores<kHeadTiles, kChunk> scores(s.scores, head, args.softmax_scale, s.seen);
          if (kRound && !statistics) {
            const float top = s.final_top[head];
            const float total = s.final_total[head];
            for (float& v : scores.v) v = top == MinusInfinity() ? 0.0f : expf(v - top) / total;
            scores.Store(head, s.high, nullptr);
            if (Lane() == 0) s.kept[head] = s.added[head] = 1.0f;
            continue;
          }
          const float sum = scores.Exponentiate();
          if (!kRound) scores.Store(head, s.high, s.low);
          if (Lane() == 0) {
            const Merge merge = MergeOf(s.top[head], scores.top);
            s.total[head] = Fma(s.total[head], merge.kept, sum * merge.added);
            s.top[head] = merge.top;
            s.kept[head] = merge.kept;
            s.added[head] = merge.added;
          }
        }
        BlockSync();
        if (statistics) continue;
        HADAL_UNROLL
        for (int m = 0; m < kHeadTiles; ++m) {
          const int offset = m * 16 * ProbabilityStride(kChunk);
          const Probabilities<kChunk, !kRound> p(s.high + offset, kRound ? nullptr : s.low + offset, row_tiles);
          HADAL_UNROLL
          for (int j = 0; j < kWaveTiles; ++j) {
            const int tile = WaveX() + kAttentionWaves * j;
            if (tile >= value_tiles) break;
            const Tile::C sum = p.Multiply(s.rows + tile * 16, s.stride);
            HADAL_UNROLL
            for (int i = 0; i < Tile::Sums(); ++i) {
              const int head = m * 16 + Tile::Row(i);
              sums[m][j].v[i] = Fma(sums[m][j].v[i], s.kept[head], sum.v[i] * s.added[head]);
            }
          }
        }
      }

      // The section is complete.
      BlockSync();
      if (whole) {
        if (ThreadX() < kHeads) {
          const int head = ThreadX();
          const bool weighed = !kRound || statistics;
          const Merge merge = MergeOf(s.all_top[head], s.top[head]);
          s.all_total[head] = Fma(s.all_total[head], merge.kept, s.total[head] * merge.added);
          s.all_top[head] = merge.top;
          s.kept[head] = weighed ? merge.kept : 1.0f;
          s.added[head] = weighed ? merge.added : 1.0f;
        }
        BlockSync();
        if (statistics) continue;
        float* merged = w.sums + (static_cast<int64_t>(BlockY()) * BlocksX() + BlockX()) * kHeads * kMostValues;
        HADAL_UNROLL
        for (int m = 0; m < kHeadTiles; ++m) {
          HADAL_UNROLL
          for (int j = 0; j < kWaveTiles; ++j) {
            HADAL_UNROLL
            for (int i = 0; i < Tile::Sums(); ++i) {
              const int head = m * 16 + Tile::Row(i);
              float* at = merged + ((m * kWaveTiles + j) * Tile::Sums() + i) * ThreadsX() + ThreadX();
              const float before = section > first_section ? *at : 0.0f;
              sums[m][j].v[i] = Fma(before, s.kept[head], sums[m][j].v[i] * s.added[head]);
              if (section + 1 < end_section) *at = sums[m][j].v[i];
            }
          }
        }
      } else {
        const int64_t rows = (BlockY() * args.heads + first_head) * kMostSections + section;
        if (ThreadX() < kHeads && first_head + ThreadX() < args.heads && (!kRound || statistics)) {
          w.tops[rows + ThreadX() * kMostSections] = s.top[ThreadX()];
          w.totals[rows + ThreadX() * kMostSections] = s.total[ThreadX()];
        }
        if (statistics) return;
        HADAL_UNROLL
        for (int m = 0; m < kHeadTiles; ++m) {
          HADAL_UNROLL
          for (int j = 0; j < kWaveTiles; ++j) {
            HADAL_UNROLL
            for (int i = 0; i < Tile::Sums(); ++i) {
              const int head = m * 16 + Tile::Row(i);
              const int64_t c = (WaveX() + kAttentionWaves * j) * 16 + Tile::Col(i);
              if (first_head + head >= args.heads || c >= w.value_dim) continue;
              w.sums[(rows + head * kMostSections) * w.value_dim + c] = sums[m][j].v[i];
            }
          }
        }
        return;
      }
    }
  }

  // The result, through shared memory: a pair of values that are turned may lie in two lanes.
  BlockSync();
  if (ThreadX() < kHeads) {
    const int64_t head = first_head + ThreadX();
    const float sink = args.sink == nullptr || head >= args.heads ? MinusInfinity() : args.sink[head];
    s.kept[ThreadX()] = kRound ? 1.0f : Normaliser(s.all_top[ThreadX()], s.all_total[ThreadX()], sink);
  }
  BlockSync();
  HADAL_UNROLL
  for (int m = 0; m < kHeadTiles; ++m) {
    HADAL_UNROLL
    for (int j = 0; j < kWaveTiles; ++j) {
      const int tile = WaveX() + kAttentionWaves * j;
      if (tile >= value_tiles) break;
      HADAL_UNROLL
      for (int i = 0; i < Tile::Sums(); ++i) {
        const int head = m * 16 + Tile::Row(i);
        s.rows[head * s.stride + tile * 16 + Tile::Col(i)] = ToBf16(sums[m][j].v[i] * s.kept[head]);
      }
    }
  }
  BlockSync();
  const int pairs = static_cast<int>(CeilDiv(w.value_dim, 2));
  for (int i = ThreadX(); i < kHeads * pairs; i += ThreadsX()) {
    const int head = i / pairs;
    if (first_head + head >= args.heads) break;
    const Bf16* pair = s.rows + head * s.stride + i % pairs * 2;
    StorePair<Bf16>(w, t, first_head + head, i % pairs * 2, ToFloat(pair[0]), ToFloat(pair[1]));
  }
}

// Merges the sections of a head: block (head, token).
constexpr int kMergeThreads = 128;
HADAL_GLOBAL(kMergeThreads) MergeSectionsKernel(SparseWork w, int chunk, bool rounded) {
  HADAL_SHARED float tops[kMostSections];
  HADAL_SHARED float kept[kMostSections];
  HADAL_SHARED float added[kMostSections];
  const ops::SparseAttentionArgs& args = w.args;
  const int64_t head = BlockX();
  const int64_t t = w.first + BlockY();
  const Slots slots(args, t, chunk);
  const int64_t row = (static_cast<int64_t>(BlockY()) * args.heads + head) * kMostSections;
  if (ThreadX() < slots.sections) tops[ThreadX()] = w.tops[row + ThreadX()];
  BlockSync();
  if (ThreadX() < slots.sections) {
    float top = MinusInfinity();
    for (int i = 0; i < ThreadX(); ++i) top = MergeOf(top, tops[i]).top;
    const Merge merge = MergeOf(top, tops[ThreadX()]);
    kept[ThreadX()] = rounded ? 1.0f : merge.kept;
    added[ThreadX()] = rounded ? 1.0f : merge.added;
  }
  BlockSync();
  float top = MinusInfinity();
  float total = 0;
  for (int i = 0; i < slots.sections; ++i) {
    if (tops[i] == MinusInfinity()) continue;
    total = Fma(total, kept[i], w.totals[row + i] * added[i]);
    top = top > tops[i] ? top : tops[i];
  }
  const float sink = args.sink == nullptr ? MinusInfinity() : args.sink[head];
  const float factor = rounded ? 1.0f : Normaliser(top, total, sink);
  for (int64_t c = 2 * ThreadX(); c < w.value_dim; c += 2 * kMergeThreads) {
    const bool pair = c + 1 < w.value_dim;
    float x = 0;
    float y = 0;
    for (int i = 0; i < slots.sections; ++i) {
      if (tops[i] == MinusInfinity()) continue;
      const float* from = w.sums + (row + i) * w.value_dim + c;
      x = Fma(x, kept[i], from[0] * added[i]);
      if (pair) y = Fma(y, kept[i], from[1] * added[i]);
    }
    StorePair<Bf16>(w, t, head, c, x * factor, y * factor);
  }
}

// fp32: block (head, token).
constexpr int kPlainThreads = 128;
constexpr int kPlainChunk = 64;
HADAL_GLOBAL(kPlainThreads) PlainAttentionKernel(SparseWork w) {
  HADAL_SHARED float p[kPlainChunk];
  HADAL_SHARED RowAddress addresses[kPlainChunk];
  HADAL_SHARED uint8_t seen[kPlainChunk];
  const ops::SparseAttentionArgs& args = w.args;
  const int64_t head = BlockX();
  const int64_t t = w.first + BlockY();
  const int64_t d = args.head_dim;
  const Slots slots(args, t, kPlainChunk);
  auto* q = DynamicShared<float>();
  float* sums = q + d;
  const auto* from = static_cast<const float*>(args.q.data) + t * args.q.stride + head * d;
  for (int64_t c = ThreadX(); c < d; c += ThreadsX()) {
    q[c] = from[c];
    sums[c] = 0;
  }
  float top = MinusInfinity();
  float total = 0;
  for (int chunk = 0; chunk < slots.chunks; ++chunk) {
    BlockSync();
    if (ThreadX() < kPlainChunk) {
      const SlotAddress slot = AddressOfSlot(w, slots, static_cast<int64_t>(chunk) * kPlainChunk + ThreadX());
      addresses[ThreadX()] = slot.at;
      seen[ThreadX()] = static_cast<uint8_t>(!slot.seen ? 0 : slot.window ? 2 : 1);
    }
    BlockSync();
    for (int row = GroupX(); row < kPlainChunk; row += ThreadsX() / kGroup) {
      float sum = 0;
      const ops::PagedRows& pool = seen[row] == 2 ? args.window : args.compressed;
      for (int64_t c = Lane(); seen[row] != 0 && c < d; c += kGroup) {
        sum = Fma(q[c], RowValue(pool, addresses[row], c), sum);
      }
      sum = GroupSum(sum);
      if (Lane() == 0) p[row] = seen[row] != 0 ? sum * args.softmax_scale : MinusInfinity();
    }
    BlockSync();
    float largest = MinusInfinity();
    for (const float v : p) largest = largest > v ? largest : v;
    const Merge merge = MergeOf(top, largest);
    float sum = 0;
    for (const float v : p) sum += largest == MinusInfinity() ? 0.0f : expf(v - largest);
    total = Fma(total, merge.kept, sum * merge.added);
    top = merge.top;
    BlockSync();
    if (ThreadX() < kPlainChunk) p[ThreadX()] = largest == MinusInfinity() ? 0.0f : expf(p[ThreadX()] - largest);
    BlockSync();
    for (int64_t c = ThreadX(); c < w.value_dim; c += ThreadsX()) {
      float value = 0;
      for (int row = 0; row < kPlainChunk; ++row) {
        if (seen[row] == 0) continue;
        value = Fma(p[row], RowValue(seen[row] == 2 ? args.window : args.compressed, addresses[row], c), value);
      }
      sums[c] = Fma(sums[c], merge.kept, value * merge.added);
    }
  }
  const float sink = args.sink == nullptr ? MinusInfinity() : args.sink[head];
  const float factor = Normaliser(top, total, sink);
  BlockSync();
  for (int64_t c = 2 * ThreadX(); c < w.value_dim; c += 2 * kPlainThreads) {
    StorePair<float>(w, t, head, c, sums[c] * factor, c + 1 < w.value_dim ? sums[c + 1] * factor : 0.0f);
  }
}

bool RowsAtVectors(const ops::PagedRows& pool, const RowSizes& sizes) {
  return reinterpret_cast<uintptr_t>(pool.data) % 16 == 0 && pool.block_stride % 16 == 0 && sizes.value_bytes % 16 == 0;
}

struct SparseLaunch {
  Stream stream;
  const AttentionDevice& device;
  const AttentionScratch& scratch;
};

template <int kHeadTiles, int kChunk, bool kRound>
void LaunchPass(const SparseLaunch& launch, const SparseWork& work, int64_t tokens) {
  const size_t bytes = SparseShared<kHeadTiles, kChunk>::Bytes(work.args.head_dim, !kRound);
  const LaunchShape shape = {
      .blocks_x = static_cast<unsigned>(CeilDiv(work.args.heads, 16 * kHeadTiles)),
      .blocks_y = static_cast<unsigned>(tokens),
      .blocks_z = work.pass == SparsePass::kWhole ? 1u : static_cast<unsigned>(kMostSections),
      .threads = static_cast<unsigned>(kAttentionWaves * launch.stream.wave),
      .shared_bytes = bytes,
  };
  Launch<SparseAttentionKernel<kHeadTiles, kChunk, kRound>>(shape, launch.stream, work);
}

template <int kHeadTiles, int kChunk>
void LaunchTokens(const SparseLaunch& launch, SparseWork work, bool sections) {
  const int64_t heads = work.args.heads;
  const int64_t padded = CeilDiv(heads, 16 * kHeadTiles) * 16 * kHeadTiles;
  const int64_t section_sums = heads * kMostSections * (work.value_dim + 2);
  const int64_t room = launch.scratch.sums_size / (sections ? section_sums : padded * kMostValues);
  constexpr int64_t kMostBlocks = 65535;
  for (work.first = 0; work.first < work.args.batch.tokens;) {
    const int64_t tokens = std::min({room, kMostBlocks, work.args.batch.tokens - work.first});
    work.sums = launch.scratch.sums;
    work.tops = work.sums + tokens * heads * kMostSections * work.value_dim;
    work.totals = work.tops + tokens * heads * kMostSections;
    const bool rounded = work.args.round_probabilities;
    if (rounded) {
      work.pass = sections ? SparsePass::kStatistics : SparsePass::kWhole;
      LaunchPass<kHeadTiles, kChunk, true>(launch, work, tokens);
      work.pass = SparsePass::kSections;
      if (sections) LaunchPass<kHeadTiles, kChunk, true>(launch, work, tokens);
    } else {
      work.pass = sections ? SparsePass::kSections : SparsePass::kWhole;
      LaunchPass<kHeadTiles, kChunk, false>(launch, work, tokens);
    }
    if (sections) {
      const LaunchShape shape = {.blocks_x = static_cast<unsigned>(heads),
                                 .blocks_y = static_cast<unsigned>(tokens),
                                 .threads = kMergeThreads};
      Launch<MergeSectionsKernel>(shape, launch.stream, work, kChunk, rounded);
    }
    work.first += tokens;
  }
}

}  // namespace

void AttentionScratch::Carve(const ops::WorkspaceSpec& spec, ops::Numerics numerics, Carver& carver) {
  constexpr int64_t kSumsBudget = int64_t{32} << 20;    // 128 MiB
  constexpr int64_t kScoresBudget = int64_t{64} << 20;  // 256 MiB
  sums_size = 0;
  if (numerics == ops::Numerics::kPublished) {
    const int64_t sections = spec.heads * kMostSections * (std::min(spec.head_dim, kMostValues) + 2);
    const int64_t whole = CeilDiv(spec.heads, 64) * 64 * kMostValues;
    const int64_t token = std::max(sections, whole);
    sums_size = std::max(token, std::min(kSumsBudget, spec.max_tokens * token));
  }
  sums = carver.Take<float>(sums_size);
  score_rows = spec.max_compressed_rows;
  score_tokens = score_rows == 0 ? 0 : std::clamp<int64_t>(kScoresBudget / score_rows, 1, spec.max_tokens);
  scores = carver.Take<float>(score_tokens * score_rows);
}

// The one place that chooses a kernel; all choices give the same bits.
void LaunchSparseAttention(Stream stream, const AttentionDevice& device, const AttentionScratch& scratch,
                           const ops::SparseAttentionArgs& args) {
  SparseWork work;
  work.args = args;
  work.value_dim = args.value_dim > 0 ? args.value_dim : args.head_dim;
  work.window_sizes = SizesOf(args.window);
  work.compressed_sizes = SizesOf(args.compressed);
  work.window_vectors = RowsAtVectors(args.window, work.window_sizes);
  work.compressed_vectors = RowsAtVectors(args.compressed, work.compressed_sizes);
  if (args.q.dtype == DType::kF32) {
    const LaunchShape shape = {.blocks_x = static_cast<unsigned>(args.heads),
                               .blocks_y = static_cast<unsigned>(args.batch.tokens),
                               .threads = kPlainThreads,
                               .shared_bytes = static_cast<size_t>(2 * args.head_dim) * sizeof(float)};
    Launch<PlainAttentionKernel>(shape, stream, work);
    return;
  }
  const SparseLaunch launch = {stream, device, scratch};
  constexpr int kWideHeads = 64;
  const int64_t wide_blocks = args.batch.tokens * CeilDiv(args.heads, kWideHeads);
  // Below a quarter of the device a block a query leaves too much of it idle.
  const bool sections = wide_blocks <= std::max(4, device.multiprocessors / 4);
  if (stream.wave == 64) {
    LaunchTokens<1, 32>(launch, work, sections);  // LDS has 64 KiB
    return;
  }
#if !HADAL_GPU_HIP
  // Rows are decoded once for 64 heads, unless that leaves multiprocessors idle. Every query has some ten sections.
  constexpr int64_t kUsualSections = 10;
  const bool wide = args.heads > 16 && (!sections || wide_blocks * kUsualSections >= device.multiprocessors);
  if (wide) {
    LaunchTokens<4, 64>(launch, work, sections);
  } else {
    LaunchTokens<1, 64>(launch, work, sections);
  }
#endif
}

}  // namespace hadal::gpu::HADAL_GPU_NS
