// ExpandedAttention (spec deepseek-v32 3.5, MHA form): a mean by hand, the reference on edge shapes, and rows that have
// the same bits in any chunk.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "support/ops_fixture.h"

namespace hadal {
namespace {

using test::Batch;
using test::Matrix;
using test::Pool;
using test::Random;
using test::Weight;
using ExpandedAttentionTest = test::OpsTest;
HADAL_OPS_TEST_SUITE_WITH(ExpandedAttentionTest, ops::Feature::kExpandedAttention);

constexpr int64_t kNope = 128, kValue = 128, kTail = 64, kKey = kNope + kTail;

struct Problem {
  Problem(Random* random, DType act, int64_t n, int64_t latent, DType weight, int32_t rows)
      : heads(n),
        kv_b(Weight::RandomOf(random, weight, n * (kNope + kValue), latent)),
        pool(random, act, latent + kTail, 2, rows, 16) {
    pool.FillRandom(random);
  }
  // Rows of sequence 1 from position `first` on.
  Matrix Run(ops::Ops* ops, Matrix q, int32_t first, ops::InputQuant quant) {
    const Batch batch = Batch::Run(q.rows(), first, 1);
    const ops::LinearWeight weight = kv_b.view();
    Matrix out(q.dtype(), q.rows(), heads * kValue, 5);
    ops->ExpandedAttention({.q = q.view(),
                            .heads = heads,
                            .value_dim = kValue,
                            .kv_b = &weight,
                            .quant = quant,
                            .softmax_scale = 0.13f,
                            .batch = batch.view(),
                            .latent = pool.view(),
                            .out = out.view(),
                            .round_probabilities = true});
    EXPECT_TRUE(ops->Synchronize().ok());
    EXPECT_TRUE(out.PaddingIntact());
    return out;
  }

