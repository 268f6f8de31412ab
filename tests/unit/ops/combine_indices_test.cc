// CombineTopkSwaIndices: the worked examples of spec deepseek-v4-vision-and-cache 5.6, the clamps as a property of
// random batches, and the errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "support/ops_fixture.h"

namespace hadal {
namespace {

using test::Random;
using CombineIndicesTest = test::OpsTest;
HADAL_OPS_TEST_SUITE(CombineIndicesTest);

using Ints = std::vector<int32_t>;

// The sizes of an example, by the names of the arguments.
struct Sizes {
  int64_t window = 0;
  int64_t ratio = 1;
  int64_t top_k = 0;
  int64_t rows_per_request = 0;
  int64_t compressed_rows = 0;
  int64_t max_image_tokens = 0;
};

ops::CombineIndicesArgs ArgsOf(const Sizes& sizes) {
  ops::CombineIndicesArgs args;
  args.window = sizes.window;
  args.ratio = sizes.ratio;
  args.top_k = sizes.top_k;
  args.rows_per_request = sizes.rows_per_request;
  args.compressed_rows = sizes.compressed_rows;
  args.max_image_tokens = sizes.max_image_tokens;
  return args;
}

// The arguments with their storage.
struct Problem {
  ops::CombineIndicesArgs args;
  Ints topk, query_start_loc, seq_lens, gather_lens, left, right, indices, lens;
  bool spans = false;

