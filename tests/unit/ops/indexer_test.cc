// IndexerQuery and IndexerTopk (spec deepseek-v4-text 3.6).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/ops_fixture.h"

namespace hadal {
namespace {

using test::Angles;
using test::Batch;
using test::Matrix;
using test::Pool;
using test::Random;
using IndexerTest = test::OpsTest;
HADAL_OPS_TEST_SUITE(IndexerTest);

constexpr int64_t kDim = 128;

TEST_P(IndexerTest, QueryMatchesTheReference) {
  Random random(61);
  for (int64_t tokens : {1, 2, 3, 15, 16, 17, 33, 129}) {
    const int64_t heads = 4;
    const Batch batch = Batch::Run(tokens, 70);
    const Angles angles(batch.positions, test::RopeFreqs(160000.0));
    Matrix actual = Matrix::RandomNormal(&random, act(), tokens, heads * kDim);
    Matrix expected = actual;
    ops_->IndexerQuery({actual.view(), heads, kDim, angles.view()});
    EXPECT_TRUE(ops_->Synchronize().ok());
    reference_->IndexerQuery({expected.view(), heads, kDim, angles.view()});
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < heads * kDim; ++i) {
        // f32: 128 products of size up to 4, over 128^0.5. Published: at most one E2M1 step, 2/3 of the block's amax.
        double amax = 0;
        for (int64_t c = i / 32 * 32; c < i / 32 * 32 + 32; ++c)
          amax = std::max<double>(amax, std::fabs(expected.At(t, c)));
        const double tolerance = published() ? amax * 2 / 3 : 2 * test::SumTolerance(kDim, 4 * 11.3);
        ASSERT_NEAR(actual.At(t, i), expected.At(t, i), tolerance);
      }
    }
    if (published()) {
      EXPECT_GE(test::EqualShare(actual, expected), 0.97);
    }
  }
}

// Trap 16: no RMS norm; Hadamard with the factor 128^-0.5; FP4 with ties to the even code.
TEST_P(IndexerTest, QueryOfAUnitVectorIsARowOfSylvestersMatrix) {
  const Angles angles({0}, test::RopeFreqs());
  for (int64_t unit : {0, 1, 6, 64, 127}) {
    Matrix q = Matrix::Filled(act(), 1, kDim, 0.0f);
    q.Set(0, unit, 3.0f);
    ops_->IndexerQuery({q.view(), 1, kDim, angles.view()});
    EXPECT_TRUE(ops_->Synchronize().ok());
    const float plain = 3.0f * static_cast<float>(1 / std::sqrt(128.0));  // 0.26517
    const float scale = E2M1BlockScale(RoundBF16(plain));                 // 2^-4: 4.24 goes to 4
    ASSERT_EQ(scale, 0x1p-4f);
    for (int64_t i = 0; i < kDim; ++i) {
      const float sign = __builtin_popcountll(static_cast<uint64_t>(unit & i)) % 2 == 0 ? 1.0f : -1.0f;
      if (published()) {
        ASSERT_EQ(q.At(0, i), sign * 4 * scale) << unit << " " << i;
      } else {
        ASSERT_NEAR(q.At(0, i), sign * plain, 1e-7f) << unit << " " << i;
      }
    }
  }
}

struct Problem {
  Problem(Random* random, DType act, Batch rows, int64_t head_count, int64_t select, int32_t sequences, int64_t length)
      : batch(std::move(rows)),
        heads(head_count),
        top_k(select),
        q(Matrix::RandomNormal(random, act, batch.size(), heads * kDim)),
        weights(Matrix::RandomNormal(random, act, batch.size(), heads)),
        keys(random, act, kDim, sequences, length, 8),
        stride(length) {
    keys.FillRandom(random);
  }

  struct Result {
    std::vector<int32_t> chosen;
    std::vector<float> scores;
  };
  Result Run(ops::Ops* ops, bool with_scores = true) {
    Result r{std::vector<int32_t>(batch.size() * top_k, -7), std::vector<float>(batch.size() * stride, kUnwritten)};
    ops->IndexerTopk({.q = q.view(),
                      .weights = weights.view(),
                      .heads = heads,
                      .head_dim = kDim,
                      .ratio = 4,
                      .top_k = top_k,
                      .batch = batch.view(),
                      .keys = keys.view(),
                      .out = r.chosen.data(),
                      .scores = with_scores ? r.scores.data() : nullptr,
                      .scores_stride = with_scores ? stride : 0});
    EXPECT_TRUE(ops->Synchronize().ok());
    return r;
  }

