// The same request gives the same logits to the bit, however it is served: in one prefill, in chunks, token by token,
// with other sequences in the batch, in a slot that another request has used, with one thread or two, observed or not.
#include <gtest/gtest.h>

#include <cmath>

#include "golden/v4/golden_run.h"
#include "invariance/v4/served_model.h"
#include "support/paths.h"
#include "support/test_device.h"

namespace hadal::test {
namespace {

constexpr int64_t kLengths[] = {1,   3,   4,   5,   127,  128,  129,  130,  255,  256,
                                257, 511, 512, 513, 2047, 2048, 2049, 2050, 2051, 2052};
constexpr int64_t kChunks[] = {7, 64, 128, 512, kMaxLength};  // the last is one prefill

int64_t LongestOf(Scope scope) {
  switch (scope) {
    case Scope::kFull:
      return kMaxLength;
    case Scope::kMedium:
      return 513;
    case Scope::kShort:
      return 130;
  }
  return 0;
}

class InvarianceV4 : public ::testing::TestWithParam<ServedParam> {
 protected:
  void SetUp() override {
    const std::string absent = WhyAbsent({param_.name, param_.device, param_.isa});
    if (!absent.empty()) GTEST_SKIP() << absent;
  }

  void ExpectSameBits(const Logits& got, const Logits& want, int64_t rows, const std::string& what) {
    ASSERT_EQ(static_cast<int64_t>(got.size()), rows * vocab_) << what;
    ASSERT_GE(static_cast<int64_t>(want.size()), rows * vocab_) << what;
    EXPECT_EQ(FirstDifference(got, want, vocab_), -1) << what;
  }

  // One thread where threads are not the subject: a tiny model's steps are too short to be worth sharing out.
  static constexpr int kOne = 1;
  static constexpr int kTwo = 2;

