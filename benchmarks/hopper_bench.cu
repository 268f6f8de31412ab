// Matrix products of many rows on Hopper: checks them against sums in double, then times them beside cuBLASLt (FP8 with
// its fast accumulation, bf16) and beside a copy, on V4-Flash's shapes. Weights rotate among copies that do not fit in
// L2. usage: hopper_bench [check|linear|moe|all] [--widths]
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "platforms/gpu/formats.h"
#include "platforms/nvidia/hopper_linear.h"

namespace {

using namespace hadal;
using namespace hadal::gpu::cuda;

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// Memory of the device that goes with its owner.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t count) : count_(count) {
    Check(cudaMalloc(&data_, std::max<int64_t>(count, 1) * sizeof(T)), "malloc");
  }
  ~Buffer() { (void)cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* get() const { return data_; }
  int64_t count() const { return count_; }
  std::vector<T> Host() const {
    std::vector<T> host(count_);
    Check(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return host;
  }
  void Poison() { Check(cudaMemset(data_, 0xFF, count_ * sizeof(T)), "memset"); }

 private:
  T* data_ = nullptr;
  int64_t count_;
};

__device__ uint32_t Hash(uint64_t i, uint32_t seed) {
  uint64_t h = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
  h ^= h >> 29;
  h *= 0xBF58476D1CE4E5B9ull;
  h ^= h >> 32;
  return static_cast<uint32_t>(h);
}
// About normal, of variance 1.
__device__ float Normal(uint64_t i, uint32_t seed) {
  float sum = 0;
  for (int j = 0; j < 4; ++j) sum += static_cast<float>(Hash(4 * i + j, seed) >> 8) * 0x1p-24f - 0.5f;
  return sum * 1.7320508f;
}
enum class Fill { kBf16, kE4M3, kFp4, kE8M0, kScaleF32, kWeight };
__global__ void FillKernel(void* to, int64_t count, Fill kind, uint32_t seed, int low, int span) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    switch (kind) {
      case Fill::kBf16:
        static_cast<Bf16*>(to)[i] = ToBf16(Normal(i, seed));
        break;
      case Fill::kE4M3:
        static_cast<uint8_t*>(to)[i] = FloatToE4M3(Normal(i, seed) * 64.0f);
        break;
      case Fill::kFp4:
        static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(FloatToE2M1(Normal(2 * i, seed) * 2.0f) |
                                                            FloatToE2M1(Normal(2 * i + 1, seed) * 2.0f) << 4);
        break;
      case Fill::kE8M0:
        static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(low + Hash(i, seed) % span);
        break;
      case Fill::kScaleF32:
        static_cast<float*>(to)[i] = 0.01f * (1.0f + static_cast<float>(Hash(i, seed) >> 8) * 0x1p-24f);
        break;
      case Fill::kWeight:
        static_cast<float*>(to)[i] = 0.1f + 0.4f * static_cast<float>(Hash(i, seed) >> 8) * 0x1p-24f;
        break;
    }
  }
}
void FillWith(void* to, int64_t count, Fill kind, uint32_t seed, int low = 119, int span = 6) {
  FillKernel<<<2048, 256>>>(to, count, kind, seed, low, span);
}
// k different experts of a token.
__global__ void ChooseKernel(int32_t* to, int64_t tokens, int k, int experts, uint32_t seed) {
  const int64_t t = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (t >= tokens) return;
  for (int i = 0, draw = 0; i < k; ++draw) {
    const auto e = static_cast<int32_t>(Hash(t * 977 + draw, seed) % experts);
    bool fresh = true;
    for (int j = 0; j < i; ++j) fresh = fresh && to[t * k + j] != e;
    if (fresh) to[t * k + i++] = e;
  }
}

