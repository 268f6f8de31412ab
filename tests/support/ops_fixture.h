// What every operator test shares: the implementation under test, the reference beside it, rotary angles, and the
// tolerances with their derivation.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "support/ops_data.h"
#include "support/ops_implementations.h"

namespace hadal::test {

// How far two correct fp32 sums of `terms` products may lie apart whose magnitudes add up to `magnitude`. The rounding
// errors of a sum behave like independent numbers: each of its at most `terms` roundings errs by at most 2^-24 of a
// partial sum, which `magnitude` bounds, so the total is below lambda*sqrt(terms)*2^-24*magnitude, and lambda = 4 is
// not passed in practice (Higham and Mary, 2019); partial sums only make it smaller.
inline double SumTolerance(int64_t terms, double magnitude) {
  return 4.0 * std::sqrt(static_cast<double>(terms)) * 0x1p-24 * magnitude;
}

// Two numbers that differ by less than e before a rounding to `dtype` differ by at most e plus this after it: half a
// unit in the last place each, and bf16 has 8 significant bits, fp32 24.
inline double RoundingStep(DType dtype, double v) { return std::fabs(v) * (dtype == DType::kBF16 ? 0x1p-7 : 0x1p-23); }

// Rotary angles of `positions`, computed here in double from the fp32 product of position and frequency (spec 3.1).
struct Angles {
  std::vector<float> cos, sin;
  int64_t half = 0;

  Angles(const std::vector<int32_t>& positions, const std::vector<float>& freqs)
      : half(static_cast<int64_t>(freqs.size())) {
    for (int32_t p : positions) {
      for (float f : freqs) {
        const float angle = static_cast<float>(p) * f;
        cos.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
        sin.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
      }
    }
  }
  ops::RopeAngles view() const { return {cos.data(), sin.data(), half}; }
};

inline std::vector<float> RopeFreqs(double base = 10000.0, int64_t rotary = 64) {
  std::vector<float> freqs;
  for (int64_t j = 0; j < rotary / 2; ++j) {
    freqs.push_back(static_cast<float>(std::pow(base, -2.0 * static_cast<double>(j) / static_cast<double>(rotary))));
  }
  return freqs;
}

class OpsTest : public testing::TestWithParam<std::tuple<OpsImplementation, ops::Numerics>> {
 protected:
  OpsTest()
      : ops_(std::get<0>(GetParam()).make(std::get<1>(GetParam()))),
        reference_(ops::MakeReferenceOps(std::get<1>(GetParam()))) {}

  void SetUp() override {
    if (ops_ == nullptr) GTEST_SKIP() << "no device";
    ASSERT_EQ(ops_->numerics(), std::get<1>(GetParam()));
    // Bounds of everything that the suite asks for.
    const ops::WorkspaceSpec spec{.max_tokens = 256,
                                  .hidden = 4096,
                                  .hc_mult = 4,
                                  .max_linear_k = 4096,
                                  .max_linear_n = 4096,
                                  .heads = 16,
                                  .head_dim = 512,
                                  .experts = 64,
                                  .experts_per_token = 8,
                                  .moe_intermediate = 512,
                                  .max_attended_rows = 2048,
                                  .max_compressed_rows = 2048,
                                  .index_heads = 64,
                                  .index_head_dim = 128,
                                  .max_expanded_rows = 320,
                                  .expanded_key = 192,
                                  .expanded_value = 128,
                                  .any_scales = true};
    ASSERT_TRUE(ops_->Reserve(spec).ok());
  }

  // The kinds of activation quantisation that the implementation has.
  std::vector<ops::InputQuant> ActivationQuants() const {
    std::vector<ops::InputQuant> quants = {ops::InputQuant::kFp8};
    if (ops_->Supports(ops::Feature::kAnyActivationScales)) quants.push_back(ops::InputQuant::kFp8AnyScale);
    return quants;
  }
  bool published() const { return ops_->numerics() == ops::Numerics::kPublished; }
  DType act() const { return ops_->act(); }
  float Act(float v) const { return published() ? RoundBF16(v) : v; }
  double ActStep(double v) const { return RoundingStep(act(), v); }

  std::unique_ptr<ops::Ops> ops_;
  std::unique_ptr<ops::Ops> reference_;
};

// Share of elements of two matrices that are equal, for outputs behind a quantiser: there a difference in the last
// place, which correct implementations have in few elements, becomes a whole step of the quantiser.
inline double EqualShare(const Matrix& a, const Matrix& b) {
  int64_t equal = 0;
  for (int64_t r = 0; r < a.rows(); ++r) {
    for (int64_t c = 0; c < a.cols(); ++c) equal += a.At(r, c) == b.At(r, c) ? 1 : 0;
  }
  return static_cast<double>(equal) / static_cast<double>(a.rows() * a.cols());
}

inline std::string OpsTestName(const testing::TestParamInfo<OpsTest::ParamType>& test) {
  return std::get<0>(test.param).name + (std::get<1>(test.param) == ops::Numerics::kF32 ? "_f32" : "_published");
}

}  // namespace hadal::test

// Runs a suite of OpsTest for every implementation in both numerics.
#define HADAL_OPS_TEST_SUITE(suite)                                                                           \
  INSTANTIATE_TEST_SUITE_P(All, suite,                                                                        \
                           testing::Combine(testing::ValuesIn(::hadal::test::OpsImplementations()),           \
                                            testing::Values(ops::Numerics::kPublished, ops::Numerics::kF32)), \
                           ::hadal::test::OpsTestName)

// The same for the implementations that have a feature.
#define HADAL_OPS_TEST_SUITE_WITH(suite, feature)                                                             \
  INSTANTIATE_TEST_SUITE_P(All, suite,                                                                        \
                           testing::Combine(testing::ValuesIn(::hadal::test::OpsImplementations(feature)),    \
                                            testing::Values(ops::Numerics::kPublished, ops::Numerics::kF32)), \
                           ::hadal::test::OpsTestName);                                                       \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite)
