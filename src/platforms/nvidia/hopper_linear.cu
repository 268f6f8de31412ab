// One kernel for all. A cluster of two blocks multiplies 128 rows of X by 2*kWidth rows of W (kWidth a block); each
// block loads half of the rows of X for both. Rows of X are the operand whose rows a thread keeps (two of them): their
// scales are two registers. The other way round, with rows of W as that operand, FP4 could be decoded into its
// registers and tiles could have any number of tokens, but a thread needs the scales of kWidth/4 columns, and loads
// from shared memory wait long beside running products: 490 ns a block of k against 325 (128 x 128, products and sums
// alone).
//
// A block is a warpgroup that loads (one thread of it works), two that multiply (64 rows of X each), and for FP4 two
// that decode codes to e4m3 in shared memory. Blocks stay for many tiles; stages of 128 of k run through a ring in
// shared memory.
#include <cuda_runtime.h>

#include <algorithm>

#include "platforms/gpu/formats.h"
#include "platforms/nvidia/hopper_host.h"
#include "platforms/nvidia/hopper_instructions.h"
#include "platforms/nvidia/hopper_linear.h"

namespace hadal::gpu::cuda {
namespace {

constexpr int kSharedLimit = 232448;

struct Target {
  void* out = nullptr;
  int64_t stride = 0;
  const void* scale = nullptr;  // of one weight; experts have theirs in the table
  const HopperExpert* experts = nullptr;
  int n = 0;
  int pair_end = 0;  // pairs of blocks of the targets up to this one
  bool scale_f32 = false;
  bool out_f32 = false;
};

struct Params {
  CUtensorMap x;
  CUtensorMap w[kHopperTargets];
  Target targets[kHopperTargets];
  const float* scales = nullptr;  // of x
  int64_t scale_stride = 0;
  const HopperPlan::Tile* tiles = nullptr;  // grouped
  const int32_t* tile_count = nullptr;
  int rows = 0;
  int blocks_k = 0;
  int pairs = 0;
};

template <int kWidth, bool kFp4>
struct Layout {
  static constexpr int kThreads = kFp4 ? 640 : 384;
  static constexpr int kX = kRows * kBlockK;
  static constexpr int kW = kWidth * kBlockK;                     // e4m3
  static constexpr int kCodes = kFp4 ? kWidth * kBlockK / 2 : 0;  // FP4, as loaded
  static constexpr int kScales = kRows * 4;
  static constexpr int kOutPitch =
      kWidth * 2 + 16;  // of a row of results; one 16-byte word more, against bank conflicts
  static constexpr int kOut = kRows * kOutPitch;
  static constexpr int kTable = 128;
  static constexpr int kBarriers = 256;
  // What is loaded goes through a ring deep enough for the memory's latency; decoded blocks through one of three: two
  // are decoded while one is multiplied.
  static constexpr int kDecoded = kFp4 ? 3 : 0;
  static constexpr int kFit =
      (kSharedLimit - 1024 - kTable - kBarriers - kOut - kDecoded * kW) / (kX + (kFp4 ? kCodes : kW) + kScales);
  static constexpr int kStages = kFit > 8 ? 8 : kFit;
  // From a multiple of 1024 on.
  static constexpr int kAtX = 0;
  static constexpr int kAtW = kAtX + kStages * kX;
  static constexpr int kAtCodes = kAtW + (kFp4 ? kDecoded : kStages) * kW;
  static constexpr int kAtScales = kAtCodes + kStages * kCodes;
  static constexpr int kAtOut = kAtScales + kStages * kScales;
  static constexpr int kAtTable = kAtOut + kOut;
  static constexpr int kAtBarriers = kAtTable + kTable;
  static constexpr int kBytes = kAtBarriers + kBarriers + 1024;
  static_assert(kStages >= 4 && kBytes <= kSharedLimit && kW % 1024 == 0);
};

#if HADAL_SM90A

using namespace hopper;

struct Work {
  int target, n, row, rows, expert;
};

// Tile `index` for the block of this rank; false behind the last.
template <bool kGrouped, int kWidth>
__device__ __forceinline__ bool Locate(const Params& p, int index, int rank, int tile_count, Work* work) {
  int pair = 0;
  if constexpr (kGrouped) {
    if (index >= tile_count * p.pairs) return false;
    const HopperPlan::Tile tile = p.tiles[index / p.pairs];
    pair = index % p.pairs;
    work->expert = tile.expert;
    work->row = tile.row;
    work->rows = tile.rows;
  } else {
    // In groups of 8 tiles of rows, so that the tiles under way at a time share rows of both operands in L2.
    const int row_tiles = (p.rows + kRows - 1) / kRows;
    if (index >= row_tiles * p.pairs) return false;
    const int group = index / (8 * p.pairs);
    const int tiles = min(8, row_tiles - 8 * group);
    const int in = index - group * 8 * p.pairs;
    pair = in / tiles;
    work->expert = 0;
    work->row = (8 * group + in % tiles) * kRows;
    work->rows = min(kRows, p.rows - work->row);
  }
  int target = 0;
  while (pair >= p.targets[target].pair_end) ++target;
  if (target > 0) pair -= p.targets[target - 1].pair_end;
  work->target = target;
  work->n = (2 * pair + rank) * kWidth;
  return true;
}

__device__ __forceinline__ float LoadShared(uint32_t at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ uint4 LoadShared4(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}
__device__ __forceinline__ void StoreShared4(uint32_t at, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Eight FP4 codes as e4m3, signs from the codes, magnitudes from the eight of a table.
__device__ __forceinline__ void DecodeFp4(uint32_t codes, uint2 table, uint32_t* low, uint32_t* high) {
  const uint32_t pick = codes & 0x77777777u;
  const uint32_t shifted = codes << 4;  // signs of the even codes to where those of the odd ones are
  *low = __byte_perm(table.x, table.y, pick) | (__byte_perm(shifted, codes, 0x5140) & 0x80808080u);
  *high = __byte_perm(table.x, table.y, pick >> 16) | (__byte_perm(shifted, codes, 0x7362) & 0x80808080u);
}

// What a warp knows of the ring and its place in it.
struct Ring {
  uint32_t base;            // shared address
  uint32_t full, empty;     // of stages
  uint32_t decoded, spent;  // of decoded blocks
  int stage = 0, slot = 0, turn = 0;
  uint32_t phase = 0, slot_phase = 0;

  template <typename L>
  __device__ __forceinline__ void Next() {
    if (++stage == L::kStages) {
      stage = 0;
      phase ^= 1;
    }
    if constexpr (L::kDecoded > 0) {
      turn ^= 1;
      if (++slot == L::kDecoded) {
        slot = 0;
        slot_phase ^= 1;
      }
    }
  }
};

// Decodes a tile's FP4 rows to e4m3, every second block: those of turn `mine`. (With one warpgroup for all, a block of
// an expert of few tokens took 605 ns instead of 530.) A warp has 32 rows. Of a row's 128 codes a thread takes 32 that
// have one scale: 16 bytes, one look-up of the eight values that codes have under it, and 32 bytes written where the
// copy engine would have laid e4m3 down.
template <typename L>
__device__ __forceinline__ void DecodeTile(const Params& p, const Work& work, Ring* ring, int mine, int thread) {
  const Target& target = p.targets[work.target];
  const HopperExpert& expert = target.experts[work.expert];
  const int lane = thread % 32, g = lane / 4, t = lane % 4;
  const int row0 = thread / 32 * 32 + g;
  const int blocks_k = p.blocks_k;
  const uint32_t* scale[4];  // of the thread's four rows: E8M0, four a block
  int base[4];
  uint32_t words[4], next[4];  // of the thread's share of four blocks
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = min(work.n + row0 + 8 * i, target.n - 1);
    scale[i] = static_cast<const uint32_t*>(expert.scale) + static_cast<int64_t>(row) * blocks_k + t;
    base[i] = 15 - __ldg(expert.base + row);
    next[i] = t < blocks_k ? __ldg(scale[i]) : 0;
  }
  for (int kb = 0; kb < blocks_k; ++kb) {
    if (kb % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = next[i];
        next[i] = kb + 4 + t < blocks_k ? __ldg(scale[i] + kb + 4) : 0;
      }
    }
    if (ring->turn != mine) {
      ring->Next<L>();
      continue;
    }
    const uint32_t from = ring->base + L::kAtCodes + ring->stage * L::kCodes + row0 * 64 + t * 16;
    const uint32_t to = ring->base + L::kAtW + ring->slot * L::kW + row0 * 128;
    BarrierWait(ring->full + 8 * ring->stage, ring->phase);
    // All loads before the first use: other loads from shared memory wait long beside running products.
    uint4 codes[4];
    uint2 values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i] = LoadShared4(from + i * 8 * 64);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t four = __shfl_sync(0xFFFFFFFFu, words[i], (lane & 28) | (kb & 3));
      const int entry = max(static_cast<int>((four >> (8 * t)) & 0xFFu) + base[i], 0);
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(values[i].x), "=r"(values[i].y)
                   : "r"(ring->base + L::kAtTable + 8 * entry));
    }
    BarrierWait(ring->spent + 8 * ring->slot, ring->slot_phase ^ 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t e[8];
      DecodeFp4(codes[i].x, values[i], &e[0], &e[1]);
      DecodeFp4(codes[i].y, values[i], &e[2], &e[3]);
      DecodeFp4(codes[i].z, values[i], &e[4], &e[5]);
      DecodeFp4(codes[i].w, values[i], &e[6], &e[7]);
      StoreShared4(to + i * 8 * 128 + (((2 * t) ^ g) << 4), e[0], e[1], e[2], e[3]);
      StoreShared4(to + i * 8 * 128 + (((2 * t + 1) ^ g) << 4), e[4], e[5], e[6], e[7]);
    }
    FenceForProducts();
    __syncwarp();
    if (lane == 0) BarrierArrive(ring->decoded + 8 * ring->slot);
    ring->Next<L>();
  }
}

