// RmsNorm, ComputeRopeAngles, QNormRope and KvNormRopeStore (spec deepseek-v4-text 3.1, 3.4).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/ops_fixture.h"

namespace hadal {
namespace {

using test::Angles;
using test::Batch;
using test::Matrix;
using test::Pool;
using test::Random;
using NormRopeTest = test::OpsTest;
HADAL_OPS_TEST_SUITE(NormRopeTest);

constexpr float kEps = 1e-6f;
constexpr int64_t kRotary = 64;

double InverseRms(const std::vector<float>& x, int64_t first, int64_t n) {
  double sum = 0;
  for (int64_t i = first; i < first + n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return 1.0 / std::sqrt(sum / static_cast<double>(n) + kEps);
}

// A sum of squares errs by SumTolerance relative to itself, its root by half of that; then a few single roundings.
double RelativeRmsError(int64_t n) { return test::SumTolerance(n, 1.0) / 2 + 4 * 0x1p-24; }

// row[first, first+64) rotated by p*freqs, in double.
std::vector<double> RotatedTail(const std::vector<double>& tail, const Angles& angles, int64_t t, bool inverse) {
  std::vector<double> out(tail.size());
  for (int64_t j = 0; j < angles.half; ++j) {
    const double c = angles.cos[t * angles.half + j];
    const double s = (inverse ? -1.0 : 1.0) * angles.sin[t * angles.half + j];
    out[2 * j] = tail[2 * j] * c - tail[2 * j + 1] * s;
    out[2 * j + 1] = tail[2 * j] * s + tail[2 * j + 1] * c;
  }
  return out;
}

TEST_P(NormRopeTest, RmsNormRoundsOnceAfterTheWeight) {
  Random random(11);
  for (int64_t tokens : {1, 2, 3, 15, 16, 17, 33, 129}) {
    for (int64_t n : {128, 256, 576, 4096}) {
      Matrix x = Matrix::RandomNormal(&random, act(), tokens, n, 3.0f, 5);
      const DType weight_dtype = tokens % 2 == 0 ? DType::kF32 : DType::kBF16;
      Matrix weight = Matrix::RandomNormal(&random, weight_dtype, 1, n);
      Matrix out(act(), tokens, n, 3);
      ops_->RmsNorm(x.view(), weight.vector(), kEps, out.view());
      ops_->RmsNorm(x.view(), weight.vector(), kEps, x.view());
      EXPECT_TRUE(ops_->Synchronize().ok());
      EXPECT_EQ(test::EqualShare(x, out), 1.0) << "in place";
      EXPECT_TRUE(out.PaddingIntact() && x.PaddingIntact());
    }
  }
  for (int64_t n : {128, 256, 576, 4096}) {
    Matrix x = Matrix::RandomNormal(&random, act(), 5, n, 3.0f);
    Matrix weight = Matrix::RandomNormal(&random, DType::kBF16, 1, n);
    Matrix out(act(), 5, n);
    ops_->RmsNorm(x.view(), weight.vector(), kEps, out.view());
    EXPECT_TRUE(ops_->Synchronize().ok());
    for (int64_t t = 0; t < 5; ++t) {
      const std::vector<float> row = x.Row(t);
      const double inverse_rms = InverseRms(row, 0, n);
      for (int64_t i = 0; i < n; ++i) {
        const double expected = weight.At(0, i) * (row[i] * inverse_rms);
        ASSERT_NEAR(out.At(t, i), expected, std::fabs(expected) * RelativeRmsError(n) + ActStep(expected));
      }
    }
  }
}

TEST_P(NormRopeTest, RmsNormOfZeroIsZero) {
  Matrix x = Matrix::Filled(act(), 1, 128, 0.0f);
  Matrix weight = Matrix::Filled(DType::kBF16, 1, 128, 2.0f);
  ops_->RmsNorm(x.view(), weight.vector(), kEps, x.view());
  EXPECT_TRUE(ops_->Synchronize().ok());
  for (int64_t i = 0; i < 128; ++i) ASSERT_EQ(x.At(0, i), 0.0f);
}

// Trap 32, with the frequencies that spec 3.1 lists as check values. cos and sin in fp32 are good to two units in the
// last place of 1.
TEST_P(NormRopeTest, AnglesAreTheFp32Product) {
  const std::vector<float> freqs = {1.0f,         0.6876560f,   3.635539e-3f, 2.265625e-3f,
                                    2.969778e-4f, 1.953125e-5f, 5.372312e-6f, 5.680529e-7f};
  Batch batch;
  for (int32_t p : {0, 1, 127, 5000, 65535, 1'000'000, 1'048'575}) batch.Add(0, p);
  const auto half = static_cast<int64_t>(freqs.size());
  std::vector<float> cos(static_cast<size_t>(batch.size() * half)), sin(cos.size());
  ops_->ComputeRopeAngles(batch.view(), freqs, cos.data(), sin.data());
  EXPECT_TRUE(ops_->Synchronize().ok());
  for (int64_t t = 0; t < batch.size(); ++t) {
    for (int64_t j = 0; j < half; ++j) {
      const auto angle = static_cast<double>(static_cast<float>(batch.positions[t]) * freqs[j]);
      EXPECT_NEAR(cos[t * half + j], std::cos(angle), 0x1p-22) << batch.positions[t] << " * " << freqs[j];
      EXPECT_NEAR(sin[t * half + j], std::sin(angle), 0x1p-22) << batch.positions[t] << " * " << freqs[j];
    }
  }
  // The check means something: at 10^6 a double product lies outside the tolerance.
  const double in_double = 1e6 * static_cast<double>(freqs[1]);
  EXPECT_GT(std::fabs(in_double - static_cast<double>(1e6f * freqs[1])), 1e-3);
}

// The published norm rounds the squares, their mean, the mean with eps and the reciprocal root to bf16, each by at most
// 2^-8 of its value; the root halves the relative errors of the first three.
double QueryNormError(bool published, int64_t dim) { return RelativeRmsError(dim) + (published ? 2.5 * 0x1p-8 : 0.0); }

TEST_P(NormRopeTest, QueryMatchesADoubleComputation) {
  Random random(12);
  for (const bool normalize : {true, false}) {
    for (int64_t tokens : {1, 2, 3, 15, 16, 17, 33, 129}) {
      for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{3, 512}, {4, 128}}) {
        Matrix q = Matrix::RandomNormal(&random, act(), tokens, heads * dim, 3.0f);
        const Matrix input = q;
        const Batch batch = Batch::Run(tokens, 4990);
        const Angles angles(batch.positions, test::RopeFreqs());
        ops_->QNormRope({q.view(), heads, dim, normalize, kEps, angles.view()});
        EXPECT_TRUE(ops_->Synchronize().ok());
        for (int64_t t = 0; t < tokens; ++t) {
          const std::vector<float> row = input.Row(t);
          for (int64_t h = 0; h < heads; ++h) {
            const double inverse_rms = normalize ? InverseRms(row, h * dim, dim) : 1.0;
            std::vector<double> expected;
            for (int64_t i = 0; i < dim; ++i) expected.push_back(row[h * dim + i] * inverse_rms);
            const std::vector<double> tail(expected.end() - kRotary, expected.end());
            const std::vector<double> rotated = RotatedTail(tail, angles, t, false);
            std::copy(rotated.begin(), rotated.end(), expected.end() - kRotary);
            for (int64_t i = 0; i < dim; ++i) {
              // Both inputs of a rotated pair were rounded once before; then the result is.
              const int64_t j = (i - (dim - kRotary)) / 2;
              const double before = i < dim - kRotary ? 0 : std::fabs(tail[2 * j]) + std::fabs(tail[2 * j + 1]);
              const double norm_error = normalize ? QueryNormError(published(), dim) : RelativeRmsError(dim);
              const double tolerance =
                  ActStep(before) + ActStep(expected[i]) + norm_error * (before + std::fabs(expected[i]));
              ASSERT_NEAR(q.At(t, h * dim + i), expected[i], tolerance) << "row " << t << " head " << h << " dim " << i;
            }
          }
        }
      }
    }
  }
}

// Two integers of eight bits a head: their rounded squares are multiples of 128, so the sum is exact in any order and
// every rounding of the norm is determined; and since each square errs half a row in the same way, it shows.
TEST_P(NormRopeTest, QueryNormRoundsWhereThePublishedCodeDoes) {
  Random random(17);
  const int64_t dim = 512, heads = 16;
  Matrix q(act(), 4, heads * dim);
  for (int64_t t = 0; t < q.rows(); ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const auto a = static_cast<float>(128 + random.Index(128)), b = static_cast<float>(128 + random.Index(128));
      for (int64_t i = 0; i < dim; ++i) q.Set(t, h * dim + i, i % 2 == 0 ? a : -b);
    }
  }
  const Matrix input = q;
  const Batch batch = Batch::Run(q.rows());
  const Angles angles(batch.positions, test::RopeFreqs());
  ops_->QNormRope({q.view(), heads, dim, true, kEps, angles.view()});
  EXPECT_TRUE(ops_->Synchronize().ok());
  for (int64_t t = 0; t < q.rows(); ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      // In double: f32 numerics round nothing, and this sum must not either.
      double sum = 0;
      for (int64_t i = 0; i < dim; ++i) sum += Act(input.At(t, h * dim + i) * input.At(t, h * dim + i));
      const float mean = Act(static_cast<float>(sum / static_cast<double>(dim)));
      const float inverse_rms = Act(1.0f / std::sqrt(Act(mean + kEps)));
      for (int64_t i = 0; i < dim - kRotary; ++i) {
        const float expected = Act(input.At(t, h * dim + i) * inverse_rms);
        if (published()) {
          ASSERT_EQ(q.At(t, h * dim + i), expected) << "row " << t << " head " << h << " dim " << i;
        } else {
          // 512 equal squares in one fp32 chain err by at most 512 * 2^-24 of their sum, the root by half of that.
          ASSERT_NEAR(q.At(t, h * dim + i), expected, std::fabs(expected) * 0x1p-16f);
        }
      }
    }
  }
}

