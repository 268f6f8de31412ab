// Compress (spec deepseek-v4-text 3.5).
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
using CompressorTest = test::OpsTest;
HADAL_OPS_TEST_SUITE(CompressorTest);

constexpr float kEps = 1e-6f;
constexpr int64_t kRotary = 64;
constexpr float kUntouched = -77.0f;

// A compressor with its caches; Run() may be called again to continue.
struct Problem {
  Problem(Random* random, DType act, int32_t pool_ratio, int64_t row_width, int64_t length, int32_t sequences = 1)
      : ratio(pool_ratio),
        width(row_width),
        channels(pool_ratio == 4 ? 2 * row_width : row_width),
        ape(test::RandomFloats(random, ratio * channels)),
        norm(Matrix::RandomNormal(random, DType::kBF16, 1, width)),
        freqs(test::RopeFreqs(160000.0)),
        state(random, DType::kF32, 2 * channels, sequences, length, 8),
        output(random, act, width, sequences, length / ratio + 1, 4) {
    output.Fill(kUntouched);
  }

  void Run(ops::Ops* ops, const Batch& batch, Matrix* kv, Matrix* gate) {
    ops->Compress({.kv = kv->view(),
                   .gate = gate->view(),
                   .ape = ape.data(),
                   .norm = norm.vector(),
                   .rms_eps = kEps,
                   .ratio = ratio,
                   .width = width,
                   .rope_freqs = freqs,
                   .indexer_keys = indexer_keys,
                   .batch = batch.view(),
                   .state = state.view(),
                   .output = output.view()});
    EXPECT_TRUE(ops->Synchronize().ok());
  }

  // The pooled row of window w before its norm, in double, from all tokens of the sequence.
  std::vector<double> Pooled(const Matrix& kv, const Matrix& gate, int64_t w) const {
    std::vector<double> row(static_cast<size_t>(width));
    const bool overlap = ratio == 4;
    for (int64_t ch = 0; ch < width; ++ch) {
      double sum = 0, weighted = 0;
      const auto add = [&](int64_t position, int64_t channel) {
        const double e =
            std::exp(static_cast<double>(gate.At(position, channel)) + ape[position % ratio * channels + channel]);
        sum += e;
        weighted += e * kv.At(position, channel);
      };
      for (int64_t i = 0; i < ratio; ++i) {
        if (overlap && w > 0) add((w - 1) * ratio + i, ch);
        add(w * ratio + i, overlap ? width + ch : ch);
      }
      row[ch] = weighted / sum;
    }
    return row;
  }

  // The finished row before any quantisation, in double.
  std::vector<double> Finished(const std::vector<double>& pooled, int64_t w) const {
    double square = 0;
    for (double v : pooled) square += v * v;
    const double inverse_rms = 1 / std::sqrt(square / static_cast<double>(width) + kEps);
    std::vector<double> row(pooled.size());
    for (int64_t i = 0; i < width; ++i) row[i] = norm.At(0, i) * (pooled[i] * inverse_rms);
    const Angles angles({static_cast<int32_t>(w * ratio)}, freqs);
    for (int64_t j = 0; j < angles.half; ++j) {
      double* pair = row.data() + width - kRotary + 2 * j;
      const double a = pair[0], b = pair[1];
      pair[0] = a * angles.cos[j] - b * angles.sin[j];
      pair[1] = a * angles.sin[j] + b * angles.cos[j];
    }
    return row;
  }

  int32_t ratio;
  int64_t width, channels;
  std::vector<float> ape;
  Matrix norm;
  std::vector<float> freqs;
  Pool state, output;
  bool indexer_keys = false;
};

double Rms(const std::vector<double>& v) {
  double square = 0;
  for (double x : v) square += x * x;
  return std::sqrt(square / static_cast<double>(v.size()));
}

// A stored row against the double computation. fp32: gates are up to about 5, so an exponent errs by 2^-22 and a
// probability by 2^-20 relatively; values are up to about 4 and the norm divides by the pooled rms. Published: three
// roundings to bf16 (pooled, normed, rotated), of both values of a rotated pair, then half an E4M3 step.
void ExpectRow(const Problem& p, const std::vector<float>& actual, const std::vector<double>& pooled, int64_t w,
               bool published) {
  const std::vector<double> expected = p.Finished(pooled, w);
  const double error = 4 * 0x1p-19 / Rms(pooled);
  for (int64_t i = 0; i < p.width; ++i) {
    const bool rotary = i >= p.width - kRotary;
    const double size = std::fabs(expected[i]) + (rotary ? std::fabs(expected[i ^ 1]) : 0.0);
    double tolerance = 3.5 * error + 16 * 0x1p-24 * size;
    if (published) tolerance += 3 * 0x1p-7 * size;
    if (published && !rotary) {
      double amax = 1e-4;
      for (int64_t c = i / 64 * 64; c < i / 64 * 64 + 64; ++c) amax = std::max(amax, std::fabs(expected[c]));
      tolerance += std::max(0x1p-4 * size, 0x1p-10 * amax / 224);
    }
    ASSERT_NEAR(actual[i], expected[i], tolerance) << "window " << w << " channel " << i;
  }
}