// sums: 16 rows of X of a warp by kWidth rows of W. out_rows: where in shared memory the warp may lay them down.
template <typename L, int kWidth>
__device__ __forceinline__ void Store(const float (&sums)[kWidth / 2], const Target& target, const Work& work, int row0,
                                      uint32_t out_rows, int lane) {
  if (target.out_f32) {
    auto* out = static_cast<float*>(target.out);
#pragma unroll
    for (int i = 0; i < kWidth / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = row0 + lane / 4 + e / 2 * 8;
        const int column = work.n + 8 * i + lane % 4 * 2 + e % 2;
        if (row < work.rows && column < target.n) out[(work.row + row) * target.stride + column] = sums[4 * i + e];
      }
    }
    return;
  }
  __syncwarp();  // what the last tile left here has been read
  const uint32_t at = out_rows + lane % 16 * L::kOutPitch + lane / 16 * 16;
#pragma unroll
  for (int u = 0; u < kWidth / 16; ++u) {
    StoreMatrices(at + u * 32, PackBf16(sums[8 * u], sums[8 * u + 1]), PackBf16(sums[8 * u + 2], sums[8 * u + 3]),
                  PackBf16(sums[8 * u + 4], sums[8 * u + 5]), PackBf16(sums[8 * u + 6], sums[8 * u + 7]));
  }
  __syncwarp();
  constexpr int kChunks = kWidth / 8;  // 16 bytes each, of a row
  auto* out = static_cast<Bf16*>(target.out);