  // The views again, after a change to the vectors, and results of the right size full of garbage.
  ops::CombineIndicesArgs& Bind() {
    const auto queries = static_cast<size_t>(query_start_loc.back() - query_start_loc.front());
    indices.assign(queries * static_cast<size_t>(ops::CombinedWidth(args)), 77777);
    lens.assign(queries, 77777);
    args.topk = topk;
    args.query_start_loc = query_start_loc;
    args.seq_lens = seq_lens;
    args.gather_lens = gather_lens;
    args.left_visible.reset();
    args.right_visible.reset();
    if (spans) {
      args.left_visible = left;
      args.right_visible = right;
    }
    args.indices = indices;
    args.lens = lens;
    return args;
  }
  // The used columns of a query; every other column must be -1.
  Ints Row(size_t query) const {
    const auto width = static_cast<size_t>(ops::CombinedWidth(args));
    const auto used = static_cast<size_t>(lens[query]);
    const auto begin = indices.begin() + static_cast<std::ptrdiff_t>(query * width);
    for (size_t c = used; c < width; ++c) EXPECT_EQ(begin[static_cast<std::ptrdiff_t>(c)], -1) << query << " " << c;
    return {begin, begin + static_cast<std::ptrdiff_t>(used)};
  }
};

// One request of which the last `query` positions are asked for.
Problem OneRequest(int32_t seq, int32_t query, int32_t gather, const Sizes& sizes) {
  Problem p;
  p.args = ArgsOf(sizes);
  p.query_start_loc = {0, query};
  p.seq_lens = {seq};
  p.gather_lens = {gather};
  p.topk.assign(static_cast<size_t>(query * sizes.top_k), -1);
  return p;
}

// What tokens [begin, end) of positions from `first` see of an image span [span_begin, span_end).
void SetSpan(Problem* p, int32_t first, int32_t count, int32_t span_begin, int32_t span_end) {
  p->spans = true;
  for (int32_t position = first; position < first + count; ++position) {
    const bool inside = position >= span_begin && position < span_end;
    p->left.push_back(inside ? position - span_begin : 0);
    p->right.push_back(inside ? span_end - 1 - position : 0);
  }
}

// a..b inclusive, behind the given indices.
Ints Range(int32_t a, int32_t b, Ints before = {}) {
  for (int32_t i = a; i <= b; ++i) before.push_back(i);
  return before;
}

TEST_P(CombineIndicesTest, E1TextWithoutCompression) {
  Problem p = OneRequest(5, 5, 5, {.window = 4, .rows_per_request = 16});
  ASSERT_TRUE(ops_->CombineTopkSwaIndices(p.Bind()).ok());
  EXPECT_EQ(ops::CombinedWidth(p.args), 128);
  const Ints expected[] = {{0}, Range(0, 1), Range(0, 2), Range(0, 3), Range(1, 4)};
  for (size_t t = 0; t < 5; ++t) EXPECT_EQ(p.Row(t), expected[t]) << t;
  EXPECT_EQ(p.lens, (Ints{1, 2, 3, 4, 4}));
}

TEST_P(CombineIndicesTest, E2AnImageSpan) {
  Problem p = OneRequest(8, 8, 8, {.window = 4, .rows_per_request = 16, .max_image_tokens = 5});
  p.spans = true;
  p.left = {0, 0, 0, 1, 2, 3, 4, 0};
  p.right = {0, 0, 4, 3, 2, 1, 0, 0};
  ASSERT_TRUE(ops_->CombineTopkSwaIndices(p.Bind()).ok());
  const Ints expected[] = {{0},         Range(0, 1), Range(0, 6), Range(0, 6),
                           Range(1, 6), Range(2, 6), Range(2, 6), Range(4, 7)};
  for (size_t t = 0; t < 8; ++t) EXPECT_EQ(p.Row(t), expected[t]) << t;
  EXPECT_EQ(p.lens, (Ints{1, 2, 7, 7, 6, 5, 5, 4}));
}

// Traps 1 and 2: neither rows that were never gathered nor rows behind the gathered ones.
TEST_P(CombineIndicesTest, E3AHitInsideASpan) {
  Problem p = OneRequest(10, 2, 5, {.window = 4, .rows_per_request = 10, .max_image_tokens = 10});
  p.spans = true;
  p.left = {8, 9};
  p.right = {5, 5};
  ASSERT_TRUE(ops_->CombineTopkSwaIndices(p.Bind()).ok());
  for (size_t t = 0; t < 2; ++t) EXPECT_EQ(p.Row(t), Range(0, 4)) << t;
}

TEST_P(CombineIndicesTest, E4TwoRequestsWithCompressedRows) {
  Problem p;
  p.args = ArgsOf({.window = 4, .ratio = 4, .top_k = 2, .rows_per_request = 12, .compressed_rows = 3});
  p.query_start_loc = {10, 13, 19};
  p.seq_lens = {9, 6};
  p.gather_lens = {6, 6};
  p.topk = {0, -1, 1, 0, 0, 1, -1, -1, -1, -1, -1, -1, 0, -1, 0, -1, 0, -1};
  ASSERT_TRUE(ops_->CombineTopkSwaIndices(p.Bind()).ok());
  EXPECT_EQ(ops::CombinedWidth(p.args), 128);
  const Ints expected[] = {Range(3, 6, {0}),   Range(4, 7, {1, 0}), Range(5, 8, {0, 1}), {15},
                           Range(15, 16),      Range(15, 17),       Range(15, 18, {12}), Range(16, 19, {12}),
                           Range(17, 20, {12})};
  // p6 of request 0 has one complete group: only the first of its two choices counts.
  for (size_t t = 0; t < 9; ++t) EXPECT_EQ(p.Row(t), expected[t]) << t;
  EXPECT_EQ(p.lens, (Ints{5, 6, 6, 1, 2, 3, 5, 5, 5}));
}

TEST_P(CombineIndicesTest, E5AChunkThatEndsInsideASpan) {
  Problem p;
  p.args = ArgsOf(
      {.window = 4, .ratio = 4, .top_k = 2, .rows_per_request = 10, .compressed_rows = 2, .max_image_tokens = 8});
  p.query_start_loc = {0, 6, 8};
  p.seq_lens = {6, 2};
  p.gather_lens = {6, 2};
  for (int t = 0; t < 8; ++t) p.topk.insert(p.topk.end(), {0, -1});
  SetSpan(&p, 0, 6, 2, 10);
  SetSpan(&p, 0, 2, 0, 0);
  ASSERT_TRUE(ops_->CombineTopkSwaIndices(p.Bind()).ok());
  const Ints expected[] = {{2},  Range(2, 3),  Range(2, 7), Range(2, 7, {0}), Range(3, 7, {0}), Range(4, 7, {0}),
                           {12}, Range(12, 13)};
  for (size_t t = 0; t < 8; ++t) EXPECT_EQ(p.Row(t), expected[t]) << t;
  EXPECT_EQ(p.lens, (Ints{1, 2, 6, 7, 6, 5, 1, 2}));
}

// Trap 3: an invalid entry is not moved into another request's rows, and still counts.
TEST_P(CombineIndicesTest, E6InvalidEntriesStay) {
  const Sizes sizes = {.window = 2, .ratio = 4, .top_k = 3, .rows_per_request = 8, .compressed_rows = 3};
  Problem alone = OneRequest(12, 1, 2, sizes);
  alone.topk = {2, -1, 7};
  ASSERT_TRUE(ops_->CombineTopkSwaIndices(alone.Bind()).ok());
  EXPECT_EQ(alone.Row(0), (Ints{2, -1, -1, 3, 4}));

  Problem second = alone;
  second.query_start_loc = {5, 5, 6};  // a request without queries before it
  second.seq_lens = {1, 12};
  second.gather_lens = {0, 2};
  ASSERT_TRUE(ops_->CombineTopkSwaIndices(second.Bind()).ok());
  EXPECT_EQ(second.Row(0), (Ints{10, -1, -1, 11, 12}));
}

constexpr Sizes kFullSize = {
    .window = 128, .ratio = 4, .top_k = 512, .rows_per_request = 1250, .compressed_rows = 250, .max_image_tokens = 384};

// The compressed part of a row of these examples: entries 0, 1, ... of request 0.
void ExpectFullSizeRow(const Problem& p, size_t t, int32_t chosen, int32_t first, int32_t last) {
  EXPECT_EQ(p.Row(t), Range(first, last, Range(0, chosen - 1))) << t;
}

void ChooseInOrder(Problem* p) {
  for (size_t i = 0; i < p->topk.size(); ++i) p->topk[i] = static_cast<int32_t>(i % 512);
}

TEST_P(CombineIndicesTest, E7FullSize) {
  Problem p = OneRequest(1000, 1000, 1000, kFullSize);
  ChooseInOrder(&p);
  SetSpan(&p, 0, 1000, 303, 681);
  EXPECT_EQ(p.left[430], 127);
  EXPECT_EQ(p.right[430], 250);
  ASSERT_TRUE(ops_->CombineTopkSwaIndices(p.Bind()).ok());
  EXPECT_EQ(ops::CombinedWidth(p.args), 1024);
  ExpectFullSizeRow(p, 127, 32, 250, 377);
  ExpectFullSizeRow(p, 302, 75, 425, 552);
  ExpectFullSizeRow(p, 303, 76, 426, 930);
  ExpectFullSizeRow(p, 430, 107, 553, 930);
  ExpectFullSizeRow(p, 431, 108, 553, 930);
  ExpectFullSizeRow(p, 680, 170, 553, 930);
  ExpectFullSizeRow(p, 681, 170, 804, 931);
  ExpectFullSizeRow(p, 999, 250, 1122, 1249);
  const size_t rows[] = {127, 302, 303, 430, 431, 680, 681, 999};
  const int32_t lens[] = {160, 203, 581, 485, 486, 548, 298, 378};
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(p.lens[rows[i]], lens[i]) << rows[i];
}

TEST_P(CombineIndicesTest, E8TheSamePromptResumed) {
  Problem p = OneRequest(1000, 488, 615, kFullSize);
  ChooseInOrder(&p);
  SetSpan(&p, 512, 488, 303, 681);
  ASSERT_TRUE(ops_->CombineTopkSwaIndices(p.Bind()).ok());
  ExpectFullSizeRow(p, 512 - 512, 128, 250, 545);
  ExpectFullSizeRow(p, 600 - 512, 150, 250, 545);
  ExpectFullSizeRow(p, 680 - 512, 170, 250, 545);
  ExpectFullSizeRow(p, 681 - 512, 170, 419, 546);
  EXPECT_EQ(p.lens[0], 424);
  EXPECT_EQ(p.lens[88], 446);
  EXPECT_EQ(p.lens[168], 466);
  EXPECT_EQ(p.lens[169], 298);
}

// Trap 4: the width does not depend on what the batch holds.
TEST_P(CombineIndicesTest, E9Widths) {
  Problem p = OneRequest(1, 1, 1, {.window = 120, .rows_per_request = 256, .max_image_tokens = 16});
  ASSERT_TRUE(ops_->CombineTopkSwaIndices(p.Bind()).ok());
  EXPECT_EQ(p.indices.size(), 256U);
  EXPECT_EQ(p.lens, (Ints{1}));
  EXPECT_EQ(p.Row(0), (Ints{0}));
  EXPECT_EQ(ops::CombinedWidth(ArgsOf({.window = 128, .top_k = 512})), 640);
  EXPECT_EQ(ops::CombinedWidth(ArgsOf({.window = 128, .top_k = 512, .max_image_tokens = 384})), 1024);
  EXPECT_EQ(ops::CombinedWidth(ArgsOf({.window = 128, .max_image_tokens = 384})), 512);
}

Problem RandomProblem(Random* random) {
  Problem p;
  p.args.window = 1 + random->Index(12);
  p.args.ratio = 1 + random->Index(5);
  p.args.top_k = random->Index(6);
  p.args.compressed_rows = random->Index(8);
  p.args.max_image_tokens = 20;
  p.spans = random->Index(4) != 0;
  const int64_t requests = 1 + random->Index(5);
  p.query_start_loc = {static_cast<int32_t>(random->Index(20))};
  int32_t longest = 0;
  for (int64_t b = 0; b < requests; ++b) {
    const auto seq = static_cast<int32_t>(1 + random->Index(40));
    const auto query = static_cast<int32_t>(random->Index(seq + 1));
    // What the runtime gathers, or anything else: the clamps must hold for every workspace.
    const auto usual = query + std::min(seq - query, static_cast<int32_t>(p.args.window) - 1);
    const auto gather = random->Index(2) == 0 ? usual : static_cast<int32_t>(random->Index(seq + 1));
    p.query_start_loc.push_back(p.query_start_loc.back() + query);
    p.seq_lens.push_back(seq);
    p.gather_lens.push_back(gather);
    longest = std::max(longest, gather);
    for (int32_t t = 0; t < query; ++t) {
      for (int64_t c = 0; c < p.args.top_k; ++c) p.topk.push_back(static_cast<int32_t>(random->Index(20)) - 5);
      p.left.push_back(static_cast<int32_t>(random->Index(25)));
      p.right.push_back(static_cast<int32_t>(random->Index(25)));
    }
  }
  p.args.rows_per_request = p.args.compressed_rows + longest + random->Index(5);
  return p;
}

TEST_P(CombineIndicesTest, NoIndexLeavesTheRowsOfItsRequest) {
  Random random(71);
  for (int round = 0; round < 200; ++round) {
    Problem p = RandomProblem(&random);
    ASSERT_TRUE(ops_->CombineTopkSwaIndices(p.Bind()).ok());
    size_t query = 0;
    for (size_t b = 0; b < p.seq_lens.size(); ++b) {
      const int64_t base = p.args.rows_per_request * static_cast<int64_t>(b);
      const int64_t end = base + p.args.compressed_rows + p.gather_lens[b];
      for (int32_t t = p.query_start_loc[b]; t < p.query_start_loc[b + 1]; ++t, ++query) {
        for (int32_t index : p.Row(query)) ASSERT_TRUE(index == -1 || (index >= base && index < end)) << index;
        // All rows of the window that exist are there, and none twice.
        Ints rows = p.Row(query);
        std::erase_if(rows, [&](int32_t v) { return v < base + p.args.compressed_rows; });
        ASSERT_TRUE(std::adjacent_find(rows.begin(), rows.end(), [](int32_t x, int32_t y) { return y != x + 1; }) ==
                    rows.end());
        const int32_t position = p.seq_lens[b] - (p.query_start_loc[b + 1] - t);
        const int32_t gathered = p.seq_lens[b] - p.gather_lens[b];
        const bool own =
            std::find(rows.begin(), rows.end(), base + p.args.compressed_rows + position - gathered) != rows.end();
        ASSERT_EQ(own, position >= gathered);
      }
    }
  }
}

TEST_P(CombineIndicesTest, LeftAndRightComeTogether) {
  for (bool left : {false, true}) {
    Problem p = OneRequest(3, 3, 3, {.window = 4, .rows_per_request = 16});
    SetSpan(&p, 0, 3, 0, 2);
    ops::CombineIndicesArgs args = p.Bind();
    (left ? args.left_visible : args.right_visible).reset();
    const absl::Status status = ops_->CombineTopkSwaIndices(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "left_visible and right_visible must be provided together");
  }
}

TEST_P(CombineIndicesTest, NamesWhatDoesNotFit) {
  Problem p = OneRequest(3, 3, 3, {.window = 4, .ratio = 4, .top_k = 2, .rows_per_request = 16, .compressed_rows = 1});
  SetSpan(&p, 0, 3, 0, 2);
  ASSERT_TRUE(ops_->CombineTopkSwaIndices(p.Bind()).ok());
  const Ints four(4);
  Ints out(4);
  const auto expect = [&](const std::string& message, auto change) {
    ops::CombineIndicesArgs args = p.Bind();
    change(&args);
    const absl::Status status = ops_->CombineTopkSwaIndices(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(status.message(), "combine_topk_swa_indices: " + message);
  };
  using Args = ops::CombineIndicesArgs;
  expect("topk has 4 elements, expected 6", [&](Args* a) { a->topk = four; });
  expect("query_start_loc has 4 elements, expected 2", [&](Args* a) { a->query_start_loc = four; });
  expect("gather_lens has 4 elements, expected 1", [&](Args* a) { a->gather_lens = four; });
  expect("left_visible has 4 elements, expected 3", [&](Args* a) { a->left_visible = four; });
  expect("right_visible has 4 elements, expected 3", [&](Args* a) { a->right_visible = four; });
  expect("indices has 4 elements, expected 384", [&](Args* a) { a->indices = out; });
  expect("lens has 4 elements, expected 3", [&](Args* a) { a->lens = out; });
  expect("window is 0, expected at least 1", [&](Args* a) { a->window = 0; });
  expect("ratio is 0, expected at least 1", [&](Args* a) { a->ratio = 0; });
  expect("gather_lens[0] is 3, expected 0 to 2", [&](Args* a) { a->rows_per_request = 3; });
  p.seq_lens = {2};
  expect("request 0 has 3 queries, expected 0 to its length 2", [](Args*) {});
}

}  // namespace
}  // namespace hadal