TEST_P(CompressorTest, MatchesADoubleComputation) {
  Random random(51);
  for (const auto& [ratio, tokens] : {std::pair<int32_t, int64_t>{4, 1},
                                      {4, 3},
                                      {4, 4},
                                      {4, 17},
                                      {4, 33},
                                      {4, 129},
                                      {128, 127},
                                      {128, 128},
                                      {128, 129},
                                      {128, 256}}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens, ratio " << ratio);
    Problem p(&random, act(), ratio, 512, 264);
    Matrix kv = Matrix::RandomNormal(&random, DType::kF32, tokens, p.channels);
    Matrix gate = Matrix::RandomNormal(&random, DType::kF32, tokens, p.channels);
    p.Run(ops_.get(), Batch::Run(tokens), &kv, &gate);
    for (int64_t w = 0; w < tokens / ratio; ++w)
      ExpectRow(p, p.output.Row(0, w), p.Pooled(kv, gate, w), w, published());
    EXPECT_EQ(p.output.Row(0, tokens / ratio), std::vector<float>(512, kUntouched))
        << "an unfinished window was stored";
  }
}

// The quantiser of indexer keys hides the value, so compare with the reference: most elements equal, the others within
// the largest step of E2M1, two thirds of the block's amax.
TEST_P(CompressorTest, IndexerKeysMatchTheReference) {
  Random random(52);
  for (int64_t tokens : {4, 17, 129}) {
    Problem p(&random, act(), 4, 128, 160);
    p.indexer_keys = true;
    Problem r = p;
    Matrix kv = Matrix::RandomNormal(&random, DType::kF32, tokens, p.channels);
    Matrix gate = Matrix::RandomNormal(&random, DType::kF32, tokens, p.channels);
    p.Run(ops_.get(), Batch::Run(tokens), &kv, &gate);
    r.Run(reference_.get(), Batch::Run(tokens), &kv, &gate);
    int64_t equal = 0;
    for (int64_t w = 0; w < tokens / 4; ++w) {
      const std::vector<float> actual = p.output.Row(0, w), expected = r.output.Row(0, w);
      for (int64_t i = 0; i < 128; ++i) {
        double amax = 0;
        for (int64_t c = i / 32 * 32; c < i / 32 * 32 + 32; ++c) amax = std::max<double>(amax, std::fabs(expected[c]));
        // f32: a rotated sum of 128 values of size 3.5, over 128^0.5, each with the error of ExpectRow.
        ASSERT_NEAR(actual[i], expected[i], published() ? amax * 2 / 3 : 2e-4) << "window " << w << " channel " << i;
        equal += actual[i] == expected[i] ? 1 : 0;
      }
    }
    if (published()) {
      EXPECT_GE(static_cast<double>(equal), 0.95 * 128 * static_cast<double>(tokens / 4));
    }
  }
}

// Trap 16: keys are rotated by the orthonormal Sylvester matrix: a unit vector becomes 128^-0.5 times its signs.
TEST_P(CompressorTest, IndexerKeysAreHadamardRotated) {
  Random random(53);
  Problem p(&random, act(), 4, 128, 16);
  p.indexer_keys = true;
  p.norm = Matrix::Filled(DType::kBF16, 1, 128, 1.0f);
  std::fill(p.ape.begin(), p.ape.end(), 0.0f);
  for (int64_t unit : {0, 1, 5, 63}) {  // not rotary
    Matrix kv = Matrix::Filled(DType::kF32, 4, 256, 0.0f);
    for (int64_t t = 0; t < 4; ++t) kv.Set(t, 128 + unit, 1.0f);
    Matrix gate = Matrix::Filled(DType::kF32, 4, 256, 0.0f);
    p.Run(ops_.get(), Batch::Run(4), &kv, &gate);
    // The norm makes the element 128^0.5, the rotation spreads it as +-1: exact in E2M1 (amax 1, scale 2^-2, code 4),
    // unless bf16 rounded 128^0.5 = 11.3125 + 0.0012; that is 0.99989, whose bf16 neighbour is 1.
    for (int64_t i = 0; i < 128; ++i) {
      const int sign = __builtin_popcountll(static_cast<uint64_t>(unit & i)) % 2 == 0 ? 1 : -1;
      ASSERT_NEAR(p.output.Row(0, 0)[i], sign, 1e-3) << "unit " << unit << " channel " << i;
    }
  }
}