#pragma unroll 4
  for (int i = lane; i < 16 * kChunks; i += 32) {
    const int row = row0 + i / kChunks, column = work.n + i % kChunks * 8;
    const uint4 v = LoadShared4(out_rows + i / kChunks * L::kOutPitch + i % kChunks * 16);
    if (row < work.rows && column < target.n) {
      *reinterpret_cast<uint4*>(out + (work.row + row) * target.stride + column) = v;
    }
  }
}

// A stage's shared memory may be written again: to the loaders of both blocks, which write into both.
template <bool kFp4>
__device__ __forceinline__ void Release(const Ring& ring, int lane) {
  __syncwarp();
  if (lane < 2) BarrierArriveAt(ring.empty + 8 * ring.stage, lane);
  if (kFp4 && lane == 0) BarrierArrive(ring.spent + 8 * ring.slot);
}

// A scale of a weight's grid as it lies in memory: turned into a float a block later, so that nothing waits for it.
__device__ __forceinline__ uint32_t LoadScale(const void* scale, bool is_f32, int64_t i) {
  return is_f32 ? __ldg(static_cast<const uint32_t*>(scale) + i) : __ldg(static_cast<const uint8_t*>(scale) + i);
}
__device__ __forceinline__ float ScaleOf(uint32_t bits, bool is_f32) {
  return is_f32 ? BitsFloat(bits) : E8M0ToFloat(static_cast<uint8_t>(bits));
}

