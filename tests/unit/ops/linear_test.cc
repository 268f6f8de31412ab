// Linear, GroupedLinear, Embed and MtpCombine against sums in double and against exact integers (spec deepseek-v4-text
// 2.3, 3.1, 3.2, 3.7, 4).
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/ops_fixture.h"

namespace hadal {
namespace {

using test::Matrix;
using test::Random;
using test::Weight;
using LinearTest = test::OpsTest;
HADAL_OPS_TEST_SUITE(LinearTest);
class AnyScaleLinearTest : public LinearTest {};
HADAL_OPS_TEST_SUITE_WITH(AnyScaleLinearTest, ops::Feature::kAnyActivationScales);

// AQ(x, 128) of one row, from the definition in spec 3.1.
std::vector<float> QuantiseRow(const std::vector<float>& x) {
  std::vector<float> out(x.size());
  for (size_t begin = 0; begin < x.size(); begin += 128) {
    const size_t end = std::min(x.size(), begin + 128);
    float amax = 1e-4f;
    for (size_t i = begin; i < end; ++i) amax = std::max(amax, std::fabs(x[i]));
    int exponent = 0;
    const float fraction = std::frexp(amax * (1.0f / 448.0f), &exponent);  // fraction 0.5: an exact power of two
    const float scale = std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
    for (size_t i = begin; i < end; ++i) out[i] = E4M3ToFloat(FloatToE4M3(x[i] / scale)) * scale;
  }
  return out;
}

struct Sum {
  double value = 0;
  double magnitude = 0;
};

Sum DotInDouble(const std::vector<float>& x, int64_t offset, const Weight& w, int64_t o) {
  Sum sum;
  for (int64_t i = 0; i < w.k(); ++i) {
    const double product = static_cast<double>(x[offset + i]) * w.At(o, i);
    sum.value += product;
    sum.magnitude += std::fabs(product);
  }
  return sum;
}

// The error of one fp32 sum against the exact one, then one rounding to the dtype of `out`.
double LinearTolerance(DType out, int64_t k, const Sum& sum) {
  return test::SumTolerance(k, sum.magnitude) + test::RoundingStep(out, sum.value);
}

void ExpectLinear(const Matrix& x, const Weight& w, const Matrix& out, bool quantised) {
  int64_t reported = 0;
  for (int64_t t = 0; t < x.rows(); ++t) {
    const std::vector<float> row = quantised ? QuantiseRow(x.Row(t)) : x.Row(t);
    for (int64_t o = 0; o < w.n() && reported < 10; ++o) {
      const Sum sum = DotInDouble(row, 0, w, o);
      const bool close = std::fabs(out.At(t, o) - sum.value) <= LinearTolerance(out.dtype(), w.k(), sum);
      EXPECT_TRUE(close) << "row " << t << " output " << o << ": " << out.At(t, o) << ", expected " << sum.value;
      reported += close ? 0 : 1;
    }
  }
}

struct Shape {
  int64_t tokens, n, k;
  DType weight;
};

TEST_P(LinearTest, MatchesADoubleSumOnEdgeShapes) {
  std::vector<Shape> shapes;
  for (DType dtype : {DType::kF8E4M3, DType::kF4E2M1, DType::kBF16, DType::kF32}) {
    for (int64_t tokens : {1, 2, 3, 15, 16, 17, 33, 129}) {
      shapes.push_back({tokens, 100, 256, dtype});
      shapes.push_back({tokens, 24, 128, dtype});
    }
    for (int64_t n : {1, 7, 16, 127, 130, 257}) shapes.push_back({5, n, 128, dtype});
    shapes.push_back({1, 72, 4096, dtype});
    shapes.push_back({17, 33, 4096, dtype});
  }
  for (int64_t tokens : {1, 17}) shapes.push_back({tokens, 40, 576, DType::kBF16});

  Random random(1);
  for (const Shape& s : shapes) {
    SCOPED_TRACE(testing::Message() << s.tokens << " rows, n " << s.n << ", k " << s.k << ", weight "
                                    << DTypeName(s.weight));
    const bool quantised_weight = s.weight == DType::kF8E4M3 || s.weight == DType::kF4E2M1;
    Matrix x = Matrix::RandomNormal(&random, act(), s.tokens, s.k, 2.0f, 8);
    const Weight w = Weight::RandomOf(&random, s.weight, s.n, s.k);
    const ops::LinearWeight weight = w.view();
    Matrix out(act(), s.tokens, s.n, 3);
    const ops::InputQuant quant = quantised_weight ? ops::InputQuant::kFp8 : ops::InputQuant::kNone;
    const ops::LinearTarget target{&weight, out.view(), quant};
    ops_->Linear(x.view(), {&target, 1});
    EXPECT_TRUE(ops_->Synchronize().ok());
    ExpectLinear(x, w, out, quantised_weight && published());
    EXPECT_TRUE(out.PaddingIntact());
  }
}

// The bias is part of the fp32 sum: it comes before the one rounding. k = 588 (a patch of 14 x 14) is no multiple of
// any vector or tile.
TEST_P(LinearTest, AddsTheBiasBeforeTheRounding) {
  Random random(8);
  for (const auto& [dtype, k] : {std::pair<DType, int64_t>{DType::kBF16, 588},
                                 {DType::kF32, 588},
                                 {DType::kBF16, 20},
                                 {DType::kBF16, 1024},
                                 {DType::kF8E4M3, 256},
                                 {DType::kF4E2M1, 256}}) {
    for (int64_t n : {1, 7, 130, 257}) {
      for (int64_t tokens : {1, 5, 17, 70}) {
        SCOPED_TRACE(testing::Message() << tokens << " rows, n " << n << ", k " << k << " " << DTypeName(dtype));
        Matrix x = Matrix::RandomNormal(&random, act(), tokens, k, 1.0f, 4);
        const Weight w = Weight::RandomOf(&random, dtype, n, k);
        const ops::LinearWeight view = w.view();
        const Matrix bias = Matrix::RandomNormal(&random, n == 7 ? DType::kF32 : DType::kBF16, 1, n, 3.0f);
        Matrix out(act(), tokens, n, 3), plain(act(), tokens, n);
        const ops::LinearTarget targets[] = {{&view, out.view(), ops::InputQuant::kNone, bias.vector()},
                                             {&view, plain.view(), ops::InputQuant::kNone}};
        ops_->Linear(x.view(), targets);
        EXPECT_TRUE(ops_->Synchronize().ok());
        ExpectLinear(x, w, plain, false);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t o = 0; o < n; ++o) {
            Sum sum = DotInDouble(x.Row(t), 0, w, o);
            sum.value += bias.At(0, o);
            sum.magnitude += std::fabs(bias.At(0, o));
            ASSERT_NEAR(out.At(t, o), sum.value, LinearTolerance(act(), k + 1, sum)) << "row " << t << " output " << o;
          }
        }
        EXPECT_TRUE(out.PaddingIntact());
      }
    }
  }
}

