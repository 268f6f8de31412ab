// The simd backend: weights are decoded to fp32 a few rows at a time into L1, then multiplied with register tiles.
#include <algorithm>
#include <cstring>

#include "base/float_formats.h"
#include "platforms/cpu/linear.h"
#include "platforms/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "platforms/cpu/linear_simd.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "platforms/cpu/act-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::HWY_NAMESPACE {

// Rows decoded together and inputs per decoded chunk: 8 x 512 fp32 = 16 KiB, a third of a 48 KiB L1 cache, which leaves
// room for the input rows. 64 input rows share one decoded chunk.
constexpr int64_t kRows = 8;
constexpr int64_t kChunk = 512;
constexpr int64_t kBatch = 64;

HWY_INLINE float ScaleAt(const ops::LinearWeight& w, int64_t index) {
  return w.scale_dtype == DType::kF32 ? static_cast<const float*>(w.scale)[index]
                                      : E8M0ToFloat(static_cast<const uint8_t*>(w.scale)[index]);
}

// E4M3 is read as a half with the same exponent and mantissa bits, 2^8 too small; subnormals included.
HWY_INLINE void DecodeE4M3(DF d, const uint8_t* HWY_RESTRICT src, int64_t n, float scale, float* HWY_RESTRICT out) {
  const hn::Rebind<int8_t, DF> d8;
  const hn::Rebind<int16_t, DF> d16;
  const hn::Rebind<hwy::float16_t, DF> dh;
  const VF factor = hn::Set(d, scale * 256.0f);
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(src + i)));
    const auto half = hn::And(hn::ShiftLeft<7>(wide), hn::Set(d16, static_cast<int16_t>(0xBF80)));
    hn::StoreU(hn::Mul(hn::PromoteTo(d, hn::BitCast(dh, half)), factor), d, out + i);
  }
}

// Twice an E2M1 value is a small integer: a byte shuffle looks it up, half the scale multiplies it.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
HWY_INLINE void DecodeE2M1Block(DF, const uint8_t* HWY_RESTRICT src, float scale, float* HWY_RESTRICT out) {
  for (int64_t i = 0; i < 32; ++i) out[i] = E2M1ToFloat((src[i / 2] >> (i % 2 * 4)) & 15) * scale;
}
#else
HWY_INLINE void DecodeE2M1Block(DF d, const uint8_t* HWY_RESTRICT src, float scale, float* HWY_RESTRICT out) {
  const hn::FixedTag<uint8_t, 16> du8;
  const hn::FixedTag<int8_t, 16> di8;
  alignas(16) static constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const auto table = hn::Load(di8, kTwice);
  const auto bytes = hn::LoadU(du8, src);
  const auto low = hn::TableLookupBytes(table, hn::BitCast(di8, hn::And(bytes, hn::Set(du8, 15))));
  const auto high = hn::TableLookupBytes(
      table,
      hn::BitCast(di8, hn::BitCast(du8, hn::And(hn::ShiftRight<4>(hn::BitCast(hn::FixedTag<uint16_t, 8>(), bytes)),
                                                hn::Set(hn::FixedTag<uint16_t, 8>(), 0x0F0F)))));
  alignas(16) int8_t codes[32];
  hn::Store(hn::InterleaveLower(di8, low, high), di8, codes);
  hn::Store(hn::InterleaveUpper(di8, low, high), di8, codes + 16);
  const hn::Rebind<int8_t, DF> d8;
  const hn::RebindToSigned<DF> d32;
  const VF factor = hn::Set(d, scale * 0.5f);
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < 32; i += lanes) {
    hn::StoreU(hn::Mul(hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + i))), factor), d, out + i);
  }
}

#endif

