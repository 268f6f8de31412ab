#include "platforms/cpu/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/float_formats.h"
#include "ops/row_format.h"
#include "platforms/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "platforms/cpu/row_kernels.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "platforms/cpu/act-inl.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::HWY_NAMESPACE {

// Widths in this file are multiples of 16 unless a tail is handled; model dimensions are checked for that on loading.

template <typename T>
HWY_INLINE float ScalarAct(const T* p) {
  if constexpr (sizeof(T) == 2) return ToFloat(BFloat16{*p});
  return *p;
}

template <typename T>
HWY_INLINE void StoreScalar(float v, T* p) {
  if constexpr (sizeof(T) == 2) {
    *p = ToBFloat16(v).bits;
  } else {
    *p = v;
  }
}

template <typename T>
void LoadRow(const T* HWY_RESTRICT src, int64_t n, float* HWY_RESTRICT dst) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(LoadAct(d, src + i), d, dst + i);
  for (; i < n; ++i) dst[i] = ScalarAct(src + i);
}
void Load(const void* src, DType dtype, int64_t n, float* dst) {
  if (dtype == DType::kBF16) {
    LoadRow(static_cast<const uint16_t*>(src), n, dst);
  } else {
    LoadRow(static_cast<const float*>(src), n, dst);
  }
}

template <typename T>
void StoreRow(const float* HWY_RESTRICT src, int64_t n, T* HWY_RESTRICT dst) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreAct(d, hn::LoadU(d, src + i), dst + i);
  for (; i < n; ++i) StoreScalar(src[i], dst + i);
}
void Store(const float* src, int64_t n, void* dst, DType dtype) {
  if (dtype == DType::kBF16) {
    StoreRow(src, n, static_cast<uint16_t*>(dst));
  } else {
    StoreRow(src, n, static_cast<float*>(dst));
  }
}

void Round(float* x, int64_t n, DType dtype) {
  if (dtype != DType::kBF16) return;
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(RoundToBf16(d, hn::LoadU(d, x + i)), d, x + i);
  for (; i < n; ++i) x[i] = RoundBF16(x[i]);
}

void FakeE4M3(float* x, int64_t n, int64_t block) {
  for (int64_t i = 0; i < n; i += block) FakeQuantE4M3(DF(), x + i, std::min(block, n - i));
}
void FakeE4M3AnyScale(float* x, int64_t n, int64_t block) {
  for (int64_t i = 0; i < n; i += block) FakeQuantE4M3AnyScale(DF(), x + i, std::min(block, n - i));
}
void FakeE2M1(float* x, int64_t n, int64_t block) {
  for (int64_t i = 0; i < n; i += block) FakeQuantE2M1(DF(), x + i, std::min(block, n - i));
}

// Codes of values on the E4M3 grid, and on the E2M1 grid, in 32-bit lanes. Below the smallest normal number (2^-6, 1) a
// code counts steps (2^-9, 1/2); above, it is the upper bits of the number with the exponent's bias changed.
template <int kMantissa, int kBias, int kSignShift>
HWY_INLINE hn::Vec<hn::RebindToSigned<DF>> CodeV(DF d, VF v) {
  const hn::RebindToUnsigned<DF> d32;
  const hn::RebindToSigned<DF> i32;
  const float normal_from = kMantissa == 3 ? 0x1p-6f : 1.0f;
  const float steps = kMantissa == 3 ? 512.0f : 2.0f;
  const VF a = hn::Abs(v);
  const auto upper = hn::BitCast(i32, hn::ShiftRight<23 - kMantissa>(hn::BitCast(d32, a)));
  const auto normal = hn::Sub(upper, hn::Set(i32, (127 - kBias) << kMantissa));
  const auto small = hn::ConvertTo(i32, hn::Mul(a, hn::Set(d, steps)));
  const auto sign = hn::ShiftRight<31>(hn::BitCast(d32, v));
  const auto magnitude = hn::IfThenElse(hn::RebindMask(i32, hn::Lt(a, hn::Set(d, normal_from))), small, normal);
  return hn::Or(magnitude, hn::BitCast(i32, hn::ShiftLeft<kSignShift>(sign)));
}