TEST_P(LinearTest, TargetsThatShareAnInputAreIndependent) {
  Random random(2);
  Matrix x = Matrix::RandomNormal(&random, act(), 19, 256);
  const Weight fp8 = Weight::RandomFp8(&random, 130, 256, DType::kF32);  // base checkpoints: F32 scales
  const Weight fp4 = Weight::RandomFp4(&random, 64, 256);
  const Weight bf16 = Weight::RandomOf(&random, DType::kBF16, 48, 256);
  const Weight f32 = Weight::RandomOf(&random, DType::kF32, 24, 256);
  const ops::LinearWeight views[] = {fp8.view(), fp4.view(), bf16.view(), f32.view(), fp8.view()};
  Matrix a(act(), 19, 130), b(act(), 19, 64), c(DType::kF32, 19, 48), d(DType::kF32, 19, 24), e(act(), 19, 130);
  const ops::LinearTarget targets[] = {{&views[0], a.view(), ops::InputQuant::kFp8},
                                       {&views[1], b.view(), ops::InputQuant::kFp8},
                                       {&views[2], c.view(), ops::InputQuant::kNone},
                                       {&views[3], d.view(), ops::InputQuant::kNone},
                                       {&views[4], e.view(), ops::InputQuant::kNone}};
  ops_->Linear(x.view(), targets);
  EXPECT_TRUE(ops_->Synchronize().ok());
  ExpectLinear(x, fp8, a, published());
  ExpectLinear(x, fp4, b, published());
  ExpectLinear(x, bf16, c, false);
  ExpectLinear(x, f32, d, false);
  ExpectLinear(x, fp8, e, false);
}