  static constexpr float kUnwritten = -1e30f;
  Batch batch;
  int64_t heads, top_k;
  Matrix q, weights;
  Pool keys;
  int64_t stride;
};

// What must be chosen given the scores: the largest, ties to the lower row, ascending, -1 behind them.
std::vector<int32_t> Choose(const std::vector<float>& scores, int64_t top_k) {
  std::vector<int32_t> rows;
  for (int32_t j = 0; j < static_cast<int32_t>(scores.size()); ++j) {
    int64_t better = 0;
    for (int32_t other = 0; other < static_cast<int32_t>(scores.size()); ++other)
      better += scores[other] > scores[j] || (scores[other] == scores[j] && other < j) ? 1 : 0;
    if (better < top_k) rows.push_back(j);
  }
  rows.resize(static_cast<size_t>(top_k), -1);
  return rows;
}

void ExpectChoice(const Problem& p, const Problem::Result& r) {
  for (int64_t t = 0; t < p.batch.size(); ++t) {
    const int64_t visible = (p.batch.positions[t] + 1) / 4;
    const auto first = r.scores.begin() + t * p.stride;
    const std::vector<int32_t> chosen(r.chosen.begin() + t * p.top_k, r.chosen.begin() + (t + 1) * p.top_k);
    ASSERT_EQ(chosen, Choose({first, first + visible}, p.top_k)) << "row " << t;
    for (int64_t j = visible; j < p.stride; ++j)
      ASSERT_EQ(first[j], Problem::kUnwritten) << "an invisible row has a score";
  }
}

// B53 and trap 16: S = sum over heads of weight*relu(q.k), with weights of both signs.
void ExpectScores(const Problem& p, const Problem::Result& r, bool published) {
  const DType act = p.q.dtype();
  const double scale = 1 / std::sqrt(static_cast<double>(kDim * p.heads));
  for (int64_t t = 0; t < p.batch.size(); ++t) {
    for (int64_t j = 0; j < (p.batch.positions[t] + 1) / 4; ++j) {
      const std::vector<float> key = p.keys.Row(p.batch.seqs[t], j);
      double sum = 0, tolerance = 0, total = 0;
      for (int64_t h = 0; h < p.heads; ++h) {
        double dot = 0, magnitude = 0;
        for (int64_t c = 0; c < kDim; ++c) {
          dot += static_cast<double>(p.q.At(t, h * kDim + c)) * key[c];
          magnitude += std::fabs(static_cast<double>(p.q.At(t, h * kDim + c)) * key[c]);
        }
        const double weight = p.weights.At(t, h) * scale;
        const double term = weight * std::max(dot, 0.0);
        sum += term;
        total += std::fabs(term);
        // Dot, weight and product are each rounded to act.
        tolerance += std::fabs(weight) * test::SumTolerance(kDim, magnitude) + 3 * test::RoundingStep(act, term);
      }
      tolerance += test::SumTolerance(p.heads, total) + test::RoundingStep(act, sum);
      const float score = r.scores[t * p.stride + j];
      ASSERT_NEAR(score, sum, tolerance) << "row " << t << " key " << j;
      if (published) {
        ASSERT_EQ(score, RoundBF16(score)) << "scores are bf16";
      }
    }
  }
}

TEST_P(IndexerTest, ScoresAndChoiceOnEdgeShapes) {
  Random random(62);
  for (int64_t tokens : {1, 2, 3, 15, 16, 17, 33, 129}) {
    for (const auto& [heads, top_k] : {std::pair<int64_t, int64_t>{4, 24}, {64, 8}}) {
      if (tokens > 17 && heads == 64) continue;
      SCOPED_TRACE(testing::Message() << tokens << " rows, " << heads << " heads");
      Problem p(&random, act(), Batch::Run(tokens, 150), heads, top_k, 1, 72);
      const Problem::Result r = p.Run(ops_.get());
      ExpectScores(p, r, published());
      ExpectChoice(p, r);
      EXPECT_EQ(p.Run(ops_.get(), false).chosen, r.chosen) << "the choice depends on whether scores are asked for";
    }
  }
}

TEST_P(IndexerTest, TakesAllRowsUpToTopK) {
  Random random(63);
  Batch batch;
  for (int32_t p : {0, 2, 3, 6, 7, 31, 32, 35}) batch.Add(0, p);
  Problem p(&random, act(), batch, 4, 8, 1, 16);
  const Problem::Result r = p.Run(ops_.get());
  ExpectChoice(p, r);
  const int expected[] = {0, 0, 1, 1, 2, 8, 8, 8};
  for (int64_t t = 0; t < batch.size(); ++t) {
    int count = 0;
    for (int64_t i = 0; i < 8; ++i) count += r.chosen[t * 8 + i] >= 0 ? 1 : 0;
    EXPECT_EQ(count, expected[t]) << "position " << batch.positions[t];
  }
}

