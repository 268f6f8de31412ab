// HcPre, HcPost and HcHead (spec deepseek-v4-text 3.3).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/ops_fixture.h"

namespace hadal {
namespace {

using test::Matrix;
using test::Random;
using HyperConnectionsTest = test::OpsTest;
HADAL_OPS_TEST_SUITE(HyperConnectionsTest);

constexpr int64_t kHc = 4;
constexpr int64_t kOutputs = (2 + kHc) * kHc;
constexpr float kEps = 1e-6f;

// Streams, weights and outputs of one call.
struct Problem {
  Problem(Random* random, DType act, int64_t tokens, int64_t hidden)
      : d(hidden),
        streams(Matrix::RandomNormal(random, act, tokens, kHc * d, 2.0f)),
        norm(Matrix::RandomNormal(random, DType::kBF16, 1, d)),
        fn(test::RandomFloats(random, kOutputs * kHc * d, 1.0f / std::sqrt(static_cast<float>(kHc * d)))),
        base(test::RandomFloats(random, kOutputs)) {}

  struct Result {
    Matrix out;
    std::vector<float> post, comb;
  };

  Result Pre(ops::Ops* ops) {
    const int64_t tokens = streams.rows();
    Result r{Matrix(streams.dtype(), tokens, d), std::vector<float>(tokens * kHc),
             std::vector<float>(tokens * kHc * kHc)};
    ops->HcPre({.streams = streams.view(),
                .hc = kHc,
                .weights = {fn.data(), scale, base.data()},
                .sinkhorn_iters = 20,
                .hc_eps = kEps,
                .norm = norm.vector(),
                .rms_eps = kEps,
                .out = r.out.view(),
                .post = r.post.data(),
                .comb = r.comb.data()});
    EXPECT_TRUE(ops->Synchronize().ok());
    return r;
  }
  Matrix Head(ops::Ops* ops, const std::vector<int32_t>& rows) {
    Matrix out(streams.dtype(), static_cast<int64_t>(rows.size()), d);
    ops->HcHead({.streams = streams.view(),
                 .hc = kHc,
                 .weights = {fn.data(), scale, base.data()},
                 .hc_eps = kEps,
                 .norm = norm.vector(),
                 .rms_eps = kEps,
                 .out = out.view(),
                 .row_index = rows});
    EXPECT_TRUE(ops->Synchronize().ok());
    return out;
  }

  // Error of the numbers before the sigmoids: both sums of hc*d products whose factors have unit variance together.
  double MixError() const {
    double largest = 0;
    for (int64_t t = 0; t < streams.rows(); ++t) {
      double square = 0, magnitude = 0;
      for (int64_t i = 0; i < kHc * d; ++i) {
        square += static_cast<double>(streams.At(t, i)) * streams.At(t, i);
        magnitude += std::fabs(streams.At(t, i)) * 3.5 / std::sqrt(static_cast<double>(kHc * d));  // |fn| <= 3.5 sigma
      }
      const double rho = 1 / std::sqrt(square / static_cast<double>(kHc * d));
      largest = std::max(largest, 2 * test::SumTolerance(kHc * d, magnitude) * rho);
    }
    return largest * 2;  // the largest of the three scales
  }

