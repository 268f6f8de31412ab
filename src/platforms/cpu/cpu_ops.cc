#include "platforms/cpu/cpu_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/float_formats.h"
#include "base/status.h"
#include "platforms/cpu/attention_amx.h"
#include "platforms/cpu/cpu_ops_impl.h"
#include "platforms/cpu/vision_amx.h"

namespace hadal::cpu {
namespace {

// Rows that HcPre and HcHead handle together: enough to reuse the projection from L2, few enough to keep the fp32 rows
// there (8 x 16384 fp32 = 512 KiB).
constexpr int64_t kHcRows = 8;
// Up to this many rows the projection is split over threads instead.
constexpr int64_t kHcSplitRows = 4;
// Rows that any product may have, however few a step has: those of HcPre, and the queries of ExpandedAttention.
constexpr int64_t kLeastLinearRows = 64;
constexpr int64_t kMaxMixes = 96;  // (2 + hc) * hc for hc <= 8, rounded up

float Sigmoid(float v) { return 1.0f / (1.0f + std::exp(-v)); }

const std::byte* RowAt(const ops::Tensor& t, int64_t row) {
  return static_cast<const std::byte*>(t.data) + row * t.stride * DTypeBytes(t.dtype, 1);
}
std::byte* MutableRowAt(const ops::Tensor& t, int64_t row) {
  return static_cast<std::byte*>(t.data) + row * t.stride * DTypeBytes(t.dtype, 1);
}

// c: hc x hc logits in, doubly stochastic out (spec deepseek-v4-text 3.3).
void Sinkhorn(float* c, int64_t hc, int iterations, float eps) {
  for (int64_t j = 0; j < hc; ++j) {
    float* row = c + j * hc;
    float peak = row[0];
    for (int64_t k = 1; k < hc; ++k) peak = std::max(peak, row[k]);
    float sum = 0;
    for (int64_t k = 0; k < hc; ++k) sum += row[k] = std::exp(row[k] - peak);
    for (int64_t k = 0; k < hc; ++k) row[k] = row[k] / sum + eps;
  }
  const auto columns = [&] {
    for (int64_t k = 0; k < hc; ++k) {
      float sum = eps;
      for (int64_t j = 0; j < hc; ++j) sum += c[j * hc + k];
      for (int64_t j = 0; j < hc; ++j) c[j * hc + k] /= sum;
    }
  };
  columns();
  for (int i = 1; i < iterations; ++i) {
    for (int64_t j = 0; j < hc; ++j) {
      float sum = eps;
      for (int64_t k = 0; k < hc; ++k) sum += c[j * hc + k];
      for (int64_t k = 0; k < hc; ++k) c[j * hc + k] /= sum;
    }
    columns();
  }
}

}  // namespace

CpuOps::CpuOps(const CpuOptions& options, int threads)
    : options_(options),
      pool_(threads),
      kernels_(RowKernelsFor(options.isa)),
      simd_(SimdLinear(options.isa)),
      amx_(simd_) {
  const bool tiles = published() && (options.isa == Isa::kAuto || options.isa == Isa::kAmx);
  if (tiles && AmxLinear() != nullptr) amx_ = *AmxLinear();
}

size_t CpuOps::Carve(const ops::WorkspaceSpec& spec, std::byte* base, Scratch* to) const {
  Carver carver(base);
  to->workers.resize(static_cast<size_t>(pool_.threads()));
  const int64_t t = spec.max_tokens;
  const int64_t streams = spec.hc_mult * spec.hidden;
  const int64_t attended = std::max<int64_t>(spec.max_attended_rows, 1);
  const int64_t scored = std::max<int64_t>(spec.max_compressed_rows, 1);
  const int64_t row =
      std::max({spec.max_linear_k, spec.moe_intermediate, spec.dense_intermediate, spec.heads * spec.head_dim,
                spec.index_heads * spec.index_head_dim, 2 * spec.experts, spec.expanded_key, int64_t{64}});
  const int64_t groups = (t + 15) / 16;
  for (WorkerScratch& worker : to->workers) {
    worker.rows = carver.Take<float>(std::max(kPackRows * row, kHcRows * streams));
    worker.quantized = carver.Take<float>(kHcRows * (streams + 16));
    worker.block = carver.Take<float>(2 * groups * 16 * kRowBlock);
    worker.scores = carver.Take<float>(std::max({8 * attended, scored, kAttendQueries * spec.vision_rows}));
    worker.vectors = carver.Take<float>(
        2 * std::max({8 * spec.head_dim, spec.index_head_dim * ((spec.index_heads + 15) / 16 * 16 + 16), spec.hidden,
                      spec.moe_intermediate, int64_t{1024}}));
    worker.selection = carver.Take<float>(scored);
    worker.places = carver.Take<ops::RowPlace>(attended);
    worker.pointers = carver.Take<const void*>(std::max(attended, kIndexKeys));
    size_t attention = kIndexKeys * spec.index_head_dim * sizeof(float);
    if (published()) worker.unpacked = carver.Take<uint16_t>(attended * spec.head_dim);
    if (amx_.tiles) {
      attention = std::max({attention, AttendAmxScratch(attended, spec.heads, spec.head_dim),
                            AttendAllAmxScratch(spec.vision_rows, kMaxVisionHead)});
    }
    worker.attention = carver.Take<std::byte>(static_cast<int64_t>(attention));
    worker.linear = carver.Take<std::byte>(LinearScratchBytes(std::max<int64_t>(t, kLeastLinearRows)));
    worker.expanded = carver.Take<std::byte>(static_cast<int64_t>(ExpandedWorkerBytes(spec)));
  }
  for (int i = 0; i < Scratch::kPackVariants; ++i) {
    to->packed[i] = carver.Take<std::byte>(PackedBytes(static_cast<InputLayout>(i / 2), t, spec.max_linear_k));
  }
  // The groups' columns together are at most heads * head_dim; up to 16 groups each round up.
  to->packed_groups =
      carver.Take<std::byte>(PackedBytes(InputLayout::kF32Rows, t, spec.heads * spec.head_dim) + 64 * 1024);
  to->hc_rows = carver.Take<float>(kHcSplitRows * (streams + 16));
  to->hc_mixes = carver.Take<float>(kHcSplitRows * kMaxMixes);
  to->hc_squares = carver.Take<float>(kHcSplitRows);

  if (spec.max_expanded_rows > 0) CarveExpanded(spec, carver, &to->expanded);
  const int64_t k = spec.experts_per_token;
  const int64_t routed = t * k;
  const int64_t slots = routed + t;
  const int64_t element = DTypeBytes(act(), 1);
  to->moe.slot_row = carver.Take<int32_t>(slots);
  to->moe.slot_weight = carver.Take<float>(slots);
  to->moe.row_slots = carver.Take<int32_t>(routed);
  to->moe.row_fill = carver.Take<int32_t>(t);
  to->moe.expert_begin = carver.Take<int64_t>(spec.experts + 2);
  to->moe.expert_packed = carver.Take<int64_t>(spec.experts + 2);
  to->moe.hidden =
      carver.Take<std::byte>(std::max(slots * spec.moe_intermediate, t * spec.dense_intermediate) * element);
  to->moe.out = carver.Take<std::byte>(slots * spec.hidden * element);
  // Every expert's rows may be padded to a group of 16.
  const int64_t packed_rows = routed + 15 * std::min(spec.experts, routed) + t + 15;
  // Weights of any scales take fp32 rows where there are tiles, too (LayoutFor).
  const InputLayout widest = amx_.tiles && !spec.any_scales ? InputLayout::kTiles : InputLayout::kF32Rows;
  const auto packed_bytes = [&](int64_t rows, int64_t width) {
    return std::max(PackedBytes(widest, rows, width), amx_.tiles ? PackedBytes(InputLayout::kTiles, rows, width) : 0);
  };
  to->moe.packed_in = carver.Take<std::byte>(packed_bytes(packed_rows, spec.hidden) + 64 * (spec.experts + 1));
  to->moe.packed_hidden = carver.Take<std::byte>(
      std::max(packed_bytes(packed_rows, spec.moe_intermediate), packed_bytes(t + 15, spec.dense_intermediate)) +
      64 * (spec.experts + 1));
  return carver.used();
}

size_t CpuOps::WorkspaceBytes(const ops::WorkspaceSpec& spec) const {
  Scratch counted;
  return Carve(spec, nullptr, &counted);
}

absl::Status CpuOps::Reserve(const ops::WorkspaceSpec& spec) {
  HADAL_CHECK(spec.hc_mult <= 8);
  const size_t bytes = WorkspaceBytes(spec);
  if (bytes > workspace_.size()) {
    HADAL_ASSIGN_OR_RETURN(workspace_, MemoryRegion::Map(bytes, "scratch"));
  }
  Carve(spec, workspace_.data(), &scratch_);
  constexpr float kNoSink = -1e30f;
  no_sink_.assign(static_cast<size_t>(spec.heads), kNoSink);
  spec_ = spec;
  return absl::OkStatus();
}

void CpuOps::Embed(const ops::BatchRows& batch, const ops::LinearWeight& table, int64_t hc, ops::Tensor streams) {
  const int64_t d = table.k;
  const int64_t element = DTypeBytes(streams.dtype, 1);
  const int64_t source_element = DTypeBytes(table.dtype, 1);
  for (int64_t t = 0; t < batch.tokens; ++t) {
    std::byte* dst = MutableRowAt(streams, t);
    const auto* src = static_cast<const std::byte*>(table.data) + batch.ids[t] * d * source_element;
    if (table.dtype == streams.dtype) {
      std::memcpy(dst, src, d * element);
    } else {
      float* row = scratch_.workers[0].rows;
      kernels_.load(src, table.dtype, d, row);
      kernels_.store(row, d, dst, streams.dtype);
    }
    for (int64_t s = 1; s < hc; ++s) std::memcpy(dst + s * d * element, dst, d * element);
  }
}

void CpuOps::RmsNorm(ops::Tensor x, ops::Vector weight, float eps, ops::Tensor out) {
  pool_.ParallelFor(x.rows, [&](int64_t row, int worker) {
    float* v = scratch_.workers[worker].rows;
    kernels_.load(RowAt(x, row), x.dtype, x.cols, v);
    const float mean = kernels_.sum_squares(v, x.cols) / static_cast<float>(x.cols);
    kernels_.scale_weight(v, x.cols, 1.0f / std::sqrt(mean + eps), weight, v);
    kernels_.store(v, x.cols, MutableRowAt(out, row), out.dtype);
  });
}

void CpuOps::HcFinish(const ops::HcPreArgs& args, int64_t token, const float* streams, const float* mixes, float* u) {
  const int64_t hc = args.hc;
  const int64_t d = args.out.cols;
  const float* scale = args.weights.scale;
  const float* base = args.weights.base;
  std::array<float, 8> pre;
  float* post = args.post + token * hc;
  float* comb = args.comb + token * hc * hc;
  for (int64_t s = 0; s < hc; ++s) {
    pre[s] = Sigmoid(mixes[s] * scale[0] + base[s]) + args.hc_eps;
    post[s] = 2.0f * Sigmoid(mixes[hc + s] * scale[1] + base[hc + s]);
  }
  for (int64_t i = 0; i < hc * hc; ++i) comb[i] = mixes[2 * hc + i] * scale[2] + base[2 * hc + i];
  Sinkhorn(comb, hc, args.sinkhorn_iters, args.hc_eps);
  kernels_.hc_mix(streams, pre.data(), hc, d, u);
  kernels_.round(u, d, args.out.dtype);
  const float mean = kernels_.sum_squares(u, d) / static_cast<float>(d);
  kernels_.scale_weight(u, d, 1.0f / std::sqrt(mean + args.rms_eps), args.norm, u);
  kernels_.store(u, d, MutableRowAt(args.out, token), args.out.dtype);
}

void CpuOps::HcPre(const ops::HcPreArgs& args) {
  const int64_t tokens = args.streams.rows;
  const int64_t width = args.streams.cols;
  const int64_t mixes = (2 + args.hc) * args.hc;
  ops::LinearWeight fn;
  fn.n = mixes;
  fn.k = width;
  fn.dtype = DType::kF32;
  fn.data = args.weights.fn;
  // The block kernel sums each product the same way however rows and outputs are cut, so both paths give the same bits.
  if (tokens <= kHcSplitRows) {
    for (int64_t t = 0; t < tokens; ++t) {
      kernels_.load(RowAt(args.streams, t), args.streams.dtype, width, scratch_.hc_rows + t * width);
      scratch_.hc_squares[t] = kernels_.sum_squares(scratch_.hc_rows + t * width, width);
    }
    const PackedInput input = {InputLayout::kF32Rows, tokens, width, 1, scratch_.hc_rows};
    constexpr int64_t kMixesPerTask = 8;
    pool_.ParallelFor((mixes + kMixesPerTask - 1) / kMixesPerTask, [&](int64_t task, int worker) {
      const int64_t begin = task * kMixesPerTask;
      const int64_t end = std::min(mixes, begin + kMixesPerTask);
      float* block = scratch_.workers[worker].block;
      simd_.block(input, fn, begin, end, {}, block, scratch_.workers[worker].linear);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t n = begin; n < end; ++n)
          scratch_.hc_mixes[t * kMaxMixes + n] = block[t * (end - begin) + n - begin];
      }
    });
    pool_.ParallelFor(tokens, [&](int64_t t, int worker) {
      const float rho = 1.0f / std::sqrt(scratch_.hc_squares[t] / static_cast<float>(width) + args.rms_eps);
      float* m = scratch_.hc_mixes + t * kMaxMixes;
      for (int64_t n = 0; n < mixes; ++n) m[n] *= rho;
      HcFinish(args, t, scratch_.hc_rows + t * width, m, scratch_.workers[worker].vectors);
    });
    return;
  }
  pool_.ParallelFor((tokens + kHcRows - 1) / kHcRows, [&](int64_t task, int worker) {
    WorkerScratch& scratch = scratch_.workers[worker];
    const int64_t first = task * kHcRows;
    const int64_t count = std::min(kHcRows, tokens - first);
    for (int64_t i = 0; i < count; ++i) {
      kernels_.load(RowAt(args.streams, first + i), args.streams.dtype, width, scratch.rows + i * width);
    }
    const PackedInput input = {InputLayout::kF32Rows, count, width, 1, scratch.rows};
    std::array<float, kHcRows * kMaxMixes> m;
    for (int64_t begin = 0; begin < mixes; begin += kRowBlock) {
      const int64_t end = std::min(mixes, begin + kRowBlock);
      simd_.block(input, fn, begin, end, {}, scratch.block, scratch.linear);
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t n = begin; n < end; ++n) m[i * kMaxMixes + n] = scratch.block[i * (end - begin) + n - begin];
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      const float* row = scratch.rows + i * width;
      const float rho = 1.0f / std::sqrt(kernels_.sum_squares(row, width) / static_cast<float>(width) + args.rms_eps);
      for (int64_t n = 0; n < mixes; ++n) m[i * kMaxMixes + n] *= rho;
      HcFinish(args, first + i, row, m.data() + i * kMaxMixes, scratch.vectors);
    }
  });
}