// Small integers times small integers: every sum is exact in fp32 whatever its order, so the bits must agree.
TEST_P(LinearTest, IsExactOnIntegers) {
  Random random(3);
  const float e2m1[] = {0, 1, 2, 3, 4, 6, -1, -2, -3, -4, -6};
  for (DType dtype : {DType::kF8E4M3, DType::kF4E2M1}) {
    const int64_t k = 256, n = 50, tokens = 18;
    Matrix x(act(), tokens, k);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < k; ++i) x.Set(t, i, static_cast<float>(random.Index(17) - 8));
      x.Set(t, 0, 14.0f);  // amax 14 = 448/32: scale 2^-5, every integer up to 14 is on the grid
      x.Set(t, 128, -14.0f);
    }
    std::vector<float> values(static_cast<size_t>(n * k));
    for (float& v : values) v = e2m1[random.Index(11)];
    const Weight w = Weight::FromGrid(dtype, n, k, values);
    const ops::LinearWeight view = w.view();
    Matrix out(DType::kF32, tokens, n), rounded(act(), tokens, n);
    const ops::LinearTarget targets[] = {{&view, out.view(), ops::InputQuant::kFp8},
                                         {&view, rounded.view(), ops::InputQuant::kFp8}};
    ops_->Linear(x.view(), targets);
    EXPECT_TRUE(ops_->Synchronize().ok());
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t o = 0; o < n; ++o) {
        const double exact = DotInDouble(x.Row(t), 0, w, o).value;
        ASSERT_EQ(out.At(t, o), exact) << "row " << t << " output " << o;
        ASSERT_EQ(rounded.At(t, o), Act(static_cast<float>(exact)));
      }
    }
  }
}

// Trap 17: the scale of an activation block, seen through identity rows of weights. Powers of two only show where E4M3
// runs out of exponents: 1.5 steps of 2^-9 stay 1.5 under half the scale, and 1 step vanishes under twice the scale.
TEST_P(LinearTest, ActivationScalesFollowTheSpec) {
  const struct {
    float amax, scale;
  } cases[] = {{0, 0x1p-22f}, {1e-5f, 0x1p-22f}, {448, 1}, {448 * (1 + 0x1p-7f), 2}, {7 * 0x1p-3f, 0x1p-9f}, {896, 2}};
  for (const auto& [amax, scale] : cases) {
    // In one block of 128: amax, both probes. In the next block the first probe alone, which keeps its own scale.
    const float inputs[] = {amax, 1.5f * 0x1p-9f * scale, 0x1p-9f * scale, 1.5f * 0x1p-9f * scale};
    const int64_t places[] = {0, 80, 40, 128};
    Matrix x = Matrix::Filled(act(), 1, 256, 0.0f);
    std::vector<float> values(4 * 256, 0.0f);
    for (int64_t i = 0; i < 4; ++i) {
      x.Set(0, places[i], inputs[i]);
      values[i * 256 + places[i]] = 1;
    }
    const Weight w = Weight::FromGrid(DType::kF8E4M3, 4, 256, values);
    const ops::LinearWeight view = w.view();
    Matrix out(DType::kF32, 1, 4);
    const ops::LinearTarget target{&view, out.view(), ops::InputQuant::kFp8};
    ops_->Linear(x.view(), {&target, 1});
    EXPECT_TRUE(ops_->Synchronize().ok());
    const float alone = scale > 0x1p-22f ? inputs[3] : 0x1p-8f * scale;  // the floor of 1e-4 holds there as well
    const float expected[] = {RoundE4M3(x.At(0, 0) / scale) * scale, 0x1p-8f * scale, 0x1p-9f * scale, alone};
    for (int64_t i = 0; i < 4; ++i)
      EXPECT_EQ(out.At(0, i), published() ? expected[i] : x.At(0, places[i])) << amax << " input " << places[i];
  }
}

