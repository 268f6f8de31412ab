// Greedy text of every case, token by token behind one prefill, and facts about the vectors themselves.
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>

#include "golden/v4/compare.h"

namespace hadal::test {
namespace {

class GoldenGreedy : public GoldenTest {};

TEST_P(GoldenGreedy, Text) {
  const VectorCase& c = GetParam().vectors;
  const Vectors vectors(c.file);
  const std::vector<int32_t> ids = vectors.Ints("input_ids");
  const std::vector<int32_t> want = vectors.Ints("greedy_ids");
  const std::vector<float> want_logits = vectors.Floats("greedy_logits");
  GoldenModel model(c, GetParam().platform, "published", PinImages(c));
  const size_t vocab = model.config().vocab_size;
  const std::vector<int32_t> last = {static_cast<int32_t>(ids.size()) - 1};
  std::vector<float> logits = model.Prefill(ids, last, nullptr);
  double sum = 0;
  int rows = 0;
  int ties = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (i > 0) logits = model.Decode(want[i - 1], static_cast<int32_t>(ids.size() + i - 1));
    const int32_t got = Argmax(logits);
    if (got != want[i]) {
      const double gap = static_cast<double>(logits[got]) - logits[want[i]];
      EXPECT_LE(gap, kMaxLogitGap * c.logit_std) << "step " << i << ": token " << got << " instead of " << want[i];
      std::printf("%s: step %zu: token %d instead of %d, logit gap %.3f (bound %.3f)\n", c.name.c_str(), i, got,
                  want[i], gap, kMaxLogitGap * c.logit_std);
      ++ties;
    }
    // The vectors hold the logits of steps 2 on.
    if (i > 0 && i * vocab <= want_logits.size()) {
      sum += Between(logits, std::span(want_logits).subspan((i - 1) * vocab, vocab)).mean;
      ++rows;
    }
  }
  ASSERT_GT(rows, 0);
  // Consecutive rows see the same flips behind them, so that their mean scatters more than that of a whole prompt.
  EXPECT_LE(sum / rows, 2 * MeanLogitBound(c));
  EXPECT_LE(ties, 1 + static_cast<int>(want.size()) / 20);
  std::printf("%s: %zu greedy tokens, %d near-ties decided the other way, logits differ by %.4f on average\n",
              c.name.c_str(), want.size(), ties, sum / rows);
}

INSTANTIATE_TEST_SUITE_P(Vectors, GoldenGreedy,
                         ::testing::ValuesIn(GoldenParams({kReference, kCpuAmx, kCpuAvx512}, {kCpuAvx2, kCpuBaseline},
                                                          400)),
                         ParamName);

// Our rule of selection applied to the vectors' own scores gives the vectors' own choice: best scores first, equal
// scores keep the lower row.
TEST(GoldenVectors, IndexRowsFollowFromTheScores) {
  int64_t checked = 0;
  for (const VectorCase& c : AllCases()) {
    const Vectors vectors(c.file);
    const std::vector<int32_t> probes = vectors.Ints("probe_positions");
    for (int layer = 0; layer < 64; ++layer) {
      const std::string name = std::to_string(layer);
      if (!vectors.Has("index_scores." + name)) continue;
      const std::vector<float> scores = vectors.Floats("index_scores." + name);
      const std::vector<int32_t> topk = vectors.Ints("index_topk." + name);
      const int64_t entries = vectors.Shape("index_scores." + name)[1];
      const int64_t k = vectors.Shape("index_topk." + name)[1];
      for (size_t p = 0; p < probes.size(); ++p) {
        std::vector<int32_t> rows((probes[p] + 1) / 4);
        std::iota(rows.begin(), rows.end(), 0);
        std::stable_sort(rows.begin(), rows.end(),
                         [&](int32_t a, int32_t b) { return scores[p * entries + a] > scores[p * entries + b]; });
        rows.resize(std::min<size_t>(rows.size(), k));
        std::sort(rows.begin(), rows.end());
        rows.resize(k, -1);
        EXPECT_EQ(rows, std::vector<int32_t>(topk.begin() + p * k, topk.begin() + (p + 1) * k))
            << c.name << ", layer " << layer << ", position " << probes[p];
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 0);
}

TEST(GoldenVectors, WhatIsRead) {
  int64_t images = 0;
  for (const VectorCase& c : AllCases()) images += c.images > 0 ? 1 : 0;
  EXPECT_GE(AllCases().size() - images, 6u);
  EXPECT_GE(images, 3);
  std::printf("%zu cases, %lld of them with images\n", AllCases().size(), static_cast<long long>(images));
}

}  // namespace
}  // namespace hadal::test