// Element i of row `row` of a weight in double.
struct Weight {
  const uint8_t* codes;
  const void* scale;
  bool fp4, scale_f32;
  int64_t k;
};
__device__ double WeightAt(const Weight& w, int64_t row, int64_t i) {
  if (w.fp4) {
    const uint8_t byte = w.codes[row * (w.k / 2) + i / 2];
    return static_cast<double>(E2M1ToFloat(i % 2 == 0 ? byte & 15u : byte >> 4)) *
           E8M0ToFloat(static_cast<const uint8_t*>(w.scale)[row * (w.k / 32) + i / 32]);
  }
  const int64_t at = row / 128 * ((w.k + 127) / 128) + i / 128;
  const double scale =
      w.scale_f32 ? static_cast<const float*>(w.scale)[at] : E8M0ToFloat(static_cast<const uint8_t*>(w.scale)[at]);
  return E4M3ToFloat(w.codes[row * w.k + i]) * scale;
}
// The input of a product: a row of bf16, or what SwiGLU makes of two.
struct Source {
  const Bf16 *x, *up;
  int64_t stride;
  float limit;
};
__device__ float SourceAt(const Source& s, int64_t row, int64_t i, float weight) {
  const float g = ToFloat(s.x[row * s.stride + i]);
  if (s.up == nullptr) return g;
  const float gate = fminf(g, s.limit);
  const float up = fminf(fmaxf(ToFloat(s.up[row * s.stride + i]), -s.limit), s.limit);
  return Round<Bf16>(weight * (gate * (1.0f / (1.0f + expf(-gate))) * up));
}
// A thread of 32 per sample: sum in double over quantised inputs.
__device__ double Sum(const Source& s, const Weight& w, int64_t row, int64_t n, float weight) {
  double sum = 0;
  for (int64_t k0 = 0; k0 < w.k; k0 += 128) {
    float v[4], most = 0;
    for (int j = 0; j < 4; ++j) {
      const int64_t i = k0 + threadIdx.x % 32 * 4 + j;
      v[j] = i < w.k ? SourceAt(s, row, i, weight) : 0.0f;
      most = fmaxf(most, fabsf(v[j]));
    }
    const float scale = E4M3BlockScale(GroupMax(most));
    for (int j = 0; j < 4; ++j) {
      const int64_t i = k0 + threadIdx.x % 32 * 4 + j;
      if (i < w.k) sum += static_cast<double>(RoundE4M3(v[j] / scale) * scale) * WeightAt(w, n, i);
    }
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, mask);
  return sum;
}
// totals: squares of errors, squares of the reference, largest error.
struct Totals {
  double errors, squares, most;
};
struct Sampling {
  int64_t samples, rows, n;
  const void* out;
  int64_t out_stride;
  bool out_f32;
  // Grouped: rows are choices; the input's row is `token` of it, or the choice's own.
  const int32_t *experts, *row;
  const float* weight;
  int choices;
};
__global__ void CompareKernel(Source source, const Weight* weights, Sampling s, Totals* totals) {
  const int64_t sample = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) / 32;
  if (sample >= s.samples) return;
  const bool all = s.samples == s.rows * s.n;
  const int64_t m = all ? sample / s.n : Hash(sample, 77) % s.rows;
  const int64_t n = all ? sample % s.n : Hash(sample, 78) % s.n;
  int64_t in = m, out = m;
  int expert = 0;
  float weight = 1;
  if (s.experts != nullptr) {
    expert = s.experts[m];
    if (expert < 0) return;
    out = s.row[m];
    in = source.up != nullptr ? out : m / s.choices;
    if (source.up != nullptr) weight = s.weight[out];
  }
  const double want = Sum(source, weights[expert], in, n, weight);
  if (threadIdx.x % 32 != 0) return;
  const double got = s.out_f32 ? static_cast<const float*>(s.out)[out * s.out_stride + n]
                               : ToFloat(static_cast<const Bf16*>(s.out)[out * s.out_stride + n]);
  const double error = got - want;
  atomicAdd(&totals->errors, error == error ? error * error : 1e300);
  atomicAdd(&totals->squares, want * want);
}

int failures = 0;
double Compare(const Source& source, const std::vector<Weight>& weights, const Sampling& sampling) {
  Buffer<Weight> table(static_cast<int64_t>(weights.size()));
  Check(cudaMemcpy(table.get(), weights.data(), weights.size() * sizeof(Weight), cudaMemcpyHostToDevice), "copy");
  Buffer<Totals> totals(1);
  Check(cudaMemset(totals.get(), 0, sizeof(Totals)), "memset");
  CompareKernel<<<static_cast<unsigned>(CeilDiv(sampling.samples * 32, 256)), 256>>>(source, table.get(), sampling,
                                                                                     totals.get());
  const Totals t = totals.Host()[0];
  return std::sqrt(t.errors / t.squares);
}
void Expect(bool ok, const char* what) {
  if (ok) return;
  ++failures;
  std::printf("FAILED: %s\n", what);
}