void EncodeE4M3(const float* x, int64_t n, std::byte* codes, std::byte* scales) {
  const DF d;
  const hn::Rebind<uint8_t, DF> d8;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t g = 0; g < n; g += ops::kFp8RowGroup) {
    const int64_t end = std::min(n, g + ops::kFp8RowGroup);
    const VF scale = ScaleE4M3V(d, x + g, end - g);
    const VF inverse = Pow2Reciprocal(d, scale);
    scales[g / ops::kFp8RowGroup] = static_cast<std::byte>(ScaleByte(d, scale));
    for (int64_t i = g; i < end; i += lanes) {
      const auto code = CodeV<3, 7, 7>(d, RoundE4M3V(d, hn::Mul(hn::LoadU(d, x + i), inverse)));
      hn::StoreU(hn::DemoteTo(d8, code), d8, reinterpret_cast<uint8_t*>(codes + i));
    }
  }
}

void EncodeE2M1(const float* x, int64_t n, std::byte* codes, std::byte* scales) {
  const DF d;
  const hn::Rebind<uint8_t, DF> d8;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t g = 0; g < n; g += ops::kFp4RowGroup) {
    const VF scale = ScaleE2M1V(d, x + g, ops::kFp4RowGroup);
    const VF inverse = Pow2Reciprocal(d, scale);
    scales[g / ops::kFp4RowGroup] = static_cast<std::byte>(ScaleByte(d, scale));
    uint8_t single[ops::kFp4RowGroup];
    for (int64_t i = 0; i < ops::kFp4RowGroup; i += lanes) {
      const auto code = CodeV<1, 1, 3>(d, RoundE2M1V(d, hn::Mul(hn::LoadU(d, x + g + i), inverse)));
      hn::StoreU(hn::DemoteTo(d8, code), d8, single + i);
    }
    for (int64_t i = 0; i < ops::kFp4RowGroup; i += 2) {
      codes[(g + i) / 2] = static_cast<std::byte>(single[i] | single[i + 1] << 4);
    }
  }
}

// Any codes under any scale.
template <typename T>
HWY_NOINLINE void DecodeAnyE4M3(const uint8_t* codes, float scale, int64_t n, T* out) {
  const DF d;
  const hn::RebindToSigned<DF> i32;
  const hn::Rebind<uint8_t, DF> d8;
  const int64_t lanes = hn::Lanes(d);
  const VF factor = hn::Set(d, scale);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto code = hn::PromoteTo(i32, hn::LoadU(d8, codes + i));
    const auto magnitude = hn::And(code, hn::Set(i32, 0x7F));
    const VF normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(i32, 120 << 23)));
    const VF small = hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 0x1p-9f));
    VF v = hn::IfThenElse(hn::RebindMask(d, hn::Lt(magnitude, hn::Set(i32, 8))), small, normal);
    const VF nan = hn::BitCast(d, hn::Set(i32, 0x7FC00000));  // hn::NaN's payload would carry over in the rounding
    v = hn::IfThenElse(hn::RebindMask(d, hn::Eq(magnitude, hn::Set(i32, 0x7F))), nan, v);
    const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(i32, 0x80)));
    StoreAct(d, hn::Mul(hn::Or(v, hn::BitCast(d, sign)), factor), out + i);
  }
}

void DecodeE4M3Scaled(const std::byte* codes, float scale, int64_t n, void* out, DType dtype) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
  if (dtype == DType::kBF16) {
    DecodeAnyE4M3(bytes, scale, n, static_cast<uint16_t*>(out));
  } else {
    DecodeAnyE4M3(bytes, scale, n, static_cast<float*>(out));
  }
}

void EncodeE4M3Scaled(const float* x, int64_t n, float scale, std::byte* codes) {
  const DF d;
  const hn::Rebind<uint8_t, DF> d8;
  const int64_t lanes = hn::Lanes(d);
  const VF divisor = hn::Set(d, scale);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto code = CodeV<3, 7, 7>(d, RoundE4M3V(d, hn::Div(hn::LoadU(d, x + i), divisor)));
    hn::StoreU(hn::DemoteTo(d8, code), d8, reinterpret_cast<uint8_t*>(codes + i));
  }
}

