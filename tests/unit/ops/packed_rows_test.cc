// Operators over packed pools give to the bit what they give over plain pools that hold the same values.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <numeric>
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

using PackedRowsTest = test::OpsTest;
INSTANTIATE_TEST_SUITE_P(All, PackedRowsTest,
                         testing::Combine(testing::ValuesIn(test::OpsImplementations()),
                                          testing::Values(ops::Numerics::kPublished)),
                         test::OpsTestName);

constexpr float kEps = 1e-6f;

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  bits.reserve(values.size());
  for (float v : values) bits.push_back(std::bit_cast<uint32_t>(v));
  return bits;
}

// Published width; and a width whose quantised part ends within a group.
const std::pair<int64_t, int64_t> kWidths[] = {{512, 64}, {128, 32}};

TEST_P(PackedRowsTest, KvStore) {
  Random random(121);
  for (const auto& [dim, rotary] : kWidths) {
    for (int64_t tokens : {1, 2, 3, 15, 16, 17, 33, 129}) {
      SCOPED_TRACE(testing::Message() << tokens << " rows of " << dim);
      const Batch batch = Batch::Run(tokens, 100);
      const Angles angles(batch.positions, test::RopeFreqs(10000.0, rotary));
      const Matrix norm = Matrix::RandomNormal(&random, DType::kBF16, 1, dim);
      Matrix kv = Matrix::RandomNormal(&random, act(), tokens, dim);
      for (int64_t c = 0; c < 64; ++c) kv.Set(tokens / 2, c, c % 2 == 0 ? 0.0f : -0.0f);  // a group of zeros
      for (int64_t c = 64; c < dim; c += 7) kv.Set(0, c, kv.At(0, c) * 0x1p-15f);         // E4M3 subnormals
      Pool plain(&random, act(), dim, 1, 160, 16, true);
      plain.Fill(0.0f);
      PackedPool packed(&plain, RowFormat::kFp8DsMla, rotary);
      Matrix first = kv, second = kv;
      ops_->KvNormRopeStore({first.view(), norm.vector(), kEps, angles.view(), batch.view(), plain.view()});
      ops_->KvNormRopeStore({second.view(), norm.vector(), kEps, angles.view(), batch.view(), packed.view()});
      EXPECT_TRUE(ops_->Synchronize().ok());
      for (int32_t p : batch.positions) ASSERT_EQ(Bits(packed.Row(0, p)), Bits(plain.Row(0, p))) << p;
      EXPECT_TRUE(packed.GapsIntact());
    }
  }
}

TEST_P(PackedRowsTest, Compress) {
  Random random(122);
  struct Case {
    int32_t ratio;
    int64_t width, rotary;
    bool keys;
  };
  for (const Case& c : {Case{4, 512, 64, false}, {128, 512, 64, false}, {4, 128, 64, true}, {4, 128, 32, false}}) {
    for (int64_t tokens : {1, 4, 15, 17, 129}) {
      SCOPED_TRACE(testing::Message() << tokens << " rows, ratio " << c.ratio << ", width " << c.width);
      const int64_t channels = c.ratio == 4 ? 2 * c.width : c.width;
      const Batch batch = Batch::Run(tokens, 127);
      Matrix kv = Matrix::RandomNormal(&random, DType::kF32, tokens, channels);
      Matrix gate = Matrix::RandomNormal(&random, DType::kF32, tokens, channels);
      const Matrix norm = Matrix::RandomNormal(&random, DType::kBF16, 1, c.width);
      const std::vector<float> ape = test::RandomFloats(&random, c.ratio * channels);
      const std::vector<float> freqs = test::RopeFreqs(160000.0, c.rotary);
      Pool state(&random, DType::kF32, 2 * channels, 1, 272, 8);
      state.FillRandom(&random);
      Pool plain(&random, act(), c.width, 1, 272 / c.ratio + 1, 4);
      plain.Fill(0.0f);
      PackedPool packed(&plain, c.keys ? RowFormat::kMxfp4 : RowFormat::kFp8DsMla, c.keys ? 0 : c.rotary);
      for (const ops::PagedRows& output : {plain.view(), packed.view()}) {
        ops_->Compress({kv.view(), gate.view(), ape.data(), norm.vector(), kEps, c.ratio, c.width, freqs, c.keys,
                        batch.view(), state.view(), output});
      }
      EXPECT_TRUE(ops_->Synchronize().ok());
      for (int64_t w = 0; w <= 272 / c.ratio; ++w) ASSERT_EQ(Bits(packed.Row(0, w)), Bits(plain.Row(0, w))) << w;
      EXPECT_TRUE(packed.GapsIntact());
    }
  }
}