// Behind the products of a block there is one instruction a sum and little else: what runs there adds to the time of a
// block, since both warpgroups get there at about the same time, and the registers' ports are busy beside products.
template <typename L, int kWidth, bool kFp4>
__device__ __forceinline__ void MultiplyTile(const Params& p, const Work& work, Ring* ring, int group, int thread) {
  const Target& target = p.targets[work.target];
  const int lane = thread % 32, warp = thread / 32;
  const int row0 = group * 64 + warp * 16;
  const int blocks_k = p.blocks_k;
  if (group * 64 >= work.rows) {  // an expert's tile with no rows for this warpgroup
    for (int kb = 0; kb < blocks_k; ++kb) {
      BarrierWait(ring->full + 8 * ring->stage, ring->phase);
      if constexpr (kFp4) BarrierWait(ring->decoded + 8 * ring->slot, ring->slot_phase);
      Release<kFp4>(*ring, lane);
      ring->Next<L>();
    }
    return;
  }
  const bool is_f32 = target.scale_f32;
  const void* scale = target.experts == nullptr ? target.scale : target.experts[work.expert].scale;
  const int64_t grid_row = static_cast<int64_t>(min(work.n, target.n - 1) / kBlockK) * blocks_k;
  uint32_t bits = kFp4 ? 0 : LoadScale(scale, is_f32, grid_row);
  float sums[kWidth / 2], part[kWidth / 2];
#pragma unroll
  for (float& v : sums) v = 0;
  const uint32_t scale_at = ring->base + L::kAtScales + (row0 + lane / 4) * 4;
  for (int kb = 0; kb < blocks_k; ++kb) {
    const uint64_t a = Operand(ring->base + L::kAtX + group * 64 * kBlockK) + ring->stage * (L::kX / 16);
    const uint64_t b = Operand(ring->base + L::kAtW) + (kFp4 ? ring->slot : ring->stage) * (L::kW / 16);
    BarrierWait(ring->full + 8 * ring->stage, ring->phase);
    float f0 = LoadShared(scale_at + ring->stage * L::kScales),
          f1 = LoadShared(scale_at + ring->stage * L::kScales + 32);
    if constexpr (kFp4) BarrierWait(ring->decoded + 8 * ring->slot, ring->slot_phase);
    Pin(part);
    WgmmaFence();
    Wgmma<kWidth, false>::Multiply(part, a, b);
    Wgmma<kWidth, true>::Multiply(part, a + 2, b + 2);
    Wgmma<kWidth, true>::Multiply(part, a + 4, b + 4);
    Wgmma<kWidth, true>::Multiply(part, a + 6, b + 6);
    WgmmaCommit();
    Pin(part);
    if constexpr (!kFp4) {
      const float s = ScaleOf(bits, is_f32);
      f0 *= s;
      f1 *= s;
      bits = LoadScale(scale, is_f32, grid_row + min(kb + 1, blocks_k - 1));
    }
    WgmmaWait();
    Pin(part);
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) sums[i] = fmaf(part[i], i % 4 < 2 ? f0 : f1, sums[i]);
    Release<kFp4>(*ring, lane);
    ring->Next<L>();
  }
  if constexpr (kFp4) {
    // The table's values are 2^6 times what a row's largest scale asks for.
    const uint8_t* bases = target.experts[work.expert].base;
#pragma unroll
    for (int i = 0; i < kWidth / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float f = E8M0ToFloat(__ldg(bases + min(work.n + 8 * i + lane % 4 * 2 + e, target.n - 1))) * 0.015625f;
        sums[4 * i + e] *= f;
        sums[4 * i + 2 + e] *= f;
      }
    }
  }
  Store<L, kWidth>(sums, target, work, row0, ring->base + L::kAtOut + row0 * L::kOutPitch, lane);
}