float MaxMagnitude(const float* x, int64_t n) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF largest = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) {
    const VF v = hn::LoadU(d, x + i);
    largest = hn::IfThenElse(hn::Gt(hn::Abs(v), largest), hn::Abs(v), largest);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// bf16 has the exponent range to take the scale in: a normal number's bits are moved and the exponent field is added
// to. Groups with a subnormal number, zero or NaN are decoded again; with values of any usual distribution that is one
// group in a hundred.
void DecodeE4M3(const std::byte* codes, const std::byte* scales, int64_t n, uint16_t* out) {
  const hn::ScalableTag<int16_t> d16;
  const hn::Rebind<uint8_t, hn::ScalableTag<int16_t>> d8;
  const int64_t lanes = hn::Lanes(d16);
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
  for (int64_t g = 0; g < n; g += ops::kFp8RowGroup) {
    const int64_t count = std::min(n - g, ops::kFp8RowGroup);
    const auto scale = static_cast<uint8_t>(scales[g / ops::kFp8RowGroup]);
    // Where the largest and smallest normal numbers stay normal in bf16.
    bool plain = scale >= 7 && scale <= 246 && count % lanes == 0;
    if (plain) {
      const auto bias = hn::Set(d16, static_cast<int16_t>((scale - 7) * 128));
      auto special = hn::Lt(bias, bias);
      for (int64_t i = g; i < g + count; i += lanes) {
        const auto code = hn::PromoteTo(d16, hn::LoadU(d8, bytes + i));
        const auto magnitude = hn::And(code, hn::Set(d16, 0x7F));
        const auto sign = hn::ShiftLeft<8>(hn::And(code, hn::Set(d16, 0x80)));
        // 127 (NaN) and 0 ... 7 are the numbers 0 ... 8 behind it, counted modulo 128.
        const auto next = hn::And(hn::Add(code, hn::Set(d16, 1)), hn::Set(d16, 0x7F));
        special = hn::Or(special, hn::Lt(next, hn::Set(d16, 9)));
        hn::StoreU(hn::Or(hn::Add(hn::ShiftLeft<4>(magnitude), bias), sign), d16, reinterpret_cast<int16_t*>(out + i));
      }
      plain = hn::AllFalse(d16, special);
    }
    if (!plain) DecodeAnyE4M3(bytes + g, E8M0ToFloat(scale), count, out + g);
  }
}

void DecodeE2M1(const std::byte* codes, const std::byte* scales, int64_t n, float* out) {
  const DF d;
  const hn::RebindToSigned<DF> i32;
  const hn::Rebind<uint8_t, DF> d8;
  const hn::CappedTag<uint16_t, ops::kFp4RowGroup / 2> d16;
  const hn::Rebind<uint8_t, decltype(d16)> pairs8;
  const int64_t lanes = hn::Lanes(d);
  const auto* bytes = reinterpret_cast<const uint8_t*>(codes);
  // Sixteen lanes hold all values: a lookup takes the place of arithmetic (keys cost the indexer 17 % more without).
  constexpr bool kWide = HWY_HAVE_SCALABLE == 0 && HWY_MAX_BYTES == 64;
  alignas(64) static constexpr float kValues[16] = {0,     .5f,  1,  1.5f,  2,  3,  4,  6,
                                                    -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  const VF values = kWide ? hn::LoadU(d, kValues) : hn::Zero(d);
  for (int64_t g = 0; g < n; g += ops::kFp4RowGroup) {
    const VF scale = hn::Set(d, E8M0ToFloat(static_cast<uint8_t>(scales[g / ops::kFp4RowGroup])));
    [[maybe_unused]] const VF scaled = hn::Mul(values, scale);
    const auto decode = [&](hn::Vec<hn::RebindToSigned<DF>> code) {
      if constexpr (kWide) return hn::TableLookupLanes(scaled, hn::IndicesFromVec(d, code));
      const auto bits = hn::ShiftLeft<22>(hn::And(code, hn::Set(i32, 7)));
      const VF v = hn::BitCast(d, hn::Add(bits, hn::Set(i32, 126 << 23)));
      // The codes of 0 and 1/2 have become 1/2 and 3/4.
      const VF half = hn::Set(d, 0.5f);
      const VF small = hn::Sub(hn::Add(v, v), hn::Set(d, 1.0f));
      const VF magnitude = hn::IfThenElse(hn::Lt(v, hn::Add(half, half)), small, v);
      const VF sign = hn::BitCast(d, hn::ShiftLeft<28>(hn::And(code, hn::Set(i32, 8))));
      return hn::Mul(hn::Or(magnitude, sign), scale);
    };
    // A byte 0xHL in 16 bits, together with itself moved up by four, has the bytes 0x0L and 0x0H: codes in their order.
    alignas(64) uint16_t single[ops::kFp4RowGroup / 2];
    for (int64_t i = 0; i < ops::kFp4RowGroup / 2; i += hn::Lanes(d16)) {
      const auto pair = hn::PromoteTo(d16, hn::LoadU(pairs8, bytes + g / 2 + i));
      hn::StoreU(hn::And(hn::Or(pair, hn::ShiftLeft<4>(pair)), hn::Set(d16, 0x0F0F)), d16, single + i);
    }
    const auto* code = reinterpret_cast<const uint8_t*>(single);
    for (int64_t i = 0; i < ops::kFp4RowGroup; i += lanes) {
      hn::StoreU(decode(hn::PromoteTo(i32, hn::LoadU(d8, code + i))), d, out + g + i);
    }
  }
}

float SumSquares(const float* x, int64_t n) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF a = hn::Zero(d);
  VF b = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const VF v = hn::LoadU(d, x + i);
    const VF w = hn::LoadU(d, x + i + lanes);
    a = hn::MulAdd(v, v, a);
    b = hn::MulAdd(w, w, b);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
  for (; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

float SumRoundedSquares(const float* x, int64_t n, DType dtype) {
  if (dtype != DType::kBF16) return SumSquares(x, n);
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  VF sum = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) {
    const VF v = hn::LoadU(d, x + i);
    sum = hn::Add(sum, RoundToBf16(d, hn::Mul(v, v)));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

template <typename T>
void ScaleWeightRow(const float* x, int64_t n, float factor, const T* weight, float* y) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  const VF f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    VF v = hn::Mul(hn::LoadU(d, x + i), f);
    if (weight != nullptr) v = hn::Mul(v, LoadAct(d, weight + i));
    hn::StoreU(v, d, y + i);
  }
  for (; i < n; ++i) y[i] = x[i] * factor * (weight != nullptr ? ScalarAct(weight + i) : 1.0f);
}
void ScaleWeight(const float* x, int64_t n, float factor, ops::Vector weight, float* y) {
  if (weight.dtype == DType::kF32) {
    ScaleWeightRow(x, n, factor, static_cast<const float*>(weight.data), y);
  } else {
    ScaleWeightRow(x, n, factor, static_cast<const uint16_t*>(weight.data), y);
  }
}

void Rope(float* x, const float* cos, const float* sin, int64_t half, bool inverse) {
  const float sign = inverse ? -1.0f : 1.0f;
  for (int64_t j = 0; j < half; ++j) {
    const float a = x[2 * j];
    const float b = x[2 * j + 1];
    const float s = sign * sin[j];
    x[2 * j] = a * cos[j] - b * s;
    x[2 * j + 1] = a * s + b * cos[j];
  }
}

void Hadamard(float* x, int64_t n) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  int64_t step = 1;
  for (; step < lanes && step < n; step *= 2) {
    for (int64_t i = 0; i < n; i += 2 * step) {
      for (int64_t j = i; j < i + step; ++j) {
        const float a = x[j];
        const float b = x[j + step];
        x[j] = a + b;
        x[j + step] = a - b;
      }
    }
  }
  for (; step < n; step *= 2) {
    for (int64_t i = 0; i < n; i += 2 * step) {
      for (int64_t j = i; j < i + step; j += lanes) {
        const VF a = hn::LoadU(d, x + j);
        const VF b = hn::LoadU(d, x + j + step);
        hn::StoreU(hn::Add(a, b), d, x + j);
        hn::StoreU(hn::Sub(a, b), d, x + j + step);
      }
    }
  }
  const float norm = 1.0f / std::sqrt(static_cast<float>(n));
  for (int64_t i = 0; i < n; ++i) x[i] *= norm;
}

void HcMix(const float* streams, const float* pre, int64_t hc, int64_t d, float* out) {
  const DF df;
  const int64_t lanes = hn::Lanes(df);
  for (int64_t c = 0; c < d; c += lanes) {
    VF sum = hn::Zero(df);
    for (int64_t s = 0; s < hc; ++s) sum = hn::MulAdd(hn::Set(df, pre[s]), hn::LoadU(df, streams + s * d + c), sum);
    hn::StoreU(sum, df, out + c);
  }
}

template <typename T>
void HcPostRow(const T* HWY_RESTRICT o, T* HWY_RESTRICT streams, const float* post, const float* comb, int64_t hc,
               int64_t d) {
  constexpr int64_t kMaxStreams = 8;
  const DF df;
  const int64_t lanes = hn::Lanes(df);
  VF in[kMaxStreams];
  for (int64_t c = 0; c < d; c += lanes) {
    const VF layer = LoadAct(df, o + c);
    for (int64_t j = 0; j < hc; ++j) in[j] = LoadAct(df, streams + j * d + c);
    for (int64_t k = 0; k < hc; ++k) {
      VF sum = hn::Zero(df);
      for (int64_t j = 0; j < hc; ++j) sum = hn::MulAdd(hn::Set(df, comb[j * hc + k]), in[j], sum);
      StoreAct(df, hn::MulAdd(hn::Set(df, post[k]), layer, sum), streams + k * d + c);
    }
  }
}
void HcPost(const void* o, void* streams, DType dtype, const float* post, const float* comb, int64_t hc, int64_t d) {
  if (dtype == DType::kBF16) {
    HcPostRow(static_cast<const uint16_t*>(o), static_cast<uint16_t*>(streams), post, comb, hc, d);
  } else {
    HcPostRow(static_cast<const float*>(o), static_cast<float*>(streams), post, comb, hc, d);
  }
}

void Pool(const float* const* kv, const float* const* gate, int64_t slots, int64_t width, float* out) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t c = 0; c < width; c += lanes) {
    VF peak = hn::Set(d, -HUGE_VALF);
    for (int64_t s = 0; s < slots; ++s) {
      if (gate[s] != nullptr) peak = hn::Max(peak, hn::LoadU(d, gate[s] + c));
    }
    VF total = hn::Zero(d);
    VF sum = hn::Zero(d);
    for (int64_t s = 0; s < slots; ++s) {
      if (gate[s] == nullptr) continue;
      const VF weight = hn::Exp(d, hn::Sub(hn::LoadU(d, gate[s] + c), peak));
      total = hn::Add(total, weight);
      sum = hn::MulAdd(weight, hn::LoadU(d, kv[s] + c), sum);
    }
    hn::StoreU(hn::Div(sum, total), d, out + c);
  }
}

