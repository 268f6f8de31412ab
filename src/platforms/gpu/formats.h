// Number formats in kernels; the same results to the bit as base/float_formats.h, which says what they are.
//
// FP8 is OCP's E4M3 everywhere, in weights and in caches, and is decoded by bit arithmetic. gfx942's own FP8 (its
// matrix unit and its conversions) is another one, FNUZ, whose codes mean half: a kernel that gave it these bytes would
// need the changes of platforms/amd/weight_layout.h.
#pragma once

#include "platforms/gpu/device.h"

namespace hadal::gpu::HADAL_GPU_NS {

struct Bf16 {
  uint16_t bits;
};

HADAL_DEVICE float ToFloat(float v) { return v; }
HADAL_DEVICE float ToFloat(Bf16 v) { return BitsFloat(static_cast<unsigned>(v.bits) << 16); }

HADAL_DEVICE Bf16 ToBf16(float v) {
  const unsigned u = FloatBits(v);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

// v rounded once, to an activation's type.
template <typename T>
HADAL_DEVICE T FromFloat(float v);
template <>
HADAL_DEVICE float FromFloat<float>(float v) {
  return v;
}
template <>
HADAL_DEVICE Bf16 FromFloat<Bf16>(float v) {
  return ToBf16(v);
}
// The fp32 value of v after that rounding.
template <typename T>
HADAL_DEVICE float Round(float v) {
  return ToFloat(FromFloat<T>(v));
}

HADAL_DEVICE float E8M0ToFloat(uint8_t byte) {
  return BitsFloat(byte == 0xFF ? 0x7FC00000u : byte == 0 ? 0x00400000u : static_cast<unsigned>(byte) << 23);
}

// Seven bits of a code moved to where fp32 has exponent and mantissa, and the difference of the biases made good by a
// product, which is exact, subnormal codes included.
HADAL_DEVICE float E4M3ToFloat(uint8_t code) {
  const unsigned magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return BitsFloat(0x7FC00000u);
  const float v = BitsFloat(magnitude << 20) * BitsFloat(247u << 23);  // 2^120
  return (code & 0x80u) != 0 ? -v : v;
}
HADAL_DEVICE float E2M1ToFloat(unsigned code) {
  const float v = BitsFloat((code & 7u) << 22) * BitsFloat(253u << 23);  // 2^126
  return (code & 8u) != 0 ? -v : v;
}

// To nearest even, saturating.
HADAL_DEVICE uint8_t FloatToE4M3(float v) {
  const unsigned u = FloatBits(v);
  const auto sign = static_cast<uint8_t>((u >> 24) & 0x80u);
  const unsigned magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7F;
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // 448
  if (magnitude < 0x3C800000u) {                                            // below 2^-6: steps of 2^-9
    return static_cast<uint8_t>(sign | static_cast<unsigned>(rintf(BitsFloat(magnitude) * 512.0f)));
  }
  const unsigned rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}
HADAL_DEVICE unsigned FloatToE2M1(float v) {
  const unsigned sign = (FloatBits(v) >> 28) & 8u;
  const float a = BitsFloat(FloatBits(v) & 0x7FFFFFFFu);
  unsigned code = 0;
  code += a > 0.25f ? 1u : 0u;
  code += a >= 0.75f ? 1u : 0u;
  code += a > 1.25f ? 1u : 0u;
  code += a >= 1.75f ? 1u : 0u;
  code += a > 2.5f ? 1u : 0u;
  code += a >= 3.5f ? 1u : 0u;
  code += a > 5.0f ? 1u : 0u;
  return sign | code;
}

HADAL_DEVICE float Pow2Ceil(float x) { return BitsFloat((FloatBits(x) + 0x007FFFFFu) & 0x7F800000u); }
HADAL_DEVICE float E4M3BlockScale(float amax) { return Pow2Ceil((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f)); }
HADAL_DEVICE float E2M1BlockScale(float amax) {
  const float least = 6.0f * BitsFloat(1u << 23);
  return Pow2Ceil((amax > least ? amax : least) * (1.0f / 6.0f));
}
HADAL_DEVICE float RoundE4M3(float v) { return E4M3ToFloat(FloatToE4M3(v)); }
HADAL_DEVICE float RoundE2M1(float v) { return E2M1ToFloat(FloatToE2M1(v)); }

// Sixteen bytes of memory, moved at once.
struct alignas(16) Bytes16 {
  uint32_t words[4];
};

// Sixteen bytes that are read once (weights): they pass the first cache by.
HADAL_DEVICE Bytes16 LoadOnce16(const void* from) {
#if HADAL_GPU_CUDA
  Bytes16 out;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      : "=r"(out.words[0]), "=r"(out.words[1]), "=r"(out.words[2]), "=r"(out.words[3])
      : "l"(from));
  return out;
#else
  return *static_cast<const Bytes16*>(from);
#endif
}

// Two bf16 numbers in a word, the first in its low half. MultiplyPairs is for products that are exact in bf16.
HADAL_DEVICE uint32_t MultiplyPairs(uint32_t a, uint32_t b) {
#if HADAL_GPU_CUDA
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(out) : "r"(a), "r"(b), "r"(0x80008000u));
  return out;
#else
  const unsigned low = FloatBits(BitsFloat(a << 16) * BitsFloat(b << 16));
  const unsigned high = FloatBits(BitsFloat(a & 0xFFFF0000u) * BitsFloat(b & 0xFFFF0000u));
  return low >> 16 | (high & 0xFFFF0000u);
#endif
}