  const ServedParam& param_ = GetParam();
  const int64_t longest_ = LongestOf(param_.scope);
  const int64_t vocab_ = 1280;
};

// A prefix of a sequence has the logits of the whole sequence's first rows, so that one run token by token is what all
// lengths compare with.
TEST_P(InvarianceV4, LengthsAndChunks) {
  ServedModel model(param_, kOne, 1);
  ASSERT_EQ(model.vocab(), vocab_);
  const std::vector<int32_t> ids = PseudoRandomIds(longest_, 1);
  const Logits want = model.Run(ids, 1);
  for (const float v : want) ASSERT_TRUE(std::isfinite(v));
  for (const int64_t length : kLengths) {
    if (length > longest_) continue;
    const std::vector<int32_t> prompt(ids.begin(), ids.begin() + length);
    for (const int64_t chunk : kChunks) {
      if (chunk >= length && chunk != kMaxLength) continue;  // is the same as one prefill
      const std::string what = std::to_string(length) + " tokens, " + std::to_string(chunk) + " a step";
      ExpectSameBits(model.Run(prompt, chunk), want, length, what);
    }
  }
}

TEST_P(InvarianceV4, DecodingBehindAnyPrefill) {
  ServedModel model(param_, kOne, 1);
  const std::vector<int32_t> ids = PseudoRandomIds(150, 2);
  const Logits want = model.Run(ids, 150);
  for (const int64_t prefill : {1, 3, 100, 127, 128, 129}) {
    Logits got = model.Run({ids.begin(), ids.begin() + prefill}, prefill);
    for (auto p = static_cast<int32_t>(prefill); p < 150; ++p) {
      const Logits row = model.Step({{0, p, ids[p]}});
      got.insert(got.end(), row.begin(), row.end());
    }
    ExpectSameBits(got, want, 150, "decoding behind " + std::to_string(prefill));
  }
}

// For the platforms that have threads.
class InvarianceV4Threads : public InvarianceV4 {};
TEST_P(InvarianceV4Threads, SameBits) {
  const int64_t length = std::min<int64_t>(longest_, 257);
  const std::vector<int32_t> ids = PseudoRandomIds(length, 3);
  ServedModel one(param_, 1, 1);
  const Logits want = one.Run(ids, length);
  // Also more threads than this machine may have cores; few steps, which is what threads cost.
  for (const int threads : {2, 3}) {
    ServedModel model(param_, threads, 1);
    for (const int64_t chunk : {length, int64_t{64}, int64_t{7}}) {
      ExpectSameBits(model.Run(ids, chunk), want, length,
                     std::to_string(threads) + " threads, " + std::to_string(chunk) + " a step");
    }
    const std::vector<int32_t> start(ids.begin(), ids.begin() + 20);
    ExpectSameBits(model.Run(start, 1), want, 20, std::to_string(threads) + " threads, token by token");
  }
}

// Four sequences in one model; every step takes some rows of each, shuffled together: whole prompts, chunks and single
// decode rows side by side. Draft steps ride along.
TEST_P(InvarianceV4, AnyCompanyInTheBatch) {
  const std::vector<int64_t> lengths = {std::min<int64_t>(longest_, 513), 131, 64, 5};
  std::vector<std::vector<int32_t>> ids;
  std::vector<Logits> want(4), want_draft(4);
  ServedModel alone(param_, kOne, 1);
  for (int s = 0; s < 4; ++s) {
    ids.push_back(PseudoRandomIds(lengths[s], 10 + s));
    want[s] = alone.Run(ids[s], lengths[s], 0, &want_draft[s]);
  }
  ServedModel model(param_, kTwo, 4);
  uint32_t state = 7;
  const auto random = [&](uint32_t below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
  };
  std::vector<int64_t> done(4, 0);
  std::vector<Logits> got(4), got_draft(4);
  int steps = 0;
  while (done != lengths) {
    std::vector<int64_t> left(4);
    for (int s = 0; s < 4; ++s) {
      constexpr int64_t kSizes[] = {0, 1, 1, 2, 7, 33, 128};
      left[s] = std::min(kSizes[random(7)], lengths[s] - done[s]);
    }
    std::vector<Row> rows;
    while (left[0] + left[1] + left[2] + left[3] > 0) {
      const auto s = static_cast<int32_t>(random(4));
      if (left[s] == 0) continue;
      const int64_t p = done[s]++;
      --left[s];
      rows.push_back({s, static_cast<int32_t>(p), ids[s][p], p + 1 < lengths[s] ? ids[s][p + 1] : 3});
    }
    if (rows.empty()) continue;
    ++steps;
    const Logits logits = model.Step(rows);
    const Logits draft = model.Draft(rows);
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto at = static_cast<int64_t>(r) * vocab_;
      const int32_t s = rows[r].seq;
      got[s].insert(got[s].end(), logits.begin() + at, logits.begin() + at + vocab_);
      got_draft[s].insert(got_draft[s].end(), draft.begin() + at, draft.begin() + at + vocab_);
    }
  }
  EXPECT_GT(steps, 5);
  for (int s = 0; s < 4; ++s) {
    ExpectSameBits(got[s], want[s], lengths[s], "sequence " + std::to_string(s));
    ExpectSameBits(got_draft[s], want_draft[s], lengths[s], "drafts of sequence " + std::to_string(s));
  }
}

TEST_P(InvarianceV4, SlotUsedBefore) {
  std::vector<int32_t> old = PseudoRandomIds(longest_, 20);  // a long request first, shorter ones later
  ServedModel used(param_, kOne, 2);
  for (const int64_t length : {130, 1, 3, 4, 5, 127, 128}) {
    const std::vector<int32_t> ids = PseudoRandomIds(length, 21);
    used.Run(old, 512, 1);
    old.resize(std::min<size_t>(old.size(), 150));
    Logits got_draft, want_draft;
    const Logits got = used.Run(ids, length, 1, &got_draft);
    ServedModel fresh(param_, kOne, 2);
    const Logits want = fresh.Run(ids, length, 0, &want_draft);
    ExpectSameBits(got, want, length, std::to_string(length) + " tokens");
    ExpectSameBits(got_draft, want_draft, length, std::to_string(length) + " tokens, drafts");
  }
}

TEST_P(InvarianceV4, LastTokenDoesNotReachBack) {
  ServedModel model(param_, kOne, 1);
  for (const int64_t length : {4, 5, 128, 129, 256, 512, 2048}) {
    if (length > longest_) continue;
    std::vector<int32_t> ids = PseudoRandomIds(length, 30);
    const Logits before = model.Run(ids, length);
    ids.back() = ids.back() == 100 ? 101 : 100;
    const Logits after = model.Run(ids, length);
    EXPECT_EQ(FirstDifference(before, after, vocab_), length - 1) << length << " tokens";
  }
}

TEST_P(InvarianceV4, Drafts) {
  ServedModel model(param_, kOne, 1);
  for (const int64_t length : {1, 5, 130, 257, 513}) {
    if (length > longest_) continue;
    const std::vector<int32_t> ids = PseudoRandomIds(length, 40);
    Logits want;
    model.Run(ids, length, 0, &want);
    for (const int64_t chunk : {1, 7, 64, 128, 512}) {
      if (chunk >= length) continue;
      Logits got;
      model.Run(ids, chunk, 0, &got);
      ExpectSameBits(got, want, length, std::to_string(length) + " tokens, " + std::to_string(chunk) + " a step");
    }
  }
}

TEST_P(InvarianceV4, LookingDoesNotChangeAnything) {
  ServedModel model(param_, kOne, 1);
  const std::vector<int32_t> ids = PseudoRandomIds(130, 50);
  std::vector<Row> rows;
  for (int32_t p = 0; p < 130; ++p) rows.push_back({0, p, ids[p]});
  models::StepObserver observer;
  const Logits observed = model.Step(rows, &observer);
  ExpectSameBits(observed, model.Step(rows), 130, "observed");
}

std::vector<ServedParam> Params(bool threads_only = false) {
  std::vector<ServedParam> params;
  const std::pair<const char*, std::string> models[] = {{"tiny", BundledModel()},
                                                        {"random", DataPath("models/random-v4")}};
  for (const auto& [name, dir] : models) {
    const std::string prefix(name);
    if (const std::string device = TestDevice(); !device.empty()) {
      params.push_back({prefix + "_" + device, dir, device, "auto", Scope::kFull});
      continue;
    }
    params.push_back({prefix + "_cpu_auto", dir, "cpu", "auto", Scope::kFull});
    params.push_back({prefix + "_cpu_avx512", dir, "cpu", "avx512", Scope::kMedium});
    params.push_back({prefix + "_cpu_avx2", dir, "cpu", "avx2", Scope::kMedium});
    params.push_back({prefix + "_cpu_baseline", dir, "cpu", "baseline", Scope::kShort});
    if (!threads_only) params.push_back({prefix + "_reference", dir, "reference", "auto", Scope::kShort});
  }
  return params;
}

std::string ParamName(const ::testing::TestParamInfo<ServedParam>& served) { return served.param.name; }

INSTANTIATE_TEST_SUITE_P(Served, InvarianceV4, ::testing::ValuesIn(Params()), ParamName);
INSTANTIATE_TEST_SUITE_P(Served, InvarianceV4Threads, ::testing::ValuesIn(Params(true)), ParamName);

}  // namespace
}  // namespace hadal::test