// Milliseconds of a call, the median of several series.
double Time(int calls, const std::function<void(int)>& call) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "event");
  Check(cudaEventCreate(&end), "event");
  for (int i = 0; i < 3; ++i) call(i);
  std::vector<float> times;
  for (int series = 0; series < 5; ++series) {
    Check(cudaEventRecord(begin), "record");
    for (int i = 0; i < calls; ++i) call(series * calls + i);
    Check(cudaEventRecord(end), "record");
    Check(cudaEventSynchronize(end), "timed work");
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    times.push_back(ms / static_cast<float>(calls));
  }
  Check(cudaGetLastError(), "timed launches");
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[2];
}
int Calls(double flops) { return static_cast<int>(std::clamp(4e-3 * 1e15 / flops, 5.0, 50.0)); }

// cuBLASLt's best of the algorithms that it proposes; TFLOP/s.
double CublasLt(cudaDataType_t type, const std::vector<const void*>& weights, const void* x, void* out, int64_t m,
                int64_t n, int64_t k) {
  static cublasLtHandle_t handle = [] {
    cublasLtHandle_t h = nullptr;
    if (cublasLtCreate(&h) != CUBLAS_STATUS_SUCCESS) std::exit(2);
    return h;
  }();
  static Buffer<uint8_t> workspace(64 << 20);
  static Buffer<float> one(2);
  const float ones[2] = {1, 1};
  Check(cudaMemcpy(one.get(), ones, sizeof(ones), cudaMemcpyHostToDevice), "copy");
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t a, b, d;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose));
  if (type == CUDA_R_8F_E4M3) {
    const int8_t fast = 1;
    const void* scale = one.get();
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast));
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale, sizeof(scale));
    cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale, sizeof(scale));
  }
  cublasLtMatrixLayoutCreate(&a, type, k, n, k);
  cublasLtMatrixLayoutCreate(&b, type, k, m, k);
  cublasLtMatrixLayoutCreate(&d, CUDA_R_16BF, n, m, n);
  cublasLtMatmulPreferenceCreate(&preference);
  const size_t bytes = static_cast<size_t>(workspace.count());
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes));
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 0;
  cublasLtMatmulAlgoGetHeuristic(handle, op, a, b, d, d, preference, 8, found, &count);
  double best = 0;
  const float alpha = 1, beta = 0;
  const double flops = 2.0 * m * n * k;
  const auto run = [&](const cublasLtMatmulAlgo_t& algorithm, int calls) {
    return Time(calls, [&](int i) {
      cublasLtMatmul(handle, op, &alpha, weights[i % weights.size()], a, x, b, &beta, out, d, out, d, &algorithm,
                     workspace.get(), bytes, nullptr);
    });
  };
  int fastest = -1;
  for (int i = 0; i < count; ++i) {
    const double rate = flops / run(found[i].algo, 3) * 1e-9;
    if (rate > best) {
      best = rate;
      fastest = i;
    }
  }
  if (fastest >= 0) best = flops / run(found[fastest].algo, Calls(flops)) * 1e-9;
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatrixLayoutDestroy(a);
  cublasLtMatrixLayoutDestroy(b);
  cublasLtMatrixLayoutDestroy(d);
  cublasLtMatmulDescDestroy(op);
  return best;
}

struct LinearCase {
  int64_t n, k;
  bool scale_f32, out_f32;
};

