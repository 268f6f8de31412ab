// Loads and stores of activations for Highway code: bf16 (as uint16_t) and fp32 behind one name.
// Included once per target from within HWY_NAMESPACE code (no include guard on purpose: see Highway's -inl.h
// convention).
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

HWY_INLINE VF LoadAct(DF d, const float* p) { return hn::LoadU(d, p); }
HWY_INLINE VF LoadAct(DF d, const uint16_t* p) {
  const hn::Rebind<uint16_t, DF> d16;
  const hn::RebindToUnsigned<DF> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}

HWY_INLINE void StoreAct(DF d, VF v, float* p) { hn::StoreU(v, d, p); }
// One rounding to bf16, ties to even. A NaN stays a NaN unless its payload lies in the dropped bits alone, which fp32
// arithmetic never produces.
HWY_INLINE void StoreAct(DF, VF v, uint16_t* p) {
  const hn::RebindToUnsigned<DF> d32;
  const hn::RebindToSigned<DF> i32;
  const hn::Rebind<uint16_t, DF> d16;
  const auto u = hn::BitCast(d32, v);
  const auto lsb = hn::And(hn::ShiftRight<16>(u), hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(u, hn::Set(d32, 0x7FFF)), lsb));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(i32, rounded)), d16, p);
}

// v after one rounding to bf16, still fp32.
HWY_INLINE VF RoundToBf16(DF d, VF v) {
  const hn::RebindToUnsigned<DF> d32;
  const auto u = hn::BitCast(d32, v);
  const auto lsb = hn::And(hn::ShiftRight<16>(u), hn::Set(d32, 1));
  return hn::BitCast(d, hn::And(hn::Add(hn::Add(u, hn::Set(d32, 0x7FFF)), lsb), hn::Set(d32, 0xFFFF0000u)));
}
template <typename T>
HWY_INLINE VF RoundToAct(DF d, VF v, const T*) {
  if constexpr (sizeof(T) == 2) return RoundToBf16(d, v);
  return v;
}

// 2^ceil(log2(x)) of positive normal x, and the exact reciprocal of a power of two (spec deepseek-v4-text 3.1).
HWY_INLINE VF Pow2CeilV(DF d, VF x) {
  const hn::RebindToUnsigned<DF> d32;
  return hn::BitCast(d, hn::And(hn::Add(hn::BitCast(d32, x), hn::Set(d32, 0x007FFFFFu)), hn::Set(d32, 0x7F800000u)));
}
HWY_INLINE VF Pow2Reciprocal(DF d, VF x) {
  const hn::RebindToUnsigned<DF> d32;
  return hn::BitCast(d, hn::Sub(hn::Set(d32, 254u << 23), hn::BitCast(d32, x)));
}

// Nearest E4M3 value, ties to even, for any finite input.
HWY_INLINE VF RoundE4M3V(DF d, VF x) {
  const hn::RebindToUnsigned<DF> d32;
  x = hn::Max(hn::Min(x, hn::Set(d, 448.0f)), hn::Set(d, -448.0f));
  const VF exponent =
      hn::Max(hn::BitCast(d, hn::And(hn::BitCast(d32, x), hn::Set(d32, 0x7F800000u))), hn::Set(d, 0x1p-6f));
  const VF step = hn::Mul(exponent, hn::Set(d, 0.125f));
  return hn::Mul(hn::Round(hn::Mul(x, Pow2Reciprocal(d, step))), step);
}

// Nearest E2M1 value, ties to the even code.
HWY_INLINE VF RoundE2M1V(DF d, VF x) {
  const VF a = hn::Min(hn::Abs(x), hn::Set(d, 6.0f));
  const VF step = hn::IfThenElse(hn::Lt(a, hn::Set(d, 2.0f)), hn::Set(d, 0.5f),
                                 hn::IfThenElse(hn::Lt(a, hn::Set(d, 4.0f)), hn::Set(d, 1.0f), hn::Set(d, 2.0f)));
  return hn::CopySign(hn::Mul(hn::Round(hn::Mul(a, Pow2Reciprocal(d, step))), step), x);
}

// The scale in all lanes of n fp32 values that share one; n is a multiple of the vector length.
HWY_INLINE VF LargestV(DF d, const float* HWY_RESTRICT x, int64_t n, float floor) {
  const int64_t lanes = hn::Lanes(d);
  VF amax = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) amax = hn::Max(amax, hn::Abs(hn::LoadU(d, x + i)));
  return hn::Max(hn::MaxOfLanes(d, amax), hn::Set(d, floor));
}
HWY_INLINE VF ScaleE4M3V(DF d, const float* HWY_RESTRICT x, int64_t n) {
  return Pow2CeilV(d, hn::Mul(LargestV(d, x, n, 1e-4f), hn::Set(d, 1.0f / 448.0f)));
}
// The floor keeps the scale at 2^-126 or above; its reciprocal 2^126 is still finite.
HWY_INLINE VF ScaleE2M1V(DF d, const float* HWY_RESTRICT x, int64_t n) {
  return Pow2CeilV(d, hn::Mul(LargestV(d, x, n, 6.0f * 0x1p-126f), hn::Set(d, 1.0f / 6.0f)));
}
// E8M0 byte of a power of two that all lanes hold.
HWY_INLINE uint8_t ScaleByte(DF, VF scale) {
  const hn::RebindToUnsigned<DF> d32;
  return static_cast<uint8_t>(hn::GetLane(hn::ShiftRight<23>(hn::BitCast(d32, scale))));
}

// Quantises and dequantises in place n fp32 values that share one scale; n is a multiple of the vector length.
HWY_INLINE void FakeQuantE4M3(DF d, float* HWY_RESTRICT x, int64_t n) {
  const int64_t lanes = hn::Lanes(d);
  const VF scale = ScaleE4M3V(d, x, n);
  const VF inverse = Pow2Reciprocal(d, scale);
  for (int64_t i = 0; i < n; i += lanes) {
    hn::StoreU(hn::Mul(RoundE4M3V(d, hn::Mul(hn::LoadU(d, x + i), inverse)), scale), d, x + i);
  }
}
// The same under the scale amax/448. Quotients are those of a division, as the definition has it.
HWY_INLINE void FakeQuantE4M3AnyScale(DF d, float* HWY_RESTRICT x, int64_t n) {
  const int64_t lanes = hn::Lanes(d);
  const VF scale = hn::Mul(LargestV(d, x, n, 1e-4f), hn::Set(d, 1.0f / 448.0f));
  for (int64_t i = 0; i < n; i += lanes) {
    hn::StoreU(hn::Mul(RoundE4M3V(d, hn::Div(hn::LoadU(d, x + i), scale)), scale), d, x + i);
  }
}
HWY_INLINE void FakeQuantE2M1(DF d, float* HWY_RESTRICT x, int64_t n) {
  const int64_t lanes = hn::Lanes(d);
  const VF scale = ScaleE2M1V(d, x, n);
  const VF inverse = Pow2Reciprocal(d, scale);
  for (int64_t i = 0; i < n; i += lanes) {
    hn::StoreU(hn::Mul(RoundE2M1V(d, hn::Mul(hn::LoadU(d, x + i), inverse)), scale), d, x + i);
  }
}

}  // namespace hadal::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
