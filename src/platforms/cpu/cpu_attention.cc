// Attention-side operators of the CPU platform: RoPE, cache writes, compressors, indexer, sparse attention.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float_formats.h"
#include "base/status.h"
#include "ops/row_format.h"
#include "platforms/cpu/attention_amx.h"
#include "platforms/cpu/cpu_ops_impl.h"

namespace hadal::cpu {
namespace {

std::byte* RowAt(const ops::Tensor& t, int64_t row, int64_t column = 0) {
  return static_cast<std::byte*>(t.data) + (row * t.stride + column) * DTypeBytes(t.dtype, 1);
}

float FloatAt(const std::byte* at) {
  float v = 0;
  std::memcpy(&v, at, sizeof(v));
  return v;
}

// The k largest of n scores in ascending index order; equal scores keep the lower index. NaN counts as -infinity, -0 as
// 0. `work` holds n floats.
void SelectTopk(const float* scores, int64_t n, int64_t k, float* work, int32_t* out) {
  const auto clean = [](float v) { return std::isnan(v) ? -std::numeric_limits<float>::infinity() : v + 0.0f; };
  for (int64_t i = 0; i < n; ++i) work[i] = clean(scores[i]);
  std::nth_element(work, work + k - 1, work + n, std::greater<>());
  const float threshold = work[k - 1];
  int64_t above = 0;
  for (int64_t i = 0; i < k; ++i) above += work[i] > threshold ? 1 : 0;
  int64_t ties = k - above;
  int64_t count = 0;
  for (int64_t i = 0; i < n && count < k; ++i) {
    const float v = clean(scores[i]);
    if (v > threshold || (v == threshold && ties-- > 0)) out[count++] = static_cast<int32_t>(i);
  }
}

}  // namespace

void CpuOps::ComputeRopeAngles(const ops::BatchRows& batch, std::span<const float> freqs, float* cos, float* sin) {
  const auto half = static_cast<int64_t>(freqs.size());
  pool_.ParallelFor((batch.tokens + 15) / 16, [&](int64_t task, int) {
    for (int64_t t = task * 16; t < std::min(batch.tokens, task * 16 + 16); ++t) {
      for (int64_t j = 0; j < half; ++j) {
        const float angle = static_cast<float>(batch.positions[t]) * freqs[j];
        cos[t * half + j] = std::cos(angle);
        sin[t * half + j] = std::sin(angle);
      }
    }
  });
}

void CpuOps::QNormRope(const ops::QNormRopeArgs& args) {
  const int64_t half = args.rope.half;
  pool_.ParallelFor(args.q.rows, [&](int64_t t, int worker) {
    float* v = scratch_.workers[worker].vectors;
    for (int64_t h = 0; h < args.heads; ++h) {
      std::byte* head = RowAt(args.q, t, h * args.head_dim);
      kernels_.load(head, args.q.dtype, args.head_dim, v);
      if (args.normalize) {
        // As the published inference code does it, in elementwise operations of the activation dtype
        // (docs/numerics.md).
        const DType dtype = args.q.dtype;
        float mean = kernels_.sum_rounded_squares(v, args.head_dim, dtype) / static_cast<float>(args.head_dim);
        kernels_.round(&mean, 1, dtype);
        mean += args.rms_eps;
        kernels_.round(&mean, 1, dtype);
        float factor = 1.0f / std::sqrt(mean);
        kernels_.round(&factor, 1, dtype);
        kernels_.scale_weight(v, args.head_dim, factor, {}, v);
        kernels_.round(v, args.head_dim, dtype);
      }
      kernels_.rope(v + args.head_dim - 2 * half, args.rope.cos + t * half, args.rope.sin + t * half, half, false);
      kernels_.store(v, args.head_dim, head, args.q.dtype);
    }
  });
}

void CpuOps::KvNormRopeStore(const ops::KvNormRopeStoreArgs& args) {
  const int64_t d = args.kv.cols;
  const int64_t half = args.rope.half;
  const int64_t plain = d - 2 * half;
  const int64_t normed = args.norm.size;
  pool_.ParallelFor(args.kv.rows, [&](int64_t t, int worker) {
    float* v = scratch_.workers[worker].vectors;
    kernels_.load(RowAt(args.kv, t), args.kv.dtype, d, v);
    const float mean = kernels_.sum_squares(v, normed) / static_cast<float>(normed);
    kernels_.scale_weight(v, normed, 1.0f / std::sqrt(mean + args.rms_eps), args.norm, v);
    kernels_.round(v, normed, args.kv.dtype);
    kernels_.rope(v + plain, args.rope.cos + t * half, args.rope.sin + t * half, half, false);
    StoreKv(args.cache, args.batch.seqs[t], args.batch.positions[t], v, 2 * half, args.simulate);
  });
}

void CpuOps::StoreKv(const ops::PagedRows& pool, int32_t seq, int64_t position, float* v, int64_t tail,
                     bool simulate) const {
  const ops::RowPlace place = ops::RowPlaces(pool).At(seq, position);
  const int64_t quantized = pool.cols - tail;
  if (pool.format == ops::RowFormat::kPlain) {
    if (published() && simulate) kernels_.fake_e4m3(v, quantized, ops::kFp8RowGroup);
    kernels_.store(v, pool.cols, place.values, pool.dtype);
    return;
  }
  if (pool.format == ops::RowFormat::kFp8DsMla656) {
    HADAL_CHECK(published() && pool.tail == tail);
    for (int64_t i = 0; i < quantized; i += ops::kFp8WideGroup) {
      const int64_t count = std::min(ops::kFp8WideGroup, quantized - i);
      const float scale = ops::WideScale(kernels_.max_magnitude(v + i, count));
      std::memcpy(place.scales + i / ops::kFp8WideGroup * sizeof(float), &scale, sizeof(float));
      kernels_.encode_e4m3_scaled(v + i, count, scale, place.values + i);
    }
    kernels_.store(v + quantized, tail, ops::WideTail(place, pool.cols, tail), DType::kBF16);
    return;
  }
  HADAL_CHECK(published() && pool.format == ops::RowFormat::kFp8DsMla && pool.tail == tail);
  std::memset(place.scales, 0, ops::RowScaleBytes(pool.format, pool.cols, tail));
  kernels_.encode_e4m3(v, quantized, place.values, place.scales);
  kernels_.store(v + quantized, tail, place.values + quantized, DType::kBF16);
}

void CpuOps::StoreKey(const ops::PagedRows& pool, int32_t seq, int64_t position, float* v) const {
  const ops::RowPlace place = ops::RowPlaces(pool).At(seq, position);
  if (pool.format == ops::RowFormat::kPlain) {
    if (published()) kernels_.fake_e2m1(v, pool.cols, ops::kFp4RowGroup);
    kernels_.store(v, pool.cols, place.values, pool.dtype);
    return;
  }
  HADAL_CHECK(published() && pool.format == ops::RowFormat::kMxfp4);
  kernels_.encode_e2m1(v, pool.cols, place.values, place.scales);
}

void CpuOps::RopeTail(const ops::RopeTailArgs& args) {
  const int64_t half = args.rope.half;
  pool_.ParallelFor(args.q.rows, [&](int64_t t, int worker) {
    float* v = scratch_.workers[worker].vectors;
    for (int64_t h = 0; h < args.heads; ++h) {
      kernels_.load(RowAt(args.q, t, (h + 1) * args.head_dim - 2 * half), args.q.dtype, 2 * half, v);
      kernels_.rope(v, args.rope.cos + t * half, args.rope.sin + t * half, half, false);
      kernels_.store(v, 2 * half, RowAt(args.out, t, (h + 1) * args.out_dim - 2 * half), args.out.dtype);
    }
  });
}

void CpuOps::IndexerKeyStore(const ops::IndexerKeyStoreArgs& args) {
  const int64_t d = args.k.cols;
  const int64_t half = args.rope.half;
  pool_.ParallelFor(args.k.rows, [&](int64_t t, int worker) {
    float* v = scratch_.workers[worker].vectors;
    float* parameters = v + d;  // weight, then bias
    kernels_.load(RowAt(args.k, t), args.k.dtype, d, v);
    kernels_.load(args.norm.data, args.norm.dtype, d, parameters);
    kernels_.load(args.bias.data, args.bias.dtype, d, parameters + d);
    float mean = 0;
    for (int64_t i = 0; i < d; ++i) mean += v[i];
    mean /= static_cast<float>(d);
    for (int64_t i = 0; i < d; ++i) v[i] -= mean;
    const float variance = kernels_.sum_squares(v, d) / static_cast<float>(d);
    const float inverse = 1.0f / std::sqrt(variance + args.eps);
    for (int64_t i = 0; i < d; ++i) v[i] = v[i] * inverse * parameters[i] + parameters[d + i];
    kernels_.round(v, d, args.k.dtype);
    RotateHalves(v, args.rope.cos + t * half, args.rope.sin + t * half, half);
    kernels_.round(v, 2 * half, args.k.dtype);
    kernels_.hadamard(v, d);
    kernels_.round(v, d, args.k.dtype);
    const ops::RowPlace place = ops::RowPlaces(args.keys).At(args.batch.seqs[t], args.batch.positions[t]);
    if (args.keys.format == ops::RowFormat::kPlain) {
      if (published()) kernels_.fake_e4m3(v, d, d);
      kernels_.store(v, d, place.values, args.keys.dtype);
      return;
    }
    HADAL_CHECK(published() && args.keys.format == ops::RowFormat::kFp8Key);
    const float scale = E4M3BlockScale(kernels_.max_magnitude(v, d));
    std::memcpy(place.scales, &scale, sizeof(scale));
    kernels_.encode_e4m3_scaled(v, d, scale, place.values);
  });
}

void CpuOps::Compress(const ops::CompressArgs& args) {
  const int64_t width = args.width;
  const bool overlap = args.ratio == 4;
  const int64_t cols = overlap ? 2 * width : width;
  // All rows of the step are in the state before any window is pooled: a window may span the whole step.
  const ops::RowPlaces states(args.state);
  const auto state = [&](int32_t seq, int64_t position) {
    return reinterpret_cast<float*>(states.At(seq, position).values);
  };
  pool_.ParallelFor(args.kv.rows, [&](int64_t t, int) {
    const int32_t position = args.batch.positions[t];
    float* row = state(args.batch.seqs[t], position);
    std::memcpy(row, RowAt(args.kv, t), cols * sizeof(float));
    const auto* gate = reinterpret_cast<const float*>(RowAt(args.gate, t));
    const float* ape = args.ape + position % args.ratio * cols;
    for (int64_t c = 0; c < cols; ++c) row[cols + c] = gate[c] + ape[c];
  });

  constexpr int64_t kMaxSlots = 128;
  HADAL_CHECK(args.ratio <= kMaxSlots);
  const auto half = static_cast<int64_t>(args.rope_freqs.size());
  pool_.ParallelFor(args.kv.rows, [&](int64_t t, int worker) {
    const int32_t position = args.batch.positions[t];
    if ((position + 1) % args.ratio != 0) return;
    const int32_t seq = args.batch.seqs[t];
    const int64_t window = position / args.ratio;
    const int64_t start = window * args.ratio;
    std::array<const float*, kMaxSlots + 4> kv;
    std::array<const float*, kMaxSlots + 4> gate;
    int64_t slots = 0;
    if (overlap) {
      // Series A of the previous window; the first window has none.
      for (int64_t p = start - args.ratio; p < start; ++p, ++slots) {
        const float* row = p < 0 ? nullptr : state(seq, p);
        kv[slots] = row;
        gate[slots] = row == nullptr ? nullptr : row + cols;
      }
    }
    const int64_t series = overlap ? width : 0;  // series B, or the only one
    for (int64_t p = start; p <= position; ++p, ++slots) {
      const float* row = state(seq, p);
      kv[slots] = row + series;
      gate[slots] = row + cols + series;
    }
    float* v = scratch_.workers[worker].vectors;
    kernels_.pool(kv.data(), gate.data(), slots, width, v);
    kernels_.round(v, width, args.output.dtype);
    const float mean = kernels_.sum_squares(v, width) / static_cast<float>(width);
    kernels_.scale_weight(v, width, 1.0f / std::sqrt(mean + args.rms_eps), args.norm, v);
    kernels_.round(v, width, args.output.dtype);
    std::array<float, 128> cos;
    std::array<float, 128> sin;
    for (int64_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(start) * args.rope_freqs[j];
      cos[j] = std::cos(angle);
      sin[j] = std::sin(angle);
    }
    kernels_.rope(v + width - 2 * half, cos.data(), sin.data(), half, false);
    kernels_.round(v, width, args.output.dtype);
    if (args.indexer_keys) {
      kernels_.hadamard(v, width);
      kernels_.round(v, width, args.output.dtype);
      StoreKey(args.output, seq, window, v);
    } else {
      StoreKv(args.output, seq, window, v, 2 * half, true);
    }
  });
}

void CpuOps::IndexerQuery(const ops::IndexerQueryArgs& args) {
  const int64_t half = args.rope.half;
  pool_.ParallelFor(args.q.rows, [&](int64_t t, int worker) {
    float* v = scratch_.workers[worker].vectors;
    for (int64_t h = 0; h < args.heads; ++h) {
      std::byte* head = RowAt(args.q, t, h * args.head_dim);
      kernels_.load(head, args.q.dtype, args.head_dim, v);
      if (args.style == ops::IndexerStyle::kV32) {
        RotateHalves(v, args.rope.cos + t * half, args.rope.sin + t * half, half);
        kernels_.round(v, 2 * half, args.q.dtype);
        kernels_.hadamard(v, args.head_dim);
        kernels_.round(v, args.head_dim, args.q.dtype);
        if (published()) kernels_.fake_e4m3(v, args.head_dim, args.head_dim);
        kernels_.store(v, args.head_dim, head, args.q.dtype);
        continue;
      }
      kernels_.rope(v + args.head_dim - 2 * half, args.rope.cos + t * half, args.rope.sin + t * half, half, false);
      kernels_.round(v, args.head_dim, args.q.dtype);
      kernels_.hadamard(v, args.head_dim);
      kernels_.round(v, args.head_dim, args.q.dtype);
      if (published()) kernels_.fake_e2m1(v, args.head_dim, 32);
      kernels_.store(v, args.head_dim, head, args.q.dtype);
    }
  });
}

void CpuOps::IndexerTopk(const ops::IndexerTopkArgs& args) {
  const int64_t dim = args.head_dim;
  const int64_t padded = (args.heads + 15) / 16 * 16;
  const float head_scale =
      1.0f / std::sqrt(static_cast<float>(dim)) * (1.0f / std::sqrt(static_cast<float>(args.heads)));
  const ops::RowPlaces places(args.keys);
  pool_.ParallelFor(args.q.rows, [&](int64_t t, int worker) {
    WorkerScratch& scratch = scratch_.workers[worker];
    const int32_t seq = args.batch.seqs[t];
    const int64_t visible = (args.batch.positions[t] + 1) / args.ratio;
    int32_t* out = args.out + t * args.top_k;
    std::fill(out, out + args.top_k, -1);
    if (visible <= args.top_k) {
      for (int64_t j = 0; j < visible; ++j) out[j] = static_cast<int32_t>(j);
      if (args.scores == nullptr) return;
    }
    float* qt = scratch.vectors;  // [dim][padded], then the head weights
    float* weight = qt + dim * padded;
    std::fill(qt, weight + padded, 0.0f);
    float* row = scratch.rows;
    kernels_.load(RowAt(args.weights, t), args.weights.dtype, args.heads, row);
    for (int64_t h = 0; h < args.heads; ++h) weight[h] = row[h] * head_scale;
    kernels_.round(weight, padded, args.weights.dtype);
    kernels_.load(RowAt(args.q, t), args.q.dtype, args.heads * dim, row);
    for (int64_t h = 0; h < args.heads; ++h) {
      for (int64_t i = 0; i < dim; ++i) qt[i * padded + h] = row[h * dim + i];
    }
    float* scores = scratch.scores;
    auto* keys = reinterpret_cast<float*>(scratch.attention);
    for (int64_t i = 0; i < kIndexKeys; ++i) scratch.pointers[i] = keys + i * dim;
    for (int64_t j = 0; j < visible; j += kIndexKeys) {
      const int64_t count = std::min(kIndexKeys, visible - j);
      for (int64_t i = 0; i < count; ++i) {
        const ops::RowPlace place = places.At(seq, j + i);
        if (place.scales == nullptr) {
          kernels_.load(place.values, args.keys.dtype, dim, keys + i * dim);
        } else if (args.keys.format == ops::RowFormat::kFp8Key) {
          kernels_.decode_e4m3_scaled(place.values, FloatAt(place.scales), dim, keys + i * dim, DType::kF32);
        } else {
          kernels_.decode_e2m1(place.values, place.scales, dim, keys + i * dim);
        }
      }
      const bool rounded = published() && args.style == ops::IndexerStyle::kV4;
      kernels_.index_scores(qt, weight, padded, dim, scratch.pointers, DType::kF32, count, rounded, scores + j);
    }
    if (args.scores != nullptr) std::copy(scores, scores + visible, args.scores + t * args.scores_stride);
    if (visible > args.top_k) SelectTopk(scores, visible, args.top_k, scratch.selection, out);
  });
}

int64_t CpuOps::VisibleRows(const ops::SparseAttentionArgs& args, int64_t t, ops::RowPlace* rows) {
  const int32_t seq = args.batch.seqs[t];
  int64_t n = 0;
  if (!args.compressed.empty()) {
    const ops::RowPlaces places(args.compressed);
    const int64_t exist = (args.batch.positions[t] + 1) / args.ratio;
    if (args.topk == nullptr) {
      for (int64_t j = 0; j < exist; ++j) rows[n++] = places.At(seq, j);
    } else {
      const int32_t* chosen = args.topk + t * args.topk_stride;
      for (int64_t i = 0; i < args.topk_stride; ++i) {
        if (chosen[i] >= 0 && chosen[i] < exist) rows[n++] = places.At(seq, chosen[i]);
      }
    }
  }
  if (args.window.empty()) return n;
  const ops::RowPlaces places(args.window);
  for (int64_t p = args.window_begin[t]; p < args.window_end[t]; ++p) rows[n++] = places.At(seq, p);
  return n;
}

void CpuOps::UnpackRows(int64_t n, ops::RowFormat format, int64_t dim, int64_t tail, WorkerScratch& scratch) const {
  for (int64_t j = 0; j < n; ++j) {
    const ops::RowPlace& place = scratch.places[j];
    scratch.pointers[j] = place.values;
    if (place.scales == nullptr) continue;
    uint16_t* row = scratch.unpacked + j * dim;
    if (format == ops::RowFormat::kFp8DsMla656) {
      for (int64_t i = 0; i < dim - tail; i += ops::kFp8WideGroup) {
        const float scale = FloatAt(place.scales + i / ops::kFp8WideGroup * sizeof(float));
        kernels_.decode_e4m3_scaled(place.values + i, scale, std::min(ops::kFp8WideGroup, dim - tail - i), row + i,
                                    DType::kBF16);
      }
      std::memcpy(row + dim - tail, ops::WideTail(place, dim, tail), tail * sizeof(uint16_t));
      scratch.pointers[j] = row;
      continue;
    }
    kernels_.decode_e4m3(place.values, place.scales, dim - tail, row);
    std::memcpy(row + dim - tail, place.values + dim - tail, tail * sizeof(uint16_t));
    scratch.pointers[j] = row;
  }
}

void CpuOps::SparseAttention(const ops::SparseAttentionArgs& args) {
  const int64_t tokens = args.q.rows;
  if (tokens == 0) return;
  const int64_t dim = args.head_dim;
  const int64_t value_dim = args.value_dim > 0 ? args.value_dim : dim;
  const int64_t half = args.rope.half;
  const DType row_dtype = args.window.empty() ? args.compressed.dtype : args.window.dtype;
  const bool tiles =
      amx_.tiles && dim % 64 == 0 && value_dim % 64 == 0 && args.q.dtype == DType::kBF16 && row_dtype == DType::kBF16;
  const ops::PagedRows& packed = args.window.format == ops::RowFormat::kPlain ? args.compressed : args.window;
  const int64_t tail = packed.tail;
  const float* sink = args.sink != nullptr ? args.sink : no_sink_.data();
  HADAL_CHECK(args.compressed.format == ops::RowFormat::kPlain || args.compressed.tail == tail);
  // All heads of a task share the gathered or unpacked rows. The tokens are split by heads only as far as all threads
  // need to be occupied. A head's result does not depend on its neighbours.
  constexpr int64_t kTogether = 8;  // heads of the row kernel
  const int64_t least = tiles ? 32 : kTogether;
  const int64_t wanted = (2 * pool_.threads() + tokens - 1) / tokens;
  const int64_t heads_per_task = (args.heads + wanted * least - 1) / (wanted * least) * least;
  const int64_t parts = (args.heads + heads_per_task - 1) / heads_per_task;
  pool_.ParallelFor(tokens * parts, [&](int64_t task, int worker) {
    WorkerScratch& scratch = scratch_.workers[worker];
    const int64_t t = task / parts;
    const int64_t first = task % parts * heads_per_task;
    const int64_t heads = std::min(heads_per_task, args.heads - first);
    const int64_t n = VisibleRows(args, t, scratch.places);
    float* out = scratch.rows;
    if (tiles) {
      if (packed.format == ops::RowFormat::kFp8DsMla656) {
        UnpackRows(n, packed.format, dim, tail, scratch);
        for (int64_t j = 0; j < n; ++j) {
          scratch.places[j] = {reinterpret_cast<std::byte*>(const_cast<void*>(scratch.pointers[j])), nullptr};
        }
      }
      AttendAmx(reinterpret_cast<const uint16_t*>(RowAt(args.q, t, first * dim)), heads, dim, value_dim, scratch.places,
                tail, n, args.softmax_scale, sink + first, args.round_probabilities, scratch.attention, out);
    } else {
      UnpackRows(n, packed.format, dim, tail, scratch);
      float* q = scratch.vectors;
      for (int64_t h = 0; h < heads; h += kTogether) {
        const int64_t count = std::min(kTogether, heads - h);
        kernels_.load(RowAt(args.q, t, (first + h) * dim), args.q.dtype, count * dim, q);
        kernels_.attend(q, count, dim, value_dim, scratch.pointers, row_dtype, n, args.softmax_scale, sink + first + h,
                        args.round_probabilities, scratch.scores, out + h * value_dim);
      }
    }
    kernels_.round(out, heads * value_dim, args.out.dtype);
    for (int64_t h = 0; half > 0 && h < heads; ++h) {
      kernels_.rope(out + (h + 1) * value_dim - 2 * half, args.rope.cos + t * half, args.rope.sin + t * half, half,
                    true);
    }
    kernels_.store(out, heads * value_dim, RowAt(args.out, t, first * value_dim), args.out.dtype);
  });
}

}  // namespace hadal::cpu