void CpuOps::HcPost(const ops::HcPostArgs& args) {
  const int64_t hc = args.hc;
  pool_.ParallelFor(args.streams.rows, [&](int64_t t, int) {
    kernels_.hc_post(RowAt(args.layer_out, t), MutableRowAt(args.streams, t), args.streams.dtype, args.post + t * hc,
                     args.comb + t * hc * hc, hc, args.layer_out.cols);
  });
}

void CpuOps::HcHead(const ops::HcHeadArgs& args) {
  const int64_t width = args.streams.cols;
  const int64_t hc = args.hc;
  const int64_t d = args.out.cols;
  ops::LinearWeight fn;
  fn.n = hc;
  fn.k = width;
  fn.dtype = DType::kF32;
  fn.data = args.weights.fn;
  pool_.ParallelFor(static_cast<int64_t>(args.row_index.size()), [&](int64_t i, int worker) {
    WorkerScratch& scratch = scratch_.workers[worker];
    float* row = scratch.rows;
    kernels_.load(RowAt(args.streams, args.row_index[i]), args.streams.dtype, width, row);
    const PackedInput input = {InputLayout::kF32Rows, 1, width, 1, row};
    simd_.block(input, fn, 0, hc, {}, scratch.block, scratch.linear);
    const float rho = 1.0f / std::sqrt(kernels_.sum_squares(row, width) / static_cast<float>(width) + args.rms_eps);
    std::array<float, 8> pre;
    for (int64_t s = 0; s < hc; ++s) {
      pre[s] = Sigmoid(scratch.block[s] * rho * args.weights.scale[0] + args.weights.base[s]) + args.hc_eps;
    }
    float* y = scratch.vectors;
    kernels_.hc_mix(row, pre.data(), hc, d, y);
    kernels_.round(y, d, args.out.dtype);
    const float mean = kernels_.sum_squares(y, d) / static_cast<float>(d);
    kernels_.scale_weight(y, d, 1.0f / std::sqrt(mean + args.rms_eps), args.norm, y);
    kernels_.store(y, d, MutableRowAt(args.out, i), args.out.dtype);
  });
}

