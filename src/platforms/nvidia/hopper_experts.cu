// What surrounds the products of hopper_linear.cu: inputs quantised, and for experts the plan of which rows go where,
// the hidden values between two products, and the sum of a token's experts.
#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "platforms/gpu/formats.h"
#include "platforms/nvidia/hopper_host.h"
#include "platforms/nvidia/hopper_instructions.h"
#include "platforms/nvidia/hopper_linear.h"

namespace hadal::gpu::cuda {
namespace {

// --- Inputs ---

// Eight consecutive values per thread, 16 threads a block of 128 of k. kScatter: to the rows of a token's choices.
struct QuantizeParams {
  const Bf16* x = nullptr;
  int64_t stride = 0;
  int64_t k = 0;
  int64_t rows = 0;
  uint8_t* codes = nullptr;
  int64_t code_stride = 0;
  float* scales = nullptr;
  int64_t scale_stride = 0;
  const int32_t* to = nullptr;  // [rows, choices]; null: row r to row r
  int choices = 1;
};

#if HADAL_SM90A
// v: this thread's 8 of a block; gives codes and the block's scale.
__device__ __forceinline__ float QuantizeBlock(const float (&v)[8], uint32_t* low, uint32_t* high) {
  float most = 0;
#pragma unroll
  for (float e : v) most = fmaxf(most, fabsf(e));
#pragma unroll
  for (int mask = 8; mask > 0; mask /= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, mask));
  const float scale = E4M3BlockScale(most);
  const float inverse = BitsFloat((254u << 23) - FloatBits(scale));  // of a power of two: exact
  *low = hopper::PackE4M3(v[0] * inverse, v[1] * inverse) | hopper::PackE4M3(v[2] * inverse, v[3] * inverse) << 16;
  *high = hopper::PackE4M3(v[4] * inverse, v[5] * inverse) | hopper::PackE4M3(v[6] * inverse, v[7] * inverse) << 16;
  return scale;
}

__device__ __forceinline__ void Unpack8(uint4 bits, float (&v)[8]) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = BitsFloat(words[i] << 16);
    v[2 * i + 1] = BitsFloat(words[i] & 0xFFFF0000u);
  }
}
#endif

__global__ void __launch_bounds__(256) QuantizeKernel(const QuantizeParams p) {
#if HADAL_SM90A
  const int64_t blocks_k = p.code_stride / kBlockK;
  const int64_t unit = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 16;
  const int part = static_cast<int>(threadIdx.x) % 16;
  const int64_t row = unit / blocks_k, kb = unit % blocks_k;
  float v[8] = {};
  if (row < p.rows) {
    const int64_t k = kb * kBlockK + part * 8;
    const Bf16* from = p.x + row * p.stride + k;
    if (k + 8 <= p.k && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
      Unpack8(*reinterpret_cast<const uint4*>(from), v);
    } else {
      for (int i = 0; i < 8; ++i) v[i] = k + i < p.k ? ToFloat(from[i]) : 0.0f;
    }
  }
  uint32_t low = 0, high = 0;
  const float scale = QuantizeBlock(v, &low, &high);
  if (row >= p.rows) return;
  for (int i = 0; i < p.choices; ++i) {
    const int64_t to = p.to == nullptr ? row : p.to[row * p.choices + i];
    if (to < 0) continue;
    *reinterpret_cast<uint2*>(p.codes + to * p.code_stride + kb * kBlockK + part * 8) = {low, high};
    if (part == 0) p.scales[kb * p.scale_stride + to] = scale;
  }
#endif
}

struct SwiGluParams {
  const Bf16 *gate = nullptr, *up = nullptr;
  int64_t gate_stride = 0, up_stride = 0;
  int64_t k = 0;  // a multiple of 8
  float limit = 0;
  const float* weight = nullptr;     // [rows]; null: none
  const int32_t* row_end = nullptr;  // first row that is no expert's
  uint8_t* codes = nullptr;
  int64_t code_stride = 0;
  float* scales = nullptr;
  int64_t scale_stride = 0;
};