// Scales that are any number (spec deepseek-v32 3.1 without scale_fmt): amax/448, computed here by hand. Of block 0
// amax is 3: scale 3/448, so that 1 becomes code 149.33 -> 144 (steps of 16), 0.5 code 74.67 -> 72 (steps of 8), -3 the
// code -448. Block 1 is below the floor of 1e-4: scale 1e-4/448, and 1e-5 becomes code 44.8 -> 44 (steps of 4).
TEST_P(AnyScaleLinearTest, ActivationScalesMayBeAnyNumber) {
  Matrix x = Matrix::Filled(act(), 1, 256, 0.0f);
  const std::pair<int64_t, float> inputs[] = {{0, 1}, {64, 0.5f}, {127, -3}, {128, 1e-5f}};
  const float scale = 3.0f * (1.0f / 448.0f), floor = 1e-4f * (1.0f / 448.0f);
  const float expected[] = {144 * scale, 72 * scale, -448 * scale, 44 * floor};
  std::vector<float> values(4 * 256, 0.0f);
  for (int64_t i = 0; i < 4; ++i) {
    x.Set(0, inputs[i].first, inputs[i].second);
    values[i * 256 + inputs[i].first] = 1;
  }
  const Weight w = Weight::FromGrid(DType::kF8E4M3, 4, 256, values);
  const ops::LinearWeight view = w.view();
  Matrix out(DType::kF32, 1, 4), plain(DType::kF32, 1, 4);
  const ops::LinearTarget targets[] = {{&view, out.view(), ops::InputQuant::kFp8AnyScale},
                                       {&view, plain.view(), ops::InputQuant::kNone}};
  ops_->Linear(x.view(), targets);
  EXPECT_TRUE(ops_->Synchronize().ok());
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(out.At(0, i), published() ? expected[i] : x.At(0, inputs[i].first)) << i;
    EXPECT_EQ(plain.At(0, i), x.At(0, inputs[i].first)) << i;
  }
}

TEST_P(AnyScaleLinearTest, AnyScalesMatchTheReferenceOnEdgeShapes) {
  Random random(19);
  for (DType dtype : {DType::kF8E4M3, DType::kF4E2M1}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 128}, {100, 256}, {130, 640}, {33, 4096}}) {
      for (int64_t tokens : {1, 2, 15, 16, 17, 70}) {
        SCOPED_TRACE(testing::Message() << tokens << " rows, n " << n << ", k " << k << " " << DTypeName(dtype));
        Matrix x = Matrix::RandomNormal(&random, act(), tokens, k, 2.0f, 8);
        const Weight w = Weight::RandomOf(&random, dtype, n, k);
        const ops::LinearWeight view = w.view();
        Matrix out(DType::kF32, tokens, n), expected(DType::kF32, tokens, n), other(DType::kF32, tokens, n);
        const ops::LinearTarget target{&view, out.view(), ops::InputQuant::kFp8AnyScale};
        const ops::LinearTarget want{&view, expected.view(), ops::InputQuant::kFp8AnyScale};
        const ops::LinearTarget powers{&view, other.view(), ops::InputQuant::kFp8};
        ops_->Linear(x.view(), {&target, 1});
        ops_->Linear(x.view(), {&powers, 1});
        reference_->Linear(x.view(), {&want, 1});
        EXPECT_TRUE(ops_->Synchronize().ok());
        for (int64_t t = 0; t < tokens; ++t) {
          const std::vector<float> row = x.Row(t);
          for (int64_t o = 0; o < n; ++o) {
            // Quantised values are the same on both sides; only sums differ.
            const double magnitude = 1.1 * DotInDouble(row, 0, w, o).magnitude;
            ASSERT_NEAR(out.At(t, o), expected.At(t, o), 2 * test::SumTolerance(k, magnitude))
                << "row " << t << " output " << o;
          }
        }
        EXPECT_EQ(test::EqualShare(out, other) < 0.5, published());
      }
    }
  }
}

