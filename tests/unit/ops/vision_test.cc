// The vision operators against sums in double and exact values (spec deepseek-v4-vision-and-cache 2.4, 3, 4.1).
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "support/ops_fixture.h"

namespace hadal {
namespace {

using test::Matrix;
using test::Random;

constexpr ops::WorkspaceSpec kSpec = {.max_tokens = 64,
                                      .hidden = 64,
                                      .hc_mult = 4,
                                      .max_linear_k = 64,
                                      .max_linear_n = 64,
                                      .heads = 1,
                                      .head_dim = 64,
                                      .vision_rows = 300};

class VisionTest : public test::OpsTest {
 protected:
  void SetUp() override { ASSERT_TRUE(ops_->Reserve(kSpec).ok()); }
};
HADAL_OPS_TEST_SUITE(VisionTest);

// One image's input to the attention. Row `patch` of the angles: cos and sin of its pairs.
struct Image {
  int64_t patches, heads, dim;
  Matrix qkv;
  std::vector<float> cos, sin;

  Image(Random* random, DType act, int64_t n, int64_t h, int64_t d)
      : patches(n),
        heads(h),
        dim(d),
        qkv(Matrix::RandomNormal(random, act, n, 3 * h * d, 2.0f, 5)),
        cos(static_cast<size_t>(n * d / 2)),
        sin(cos.size()) {}

