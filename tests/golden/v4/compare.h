// Distances between what ran and what the vectors say, and the parameters of the golden tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "golden/v4/golden_run.h"
#include "support/test_device.h"

namespace hadal::test {

struct Distance {
  double rms = 0;
  double mean = 0;  // of the absolute differences
  double max = 0;
  double equal = 0;      // share of equal values
  double magnitude = 0;  // rms of the expected values
};

inline Distance Between(std::span<const float> got, std::span<const float> want) {
  EXPECT_EQ(got.size(), want.size());
  EXPECT_FALSE(want.empty());
  Distance d;
  const size_t n = std::min(got.size(), want.size());
  for (size_t i = 0; i < n; ++i) {
    // A NaN on either side must not vanish in a maximum.
    const double diff = std::isfinite(got[i]) ? std::fabs(static_cast<double>(got[i]) - want[i]) : 1e30;
    d.rms += diff * diff;
    d.mean += diff;
    d.max = std::max(d.max, diff);
    d.equal += diff == 0 ? 1 : 0;
    d.magnitude += static_cast<double>(want[i]) * want[i];
  }
  const double count = std::max<double>(1, static_cast<double>(n));
  d.rms = std::sqrt(d.rms / count);
  d.mean /= count;
  d.equal /= count;
  d.magnitude = std::sqrt(d.magnitude / count);
  return d;
}

// Mean difference of logits as they run, nothing pinned: three times what the reference shows against itself, and at
// least the 0.2 that the README of the vectors names for logits of standard deviation 3.
inline double MeanLogitBound(const VectorCase& c) { return std::max(3 * c.noise_mean, 0.2 / 3 * c.logit_std); }

// A different best token is a near-tie when our logits prefer it by no more than rounding explains: 4 sigma of the
// difference of two logits, each of which differs by 0.2/3 of the standard deviation on average, 1.25 times that as a
// root mean square.
constexpr double kMaxLogitGap = 4 * 1.4142 * 1.25 * 0.2 / 3;

// The token that follows each token of the prompt: what the MTP block takes beside the hidden state.
inline std::vector<int32_t> NextIds(const std::vector<int32_t>& ids, int32_t first_generated) {
  std::vector<int32_t> next(ids.begin() + 1, ids.end());
  next.push_back(first_generated);
  return next;
}

inline int32_t Argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The untrained model's large weights multiply the roundings of the tower; its text part is compared behind the
// vectors' embeddings, the tower by golden_vision_test.
inline bool PinImages(const VectorCase& c) { return c.set == "random-v4"; }

// One test: a case on a platform.
struct GoldenParam {
  Platform platform;
  VectorCase vectors;
};
inline void PrintTo(const GoldenParam& p, std::ostream* os) {
  *os << p.vectors.set << "/" << p.vectors.name << " on " << p.platform.name;
}
inline std::string ParamName(const ::testing::TestParamInfo<GoldenParam>& info) {
  std::string name = info.param.platform.name + "_" + info.param.vectors.name;
  if (info.param.vectors.full) name += "_full";
  return name;
}

// Every case on `all`; the committed cases of at most `few_tokens` tokens on `few`.
inline std::vector<GoldenParam> GoldenParams(const std::vector<Platform>& all, const std::vector<Platform>& few,
                                             int64_t few_tokens) {
  std::vector<GoldenParam> params;
  if (const std::string device = TestDevice(); !device.empty()) {
    for (const VectorCase& c : AllCases()) params.push_back({{device, device, "auto"}, c});
    return params;
  }
  for (const VectorCase& c : AllCases()) {
    for (const Platform& p : all) params.push_back({p, c});
    if (c.full || c.tokens > few_tokens) continue;
    for (const Platform& p : few) params.push_back({p, c});
#if HADAL_TEST_EMULATED_GPU
    constexpr int64_t kEmulatedTokens = 40;  // an emulated step takes seconds
    if (c.tokens > kEmulatedTokens) continue;
    params.push_back({{"gpu_wave32", "gpu_wave32", "auto"}, c});
    if (c.set == "random-v4") params.push_back({{"gpu_wave64", "gpu_wave64", "auto"}, c});
#endif
  }
  return params;
}

class GoldenTest : public ::testing::TestWithParam<GoldenParam> {
 protected:
  void SetUp() override {
    const std::string absent = WhyAbsent(GetParam().platform);
    if (!absent.empty()) GTEST_SKIP() << absent;
  }
};

}  // namespace hadal::test
