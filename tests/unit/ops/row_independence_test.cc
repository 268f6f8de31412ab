// Every operator gives a row the same bits alone, in a batch of all and in any mix and order of sequences (DESIGN:
// promise 3; ops.h: row independence).
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <vector>

#include "support/ops_fixture.h"

namespace hadal {
namespace {

using test::Angles;
using test::Batch;
using test::Matrix;
using test::Pool;
using test::Random;
using test::Weight;

using Row = std::vector<uint32_t>;  // the bits of what an operator wrote for one row
// Runs the operator on the named rows of the problem and returns what it wrote for each of them.
using RunRows = std::function<std::vector<Row>(const std::vector<int64_t>&)>;
// A problem in its first state; always with the same data.
using MakeProblem = std::function<RunRows()>;

Row Bits(const std::vector<float>& values) {
  Row bits;
  for (float v : values) bits.push_back(std::bit_cast<uint32_t>(v));
  return bits;
}

std::vector<Row> RowsOf(const Matrix& m) {
  std::vector<Row> rows;
  for (int64_t r = 0; r < m.rows(); ++r) rows.push_back(Bits(m.Row(r)));
  return rows;
}

// Rows of an array [rows, cols].
template <typename T>
void AppendColumns(const std::vector<T>& values, int64_t cols, std::vector<Row>* rows) {
  for (size_t r = 0; r < rows->size(); ++r) {
    for (int64_t c = 0; c < cols; ++c) (*rows)[r].push_back(std::bit_cast<uint32_t>(values[r * cols + c]));
  }
}

// Three sequences: a long one in its middle, one that begins, one across the border of a window of 128.
Batch AllRows() {
  Batch batch;
  for (int32_t i = 0; i < 20; ++i) batch.Add(0, 100 + i, 3 * i);
  for (int32_t i = 0; i < 10; ++i) batch.Add(1, i, 100 + i);
  for (int32_t i = 0; i < 9; ++i) batch.Add(2, 250 + i, 7 * i);
  return batch;
}

constexpr int64_t kSequences = 3;
constexpr int64_t kLength = 288;

// The rows of all sequences merged at random; a sequence stays in position order.
std::vector<int64_t> Interleave(const Batch& batch, Random* random) {
  std::vector<std::vector<int64_t>> queues(kSequences);
  for (int64_t i = batch.size() - 1; i >= 0; --i) queues[batch.seqs[i]].push_back(i);
  std::vector<int64_t> order;
  while (static_cast<int64_t>(order.size()) < batch.size()) {
    std::vector<int64_t>& queue = queues[random->Index(kSequences)];
    if (queue.empty()) continue;
    order.push_back(queue.back());
    queue.pop_back();
  }
  return order;
}

class RowIndependenceTest : public test::OpsTest {
 protected:
  void Check(const MakeProblem& make) {
    const Batch batch = AllRows();
    std::vector<int64_t> in_order(static_cast<size_t>(batch.size()));
    std::iota(in_order.begin(), in_order.end(), 0);
    const std::vector<Row> expected = make()(in_order);
    ASSERT_EQ(expected.size(), in_order.size());

    Random random(81);
    const auto check = [&](const std::vector<int64_t>& order, size_t chunk) {
      const RunRows run = make();
      for (size_t first = 0; first < order.size(); first += chunk) {
        const std::vector<int64_t> rows(order.begin() + first, order.begin() + std::min(order.size(), first + chunk));
        const std::vector<Row> actual = run(rows);
        for (size_t i = 0; i < rows.size(); ++i)
          ASSERT_EQ(actual[i], expected[rows[i]]) << "row " << rows[i] << " in a step of " << rows.size();
      }
    };
    for (size_t chunk : {1, 2, 7, 16, 17}) check(in_order, chunk);
    for (size_t chunk : {3, 39}) {
      for (int i = 0; i < 2; ++i) check(Interleave(batch, &random), chunk);
    }
  }
};
HADAL_OPS_TEST_SUITE(RowIndependenceTest);
class AnyScaleRowIndependenceTest : public RowIndependenceTest {};
HADAL_OPS_TEST_SUITE_WITH(AnyScaleRowIndependenceTest, ops::Feature::kAnyActivationScales);

TEST_P(RowIndependenceTest, Linear) {
  for (const auto& [k, n] : {std::pair<int64_t, int64_t>{256, 130}, {4096, 24}}) {
    Random random(82);
    const Matrix x = Matrix::RandomNormal(&random, act(), AllRows().size(), k);
    const Weight weights[] = {Weight::RandomFp8(&random, n, k), Weight::RandomFp4(&random, n, k),
                              Weight::RandomOf(&random, DType::kBF16, n, k),
                              Weight::RandomOf(&random, DType::kF32, n, k)};
    for (const Weight& weight : weights) {
      Check([&, n = n]() -> RunRows {
        return [&, n](const std::vector<int64_t>& rows) {
          Matrix in = x.Take(rows), out(act(), in.rows(), n), wide(DType::kF32, in.rows(), n);
          const ops::LinearWeight view = weight.view();
          const ops::LinearTarget targets[] = {{&view, out.view(), ops::InputQuant::kFp8},
                                               {&view, wide.view(), ops::InputQuant::kNone}};
          ops_->Linear(in.view(), targets);
          EXPECT_TRUE(ops_->Synchronize().ok());
          std::vector<Row> result = RowsOf(out), more = RowsOf(wide);
          for (size_t i = 0; i < result.size(); ++i) result[i].insert(result[i].end(), more[i].begin(), more[i].end());
          return result;
        };
      });
    }
  }
}

// Few outputs and many rows: how a GPU splits such a product depends on both.
TEST_P(RowIndependenceTest, LinearOfManyRows) {
  constexpr int64_t kMost = 140, kOutputs = 40, kInputs = 384;
  Random random(97);
  const Matrix x = Matrix::RandomNormal(&random, act(), kMost, kInputs);
  const Weight weights[] = {Weight::RandomFp8(&random, kOutputs, kInputs),
                            Weight::RandomFp4(&random, kOutputs, kInputs),
                            Weight::RandomOf(&random, DType::kBF16, kOutputs, kInputs)};
  for (const Weight& weight : weights) {
    const auto run = [&](int64_t count) {
      std::vector<int64_t> rows(static_cast<size_t>(count));
      std::iota(rows.begin(), rows.end(), 0);
      Matrix in = x.Take(rows), out(DType::kF32, count, kOutputs);
      const ops::LinearWeight view = weight.view();
      const ops::LinearTarget target{&view, out.view(), ops::InputQuant::kFp8};
      ops_->Linear(in.view(), {&target, 1});
      EXPECT_TRUE(ops_->Synchronize().ok());
      return RowsOf(out);
    };
    const std::vector<Row> expected = run(kMost);
    for (const int64_t count : {1, 16, 33, 64, 65, 128}) {
      const std::vector<Row> actual = run(count);
      for (int64_t r = 0; r < count; ++r) ASSERT_EQ(actual[r], expected[r]) << "row " << r << " of " << count;
    }
  }
}

TEST_P(AnyScaleRowIndependenceTest, LinearUnderAnyScales) {
  Random random(96);
  const Matrix x = Matrix::RandomNormal(&random, act(), AllRows().size(), 640);
  for (const Weight& weight : {Weight::RandomFp8(&random, 130, 640), Weight::RandomFp4(&random, 130, 640)}) {
    Check([&]() -> RunRows {
      return [&](const std::vector<int64_t>& rows) {
        Matrix in = x.Take(rows), out(DType::kF32, in.rows(), 130);
        const ops::LinearWeight view = weight.view();
        const ops::LinearTarget target{&view, out.view(), ops::InputQuant::kFp8AnyScale};
        ops_->Linear(in.view(), {&target, 1});
        EXPECT_TRUE(ops_->Synchronize().ok());
        return RowsOf(out);
      };
    });
  }
}

TEST_P(RowIndependenceTest, LinearWithBias) {
  for (const int64_t k : {588, 1024}) {
    Random random(95);
    const Matrix x = Matrix::RandomNormal(&random, act(), AllRows().size(), k);
    const Weight weight = Weight::RandomOf(&random, DType::kBF16, 130, k);
    const Matrix bias = Matrix::RandomNormal(&random, DType::kBF16, 1, 130);
    Check([&]() -> RunRows {
      return [&](const std::vector<int64_t>& rows) {
        Matrix in = x.Take(rows), out(act(), in.rows(), 130);
        const ops::LinearWeight view = weight.view();
        const ops::LinearTarget target{&view, out.view(), ops::InputQuant::kNone, bias.vector()};
        ops_->Linear(in.view(), {&target, 1});
        EXPECT_TRUE(ops_->Synchronize().ok());
        return RowsOf(out);
      };
    });
  }
}

TEST_P(RowIndependenceTest, GroupedLinear) {
  Random random(83);
  const Matrix x = Matrix::RandomNormal(&random, act(), AllRows().size(), 4 * 512);
  const Weight weights[] = {Weight::RandomFp8(&random, 4 * 72, 512), Weight::RandomFp4(&random, 4 * 72, 512)};
  for (const Weight& weight : weights) {
    Check([&]() -> RunRows {
      return [&](const std::vector<int64_t>& rows) {
        Matrix in = x.Take(rows), out(act(), in.rows(), 4 * 72);
        const ops::LinearWeight view = weight.view();
        ops_->GroupedLinear({in.view(), &view, 4, out.view()});
        EXPECT_TRUE(ops_->Synchronize().ok());
        return RowsOf(out);
      };
    });
  }
}

TEST_P(RowIndependenceTest, EmbedAndMtpCombine) {
  Random random(84);
  const Weight table = Weight::RandomOf(&random, DType::kBF16, 128, 128);
  const Matrix h = Matrix::RandomNormal(&random, act(), AllRows().size() * 4, 128);
  Check([&]() -> RunRows {
    return [&](const std::vector<int64_t>& rows) {
      const Batch batch = AllRows().Take(rows);
      Matrix e(act(), batch.size(), 128), streams(act(), batch.size(), 512);
      std::vector<int64_t> stream_rows;
      for (int64_t r : rows) {
        for (int64_t s = 0; s < 4; ++s) stream_rows.push_back(4 * r + s);
      }
      Matrix h_rows = h.Take(stream_rows);
      ops_->Embed(batch.view(), table.view(), 1, e.view());
      ops_->MtpCombine({e.view(), h_rows.view(), 4, streams.view()});
      EXPECT_TRUE(ops_->Synchronize().ok());
      return RowsOf(streams);
    };
  });
}

TEST_P(RowIndependenceTest, RmsNorm) {
  Random random(85);
  const Matrix x = Matrix::RandomNormal(&random, act(), AllRows().size(), 576);
  const Matrix weight = Matrix::RandomNormal(&random, DType::kBF16, 1, 576);
  Check([&]() -> RunRows {
    return [&](const std::vector<int64_t>& rows) {
      Matrix in = x.Take(rows), out(act(), in.rows(), 576);
      ops_->RmsNorm(in.view(), weight.vector(), 1e-6f, out.view());
      EXPECT_TRUE(ops_->Synchronize().ok());
      return RowsOf(out);
    };
  });
}

TEST_P(RowIndependenceTest, HyperConnections) {
  Random random(86);
  const int64_t d = 256, hc = 4;
  const Matrix x = Matrix::RandomNormal(&random, act(), AllRows().size(), hc * d);
  const Matrix norm = Matrix::RandomNormal(&random, DType::kBF16, 1, d);
  const std::vector<float> fn = test::RandomFloats(&random, 24 * hc * d, 0.03f);
  const std::vector<float> base = test::RandomFloats(&random, 24);
  const std::vector<float> scales = {0.5f, 1, 2};
  const float* const scale = scales.data();
  Check([&]() -> RunRows {
    return [&](const std::vector<int64_t>& rows) {
      Matrix streams = x.Take(rows), out(act(), streams.rows(), d), head(act(), streams.rows(), d);
      std::vector<float> post(rows.size() * hc), comb(rows.size() * hc * hc);
      std::vector<int32_t> index(rows.size());
      std::iota(index.begin(), index.end(), 0);
      const ops::HcWeights weights{fn.data(), scale, base.data()};
      ops_->HcPre({streams.view(), hc, weights, 20, 1e-6f, norm.vector(), 1e-6f, out.view(), post.data(), comb.data()});
      ops_->HcPost({out.view(), streams.view(), hc, post.data(), comb.data()});
      ops_->HcHead({streams.view(), hc, weights, 1e-6f, norm.vector(), 1e-6f, head.view(), index});
      EXPECT_TRUE(ops_->Synchronize().ok());
      std::vector<Row> result = RowsOf(out);
      const std::vector<Row> after = RowsOf(streams), heads = RowsOf(head);
      for (size_t i = 0; i < result.size(); ++i) {
        result[i].insert(result[i].end(), after[i].begin(), after[i].end());
        result[i].insert(result[i].end(), heads[i].begin(), heads[i].end());
      }
      AppendColumns(post, hc, &result);
      AppendColumns(comb, hc * hc, &result);
      return result;
    };
  });
}

TEST_P(RowIndependenceTest, RopeAnglesAndQueries) {
  Random random(87);
  const int64_t heads = 3;
  const std::vector<float> freqs = test::RopeFreqs();
  const Matrix q = Matrix::RandomNormal(&random, act(), AllRows().size(), heads * 512);
  const Matrix qi = Matrix::RandomNormal(&random, act(), AllRows().size(), heads * 128);
  Check([&]() -> RunRows {
    return [&](const std::vector<int64_t>& rows) {
      const Batch batch = AllRows().Take(rows);
      std::vector<float> cos(rows.size() * freqs.size()), sin(cos.size());
      ops_->ComputeRopeAngles(batch.view(), freqs, cos.data(), sin.data());
      const ops::RopeAngles angles{cos.data(), sin.data(), static_cast<int64_t>(freqs.size())};
      Matrix out = q.Take(rows), out_i = qi.Take(rows);
      ops_->QNormRope({out.view(), heads, 512, true, 1e-6f, angles});
      ops_->IndexerQuery({out_i.view(), heads, 128, angles});
      EXPECT_TRUE(ops_->Synchronize().ok());
      std::vector<Row> result = RowsOf(out);
      const std::vector<Row> more = RowsOf(out_i);
      for (size_t i = 0; i < result.size(); ++i) result[i].insert(result[i].end(), more[i].begin(), more[i].end());
      AppendColumns(cos, static_cast<int64_t>(freqs.size()), &result);
      AppendColumns(sin, static_cast<int64_t>(freqs.size()), &result);
      return result;
    };
  });
}

TEST_P(RowIndependenceTest, KvStore) {
  Random random(88);
  const Matrix kv = Matrix::RandomNormal(&random, act(), AllRows().size(), 512);
  const Matrix norm = Matrix::RandomNormal(&random, DType::kBF16, 1, 512);
  Check([&]() -> RunRows {
    Random layout(89);
    const auto pool = std::make_shared<Pool>(&layout, act(), 512, kSequences, kLength, 16);
    return [&, pool](const std::vector<int64_t>& rows) {
      const Batch batch = AllRows().Take(rows);
      const Angles angles(batch.positions, test::RopeFreqs());
      Matrix in = kv.Take(rows);
      ops_->KvNormRopeStore({in.view(), norm.vector(), 1e-6f, angles.view(), batch.view(), pool->view()});
      EXPECT_TRUE(ops_->Synchronize().ok());
      std::vector<Row> result;
      for (int64_t t = 0; t < batch.size(); ++t) result.push_back(Bits(pool->Row(batch.seqs[t], batch.positions[t])));
      return result;
    };
  });
}

TEST_P(RowIndependenceTest, Compress) {
  for (const auto& [ratio, width, keys] :
       {std::tuple<int32_t, int64_t, bool>{4, 512, false}, {4, 128, true}, {128, 512, false}}) {
    Random random(90);
    const int64_t channels = ratio == 4 ? 2 * width : width;
    const Matrix kv = Matrix::RandomNormal(&random, DType::kF32, AllRows().size(), channels);
    const Matrix gate = Matrix::RandomNormal(&random, DType::kF32, AllRows().size(), channels);
    const Matrix norm = Matrix::RandomNormal(&random, DType::kBF16, 1, width);
    const std::vector<float> ape = test::RandomFloats(&random, ratio * channels);
    const std::vector<float> freqs = test::RopeFreqs();
    Check([&, ratio = ratio, width = width, keys = keys]() -> RunRows {
      Random layout(91);
      const auto state = std::make_shared<Pool>(&layout, DType::kF32, 2 * channels, kSequences, kLength, 8);
      const auto output = std::make_shared<Pool>(&layout, act(), width, kSequences, kLength / ratio + 1, 4);
      state->FillRandom(&layout);  // the tokens before the batch
      return [&, ratio, width, keys, state, output](const std::vector<int64_t>& rows) {
        const Batch batch = AllRows().Take(rows);
        Matrix kv_rows = kv.Take(rows), gate_rows = gate.Take(rows);
        ops_->Compress({kv_rows.view(), gate_rows.view(), ape.data(), norm.vector(), 1e-6f, ratio, width, freqs, keys,
                        batch.view(), state->view(), output->view()});
        EXPECT_TRUE(ops_->Synchronize().ok());
        std::vector<Row> result;
        for (int64_t t = 0; t < batch.size(); ++t) {
          result.push_back(Bits(state->Row(batch.seqs[t], batch.positions[t])));
          if ((batch.positions[t] + 1) % ratio != 0) continue;
          const Row emitted = Bits(output->Row(batch.seqs[t], batch.positions[t] / ratio));
          result.back().insert(result.back().end(), emitted.begin(), emitted.end());
        }
        return result;
      };
    });
  }
}

TEST_P(RowIndependenceTest, IndexerTopk) {
  Random random(92);
  const int64_t heads = 4, top_k = 12, stride = kLength / 4;
  const Matrix q = Matrix::RandomNormal(&random, act(), AllRows().size(), heads * 128);
  const Matrix weights = Matrix::RandomNormal(&random, act(), AllRows().size(), heads);
  Pool keys(&random, act(), 128, kSequences, stride, 8);
  keys.FillRandom(&random);
  Check([&]() -> RunRows {
    return [&](const std::vector<int64_t>& rows) {
      const Batch batch = AllRows().Take(rows);
      Matrix q_rows = q.Take(rows), weight_rows = weights.Take(rows);
      std::vector<int32_t> chosen(rows.size() * top_k);
      std::vector<float> scores(rows.size() * stride, 0.0f);
      ops_->IndexerTopk({q_rows.view(), weight_rows.view(), heads, 128, 4, top_k, batch.view(), keys.view(),
                         chosen.data(), scores.data(), stride});
      EXPECT_TRUE(ops_->Synchronize().ok());
      std::vector<Row> result(rows.size());
      AppendColumns(chosen, top_k, &result);
      AppendColumns(scores, stride, &result);
      return result;
    };
  });
}

TEST_P(RowIndependenceTest, SparseAttention) {
  const int64_t heads = 3, top_k = 8;
  for (const auto& [ratio, with_topk] : {std::pair<int32_t, bool>{0, false}, {4, true}, {128, false}}) {
    Random random(93);
    const Matrix q = Matrix::RandomNormal(&random, act(), AllRows().size(), heads * 512);
    Pool window(&random, act(), 512, kSequences, kLength, 16), compressed(&random, act(), 512, kSequences, kLength, 4);
    window.FillRandom(&random);
    compressed.FillRandom(&random);
    const std::vector<float> sink = test::RandomFloats(&random, heads);
    Check([&, ratio = ratio, with_topk = with_topk]() -> RunRows {
      return [&, ratio, with_topk](const std::vector<int64_t>& rows) {
        const Batch batch = AllRows().Take(rows);
        const Angles angles(batch.positions, test::RopeFreqs());
        Matrix in = q.Take(rows), out(act(), in.rows(), heads * 512);
        std::vector<int32_t> begin, end, topk;
        for (int32_t p : batch.positions) {
          begin.push_back(std::max(0, p - 127));
          end.push_back(p + 1);
          for (int32_t i = 0; i < top_k; ++i) topk.push_back(2 * i < (p + 1) / 4 ? 2 * i : -1);
        }
        ops_->SparseAttention({in.view(), heads, 512, sink.data(), 0.044194174f, batch.view(), window.view(),
                               begin.data(), end.data(), ratio > 0 ? compressed.view() : ops::PagedRows{}, ratio,
                               with_topk ? topk.data() : nullptr, top_k, angles.view(), out.view()});
        EXPECT_TRUE(ops_->Synchronize().ok());
        return RowsOf(out);
      };
    });
  }
}

TEST_P(RowIndependenceTest, Experts) {
  Random random(94);
  const int64_t d = 128, width = 128, count = 10, k = 4;
  const Matrix x = Matrix::RandomNormal(&random, act(), AllRows().size(), d, 3.0f);
  const Matrix logits = Matrix::RandomNormal(&random, DType::kF32, AllRows().size(), count);
  const std::vector<float> bias = test::RandomFloats(&random, count);
  std::vector<Weight> weights;
  for (int64_t e = 0; e < count; ++e) {
    weights.push_back(Weight::RandomFp4(&random, width, d));
    weights.push_back(Weight::RandomFp4(&random, width, d));
    weights.push_back(Weight::RandomFp4(&random, d, width));
  }
  for (const auto& [n, inputs] : {std::pair<int64_t, int64_t>{width, d}, {width, d}, {d, width}})
    weights.push_back(Weight::RandomFp8(&random, n, inputs));
  std::vector<ops::ExpertWeights> experts;
  for (size_t i = 0; i < weights.size(); i += 3)
    experts.push_back({weights[i].view(), weights[i + 1].view(), weights[i + 2].view()});
  const ops::ExpertWeights shared = experts.back();
  experts.pop_back();
  for (const ops::InputQuant quant : ActivationQuants()) {
    Check([&]() -> RunRows {
      return [&](const std::vector<int64_t>& rows) {
        const Batch batch = AllRows().Take(rows);
        Matrix in = x.Take(rows), gate = logits.Take(rows), out(act(), in.rows(), d);
        std::vector<int32_t> chosen(rows.size() * k);
        std::vector<float> routing(rows.size() * k);
        ops_->MoeRoute({.logits = gate.view(),
                        .bias = bias.data(),
                        .experts_per_token = k,
                        .scale = 1.5f,
                        .batch = batch.view(),
                        .experts = chosen.data(),
                        .weights = routing.data()});
        ops_->MoeExperts(
            {in.view(), chosen.data(), routing.data(), k, experts, &shared, 10.0f, out.view(), false, quant});
        EXPECT_TRUE(ops_->Synchronize().ok());
        std::vector<Row> result = RowsOf(out);
        AppendColumns(chosen, k, &result);
        AppendColumns(routing, k, &result);
        return result;
      };
    });
  }
}

}  // namespace
}  // namespace hadal