// Trap 5: adjacent pairs of the last 64 dims, nothing else.
TEST_P(NormRopeTest, OneRotaryElementReachesItsNeighbourOnly) {
  const int64_t dim = 512;
  const Angles angles({3}, test::RopeFreqs());
  for (int64_t i : {448, 449, 450, 479, 480, 511}) {
    Matrix q = Matrix::Filled(act(), 1, dim, 0.0f);
    q.Set(0, i, 1.0f);
    ops_->QNormRope({q.view(), 1, dim, false, kEps, angles.view()});
    EXPECT_TRUE(ops_->Synchronize().ok());
    const int64_t j = (i - 448) / 2;
    const bool first = i % 2 == 0;
    std::vector<float> expected(dim, 0.0f);
    expected[448 + 2 * j] = Act(first ? angles.cos[j] : -angles.sin[j]);
    expected[448 + 2 * j + 1] = Act(first ? angles.sin[j] : angles.cos[j]);
    for (int64_t c = 0; c < dim; ++c) ASSERT_EQ(q.At(0, c), expected[c]) << "from " << i << " to " << c;
  }
  Matrix q = Matrix::Filled(act(), 1, dim, 0.0f);
  q.Set(0, 0, 1.0f);
  q.Set(0, 447, 2.0f);
  ops_->QNormRope({q.view(), 1, dim, false, kEps, angles.view()});
  EXPECT_TRUE(ops_->Synchronize().ok());
  EXPECT_EQ(q.At(0, 0), 1.0f);
  EXPECT_EQ(q.At(0, 447), 2.0f);
}