void CpuOps::MtpCombine(const ops::MtpCombineArgs& args) {
  const int64_t d = args.e.cols;
  pool_.ParallelFor(args.e.rows, [&](int64_t t, int worker) {
    float* e = scratch_.workers[worker].vectors;
    float* h = e + d;
    kernels_.load(RowAt(args.e, t), args.e.dtype, d, e);
    for (int64_t s = 0; s < args.hc; ++s) {
      kernels_.load(RowAt(args.h, t * args.hc + s), args.h.dtype, d, h);
      for (int64_t c = 0; c < d; ++c) h[c] += e[c];
      kernels_.store(h, d, MutableRowAt(args.streams, t) + s * d * DTypeBytes(args.streams.dtype, 1),
                     args.streams.dtype);
    }
  });
}

void CpuOps::AddRmsNorm(const ops::AddRmsNormArgs& args) {
  const int64_t d = args.x.cols;
  pool_.ParallelFor(args.x.rows, [&](int64_t t, int worker) {
    float* sum = scratch_.workers[worker].vectors;
    float* residual = sum + d;
    kernels_.load(RowAt(args.x, t), args.x.dtype, d, sum);
    kernels_.load(RowAt(args.residual, t), args.residual.dtype, d, residual);
    for (int64_t c = 0; c < d; ++c) sum[c] += residual[c];
    kernels_.store(sum, d, MutableRowAt(args.residual, t), args.residual.dtype);
    const float mean = kernels_.sum_squares(sum, d) / static_cast<float>(d);
    kernels_.scale_weight(sum, d, 1.0f / std::sqrt(mean + args.rms_eps), args.norm, sum);
    kernels_.store(sum, d, MutableRowAt(args.out, t), args.out.dtype);
  });
}

