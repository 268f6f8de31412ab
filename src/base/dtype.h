// Element types of tensors, as checkpoints name them and as buffers hold them.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace hadal {

enum class DType : uint8_t {
  kF32,
  kBF16,
  kF16,
  kF8E4M3,  // OCP "fn" variant: max 448, NaN 0x7F/0xFF, no infinities
  kF8E8M0,  // 2^(byte-127), 0xFF = NaN
  kF4E2M1,  // two values a byte, low nibble first; shapes count logical elements
  kI8,
  kU8,
  kI32,
  kI64,
};

// "F32", "F8_E4M3", ...: the name safetensors files use.
std::string_view DTypeName(DType dtype);

// Accepts the published names and the aliases of spec deepseek-v4-text 2.1 (F8_E4M3FN, F8_E8M0FNU, F4).
absl::StatusOr<DType> ParseDType(std::string_view name);

// Bits of one element: 4 for kF4E2M1.
int DTypeBits(DType dtype);

// Bytes of `elements` packed elements; `elements` of kF4E2M1 must be even.
inline int64_t DTypeBytes(DType dtype, int64_t elements) { return elements * DTypeBits(dtype) / 8; }

}  // namespace hadal