struct Attention {
  Attention(Random* random, DType act, Batch rows, int64_t head_count, int64_t width, int64_t rotary)
      : batch(std::move(rows)),
        heads(head_count),
        dim(width),
        angles(batch.positions, test::RopeFreqs(10000.0, rotary)),
        q(Matrix::RandomNormal(random, act, batch.size(), heads * dim)),
        sink(test::RandomFloats(random, heads)) {
    for (int32_t p : batch.positions) {
      begin.push_back(std::max(0, p - 127));
      end.push_back(p + 1);
    }
  }
  // Every third row that exists, up to k of them.
  void ChooseRows(int64_t k) {
    topk_stride = k;
    for (int32_t p : batch.positions) {
      for (int32_t i = 0; i < k; ++i) topk.push_back(3 * i < (p + 1) / ratio ? 3 * i : -1);
    }
  }
  Matrix Run(ops::Ops* ops, const ops::PagedRows& window, const ops::PagedRows& compressed) {
    Matrix out(q.dtype(), batch.size(), heads * dim);
    ops->SparseAttention({q.view(), heads, dim, sink.data(), 1.0f / std::sqrt(static_cast<float>(dim)), batch.view(),
                          window, begin.data(), end.data(), ratio > 0 ? compressed : ops::PagedRows{}, ratio,
                          topk.empty() ? nullptr : topk.data(), topk_stride, angles.view(), out.view()});
    EXPECT_TRUE(ops->Synchronize().ok());
    return out;
  }

  Batch batch;
  int64_t heads, dim;
  Angles angles;
  Matrix q;
  std::vector<float> sink;
  std::vector<int32_t> begin, end, topk;
  int64_t topk_stride = 0;
  int32_t ratio = 0;
};

void ExpectEqual(const Matrix& actual, const Matrix& expected) {
  for (int64_t r = 0; r < expected.rows(); ++r) ASSERT_EQ(Bits(actual.Row(r)), Bits(expected.Row(r))) << "row " << r;
}

TEST_P(PackedRowsTest, SparseAttention) {
  Random random(123);
  for (const auto& [dim, rotary] : kWidths) {
    Pool window(&random, act(), dim, 2, 272, 16), compressed(&random, act(), dim, 2, 68, 4);
    window.FillRandom(&random);
    compressed.FillRandom(&random);
    PackedPool packed_window(&window, RowFormat::kFp8DsMla, rotary);
    PackedPool packed_compressed(&compressed, RowFormat::kFp8DsMla, rotary);
    for (const bool arbitrary : {false, true}) {
      if (arbitrary) {
        packed_window.FillCodes(&random, &window);
        packed_compressed.FillCodes(&random, &compressed);
      }
      for (int64_t tokens : {1, 2, 3, 15, 17, 33, 129}) {
        for (const int32_t ratio : {0, 4, 128}) {
          if (arbitrary && tokens > 17) continue;
          SCOPED_TRACE(testing::Message() << tokens << " rows of " << dim << ", ratio " << ratio);
          Attention a(&random, act(), Batch::Run(tokens, tokens > 17 ? 120 : 255, 1), tokens > 17 ? 3 : 16, dim,
                      rotary);
          a.ratio = ratio;
          if (ratio == 4) a.ChooseRows(22);
          const Matrix expected = a.Run(ops_.get(), window.view(), compressed.view());
          ExpectEqual(a.Run(ops_.get(), packed_window.view(), packed_compressed.view()), expected);
          ExpectEqual(a.Run(ops_.get(), packed_window.view(), compressed.view()), expected);
          ExpectEqual(a.Run(ops_.get(), window.view(), packed_compressed.view()), expected);
        }
      }
    }
  }
}

// Spec vision-and-cache 5.2: the window may be wider than 128 rows.
TEST_P(PackedRowsTest, SparseAttentionOverRingsAndInterleavedSequences) {
  Random random(124);
  Batch batch;
  for (int32_t i = 0; i < 20; ++i) {
    for (int32_t seq : {2, 0, 1}) batch.Add(seq, 1000 + 100 * seq + i);
  }
  Attention a(&random, act(), batch, 4, 512, 64);
  a.begin[5] = a.end[5] = 7;  // sees nothing in the window
  a.ratio = 128;
  Pool window(&random, act(), 512, 3, 160, 16, true), compressed(&random, act(), 512, 3, 16, 2);
  window.FillRandom(&random);
  compressed.FillRandom(&random);
  const PackedPool packed_window(&window, RowFormat::kFp8DsMla, 64);
  const PackedPool packed_compressed(&compressed, RowFormat::kFp8DsMla, 64);
  const Matrix expected = a.Run(ops_.get(), window.view(), compressed.view());
  const Matrix actual = a.Run(ops_.get(), packed_window.view(), packed_compressed.view());
  ExpectEqual(actual, expected);
  // A row alone, whose heads are split over the threads.
  for (int64_t t : {0, 5, 41}) {
    Attention one(&random, act(), batch.Take({t}), 4, 512, 64);
    one.q = a.q.Take({t});
    one.sink = a.sink;
    one.begin = {a.begin[t]};
    one.end = {a.end[t]};
    one.ratio = 128;
    ExpectEqual(one.Run(ops_.get(), packed_window.view(), packed_compressed.view()), expected.Take({t}));
  }
}

