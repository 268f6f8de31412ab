// SparseAttention (spec deepseek-v4-text 3.7, vision spec 5.2).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "support/ops_fixture.h"

namespace hadal {
namespace {

using test::Angles;
using test::Batch;
using test::Matrix;
using test::Pool;
using test::Random;
using AttentionTest = test::OpsTest;
HADAL_OPS_TEST_SUITE(AttentionTest);

constexpr int64_t kDim = 512;
constexpr int64_t kRotary = 64;
constexpr int32_t kWindow = 128;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One call: `sequences` prompts with their caches, queries for the rows of `batch`.
struct Problem {
  Problem(Random* random, DType act, Batch rows, int64_t head_count, int32_t sequences, int64_t length)
      : batch(std::move(rows)),
        heads(head_count),
        angles(batch.positions, test::RopeFreqs(160000.0)),
        q(Matrix::RandomNormal(random, act, batch.size(), heads * kDim)),
        window(random, act, kDim, sequences, length, 16),
        compressed(random, act, kDim, sequences, length, 4),
        sink(test::RandomFloats(random, heads)) {
    window.FillRandom(random);
    compressed.FillRandom(random);
    for (int32_t p : batch.positions) {
      begin.push_back(std::max(0, p - (kWindow - 1)));
      end.push_back(p + 1);
    }
  }

  Matrix Run(ops::Ops* ops) {
    Matrix out(q.dtype(), batch.size(), heads * kDim);
    ops->SparseAttention({.q = q.view(),
                          .heads = heads,
                          .head_dim = kDim,
                          .sink = sink.data(),
                          .softmax_scale = 1.0f / std::sqrt(static_cast<float>(kDim)),
                          .batch = batch.view(),
                          .window = window.view(),
                          .window_begin = begin.data(),
                          .window_end = end.data(),
                          .compressed = ratio > 0 ? compressed.view() : ops::PagedRows{},
                          .ratio = ratio,
                          .topk = topk.empty() ? nullptr : topk.data(),
                          .topk_stride = topk_stride,
                          .rope = angles.view(),
                          .out = out.view()});
    EXPECT_TRUE(ops->Synchronize().ok());
    return out;
  }

  // The rows that query t sees, by the words of spec 3.7.
  std::vector<std::vector<float>> Visible(int64_t t) const {
    std::vector<std::vector<float>> rows;
    const int32_t seq = batch.seqs[t];
    for (int32_t p = begin[t]; p < end[t]; ++p) rows.push_back(window.Row(seq, p));
    const int64_t existing = ratio > 0 ? (batch.positions[t] + 1) / ratio : 0;
    for (int64_t j = 0; j < existing; ++j) {
      const auto first = topk.begin() + t * topk_stride;
      if (topk.empty() || std::find(first, first + topk_stride, j) != first + topk_stride)
        rows.push_back(compressed.Row(seq, j));
    }
    return rows;
  }