// Rows that no head likes have score 0 (or -0 under a negative weight): they tie, and the lower row wins.
TEST_P(IndexerTest, TiesKeepTheLowerRowAndZeroHasNoSign) {
  Random random(64);
  for (float weight : {1.0f, -1.0f}) {
    Problem p(&random, act(), Batch::Run(1, 127), 2, 8, 1, 32);
    p.weights = Matrix::Filled(act(), 1, 2, weight);
    p.q = Matrix::Filled(act(), 1, 2 * kDim, 0.0f);
    p.q.Set(0, 0, 1.0f);
    p.q.Set(0, kDim + 1, 1.0f);
    for (int64_t j = 0; j < 32; ++j) {
      std::vector<float> key(kDim, 0.0f);
      key[0] = j % 2 == 0 ? -1.0f : 0.0f;  // dots of -1, 0 and -0 all count 0
      key[1] = j % 3 == 0 ? -0.0f : -2.0f;
      if (j == 20 || j == 29) key[0] = 3.0f;
      p.keys.SetRow(0, j, key);
    }
    const Problem::Result r = p.Run(ops_.get());
    const std::vector<int32_t> likes = {0, 1, 2, 3, 4, 5, 20, 29}, dislikes = {0, 1, 2, 3, 4, 5, 6, 7};
    EXPECT_EQ(r.chosen, weight > 0 ? likes : dislikes);
    EXPECT_EQ(p.Run(ops_.get(), false).chosen, r.chosen);
  }
  // All equal, more than top_k.
  Problem p(&random, act(), Batch::Run(3, 120), 4, 5, 1, 32);
  p.keys.Fill(0.25f);
  const Problem::Result r = p.Run(ops_.get());
  for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(r.chosen[i], i % 5);
}

// Near ties in bf16 are ties: scores that differ only below bf16's last place keep the lower row.
TEST_P(IndexerTest, PublishedScoresAreComparedAfterRounding) {
  Random random(65);
  Problem p(&random, act(), Batch::Run(1, 15), 1, 1, 1, 8);
  p.weights = Matrix::Filled(act(), 1, 1, 1.0f);
  p.q = Matrix::Filled(act(), 1, kDim, 0.0f);
  p.q.Set(0, 0, 1.0f);
  p.q.Set(0, 1, 0x1p-10f);
  for (int64_t j = 0; j < 4; ++j) {
    std::vector<float> key(kDim, 0.0f);
    key[0] = 1.0f;
    key[1] = static_cast<float>(j);
    p.keys.SetRow(0, j, key);
  }
  EXPECT_EQ(p.Run(ops_.get()).chosen[0], published() ? 0 : 3);
}

TEST_P(IndexerTest, SequencesAndInterleavingKeepTheirOwnKeys) {
  Random random(66);
  Batch batch;
  for (int32_t i = 0; i < 12; ++i) {
    for (int32_t seq : {2, 0, 1}) batch.Add(seq, 30 * (seq + 1) + i);
  }
  Problem p(&random, act(), batch, 4, 6, 3, 40);
  const Problem::Result r = p.Run(ops_.get());
  ExpectScores(p, r, published());
  ExpectChoice(p, r);
}

TEST_P(IndexerTest, NaNDoesNotBreakTheChoice) {
  Random random(67);
  Problem p(&random, act(), Batch::Run(4, 100), 4, 8, 1, 32);
  for (int64_t j : {0, 3, 9}) p.keys.SetRow(0, j, std::vector<float>(kDim, std::numeric_limits<float>::quiet_NaN()));
  p.q.Set(1, 5, std::numeric_limits<float>::quiet_NaN());
  const Problem::Result r = p.Run(ops_.get());
  for (int64_t t = 0; t < 4; ++t) {
    std::vector<int32_t> chosen(r.chosen.begin() + t * 8, r.chosen.begin() + (t + 1) * 8);
    EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    EXPECT_EQ(std::unique(chosen.begin(), chosen.end()), chosen.end()) << "a row was chosen twice";
    EXPECT_GE(chosen.front(), 0);
    EXPECT_LT(chosen.back(), 26);
  }
}

}  // namespace
}  // namespace hadal