TEST_P(PackedRowsTest, IndexerTopk) {
  Random random(125);
  constexpr int64_t kDim = 128;
  constexpr int64_t kLength = 75;
  for (const bool arbitrary : {false, true}) {
    Pool plain(&random, act(), kDim, 2, kLength, 8);
    plain.FillRandom(&random);
    PackedPool packed(&plain, RowFormat::kMxfp4, 0);
    if (arbitrary) packed.FillCodes(&random, &plain);
    for (int64_t tokens : {1, 2, 3, 17, 129}) {
      for (const auto& [heads, top_k] : {std::pair<int64_t, int64_t>{4, 24}, {64, 8}}) {
        SCOPED_TRACE(testing::Message() << tokens << " rows, " << heads << " heads");
        const Batch batch = Batch::Run(tokens, 170, 1);
        Matrix q = Matrix::RandomNormal(&random, act(), tokens, heads * kDim);
        Matrix weights = Matrix::RandomNormal(&random, act(), tokens, heads);
        std::vector<int32_t> chosen[2];
        std::vector<float> scores[2];
        for (int i = 0; i < 2; ++i) {
          chosen[i].resize(tokens * top_k);
          scores[i].assign(tokens * kLength, -1e30f);
          ops_->IndexerTopk({q.view(), weights.view(), heads, kDim, 4, top_k, batch.view(),
                             i == 0 ? plain.view() : packed.view(), chosen[i].data(), scores[i].data(), kLength});
          EXPECT_TRUE(ops_->Synchronize().ok());
        }
        ASSERT_EQ(chosen[1], chosen[0]);
        ASSERT_EQ(Bits(scores[1]), Bits(scores[0]));
      }
    }
  }
}

// Row 24 of spec vision-and-cache 8: offsets beyond 2^31. The region is address space; only the pages that are written
// become memory, but where a GPU has to reach them.
TEST_P(PackedRowsTest, BlocksBeyondTwoGigabytes) {
  Random random(126);
  constexpr int32_t kFar = 60'000;
  constexpr int64_t kStride = 37'440;
  constexpr size_t kBytes = size_t{kFar + 2} * kStride;
#if HADAL_TEST_CUDA
  const auto heap = std::make_unique_for_overwrite<std::byte[]>(kBytes);
  void* memory = heap.get();
#else
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
#endif
  const std::vector<int32_t> far_blocks = {kFar + 1, kFar}, near_blocks = {1, 0};
  ops::PagedRows far;
  far.data = memory;
  far.cols = 512;
  far.map = {far_blocks.data(), 2, 64, 0};
  far.format = RowFormat::kFp8DsMla;
  far.tail = 64;
  far.block_stride = kStride;
  std::vector<uint8_t> near_memory(2 * kStride);
  ops::PagedRows near = far;
  near.data = near_memory.data();
  near.map.blocks = near_blocks.data();

  const Batch batch = Batch::Run(5, 62);
  const Angles angles(batch.positions, test::RopeFreqs());
  const Matrix norm = Matrix::RandomNormal(&random, DType::kBF16, 1, 512);
  const Matrix kv = Matrix::RandomNormal(&random, act(), 5, 512);
  Attention a(&random, act(), batch, 2, 512, 64);
  std::fill(a.begin.begin(), a.begin.end(), 62);
  std::vector<Matrix> out;
  for (const ops::PagedRows& pool : {near, far}) {
    Matrix in = kv;
    ops_->KvNormRopeStore({in.view(), norm.vector(), kEps, angles.view(), batch.view(), pool});
    out.push_back(a.Run(ops_.get(), pool, {}));
  }
  ExpectEqual(out[1], out[0]);
  const auto* pages = static_cast<const uint8_t*>(memory) + kFar * kStride;
  EXPECT_TRUE(std::equal(near_memory.begin(), near_memory.end(), pages)) << "the far pages hold other bytes";
#if !HADAL_TEST_CUDA
  EXPECT_EQ(munmap(memory, kBytes), 0);
#endif
}

}  // namespace
}  // namespace hadal
