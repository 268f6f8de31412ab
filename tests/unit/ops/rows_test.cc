// What the other files leave out of the operators over rows: those of V3.2 alone (spec deepseek-v32), GatherRows, and
// shapes at which an implementation that deals a row to threads or lanes has to go round more than once or has some
// left over. Against the reference, and against itself where bytes count.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

#include "support/ops_fixture.h"

namespace hadal {
namespace {

using ops::RowFormat;
using test::Angles;
using test::Batch;
using test::Matrix;
using test::PackedPool;
using test::Pool;
using test::Random;
using RowsTest = test::OpsTest;
HADAL_OPS_TEST_SUITE(RowsTest);

constexpr float kEps = 1e-6f;

// A norm: the sum of squares, and a rounding to the activation's dtype that may go the other way.
void ExpectNormed(const Matrix& actual, const Matrix& expected, int64_t n) {
  for (int64_t t = 0; t < expected.rows(); ++t) {
    for (int64_t i = 0; i < expected.cols(); ++i) {
      const double v = expected.At(t, i);
      ASSERT_NEAR(actual.At(t, i), v,
                  std::fabs(v) * (test::SumTolerance(n, 1.0) + 8 * 0x1p-24) + test::RoundingStep(expected.dtype(), v))
          << "row " << t << " column " << i;
    }
  }
}

TEST_P(RowsTest, RmsNormOfAnyWidth) {
  Random random(201);
  for (int64_t n : {1, 7, 8, 9, 250, 264, 8192, 8200, 16'500}) {
    Matrix x = Matrix::RandomNormal(&random, act(), 2, n, 3.0f, n % 2 == 0 ? 0 : 3);
    const Matrix weight = Matrix::RandomNormal(&random, DType::kBF16, 1, n);
    Matrix actual(act(), 2, n, 5), expected(act(), 2, n);
    ops_->RmsNorm(x.view(), weight.vector(), kEps, actual.view());
    EXPECT_TRUE(ops_->Synchronize().ok());
    reference_->RmsNorm(x.view(), weight.vector(), kEps, expected.view());
    ExpectNormed(actual, expected, n);
    EXPECT_TRUE(actual.PaddingIntact());
  }
}

TEST_P(RowsTest, AddRmsNorm) {
  Random random(202);
  for (int64_t tokens : {1, 3, 17}) {
    for (int64_t n : {9, 256, 4096, 8200}) {
      if (tokens > 3 && n > 4096) continue;
      Matrix x = Matrix::RandomNormal(&random, act(), tokens, n, 2.0f, 3);
      Matrix residual = Matrix::RandomNormal(&random, act(), tokens, n, 2.0f, 8);
      const Matrix weight = Matrix::RandomNormal(&random, DType::kBF16, 1, n);
      Matrix in = x, kept = residual, expected(act(), tokens, n), actual(act(), tokens, n, 1);
      reference_->AddRmsNorm({in.view(), kept.view(), weight.vector(), kEps, expected.view()});
      Matrix again = residual;
      ops_->AddRmsNorm({x.view(), residual.view(), weight.vector(), kEps, actual.view()});
      ops_->AddRmsNorm({x.view(), again.view(), weight.vector(), kEps, x.view()});
      EXPECT_TRUE(ops_->Synchronize().ok());
      ExpectNormed(actual, expected, n);
      EXPECT_EQ(test::EqualShare(residual, kept), 1.0);
      EXPECT_EQ(test::EqualShare(again, kept), 1.0);
      EXPECT_EQ(test::EqualShare(x, actual), 1.0) << "in place";
      EXPECT_TRUE(x.PaddingIntact() && residual.PaddingIntact() && actual.PaddingIntact());
    }
  }
}

TEST_P(RowsTest, MtpNormOfPositionZeroTakesNoEmbedding) {
  Random random(203);
  Batch batch = Batch::Run(3, 0);
  batch.Add(1, 0);
  batch.Add(2, 17);
  for (int64_t n : {40, 512, 8200}) {
    const Matrix enorm = Matrix::RandomNormal(&random, DType::kBF16, 1, n);
    const Matrix hnorm = Matrix::RandomNormal(&random, DType::kF32, 1, n);
    Matrix e = Matrix::RandomNormal(&random, act(), 5, n), h = Matrix::RandomNormal(&random, act(), 5, n);
    Matrix actual(act(), 5, 2 * n, 3), expected(act(), 5, 2 * n);
    ops_->MtpNorm({e.view(), h.view(), enorm.vector(), hnorm.vector(), kEps, batch.view(), actual.view()});
    EXPECT_TRUE(ops_->Synchronize().ok());
    reference_->MtpNorm({e.view(), h.view(), enorm.vector(), hnorm.vector(), kEps, batch.view(), expected.view()});
    ExpectNormed(actual, expected, n);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(actual.At(3, i), 0.0f);
    EXPECT_TRUE(actual.PaddingIntact());
  }
}

TEST_P(RowsTest, RopeTailWritesTheTailsOnly) {
  Random random(204);
  for (const auto& [heads, in, out, rotary] :
       {std::tuple<int64_t, int64_t, int64_t, int64_t>{2, 192, 576, 64}, {128, 24, 40, 16}, {3, 10, 7, 6}}) {
    const Batch batch = Batch::Run(5, 1000);
    const Angles angles(batch.positions, test::RopeFreqs(10000.0, rotary));
    Matrix q = Matrix::RandomNormal(&random, act(), 5, heads * in);
    Matrix actual = Matrix::Filled(act(), 5, heads * out, 7.0f), expected = actual;
    ops_->RopeTail({q.view(), heads, in, angles.view(), actual.view(), out});
    EXPECT_TRUE(ops_->Synchronize().ok());
    reference_->RopeTail({q.view(), heads, in, angles.view(), expected.view(), out});
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t i = 0; i < heads * out; ++i) {
        // Two products and a sum, fused or not, of values up to 3.5.
        ASSERT_NEAR(actual.At(t, i), expected.At(t, i), 7 * 0x1p-23 + ActStep(expected.At(t, i)));
        const bool tail = i % out >= out - rotary;
        ASSERT_TRUE(tail || actual.At(t, i) == 7.0f);
      }
    }
  }
}

// Behind a quantiser a difference in the last place becomes a step of it: at most a 16th of the largest value for E4M3,
// two thirds for E2M1. f32: sums of up to d products of values around 1, over d^0.5.
TEST_P(RowsTest, IndexerQueriesOfAnyWidth) {
  Random random(205);
  struct Case {
    ops::IndexerStyle style;
    int64_t heads, dim, rotary;
  };
  for (const Case& c : {Case{ops::IndexerStyle::kV4, 3, 32, 16},
                        {ops::IndexerStyle::kV4, 5, 256, 64},
                        {ops::IndexerStyle::kV4, 2, 1024, 64},
                        {ops::IndexerStyle::kV32, 64, 128, 64},
                        {ops::IndexerStyle::kV32, 3, 8, 6},
                        {ops::IndexerStyle::kV32, 2, 512, 128},
                        {ops::IndexerStyle::kV32, 5, 4, 2}}) {
    SCOPED_TRACE(testing::Message() << c.heads << " heads of " << c.dim);
    const Batch batch = Batch::Run(3, 900);
    const Angles angles(batch.positions, test::RopeFreqs(10000.0, c.rotary));
    Matrix actual = Matrix::RandomNormal(&random, act(), 3, c.heads * c.dim), expected = actual;
    ops_->IndexerQuery({actual.view(), c.heads, c.dim, angles.view(), c.style});
    EXPECT_TRUE(ops_->Synchronize().ok());
    reference_->IndexerQuery({expected.view(), c.heads, c.dim, angles.view(), c.style});
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t i = 0; i < c.heads * c.dim; ++i) {
        const int64_t block = c.style == ops::IndexerStyle::kV4 ? 32 : c.dim;
        double amax = 0;
        for (int64_t k = i / block * block; k < i / block * block + block; ++k)
          amax = std::max<double>(amax, std::fabs(expected.At(t, k)));
        const double tolerance = !published()                        ? 2 * test::SumTolerance(c.dim, 4 * 11.3)
                                 : c.style == ops::IndexerStyle::kV4 ? amax * 2 / 3
                                                                     : amax / 8;
        ASSERT_NEAR(actual.At(t, i), expected.At(t, i), tolerance) << t << " " << i;
      }
    }
    if (published()) {
      EXPECT_GE(test::EqualShare(actual, expected), 0.95);
    }
  }
}

