// Scalar conversions between fp32 and the number formats of the checkpoints (spec deepseek-v4-text 2.3 and 3.1).
// These are the definition that every vectorised conversion is tested against.
#pragma once

#include <bit>
#include <cstdint>

namespace hadal {

// bf16 kept as its bits; arithmetic is done in fp32.
struct BFloat16 {
  uint16_t bits;
};

inline float ToFloat(BFloat16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

// Round to nearest, ties to even. NaN stays NaN.
inline BFloat16 ToBFloat16(float v) {
  const uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}

// fp32 value of v after one rounding to bf16.
inline float RoundBF16(float v) { return ToFloat(ToBFloat16(v)); }

// E4M3 (fn). Codes 0x7F and 0xFF give NaN.
float E4M3ToFloat(uint8_t code);
// Round to nearest even, saturating at +-448; NaN gives 0x7F.
uint8_t FloatToE4M3(float v);

// E8M0: 2^(byte-127); byte 0 is the fp32 subnormal 2^-127, byte 0xFF is NaN.
inline float E8M0ToFloat(uint8_t byte) {
  const uint32_t bits = byte == 0xFF ? 0x7FC00000u : byte == 0 ? 0x00400000u : static_cast<uint32_t>(byte) << 23;
  return std::bit_cast<float>(bits);
}

// E2M1: low four bits; bit 3 is the sign.
float E2M1ToFloat(uint8_t code);
// Round to nearest, ties to the even code, saturating at +-6.
uint8_t FloatToE2M1(float v);

// IEEE half to fp32, subnormals included.
float F16ToFloat(uint16_t bits);

// 2^ceil(log2(x)) for positive normal x, from the bits (spec 3.1: libm's log2 breaks at exact powers of two).
inline float Pow2Ceil(float x) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x007FFFFFu) & 0x7F800000u);
}

// Scale of an FP8 activation block whose largest magnitude is amax (spec 3.1, AQ).
inline float E4M3BlockScale(float amax) { return Pow2Ceil((amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f)); }

// The same where scales are any number (spec deepseek-v32 3.1 without scale_fmt).
inline float E4M3AnyScale(float amax) { return (amax > 1e-4f ? amax : 1e-4f) * (1.0f / 448.0f); }

// Scale of an FP4 activation block whose largest magnitude is amax (spec 3.6).
inline float E2M1BlockScale(float amax) {
  constexpr float kFloor = 6.0f * 0x1p-126f;
  return Pow2Ceil((amax > kFloor ? amax : kFloor) * (1.0f / 6.0f));
}

// Nearest values on the grids as fp32, for quantise-dequantise; same rounding as the encoders above.
float RoundE4M3(float v);
float RoundE2M1(float v);

}  // namespace hadal