  int64_t d;
  Matrix streams, norm;
  std::vector<float> fn, base;
  const std::vector<float> scales = {0.5f, 1.0f, 2.0f};
  const float* const scale = scales.data();
};

// |out| may differ by: the error of pre times the streams (before the norm), two roundings to act, and the norm's own
// relative error. All of it scaled by what the norm multiplies with.
void ExpectCollapsed(const Problem& p, const Matrix& actual, const Matrix& expected, const std::vector<int32_t>& rows,
                     double mix_error) {
  for (size_t r = 0; r < rows.size(); ++r) {
    double square = 0, largest_stream = 0;
    for (int64_t i = 0; i < p.d; ++i) {
      const double normed = expected.At(static_cast<int64_t>(r), i) / p.norm.At(0, i);
      if (p.norm.At(0, i) != 0) square += normed * normed;
    }
    for (int64_t i = 0; i < kHc * p.d; ++i)
      largest_stream = std::max<double>(largest_stream, std::fabs(p.streams.At(rows[r], i)));
    // The streams have variance 4 and pre is at least about 0.1: the rms before the norm is above 0.1.
    const double abs_error = kHc * (mix_error / 4 + 4 * 0x1p-24) * largest_stream / 0.1;
    for (int64_t i = 0; i < p.d; ++i) {
      const double v = expected.At(static_cast<int64_t>(r), i);
      const double tolerance = std::fabs(p.norm.At(0, i)) * abs_error + 2 * test::RoundingStep(expected.dtype(), v) +
                               (test::SumTolerance(p.d, 1.0) + abs_error) * std::fabs(v);
      ASSERT_NEAR(actual.At(static_cast<int64_t>(r), i), v, tolerance) << "row " << rows[r] << " column " << i;
    }
    EXPECT_NEAR(square / static_cast<double>(p.d), 1.0, 0.02) << "the result is not normalised";
  }
}

TEST_P(HyperConnectionsTest, PreMatchesTheReference) {
  Random random(21);
  for (const auto& [tokens, d] : {std::pair<int64_t, int64_t>{1, 128},
                                  {2, 256},
                                  {3, 128},
                                  {15, 256},
                                  {16, 128},
                                  {17, 256},
                                  {33, 128},
                                  {129, 128},
                                  {2, 4096}}) {
    Problem p(&random, act(), tokens, d);
    const Problem::Result actual = p.Pre(ops_.get());
    const Problem::Result expected = p.Pre(reference_.get());
    const double mix_error = p.MixError();
    // A sigmoid has slope 1/4, post doubles it.
    for (size_t i = 0; i < actual.post.size(); ++i)
      ASSERT_NEAR(actual.post[i], expected.post[i], mix_error / 2 + 4 * 0x1p-24);
    // Softmax: relative error twice that of its input. Row and column steps do not enlarge the projective distance of
    // two positive matrices; each of the 40 adds about six roundings.
    for (size_t i = 0; i < actual.comb.size(); ++i)
      ASSERT_NEAR(actual.comb[i], expected.comb[i], expected.comb[i] * (4 * mix_error + 240 * 0x1p-24));
    std::vector<int32_t> rows(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) rows[t] = static_cast<int32_t>(t);
    ExpectCollapsed(p, actual.out, expected.out, rows, mix_error);
  }
}

TEST_P(HyperConnectionsTest, HeadMatchesTheReferenceOnTheRowsAskedFor) {
  Random random(22);
  Problem p(&random, act(), 19, 256);
  for (const std::vector<int32_t>& rows : {std::vector<int32_t>{18}, {3, 0, 7}, {5, 5}, {}}) {
    ExpectCollapsed(p, p.Head(ops_.get(), rows), p.Head(reference_.get(), rows), rows, p.MixError());
  }
}

// Streams whose first elements are alone non-zero make m anything we like: the check vector of spec 3.3.
TEST_P(HyperConnectionsTest, CheckVector) {
  const int64_t d = 128;
  // X = (16, 0, 0, ...) in stream 0 and 8 in the first element of the others: mean square (256+3*64)/512 = 0.875.
  Matrix streams = Matrix::Filled(act(), 1, kHc * d, 0.0f);
  const float first[kHc] = {16, 8, 8, 8};
  for (int64_t s = 0; s < kHc; ++s) streams.Set(0, s * d, first[s]);
  const double rho = 1 / std::sqrt(0.875 + kEps);
  std::vector<float> fn(static_cast<size_t>(kOutputs * kHc * d), 0.0f);
  std::vector<float> base(static_cast<size_t>(kOutputs));
  for (int64_t i = 0; i < kOutputs; ++i) {
    fn[i * kHc * d] = static_cast<float>((0.1 * static_cast<double>(i) - 1.2) / (16 * rho));
    base[i] = static_cast<float>(0.01 * static_cast<double>(7 * i % 11) - 0.05);
  }
  const std::vector<float> scales = {0.5f, 1, 2};
  const float* const scale = scales.data();
  Matrix norm = Matrix::Filled(DType::kBF16, 1, d, 1.0f);
  Matrix out(act(), 1, d);
  std::vector<float> post(kHc), comb(kHc * kHc);
  ops_->HcPre({.streams = streams.view(),
               .hc = kHc,
               .weights = {fn.data(), scale, base.data()},
               .sinkhorn_iters = 20,
               .hc_eps = kEps,
               .norm = norm.vector(),
               .rms_eps = kEps,
               .out = out.view(),
               .post = post.data(),
               .comb = comb.data()});
  EXPECT_TRUE(ops_->Synchronize().ok());
  const double expected_post[] = {.624337, .650389, .727095, .755081};
  const double expected_comb[] = {.244869, .258614, .251648, .244869, .251648, .238089, .258614, .251648,
                                  .244869, .258614, .251648, .244869, .258614, .244681, .238089, .258614};
  // The spec gives six decimals: half a unit of the last, and room for fp32.
  for (int64_t i = 0; i < kHc; ++i) EXPECT_NEAR(post[i], expected_post[i], 1e-6) << i;
  for (int64_t i = 0; i < kHc * kHc; ++i) EXPECT_NEAR(comb[i], expected_comb[i], 1e-6) << i;

  // pre, through the head: with norm weight 1 and a single stream element set at a time, the head's output is
  // pre[s]*16 over its own rms; so compare ratios of two elements instead.
  const double expected_pre[] = {.342991, .370518, .372853, .401313};
  Matrix probe = Matrix::Filled(act(), 1, kHc * d, 0.0f);
  for (int64_t s = 0; s < kHc; ++s) probe.Set(0, s * d, first[s]);
  // Element s of stream s is 4 and takes part in no product of fn; mean square (448+64)/512 = 1.
  for (int64_t s = 0; s < kHc; ++s) probe.Set(0, s * d + 1 + s, 4.0f);
  const double probe_rho = 1 / std::sqrt(1.0 + kEps);
  for (int64_t i = 0; i < kOutputs; ++i)
    fn[i * kHc * d] = static_cast<float>((0.1 * static_cast<double>(i) - 1.2) / (16 * probe_rho));
  for (const bool head : {false, true}) {
    const std::vector<int32_t> rows = {0};
    if (head) {
      ops_->HcHead({.streams = probe.view(),
                    .hc = kHc,
                    .weights = {fn.data(), scale, base.data()},
                    .hc_eps = kEps,
                    .norm = norm.vector(),
                    .rms_eps = kEps,
                    .out = out.view(),
                    .row_index = rows});
    } else {
      ops_->HcPre({.streams = probe.view(),
                   .hc = kHc,
                   .weights = {fn.data(), scale, base.data()},
                   .sinkhorn_iters = 20,
                   .hc_eps = kEps,
                   .norm = norm.vector(),
                   .rms_eps = kEps,
                   .out = out.view(),
                   .post = post.data(),
                   .comb = comb.data()});
    }
    EXPECT_TRUE(ops_->Synchronize().ok());
    // u = (16 pre0 + 8 (pre1+pre2+pre3), 4 pre0, 4 pre1, 4 pre2, 4 pre3, 0...): ratios of elements 1..4 to element 0.
    const double total = 16 * expected_pre[0] + 8 * (expected_pre[1] + expected_pre[2] + expected_pre[3]);
    for (int64_t s = 0; s < kHc; ++s) {
      const double ratio = 4 * expected_pre[s] / total;
      // Two bf16 roundings each of numerator and denominator, or fp32 and the six decimals.
      EXPECT_NEAR(out.At(0, 1 + s) / out.At(0, 0), ratio, published() ? 4 * 0x1p-8 * ratio : 2e-6) << s;
    }
  }
}

// pre is sigmoid + eps, visible where the sigmoid vanishes: stream 0 has pre = eps, stream 1 sigmoid(-14) + eps.
TEST_P(HyperConnectionsTest, PreAndHeadAddEpsAfterTheSigmoid) {
  const int64_t d = 128;
  Matrix streams = Matrix::Filled(act(), 1, kHc * d, 0.0f);
  streams.Set(0, 0, 1.0f);
  streams.Set(0, d + 1, 1.0f);
  const std::vector<float> fn(static_cast<size_t>(kOutputs * kHc * d), 0.0f);
  std::vector<float> base(static_cast<size_t>(kOutputs), -60.0f);
  base[1] = -14.0f;
  const std::vector<float> scales = {1, 1, 1};
  const float* const scale = scales.data();
  Matrix norm = Matrix::Filled(DType::kBF16, 1, d, 1.0f);
  Matrix pre(act(), 1, d), head(act(), 1, d);
  std::vector<float> post(kHc), comb(kHc * kHc);
  const std::vector<int32_t> rows = {0};
  const ops::HcWeights weights{fn.data(), scale, base.data()};
  ops_->HcPre({streams.view(), kHc, weights, 20, kEps, norm.vector(), 1e-20f, pre.view(), post.data(), comb.data()});
  ops_->HcHead({streams.view(), kHc, weights, kEps, norm.vector(), 1e-20f, head.view(), rows});
  EXPECT_TRUE(ops_->Synchronize().ok());
  const double ratio = kEps / (1 / (1 + std::exp(14.0)) + kEps);
  const double tolerance = published() ? 4 * 0x1p-8 * ratio : 1e-6;  // two roundings of each of the two
  EXPECT_NEAR(pre.At(0, 0) / pre.At(0, 1), ratio, tolerance);
  EXPECT_NEAR(head.At(0, 0) / head.At(0, 1), ratio, tolerance);
  for (float v : post) EXPECT_LT(v, 1e-20f);  // no eps on post
}

// Trap 1: stream k receives column k of comb.
TEST_P(HyperConnectionsTest, PostUsesTheMatrixTransposed) {
  const int64_t d = 128;
  Matrix streams(act(), 1, kHc * d);
  for (int64_t s = 0; s < kHc; ++s) {
    for (int64_t i = 0; i < d; ++i) streams.Set(0, s * d + i, static_cast<float>(1 << (2 * s)));  // 1, 4, 16, 64
  }
  Matrix o = Matrix::Filled(act(), 1, d, 0.5f);
  const std::vector<float> post = {1, 2, 4, 8};
  std::vector<float> comb(kHc * kHc, 0.0f);
  comb[0 * kHc + 1] = 1;  // stream 0 -> 1
  comb[1 * kHc + 2] = 1;
  comb[2 * kHc + 0] = 1;
  comb[3 * kHc + 3] = 0.5f;
  comb[0 * kHc + 3] = 0.25f;
  ops_->HcPost({o.view(), streams.view(), kHc, post.data(), comb.data()});
  EXPECT_TRUE(ops_->Synchronize().ok());
  const float expected[kHc] = {0.5f + 16, 1 + 1, 2 + 4, 4 + 32 + 0.25f};
  for (int64_t s = 0; s < kHc; ++s) {
    for (int64_t i = 0; i < d; ++i) ASSERT_EQ(streams.At(0, s * d + i), expected[s]) << s;
  }
}

TEST_P(HyperConnectionsTest, PostMatchesADoubleSum) {
  Random random(23);
  for (const auto& [tokens, d] :
       {std::pair<int64_t, int64_t>{1, 128}, {2, 256}, {15, 128}, {17, 256}, {33, 128}, {129, 128}, {1, 4096}}) {
    Matrix streams = Matrix::RandomNormal(&random, act(), tokens, kHc * d, 2.0f);
    const Matrix before = streams;
    Matrix o = Matrix::RandomNormal(&random, act(), tokens, d);
    const std::vector<float> post = test::RandomFloats(&random, tokens * kHc);
    const std::vector<float> comb = test::RandomFloats(&random, tokens * kHc * kHc);
    ops_->HcPost({o.view(), streams.view(), kHc, post.data(), comb.data()});
    EXPECT_TRUE(ops_->Synchronize().ok());
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t k = 0; k < kHc; ++k) {
        for (int64_t i = 0; i < d; ++i) {
          double sum = static_cast<double>(post[t * kHc + k]) * o.At(t, i);
          double magnitude = std::fabs(sum);
          for (int64_t j = 0; j < kHc; ++j) {
            const double term = static_cast<double>(comb[(t * kHc + j) * kHc + k]) * before.At(t, j * d + i);
            sum += term;
            magnitude += std::fabs(term);
          }
          ASSERT_NEAR(streams.At(t, k * d + i), sum, test::SumTolerance(kHc + 1, magnitude) + ActStep(sum));
        }
      }
    }
  }
}

}  // namespace
}  // namespace hadal