// hn::Exp is made for arguments up to 104, where it is infinite already.
HWY_INLINE VF Silu(DF d, VF g) {
  return hn::Div(g, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, hn::Min(hn::Neg(g), hn::Set(d, 104.0f)))));
}

void Swiglu(const float* g, const float* u, int64_t n, float limit, float weight, float* h) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  const VF high = hn::Set(d, limit > 0 ? limit : HUGE_VALF);
  const auto block = [&](VF gate, VF up) {
    gate = hn::Min(gate, high);
    up = hn::Max(hn::Min(up, high), hn::Neg(high));
    return hn::Mul(hn::Set(d, weight), hn::Mul(Silu(d, gate), up));
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(block(hn::LoadU(d, g + i), hn::LoadU(d, u + i)), d, h + i);
  for (; i < n; ++i) h[i] = hn::GetLane(block(hn::Set(d, g[i]), hn::Set(d, u[i])));
}

// Scores of two rows against kHeads queries: one pass over the rows' values, 2 * kHeads chains of additions.
template <typename T, int kHeads>
HWY_INLINE void ScorePair(DF d, const float* HWY_RESTRICT q, int64_t dim, const T* HWY_RESTRICT a,
                          const T* HWY_RESTRICT b, float scale, float* scores, int64_t n, int64_t j, bool two) {
  const int64_t lanes = hn::Lanes(d);
  VF first[kHeads];
  VF second[kHeads];
  for (int h = 0; h < kHeads; ++h) first[h] = second[h] = hn::Zero(d);
  for (int64_t i = 0; i < dim; i += lanes) {
    const VF va = LoadAct(d, a + i);
    const VF vb = LoadAct(d, b + i);
    for (int h = 0; h < kHeads; ++h) {
      const VF vq = hn::LoadU(d, q + h * dim + i);
      first[h] = hn::MulAdd(vq, va, first[h]);
      second[h] = hn::MulAdd(vq, vb, second[h]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    scores[h * n + j] = hn::GetLane(hn::SumOfLanes(d, first[h])) * scale;
    if (two) scores[h * n + j + 1] = hn::GetLane(hn::SumOfLanes(d, second[h])) * scale;
  }
}

// out[h] = sum_j p[h][j] * row_j for kHeads heads, two vectors of channels at a time.
template <typename T, int kHeads>
HWY_INLINE void WeightedRows(DF d, const float* HWY_RESTRICT p, int64_t n, const void* const* rows, int64_t dim,
                             float* HWY_RESTRICT out) {
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < dim; i += 2 * lanes) {
    VF low[kHeads];
    VF high[kHeads];
    for (int h = 0; h < kHeads; ++h) low[h] = high[h] = hn::Zero(d);
    for (int64_t j = 0; j < n; ++j) {
      const T* row = static_cast<const T*>(rows[j]) + i;
      const VF a = LoadAct(d, row);
      const VF b = LoadAct(d, row + lanes);
      for (int h = 0; h < kHeads; ++h) {
        const VF weight = hn::Set(d, p[h * n + j]);
        low[h] = hn::MulAdd(weight, a, low[h]);
        high[h] = hn::MulAdd(weight, b, high[h]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      hn::StoreU(low[h], d, out + h * dim + i);
      hn::StoreU(high[h], d, out + h * dim + i + lanes);
    }
  }
}

// s = e^(s - largest); returns the sum. The sink takes part in the maximum and the sum only; -infinity: there is none.
HWY_INLINE float ExpWithSink(DF d, float* HWY_RESTRICT s, int64_t n, float sink) {
  const int64_t lanes = hn::Lanes(d);
  const int64_t whole = n / lanes * lanes;
  VF peak_v = hn::Set(d, sink);
  for (int64_t j = 0; j < whole; j += lanes) peak_v = hn::Max(peak_v, hn::LoadU(d, s + j));
  float peak = hn::GetLane(hn::MaxOfLanes(d, peak_v));
  for (int64_t j = whole; j < n; ++j) peak = std::max(peak, s[j]);
  const VF vpeak = hn::Set(d, peak);
  VF total_v = hn::Zero(d);
  for (int64_t j = 0; j < whole; j += lanes) {
    const VF e = hn::Exp(d, hn::Sub(hn::LoadU(d, s + j), vpeak));
    hn::StoreU(e, d, s + j);
    total_v = hn::Add(total_v, e);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, total_v));
  for (int64_t j = whole; j < n; ++j) {
    s[j] = std::exp(s[j] - peak);
    total += s[j];
  }
  return total + std::exp(sink - peak);
}

// Turns scores into probabilities.
HWY_INLINE void SoftmaxWithSink(DF d, float* HWY_RESTRICT s, int64_t n, float sink) {
  const float inverse = 1.0f / ExpWithSink(d, s, n, sink);
  for (int64_t j = 0; j < n; ++j) s[j] *= inverse;
}

template <typename T, int kHeads>
void AttendHeads(const float* q, int64_t dim, int64_t value_dim, const void* const* rows, int64_t n, float scale,
                 const float* sink, bool round, float* scratch, float* out) {
  const DF d;
  for (int64_t j = 0; j < n; j += 2) {
    const bool two = j + 1 < n;
    const T* a = static_cast<const T*>(rows[j]);
    ScorePair<T, kHeads>(d, q, dim, a, two ? static_cast<const T*>(rows[j + 1]) : a, scale, scratch, n, j, two);
  }
  for (int h = 0; h < kHeads; ++h) SoftmaxWithSink(d, scratch + h * n, n, sink[h]);
  if (round && sizeof(T) == 2) Round(scratch, kHeads * n, DType::kBF16);
  WeightedRows<T, kHeads>(d, scratch, n, rows, value_dim, out);
}

template <typename T>
void AttendRows(const float* q, int64_t heads, int64_t dim, int64_t value_dim, const void* const* rows, int64_t n,
                float scale, const float* sink, bool round, float* scratch, float* out) {
  int64_t h = 0;
  for (; h + 8 <= heads; h += 8) {
    AttendHeads<T, 8>(q + h * dim, dim, value_dim, rows, n, scale, sink + h, round, scratch, out + h * value_dim);
  }
  for (; h < heads; ++h) {
    AttendHeads<T, 1>(q + h * dim, dim, value_dim, rows, n, scale, sink + h, round, scratch, out + h * value_dim);
  }
}
void Softmax(float* x, int64_t n, float scale, DType dtype) {
  for (int64_t j = 0; j < n; ++j) x[j] *= scale;
  SoftmaxWithSink(DF(), x, n, -HUGE_VALF);
  Round(x, n, dtype);
}

void Attend(const float* q, int64_t heads, int64_t dim, int64_t value_dim, const void* const* rows, DType dtype,
            int64_t n, float scale, const float* sink, bool round, float* scratch, float* out) {
  if (dtype == DType::kBF16) {
    AttendRows<uint16_t>(q, heads, dim, value_dim, rows, n, scale, sink, round, scratch, out);
  } else {
    AttendRows<float>(q, heads, dim, value_dim, rows, n, scale, sink, round, scratch, out);
  }
}

// Queries whose sums with two vectors fit into the registers.
#if HWY_TARGET == HWY_SSE2 || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2
constexpr int kQueryTile = 4;
#else
constexpr int kQueryTile = 8;
#endif
static_assert(kAttendQueries % kQueryTile == 0);

// out[h][c, c + 2 vectors) = factors[h] * sum over r of weights[h][r] * rows[r][c...], r < count, for one tile of
// queries; rows and out are `width` wide. Columns are in lanes: no horizontal sum.
template <typename T>
HWY_INLINE void WeightedColumns(DF d, const float* HWY_RESTRICT weights, int64_t count, const T* HWY_RESTRICT rows,
                                int64_t width, int64_t c, const float* factors, float* HWY_RESTRICT out) {
  const int64_t lanes = hn::Lanes(d);
  VF low[kQueryTile];
  VF high[kQueryTile];
  for (int h = 0; h < kQueryTile; ++h) low[h] = high[h] = hn::Zero(d);
  for (int64_t r = 0; r < count; ++r) {
    const VF a = LoadAct(d, rows + r * width + c);
    const VF b = LoadAct(d, rows + r * width + c + lanes);
    for (int h = 0; h < kQueryTile; ++h) {
      const VF weight = hn::Set(d, weights[h * count + r]);
      low[h] = hn::MulAdd(weight, a, low[h]);
      high[h] = hn::MulAdd(weight, b, high[h]);
    }
  }
  for (int h = 0; h < kQueryTile; ++h) {
    const VF factor = hn::Set(d, factors[h]);
    hn::StoreU(hn::Mul(low[h], factor), d, out + h * width + c);
    hn::StoreU(hn::Mul(high[h], factor), d, out + h * width + c + lanes);
  }
}

// All columns. The last step of a width that is no multiple of two vectors begins earlier and does some columns again:
// lanes are independent, so they get the same bits. Widths below two vectors go one value at a time.
template <typename T>
void WeightedSums(const float* weights, int64_t count, const T* rows, int64_t width, const float* factors, float* out) {
  const DF d;
  const int64_t step = 2 * static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = 0; width >= step && c < width; c += step) {
    WeightedColumns(d, weights, count, rows, width, std::min(c, width - step), factors, out);
  }
  for (int h = 0; width < step && h < kQueryTile; ++h) {
    for (int64_t c = 0; c < width; ++c) {
      float sum = 0;
      for (int64_t r = 0; r < count; ++r) sum += weights[h * count + r] * ScalarAct(rows + r * width + c);
      out[h * width + c] = sum * factors[h];
    }
  }
}

// keys: [dim][n], so that scores are weighted sums of them as the output is of the values [n][dim].
template <typename T>
void AttendTile(const float* q, int64_t dim, const T* keys, const T* values, int64_t n, float scale, float* scores,
                float* out) {
  float factors[kQueryTile];
  std::fill(factors, factors + kQueryTile, scale);
  WeightedSums(q, dim, keys, n, factors, scores);
  for (int h = 0; h < kQueryTile; ++h) factors[h] = 1.0f / ExpWithSink(DF(), scores + h * n, n, -HUGE_VALF);
  WeightedSums(scores, n, values, dim, factors, out);
}
void AttendAll(const float* q, int64_t dim, const void* keys, const void* values, DType dtype, int64_t n, float scale,
               float* scratch, float* out) {
  for (int64_t h = 0; h < kAttendQueries; h += kQueryTile) {
    if (dtype == DType::kBF16) {
      AttendTile(q + h * dim, dim, static_cast<const uint16_t*>(keys), static_cast<const uint16_t*>(values), n, scale,
                 scratch, out + h * dim);
    } else {
      AttendTile(q + h * dim, dim, static_cast<const float*>(keys), static_cast<const float*>(values), n, scale,
                 scratch, out + h * dim);
    }
  }
}

template <typename T>
void AddRow(const T* HWY_RESTRICT y, int64_t n, T* HWY_RESTRICT x) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreAct(d, hn::Add(LoadAct(d, x + i), LoadAct(d, y + i)), x + i);
  for (; i < n; ++i) StoreScalar(ScalarAct(x + i) + ScalarAct(y + i), x + i);
}
void AddTo(const void* y, DType dtype, int64_t n, void* x) {
  if (dtype == DType::kBF16) {
    AddRow(static_cast<const uint16_t*>(y), n, static_cast<uint16_t*>(x));
  } else {
    AddRow(static_cast<const float*>(y), n, static_cast<float*>(x));
  }
}