TEST_P(RowsTest, IndexerKeys) {
  Random random(206);
  for (const auto& [dim, rotary] : {std::pair<int64_t, int64_t>{128, 64}, {32, 32}, {512, 64}}) {
    for (int64_t tokens : {1, 5, 33}) {
      const Batch batch = Batch::Run(tokens, 50);
      const Angles angles(batch.positions, test::RopeFreqs(10000.0, rotary));
      const Matrix norm = Matrix::RandomNormal(&random, DType::kF32, 1, dim);
      const Matrix bias = Matrix::RandomNormal(&random, DType::kBF16, 1, dim);
      Matrix k = Matrix::RandomNormal(&random, act(), tokens, dim, 2.0f, 3);
      Pool plain(&random, act(), dim, 1, 96, 8, true);
      plain.Fill(0.0f);
      Pool wanted = plain;
      ops_->IndexerKeyStore({k.view(), norm.vector(), bias.vector(), kEps, angles.view(), batch.view(), plain.view()});
      EXPECT_TRUE(ops_->Synchronize().ok());
      reference_->IndexerKeyStore(
          {k.view(), norm.vector(), bias.vector(), kEps, angles.view(), batch.view(), wanted.view()});
      for (int32_t p : batch.positions) {
        const std::vector<float> actual = plain.Row(0, p), expected = wanted.Row(0, p);
        float amax = 0;
        for (float v : expected) amax = std::max(amax, std::fabs(v));
        for (int64_t i = 0; i < dim; ++i) {
          ASSERT_NEAR(actual[i], expected[i], published() ? amax / 8 : 2 * test::SumTolerance(dim, 8 * 11.3)) << i;
        }
      }
      if (!published()) continue;
      EXPECT_GE(test::EqualShare(plain.storage(), wanted.storage()), 0.95);
      Pool same = plain;
      PackedPool packed(&same, RowFormat::kFp8Key, 0);
      ops_->IndexerKeyStore({k.view(), norm.vector(), bias.vector(), kEps, angles.view(), batch.view(), packed.view()});
      EXPECT_TRUE(ops_->Synchronize().ok());
      for (int32_t p : batch.positions) ASSERT_EQ(packed.Row(0, p), plain.Row(0, p)) << p;
      EXPECT_TRUE(packed.GapsIntact());
    }
  }
}