__global__ void __launch_bounds__(256) SwiGluKernel(const SwiGluParams p) {
#if HADAL_SM90A
  const int64_t blocks_k = p.code_stride / kBlockK;
  const int64_t unit = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 16;
  const int part = static_cast<int>(threadIdx.x) % 16;
  const int64_t row = unit / blocks_k, kb = unit % blocks_k;
  const bool on = row < *p.row_end;
  if (__all_sync(0xFFFFFFFFu, !on)) return;
  float v[8] = {};
  const int64_t k = kb * kBlockK + part * 8;
  if (on && k < p.k) {
    float g[8], u[8];
    Unpack8(*reinterpret_cast<const uint4*>(p.gate + row * p.gate_stride + k), g);
    Unpack8(*reinterpret_cast<const uint4*>(p.up + row * p.up_stride + k), u);
    const float weight = p.weight == nullptr ? 1.0f : p.weight[row];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (p.limit > 0) {
        g[i] = fminf(g[i], p.limit);
        u[i] = fminf(fmaxf(u[i], -p.limit), p.limit);
      }
      const float hidden = g[i] * (1.0f / (1.0f + expf(-g[i]))) * u[i];
      v[i] = Round<Bf16>(weight * hidden);
    }
  }
  uint32_t low = 0, high = 0;
  const float scale = QuantizeBlock(v, &low, &high);
  if (!on) return;
  *reinterpret_cast<uint2*>(p.codes + row * p.code_stride + kb * kBlockK + part * 8) = {low, high};
  if (part == 0) p.scales[kb * p.scale_stride + row] = scale;
#endif
}

// --- The plan ---

// Block e counts the choices of expert e.
__global__ void __launch_bounds__(256) CountKernel(const int32_t* experts, int64_t choices, int32_t* count) {
  __shared__ int32_t sums[8];
  int32_t mine = 0;
  for (int64_t i = threadIdx.x; i < choices; i += 256) mine += experts[i] == static_cast<int32_t>(blockIdx.x) ? 1 : 0;
  mine = __reduce_add_sync(0xFFFFFFFFu, mine);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t all = 0;
    for (const int32_t s : sums) all += s;
    count[blockIdx.x] = all;
  }
}

// Sum of the values of the threads before this one.
__device__ int32_t Before(int32_t value, int32_t* scratch) {
  const int at = static_cast<int>(threadIdx.x);
  scratch[at] = value;
  __syncthreads();
  for (int step = 1; step < static_cast<int>(blockDim.x); step *= 2) {
    const int32_t add = at >= step ? scratch[at - step] : 0;
    __syncthreads();
    scratch[at] += add;
    __syncthreads();
  }
  const int32_t all = scratch[at];
  __syncthreads();
  return all - value;
}

// One block, a thread per expert.
__global__ void __launch_bounds__(1024) LayoutKernel(const HopperPlan plan) {
  __shared__ int32_t scratch[1024];
  const int e = static_cast<int>(threadIdx.x);
  const int32_t rows = e < plan.experts ? plan.count[e] : 0;
  const int32_t room = static_cast<int32_t>(RoundUp(rows, 16));
  const int32_t tiles = (rows + kRows - 1) / kRows;
  const int32_t first = Before(room, scratch);
  const int32_t tile = Before(tiles, scratch);
  if (e >= plan.experts) return;
  plan.first[e] = first;
  if (e == plan.experts - 1) {
    plan.first[e + 1] = first + room;
    *plan.tile_count = tile + tiles;
  }
  for (int32_t i = 0; i < tiles; ++i) plan.tiles[tile + i] = {e, first + i * kRows, min(kRows, rows - i * kRows)};
}

// Block e gives the choices of expert e their rows, in order.
__global__ void __launch_bounds__(256)
    PlaceKernel(const int32_t* experts, const float* weights, const HopperPlan plan) {
  __shared__ int32_t found[2][8];
  const int32_t e = static_cast<int32_t>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t choices = plan.tokens * plan.experts_per_token;
  int32_t at = plan.first[e];
  int turn = 0;
  for (int64_t begin = 0; begin < choices; begin += 256, turn ^= 1) {
    const int64_t i = begin + threadIdx.x;
    const int32_t expert = i < choices ? experts[i] : -2;
    if (e == 0 && expert == -1) plan.row[i] = -1;
    const unsigned mine = __ballot_sync(0xFFFFFFFFu, expert == e);
    if (lane == 0) found[turn][warp] = __popc(mine);
    __syncthreads();
    int32_t before = 0, all = 0;
    for (int w = 0; w < 8; ++w) {
      before += w < warp ? found[turn][w] : 0;
      all += found[turn][w];
    }
    if (expert == e) {
      const int32_t row = at + before + __popc(mine & ((1u << lane) - 1));
      plan.row[i] = row;
      plan.weight[row] = weights[i];
    }
    at += all;
  }
}