  // Multiples of a right angle: a rotation is a change of places and signs, exact in every arithmetic.
  void TurnByRightAngles(Random* random) {
    for (size_t i = 0; i < cos.size(); ++i) {
      const int64_t quarter = random->Index(4);
      cos[i] = quarter == 0 ? 1.0f : quarter == 2 ? -1.0f : 0.0f;
      sin[i] = quarter == 1 ? 1.0f : quarter == 3 ? -1.0f : 0.0f;
    }
  }
  void TurnAtRandom(Random* random) {
    for (size_t i = 0; i < cos.size(); ++i) {
      const double angle = random->Uniform(-50.0f, 50.0f);
      cos[i] = static_cast<float>(std::cos(angle));
      sin[i] = static_cast<float>(std::sin(angle));
    }
  }
  Matrix Attend(ops::Ops* ops) {
    Matrix packed(qkv.dtype(), 3 * heads * patches, dim);
    Matrix out(qkv.dtype(), patches, heads * dim, 3);
    ops->VisionAttention({qkv.view(), heads, dim, {cos.data(), sin.data(), dim / 2}, packed.view(), out.view()});
    EXPECT_TRUE(ops->Synchronize().ok());
    EXPECT_TRUE(out.PaddingIntact());
    return out;
  }
  // Part 0: queries, 1: keys, 2: values of a patch and head; the first two rotated.
  std::vector<double> Head(int64_t part, int64_t n, int64_t h) const {
    std::vector<double> x(static_cast<size_t>(dim));
    for (int64_t c = 0; c < dim; ++c) x[c] = qkv.At(n, (part * heads + h) * dim + c);
    if (part == 2) return x;
    for (int64_t i = 0; i < dim / 2; ++i) {
      const double a = x[i];
      const double b = x[i + dim / 2];
      x[i] = a * cos[n * dim / 2 + i] - b * sin[n * dim / 2 + i];
      x[i + dim / 2] = b * cos[n * dim / 2 + i] + a * sin[n * dim / 2 + i];
    }
    return x;
  }
};

// One query in double. `error`: what its fp32 evaluation may differ by before the last rounding.
struct Attended {
  std::vector<double> out;
  std::vector<double> error;
};

Attended AttendInDouble(const Image& image, int64_t query, int64_t h) {
  const int64_t d = image.dim;
  const std::vector<double> q = image.Head(0, query, h);
  std::vector<double> p;
  double largest = -1e300;
  double score_error = 0;
  for (int64_t n = 0; n < image.patches; ++n) {
    const std::vector<double> k = image.Head(1, n, h);
    double sum = 0;
    double magnitude = 0;
    for (int64_t c = 0; c < d; ++c) {
      sum += q[c] * k[c];
      magnitude += std::fabs(q[c] * k[c]);
    }
    const double scale = 1.0 / std::sqrt(static_cast<double>(d));
    p.push_back(sum * scale);
    largest = std::max(largest, p.back());
    // The sum, the product with the rounded scale, and the difference to the largest.
    score_error = std::max(score_error, (test::SumTolerance(d, magnitude) + 4 * 0x1p-24 * magnitude) * scale);
  }
  double total = 0;
  for (double& v : p) total += v = std::exp(v - largest);
  Attended result{std::vector<double>(static_cast<size_t>(d)), std::vector<double>(static_cast<size_t>(d))};
  // A probability errs relatively by twice the error of a score, the exponential's 4 units in the last place and the
  // sum of all; then comes the sum of the values. With bf16 activations it may be kept as two bf16 numbers, 16 bits.
  const double relative = 2 * score_error + 8 * 0x1p-24 + 2 * test::SumTolerance(image.patches, 1.0) +
                          (image.qkv.dtype() == DType::kBF16 ? 0x1p-16 : 0.0);
  for (int64_t n = 0; n < image.patches; ++n) {
    const std::vector<double> v = image.Head(2, n, h);
    for (int64_t c = 0; c < d; ++c) {
      result.out[c] += p[n] / total * v[c];
      result.error[c] += p[n] / total * std::fabs(v[c]) * relative;
    }
  }
  return result;
}

TEST_P(VisionTest, AttentionMatchesDouble) {
  Random random(51);
  const struct {
    int64_t n, heads, dim;
  } shapes[] = {{1, 1, 4},   {1, 2, 64},   {7, 3, 20},  {15, 1, 32}, {16, 2, 64}, {31, 2, 36}, {33, 2, 64},
                {64, 1, 32}, {100, 2, 20}, {9, 1, 128}, {32, 1, 64}, {45, 2, 96}, {250, 2, 64}};
  for (const auto& [n, heads, dim] : shapes) {
    SCOPED_TRACE(testing::Message() << n << " patches, " << heads << " heads of " << dim);
    Image image(&random, act(), n, heads, dim);
    image.TurnByRightAngles(&random);
    const Matrix out = image.Attend(ops_.get());
    for (int64_t t = 0; t<n; t += n> 100 ? 7 : 1) {
      for (int64_t h = 0; h < heads; ++h) {
        const Attended expected = AttendInDouble(image, t, h);
        for (int64_t c = 0; c < dim; ++c) {
          ASSERT_NEAR(out.At(t, h * dim + c), expected.out[c], expected.error[c] + ActStep(expected.out[c]))
              << "patch " << t << " head " << h << " dim " << c;
        }
      }
    }
  }
}

// Any angles, against the reference: a rotated value may be rounded the other way, which moves a score by one bf16 step
// of one product and an output by twice that of the largest value.
TEST_P(VisionTest, AttentionWithAnyAnglesMatchesTheReference) {
  Random random(52);
  for (const auto& [n, heads, dim] : {std::tuple<int64_t, int64_t, int64_t>{50, 2, 64}, {90, 3, 32}, {21, 1, 20}}) {
    Image image(&random, act(), n, heads, dim);
    image.TurnAtRandom(&random);
    const Matrix out = image.Attend(ops_.get());
    const Matrix expected = image.Attend(reference_.get());
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        double error = 0;
        for (double e : AttendInDouble(image, t, h).error) error = std::max(error, e);
        const double largest = 6.93 * std::numbers::sqrt2;  // Random::Normal reaches 3.47, the scale is 2
        const double step = ActStep(largest * largest) / std::sqrt(static_cast<double>(dim));
        for (int64_t c = h * dim; c < (h + 1) * dim; ++c) {
          ASSERT_NEAR(out.At(t, c), expected.At(t, c), 2 * error + 2 * step * 6.93 + ActStep(expected.At(t, c)));
        }
      }
    }
    if (published()) {
      EXPECT_GT(test::EqualShare(out, expected), 0.9);
    }
  }
}

// Trap 16: dims i and i+32 are a pair; a quarter turn of the pairs i < 16 leaves all other dims where they are. Head c
// has key 1 with the single dim c, and query 0 looks for it at dim j: the output of patch 0 says how much is there.
TEST_P(VisionTest, RotationPairsTheHalvesOfAHead) {
  constexpr int64_t kDim = 64;
  Random random(53);
  for (int64_t j = 0; j < kDim; ++j) {
    Image image(&random, act(), 2, kDim, kDim);
    image.qkv = Matrix::Filled(act(), 2, 3 * kDim * kDim, 0.0f);
    std::fill(image.cos.begin(), image.cos.end(), 1.0f);
    for (int64_t i = 0; i < 16; ++i) {
      image.cos[kDim / 2 + i] = 0.0f;
      image.sin[kDim / 2 + i] = 1.0f;
    }
    for (int64_t c = 0; c < kDim; ++c) {
      image.qkv.Set(0, c * kDim + j, 8.0f);
      image.qkv.Set(1, (kDim + c) * kDim + c, 8.0f);
      image.qkv.Set(1, (2 * kDim + c) * kDim, 1.0f);
    }
    const Matrix out = image.Attend(ops_.get());
    for (int64_t c = 0; c < kDim; ++c) {
      const bool turned = c % 32 < 16;
      const int64_t place = turned ? (c + 32) % 64 : c;
      const double score = j != place ? 0.0 : turned && c >= 32 ? -8.0 : 8.0;
      const double expected = 1.0 / (1.0 + std::exp(-score));
      ASSERT_NEAR(out.At(0, c * kDim), expected, 1e-6 + ActStep(expected)) << "key " << c << " query " << j;
    }
  }
}