struct KvProblem {
  KvProblem(Random* random, DType act, int64_t tokens)
      : batch(Batch::Run(tokens, 200)),
        angles(batch.positions, test::RopeFreqs()),
        kv(Matrix::RandomNormal(random, act, tokens, 512)),
        norm(Matrix::RandomNormal(random, DType::kBF16, 1, 512)),
        pool(random, act, 512, 1, 512, 16) {}

  // The input is unspecified afterwards, so each run has a copy.
  Matrix Run(ops::Ops* ops) {
    Matrix input = kv;
    ops->KvNormRopeStore({input.view(), norm.vector(), kEps, angles.view(), batch.view(), pool.view()});
    EXPECT_TRUE(ops->Synchronize().ok());
    Matrix out(kv.dtype(), batch.size(), 512);
    for (int64_t t = 0; t < batch.size(); ++t) out.SetRow(t, pool.Row(0, batch.positions[t]));
    return out;
  }

  Batch batch;
  Angles angles;
  Matrix kv, norm;
  Pool pool;
};

TEST_P(NormRopeTest, KvMatchesTheReference) {
  Random random(13);
  for (int64_t tokens : {1, 2, 3, 15, 16, 17, 33, 129}) {
    KvProblem problem(&random, act(), tokens);
    const Matrix actual = problem.Run(ops_.get());
    const Matrix expected = problem.Run(reference_.get());
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < 512; ++i) {
        // f32: the norm's relative error on both sides, on both inputs of a pair. Published: a bf16 unit in the last
        // place becomes at most one E4M3 step, 2^-3 of the value or, near zero, 2^-9 of a scale below amax/224.
        const double partner = std::fabs(expected.At(t, i ^ 1)) + std::fabs(expected.At(t, i));
        double tolerance = 4 * RelativeRmsError(512) * partner + 2 * ActStep(partner);
        if (published() && i < 448) {
          double amax = 0;
          for (int64_t c = i / 64 * 64; c < i / 64 * 64 + 64; ++c)
            amax = std::max<double>(amax, std::fabs(expected.At(t, c)));
          tolerance = 0x1p-3 * std::fabs(expected.At(t, i)) + 0x1p-9 * amax / 224;
        }
        ASSERT_NEAR(actual.At(t, i), expected.At(t, i), tolerance) << "row " << t << " dim " << i;
      }
    }
    if (published()) {
      EXPECT_GE(test::EqualShare(actual, expected), 0.97);
    }
  }
}