#endif  // HADAL_SM90A

template <bool kGrouped, bool kFp4, int kWidth>
__global__ void __launch_bounds__(Layout<kWidth, kFp4>::kThreads, 1) MatrixKernel(const __grid_constant__ Params p) {
#if HADAL_SM90A
  using L = Layout<kWidth, kFp4>;
  extern __shared__ uint8_t shared[];
  const uint32_t base = (SharedAddress(shared) + 1023) / 1024 * 1024;
  const uint32_t full = base + L::kAtBarriers, empty = full + 8 * L::kStages;
  const uint32_t decoded = empty + 8 * L::kStages, spent = decoded + 8 * L::kDecoded;
  const int rank = static_cast<int>(ClusterRank());
  const int first = static_cast<int>(blockIdx.x) / 2, step = static_cast<int>(gridDim.x) / 2;
  const int tile_count = kGrouped ? *p.tile_count : 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < L::kStages; ++i) {
      BarrierInit(full + 8 * i, 1);
      BarrierInit(empty + 8 * i, 16);  // the multiplying warps of two blocks
    }
    for (int i = 0; i < L::kDecoded; ++i) {
      BarrierInit(decoded + 8 * i, 4);  // the decoding warps
      BarrierInit(spent + 8 * i, 8);    // the multiplying warps
    }
    BarrierInitFence();
    PrefetchMap(&p.x);
  }
  if constexpr (kFp4) {
    // Entry e: the eight magnitudes times 2^(e-9): under a scale 2^(15-e) below the row's largest. Entry 0: zeros.
    if (threadIdx.x < 128) {
      const int entry = static_cast<int>(threadIdx.x) / 8, code = static_cast<int>(threadIdx.x) % 8;
      const float v = entry == 0 ? 0 : E2M1ToFloat(code) * BitsFloat(static_cast<unsigned>(127 + entry - 9) << 23);
      asm volatile("st.shared.u8 [%0], %1;" ::"r"(base + L::kAtTable + threadIdx.x),
                   "r"(static_cast<uint32_t>(FloatToE4M3(v)))
                   : "memory");
    }
  }
  ClusterSync();
  Ring ring = {base, full, empty, decoded, spent};
  // From lane 0, so that the compiler knows it for one of the whole warp.
  const int role = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  Work work;
  if (role == 0) {
    FewerRegisters<40>();
    if (thread == 0) {
      for (int index = first; Locate<kGrouped, kWidth>(p, index, rank, tile_count, &work); index += step) {
        const Target& target = p.targets[work.target];
        const auto* map =
            kGrouped ? reinterpret_cast<const CUtensorMap*>(target.experts[work.expert].map) : &p.w[work.target];
        constexpr uint32_t kBytes = L::kX + (kFp4 ? L::kCodes : L::kW) + L::kScales;
        const float* scales = p.scales + work.row;
        for (int kb = 0; kb < p.blocks_k; ++kb) {
          const uint32_t bar = full + 8 * ring.stage;
          BarrierWait(empty + 8 * ring.stage, ring.phase ^ 1);
          BarrierExpect(bar, kBytes);
          CopyBoxToPair(base + L::kAtX + ring.stage * L::kX + rank * L::kX / 2, &p.x, kb * kBlockK,
                        work.row + rank * kRows / 2, bar);
          if constexpr (kFp4) {
            CopyBox(base + L::kAtCodes + ring.stage * L::kCodes, map, kb * kBlockK / 2, work.n, bar);
          } else {
            CopyBox(base + L::kAtW + ring.stage * L::kW, map, kb * kBlockK, work.n, bar);
          }
          CopyBytes(base + L::kAtScales + ring.stage * L::kScales, scales, L::kScales, bar);
          scales += p.scale_stride;
          ring.Next<L>();
        }
      }
    }
    __syncwarp();
  } else if (role < 3) {
    MoreRegisters<kFp4 ? 144 : 232>();
    for (int index = first; Locate<kGrouped, kWidth>(p, index, rank, tile_count, &work); index += step) {
      MultiplyTile<L, kWidth, kFp4>(p, work, &ring, role - 1, thread);
    }
  } else if constexpr (kFp4) {
    FewerRegisters<72>();
    for (int index = first; Locate<kGrouped, kWidth>(p, index, rank, tile_count, &work); index += step) {
      DecodeTile<L>(p, work, &ring, role - 3, thread);
    }
  }
  ClusterSync();  // neither block may go while the other writes to it
