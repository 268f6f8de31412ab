// The f32.* tensors (no activation quantisation, fp32 throughout) through every platform's f32 numerics: this proves
// the logic of the forward pass, since nothing but the order of sums can differ.
#include <gtest/gtest.h>

#include <cstdio>

#include "golden/v4/compare.h"

namespace hadal::test {
namespace {

// A sum of k terms in another order differs by about sqrt(k)*2^-24 of its size, and the differences of about ten
// products a layer add up like a random walk: sqrt(1024) * 2^-24 * sqrt(10 * 5 layers) = 1.3e-5, of values up to 15.
constexpr double kTolerance = 2e-4;

class GoldenF32 : public GoldenTest {
 protected:
  GoldenF32() : case_(GetParam().vectors), vectors_(case_.file) {
    ids_ = vectors_.Ints("input_ids");
    rows_ = vectors_.Ints("f32.logit_positions");
    probes_ = vectors_.Ints("probe_positions");
  }

  const VectorCase& case_;
  Vectors vectors_;
  std::vector<int32_t> ids_, rows_, probes_;
};

TEST_P(GoldenF32, StreamsChoicesAndLogits) {
  GoldenModel model(case_, GetParam().platform, "f32");
  Recorder record(model.checkpoint(), probes_, nullptr, false);
  const std::vector<float> logits = model.Prefill(ids_, rows_, &record);

  // All hc streams start as the embedding.
  const std::vector<float> embed = vectors_.Floats("f32.embed");
  const int64_t d = model.config().hidden_size;
  for (size_t p = 0; p < probes_.size(); ++p) {
    for (int64_t i = 0; i < model.config().hc_mult * d; ++i) {
      // Embeddings of images come out of the tower, in sums of another order.
      ASSERT_NEAR(record.streams(-1)[p * model.config().hc_mult * d + i], embed[p * d + i % d],
                  model.IsImage(ids_[probes_[p]]) ? kTolerance : 0);
    }
  }
  double worst = 0;
  for (int i = 0; i < model.config().num_hidden_layers; ++i) {
    const Distance residual = Between(record.streams(i), vectors_.Floats("f32.residual." + std::to_string(i)));
    EXPECT_LE(residual.max, kTolerance) << "residual streams after layer " << i;
    worst = std::max(worst, residual.max);
    if (model.config().compress_ratios[i] != 4) continue;
    EXPECT_EQ(record.index_topk(i), vectors_.Ints("f32.index_topk." + std::to_string(i))) << "layer " << i;
  }
  const Distance difference = Between(logits, vectors_.Floats("f32.logits"));
  EXPECT_LE(difference.max, kTolerance);
  std::printf("%s: residual streams within %.2g, logits within %.2g\n", case_.name.c_str(), worst, difference.max);
}

TEST_P(GoldenF32, GreedyText) {
  GoldenModel model(case_, GetParam().platform, "f32");
  const std::vector<int32_t> want = vectors_.Ints("f32.greedy_ids");
  const std::vector<int32_t> last = {static_cast<int32_t>(ids_.size()) - 1};
  std::vector<float> logits = model.Prefill(ids_, last, nullptr);
  std::vector<int32_t> got;
  for (size_t i = 0; i < want.size(); ++i) {
    if (i > 0) logits = model.Decode(got.back(), static_cast<int32_t>(ids_.size() + i - 1));
    got.push_back(Argmax(logits));
    if (got.back() != want[i]) break;
  }
  EXPECT_EQ(got, want);
}

// For the cases that have the MTP block's tensors.
class GoldenF32Draft : public GoldenF32 {};
TEST_P(GoldenF32Draft, Logits) {
  GoldenModel model(case_, GetParam().platform, "f32");
  model.Prefill(ids_, {}, nullptr);
  const std::vector<float> logits = model.Draft(NextIds(ids_, vectors_.Ints("f32.greedy_ids").front()), rows_, nullptr);
  const Distance difference = Between(logits, vectors_.Floats("f32.mtp_logits"));
  EXPECT_LE(difference.max, kTolerance);
  std::printf("%s: draft logits within %.2g\n", case_.name.c_str(), difference.max);
}

std::vector<GoldenParam> Params(bool draft_only) {
  std::vector<GoldenParam> params = GoldenParams({kReference, kCpuAvx512}, {kCpuAvx2, kCpuBaseline}, 400);
  if (draft_only) {
    std::erase_if(params, [](const GoldenParam& p) { return !Vectors(p.vectors.file).Has("f32.mtp_logits"); });
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(Vectors, GoldenF32, ::testing::ValuesIn(Params(false)), ParamName);
INSTANTIATE_TEST_SUITE_P(Vectors, GoldenF32Draft, ::testing::ValuesIn(Params(true)), ParamName);

}  // namespace
}  // namespace hadal::test