// Trap 23: blocks of 64, and the rotary dims stay out of the quantiser.
TEST_P(NormRopeTest, KvQuantisesTheNonRotaryDimsInBlocksOf64) {
  Random random(14);
  Matrix norm = Matrix::Filled(DType::kBF16, 1, 512, 1.0f);
  const Batch batch = Batch::Run(1, 0);  // position 0 rotates nothing
  const Angles angles(batch.positions, test::RopeFreqs());
  Matrix kv = Matrix::RandomNormal(&random, act(), 1, 512);
  // Neighbouring blocks differ by 2^16: with a shared scale the smaller one would be lost below E4M3's last step.
  // Inside an even block the second half is 2^15 smaller: with a scale of its own it would keep more than the grid
  // check allows.
  for (int64_t i = 0; i < 448; ++i) {
    const bool even = i / 64 % 2 == 0;
    kv.Set(0, i, kv.At(0, i) * (!even ? 0x1p-16f : i % 64 < 32 ? 1.0f : 0x1p-15f));
  }
  Matrix input = kv;
  Pool pool(&random, act(), 512, 1, 16, 4);
  ops_->KvNormRopeStore({input.view(), norm.vector(), kEps, angles.view(), batch.view(), pool.view()});
  EXPECT_TRUE(ops_->Synchronize().ok());
  const std::vector<float> stored = pool.Row(0, 0);
  const std::vector<float> row = kv.Row(0);
  const double inverse_rms = InverseRms(row, 0, 512);
  for (int64_t i = 0; i < 512; ++i) {
    const double normed = row[i] * inverse_rms;
    double tolerance = 2 * ActStep(normed) + std::fabs(normed) * RelativeRmsError(512);
    if (published() && i < 448) {
      double amax = 1e-4;  // half an E4M3 step of the block's own scale, which is below amax/224
      for (int64_t c = i / 64 * 64; c < i / 64 * 64 + 64; ++c)
        amax = std::max(amax, std::fabs(static_cast<double>(row[c])) * inverse_rms);
      tolerance += std::max(0x1p-4 * std::fabs(normed), 0x1p-10 * amax / 224);
    }
    ASSERT_NEAR(stored[i], normed, tolerance) << i;
  }
  // Grid check: a stored value is an E4M3 code times the block's scale.
  for (int64_t block = 0; block < 7 && published(); ++block) {
    float amax = 0;
    for (int64_t i = block * 64; i < block * 64 + 64; ++i) amax = std::max(amax, std::fabs(stored[i]));
    const float scale = E4M3BlockScale(amax);
    for (int64_t i = block * 64; i < block * 64 + 64; ++i) ASSERT_EQ(RoundE4M3(stored[i] / scale) * scale, stored[i]);
  }
}