void CpuOps::MtpNorm(const ops::MtpNormArgs& args) {
  const int64_t d = args.e.cols;
  pool_.ParallelFor(args.e.rows, [&](int64_t t, int worker) {
    float* v = scratch_.workers[worker].vectors;
    std::byte* out = MutableRowAt(args.out, t);
    const auto half = [&](const ops::Tensor& x, const ops::Vector& norm, bool zero, std::byte* to) {
      kernels_.load(RowAt(x, t), x.dtype, d, v);
      if (zero) std::fill(v, v + d, 0.0f);
      const float mean = kernels_.sum_squares(v, d) / static_cast<float>(d);
      kernels_.scale_weight(v, d, 1.0f / std::sqrt(mean + args.rms_eps), norm, v);
      kernels_.store(v, d, to, args.out.dtype);
    };
    // By position, not by id: the first row carries the second token.
    half(args.e, args.enorm, args.batch.positions[t] == 0, out);
    half(args.h, args.hnorm, false, out + DTypeBytes(args.out.dtype, d));
  });
}

absl::StatusOr<Isa> ParseIsa(std::string_view name) {
  if (name == "auto") return Isa::kAuto;
  if (name == "baseline") return Isa::kBaseline;
  if (name == "avx2") return Isa::kAvx2;
  if (name == "avx512") return Isa::kAvx512;
  if (name == "amx") return Isa::kAmx;
  return InvalidArgument("unknown instruction set \"{}\"; expected auto, baseline, avx2, avx512 or amx", name);
}