// Trap 18: nibble order, E8M0 bytes as exponents, byte 0 included.
TEST_P(LinearTest, DecodesWeightBytesByDefinition) {
  const int64_t k = 32;
  std::vector<uint8_t> codes(static_cast<size_t>(k / 2), 0);
  codes[0] = 0x21;
  codes[1] = 0x43;
  const float decoded[4] = {.5f, 1, 1.5f, 2};
  for (const auto& [byte, scale] : {std::pair<int, float>{127, 1.0f}, {120, 0x1p-7f}, {128, 2.0f}, {1, 0x1p-126f}}) {
    const std::vector<uint8_t> scale_byte = {static_cast<uint8_t>(byte)};
    const ops::LinearWeight w{1, k, DType::kF4E2M1, codes.data(), DType::kF8E8M0, scale_byte.data()};
    for (int64_t i = 0; i < 4; ++i) {
      Matrix x = Matrix::Filled(act(), 1, k, 0.0f);
      const float large = byte == 1 ? 0x1p100f : 1.0f;
      x.Set(0, i, large);
      Matrix out(DType::kF32, 1, 1);
      const ops::LinearTarget target{&w, out.view(), ops::InputQuant::kNone};
      ops_->Linear(x.view(), {&target, 1});
      EXPECT_TRUE(ops_->Synchronize().ok());
      EXPECT_EQ(out.At(0, 0), decoded[i] * large * scale) << "byte " << byte << " input " << i;
    }
  }
  const uint8_t fp8_codes[4] = {0x7E, 0x08, 0x01, 0xB8};  // 448, 2^-6, 2^-9, -1
  const float fp8_values[4] = {448, 0x1p-6f, 0x1p-9f, -1};
  for (int64_t i = 0; i < 4; ++i) {
    std::vector<uint8_t> row(128, 0);
    row[i] = fp8_codes[i];
    const std::vector<uint8_t> scale = {120};
    const ops::LinearWeight w{1, 128, DType::kF8E4M3, row.data(), DType::kF8E8M0, scale.data()};
    Matrix x = Matrix::Filled(act(), 1, 128, 1.0f);
    Matrix out(DType::kF32, 1, 1);
    const ops::LinearTarget target{&w, out.view(), ops::InputQuant::kNone};
    ops_->Linear(x.view(), {&target, 1});
    EXPECT_TRUE(ops_->Synchronize().ok());
    EXPECT_EQ(out.At(0, 0), fp8_values[i] * 0x1p-7f);
  }
}

// Each group sees its own columns; the input is not quantised.
TEST_P(LinearTest, GroupedMatchesADoubleSum) {
  Random random(4);
  struct GroupedShape {
    int64_t groups, k, n;
  };
  for (DType dtype : {DType::kF8E4M3, DType::kF4E2M1, DType::kBF16}) {
    for (const auto& [groups, k, n] : {GroupedShape{4, 512, 64}, {3, 128, 512}, {5, 256, 128}, {1, 128, 130}}) {
      if (dtype == DType::kF8E4M3 && groups * n % 128 != 0) continue;
      for (int64_t tokens : {1, 3, 16, 17, 33}) {
        SCOPED_TRACE(testing::Message() << groups << " groups, n " << n << ", k " << k << " " << DTypeName(dtype));
        Matrix x = Matrix::RandomNormal(&random, act(), tokens, groups * k);
        const Weight w = Weight::RandomOf(&random, dtype, groups * n, k);
        const ops::LinearWeight view = w.view();
        Matrix out(act(), tokens, groups * n);
        ops_->GroupedLinear({x.view(), &view, groups, out.view()});
        EXPECT_TRUE(ops_->Synchronize().ok());
        for (int64_t t = 0; t < tokens; ++t) {
          const std::vector<float> row = x.Row(t);
          for (int64_t o = 0; o < groups * n; ++o) {
            const Sum sum = DotInDouble(row, o / n * k, w, o);
            ASSERT_NEAR(out.At(t, o), sum.value, LinearTolerance(act(), k, sum)) << "row " << t << " output " << o;
          }
        }
      }
    }
  }
}