// Decodes inputs [k0, k0 + n) of weight row `row` into out; fills up to a vector with zeros.
HWY_NOINLINE void DecodeRow(const ops::LinearWeight& w, int64_t row, int64_t k0, int64_t n, float* HWY_RESTRICT out) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  const int64_t whole = n / lanes * lanes;
  const auto* bytes = static_cast<const uint8_t*>(w.data) + row * w.row_bytes();
  switch (w.dtype) {
    case DType::kF8E4M3: {
      const int64_t scale_cols = (w.k + 127) / 128;
      for (int64_t i = 0; i < n; i += 128) {
        const float scale = ScaleAt(w, row / 128 * scale_cols + (k0 + i) / 128);
        const int64_t count = std::min<int64_t>(128, n - i);
        const int64_t vec = count / lanes * lanes;
        DecodeE4M3(d, bytes + k0 + i, vec, scale, out + i);
        for (int64_t j = vec; j < count; ++j) out[i + j] = E4M3ToFloat(bytes[k0 + i + j]) * scale;
      }
      break;
    }
    case DType::kF4E2M1:
      for (int64_t i = 0; i < n; i += 32) {
        DecodeE2M1Block(d, bytes + (k0 + i) / 2, ScaleAt(w, row * (w.k / 32) + (k0 + i) / 32), out + i);
      }
      break;
    case DType::kBF16: {
      const auto* src = static_cast<const uint16_t*>(w.data) + row * w.k + k0;
      for (int64_t i = 0; i < whole; i += lanes) hn::StoreU(LoadAct(d, src + i), d, out + i);
      for (int64_t i = whole; i < n; ++i) out[i] = ToFloat(BFloat16{src[i]});
      break;
    }
    default: {
      std::memcpy(out, static_cast<const float*>(w.data) + row * w.k + k0, n * sizeof(float));
      break;
    }
  }
  for (int64_t i = n; i < (n + lanes - 1) / lanes * lanes; ++i) out[i] = 0;
}

// acc[r][c] (a vector each) += weights[r] . rows[c] over n inputs, one chain of additions per pair.
template <int kR, int kC>
HWY_INLINE void Tile(DF d, const float* HWY_RESTRICT weights, const float* HWY_RESTRICT x, int64_t x_stride, int64_t n,
                     float* HWY_RESTRICT acc, int64_t acc_row_stride) {
  const int64_t lanes = hn::Lanes(d);
  VF sum[kR][kC];
  for (int r = 0; r < kR; ++r) {
    for (int c = 0; c < kC; ++c) sum[r][c] = hn::LoadU(d, acc + r * acc_row_stride + c * lanes);
  }
  for (int64_t i = 0; i < n; i += lanes) {
    VF in[kC];
    for (int c = 0; c < kC; ++c) in[c] = hn::LoadU(d, x + c * x_stride + i);
    for (int r = 0; r < kR; ++r) {
      const VF weight = hn::LoadU(d, weights + r * kChunk + i);
      for (int c = 0; c < kC; ++c) sum[r][c] = hn::MulAdd(weight, in[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kR; ++r) {
    for (int c = 0; c < kC; ++c) hn::StoreU(sum[r][c], d, acc + r * acc_row_stride + c * lanes);
  }
}

void LinearBlock(const PackedInput& x, const ops::LinearWeight& w, int64_t n0, int64_t n1, NextRows /*next*/,
                 float* out, std::byte* scratch) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  const int64_t k_padded = (x.k + 15) / 16 * 16;
  auto* weights = reinterpret_cast<float*>(scratch);
  float* acc = weights + kRows * kChunk;
  const auto* input = static_cast<const float*>(x.data);
  for (int64_t n = n0; n < n1; n += kRows) {
    const int64_t rows = std::min(kRows, n1 - n);
    for (int64_t m0 = 0; m0 < x.m; m0 += kBatch) {
      const int64_t batch = std::min(kBatch, x.m - m0);
      std::memset(acc, 0, sizeof(float) * kRows * kBatch * lanes);
      for (int64_t k0 = 0; k0 < x.k; k0 += kChunk) {
        const int64_t chunk = std::min(kChunk, x.k - k0);
        for (int64_t r = 0; r < rows; ++r) DecodeRow(w, n + r, k0, chunk, weights + r * kChunk);
        const float* in = input + m0 * k_padded + k0;
        const int64_t stride = kBatch * lanes;
        int64_t m = 0;
        for (; m + 4 <= batch; m += 4) {
          Tile<4, 4>(d, weights, in + m * k_padded, k_padded, chunk, acc + m * lanes, stride);
          Tile<4, 4>(d, weights + 4 * kChunk, in + m * k_padded, k_padded, chunk, acc + 4 * stride + m * lanes, stride);
        }
        for (; m < batch; ++m) Tile<8, 1>(d, weights, in + m * k_padded, k_padded, chunk, acc + m * lanes, stride);
      }
      for (int64_t m = 0; m < batch; ++m) {
        for (int64_t r = 0; r < rows; ++r) {
          out[(m0 + m) * (n1 - n0) + n - n0 + r] =
              hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, acc + (r * kBatch + m) * lanes)));
        }
      }
    }
  }
}