TEST(VisionThreadsTest, AttentionHasTheSameBitsWithAnyNumberOfThreads) {
  for (const cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAmx}) {
    for (const ops::Numerics numerics : {ops::Numerics::kPublished, ops::Numerics::kF32}) {
      std::vector<float> first;
      for (int threads : {1, 2, 3}) {
        cpu::CpuOptions options;
        options.numerics = numerics;
        options.threads = threads;
        options.isa = isa;
        absl::StatusOr<std::unique_ptr<ops::Ops>> ops = cpu::MakeCpuOps(options);
        if (!ops.ok()) continue;
        ASSERT_TRUE((*ops)->Reserve(kSpec).ok());
        Random random(54);
        Image image(&random, (*ops)->act(), 141, 3, 64);
        image.TurnAtRandom(&random);
        const Matrix out = image.Attend(ops->get());
        std::vector<float> values;
        for (int64_t t = 0; t < out.rows(); ++t) {
          const std::vector<float> row = out.Row(t);
          values.insert(values.end(), row.begin(), row.end());
        }
        if (threads == 1) first = values;
        EXPECT_EQ(values, first) << threads << " threads";
      }
    }
  }
}

TEST_P(VisionTest, PlaceEmbeddingsFillsTheStreamsOfItsRowsOnly) {
  Random random(55);
  const int64_t d = 48, hc = 4, tokens = 6;
  Matrix source = Matrix::RandomNormal(&random, act(), tokens, d);
  Matrix streams(act(), tokens, hc * d, 3);
  for (int64_t t = 0; t < tokens; ++t) streams.SetRow(t, std::vector<float>(static_cast<size_t>(hc * d), 7.0f));
  const auto row = [&](int64_t r) -> const void* {
    return static_cast<const std::byte*>(source.view().data) + DTypeBytes(act(), r * d);
  };
  const std::vector<const void*> rows = {nullptr, row(3), row(0), nullptr, row(3), nullptr};
  ops_->PlaceEmbeddings(rows, hc, streams.view());
  EXPECT_TRUE(ops_->Synchronize().ok());
  const int64_t expected[] = {-1, 3, 0, -1, 3, -1};
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < hc * d; ++i) {
      ASSERT_EQ(streams.At(t, i), expected[t] < 0 ? 7.0f : source.At(expected[t], i % d)) << t << " " << i;
    }
  }
  EXPECT_TRUE(streams.PaddingIntact());
}

TEST_P(VisionTest, NormalisesPixels) {
  std::vector<uint8_t> pixels(3 * 256);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i);
  Matrix out(act(), 3, 256, 5);
  ops_->NormalisePixels(pixels.data(), out.view());
  EXPECT_TRUE(ops_->Synchronize().ok());
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 256; ++c) {
      ASSERT_EQ(out.At(r, c), Act((static_cast<float>(c) / 255.0f - 0.5f) / 0.5f));
    }
  }
  EXPECT_TRUE(out.PaddingIntact());
  if (!published()) return;
  const std::pair<int64_t, uint16_t> examples[] = {
      {0, 0xBF80}, {1, 0xBF7E}, {127, 0xBB81}, {128, 0x3B81}, {255, 0x3F80}};
  for (const auto& [pixel, bits] : examples) EXPECT_EQ(ToBFloat16(out.At(0, pixel)).bits, bits) << pixel;
}

TEST_P(VisionTest, AddRoundsOnce) {
  Random random(56);
  for (int64_t n : {1, 15, 16, 100, 256}) {
    Matrix x = Matrix::RandomNormal(&random, act(), 5, n, 3.0f, 7);
    Matrix y = Matrix::RandomNormal(&random, act(), 5, n, 1.0f, 2);
    const Matrix before = x;
    ops_->Add(x.view(), y.view());
    EXPECT_TRUE(ops_->Synchronize().ok());
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t c = 0; c < n; ++c) ASSERT_EQ(x.At(r, c), Act(before.At(r, c) + y.At(r, c)));
    }
    EXPECT_TRUE(x.PaddingIntact());
  }
}