// Groups that lie apart, in input and output, as the absorbed queries of V3.2 do; what lies between is not written.
TEST_P(LinearTest, GroupedWithRoomBetweenTheGroups) {
  Random random(20);
  for (DType dtype : {DType::kF8E4M3, DType::kF4E2M1, DType::kBF16}) {
    for (int64_t tokens : {1, 2, 16, 17, 40}) {
      const int64_t groups = 3, k = 128, n = 256, x_group = 192, out_group = 320;
      Matrix x = Matrix::RandomNormal(&random, act(), tokens, groups * x_group, 1.0f, 6);
      const Weight w = Weight::RandomOf(&random, dtype, groups * n, k);
      const ops::LinearWeight view = w.view();
      Matrix out(act(), tokens, groups * out_group, 2);
      for (int64_t t = 0; t < tokens; ++t) out.SetRow(t, std::vector<float>(static_cast<size_t>(out.cols()), 7.0f));
      ops_->GroupedLinear({x.view(), &view, groups, out.view(), x_group, out_group});
      EXPECT_TRUE(ops_->Synchronize().ok());
      for (int64_t t = 0; t < tokens; ++t) {
        const std::vector<float> row = x.Row(t);
        for (int64_t c = 0; c < out.cols(); ++c) {
          const int64_t g = c / out_group;
          if (c % out_group >= n) {
            ASSERT_EQ(out.At(t, c), 7.0f);
            continue;
          }
          const Sum sum = DotInDouble(row, g * x_group, w, g * n + c % out_group);
          ASSERT_NEAR(out.At(t, c), sum.value, LinearTolerance(act(), k, sum)) << "row " << t << " output " << c;
        }
      }
      EXPECT_TRUE(out.PaddingIntact());
    }
  }
}

// Trap 24: heads of a group are neighbours, so a single non-zero head reaches a single group.
TEST_P(LinearTest, OneHeadReachesOneGroup) {
  Random random(5);
  const int64_t groups = 4, heads = 8, head_dim = 64, n = 32;
  const Weight w = Weight::RandomFp8(&random, groups * n, heads / groups * head_dim);
  const ops::LinearWeight view = w.view();
  for (int64_t head = 0; head < heads; ++head) {
    Matrix x = Matrix::Filled(act(), 1, heads * head_dim, 0.0f);
    for (int64_t i = 0; i < head_dim; ++i) x.Set(0, head * head_dim + i, random.Normal());
    Matrix out(act(), 1, groups * n);
    ops_->GroupedLinear({x.view(), &view, groups, out.view()});
    EXPECT_TRUE(ops_->Synchronize().ok());
    for (int64_t g = 0; g < groups; ++g) {
      double magnitude = 0;
      for (int64_t i = 0; i < n; ++i) magnitude += std::fabs(out.At(0, g * n + i));
      EXPECT_EQ(magnitude > 0, g == head / 2) << "head " << head << " group " << g;
    }
  }
}

TEST_P(LinearTest, EmbedCopiesTheRowToEveryStream) {
  Random random(6);
  const int64_t d = 256, hc = 4;
  const Weight table = Weight::RandomOf(&random, DType::kBF16, 40, d);
  test::Batch batch;
  for (int32_t id : {39, 0, 7, 7, 12}) batch.Add(0, batch.size(), id);
  Matrix streams(act(), batch.size(), hc * d);
  ops_->Embed(batch.view(), table.view(), hc, streams.view());
  EXPECT_TRUE(ops_->Synchronize().ok());
  for (int64_t t = 0; t < batch.size(); ++t) {
    for (int64_t i = 0; i < hc * d; ++i) ASSERT_EQ(streams.At(t, i), table.At(batch.ids[t], i % d));
  }
}

TEST_P(LinearTest, MtpCombineAddsTheEmbeddingToEveryStream) {
  Random random(7);
  const int64_t d = 128, hc = 4, tokens = 5;
  Matrix e = Matrix::RandomNormal(&random, act(), tokens, d);
  Matrix h = Matrix::RandomNormal(&random, act(), tokens * hc, d);
  Matrix streams(act(), tokens, hc * d);
  ops_->MtpCombine({e.view(), h.view(), hc, streams.view()});
  EXPECT_TRUE(ops_->Synchronize().ok());
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t s = 0; s < hc; ++s) {
      for (int64_t i = 0; i < d; ++i) ASSERT_EQ(streams.At(t, s * d + i), Act(e.At(t, i) + h.At(t * hc + s, i)));
    }
  }
}

}  // namespace
}  // namespace hadal
