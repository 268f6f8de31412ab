#include "platforms/amd/weight_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <tuple>
#include <vector>

#include "base/float_formats.h"

namespace hadal::amd {
namespace {

using ::testing::HasSubstr;

std::vector<uint8_t> RandomBytes(int64_t count) {
  std::mt19937 random(7);
  std::vector<uint8_t> out(static_cast<size_t>(count));
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random());
  return out;
}

// Finite E4M3 codes.
std::vector<uint8_t> RandomCodes(int64_t count) {
  std::vector<uint8_t> out = RandomBytes(count);
  for (uint8_t& code : out) {
    if ((code & 0x7F) == 0x7F) code ^= 1;
  }
  return out;
}

TEST(Shuffle, FollowsTheFormulaOfTheSpec) {
  constexpr int64_t kN = 48, kK = 96;
  const std::vector<uint8_t> original = RandomBytes(kN * kK);
  std::vector<uint8_t> bytes = original;
  Weight weight = {.data = bytes.data(), .n = kN, .k = kK};
  ASSERT_TRUE(Shuffle(&weight).ok());
  EXPECT_EQ(weight.layout, Layout::kShuffled16x16);
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) {
      const int64_t flat = (((n / 16) * (kK / 32) + k / 32) * 2 + (k % 32) / 16) * 256 + (n % 16) * 16 + k % 16;
      ASSERT_EQ(bytes[flat], original[n * kK + k]) << n << ", " << k;
      ASSERT_EQ(ShuffledOffset(n, k, kK, 1), flat);
    }
  }
}

// By the views of the spec: [n/16][16][k/32][32/kp][kp] to [n/16][k/32][32/kp][16][kp].
TEST(Shuffle, MovesBf16AsPairsOfBytes) {
  constexpr int64_t kN = 32, kK = 64;
  std::vector<uint16_t> values(kN * kK);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  Weight weight = {.data = reinterpret_cast<uint8_t*>(values.data()), .n = kN, .k = kK, .element_bytes = 2};
  ASSERT_TRUE(Shuffle(&weight).ok());
  size_t at = 0;
  for (int64_t n16 = 0; n16 < kN / 16; ++n16)
    for (int64_t k32 = 0; k32 < kK / 32; ++k32)
      for (int64_t part = 0; part < 4; ++part)
        for (int64_t n = 0; n < 16; ++n)
          for (int64_t k = 0; k < 8; ++k, ++at) {
            const int64_t row = n16 * 16 + n, col = k32 * 32 + part * 8 + k;
            ASSERT_EQ(values[at], row * kK + col);
            ASSERT_EQ(ShuffledOffset(row, col, kK, 2), static_cast<int64_t>(at));
          }
}

TEST(Shuffle, AndBackIsTheOriginal) {
  for (const int element_bytes : {1, 2}) {
    const std::vector<uint8_t> original = RandomBytes(int64_t{64} * 128 * element_bytes);
    std::vector<uint8_t> bytes = original;
    Weight weight = {.data = bytes.data(), .n = 64, .k = 128, .element_bytes = element_bytes};
    ASSERT_TRUE(Shuffle(&weight).ok());
    EXPECT_NE(bytes, original);
    ASSERT_TRUE(Unshuffle(&weight).ok());
    EXPECT_EQ(bytes, original);
    EXPECT_EQ(weight.layout, Layout::kRowMajor);
  }
}