// Trap 10, 12: with gates that pick one slot the row is that slot's token, of series A for the window before and of
// series B for this one; each channel picks for itself.
TEST_P(CompressorTest, OverlapTakesSeriesAFromTheWindowBefore) {
  Random random(54);
  const int64_t width = 512;
  Problem p(&random, act(), 4, width, 32);
  p.norm = Matrix::Filled(DType::kBF16, 1, width, 1.0f);
  std::fill(p.freqs.begin(), p.freqs.end(), 0.0f);
  Matrix kv = Matrix::RandomNormal(&random, DType::kF32, 8, 2 * width);
  Matrix gate = Matrix::Filled(DType::kF32, 8, 2 * width, 0.0f);
  for (int series = 0; series < 2; ++series) {
    for (int64_t slot = 0; slot < 4; ++slot) {
      // Even channels pick `slot` of this series, odd channels the next slot of series B.
      std::fill(p.ape.begin(), p.ape.end(), 0.0f);
      for (int64_t ch = 0; ch < width; ++ch) {
        const int64_t picked = ch % 2 == 0 ? slot : (slot + 1) % 4;
        const int64_t of = ch % 2 == 0 ? series : 1;
        p.ape[picked * 2 * width + of * width + ch] = 200.0f;
      }
      p.Run(ops_.get(), Batch::Run(8), &kv, &gate);
      std::vector<double> pooled(width);
      for (int64_t ch = 0; ch < width; ++ch) {
        const bool even = ch % 2 == 0;
        const int64_t token = even ? (series == 0 ? slot : 4 + slot) : 4 + (slot + 1) % 4;
        pooled[ch] = kv.At(token, (even ? series : 1) * width + ch);
      }
      ExpectRow(p, p.output.Row(0, 1), pooled, 0, published());
    }
  }
}

// The first window has no predecessor: only its own four tokens count, whatever the pool held before (trap 13).
TEST_P(CompressorTest, FirstWindowPoolsFourSlots) {
  Random random(55);
  Problem p(&random, act(), 4, 512, 32);
  Matrix kv = Matrix::RandomNormal(&random, DType::kF32, 4, 1024);
  Matrix gate = Matrix::RandomNormal(&random, DType::kF32, 4, 1024);
  p.Run(ops_.get(), Batch::Run(4), &kv, &gate);
  const std::vector<float> fresh = p.output.Row(0, 0);
  p.state.FillRandom(&random, 50.0f);
  p.Run(ops_.get(), Batch::Run(4), &kv, &gate);
  EXPECT_EQ(p.output.Row(0, 0), fresh);
}

// Trap 11: the row is rotated at the position of the window's first token.
TEST_P(CompressorTest, RotatesAtTheFirstPositionOfTheWindow) {
  Random random(56);
  for (int32_t ratio : {4, 128}) {
    Problem p(&random, act(), ratio, 512, 3 * ratio);
    p.norm = Matrix::Filled(DType::kBF16, 1, 512, 1.0f);
    Matrix kv = Matrix::Filled(DType::kF32, 3 * ratio, p.channels, 1.0f);
    Matrix gate = Matrix::Filled(DType::kF32, 3 * ratio, p.channels, 0.0f);
    p.Run(ops_.get(), Batch::Run(3 * ratio), &kv, &gate);
    for (int32_t w = 0; w < 3; ++w) {
      const Angles angles({w * ratio}, p.freqs);
      for (int64_t j = 0; j < angles.half; ++j) {
        const std::vector<float> row = p.output.Row(0, w);
        const double cos = angles.cos[j], sin = angles.sin[j];
        EXPECT_NEAR(row[448 + 2 * j], cos - sin, ActStep(2) + 1e-5) << "window " << w << " pair " << j;
        EXPECT_NEAR(row[448 + 2 * j + 1], cos + sin, ActStep(2) + 1e-5) << "window " << w << " pair " << j;
      }
    }
  }
}

// The same rows whatever the chunking, with the state in a ring that wraps.
TEST_P(CompressorTest, ChunksGiveTheSameBits) {
  Random random(57);
  for (const auto& [ratio, tokens] : {std::pair<int32_t, int64_t>{4, 61}, {128, 300}}) {
    Problem whole(&random, act(), ratio, 512, 304);
    Matrix kv = Matrix::RandomNormal(&random, DType::kF32, tokens, whole.channels);
    Matrix gate = Matrix::RandomNormal(&random, DType::kF32, tokens, whole.channels);
    whole.Run(ops_.get(), Batch::Run(tokens), &kv, &gate);
    for (int64_t chunk : {1, 3, 7, 13}) {
      Problem p = whole;
      p.output.Fill(kUntouched);
      // Rows that a chunk may still need: its own, the open window and the one before.
      p.state = Pool(&random, DType::kF32, 2 * whole.channels, 1, 2 * ratio + 16, 8, true);
      for (int64_t first = 0; first < tokens; first += chunk) {
        std::vector<int64_t> rows;
        for (int64_t t = first; t < std::min(tokens, first + chunk); ++t) rows.push_back(t);
        Matrix kv_chunk = kv.Take(rows), gate_chunk = gate.Take(rows);
        p.Run(ops_.get(), Batch::Run(tokens).Take(rows), &kv_chunk, &gate_chunk);
      }
      for (int64_t w = 0; w <= tokens / ratio; ++w)
        ASSERT_EQ(p.output.Row(0, w), whole.output.Row(0, w)) << "chunk " << chunk << " window " << w;
    }
  }
}

}  // namespace
}  // namespace hadal