// A huge rotary element leaves dims 0-447 as they are without it, up to the norm that all dims share.
TEST_P(NormRopeTest, KvRotaryElementDoesNotTouchTheOthersScale) {
  Matrix norm = Matrix::Filled(DType::kF32, 1, 512, 1.0f);
  const Batch batch = Batch::Run(2, 0);
  const Angles angles(batch.positions, test::RopeFreqs());
  Random random(15);
  Pool pool(&random, act(), 512, 1, 16, 4);
  // Row 0: all ones. Row 1: one rotary element of 2^9*sqrt(...) so that the rms is an exact power of two larger.
  Matrix kv = Matrix::Filled(act(), 2, 512, 1.0f);
  for (int64_t i = 448; i < 512; ++i) kv.Set(1, i, 0.0f);
  kv.Set(1, 448, 192.0f);  // 448 + 192^2 = 37312 = 512 * 72.875
  ops_->KvNormRopeStore({kv.view(), norm.vector(), 0.0f, angles.view(), batch.view(), pool.view()});
  EXPECT_TRUE(ops_->Synchronize().ok());
  const float small = static_cast<float>(1.0 / std::sqrt(72.875));
  for (int64_t i = 0; i < 448; ++i) {
    ASSERT_NEAR(pool.Row(0, 0)[i], 1.0f, 0x1p-22f) << i;
    // All 448 are equal, so they are their own amax: E4M3 keeps four significant bits of them.
    ASSERT_NEAR(pool.Row(0, 1)[i], small, published() ? small * 0x1p-4f : small * 0x1p-20f) << i;
    ASSERT_EQ(pool.Row(0, 1)[i], pool.Row(0, 1)[0]) << i;
  }
}

TEST_P(NormRopeTest, KvGoesToItsOwnRowOfARing) {
  Random random(16);
  Pool pool(&random, act(), 512, 2, 32, 8, true);
  pool.Fill(7.0f);
  Matrix norm = Matrix::Filled(DType::kBF16, 1, 512, 1.0f);
  Batch batch;
  batch.Add(1, 69);
  batch.Add(0, 31);
  batch.Add(1, 70);
  const Angles angles(batch.positions, test::RopeFreqs());
  Matrix kv = Matrix::RandomNormal(&random, act(), 3, 512);
  ops_->KvNormRopeStore({kv.view(), norm.vector(), kEps, angles.view(), batch.view(), pool.view()});
  EXPECT_TRUE(ops_->Synchronize().ok());
  for (int32_t seq : {0, 1}) {
    for (int64_t p = 0; p < 32; ++p) {
      const bool written = seq == 0 ? p == 31 : p == 5 || p == 6;
      EXPECT_EQ(pool.Row(seq, p) != std::vector<float>(512, 7.0f), written) << seq << " " << p;
    }
  }
}

