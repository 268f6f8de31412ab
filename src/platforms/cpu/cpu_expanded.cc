// Attention over latents that are expanded to keys and values of each head (spec deepseek-v32 3.5, MHA form): two
// products of linear.h for each head and block of queries, whose weights are the keys and the transposed values. A few
// heads at a time are expanded, so that memory does not grow with their number.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/status.h"
#include "ops/row_format.h"
#include "platforms/cpu/cpu_ops_impl.h"

namespace hadal::cpu {
namespace {

constexpr int64_t kHeads = 8;     // expanded together
constexpr int64_t kQueries = 64;  // rows of a task: four groups of a tile
constexpr int64_t kStep = 32;     // inputs of a tile: rows of values are padded to it

int64_t RoundUp(int64_t v) { return (v + kStep - 1) / kStep * kStep; }

// Rows [first, first + n) of a weight; for FP8 both are multiples of the blocks that share a scale.
ops::LinearWeight RowsOf(const ops::LinearWeight& w, int64_t first, int64_t n) {
  constexpr int64_t kFp8Block = 128, kFp4Block = 32;
  ops::LinearWeight part = w;
  part.n = n;
  part.data = static_cast<const std::byte*>(w.data) + first * w.row_bytes();
  if (w.scale == nullptr) return part;
  const bool fp8 = w.dtype == DType::kF8E4M3;
  HADAL_CHECK(!fp8 || (first % kFp8Block == 0 && n % kFp8Block == 0));
  const int64_t scales = fp8 ? first / kFp8Block * ((w.k + kFp8Block - 1) / kFp8Block) : first * (w.k / kFp4Block);
  part.scale = static_cast<const std::byte*>(w.scale) + DTypeBytes(w.scale_dtype, scales);
  return part;
}

}  // namespace

size_t CpuOps::ExpandedWorkerBytes(const ops::WorkspaceSpec& spec) {
  if (spec.max_expanded_rows == 0) return 0;
  const int64_t rows = RoundUp(spec.max_expanded_rows);
  return kQueries * (rows + kRowBlock) * sizeof(float) +
         PackedBytes(InputLayout::kF32Rows, kQueries, std::max(rows, spec.expanded_key));
}

void CpuOps::CarveExpanded(const ops::WorkspaceSpec& spec, Carver& carver, ExpandedScratch* to) const {
  const int64_t rows = RoundUp(spec.max_expanded_rows);
  const int64_t element = DTypeBytes(act(), 1);
  to->latents = carver.Take<std::byte>(rows * spec.head_dim * element);
  to->kv = carver.Take<std::byte>(rows * kHeads * (spec.expanded_key + spec.expanded_value) * element);
  to->keys = carver.Take<std::byte>(rows * kHeads * spec.expanded_key * element);
  to->values = carver.Take<std::byte>(rows * kHeads * spec.expanded_value * element);
}

void CpuOps::GatherLatents(const ops::PagedRows& pool, int32_t seq, int64_t rows) {
  const int64_t bytes = DTypeBytes(act(), pool.cols);
  const ops::RowPlaces places(pool);
  constexpr int64_t kTask = 64;
  pool_.ParallelFor((rows + kTask - 1) / kTask, [&](int64_t task, int worker) {
    WorkerScratch& scratch = scratch_.workers[worker];
    for (int64_t j = task * kTask; j < std::min(rows, (task + 1) * kTask); ++j) {
      scratch.places[0] = places.At(seq, j);
      UnpackRows(1, pool.format, pool.cols, pool.tail, scratch);
      std::memcpy(static_cast<std::byte*>(scratch_.expanded.latents) + j * bytes, scratch.pointers[0],
                  static_cast<size_t>(bytes));
    }
  });
}

void CpuOps::ExpandHeads(const ops::ExpandedAttentionArgs& args, int64_t first, int64_t heads, int64_t rows) {
  const int64_t latent = args.kv_b->k, row = args.latent.cols, tail = row - latent;
  const int64_t key = args.q.cols / args.heads, nope = key - tail, value = args.value_dim;
  const int64_t width = nope + value;
  const ops::LinearWeight part = RowsOf(*args.kv_b, first * width, heads * width);
  const int64_t element = DTypeBytes(act(), 1);
  auto* latents = static_cast<std::byte*>(scratch_.expanded.latents);
  auto* kv = static_cast<std::byte*>(scratch_.expanded.kv);
  for (int64_t at = 0; at < rows; at += spec_.max_tokens) {
    const int64_t count = std::min(spec_.max_tokens, rows - at);
    const ops::Tensor x = {latents + at * row * element, act(), count, latent, row};
    const ops::Tensor out = ops::MakeTensor(kv + at * heads * width * element, act(), count, heads * width);
    Linear(x, std::array{ops::LinearTarget{&part, out, args.quant}});
  }
  // Keys of a head [rows, key] with the rotary part that all heads share; values of a head [value, padded rows].
  const int64_t padded = RoundUp(rows);
  const int64_t blocks = padded / kStep;
  pool_.ParallelFor(heads * blocks, [&](int64_t task, int) {
    const int64_t h = task / blocks, begin = task % blocks * kStep;
    const int64_t end = std::min(rows, begin + kStep);
    std::byte* keys = static_cast<std::byte*>(scratch_.expanded.keys) + h * rows * key * element;
    std::byte* values = static_cast<std::byte*>(scratch_.expanded.values) + h * value * padded * element;
    for (int64_t j = begin; j < end; ++j) {
      const std::byte* from = kv + (j * heads + h) * width * element;
      std::memcpy(keys + j * key * element, from, static_cast<size_t>(nope * element));
      std::memcpy(keys + (j * key + nope) * element, latents + (j * row + latent) * element,
                  static_cast<size_t>(tail * element));
    }
    const auto transpose = [&](auto* to, const auto* from) {
      for (int64_t c = 0; c < value; ++c) {
        for (int64_t j = begin; j < end; ++j) to[c * padded + j] = from[(j * heads + h) * width + nope + c];
        for (int64_t j = end; j < begin + kStep; ++j) to[c * padded + j] = 0;
      }
    };
    if (element == 2) {
      transpose(reinterpret_cast<uint16_t*>(values), reinterpret_cast<const uint16_t*>(kv));
    } else {
      transpose(reinterpret_cast<float*>(values), reinterpret_cast<const float*>(kv));
    }
  });
}

// Keys behind a row's position have probability 0 and change no bit of its sum: a row depends on its own position only.
void CpuOps::AttendExpanded(const ops::ExpandedAttentionArgs& args, int64_t head, int64_t in_group, int64_t rows,
                            int64_t first, WorkerScratch& scratch) {
  const int64_t key = args.q.cols / args.heads, value = args.value_dim, padded = RoundUp(rows);
  const int64_t element = DTypeBytes(act(), 1);
  const int64_t count = std::min(kQueries, args.q.rows - first);
  const int64_t seen = args.batch.positions[first + count - 1] + 1;
  const int64_t inputs = RoundUp(seen);
  auto* scores = reinterpret_cast<float*>(scratch.expanded);  // [kQueries, inputs]
  float* block = scores + kQueries * RoundUp(spec_.max_expanded_rows);
  auto* packed = reinterpret_cast<std::byte*>(block + kQueries * kRowBlock);

  ops::LinearWeight keys;
  keys.n = rows;
  keys.k = key;
  keys.dtype = act();
  keys.data = static_cast<std::byte*>(scratch_.expanded.keys) + in_group * rows * key * element;
  InputLayout layout = LayoutFor(amx_, keys, ops::InputQuant::kNone);
  PackedInput input = {layout, count, key, GroupSize(layout, count), packed};
  for (int64_t i = 0; i < count; i += kPackRows) {
    PackGroup(args.q, nullptr, first + i, std::min(kPackRows, count - i), head * key, key, ops::InputQuant::kNone,
              layout, input.group, packed + PackedOffset(layout, count, key, i), scratch);
  }
  for (int64_t n = 0; n < seen; n += kRowBlock) {
    const int64_t width = std::min(kRowBlock, seen - n);
    BackendFor(layout).block(input, keys, n, n + width, {}, block, scratch.linear);
    for (int64_t m = 0; m < count; ++m) std::copy_n(block + m * width, width, scores + m * inputs + n);
  }
  const bool round = args.round_probabilities && published();
  for (int64_t m = 0; m < count; ++m) {
    float* row = scores + m * inputs;
    const int64_t visible = args.batch.positions[first + m] + 1;
    kernels_.softmax(row, visible, args.softmax_scale, round ? DType::kBF16 : DType::kF32);
    std::fill(row + visible, row + inputs, 0.0f);
  }

  ops::LinearWeight values;
  values.n = value;
  values.k = padded;
  values.dtype = act();
  values.data = static_cast<std::byte*>(scratch_.expanded.values) + in_group * value * padded * element;
  // Tiles take bf16.
  layout = round ? LayoutFor(amx_, values, ops::InputQuant::kNone) : InputLayout::kF32Rows;
  input = {layout, count, inputs, GroupSize(layout, count), packed};
  for (int64_t i = 0; i < count; i += kPackRows) {
    std::array<const float*, kPackRows> lines;
    const int64_t some = std::min(kPackRows, count - i);
    for (int64_t m = 0; m < some; ++m) lines[m] = scores + (i + m) * inputs;
    BackendFor(layout).pack_group(lines.data(), some, inputs, input.group, layout,
                                  packed + PackedOffset(layout, count, inputs, i));
  }
  for (int64_t n = 0; n < value; n += kRowBlock) {
    const int64_t width = std::min(kRowBlock, value - n);
    BackendFor(layout).block(input, values, n, n + width, {}, block, scratch.linear);
    StoreBlock(input, width, block, args.out, first, head * value + n);
  }
}

void CpuOps::ExpandedAttention(const ops::ExpandedAttentionArgs& args) {
  const int64_t tokens = args.q.rows;
  if (tokens == 0) return;
  const int64_t rows = args.batch.positions[tokens - 1] + 1;
  HADAL_CHECK(rows <= spec_.max_expanded_rows && args.latent.cols <= spec_.head_dim);
  HADAL_CHECK(args.q.cols <= args.heads * spec_.expanded_key && args.value_dim <= spec_.expanded_value);
  GatherLatents(args.latent, args.batch.seqs[0], rows);
  const int64_t blocks = (tokens + kQueries - 1) / kQueries;
  for (int64_t first = 0; first < args.heads; first += kHeads) {
    const int64_t heads = std::min(kHeads, args.heads - first);
    ExpandHeads(args, first, heads, rows);
    pool_.ParallelFor(heads * blocks, [&](int64_t task, int worker) {
      const int64_t h = task / blocks;
      AttendExpanded(args, first + h, h, rows, task % blocks * kQueries, scratch_.workers[worker]);
    });
  }
}

}  // namespace hadal::cpu