void CheckLinear() {
  std::printf("linear, every output against sums in double (relative error):\n");
  const LinearCase cases[] = {{256, 512, false, true},  {256, 512, false, false}, {1024, 4096, false, true},
                              {1000, 1040, true, true}, {136, 400, true, false},  {2048, 2048, true, false}};
  for (const LinearCase& c : cases) {
    const int64_t blocks = CeilDiv(c.n, 128) * CeilDiv(c.k, 128);
    Buffer<uint8_t> codes(c.n * c.k), scales(blocks * 4);
    FillWith(codes.get(), codes.count(), Fill::kE4M3, 1);
    FillWith(scales.get(), blocks, c.scale_f32 ? Fill::kScaleF32 : Fill::kE8M0, 2);
    const ops::LinearWeight weight = {.n = c.n,
                                      .k = c.k,
                                      .dtype = DType::kF8E4M3,
                                      .data = codes.get(),
                                      .scale_dtype = c.scale_f32 ? DType::kF32 : DType::kF8E8M0,
                                      .scale = scales.get()};
    std::vector<uint8_t> first_row;
    for (const int64_t m : {1, 7, 64, 200, 515}) {
      const int64_t x_stride = c.k + 8, out_stride = c.n + 8;
      Buffer<Bf16> x(m * x_stride);
      FillWith(x.get(), x.count(), Fill::kBf16, 3);
      Buffer<uint8_t> out(m * out_stride * 4), memory(static_cast<int64_t>(HopperInput::Bytes(m, c.k)));
      const HopperInput input = HopperInput::Carve(memory.get(), m, c.k);
      const ops::Tensor xt = {x.get(), DType::kBF16, m, c.k, x_stride};
      const ops::Tensor ot = {out.get(), c.out_f32 ? DType::kF32 : DType::kBF16, m, c.n, out_stride};
      Expect(HopperLinearSupported(weight, ot), "supported");
      LaunchHopperQuantize({}, xt, input);
      std::vector<uint8_t> last;
      double worst = 0;
      for (const int width : {0, 32, 64, 128}) {
        out.Poison();
        const HopperTarget target = {&weight, ot};
        LaunchHopperLinear({}, input, {&target, 1}, width);
        Check(cudaDeviceSynchronize(), "linear");
        worst = std::max(
            worst, Compare({x.get(), nullptr, x_stride, 0}, {{codes.get(), scales.get(), false, c.scale_f32, c.k}},
                           {m * c.n, m, c.n, out.get(), out_stride, c.out_f32}));
        std::vector<uint8_t> host = out.Host();
        if (!last.empty()) Expect(host == last, "the same bits for every width of tiles");
        last = std::move(host);
      }
      last.resize(c.n * (c.out_f32 ? 4 : 2));
      if (!first_row.empty()) Expect(last == first_row, "the same bits of a row for every number of rows");
      first_row = std::move(last);
      std::printf("  n %5ld k %5ld m %4ld %s: %.2e\n", c.n, c.k, m, c.out_f32 ? "f32 " : "bf16", worst);
      Expect(worst < (c.out_f32 ? 5e-4 : 3e-3), "linear's error");
    }
  }
}

void TimeCopy() {
  const int64_t bytes = int64_t{4} << 30;
  Buffer<uint8_t> from(bytes), to(bytes);
  FillWith(from.get(), bytes / 2, Fill::kBf16, 9);
  const double ms =
      Time(3, [&](int) { Check(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice), "copy"); });
  std::printf("copy, read and written: %.0f GB/s\n", 2.0 * bytes / ms * 1e-6);
}