absl::StatusOr<std::unique_ptr<ops::Ops>> MakeCpuOps(const CpuOptions& options) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  const bool avx512 = __builtin_cpu_supports("avx512bw") != 0;
  if (options.isa == Isa::kAvx2 && !avx2) return FailedPrecondition("this CPU has no AVX2");
  if (options.isa == Isa::kAvx512 && !avx512) return FailedPrecondition("this CPU has no AVX-512 (BW)");
#endif
  if (options.isa == Isa::kAmx && AmxLinear() == nullptr) {
    return FailedPrecondition("AMX with bf16 was asked for, but this CPU or its kernel does not grant it");
  }
  if (options.threads < 0) return InvalidArgument("threads must be positive, or 0 for all; found {}", options.threads);
  const int threads = options.threads == 0 ? AvailableCpus() : options.threads;
  return std::make_unique<CpuOps>(options, threads);
}

std::string DescribeCpu(const CpuOptions& options) {
  const int threads = options.threads == 0 ? AvailableCpus() : options.threads;
  const bool amx = (options.isa == Isa::kAuto || options.isa == Isa::kAmx) && AmxLinear() != nullptr &&
                   options.numerics == ops::Numerics::kPublished;
  std::string_view simd = "sse";
#if defined(__x86_64__)
  if (options.isa != Isa::kBaseline && __builtin_cpu_supports("avx2") != 0) simd = "avx2";
  if (options.isa != Isa::kBaseline && options.isa != Isa::kAvx2 && __builtin_cpu_supports("avx512bw") != 0) {
    simd = "avx512";
  }
#else
  simd = "simd";
#endif
  return fmt::format("{}{}, {} thread{}", amx ? "amx + " : "", simd, threads, threads == 1 ? "" : "s");
}

}  // namespace hadal::cpu