  Batch batch;
  int64_t heads;
  Angles angles;
  Matrix q;
  Pool window, compressed;
  std::vector<float> sink;
  std::vector<int32_t> begin, end, topk;
  int64_t topk_stride = 0;
  int32_t ratio = 0;
};

// Checks every output against softmax and rotation in double.
void ExpectAttention(const Problem& p, const Matrix& out) {
  const double scale = 1 / std::sqrt(static_cast<double>(kDim));
  for (int64_t t = 0; t < p.batch.size(); ++t) {
    const std::vector<std::vector<float>> rows = p.Visible(t);
    for (int64_t h = 0; h < p.heads; ++h) {
      std::vector<double> logits;
      double largest = p.sink[h], logit_error = 0, largest_value = 0;
      for (const std::vector<float>& row : rows) {
        double dot = 0, magnitude = 0;
        for (int64_t c = 0; c < kDim; ++c) {
          const double product = static_cast<double>(p.q.At(t, h * kDim + c)) * row[c];
          dot += product;
          magnitude += std::fabs(product);
          largest_value = std::max<double>(largest_value, std::fabs(row[c]));
        }
        logits.push_back(dot * scale);
        largest = std::max(largest, dot * scale);
        logit_error = std::max(logit_error, test::SumTolerance(kDim, magnitude) * scale);
      }
      double sum = std::exp(p.sink[h] - largest);
      for (double& l : logits) sum += l = std::exp(l - largest);
      std::vector<double> o(kDim, 0.0);
      for (size_t i = 0; i < rows.size(); ++i) {
        for (int64_t c = 0; c < kDim; ++c) o[c] += logits[i] / sum * rows[i][c];
      }
      // A probability errs by twice the error of a logit, relatively, and by a few roundings of exp and division; the
      // probabilities add up to at most 1, and so does what their sum of products can lose.
      const double error =
          (2 * logit_error + 8 * 0x1p-24 + test::SumTolerance(static_cast<int64_t>(rows.size()), 1.0)) * largest_value;
      for (int64_t c = 0; c < kDim; ++c) {
        double expected = o[c];
        double tolerance = error + test::RoundingStep(out.dtype(), o[c]);
        if (c >= kDim - kRotary) {
          const int64_t j = (c - (kDim - kRotary)) / 2;
          const double a = o[kDim - kRotary + 2 * j], b = o[kDim - kRotary + 2 * j + 1];
          const double cos = p.angles.cos[t * p.angles.half + j], sin = p.angles.sin[t * p.angles.half + j];
          expected = c % 2 == 0 ? a * cos + b * sin : b * cos - a * sin;
          // Both inputs are rounded before the rotation, the result after it.
          tolerance = 2 * error + test::RoundingStep(out.dtype(), std::fabs(a) + std::fabs(b)) +
                      test::RoundingStep(out.dtype(), expected);
        }
        ASSERT_NEAR(out.At(t, h * kDim + c), expected, tolerance) << "row " << t << " head " << h << " dim " << c;
      }
    }
  }
}

TEST_P(AttentionTest, MatchesADoubleSoftmaxOnEdgeShapes) {
  Random random(31);
  for (int64_t tokens : {1, 2, 3, 15, 16, 17, 33, 129}) {
    const int64_t heads = tokens > 17 ? 2 : 5;
    for (int32_t ratio : {0, 4, 128}) {
      if (tokens == 129 && ratio == 4) continue;  // ratio 4 has its own test below
      SCOPED_TRACE(testing::Message() << tokens << " rows, ratio " << ratio);
      Problem p(&random, act(), Batch::Run(tokens, tokens > 3 ? 120 : 255), heads, 1, 272);
      p.ratio = ratio;
      ExpectAttention(p, p.Run(ops_.get()));
    }
  }
}

TEST_P(AttentionTest, SeesTheChosenCompressedRows) {
  Random random(32);
  Batch batch;
  for (int32_t i = 0; i < 9; ++i) batch.Add(i % 3, 3 + 40 * (i / 3) + i % 3);
  Problem p(&random, act(), batch, 3, 3, 160);
  p.ratio = 4;
  p.topk_stride = 8;
  for (int32_t position : p.batch.positions) {
    std::vector<int32_t> all((position + 1) / 4);
    std::iota(all.begin(), all.end(), 0);
    random.Shuffle(&all);
    all.resize(std::min<size_t>(all.size(), 7));
    std::sort(all.begin(), all.end());
    all.resize(static_cast<size_t>(p.topk_stride), -1);
    p.topk.insert(p.topk.end(), all.begin(), all.end());
  }
  ExpectAttention(p, p.Run(ops_.get()));
}

// An image token sees its whole span, to the right too (vision spec 5.2).
TEST_P(AttentionTest, FollowsTheWindowItIsGiven) {
  Random random(33);
  Problem p(&random, act(), Batch::Run(10, 300), 2, 1, 512);
  for (size_t t = 0; t < p.begin.size(); ++t) {
    p.begin[t] = 3 + static_cast<int32_t>(t);
    p.end[t] = 500 - 7 * static_cast<int32_t>(t);
  }
  p.ratio = 128;
  ExpectAttention(p, p.Run(ops_.get()));
}

TEST_P(AttentionTest, ReadsARingWhoseStartIsAnywhere) {
  Random random(34);
  Problem p(&random, act(), Batch::Run(20, 1000), 2, 1, 16);
  p.window = Pool(&random, act(), kDim, 1, 160, 16, true);
  p.window.FillRandom(&random);
  ExpectAttention(p, p.Run(ops_.get()));
}

// Trap 8: position p-127 is the last one seen, p-128 is not, nor is p+1.
TEST_P(AttentionTest, WindowIs128RowsWithItself) {
  Random random(35);
  Problem p(&random, act(), Batch::Run(1, 200), 1, 1, 256);
  const Matrix before = p.Run(ops_.get());
  for (const auto& [position, seen] : {std::pair<int32_t, bool>{72, false}, {73, true}, {200, true}, {201, false}}) {
    const std::vector<float> saved = p.window.Row(0, position);
    p.window.SetRow(0, position, std::vector<float>(kDim, 5.0f));
    EXPECT_EQ(test::EqualShare(p.Run(ops_.get()), before) < 1.0, seen) << position;
    p.window.SetRow(0, position, saved);
  }
}

// Trap 9: the query that completes a window sees its row; nobody sees it earlier. With a value of 1 in the compressed
// row and 0 elsewhere the output is the row's weight.
TEST_P(AttentionTest, CompressedRowsAppearWithTheirLastToken) {
  Random random(36);
  for (int32_t ratio : {4, 128}) {
    Batch batch;
    for (int32_t p : {ratio - 2, ratio - 1, ratio, 2 * ratio - 2, 2 * ratio - 1}) batch.Add(0, p);
    Problem p(&random, act(), batch, 1, 1, 512);
    p.ratio = ratio;
    p.window.Fill(0.0f);
    p.compressed.Fill(0.0f);
    for (int64_t j = 0; j < 8; ++j) {
      std::vector<float> row(kDim, 0.0f);
      row[0] = std::exp2(static_cast<float>(j));
      p.compressed.SetRow(0, j, row);
    }
    p.q = Matrix::Filled(act(), batch.size(), kDim, 0.0f);
    p.sink = {-kInfinity};
    const Matrix out = p.Run(ops_.get());
    const int rows[] = {0, 1, 1, 1, 2};
    for (int64_t t = 0; t < batch.size(); ++t) {
      const double seen = std::min(batch.positions[t] + 1, kWindow) + rows[t];
      const double expected = (rows[t] == 0 ? 0 : rows[t] == 1 ? 1 : 3) / seen;  // rows 1 and 2 count 1+2
      EXPECT_NEAR(out.At(t, 0), expected, ActStep(expected) + 1e-6) << "position " << batch.positions[t];
    }
  }
}

// Trap 7: the sink takes part in the denominator only.
TEST_P(AttentionTest, SinkTakesWeightAndGivesNothing) {
  Random random(37);
  Problem p(&random, act(), Batch::Run(3, 140), 2, 1, 256);
  for (float sink : {50.0f, 1e4f}) {
    p.sink = {sink, sink};
    const Matrix out = p.Run(ops_.get());
    for (int64_t c = 0; c < 2 * kDim; ++c) ASSERT_NEAR(out.At(1, c), 0.0f, 1e-15f);  // e^(5-50)*128 rows*3
  }
  p.sink = {-kInfinity, -kInfinity};
  ExpectAttention(p, p.Run(ops_.get()));
  p.sink = {-1e30f, 0.0f};
  ExpectAttention(p, p.Run(ops_.get()));
}

// Trap 4: with a single key the output is that key times its weight, whose logit uses D^-0.5 and no mscale.
TEST_P(AttentionTest, OneKeyReturnsItsWeight) {
  Random random(38);
  Problem p(&random, act(), Batch::Run(1, 0), 1, 1, 16);
  p.q = Matrix::Filled(act(), 1, kDim, 0.5f);
  p.window.SetRow(0, 0, std::vector<float>(kDim, 0.25f));
  p.sink = {1.0f};
  const double logit = 0.5 * 0.25 * kDim / std::sqrt(static_cast<double>(kDim));
  const double weight = std::exp(logit) / (std::exp(logit) + std::exp(1.0));
  const Matrix out = p.Run(ops_.get());
  for (int64_t c = 0; c < kDim; ++c) ASSERT_NEAR(out.At(0, c), 0.25 * weight, 2 * ActStep(0.25 * weight) + 1e-6) << c;
}

// Trap 6: keys, queries and outputs turned by the same shift leave the result where it was.
TEST_P(AttentionTest, OutputDoesNotDependOnAShiftOfAllPositions) {
  Random random(39);
  const std::vector<float> freqs = test::RopeFreqs();
  const int64_t tokens = 20;
  const Matrix keys = Matrix::RandomNormal(&random, DType::kF32, tokens, kDim);
  const Matrix queries = Matrix::RandomNormal(&random, DType::kF32, tokens, kDim);
  // The values of row t as a layer would hold them at position t+shift.
  const auto rotated = [&](const Matrix& m, int64_t t, int32_t position) {
    const Angles a({position}, freqs);
    std::vector<float> row = m.Row(t);
    for (int64_t j = 0; j < a.half; ++j) {
      float* pair = row.data() + kDim - kRotary + 2 * j;
      const float x = pair[0], y = pair[1];
      pair[0] = x * a.cos[j] - y * a.sin[j];
      pair[1] = x * a.sin[j] + y * a.cos[j];
    }
    return row;
  };
  const auto run = [&](int32_t shift) {
    Random layout(40);
    Problem p(&layout, act(), Batch::Run(tokens, shift), 1, 1, 1024);
    p.angles = Angles(p.batch.positions, freqs);
    for (int64_t t = 0; t < tokens; ++t) {
      p.window.SetRow(0, shift + t, rotated(keys, t, shift + static_cast<int32_t>(t)));
      p.q.SetRow(t, rotated(queries, t, shift + static_cast<int32_t>(t)));
      p.begin[t] = shift;
    }
    p.sink = {0.3f};
    return p.Run(ops_.get());
  };
  const Matrix here = run(0), there = run(777);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < kDim; ++c) {
      // Rounding the rotated inputs: logits move by about 2^-8*sqrt(64 rotary products)*512^-0.5, values by a unit in
      // the last place of numbers up to 3.5. f32: angles up to 800 with an error of 2^-15, since the fp32 product
      // rounds.
      ASSERT_NEAR(here.At(t, c), there.At(t, c), published() ? 0.06 : 3e-4) << "row " << t << " dim " << c;
    }
  }
  // The property can fail: rotating back with other angles shows.
  Random layout(40);
  Problem wrong(&layout, act(), Batch::Run(tokens, 777), 1, 1, 1024);
  EXPECT_LT(test::EqualShare(wrong.Run(ops_.get()), there), 0.9);
}