struct CombineParams {
  const Bf16* rows = nullptr;
  int64_t stride = 0;
  const int32_t* experts = nullptr;
  const int32_t* row = nullptr;
  const float* weight = nullptr;  // [rows]; null: none
  int choices = 0;
  const Bf16* shared = nullptr;
  int64_t shared_stride = 0;
  Bf16* out = nullptr;
  int64_t out_stride = 0;
  int64_t cols = 0;
};

__global__ void __launch_bounds__(256) CombineKernel(const CombineParams p) {
#if HADAL_SM90A
  __shared__ int32_t order[kHopperChoices];
  const int64_t token = blockIdx.y;
  const int i = static_cast<int>(threadIdx.x);
  if (i < p.choices) {
    const int32_t mine = p.experts[token * p.choices + i];
    int place = 0;
    for (int j = 0; j < p.choices; ++j) {
      const int32_t other = p.experts[token * p.choices + j];
      place += other < mine || (other == mine && j < i) ? 1 : 0;
    }
    order[place] = p.row[token * p.choices + i];
  }
  __syncthreads();
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x) * 8;
  if (column >= p.cols) return;
  float sum[8] = {};
  for (int c = 0; c < p.choices; ++c) {
    const int64_t row = order[c];
    if (row < 0) continue;
    float v[8];
    Unpack8(*reinterpret_cast<const uint4*>(p.rows + row * p.stride + column), v);
    const float weight = p.weight == nullptr ? 1.0f : p.weight[row];
#pragma unroll
    for (int e = 0; e < 8; ++e) sum[e] += p.weight == nullptr ? v[e] : v[e] * weight;
  }
  if (p.shared != nullptr) {
    float v[8];
    Unpack8(*reinterpret_cast<const uint4*>(p.shared + token * p.shared_stride + column), v);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum[e] += v[e];
  }
  uint4 bits;
  bits.x = hopper::PackBf16(sum[0], sum[1]);
  bits.y = hopper::PackBf16(sum[2], sum[3]);
  bits.z = hopper::PackBf16(sum[4], sum[5]);
  bits.w = hopper::PackBf16(sum[6], sum[7]);
  *reinterpret_cast<uint4*>(p.out + token * p.out_stride + column) = bits;
#endif
}

// The largest scale of every row, a warp each; rows whose scales e4m3 has no room for are counted.
__global__ void __launch_bounds__(256) BaseKernel(const HopperExpert* table, const uint8_t* const* codes,
                                                  uint8_t* bases, int64_t n, int64_t k, int32_t* inexact) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int64_t expert = blockIdx.y;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= n) return;
  const auto* scale = static_cast<const uint8_t*>(table[expert].scale) + row * (k / 32);
  unsigned most = 0;
  for (int64_t i = lane; i < k / 32; i += 32) most = max(most, static_cast<unsigned>(scale[i]));
  most = __reduce_max_sync(0xFFFFFFFFu, most);
  bool fits = true;
  for (int64_t i = lane; i < k / 32; i += 32) {
    if (scale[i] + 14u >= most) continue;
    const auto* words = reinterpret_cast<const uint32_t*>(codes[expert] + row * (k / 2) + i * 16);
    for (int j = 0; j < 4; ++j) fits = fits && (words[j] & 0x77777777u) == 0;
  }
  const bool all = __all_sync(0xFFFFFFFFu, fits) != 0;
  if (lane == 0) {
    bases[expert * n + row] = static_cast<uint8_t>(most);
    if (!all) atomicAdd(inexact, 1);
  }
}

// --- The host's part ---