#endif
}

// --- The host's part ---

template <bool kGrouped, bool kFp4, int kWidth>
void LaunchMatrix(Stream stream, const Params& params, int64_t tiles) {
  constexpr int kBytes = Layout<kWidth, kFp4>::kBytes;
  auto* kernel = MatrixKernel<kGrouped, kFp4, kWidth>;
  static const cudaError_t granted = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  (void)granted;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(2 * std::min<int64_t>(tiles, TheMachine().blocks / 2)));
  config.blockDim = dim3(Layout<kWidth, kFp4>::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = Handle(stream);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 2;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  (void)cudaLaunchKernelEx(&config, kernel, params);
}

// Cycles of a launch, roughly, as measured on an H200: a block of k grows with its width, or with how many clusters ask
// for the same rows of X at a time; and a tile's start and end.
int64_t Cycles(int64_t row_tiles, int64_t pairs, int64_t blocks_k, int width) {
  const int64_t clusters = TheMachine().blocks / 2;
  const int64_t tiles = row_tiles * pairs;
  const int64_t sharing = std::min(tiles, clusters) / std::min<int64_t>(row_tiles, 8);
  const int64_t block = std::max<int64_t>(570 + 5 * width / 2, 475 + 11 * sharing);
  return CeilDiv(tiles, clusters) * (blocks_k * block + 1000 + 6 * width);
}

}  // namespace

size_t HopperInput::Bytes(int64_t rows, int64_t k) {
  const int64_t blocks_k = CeilDiv(k, kBlockK);
  return static_cast<size_t>(RoundUp(rows * blocks_k * kBlockK, 256) +
                             RoundUp(blocks_k * (RoundUp(rows, 16) + kRows) * 4, 256));
}

HopperInput HopperInput::Carve(void* memory, int64_t rows, int64_t k) {
  const int64_t blocks_k = CeilDiv(k, kBlockK);
  HopperInput input;
  input.codes = static_cast<uint8_t*>(memory);
  input.scales = reinterpret_cast<float*>(input.codes + RoundUp(rows * blocks_k * kBlockK, 256));
  input.rows = rows;
  input.k = k;
  input.scale_stride = RoundUp(rows, 16) + kRows;  // a tile's scales are loaded whole
  return input;
}

bool HopperLinearSupported(const ops::LinearWeight& weight, const ops::Tensor& out) {
  if (TheMachine().blocks == 0 || Encoder() == nullptr) return false;
  if (weight.dtype != DType::kF8E4M3 || weight.k % 16 != 0 || weight.n % 8 != 0 || !Aligned(weight.data)) return false;
  if (weight.scale_dtype != DType::kF8E8M0 && weight.scale_dtype != DType::kF32) return false;
  return out.dtype == DType::kF32 || (out.dtype == DType::kBF16 && Aligned(out.data) && out.stride % 8 == 0);
}