LinearBlockFn MakeLinearBlock() { return LinearBlock; }

}  // namespace hadal::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu {

HWY_EXPORT(MakeLinearBlock);

namespace {

// fp32 rows, padded to 16 values with zeros so that every vector load stays inside the row.
void PackF32Group(const float* const* rows, int64_t count, int64_t k, int64_t /*group*/, InputLayout /*layout*/,
                  void* out) {
  const int64_t k_padded = (k + 15) / 16 * 16;
  for (int64_t i = 0; i < count; ++i) {
    float* dst = static_cast<float*>(out) + i * k_padded;
    std::memcpy(dst, rows[i], k * sizeof(float));
    std::fill(dst + k, dst + k_padded, 0.0f);
  }
}

}  // namespace

LinearBackend SimdLinear(Isa limit) {
  static const TargetTables<LinearBlockFn> kTables([] { return HWY_DYNAMIC_DISPATCH(MakeLinearBlock)(); });
  return {"simd", false, kTables.For(limit), PackF32Group};
}

int64_t GroupSize(InputLayout layout, int64_t m) {
  return layout == InputLayout::kF32Rows ? 1 : std::clamp<int64_t>(m, 1, 16);
}

size_t PackedOffset(InputLayout layout, int64_t m, int64_t k, int64_t first) {
  if (layout == InputLayout::kF32Rows) return static_cast<size_t>(first) * ((k + 15) / 16 * 16) * sizeof(float);
  return static_cast<size_t>(first) / 16 * GroupSize(layout, m) * k * sizeof(uint16_t);
}

size_t PackedBytes(InputLayout layout, int64_t m, int64_t k) {
  const size_t bytes = layout != InputLayout::kF32Rows && m < 16 ? static_cast<size_t>(m) * k * sizeof(uint16_t)
                                                                 : PackedOffset(layout, m, k, (m + 15) / 16 * 16);
  return (bytes + 63) / 64 * 64;
}

InputLayout LayoutFor(const LinearBackend& backend, const ops::LinearWeight& w, ops::InputQuant quant) {
  if (!backend.tiles || w.dtype == DType::kF32) return InputLayout::kF32Rows;
  if (quant == ops::InputQuant::kFp8AnyScale) return InputLayout::kF32Rows;
  // Tiles take scales into the exponent.
  if (w.dtype == DType::kF8E4M3 && !w.exponent_scales) return InputLayout::kF32Rows;
  if (w.dtype == DType::kF4E2M1) return w.k % 128 == 0 ? InputLayout::kTilesFp4 : InputLayout::kF32Rows;
  return w.k % 32 == 0 ? InputLayout::kTiles : InputLayout::kF32Rows;
}

}  // namespace hadal::cpu
#endif  // HWY_ONCE