// Four E4M3 codes as bf16: the seven bits of a code go to where bf16 has exponent and mantissa, and a product with
// 2^120 makes good the difference of the biases, for subnormal codes too. NaN (which no weight is) would become 480.
HADAL_DEVICE void DecodeE4M3(uint32_t codes, uint32_t* first, uint32_t* second) {
  const auto pair = [](uint32_t spread) {  // codes in the high bytes of the halves
    return MultiplyPairs((spread & 0x80008000u) | ((spread >> 4) & 0x07F007F0u), 0x7B807B80u);
  };
  *first = pair(BytePermute(codes, 0, 0x1404));
  *second = pair(BytePermute(codes, 0, 0x3424));
}

// What E2M1 codes are multiplied with, behind the move of their bits: 2^126 and the block's scale. Scales above 2 do
// not fit into one bf16 factor beside it: the second is 1 elsewhere.
struct E2M1Factor {
  uint32_t first, second;
};
HADAL_DEVICE E2M1Factor MakeE2M1Factor(uint8_t scale) {
  const unsigned exponent = scale <= 128 ? scale + 126u : 253u;
  const unsigned rest = scale <= 128 ? 127u : scale;
  return {exponent << 7 | exponent << 23, rest << 7 | rest << 23};
}
// Eight E2M1 codes as bf16: codes (0, 4), (1, 5), (2, 6), (3, 7), which lie in the same place of a word's halves.
HADAL_DEVICE void DecodeE2M1(uint32_t codes, const E2M1Factor& factor, uint32_t* out) {
  constexpr uint32_t kSign = 0x80008000u, kMagnitude = 0x01C001C0u;
  out[0] = MultiplyPairs(((codes << 12) & kSign) | ((codes << 6) & kMagnitude), factor.first);
  out[1] = MultiplyPairs(((codes << 8) & kSign) | ((codes << 2) & kMagnitude), factor.first);
  out[2] = MultiplyPairs(((codes << 4) & kSign) | ((codes >> 2) & kMagnitude), factor.first);
  out[3] = MultiplyPairs((codes & kSign) | ((codes >> 6) & kMagnitude), factor.first);
  if (factor.second != 0x3F803F80u) {
    for (int i = 0; i < 4; ++i) out[i] = MultiplyPairs(out[i], factor.second);
  }
}

// Element i of a weight vector (ops::Vector) that is bf16 or fp32.
HADAL_DEVICE float VectorAt(const void* data, bool is_bf16, int64_t i) {
  return is_bf16 ? ToFloat(static_cast<const Bf16*>(data)[i]) : static_cast<const float*>(data)[i];
}

}  // namespace hadal::gpu::HADAL_GPU_NS