void TimeLinear(bool widths) {
  struct Shape {
    const char* name;
    int64_t n, k;
  };
  const Shape shapes[] = {{"wq_a", 1024, 4096},      {"wkv", 512, 4096},       {"wq_b", 32768, 1024},
                          {"wo_b", 4096, 8192},      {"idx.wq_b", 8192, 1024}, {"shared.w1", 2048, 4096},
                          {"shared.w2", 4096, 2048}, {"square", 8192, 8192}};
  std::printf("%-10s %6s %6s %6s | %8s %8s | %9s %9s %5s | quantise GB/s\n", "linear", "n", "k", "m", "TFLOP/s", "us",
              "Lt fp8", "Lt bf16", "share");
  for (const Shape& s : shapes) {
    const int64_t copies = std::clamp<int64_t>((int64_t{160} << 20) / (s.n * s.k), 2, 40);
    const int64_t blocks = CeilDiv(s.n, 128) * CeilDiv(s.k, 128);
    Buffer<uint8_t> codes(s.n * s.k * copies), scales(blocks);
    FillWith(codes.get(), codes.count(), Fill::kE4M3, 1);
    FillWith(scales.get(), blocks, Fill::kE8M0, 2);
    std::vector<ops::LinearWeight> weights;
    std::vector<const void*> pointers, wide;
    Buffer<Bf16> bf16(s.n * s.k * std::max<int64_t>(copies / 2, 2));
    FillWith(bf16.get(), bf16.count(), Fill::kBf16, 5);
    for (int64_t i = 0; i < copies; ++i) {
      pointers.push_back(codes.get() + i * s.n * s.k);
      weights.push_back({.n = s.n, .k = s.k, .dtype = DType::kF8E4M3, .data = pointers.back(), .scale = scales.get()});
    }
    for (int64_t i = 0; i < bf16.count() / (s.n * s.k); ++i) wide.push_back(bf16.get() + i * s.n * s.k);
    for (const int64_t m : {64, 512, 1024, 4096}) {
      Buffer<Bf16> x(m * s.k), out(m * s.n);
      FillWith(x.get(), x.count(), Fill::kBf16, 3);
      Buffer<uint8_t> memory(static_cast<int64_t>(HopperInput::Bytes(m, s.k)));
      const HopperInput input = HopperInput::Carve(memory.get(), m, s.k);
      const ops::Tensor xt = ops::MakeTensor(x.get(), DType::kBF16, m, s.k);
      const ops::Tensor ot = ops::MakeTensor(out.get(), DType::kBF16, m, s.n);
      LaunchHopperQuantize({}, xt, input);
      const double flops = 2.0 * m * s.n * s.k;
      const auto run = [&](int width) {
        return Time(Calls(flops), [&](int i) {
          const HopperTarget target = {&weights[i % copies], ot};
          LaunchHopperLinear({}, input, {&target, 1}, width);
        });
      };
      const double ms = run(0);
      const double error =
          Compare({x.get(), nullptr, s.k, 0},
                  {{codes.get() + (5 * Calls(flops) - 1) % copies * s.n * s.k, scales.get(), false, false, s.k}},
                  {2000, m, s.n, out.get(), s.n, false});
      Expect(error < 3e-3, "linear's error");
      const double quantise = Time(20, [&](int) { LaunchHopperQuantize({}, xt, input); });
      const double rate = flops / ms * 1e-9;
      const double lt8 = CublasLt(CUDA_R_8F_E4M3, pointers, input.codes, out.get(), m, s.n, s.k);
      const double lt16 = m >= 4096 ? CublasLt(CUDA_R_16BF, wide, x.get(), out.get(), m, s.n, s.k) : 0;
      std::printf("%-10s %6ld %6ld %6ld | %8.0f %8.1f | %9.0f %9.0f %4.0f%% | %6.0f", s.name, s.n, s.k, m, rate,
                  ms * 1e3, lt8, lt16, 100 * rate / lt8, 3.0 * m * s.k / quantise * 1e-6);
      if (widths) {
        std::printf(" |");
        for (const int width : {32, 64, 128}) std::printf(" %d:%.0f", width, flops / run(width) * 1e-9);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

// A layer's experts and all scratch that they need.
struct Experts {
  Experts(int64_t experts, int64_t d, int64_t f, bool fp4, int low, int span)
      : fp4(fp4),
        bytes(fp4 ? d * f / 2 : d * f),
        scale_bytes(fp4 ? d * f / 32 : CeilDiv(d, 128) * CeilDiv(f, 128)),
        codes(3 * experts * bytes),
        scales(3 * experts * scale_bytes),
        tables(3 * static_cast<int64_t>(HopperExpertsBytes(experts, std::max(d, f))) + 1024),
        inexact(1) {
    FillWith(codes.get(), codes.count(), fp4 ? Fill::kFp4 : Fill::kE4M3, 11);
    FillWith(scales.get(), scales.count(), Fill::kE8M0, 12, low, span);
    Check(cudaMemset(inexact.get(), 0, 4), "memset");
    uint8_t* memory = tables.get();
    for (int which = 0; which < 3; ++which) {  // w1, w3, w2
      const int64_t n = which == 2 ? d : f, k = which == 2 ? f : d;
      std::vector<ops::LinearWeight> weights;
      std::vector<const ops::LinearWeight*> pointers;
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t at = which * experts + e;
        weights.push_back({.n = n,
                           .k = k,
                           .dtype = fp4 ? DType::kF4E2M1 : DType::kF8E4M3,
                           .data = codes.get() + at * bytes,
                           .scale = scales.get() + at * scale_bytes});
        plain[which].push_back({codes.get() + at * bytes, scales.get() + at * scale_bytes, fp4, false, k});
      }
      for (const ops::LinearWeight& weight : weights) pointers.push_back(&weight);
      Expect(HopperExpertsSupported(weights[0]), "experts supported");
      prepared[which] = LaunchHopperPrepareExperts({}, pointers, memory, inexact.get());
      Check(cudaDeviceSynchronize(), "prepare");
      memory += RoundUp256(HopperExpertsBytes(experts, n));
    }
  }
  static int64_t RoundUp256(size_t v) { return static_cast<int64_t>((v + 255) / 256 * 256); }

  bool fp4;
  int64_t bytes, scale_bytes;
  Buffer<uint8_t> codes, scales, tables;
  Buffer<int32_t> inexact;
  std::vector<Weight> plain[3];
  HopperExperts prepared[3];
};

struct MoeRun {
  int64_t tokens, d, f;
  int k, experts;
};

void Moe(const MoeRun& c, bool fp4, bool time, int low, int span) {
  Experts layer(c.experts, c.d, c.f, fp4, low, span);
  Buffer<int32_t> choices(c.tokens * c.k);
  Buffer<float> weights(c.tokens * c.k);
  ChooseKernel<<<static_cast<unsigned>(CeilDiv(c.tokens, 128)), 128>>>(choices.get(), c.tokens, c.k, c.experts, 21);
  if (!time) Check(cudaMemset(choices.get(), 0xFF, 4), "memset");  // one that is skipped
  FillWith(weights.get(), weights.count(), Fill::kWeight, 22);
  Buffer<Bf16> x(c.tokens * c.d), out(c.tokens * c.d), shared(c.tokens * c.d);
  FillWith(x.get(), x.count(), Fill::kBf16, 23);
  FillWith(shared.get(), shared.count(), Fill::kBf16, 24);
  Buffer<uint8_t> plan_memory(static_cast<int64_t>(HopperPlan::Bytes(c.tokens, c.k, c.experts)));
  const HopperPlan plan = HopperPlan::Carve(plan_memory.get(), c.tokens, c.k, c.experts);
  const int64_t rows = plan.max_rows;
  Buffer<uint8_t> in_memory(static_cast<int64_t>(HopperInput::Bytes(rows, c.d)));
  Buffer<uint8_t> hidden_memory(static_cast<int64_t>(HopperInput::Bytes(rows, c.f)));
  const HopperInput in = HopperInput::Carve(in_memory.get(), rows, c.d);
  const HopperInput hidden = HopperInput::Carve(hidden_memory.get(), rows, c.f);
  Buffer<Bf16> gate_up(rows * 2 * c.f), down(rows * c.d);
  const ops::Tensor gate = {gate_up.get(), DType::kBF16, rows, c.f, 2 * c.f};
  const ops::Tensor up = {gate_up.get() + c.f, DType::kBF16, rows, c.f, 2 * c.f};
  const ops::Tensor rows_out = ops::MakeTensor(down.get(), DType::kBF16, rows, c.d);
  const ops::Tensor xt = ops::MakeTensor(x.get(), DType::kBF16, c.tokens, c.d);
  const ops::Tensor st = ops::MakeTensor(shared.get(), DType::kBF16, c.tokens, c.d);
  const ops::Tensor ot = ops::MakeTensor(out.get(), DType::kBF16, c.tokens, c.d);
  const HopperGroupedTarget first[2] = {{layer.prepared[0], gate}, {layer.prepared[1], up}};
  const HopperGroupedTarget second = {layer.prepared[2], rows_out};
  const float limit = 10;
  const std::vector<std::pair<const char*, std::function<void()>>> steps = {
      {"plan", [&] { LaunchHopperPlan({}, choices.get(), weights.get(), plan); }},
      {"scatter", [&] { LaunchHopperScatter({}, xt, plan, in); }},
      {"w1, w3", [&] { LaunchHopperGroupedLinear({}, in, plan, first); }},
      {"swiglu",
       [&] {
         LaunchHopperSwiGlu({}, {gate, up, limit, true}, plan, hidden);
       }},
      {"w2",
       [&] {
         LaunchHopperGroupedLinear({}, hidden, plan, {&second, 1});
       }},
      {"combine", [&] { LaunchHopperCombine({}, rows_out, choices.get(), plan, false, st, ot); }}};
  gate_up.Poison();
  down.Poison();
  out.Poison();
  for (const auto& [name, step] : steps) {
    step();
    Check(cudaDeviceSynchronize(), name);
  }
  Expect(layer.inexact.Host()[0] == 0, "scales within reach");
  const int64_t pairs = c.tokens * c.k;
  Sampling sampling = {std::min<int64_t>(pairs * c.f, 40000),
                       pairs,
                       c.f,
                       gate.data,
                       gate.stride,
                       false,
                       choices.get(),
                       plan.row,
                       plan.weight,
                       c.k};
  const double e1 = Compare({x.get(), nullptr, c.d, 0}, layer.plain[0], sampling);
  sampling.out = up.data;
  const double e3 = Compare({x.get(), nullptr, c.d, 0}, layer.plain[1], sampling);
  sampling.out = down.get();
  sampling.out_stride = c.d;
  sampling.n = c.d;
  sampling.samples = std::min<int64_t>(pairs * c.d, 40000);
  const double e2 = Compare({gate_up.get(), gate_up.get() + c.f, 2 * c.f, limit}, layer.plain[2], sampling);
  // The sums of a token.
  std::vector<int32_t> row(static_cast<size_t>(pairs));
  Check(cudaMemcpy(row.data(), plan.row, row.size() * sizeof(int32_t), cudaMemcpyDeviceToHost), "copy");
  const std::vector<int32_t> expert = choices.Host();
  const std::vector<Bf16> results = out.Host(), parts = down.Host(), add = shared.Host();
  const auto value = [](Bf16 v) {
    const uint32_t bits = static_cast<uint32_t>(v.bits) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  };
  int64_t wrong = 0;
  for (int64_t t = 0; t < c.tokens; t += 1 + c.tokens / 64) {
    std::vector<std::pair<int32_t, int32_t>> sorted;
    for (int i = 0; i < c.k; ++i) sorted.emplace_back(expert[t * c.k + i], row[t * c.k + i]);
    std::sort(sorted.begin(), sorted.end());
    for (int64_t i = 0; i < c.d; ++i) {
      float sum = 0;
      for (const auto& [e, r] : sorted) sum += e < 0 ? 0.0f : value(parts[r * c.d + i]);
      sum += value(add[t * c.d + i]);
      uint32_t bits;
      std::memcpy(&bits, &sum, 4);
      bits = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
      wrong += bits != results[t * c.d + i].bits;
    }
  }
  std::printf("experts %s: %ld tokens, %d of %d, d %ld, F %ld: errors w1 %.2e w3 %.2e w2 %.2e, sums differing %ld\n",
              fp4 ? "FP4" : "FP8", c.tokens, c.k, c.experts, c.d, c.f, e1, e3, e2, wrong);
  Expect(e1 < 3e-3 && e2 < 3e-3 && e3 < 3e-3 && wrong == 0, "experts");
  if (!time) return;
  double all = 0;
  for (const auto& [name, step] : steps) {
    const double ms = Time(5, [&](int) { step(); });
    all += ms;
    std::printf("  %-8s %8.1f us", name, ms * 1e3);
    const bool is_first = name[0] == 'w' && name[1] == '1', is_second = name[0] == 'w' && name[1] == '2';
    if (is_first || is_second) {
      const double flops = 2.0 * pairs * c.d * c.f * (is_first ? 2 : 1);
      const double weight_bytes = static_cast<double>(layer.bytes + layer.scale_bytes) * c.experts * (is_first ? 2 : 1);
      std::printf("  %6.0f TFLOP/s, weights %5.0f GB/s", flops / ms * 1e-9, weight_bytes / ms * 1e-6);
    }
    std::printf("\n");
  }
  const double together = Time(5, [&](int) {
    for (const auto& [name, step] : steps) step();
  });
  std::printf("  together %8.1f us (sum %.1f): %.0f TFLOP/s\n", together * 1e3, all * 1e3,
              6.0 * pairs * c.d * c.f / together * 1e-9);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  const bool widths = argc > 2 && std::string(argv[2]) == "--widths";
  if (what == "check" || what == "all") {
    CheckLinear();
    Moe({200, 512, 256, 3, 8}, true, false, 110, 15);  // scales as far apart as can be
    Moe({200, 512, 384, 3, 8}, false, false, 119, 6);
    Moe({600, 1024, 512, 2, 5}, true, false, 119, 6);
  }
  if (what == "linear" || what == "moe" || what == "all") TimeCopy();
  if (what == "linear" || what == "all") TimeLinear(widths);
  if (what == "moe" || what == "all") {
    for (const int64_t tokens : {512, 2048, 4096, 8192}) Moe({tokens, 4096, 2048, 6, 256}, true, true, 119, 6);
    Moe({4096, 4096, 2048, 6, 256}, false, true, 119, 6);
  }
  std::printf("%s\n", failures == 0 ? "all checks passed" : "CHECKS FAILED");
  return failures == 0 ? 0 : 1;
}