TEST_P(AttentionTest, ARowThatSeesNothingIsZero) {
  Random random(41);
  for (float sink : {0.0f, -kInfinity}) {
    Problem p(&random, act(), Batch::Run(2, 5), 2, 1, 16);
    p.begin[0] = p.end[0] = 5;
    p.sink = {sink, sink};
    const Matrix out = p.Run(ops_.get());
    for (int64_t c = 0; c < 2 * kDim; ++c) {
      ASSERT_EQ(out.At(0, c), 0.0f);
      ASSERT_TRUE(std::isfinite(out.At(1, c)));
    }
  }
}

// One call without a window, as DeepSeek V3.2 makes it (spec deepseek-v32 4.3): values are the first part of a row.
struct LatentProblem {
  LatentProblem(Random* random, DType act, Batch rows, int64_t head_count, int64_t width, int64_t values,
                int64_t length)
      : batch(std::move(rows)),
        heads(head_count),
        dim(width),
        value_dim(values),
        q(Matrix::RandomNormal(random, act, batch.size(), heads * dim)),
        latents(random, act, dim, 1, length, 16) {
    latents.FillRandom(random);
  }
  Matrix Run(ops::Ops* ops) {
    Matrix out(q.dtype(), batch.size(), heads * value_dim);
    ops->SparseAttention({.q = q.view(),
                          .heads = heads,
                          .head_dim = dim,
                          .softmax_scale = 1.0f / std::sqrt(static_cast<float>(dim)),
                          .batch = batch.view(),
                          .window = {},
                          .compressed = latents.view(),
                          .ratio = 1,
                          .topk = topk.empty() ? nullptr : topk.data(),
                          .topk_stride = topk_stride,
                          .rope = {},
                          .out = out.view(),
                          .value_dim = value_dim,
                          .round_probabilities = round});
    EXPECT_TRUE(ops->Synchronize().ok());
    return out;
  }