// A latent row of V3.2: the norm covers its first values, a plain row is not quantised, and a packed row has the bytes
// of the scalar encoding of the plain one.
TEST_P(RowsTest, LatentRowsOfV32) {
  Random random(207);
  for (const auto& [rank, rotary] : {std::pair<int64_t, int64_t>{512, 64}, {256, 32}, {8320, 64}}) {
    const Batch batch = Batch::Run(rank > 1000 ? 2 : 19, 30);
    const Angles angles(batch.positions, test::RopeFreqs(10000.0, rotary));
    const Matrix norm = Matrix::RandomNormal(&random, DType::kBF16, 1, rank);
    const Matrix kv = Matrix::RandomNormal(&random, act(), batch.size(), rank + rotary, 2.0f);
    Pool plain(&random, act(), rank + rotary, 1, 64, 8);
    plain.Fill(0.0f);
    Pool wanted = plain;
    const auto store = [&](ops::Ops* ops, const ops::PagedRows& pool) {
      Matrix in = kv;
      ops->KvNormRopeStore({in.view(), norm.vector(), kEps, angles.view(), batch.view(), pool, false});
      EXPECT_TRUE(ops->Synchronize().ok());
    };
    store(ops_.get(), plain.view());
    store(reference_.get(), wanted.view());
    for (int32_t p : batch.positions) {
      const std::vector<float> actual = plain.Row(0, p), expected = wanted.Row(0, p);
      for (int64_t i = 0; i < rank + rotary; ++i) {
        ASSERT_NEAR(actual[i], expected[i],
                    std::fabs(expected[i]) * test::SumTolerance(rank, 1.0) + 16 * 0x1p-23 + ActStep(expected[i]))
            << i;
      }
    }
    if (!published() || rank > 1000) continue;
    const ops::PagedRows view = plain.view();
    std::vector<uint8_t> bytes[2];
    for (std::vector<uint8_t>& page : bytes) {
      ops::PagedRows packed = view;
      packed.format = RowFormat::kFp8DsMla656;
      packed.tail = rotary;
      packed.block_stride = ops::PageBytes(packed.format, DType::kBF16, view.cols, rotary, view.map.block_rows);
      page.assign(static_cast<size_t>(plain.blocks() * packed.block_stride), 0xA5);
      packed.data = page.data();
      if (&page == bytes) {
        store(ops_.get(), packed);
      } else {
        for (int32_t p : batch.positions) ops::EncodeRow(packed, 0, p, plain.Row(0, p).data());
      }
    }
    EXPECT_EQ(bytes[0], bytes[1]);
  }
}