// The fused norm, rotation and store over edge shapes: 1 to 17 rows that lie apart, rotary parts from one pair to the
// whole row, a norm over a part of the row (V3.2) or all of it, with and without the FP8 simulation.
TEST_P(NormRopeTest, StoreOnEdgeShapes) {
  struct Shape {
    int64_t cols, norm, half;
  };
  Random random(18);
  for (const Shape& s : {Shape{576, 512, 32},
                         {192, 128, 32},
                         {128, 64, 32},
                         {64, 64, 32},
                         {64, 32, 16},
                         {80, 64, 8},
                         {96, 96, 16},
                         {32, 32, 16}}) {
    for (int64_t tokens = 1; tokens <= 17; ++tokens) {
      SCOPED_TRACE(testing::Message() << tokens << " rows of " << s.cols << ", norm of " << s.norm << ", " << s.half
                                      << " pairs");
      const Batch batch = Batch::Run(tokens, 100);
      const Angles angles(batch.positions, test::RopeFreqs(10000.0, 2 * s.half));
      Matrix kv = Matrix::RandomNormal(&random, act(), tokens, s.cols, 2.0f, tokens % 4);
      const Matrix input = kv;
      const Matrix norm = Matrix::RandomNormal(&random, tokens % 2 == 0 ? DType::kF32 : DType::kBF16, 1, s.norm);
      Pool pool(&random, act(), s.cols, 1, 160, 16);
      pool.Fill(9.0f);
      ops_->KvNormRopeStore({kv.view(), norm.vector(), kEps, angles.view(), batch.view(), pool.view(), false});
      EXPECT_TRUE(ops_->Synchronize().ok());
      EXPECT_TRUE(kv.PaddingIntact());
      for (int64_t t = 0; t < tokens; ++t) {
        const std::vector<float> row = input.Row(t);
        const double inverse_rms = InverseRms(row, 0, s.norm);
        std::vector<double> expected(row.begin(), row.end());
        for (int64_t i = 0; i < s.norm; ++i) expected[i] = norm.At(0, i) * (row[i] * inverse_rms);
        const int64_t plain = s.cols - 2 * s.half;
        const std::vector<double> tail(expected.begin() + plain, expected.end());
        const std::vector<double> rotated = RotatedTail(tail, angles, t, false);
        std::copy(rotated.begin(), rotated.end(), expected.begin() + plain);
        const std::vector<float> stored = pool.Row(0, batch.positions[t]);
        for (int64_t i = 0; i < s.cols; ++i) {
          // A normalised value is rounded before it is rotated; then the result is.
          const int64_t pair = (i - plain) / 2 * 2;
          const double before = i < plain ? 0 : std::fabs(tail[pair]) + std::fabs(tail[pair + 1]);
          const double tolerance = ActStep(before) + ActStep(expected[i]) +
                                   (RelativeRmsError(s.norm) + 0x1p-22) * (before + std::fabs(expected[i]));
          ASSERT_NEAR(stored[i], expected[i], tolerance) << "row " << t << " value " << i;
        }
      }
      EXPECT_EQ(pool.Row(0, 99), std::vector<float>(static_cast<size_t>(s.cols), 9.0f));
      EXPECT_EQ(pool.Row(0, 100 + tokens), std::vector<float>(static_cast<size_t>(s.cols), 9.0f));
    }
  }
}