  Batch batch;
  int64_t heads, dim, value_dim;
  Matrix q;
  Pool latents;
  std::vector<int32_t> topk;
  int64_t topk_stride = 0;
  bool round = true;
};

ops::WorkspaceSpec LatentSpec(int64_t heads, int64_t dim, int64_t rows) {
  return {.max_tokens = 16,
          .hidden = 64,
          .hc_mult = 1,
          .max_linear_k = 64,
          .max_linear_n = 64,
          .heads = heads,
          .head_dim = dim,
          .max_attended_rows = rows};
}

// More heads than a block of any platform takes, in a step of one row and of some.
TEST_P(AttentionTest, RoundsProbabilitiesOfManyHeads) {
  Random random(42);
  constexpr int64_t kHeads = 70;
  ASSERT_TRUE(ops_->Reserve(LatentSpec(kHeads, 576, 128)).ok());
  for (const int64_t tokens : {1, 3}) {
    LatentProblem p(&random, act(), Batch::Run(tokens, 90), kHeads, 576, 512, 112);
    p.topk_stride = 80;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int32_t i = 0; i < 80; ++i) p.topk.push_back(i % 7 == 3 || i > 70 ? -1 : i);
    }
    for (const bool round : {true, false}) {
      p.round = round;
      const Matrix actual = p.Run(ops_.get()), expected = p.Run(reference_.get());
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < kHeads * 512; ++c) {
          // Logits are sums of 576 products of size 0.8, over 24, and values reach 3.5. A probability next to a
          // rounding boundary moves by 2^-7 of itself; the probabilities add up to 1.
          const double error = 2 * test::SumTolerance(576, 576 * 0.8) / 24 * 3.5 + test::SumTolerance(80, 3.5);
          const double flips = round && published() ? 0x1p-7 * 3.5 : 0.0;
          ASSERT_NEAR(actual.At(t, c), expected.At(t, c), 2 * error + flips + ActStep(expected.At(t, c)))
              << "row " << t << " column " << c;
        }
      }
      if (published()) {
        EXPECT_GE(test::EqualShare(actual, expected), 0.9);
      }
    }
  }
}