TEST_P(RowsTest, HyperConnectionsOfOtherCounts) {
  Random random(208);
  for (const auto& [hc, d] : {std::pair<int64_t, int64_t>{1, 128}, {2, 1024}, {8, 256}}) {
    const int64_t tokens = 6, outputs = (2 + hc) * hc;
    Matrix x = Matrix::RandomNormal(&random, act(), tokens, hc * d, 2.0f);
    const Matrix norm = Matrix::RandomNormal(&random, DType::kBF16, 1, d);
    const std::vector<float> fn =
        test::RandomFloats(&random, outputs * hc * d, 1.0f / std::sqrt(static_cast<float>(hc * d)));
    const std::vector<float> base = test::RandomFloats(&random, outputs);
    const std::vector<float> scales = {0.5f, 1, 2};
    const float* const scale = scales.data();
    const ops::HcWeights weights{fn.data(), scale, base.data()};
    const std::vector<int32_t> rows = {5, 0};
    struct Result {
      Matrix out, head, streams;
      std::vector<float> post, comb;
    };
    const auto run = [&, hc = hc, d = d](ops::Ops* ops) {
      Result r{Matrix(act(), tokens, d), Matrix(act(), 2, d), x, std::vector<float>(tokens * hc),
               std::vector<float>(tokens * hc * hc)};
      ops->HcPre(
          {r.streams.view(), hc, weights, 20, kEps, norm.vector(), kEps, r.out.view(), r.post.data(), r.comb.data()});
      ops->HcHead({r.streams.view(), hc, weights, kEps, norm.vector(), kEps, r.head.view(), rows});
      ops->HcPost({r.out.view(), r.streams.view(), hc, r.post.data(), r.comb.data()});
      EXPECT_TRUE(ops->Synchronize().ok());
      return r;
    };
    const Result actual = run(ops_.get()), expected = run(reference_.get());
    // Mixes are sums of hc*d products of unit variance; two bf16 roundings may go the other way.
    const double error = 4 * test::SumTolerance(hc * d, 3.5 * std::sqrt(static_cast<double>(hc * d)));
    for (size_t i = 0; i < actual.post.size(); ++i) ASSERT_NEAR(actual.post[i], expected.post[i], error);
    for (size_t i = 0; i < actual.comb.size(); ++i) ASSERT_NEAR(actual.comb[i], expected.comb[i], error);
    const auto near = [&](const Matrix& a, const Matrix& b) {
      for (int64_t t = 0; t < a.rows(); ++t) {
        for (int64_t i = 0; i < a.cols(); ++i) {
          ASSERT_NEAR(a.At(t, i), b.At(t, i), 8 * error * (1 + std::fabs(b.At(t, i))) + 3 * ActStep(b.At(t, i)))
              << t << " " << i;
        }
      }
    };
    near(actual.out, expected.out);
    near(actual.head, expected.head);
    if (!published()) near(actual.streams, expected.streams);
  }
}