TEST(Shuffle, IsRefusedTwiceAndForOtherShapes) {
  std::vector<uint8_t> bytes = RandomBytes(16 * 32);
  Weight weight = {.data = bytes.data(), .n = 16, .k = 32};
  EXPECT_EQ(Unshuffle(&weight).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Shuffle(&weight).ok());
  const std::vector<uint8_t> once = bytes;
  const absl::Status twice = Shuffle(&weight);
  EXPECT_EQ(twice.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(twice.ToString(), HasSubstr("already"));
  EXPECT_EQ(bytes, once);
  for (const auto& [n, k, element_bytes] : {std::tuple{8, 32, 1}, {16, 16, 1}, {16, 32, 4}}) {
    Weight odd = {.data = bytes.data(), .n = n, .k = k, .element_bytes = element_bytes};
    EXPECT_EQ(Shuffle(&odd).code(), absl::StatusCode::kInvalidArgument);
  }
}

// A kernel that walks through shuffled memory as it lies sums every output in the order of its inputs.
TEST(Shuffle, ProductHasTheSameBits) {
  constexpr int64_t kN = 64, kK = 256;
  std::vector<uint8_t> bytes = RandomCodes(kN * kK);
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> x(kK);
  for (float& v : x) v = normal(random);
  std::vector<float> row_major(kN, 0), shuffled(kN, 0);
  for (int64_t n = 0; n < kN; ++n)
    for (int64_t k = 0; k < kK; ++k) row_major[n] += E4M3ToFloat(bytes[n * kK + k]) * x[k];

  Weight weight = {.data = bytes.data(), .n = kN, .k = kK};
  ASSERT_TRUE(Shuffle(&weight).ok());
  const uint8_t* at = bytes.data();
  for (int64_t strip = 0; strip < kN; strip += 16)
    for (int64_t tile = 0; tile < kK; tile += 16)
      for (int64_t n = 0; n < 16; ++n)
        for (int64_t k = 0; k < 16; ++k) shuffled[strip + n] += E4M3ToFloat(*at++) * x[tile + k];
  for (int64_t n = 0; n < kN; ++n) {
    EXPECT_EQ(std::bit_cast<uint32_t>(shuffled[n]), std::bit_cast<uint32_t>(row_major[n])) << n;
  }
}

Layer MlpLayer(LayerRole role, KernelHolders holders) {
  return {.role = role, .holders = holders, .has_block_scale = true};
}

TEST(Preshuffle, EitherHolderDeclaresIt) {
  const PreshuffleOptions options;
  const KernelHolders method = {.has_quant_method = true, .quant_method_preshuffles = true};
  const KernelHolders scheme = {.has_scheme = true, .scheme_preshuffles = true};
  const KernelHolders both = {.has_quant_method = true, .has_scheme = true, .scheme_preshuffles = true};
  for (const KernelHolders& holders : {method, scheme, both}) {
    EXPECT_EQ(RelayoutOf({.holders = holders}, 128, 128, options), Relayout::kByKernel);
    EXPECT_EQ(RelayoutOf({.holders = holders, .is_bmm = true}, 128, 128, options), Relayout::kNone);
    EXPECT_EQ(RelayoutOf({.holders = holders, .skip_weight_relayout = true}, 128, 128, options), Relayout::kNone);
    EXPECT_EQ(RelayoutOf({.holders = holders}, 128, 128, {.enabled = false}), Relayout::kNone);
  }
  // What is declared by a holder that the layer has not is nobody's word.
  EXPECT_EQ(RelayoutOf({.holders = {.quant_method_preshuffles = true, .scheme_preshuffles = true}}, 128, 128, options),
            Relayout::kNone);
  EXPECT_EQ(ScaleName(method), "weight_scale_inv");
  EXPECT_EQ(ScaleName(both), "weight_scale_inv");
  EXPECT_EQ(ScaleName(scheme), "weight_scale");
}

TEST(Preshuffle, ModelStepTakesTheMlpThatNoKernelTook) {
  const PreshuffleOptions options;
  for (const LayerRole role : {LayerRole::kMlpGateUp, LayerRole::kMlpDown}) {
    const Layer layer = MlpLayer(role, {.has_quant_method = true});
    EXPECT_EQ(RelayoutOf(layer, 128, 256, options), Relayout::kByModel);
    EXPECT_EQ(RelayoutOf(layer, 128, 192, options), Relayout::kNone);
    EXPECT_EQ(RelayoutOf(layer, 120, 256, options), Relayout::kNone);
    EXPECT_EQ(RelayoutOf(layer, 128, 256, {.aiter = false}), Relayout::kNone);
    Layer other = layer;
    other.dimensions = 3;
    EXPECT_EQ(RelayoutOf(other, 128, 256, options), Relayout::kNone);
    other = layer;
    other.has_block_scale = false;
    EXPECT_EQ(RelayoutOf(other, 128, 256, options), Relayout::kNone);
  }
  EXPECT_EQ(RelayoutOf(MlpLayer(LayerRole::kOther, {.has_quant_method = true}), 128, 256, options), Relayout::kNone);
}

// Spec 8, trap 33: whichever holder a configuration has, gate_up and down are shuffled once and wo_a never.
TEST(Preshuffle, EveryConfigurationShufflesOnce) {
  constexpr int64_t kN = 32, kK = 128;
  const std::vector<uint8_t> original = RandomBytes(kN * kK);
  std::vector<uint8_t> once = original;
  Weight expected = {.data = once.data(), .n = kN, .k = kK};
  ASSERT_TRUE(Shuffle(&expected).ok());
  for (const bool by_method : {false, true})
    for (const bool preshuffles : {false, true})
      for (const LayerRole role : {LayerRole::kMlpGateUp, LayerRole::kMlpDown, LayerRole::kWoA}) {
        const KernelHolders holders = {.has_quant_method = by_method,
                                       .quant_method_preshuffles = by_method && preshuffles,
                                       .has_scheme = !by_method,
                                       .scheme_preshuffles = !by_method && preshuffles};
        const Layer layer = MlpLayer(role, holders);
        std::vector<uint8_t> bytes = original;
        Weight weight = {.data = bytes.data(), .n = kN, .k = kK};
        if (RelayoutOf(layer, kN, kK, {}) == Relayout::kByKernel) {
          EXPECT_EQ(FinalizeWeight(layer, {}, &weight).code(), absl::StatusCode::kFailedPrecondition);
          ASSERT_TRUE(Shuffle(&weight).ok());  // the kernel's own finalisation
        }
        ASSERT_TRUE(FinalizeWeight(layer, {}, &weight).ok());
        EXPECT_EQ(bytes, role == LayerRole::kWoA ? original : once);
      }
  // The model's turn comes once.
  std::vector<uint8_t> bytes = original;
  Weight weight = {.data = bytes.data(), .n = kN, .k = kK};
  const Layer gate_up = MlpLayer(LayerRole::kMlpGateUp, {.has_quant_method = true});
  ASSERT_TRUE(FinalizeWeight(gate_up, {}, &weight).ok());
  EXPECT_EQ(FinalizeWeight(gate_up, {}, &weight).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(bytes, once);
  // A shuffled weight does not reach a kernel that reads rows.
  EXPECT_EQ(FinalizeWeight(gate_up, {.enabled = false}, &weight).code(), absl::StatusCode::kFailedPrecondition);
}

// Spec 8, trap 34: rows of different ranges, whose scales a wrong order would exchange.
TEST(Scales, ColumnMajorKeepsEveryRowItsOwn) {
  constexpr int64_t kM = 16, kBlocks = 3;
  std::vector<float> rows(kM * kBlocks), columns(kM * kBlocks);
  for (int64_t m = 0; m < kM; ++m)
    for (int64_t b = 0; b < kBlocks; ++b) rows[m * kBlocks + b] = std::ldexp(1.0f, static_cast<int>(m * kBlocks + b));
  ColumnMajorScales(rows, kM, columns);
  for (int64_t m = 0; m < kM; ++m)
    for (int64_t b = 0; b < kBlocks; ++b) EXPECT_EQ(columns[b * kM + m], rows[m * kBlocks + b]);
}

TEST(Scales, AreUpcastExactly) {
  const std::vector<uint8_t> bytes = {0, 1, 127, 254};
  std::vector<float> out(bytes.size());
  UpcastScales(bytes, out);
  EXPECT_EQ(out, (std::vector<float>{0x1p-127f, 0x1p-126f, 1.0f, 0x1p127f}));
}

TEST(Fnuz, HasItsOwnBiasNanAndNoNegativeZero) {
  EXPECT_EQ(E4M3FnuzToFloat(0x7F), 240.0f);
  EXPECT_EQ(E4M3FnuzToFloat(0xFF), -240.0f);
  EXPECT_EQ(E4M3FnuzToFloat(0x40), 1.0f);
  EXPECT_EQ(E4M3FnuzToFloat(0x08), 0x1p-7f);
  EXPECT_EQ(E4M3FnuzToFloat(0x01), 0x1p-10f);
  EXPECT_EQ(E4M3FnuzToFloat(0x00), 0.0f);
  EXPECT_TRUE(std::isnan(E4M3FnuzToFloat(0x80)));
}

// Every code with every scale of E8M0 that can be doubled, and with fp32 scales: the same product.
TEST(Fnuz, ValuesEqualOcpValues) {
  std::vector<uint8_t> codes(256), fnuz(256);
  for (int i = 0; i < 256; ++i) codes[i] = fnuz[i] = static_cast<uint8_t>(i);
  OcpToFnuz(fnuz);
  std::vector<uint8_t> bytes(254), doubled_bytes(254);
  for (int i = 0; i < 254; ++i) bytes[i] = doubled_bytes[i] = static_cast<uint8_t>(i);
  ASSERT_TRUE(DoubleE8M0Scales(doubled_bytes).ok());
  std::vector<float> scales, doubled;
  for (int i = 0; i < 254; ++i) {
    scales.push_back(E8M0ToFloat(bytes[i]));
    doubled.push_back(E8M0ToFloat(doubled_bytes[i]));
  }
  std::vector<float> plain = {3.0f / 448.0f, 0.1f, 1e-40f, 1.7f}, plain_doubled = plain;
  ASSERT_TRUE(DoubleScales(plain_doubled).ok());
  scales.insert(scales.end(), plain.begin(), plain.end());
  doubled.insert(doubled.end(), plain_doubled.begin(), plain_doubled.end());
  for (int i = 0; i < 256; ++i) {
    const float value = E4M3ToFloat(codes[i]);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(E4M3FnuzToFloat(fnuz[i]))) << i;
      continue;
    }
    EXPECT_EQ(2 * E4M3FnuzToFloat(fnuz[i]), value) << i;
    // In fp64, where no product of the two is rounded.
    for (size_t s = 0; s < scales.size(); ++s) {
      EXPECT_EQ(double{E4M3FnuzToFloat(fnuz[i])} * doubled[s], double{value} * scales[s]) << i << ", " << s;
    }
  }
}

TEST(Fnuz, ScalesWithoutADoubleAreRefused) {
  std::vector<uint8_t> bytes = {3, 254, 255};
  EXPECT_EQ(DoubleE8M0Scales(bytes).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(bytes, (std::vector<uint8_t>{3, 254, 255}));
  bytes[1] = 253;
  ASSERT_TRUE(DoubleE8M0Scales(bytes).ok());
  EXPECT_EQ(bytes, (std::vector<uint8_t>{4, 254, 255}));
  std::vector<float> scales = {1.0f, 3e38f};
  EXPECT_EQ(DoubleScales(scales).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(scales[0], 1.0f);
}

}  // namespace
}  // namespace hadal::amd
