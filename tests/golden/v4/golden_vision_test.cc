// The tower and aligner against the embeddings of the vectors' images.
#include <gtest/gtest.h>

#include <cstdio>

#include "golden/v4/compare.h"

namespace hadal::test {
namespace {

class GoldenVision : public GoldenTest {};

// Each of about eight roundings a block to bf16, 2^-9 of a value at most and 2^-10.8 of it as a root mean square, moves
// the residual; the yardstick is again our own exact arithmetic: two independent roundings differ from each other by
// sqrt(2) of what one differs from the exact values.
TEST_P(GoldenVision, Embeddings) {
  const VectorCase& c = GetParam().vectors;
  const Vectors vectors(c.file);
  GoldenModel model(c, GetParam().platform, "published");
  GoldenModel exact_model(c, GetParam().platform, "f32");
  for (int64_t q = 0; q < c.images; ++q) {
    const std::vector<float> want = vectors.Floats("image." + std::to_string(q) + ".aligner");
    const Distance ours = Between(model.EncodeImage(static_cast<int>(q)), want);
    const Distance rounding = Between(exact_model.EncodeImage(static_cast<int>(q)), want);
    EXPECT_LE(ours.rms, 1.4142 * rounding.rms);
    EXPECT_LE(rounding.rms, 0.02 * rounding.magnitude);
    std::printf("%s image %lld: differs by %.5f of its size, exact arithmetic by %.5f; equal in %.3f\n", c.name.c_str(),
                static_cast<long long>(q), ours.rms / ours.magnitude, rounding.rms / rounding.magnitude, ours.equal);
  }
}

std::vector<GoldenParam> WithImages() {
  std::vector<GoldenParam> params;
  for (const GoldenParam& p : GoldenParams({kReference, kCpuAmx, kCpuAvx512}, {kCpuAvx2, kCpuBaseline}, 400)) {
    if (p.vectors.images > 0) params.push_back(p);
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(Vectors, GoldenVision, ::testing::ValuesIn(WithImages()), ParamName);

}  // namespace
}  // namespace hadal::test