// Queries over edge shapes: 1 to 17 rows that lie apart, odd numbers of heads, the whole head rotated; in place, and as
// the rotary part beside absorbed queries.
TEST_P(NormRopeTest, QueriesOnEdgeShapes) {
  Random random(25);
  for (const auto& [dim, half] : {std::pair<int64_t, int64_t>{64, 32}, {64, 8}, {192, 32}, {32, 16}, {128, 64}}) {
    for (const int64_t heads : {1, 3, 5, 7}) {
      for (int64_t tokens = 1; tokens <= 17; ++tokens) {
        SCOPED_TRACE(testing::Message() << tokens << " rows, " << heads << " heads of " << dim << ", " << half
                                        << " pairs");
        const Batch batch = Batch::Run(tokens, 3000);
        const Angles angles(batch.positions, test::RopeFreqs(10000.0, 2 * half));
        Matrix q = Matrix::RandomNormal(&random, act(), tokens, heads * dim, 2.0f, tokens % 5);
        Matrix input = q;
        const int64_t out_dim = 2 * half + 7;
        Matrix beside = Matrix::Filled(act(), tokens, heads * out_dim, 9.0f);
        ops_->RopeTail({input.view(), heads, dim, angles.view(), beside.view(), out_dim});
        ops_->QNormRope({q.view(), heads, dim, false, kEps, angles.view()});
        EXPECT_TRUE(ops_->Synchronize().ok());
        EXPECT_TRUE(q.PaddingIntact());
        for (int64_t t = 0; t < tokens; ++t) {
          const std::vector<float> row = input.Row(t);
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t tail = (h + 1) * dim - 2 * half;
            for (int64_t i = h * dim; i < tail; ++i) ASSERT_EQ(q.At(t, i), row[i]);
            for (int64_t i = 0; i < out_dim - 2 * half; ++i) ASSERT_EQ(beside.At(t, h * out_dim + i), 9.0f);
            const std::vector<double> before(row.begin() + tail, row.begin() + tail + 2 * half);
            const std::vector<double> expected = RotatedTail(before, angles, t, false);
            for (int64_t i = 0; i < 2 * half; ++i) {
              const double size = std::fabs(before[i / 2 * 2]) + std::fabs(before[i / 2 * 2 + 1]);
              ASSERT_NEAR(q.At(t, tail + i), expected[i], ActStep(expected[i]) + 0x1p-22 * size)
                  << "row " << t << " head " << h << " value " << i;
              ASSERT_EQ(beside.At(t, (h + 1) * out_dim - 2 * half + i), q.At(t, tail + i));
            }
          }
        }
      }
    }
  }
}

// Sums of squares whose length is no multiple of a vector, in rows that lie apart.
TEST_P(NormRopeTest, NormsOnEdgeShapes) {
  Random random(26);
  for (const int64_t n : {1, 3, 15, 16, 17, 31, 33, 100, 130}) {
    for (int64_t tokens = 1; tokens <= 17; ++tokens) {
      SCOPED_TRACE(testing::Message() << tokens << " rows of " << n);
      Matrix x = Matrix::RandomNormal(&random, act(), tokens, n, 3.0f, tokens % 3);
      const Matrix weight = Matrix::RandomNormal(&random, tokens % 2 == 0 ? DType::kF32 : DType::kBF16, 1, n);
      Matrix out(act(), tokens, n, 2);
      ops_->RmsNorm(x.view(), weight.vector(), kEps, out.view());
      EXPECT_TRUE(ops_->Synchronize().ok());
      EXPECT_TRUE(out.PaddingIntact());
      for (int64_t t = 0; t < tokens; ++t) {
        const std::vector<float> row = x.Row(t);
        const double inverse_rms = InverseRms(row, 0, n);
        for (int64_t i = 0; i < n; ++i) {
          const double expected = weight.At(0, i) * (row[i] * inverse_rms);
          ASSERT_NEAR(out.At(t, i), expected, std::fabs(expected) * RelativeRmsError(n) + ActStep(expected))
              << "row " << t << " value " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hadal
