// MoeRoute and MoeExperts (spec deepseek-v4-text 3.8, vision spec 4.2).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/ops_fixture.h"

namespace hadal {
namespace {

using test::Batch;
using test::Matrix;
using test::Random;
using test::Weight;
class MoeTest : public test::OpsTest {
 protected:
  // How far outputs of experts may lie from the reference's, as a share of their root mean square. f32: three products
  // of depth d and width with relative rms errors of sqrt(depth)*2^-24 each, times the few units by which SwiGLU
  // magnifies. Published: a pre-activation rounds the other way in about one of 50 elements; behind w2's quantiser that
  // is a step of up to 2^-3 of one element, so sqrt(1/50)*2^-4 = 0.9 % of the rms at most, and an expert's output
  // rounds to 2^-9.
  double OutputLimit(int64_t d) const {
    return published() ? 0.012 : 8 * 3 * std::sqrt(static_cast<double>(d)) * 0x1p-24;
  }
  static void ExpectClose(const Matrix& actual, const Matrix& expected, double limit) {
    double square = 0, difference = 0;
    for (int64_t t = 0; t < expected.rows(); ++t) {
      for (int64_t i = 0; i < expected.cols(); ++i) {
        square += std::pow(expected.At(t, i), 2);
        difference += std::pow(actual.At(t, i) - expected.At(t, i), 2);
      }
    }
    EXPECT_LE(std::sqrt(difference / square), limit);
    EXPECT_GT(square, 0);
  }
};
HADAL_OPS_TEST_SUITE(MoeTest);
class AnyScaleMoeTest : public MoeTest {};
HADAL_OPS_TEST_SUITE_WITH(AnyScaleMoeTest, ops::Feature::kAnyActivationScales);

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Route {
  explicit Route(Matrix gate_logits, int64_t select)
      : logits(std::move(gate_logits)), k(select), batch(Batch::Run(logits.rows())) {}

  void Run(ops::Ops* ops) {
    experts.assign(static_cast<size_t>(logits.rows() * k), -7);
    weights.assign(static_cast<size_t>(logits.rows() * k), kNaN);
    ops->MoeRoute({.logits = logits.view(),
                   .bias = bias.empty() ? nullptr : bias.data(),
                   .bias_vl = bias_vl.empty() ? nullptr : bias_vl.data(),
                   .token_to_expert = table.empty() ? nullptr : table.data(),
                   .image_first = image_first,
                   .experts_per_token = k,
                   .scale = scale,
                   .batch = batch.view(),
                   .experts = experts.data(),
                   .weights = weights.data()});
    EXPECT_TRUE(ops->Synchronize().ok());
  }

  double Score(int64_t t, int64_t e) const {
    const double v = logits.At(t, e);
    return std::sqrt(v > 20 ? v : std::log1p(std::exp(v)));
  }
  // weights of row t given its experts: unbiased, normalised, scaled. Softplus, root, sum and division are a few fp32
  // roundings each; exp loses |v|*2^-24 of its argument.
  void ExpectWeights(int64_t t) const {
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += Score(t, experts[t * k + i]);
    for (int64_t i = 0; i < k; ++i) {
      const double expected = Score(t, experts[t * k + i]) / sum * scale;
      ASSERT_NEAR(weights[t * k + i], expected, expected * 64 * 0x1p-24) << "row " << t << " slot " << i;
    }
  }

  Matrix logits;
  int64_t k;
  Batch batch;
  std::vector<float> bias, bias_vl;
  std::vector<int32_t> table;
  int32_t image_first = 0;
  float scale = 1.5f;
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

TEST_P(MoeTest, RoutesToTheLargestBiasedScores) {
  Random random(71);
  for (int64_t tokens : {1, 2, 3, 15, 16, 17, 33, 129}) {
    for (const auto& [experts, k] : {std::pair<int64_t, int64_t>{8, 3}, {9, 4}, {16, 4}, {33, 6}, {40, 8}}) {
      Route r(Matrix::RandomNormal(&random, DType::kF32, tokens, experts, 3.0f), k);
      r.bias = test::RandomFloats(&random, experts);
      r.Run(ops_.get());
      for (int64_t t = 0; t < tokens; ++t) {
        std::vector<int32_t> order(static_cast<size_t>(experts));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return r.Score(t, a) + r.bias[a] > r.Score(t, b) + r.bias[b]; });
        for (int64_t i = 0; i < k; ++i) ASSERT_EQ(r.experts[t * k + i], order[i]) << "row " << t << " slot " << i;
        r.ExpectWeights(t);
      }
    }
  }
}

// Trap 19.
TEST_P(MoeTest, BiasChangesTheChoiceAndNotTheWeight) {
  Random random(72);
  Route r(Matrix::RandomNormal(&random, DType::kF32, 4, 8), 3);
  r.bias.assign(8, 0.0f);
  r.bias[6] = 100;
  r.Run(ops_.get());
  for (int64_t t = 0; t < 4; ++t) {
    EXPECT_EQ(r.experts[t * 3], 6);
    r.ExpectWeights(t);
  }
}

TEST_P(MoeTest, TiesGoToTheLowerExpert) {
  Route r(Matrix::Filled(DType::kF32, 1, 12, 0.5f), 4);
  r.logits.Set(0, 7, 0.75f);
  r.logits.Set(0, 2, 0.25f);
  r.Run(ops_.get());
  EXPECT_EQ(r.experts, (std::vector<int32_t>{7, 0, 1, 3}));
}

// Hash layers: the table of the token's id, whatever the scores and a bias that happens to be there.
TEST_P(MoeTest, HashLayersFollowTheToken) {
  Random random(73);
  Route r(Matrix::RandomNormal(&random, DType::kF32, 6, 8), 3);
  for (int32_t id = 0; id < 10; ++id) {
    for (int32_t i = 0; i < 3; ++i) r.table.push_back((3 * id + 5 * i) % 8);
  }
  r.batch.ids = {9, 0, 4, 4, 7, 2};
  r.Run(ops_.get());
  for (int64_t t = 0; t < 6; ++t) {
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(r.experts[t * 3 + i], (3 * r.batch.ids[t] + 5 * i) % 8);
    r.ExpectWeights(t);
  }
}

// Vision traps 18, 19, 20: five ids from image_first on use bias_vl in every layer, in hash layers too, and weights
// never contain it.
TEST_P(MoeTest, ImageTokensUseTheirOwnBias) {
  for (const bool hash : {false, true}) {
    Route r(Matrix::Filled(DType::kF32, 8, 4, 0.0f), 2);
    r.image_first = 100;
    r.batch.ids = {99, 100, 101, 104, 105, 3, 102, 103};
    r.bias_vl = {9, 8, 0, 0};
    if (hash) {
      r.table.assign(200 * 2, 0);
      for (int64_t i = 0; i < 400; ++i) r.table[i] = i % 2 == 0 ? 3 : 1;
    } else {
      r.bias = {0, 0, 1, 2};
    }
    r.Run(ops_.get());
    for (int64_t t = 0; t < 8; ++t) {
      const bool image = r.batch.ids[t] >= 100 && r.batch.ids[t] < 105;
      EXPECT_EQ(r.experts[2 * t], image ? 0 : 3) << "id " << r.batch.ids[t];
      EXPECT_EQ(r.experts[2 * t + 1], image ? 1 : hash ? 1 : 2) << "id " << r.batch.ids[t];
      EXPECT_EQ(r.weights[2 * t], 0.75f);
      EXPECT_EQ(r.weights[2 * t + 1], 0.75f);
    }
    // No image range in text checkpoints, and none without bias_vl.
    r.image_first = 0;
    r.batch.ids = {0, 1, 2, 3, 4, 5, 6, 7};
    r.Run(ops_.get());
    for (int64_t t = 0; t < 8; ++t) EXPECT_EQ(r.experts[2 * t], 3);
  }
}

// B75: softplus keeps its small values, and what underflows altogether gives finite weights.
TEST_P(MoeTest, SmallScoresStayFinite) {
  std::vector<float> points = {-104, -103, -90, -50, -17, -16.7f, -16, -1, 0, 1, 19.9f, 20, 20.1f, 88, 89, 200};
  for (float v : points) {
    // Two experts: the score of v relative to the score 1 of logit log(e-1).
    Route r(Matrix::Filled(DType::kF32, 1, 2, v), 2);
    r.logits.Set(0, 1, 0.54132485f);
    r.table = {0, 1};
    r.batch.ids = {0};
    r.scale = 1;
    r.Run(ops_.get());
    const double expected = r.Score(0, 0) / (r.Score(0, 0) + r.Score(0, 1));
    // Below -87 e^v is subnormal: its absolute precision is 2^-149, half of it relative in the root.
    const double subnormal = v < -87 ? 0x1p-149 / std::exp(static_cast<double>(v)) : 0.0;
    EXPECT_NEAR(r.weights[0], expected, expected * (subnormal + 64 * 0x1p-24)) << v;
    if (v >= -87) {
      EXPECT_GT(r.weights[0], 0.0f) << v;
    }
  }
  for (float v : {-104.5f, -200.0f, -1e30f, -std::numeric_limits<float>::infinity()}) {
    for (const bool hash : {false, true}) {
      Route r(Matrix::Filled(DType::kF32, 2, 8, v), 3);
      if (hash) r.table = {7, 2, 4, 1, 0, 3};
      r.Run(ops_.get());
      for (float w : r.weights) EXPECT_EQ(w, 0.0f) << v;
      if (!hash) {
        EXPECT_EQ(r.experts, (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
      }
    }
  }
}

TEST_P(MoeTest, NaNLogitsStillNameRealExperts) {
  Route r(Matrix::Filled(DType::kF32, 2, 8, kNaN), 3);
  r.logits.Set(0, 5, 1.0f);
  r.bias.assign(8, 0.5f);
  r.Run(ops_.get());
  EXPECT_EQ(r.experts, (std::vector<int32_t>{5, 0, 1, 0, 1, 2}));
}

struct Expert {
  Weight w1, w3, w2;
  ops::ExpertWeights view() const { return {w1.view(), w3.view(), w2.view()}; }
};

struct Experts {
  Experts(Random* random, DType dtype, DType shared_dtype, int64_t count, int64_t d, int64_t width) {
    for (int64_t e = 0; e < count; ++e) {
      routed.push_back({Weight::RandomOf(random, dtype, width, d), Weight::RandomOf(random, dtype, width, d),
                        Weight::RandomOf(random, dtype, d, width)});
    }
    shared.push_back({Weight::RandomOf(random, shared_dtype, width, d),
                      Weight::RandomOf(random, shared_dtype, width, d),
                      Weight::RandomOf(random, shared_dtype, d, width)});
  }

  Matrix Run(ops::Ops* ops, Matrix x, const std::vector<int32_t>& experts, const std::vector<float>& weights, int64_t k,
             float limit, bool weigh_outputs = false) const {
    std::vector<ops::ExpertWeights> views;
    for (const Expert& e : routed) views.push_back(e.view());
    const ops::ExpertWeights shared_view = shared[0].view();
    Matrix out(x.dtype(), x.rows(), x.cols());
    ops->MoeExperts({.x = x.view(),
                     .experts = experts.data(),
                     .weights = weights.data(),
                     .experts_per_token = k,
                     .routed = views,
                     .shared = with_shared ? &shared_view : nullptr,
                     .swiglu_limit = limit,
                     .out = out.view(),
                     .weigh_outputs = weigh_outputs,
                     .quant = quant});
    EXPECT_TRUE(ops->Synchronize().ok());
    return out;
  }

  std::vector<Expert> routed, shared;
  bool with_shared = true;
  ops::InputQuant quant = ops::InputQuant::kFp8;
};

// Random distinct experts per row.
void RandomChoice(Random* random, int64_t tokens, int64_t experts, int64_t k, std::vector<int32_t>* chosen,
                  std::vector<float>* weights) {
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> all(static_cast<size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    random->Shuffle(&all);
    chosen->insert(chosen->end(), all.begin(), all.begin() + k);
    for (int64_t i = 0; i < k; ++i) weights->push_back(random->Uniform(0.05f, 1.0f));
  }
}

TEST_P(MoeTest, ExpertsMatchTheReference) {
  Random random(74);
  struct Case {
    int64_t tokens, experts, k, d, width;
    DType routed, shared;
  };
  std::vector<Case> cases;
  for (int64_t tokens : {1, 2, 3, 15, 16, 17, 33, 129})
    cases.push_back({tokens, tokens > 17 ? 8 : 16, 4, 256, 128, DType::kF4E2M1, DType::kF8E4M3});
  cases.push_back({5, 40, 6, 128, 256, DType::kF4E2M1, DType::kF8E4M3});
  cases.push_back({17, 9, 3, 256, 384, DType::kF8E4M3, DType::kF8E4M3});
  cases.push_back({3, 8, 3, 4096, 128, DType::kF4E2M1, DType::kF8E4M3});
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << c.tokens << " rows, " << c.experts << " experts, d " << c.d);
    Experts experts(&random, c.routed, c.shared, c.experts, c.d, c.width);
    // Published weights give pre-activations of size 1 or so; large inputs reach the clamps too.
    const Matrix x = Matrix::RandomNormal(&random, act(), c.tokens, c.d, 3.0f);
    std::vector<int32_t> chosen;
    std::vector<float> weights;
    RandomChoice(&random, c.tokens, c.experts, c.k, &chosen, &weights);
    for (const ops::InputQuant quant : ActivationQuants()) {
      experts.quant = quant;
      const Matrix actual = experts.Run(ops_.get(), x, chosen, weights, c.k, 10.0f);
      const Matrix expected = experts.Run(reference_.get(), x, chosen, weights, c.k, 10.0f);
      ExpectClose(actual, expected, OutputLimit(c.d));
    }
  }
}

// Layers without routed experts are one expert that takes every row.
TEST_P(MoeTest, DenseLayersMatchTheReference) {
  Random random(70);
  for (const DType dtype : {DType::kF8E4M3, DType::kBF16}) {
    Experts experts(&random, dtype, dtype, 0, 256, 192);
    for (const int64_t tokens : {1, 20, 100, 130}) {
      SCOPED_TRACE(testing::Message() << tokens << " rows, " << DTypeName(dtype));
      const Matrix x = Matrix::RandomNormal(&random, act(), tokens, 256, 3.0f);
      const Matrix actual = experts.Run(ops_.get(), x, {}, {}, 0, 0.0f);
      const Matrix expected = experts.Run(reference_.get(), x, {}, {}, 0, 0.0f);
      ExpectClose(actual, expected, OutputLimit(256));
    }
  }
}

// V3.2: the weight multiplies an expert's rounded output.
TEST_P(MoeTest, WeighsOutputs) {
  Random random(69);
  for (const DType dtype : {DType::kF8E4M3, DType::kBF16}) {
    const Experts experts(&random, dtype, dtype, 4, 128, 128);
    const Matrix x = Matrix::RandomNormal(&random, act(), 5, 128, 3.0f);
    std::vector<int32_t> chosen;
    std::vector<float> weights;
    RandomChoice(&random, 5, 4, 2, &chosen, &weights);
    const Matrix actual = experts.Run(ops_.get(), x, chosen, weights, 2, 0.0f, true);
    const Matrix expected = experts.Run(reference_.get(), x, chosen, weights, 2, 0.0f, true);
    ExpectClose(actual, expected, OutputLimit(128));
  }
}

// Under scales of amax/448: 1 in a block whose largest is 3 is code 149.33 -> 144 of 3/448. The hidden values, 14 and
// 3, are another block of another scale: 3 is code 96 of 14/448 = 2^-5, exact.
TEST_P(AnyScaleMoeTest, ScalesMayBeAnyNumber) {
  const int64_t d = 128;
  Matrix x = Matrix::Filled(act(), 1, d, 0.0f);
  for (const auto& [place, value] : {std::pair<int64_t, float>{0, 1}, {1, 3}, {2, 2}}) x.Set(0, place, value);
  std::vector<float> w1(d * d, 0.0f), w3(d * d, 0.0f), identity(d * d, 0.0f);
  for (int64_t row : {0, 1}) w1[row * d + 1] = 8;  // g = 24, and silu(24) = 24 * (1 - 4e-11)
  w3[0 * d + 0] = 1;                               // u = 1, or 144 * 3/448 rounded to bf16
  w3[1 * d + 1] = 2;                               // u = 6
  for (int64_t i = 0; i < d; ++i) identity[i * d + i] = 1;
  Random random(79);
  Experts experts(&random, DType::kF8E4M3, DType::kF8E4M3, 1, d, d);
  experts.routed[0] = {Weight::FromGrid(DType::kF8E4M3, d, d, w1), Weight::FromGrid(DType::kF8E4M3, d, d, w3),
                       Weight::FromGrid(DType::kF8E4M3, d, d, identity)};
  experts.with_shared = false;
  experts.quant = ops::InputQuant::kFp8AnyScale;
  const Matrix out = experts.Run(ops_.get(), x, {0}, {1.0f}, 1, 0.0f);
  // Hidden values: 24 u and 144, the largest. 24 u = 23.125 (bf16) is code 71.9 -> 72 of 144/448.
  const float u = Act(144 * (3.0f * (1.0f / 448.0f)));
  const float hidden = Act(24 * u), scale = 144 * (1.0f / 448.0f);
  EXPECT_EQ(RoundE4M3(hidden / scale), 72);
  EXPECT_EQ(out.At(0, 0), published() ? Act(72 * scale) : 24);
  EXPECT_EQ(out.At(0, 1), published() ? Act(448 * scale) : 144);
}

// Trap 21 by hand: one expert whose w1 and w3 make pre-activations of +-20, routing weight 0.37 before w2.
TEST_P(MoeTest, ClampsAndWeighsBeforeTheDownProjection) {
  const int64_t d = 128, width = 128;
  // x has one element 4 (exact in E4M3); w1 row i gives g, w3 row i gives u.
  const float pairs[][2] = {{20, 20}, {-20, 20}, {20, -20}, {-20, -20}, {4, 20}, {-4, -20}, {12, 4}, {8, 8}};
  std::vector<float> w1(width * d, 0.0f), w3(width * d, 0.0f), w2(d * width, 0.0f);
  for (int64_t i = 0; i < 8; ++i) {
    // 20 = 4 * 5: 5 is on the E4M3 grid.
    w1[i * d] = pairs[i][0] / 4;
    w3[i * d] = pairs[i][1] / 4;
  }
  for (int64_t i = 0; i < width; ++i) w2[i * width + i] = 1.0f;
  Random random(75);
  Experts experts(&random, DType::kF8E4M3, DType::kF8E4M3, 2, d, width);
  const Expert hand{Weight::FromGrid(DType::kF8E4M3, width, d, w1), Weight::FromGrid(DType::kF8E4M3, width, d, w3),
                    Weight::FromGrid(DType::kF8E4M3, d, width, w2)};
  Matrix x = Matrix::Filled(act(), 1, d, 0.0f);
  x.Set(0, 0, 4.0f);

  // The hidden values of one expert, clamped (u to +-10, g only from above), weighed and rounded.
  const auto hidden = [&](double weight) {
    std::vector<float> h;
    for (const auto& pair : pairs) {
      const double g = std::min(pair[0], 10.0f);
      const double u = std::clamp(pair[1], -10.0f, 10.0f);
      h.push_back(Act(static_cast<float>(weight * g / (1 + std::exp(-g)) * u)));
    }
    return h;
  };
  // w2 is the identity, so the output is the quantised hidden row.
  const auto quantised = [&](std::vector<float> h) {
    float amax = 0;
    for (float v : h) amax = std::max(amax, std::fabs(v));
    const float scale = E4M3BlockScale(amax);
    for (float& v : h) v = published() ? RoundE4M3(v / scale) * scale : v;
    return h;
  };

  for (const bool shared : {false, true}) {
    const std::vector<float> weights = {0.37f};
    if (shared) {
      // The routed expert is random but its weight is 0: what remains is the shared one, which is clamped as well.
      experts.shared = {hand};
    } else {
      experts.routed[1] = hand;
    }
    experts.with_shared = shared;
    const std::vector<int32_t> chosen = {shared ? 0 : 1};
    const std::vector<float> routing = {shared ? 0.0f : 0.37f};
    const Matrix out = experts.Run(ops_.get(), x, chosen, routing, 1, 10.0f);
    const std::vector<float> expected = quantised(hidden(shared ? 1.0 : 0.37f));
    for (int64_t i = 0; i < 8; ++i) ASSERT_NEAR(out.At(0, i), expected[i], std::fabs(expected[i]) * 1e-6) << i;
    for (int64_t i = 8; i < d; ++i) ASSERT_EQ(out.At(0, i), 0.0f);
  }
  // In published numerics the order shows: quantising before the weight gives other numbers.
  const std::vector<float> before = quantised(hidden(0.37f)), after = quantised(hidden(1.0));
  bool differs = false;
  for (int64_t i = 0; i < 8; ++i) differs |= std::fabs(before[i] - 0.37f * after[i]) > 0.01f * std::fabs(before[i]);
  EXPECT_EQ(differs, published());
}

// Input and hidden row are quantised in blocks of 128: 1.5 steps of 2^-9 become 2 beside a 448 of the same block (scale
// 1) and stay 1.5 in the next block.
TEST_P(MoeTest, QuantisesInBlocksOf128) {
  const int64_t d = 256;
  const float small = 1.5f * 0x1p-9f;
  Matrix x = Matrix::Filled(act(), 1, d, 0.0f);
  const std::pair<int64_t, float> inputs[] = {{0, 448}, {1, 0x1p-6f}, {2, 16}, {80, small}, {128, small}};
  for (const auto& [place, value] : inputs) x.Set(0, place, value);
  std::vector<float> w1(d * d, 0.0f), w3(d * d, 0.0f), identity(d * d, 0.0f);
  for (int64_t row : {0, 5, 6, 80, 128}) w1[row * d + 2] = 1;  // g = 16, and silu(16) = 16*(1 - 1e-7)
  w3[0 * d + 2] = 1.75f;                                       // u = 28, h = 448
  w3[5 * d + 80] = 448;                                        // u = 1.3125 or, rounded, 1.75
  w3[6 * d + 128] = 448;                                       // u = 1.3125
  w3[80 * d + 1] = w3[128 * d + 1] = 1.5f * 0x1p-7f;           // u = 1.5*2^-13, h = 1.5*2^-9
  for (int64_t i = 0; i < d; ++i) identity[i * d + i] = 1;
  Random random(78);
  Experts experts(&random, DType::kF8E4M3, DType::kF8E4M3, 1, d, d);
  experts.routed[0] = {Weight::FromGrid(DType::kF8E4M3, d, d, w1), Weight::FromGrid(DType::kF8E4M3, d, d, w3),
                       Weight::FromGrid(DType::kF8E4M3, d, d, identity)};
  experts.with_shared = false;
  const Matrix out = experts.Run(ops_.get(), x, {0}, {1.0f}, 1, 0.0f);
  const struct {
    int64_t row;
    float published, f32;
  } expected[] = {{0, 448, 448}, {5, 28, 21}, {6, 20, 21}, {80, 0x1p-8f, small}, {128, small, small}};
  for (const auto& e : expected) {
    const float value = published() ? e.published : e.f32;
    EXPECT_NEAR(out.At(0, e.row), value, value * 1e-6f) << "row " << e.row;
  }
}

TEST_P(MoeTest, NoClampWithALimitOfZero) {
  const int64_t d = 128;
  std::vector<float> in(d * d, 0.0f), identity(d * d, 0.0f);
  in[0] = 16;
  for (int64_t i = 0; i < d; ++i) identity[i * d + i] = 1;
  Random random(76);
  Experts experts(&random, DType::kF8E4M3, DType::kF8E4M3, 1, d, d);
  experts.routed[0] = {Weight::FromGrid(DType::kF8E4M3, d, d, in), Weight::FromGrid(DType::kF8E4M3, d, d, in),
                       Weight::FromGrid(DType::kF8E4M3, d, d, identity)};
  experts.with_shared = false;
  Matrix x = Matrix::Filled(act(), 1, d, 0.0f);
  x.Set(0, 0, 1.0f);
  // silu(16) = 16*(1 - 1e-7)
  EXPECT_NEAR(experts.Run(ops_.get(), x, {0}, {1.0f}, 1, 0.0f).At(0, 0), 256.0f, 1e-4f);
  EXPECT_NEAR(experts.Run(ops_.get(), x, {0}, {1.0f}, 1, 10.0f).At(0, 0), 100.0f, published() ? 4.0f : 0.01f);
}

// The gate is not clamped from below: its silu is zero there, and no exponential may overflow on the way.
TEST_P(MoeTest, VeryNegativeGatesCloseTheExpert) {
  const int64_t d = 128;
  std::vector<float> gate(d * d, 0.0f), up(d * d, 0.0f), identity(d * d, 0.0f);
  for (int64_t i = 0; i < d; ++i) {
    gate[i * d] = i % 2 == 0 ? -208.0f : -104.0f;
    up[i * d] = identity[i * d + i] = 1.0f;
  }
  Random random(79);
  Experts experts(&random, DType::kF8E4M3, DType::kF8E4M3, 1, d, d);
  experts.routed[0] = {Weight::FromGrid(DType::kF8E4M3, d, d, gate), Weight::FromGrid(DType::kF8E4M3, d, d, up),
                       Weight::FromGrid(DType::kF8E4M3, d, d, identity)};
  experts.with_shared = false;
  Matrix x = Matrix::Filled(act(), 1, d, 0.0f);
  for (float v : {1.0f, 2.0f, 256.0f}) {
    x.Set(0, 0, v);
    const Matrix out = experts.Run(ops_.get(), x, {0}, {1.0f}, 1, 10.0f);
    for (int64_t i = 0; i < d; ++i) ASSERT_NEAR(out.At(0, i), 0.0f, 1e-30f) << v << " " << i;
  }
}

// Padding rows carry no expert.
TEST_P(MoeTest, SlotsOfMinusOneAreSkipped) {
  Random random(77);
  const Experts experts(&random, DType::kF4E2M1, DType::kF8E4M3, 4, 128, 128);
  const Matrix x = Matrix::RandomNormal(&random, act(), 2, 128);
  const Matrix one = experts.Run(ops_.get(), x, {2, 1}, {0.5f, 0.25f}, 1, 10.0f);
  const Matrix padded = experts.Run(ops_.get(), x, {-1, 2, 1, -1}, {0, 0.5f, 0.25f, 0}, 2, 10.0f);
  EXPECT_EQ(test::EqualShare(one, padded), 1.0);
}

}  // namespace
}  // namespace hadal