  int64_t heads;
  Weight kv_b;
  Pool pool;
};

// No key has a part of the query, so that every visible row counts the same; values are the latents, which are their
// positions: of p + 1 = 2^i rows the mean is exactly p/2. Rows behind a query are not numbers.
TEST_P(ExpandedAttentionTest, EqualScoresGiveTheMean) {
  Random random(21);
  Problem problem(&random, act(), 1, 128, DType::kBF16, 32);
  std::vector<float> values(static_cast<size_t>(256 * 128), 0.0f);
  for (int64_t i = 0; i < 128; ++i) values[(128 + i) * 128 + i] = 1;
  problem.kv_b = Weight::FromValues(DType::kBF16, 256, 128, values);
  problem.pool.Fill(std::nanf(""));
  for (int32_t p = 0; p < 16; ++p) {
    std::vector<float> row(128 + kTail, static_cast<float>(p));
    problem.pool.SetRow(1, p, row);
  }
  Matrix q(act(), 16, kKey);
  for (int64_t t = 0; t < 16; ++t) {
    for (int64_t i = 0; i < kKey; ++i) q.Set(t, i, i < kNope ? random.Normal() : 0.0f);
  }
  const Matrix out = problem.Run(ops_.get(), q, 0, ops::InputQuant::kNone);
  for (const int64_t p : {0, 1, 3, 7, 15}) {
    for (int64_t i = 0; i < kValue; ++i) ASSERT_EQ(out.At(p, i), static_cast<float>(p) / 2) << p;
  }
}

TEST_P(ExpandedAttentionTest, MatchesTheReferenceOnEdgeShapes) {
  struct Shape {
    int64_t heads, latent, tokens;
    int32_t first;
    DType weight;
  };
  Random random(22);
  for (const Shape& s : {Shape{1, 128, 1, 0, DType::kF8E4M3},
                         {1, 128, 1, 31, DType::kBF16},
                         {3, 256, 2, 5, DType::kF8E4M3},
                         {8, 128, 17, 16, DType::kF4E2M1},
                         {9, 256, 63, 0, DType::kF8E4M3},
                         {3, 128, 64, 64, DType::kF4E2M1},
                         {5, 384, 65, 3, DType::kBF16},
                         {2, 128, 130, 170, DType::kF8E4M3}}) {
    for (const ops::InputQuant quant : {ops::InputQuant::kNone, ops::InputQuant::kFp8, ops::InputQuant::kFp8AnyScale}) {
      SCOPED_TRACE(testing::Message() << s.tokens << " rows from " << s.first << ", " << s.heads
                                      << " heads, latents of " << s.latent << ", " << DTypeName(s.weight) << ", quant "
                                      << static_cast<int>(quant));
      Problem problem(&random, act(), s.heads, s.latent, s.weight, 320);
      const Matrix q = Matrix::RandomNormal(&random, act(), s.tokens, s.heads * kKey, 1.0f, 3);
      const Matrix actual = problem.Run(ops_.get(), q, s.first, quant);
      const Matrix expected = problem.Run(reference_.get(), q, s.first, quant);
      double square = 0, difference = 0;
      for (int64_t t = 0; t < s.tokens; ++t) {
        for (int64_t i = 0; i < actual.cols(); ++i) {
          square += std::pow(expected.At(t, i), 2);
          difference += std::pow(actual.At(t, i) - expected.At(t, i), 2);
        }
      }
      // Published: expanded values and probabilities that round the other way, each by 2^-8 in few elements, and one
      // rounding of the output. f32: sums over the latent, the key and the rows in another order, which scores of some
      // ten units magnify.
      const double limit = published() ? 4e-3 : 20 * std::sqrt(384.0) * 0x1p-24 * 4;
      EXPECT_LE(std::sqrt(difference / square), limit);
      EXPECT_GT(square, 0);
    }
  }
}

// Other chunks, other numbers of keys behind a row: the same bits.
TEST_P(ExpandedAttentionTest, RowsHaveTheSameBitsInAnyChunk) {
  Random random(23);
  Problem problem(&random, act(), 3, 256, DType::kF8E4M3, 320);
  const int32_t first = 90;
  const Matrix q = Matrix::RandomNormal(&random, act(), 150, 3 * kKey);
  const Matrix whole = problem.Run(ops_.get(), q, first, ops::InputQuant::kFp8);
  for (const int64_t chunk : {1, 2, 7, 16, 17, 64, 65}) {
    for (int64_t at = 0; at < q.rows(); at += chunk) {
      if (chunk < 16 && at > 20 && at < 120) continue;
      std::vector<int64_t> rows;
      for (int64_t t = at; t < std::min(q.rows(), at + chunk); ++t) rows.push_back(t);
      const Matrix part =
          problem.Run(ops_.get(), q.Take(rows), first + static_cast<int32_t>(at), ops::InputQuant::kFp8);
      for (size_t i = 0; i < rows.size(); ++i) {
        for (int64_t c = 0; c < whole.cols(); ++c) {
          ASSERT_EQ(std::bit_cast<uint32_t>(part.At(static_cast<int64_t>(i), c)),
                    std::bit_cast<uint32_t>(whole.At(rows[i], c)))
              << "row " << rows[i] << " in chunks of " << chunk;
        }
      }
    }
  }
}

// Rows of 656 bytes give what plain rows of the same values give.
TEST_P(ExpandedAttentionTest, PackedRowsAreThoseOfPlainOnes) {
  if (!published()) return;  // packed rows are of published numerics
  Random random(24);
  Problem problem(&random, act(), 2, 256, DType::kF8E4M3, 64);
  test::PackedPool packed(&problem.pool, ops::RowFormat::kFp8DsMla656, kTail);
  const Matrix q = Matrix::RandomNormal(&random, act(), 20, 2 * kKey);
  const Matrix plain = problem.Run(ops_.get(), q, 11, ops::InputQuant::kFp8);
  const Batch batch = Batch::Run(20, 11, 1);
  const ops::LinearWeight weight = problem.kv_b.view();
  Matrix in = q, out(act(), 20, 2 * kValue);
  ops_->ExpandedAttention({.q = in.view(),
                           .heads = 2,
                           .value_dim = kValue,
                           .kv_b = &weight,
                           .quant = ops::InputQuant::kFp8,
                           .softmax_scale = 0.13f,
                           .batch = batch.view(),
                           .latent = packed.view(),
                           .out = out.view(),
                           .round_probabilities = true});
  EXPECT_TRUE(ops_->Synchronize().ok());
  EXPECT_EQ(test::EqualShare(out, plain), 1.0);
}

}  // namespace
}  // namespace hadal
