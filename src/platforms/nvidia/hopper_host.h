// What the sources of Hopper's matrix kernels share: sizes of tiles, the card, tensor maps.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "platforms/gpu/device.h"

namespace hadal::gpu::cuda {

inline constexpr int kBlockK = 128;
inline constexpr int kRows = 128;         // of X, of a tile
inline constexpr int kExpertWidth = 128;  // rows of W of a block, of experts

HADAL_HOST_DEVICE constexpr int64_t RoundUp(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

struct Machine {
  int blocks = 0;  // multiprocessors; 0: no Hopper
};

inline const Machine& TheMachine() {
  static const Machine machine = [] {
    int device = 0, major = 0, minor = 0, blocks = 0;
    Machine m;
    if (cudaGetDevice(&device) != cudaSuccess) return m;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
    if (major == 9 && minor == 0) m.blocks = blocks;
    return m;
  }();
  return machine;
}

// The driver's encoder, found at run time: the program needs no driver library to start.
inline decltype(&cuTensorMapEncodeTiled) Encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result) !=
            cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      function = nullptr;
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encoder;
}

// A matrix of bytes, loaded in boxes of box_cols x box_rows.
inline bool EncodeMap(CUtensorMap* map, const void* data, int64_t cols, int64_t rows, int64_t stride, int box_cols,
                      int box_rows, bool swizzle) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_cols), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  return Encoder()(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), sizes, strides, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

inline bool Aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

inline cudaStream_t Handle(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace hadal::gpu::cuda