QuantizeParams ToQuantize(const ops::Tensor& x, const HopperInput& input) {
  return {.x = static_cast<const Bf16*>(x.data),
          .stride = x.stride,
          .k = x.cols,
          .rows = x.rows,
          .codes = input.codes,
          .code_stride = RoundUp(input.k, kBlockK),
          .scales = input.scales,
          .scale_stride = input.scale_stride};
}

void LaunchQuantizeKernel(Stream stream, const QuantizeParams& params) {
  const int64_t threads = params.rows * (params.code_stride / 8);
  if (threads == 0) return;
  QuantizeKernel<<<static_cast<unsigned>(CeilDiv(threads, 256)), 256, 0, Handle(stream)>>>(params);
}

}  // namespace

void LaunchHopperQuantize(Stream stream, const ops::Tensor& x, const HopperInput& input) {
  LaunchQuantizeKernel(stream, ToQuantize(x, input));
}

bool HopperExpertsSupported(const ops::LinearWeight& weight) {
  if (TheMachine().blocks == 0 || Encoder() == nullptr || weight.n % 8 != 0 || !Aligned(weight.data)) return false;
  if (weight.dtype == DType::kF4E2M1) {
    return weight.k % kBlockK == 0 && weight.scale_dtype == DType::kF8E8M0 &&
           reinterpret_cast<uintptr_t>(weight.scale) % 4 == 0;
  }
  return weight.dtype == DType::kF8E4M3 && weight.k % 16 == 0;
}

size_t HopperExpertsBytes(int64_t experts, int64_t n) {
  return static_cast<size_t>(experts * (static_cast<int64_t>(sizeof(HopperExpert)) + 8) + RoundUp(experts * n, 256));
}

HopperExperts LaunchHopperPrepareExperts(Stream stream, std::span<const ops::LinearWeight* const> weights, void* memory,
                                         int32_t* inexact) {
  const ops::LinearWeight& first = *weights[0];
  const bool fp4 = first.dtype == DType::kF4E2M1;
  const auto experts = static_cast<int64_t>(weights.size());
  auto* table = static_cast<HopperExpert*>(memory);
  auto* codes = reinterpret_cast<const uint8_t**>(table + experts);
  auto* bases = reinterpret_cast<uint8_t*>(codes + experts);
  std::vector<HopperExpert> entries(weights.size());
  std::vector<const void*> data(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const ops::LinearWeight& weight = *weights[i];
    EncodeMap(reinterpret_cast<CUtensorMap*>(entries[i].map), weight.data, weight.row_bytes(), weight.n,
              weight.row_bytes(), fp4 ? kBlockK / 2 : kBlockK, kExpertWidth, !fp4);
    entries[i].scale = weight.scale;
    entries[i].base = bases + static_cast<int64_t>(i) * weight.n;
    data[i] = weight.data;
  }
  (void)cudaMemcpyAsync(table, entries.data(), entries.size() * sizeof(HopperExpert), cudaMemcpyHostToDevice,
                        Handle(stream));
  (void)cudaMemcpyAsync(codes, data.data(), data.size() * sizeof(void*), cudaMemcpyHostToDevice, Handle(stream));
  if (fp4) {
    BaseKernel<<<dim3(static_cast<unsigned>(CeilDiv(first.n, 8)), static_cast<unsigned>(experts)), 256, 0,
                 Handle(stream)>>>(table, codes, bases, first.n, first.k, inexact);
  }
  return {.table = table,
          .experts = static_cast<int>(experts),
          .n = first.n,
          .k = first.k,
          .dtype = first.dtype,
          .scale_f32 = first.scale_dtype == DType::kF32};
}

namespace {

int64_t PlanRows(int64_t tokens, int64_t experts_per_token, int64_t experts) {
  const int64_t choices = tokens * experts_per_token;
  return RoundUp(choices + 15 * std::min(experts, choices), 16);
}

}  // namespace

size_t HopperPlan::Bytes(int64_t tokens, int64_t experts_per_token, int64_t experts) {
  const int64_t choices = tokens * experts_per_token;
  const int64_t tiles = choices / kRows + std::min(experts, choices);
  return static_cast<size_t>(RoundUp(tiles * static_cast<int64_t>(sizeof(Tile)), 256) +
                             RoundUp((experts + 1) * 4, 256) + RoundUp(experts * 4, 256) + RoundUp(choices * 4, 256) +
                             RoundUp(PlanRows(tokens, experts_per_token, experts) * 4, 256) + 256);
}