// The silu is rounded before the product: the double one may land on the other side, a step of it.
TEST_P(VisionTest, SiluMulRoundsTheSiluFirst) {
  Random random(57);
  for (int64_t f : {1, 16, 37, 128}) {
    Matrix x = Matrix::RandomNormal(&random, act(), 9, 2 * f, 4.0f, 3);
    Matrix out(act(), 9, f, 2);
    ops_->SiluMul(x.view(), out.view());
    EXPECT_TRUE(ops_->Synchronize().ok());
    int64_t equal = 0;
    for (int64_t r = 0; r < 9; ++r) {
      for (int64_t c = 0; c < f; ++c) {
        const double g = x.At(r, c);
        const double silu = g / (1.0 + std::exp(-g));
        const double up = x.At(r, f + c);
        const double error = std::fabs(silu * up) * 8 * 0x1p-24;
        ASSERT_NEAR(out.At(r, c), silu * up, error + 2 * ActStep(silu * up)) << g << " " << up;
        equal += out.At(r, c) == Act(Act(static_cast<float>(silu)) * static_cast<float>(up)) ? 1 : 0;
      }
    }
    EXPECT_TRUE(out.PaddingIntact());
    if (published()) {
      EXPECT_GE(equal, 9 * f * 98 / 100);
    }
  }
}

TEST_P(VisionTest, SiluMulOfLargeGates) {
  Matrix x(act(), 1, 4);
  x.SetRow(0, {-200.0f, 200.0f, 2.0f, 0.5f});
  Matrix out(act(), 1, 2);
  ops_->SiluMul(x.view(), out.view());
  EXPECT_TRUE(ops_->Synchronize().ok());
  EXPECT_EQ(out.At(0, 0), 0.0f);
  EXPECT_EQ(out.At(0, 1), 100.0f);
}

// Trap 17: the erf form. The tanh approximation gives 0.841192 for 1.
TEST_P(VisionTest, GeluIsTheExactOne) {
  Matrix x(act(), 2, 300, 4);
  for (int64_t i = 0; i < 600; ++i) x.Set(i / 300, i % 300, static_cast<float>(i - 300) / 32.0f);
  x.Set(0, 0, 1.0f);
  x.Set(0, 1, 100.0f);
  x.Set(0, 2, -100.0f);
  const Matrix before = x;
  ops_->Gelu(x.view());
  EXPECT_TRUE(ops_->Synchronize().ok());
  EXPECT_NEAR(x.At(0, 0), 0.8413447, 1e-7 + (published() ? 0x1p-9 : 0.0));
  EXPECT_EQ(x.At(0, 1), 100.0f);
  EXPECT_EQ(x.At(0, 2), 0.0f);
  for (int64_t i = 0; i < 600; ++i) {
    const double v = before.At(i / 300, i % 300);
    const double expected = 0.5 * v * std::erfc(-v * std::numbers::sqrt2 / 2);
    // 1 + erf errs by a unit of 1, whatever is left of it.
    ASSERT_NEAR(x.At(i / 300, i % 300), expected, std::fabs(v) * 2 * 0x1p-23 + ActStep(expected)) << v;
  }
  EXPECT_TRUE(x.PaddingIntact());
}

// Trap 17: feature c*edge^2 + y*edge + x; beyond the right and lower border there is zero.
TEST_P(VisionTest, UnfoldsTheGridChannelFirst) {
  Random random(58);
  const struct {
    int64_t rows, cols, channels, edge;
  } shapes[] = {{1, 1, 4, 3}, {3, 3, 5, 3}, {7, 5, 8, 3}, {6, 10, 3, 3}, {4, 3, 6, 2}, {2, 9, 1, 1}};
  for (const auto& [rows, cols, channels, edge] : shapes) {
    SCOPED_TRACE(testing::Message() << rows << " x " << cols << " by " << edge);
    const int64_t across = (cols + edge - 1) / edge;
    Matrix x = Matrix::RandomNormal(&random, act(), rows * cols, channels, 1.0f, 3);
    Matrix out(act(), (rows + edge - 1) / edge * across, channels * edge * edge, 5);
    ops_->UnfoldGrid(x.view(), rows, cols, edge, out.view());
    EXPECT_TRUE(ops_->Synchronize().ok());
    for (int64_t cell = 0; cell < out.rows(); ++cell) {
      for (int64_t f = 0; f < out.cols(); ++f) {
        const int64_t row = cell / across * edge + f / edge % edge;
        const int64_t col = cell % across * edge + f % edge;
        const bool inside = row < rows && col < cols;
        ASSERT_EQ(out.At(cell, f), inside ? x.At(row * cols + col, f / (edge * edge)) : 0.0f) << cell << " " << f;
      }
    }
    EXPECT_TRUE(out.PaddingIntact());
  }
}

}  // namespace
}  // namespace hadal