void LaunchHopperLinear(Stream stream, const HopperInput& x, std::span<const HopperTarget> targets, int force_width) {
  if (x.rows == 0 || targets.empty()) return;
  Params params;
  const int64_t blocks_k = CeilDiv(x.k, kBlockK);
  const int64_t row_tiles = CeilDiv(x.rows, kRows);
  const auto pairs_of = [&](int width) {
    int64_t pairs = 0;
    for (const HopperTarget& target : targets) pairs += CeilDiv(target.weight->n, 2 * width);
    return pairs;
  };
  int width = force_width;
  if (width == 0) {
    int64_t best = 0;
    for (const int candidate : {128, 64, 32}) {
      const int64_t cycles = Cycles(row_tiles, pairs_of(candidate), blocks_k, candidate);
      if (width != 0 && cycles >= best) continue;
      width = candidate;
      best = cycles;
    }
  }
  int64_t pairs = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const ops::LinearWeight& weight = *targets[i].weight;
    pairs += CeilDiv(weight.n, 2 * width);
    params.targets[i] = {.out = targets[i].out.data,
                         .stride = targets[i].out.stride,
                         .scale = weight.scale,
                         .n = static_cast<int>(weight.n),
                         .pair_end = static_cast<int>(pairs),
                         .scale_f32 = weight.scale_dtype == DType::kF32,
                         .out_f32 = targets[i].out.dtype == DType::kF32};
    EncodeMap(&params.w[i], weight.data, weight.k, weight.n, weight.k, kBlockK, width, true);
  }
  params.scales = x.scales;
  params.scale_stride = x.scale_stride;
  params.rows = static_cast<int>(x.rows);
  params.blocks_k = static_cast<int>(blocks_k);
  params.pairs = static_cast<int>(pairs);
  EncodeMap(&params.x, x.codes, blocks_k * kBlockK, x.rows, blocks_k * kBlockK, kBlockK, kRows / 2, true);
  switch (width) {
    case 32:
      return LaunchMatrix<false, false, 32>(stream, params, row_tiles * pairs);
    case 64:
      return LaunchMatrix<false, false, 64>(stream, params, row_tiles * pairs);
    default:
      return LaunchMatrix<false, false, 128>(stream, params, row_tiles * pairs);
  }
}

void LaunchHopperGroupedLinear(Stream stream, const HopperInput& x, const HopperPlan& plan,
                               std::span<const HopperGroupedTarget> targets) {
  if (plan.tokens == 0 || targets.empty()) return;
  Params params;
  const int64_t blocks_k = CeilDiv(x.k, kBlockK);
  int64_t pairs = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const HopperExperts& weights = targets[i].weights;
    pairs += CeilDiv(weights.n, 2 * kExpertWidth);
    params.targets[i] = {.out = targets[i].out.data,
                         .stride = targets[i].out.stride,
                         .experts = weights.table,
                         .n = static_cast<int>(weights.n),
                         .pair_end = static_cast<int>(pairs),
                         .scale_f32 = weights.scale_f32,
                         .out_f32 = targets[i].out.dtype == DType::kF32};
  }
  params.scales = x.scales;
  params.scale_stride = x.scale_stride;
  params.tiles = plan.tiles;
  params.tile_count = plan.tile_count;
  params.rows = static_cast<int>(x.rows);
  params.blocks_k = static_cast<int>(blocks_k);
  params.pairs = static_cast<int>(pairs);
  EncodeMap(&params.x, x.codes, blocks_k * kBlockK, x.rows, blocks_k * kBlockK, kBlockK, kRows / 2, true);
  if (targets[0].weights.dtype == DType::kF4E2M1) {
    LaunchMatrix<true, true, kExpertWidth>(stream, params, plan.max_tiles * pairs);
  } else {
    LaunchMatrix<true, false, kExpertWidth>(stream, params, plan.max_tiles * pairs);
  }
}

}  // namespace hadal::gpu::cuda