template <typename T>
void SiluMulRow(const T* HWY_RESTRICT gate, const T* HWY_RESTRICT up, int64_t n, T* HWY_RESTRICT out) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  const auto product = [&](VF g, VF u) { return hn::Mul(RoundToAct(d, Silu(d, g), out), u); };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreAct(d, product(LoadAct(d, gate + i), LoadAct(d, up + i)), out + i);
  for (; i < n; ++i) {
    const VF v = product(hn::Set(d, ScalarAct(gate + i)), hn::Set(d, ScalarAct(up + i)));
    StoreScalar(hn::GetLane(v), out + i);
  }
}
void SiluMul(const void* gate, const void* up, DType dtype, int64_t n, void* out) {
  if (dtype == DType::kBF16) {
    SiluMulRow(static_cast<const uint16_t*>(gate), static_cast<const uint16_t*>(up), n, static_cast<uint16_t*>(out));
  } else {
    SiluMulRow(static_cast<const float*>(gate), static_cast<const float*>(up), n, static_cast<float*>(out));
  }
}

// One key at a time, heads in lanes: no horizontal sum but the last one.
template <typename T>
void IndexScoresRows(const float* HWY_RESTRICT qt, const float* HWY_RESTRICT weight, int64_t heads, int64_t dim,
                     const void* const* keys, int64_t n, bool published, float* HWY_RESTRICT scores) {
  constexpr int64_t kVectors = 4;
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t j = 0; j < n; ++j) {
    const T* key = static_cast<const T*>(keys[j]);
    VF total = hn::Zero(d);
    for (int64_t h = 0; h < heads; h += kVectors * lanes) {
      const int64_t vectors = std::min(kVectors, (heads - h) / lanes);
      VF dot[kVectors];
      for (auto& sum : dot) sum = hn::Zero(d);
      for (int64_t i = 0; i < dim; ++i) {
        const VF value = hn::Set(d, ScalarAct(key + i));
        const float* column = qt + i * heads + h;
        if (vectors == kVectors) {
          for (int64_t v = 0; v < kVectors; ++v) dot[v] = hn::MulAdd(value, hn::LoadU(d, column + v * lanes), dot[v]);
        } else {
          for (int64_t v = 0; v < vectors; ++v) dot[v] = hn::MulAdd(value, hn::LoadU(d, column + v * lanes), dot[v]);
        }
      }
      for (int64_t v = 0; v < vectors; ++v) {
        const VF w = hn::LoadU(d, weight + h + v * lanes);
        if (published) {
          const VF relu = hn::Max(RoundToBf16(d, dot[v]), hn::Zero(d));
          total = hn::Add(total, RoundToBf16(d, hn::Mul(relu, w)));
        } else {
          total = hn::MulAdd(hn::Max(dot[v], hn::Zero(d)), w, total);
        }
      }
    }
    const VF sum = hn::SumOfLanes(d, total);
    scores[j] = hn::GetLane(published ? RoundToBf16(d, sum) : sum);
  }
}
void IndexScores(const float* qt, const float* weight, int64_t heads, int64_t dim, const void* const* keys, DType dtype,
                 int64_t n, bool published, float* scores) {
  if (dtype == DType::kBF16) {
    IndexScoresRows<uint16_t>(qt, weight, heads, dim, keys, n, published, scores);
  } else {
    IndexScoresRows<float>(qt, weight, heads, dim, keys, n, published, scores);
  }
}

RowKernels MakeRowKernels() {
  return {Load,
          Store,
          Round,
          FakeE4M3,
          FakeE4M3AnyScale,
          FakeE2M1,
          EncodeE4M3,
          EncodeE2M1,
          DecodeE4M3,
          DecodeE2M1,
          DecodeE4M3Scaled,
          EncodeE4M3Scaled,
          MaxMagnitude,
          SumSquares,
          SumRoundedSquares,
          ScaleWeight,
          Rope,
          Hadamard,
          HcMix,
          HcPost,
          Pool,
          Swiglu,
          Attend,
          Softmax,
          IndexScores,
          AttendAll,
          AddTo,
          SiluMul};
}

}  // namespace hadal::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu {

HWY_EXPORT(MakeRowKernels);

const RowKernels& RowKernelsFor(Isa limit) {
  static const TargetTables<RowKernels> kTables([] { return HWY_DYNAMIC_DISPATCH(MakeRowKernels)(); });
  return kTables.For(limit);
}

}  // namespace hadal::cpu
#endif  // HWY_ONCE