// A row that sees thousands has the same bits alone and among others.
TEST_P(AttentionTest, ManyRowsHaveTheSameBitsInEveryBatch) {
  Random random(43);
  constexpr int64_t kLength = 2304;
  ASSERT_TRUE(ops_->Reserve(LatentSpec(2, 48, kLength)).ok());
  for (const bool round : {true, false}) {
    LatentProblem all(&random, act(), Batch::Run(6, 2200), 2, 48, 32, kLength);
    all.round = round;
    const Matrix together = all.Run(ops_.get());
    for (const int64_t t : {0, 5}) {
      LatentProblem one = all;
      one.batch = all.batch.Take({t});
      one.q = all.q.Take({t});
      const Matrix alone = one.Run(ops_.get());
      for (int64_t c = 0; c < alone.cols(); ++c) ASSERT_EQ(alone.At(0, c), together.At(t, c)) << "row " << t;
    }
    const Matrix expected = all.Run(reference_.get());
    for (int64_t t = 0; t < together.rows(); ++t) {
      for (int64_t c = 0; c < together.cols(); ++c) {
        const double error = 2 * test::SumTolerance(48, 48 * 0.8) / 6.9 * 3.5 + test::SumTolerance(kLength, 3.5);
        const double flips = round && published() ? 0x1p-7 * 3.5 : 0.0;
        ASSERT_NEAR(together.At(t, c), expected.At(t, c), 2 * error + flips + ActStep(expected.At(t, c)));
      }
    }
  }
}

}  // namespace
}  // namespace hadal