HopperPlan HopperPlan::Carve(void* memory, int64_t tokens, int64_t experts_per_token, int64_t experts) {
  HopperPlan plan;
  plan.tokens = tokens;
  plan.experts_per_token = experts_per_token;
  plan.experts = experts;
  const int64_t choices = tokens * experts_per_token;
  plan.max_rows = PlanRows(tokens, experts_per_token, experts);
  plan.max_tiles = choices / kRows + std::min(experts, choices);
  auto* at = static_cast<uint8_t*>(memory);
  const auto take = [&at](int64_t bytes) {
    auto* from = at;
    at += RoundUp(bytes, 256);
    return static_cast<void*>(from);
  };
  plan.tiles = static_cast<Tile*>(take(plan.max_tiles * static_cast<int64_t>(sizeof(Tile))));
  plan.first = static_cast<int32_t*>(take((experts + 1) * 4));
  plan.count = static_cast<int32_t*>(take(experts * 4));
  plan.row = static_cast<int32_t*>(take(choices * 4));
  plan.weight = static_cast<float*>(take(plan.max_rows * 4));
  plan.tile_count = static_cast<int32_t*>(take(4));
  return plan;
}

void LaunchHopperPlan(Stream stream, const int32_t* experts, const float* weights, const HopperPlan& plan) {
  const auto blocks = static_cast<unsigned>(plan.experts);
  CountKernel<<<blocks, 256, 0, Handle(stream)>>>(experts, plan.tokens * plan.experts_per_token, plan.count);
  LayoutKernel<<<1, 1024, 0, Handle(stream)>>>(plan);
  PlaceKernel<<<blocks, 256, 0, Handle(stream)>>>(experts, weights, plan);
}

void LaunchHopperScatter(Stream stream, const ops::Tensor& x, const HopperPlan& plan, const HopperInput& input) {
  QuantizeParams params = ToQuantize(x, input);
  params.to = plan.row;
  params.choices = static_cast<int>(plan.experts_per_token);
  LaunchQuantizeKernel(stream, params);
}

void LaunchHopperSwiGlu(Stream stream, const HopperSwiGlu& args, const HopperPlan& plan, const HopperInput& input) {
  const SwiGluParams params = {.gate = static_cast<const Bf16*>(args.gate.data),
                               .up = static_cast<const Bf16*>(args.up.data),
                               .gate_stride = args.gate.stride,
                               .up_stride = args.up.stride,
                               .k = args.gate.cols,
                               .limit = args.limit,
                               .weight = args.weigh ? plan.weight : nullptr,
                               .row_end = plan.first + plan.experts,
                               .codes = input.codes,
                               .code_stride = RoundUp(input.k, kBlockK),
                               .scales = input.scales,
                               .scale_stride = input.scale_stride};
  const int64_t threads = plan.max_rows * (params.code_stride / 8);
  if (threads == 0) return;
  SwiGluKernel<<<static_cast<unsigned>(CeilDiv(threads, 256)), 256, 0, Handle(stream)>>>(params);
}

void LaunchHopperCombine(Stream stream, const ops::Tensor& rows, const int32_t* experts, const HopperPlan& plan,
                         bool weigh, const ops::Tensor& shared, const ops::Tensor& out) {
  if (plan.tokens == 0) return;
  const CombineParams params = {.rows = static_cast<const Bf16*>(rows.data),
                                .stride = rows.stride,
                                .experts = experts,
                                .row = plan.row,
                                .weight = weigh ? plan.weight : nullptr,
                                .choices = static_cast<int>(plan.experts_per_token),
                                .shared = static_cast<const Bf16*>(shared.data),
                                .shared_stride = shared.stride,
                                .out = static_cast<Bf16*>(out.data),
                                .out_stride = out.stride,
                                .cols = out.cols};
  CombineKernel<<<dim3(static_cast<unsigned>(CeilDiv(out.cols, 2048)), static_cast<unsigned>(plan.tokens)), 256, 0,
                  Handle(stream)>>>(params);
}

}  // namespace hadal::gpu::cuda