TEST_P(RowsTest, CompressedKeysOfWideRows) {
  Random random(209);
  const int64_t width = 512, channels = 2 * width;
  const Batch batch = Batch::Run(9, 3);
  Matrix kv = Matrix::RandomNormal(&random, DType::kF32, 9, channels);
  Matrix gate = Matrix::RandomNormal(&random, DType::kF32, 9, channels);
  const Matrix norm = Matrix::RandomNormal(&random, DType::kBF16, 1, width);
  const std::vector<float> ape = test::RandomFloats(&random, 4 * channels);
  const std::vector<float> freqs = test::RopeFreqs(160000.0);
  Pool state(&random, DType::kF32, 2 * channels, 1, 16, 8);
  state.FillRandom(&random);
  Pool other_state = state;
  Pool output(&random, act(), width, 1, 4, 4);
  output.Fill(0.0f);
  Pool expected = output;
  ops_->Compress({kv.view(), gate.view(), ape.data(), norm.vector(), kEps, 4, width, freqs, true, batch.view(),
                  state.view(), output.view()});
  EXPECT_TRUE(ops_->Synchronize().ok());
  reference_->Compress({kv.view(), gate.view(), ape.data(), norm.vector(), kEps, 4, width, freqs, true, batch.view(),
                        other_state.view(), expected.view()});
  EXPECT_EQ(test::EqualShare(state.storage(), other_state.storage()), 1.0);
  for (int64_t w = 0; w < 4; ++w) {
    for (int64_t i = 0; i < width; ++i) {
      double amax = 0;
      for (int64_t c = i / 32 * 32; c < i / 32 * 32 + 32; ++c)
        amax = std::max<double>(amax, std::fabs(expected.Row(0, w)[c]));
      ASSERT_NEAR(output.Row(0, w)[i], expected.Row(0, w)[i], published() ? amax * 2 / 3 : 4e-4) << w << " " << i;
    }
  }
  if (published()) {
    EXPECT_GE(test::EqualShare(output.storage(), expected.storage()), 0.95);
  }
}

TEST_P(RowsTest, GatherRows) {
  Random random(210);
  const Matrix from = Matrix::RandomNormal(&random, act(), 20, 300, 1.0f, 3);
  for (const std::vector<int32_t>& rows :
       {std::vector<int32_t>{}, {7}, {0, 1, 2}, {1, 2, 3, 4, 5, 9, 10, 11, 12, 19}, {3, 8, 9, 11, 14}}) {
    Matrix source = from, in_place = from, out(act(), 20, 300, 8);
    ops_->GatherRows(source.view(), rows, out.view());
    ops_->GatherRows(in_place.view(), rows, in_place.view());
    EXPECT_TRUE(ops_->Synchronize().ok());
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(out.Row(static_cast<int64_t>(i)), from.Row(rows[i])) << i;
      ASSERT_EQ(in_place.Row(static_cast<int64_t>(i)), from.Row(rows[i])) << i << " in place";
    }
    EXPECT_TRUE(out.PaddingIntact() && in_place.PaddingIntact());
  }
}

TEST_P(RowsTest, EmbedTakesTablesOfBothTypes) {
  Random random(211);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (int64_t d : {128, 1100}) {
      const test::Weight table = test::Weight::RandomOf(&random, dtype, 9, d);
      Batch batch = Batch::Run(4);
      batch.ids = {8, 0, 3, 8};
      Matrix actual(act(), 4, 4 * d, 3), expected(act(), 4, 4 * d, 3);
      ops_->Embed(batch.view(), table.view(), 4, actual.view());
      EXPECT_TRUE(ops_->Synchronize().ok());
      reference_->Embed(batch.view(), table.view(), 4, expected.view());
      EXPECT_EQ(test::EqualShare(actual, expected), 1.0);
      EXPECT_TRUE(actual.PaddingIntact());
    }
  }
}

}  // namespace
}  // namespace hadal
