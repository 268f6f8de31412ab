// What does it cost to keep the caches packed? Sparse attention and the indexer over plain bf16 rows and over packed
// rows that hold the same values, at the widths of V4 Flash: 64 heads of 512, 128 window rows and 512 compressed rows a
// query; 64 indexer heads of 128. Prints the time of each and the share that packing costs.
//
//   attention_bench [--threads N] [--isa ...] [--rows 512] [--context 32768] [--rounds 5]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "base/float_formats.h"
#include "base/memory_region.h"
#include "base/status.h"
#include "machine.h"
#include "ops/row_format.h"
#include "platforms/cpu/cpu_ops.h"

namespace hadal::bench {
namespace {

constexpr int64_t kHeads = 64;
constexpr int64_t kDim = 512;
constexpr int64_t kRotary = 64;
constexpr int64_t kWindow = 128;
constexpr int64_t kTopK = 512;
constexpr int32_t kRatio = 4;
constexpr int64_t kIndexHeads = 64;
constexpr int64_t kIndexDim = 128;

struct Settings {
  int threads = 0;
  std::string isa = "auto";
  int64_t rows = 512;
  int64_t context = 32768;
  int rounds = 5;
};

// A pool of one sequence, its blocks in disorder as after some use.
class Pool {
 public:
  static absl::StatusOr<Pool> Create(ops::RowFormat format, int64_t cols, int64_t tail, int64_t rows) {
    constexpr int32_t kBlockRows = 64;
    Pool pool;
    const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    pool.blocks_.resize(blocks);
    std::iota(pool.blocks_.begin(), pool.blocks_.end(), 0);
    std::shuffle(pool.blocks_.begin(), pool.blocks_.end(), std::mt19937_64(3));
    pool.view_.cols = cols;
    pool.view_.map = {pool.blocks_.data(), blocks, kBlockRows, 0};
    pool.view_.format = format;
    pool.view_.tail = tail;
    pool.view_.block_stride = (ops::PageBytes(format, DType::kBF16, cols, tail, kBlockRows) + 575) / 576 * 576;
    HADAL_ASSIGN_OR_RETURN(pool.memory_, MemoryRegion::Map(blocks * pool.view_.block_stride, "a pool"));
    pool.view_.data = pool.memory_.data();
    return pool;
  }
  const ops::PagedRows& view() const { return view_; }

 private:
  std::vector<int32_t> blocks_;
  MemoryRegion memory_;
  ops::PagedRows view_;
};

// The same values in both pools.
void Fill(int64_t rows, const Pool& packed, const Pool& plain) {
  std::mt19937_64 engine(4);
  std::normal_distribution<float> normal;
  std::vector<float> values(packed.view().cols);
  for (int64_t j = 0; j < rows; ++j) {
    for (float& v : values) v = RoundBF16(normal(engine));
    ops::EncodeRow(packed.view(), 0, j, values.data());
    ops::DecodeRow(packed.view(), 0, j, values.data());
    ops::EncodeRow(plain.view(), 0, j, values.data());
  }
}

std::vector<uint16_t> RandomBf16(int64_t n, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> out(n);
  for (uint16_t& v : out) v = ToBFloat16(normal(engine)).bits;
  return out;
}

// Best seconds of some rounds, plain and packed in turn: the machine's clock and load are the same for both.
template <typename Plain, typename Packed>
void Compare(const char* what, int rounds, int64_t rows, double gflop, const Plain& plain, const Packed& packed) {
  double best[2] = {1e9, 1e9};
  for (int i = 0; i < rounds; ++i) {
    double begin = Now();
    plain();
    best[0] = std::min(best[0], Now() - begin);
    begin = Now();
    packed();
    best[1] = std::min(best[1], Now() - begin);
  }
  fmt::print("{:<20} plain {:8.1f} us a row ({:.0f} GFLOP/s), packed {:8.1f} us, {:+.1f} %\n", what,
             1e6 * best[0] / static_cast<double>(rows), gflop / best[0], 1e6 * best[1] / static_cast<double>(rows),
             100 * (best[1] / best[0] - 1));
}

struct Step {
  std::vector<int32_t> positions, seqs, window_begin, window_end, topk;
  std::vector<float> cos, sin;

  Step(int64_t rows, int64_t context) {
    std::mt19937_64 engine(5);
    for (int64_t t = 0; t < rows; ++t) {
      const auto p = static_cast<int32_t>(context - rows + t);
      positions.push_back(p);
      seqs.push_back(0);
      window_begin.push_back(static_cast<int32_t>(std::max<int64_t>(0, p + 1 - kWindow)));
      window_end.push_back(p + 1);
      std::vector<int32_t> chosen((p + 1) / kRatio);
      std::iota(chosen.begin(), chosen.end(), 0);
      std::shuffle(chosen.begin(), chosen.end(), engine);
      chosen.resize(kTopK, -1);
      std::sort(chosen.begin(), chosen.end());
      topk.insert(topk.end(), chosen.begin(), chosen.end());
    }
    cos.assign(rows * kRotary / 2, 0.8f);
    sin.assign(rows * kRotary / 2, 0.6f);
  }
  ops::BatchRows batch() const {
    return {static_cast<int64_t>(positions.size()), positions.data(), positions.data(), seqs.data()};
  }
};

absl::Status RunAttention(const Settings& s, ops::Ops* ops) {
  const int64_t compressed_rows = s.context / kRatio;
  HADAL_ASSIGN_OR_RETURN(const Pool window, Pool::Create(ops::RowFormat::kPlain, kDim, 0, s.context));
  HADAL_ASSIGN_OR_RETURN(const Pool compressed, Pool::Create(ops::RowFormat::kPlain, kDim, 0, compressed_rows));
  HADAL_ASSIGN_OR_RETURN(const Pool fp8_window, Pool::Create(ops::RowFormat::kFp8DsMla, kDim, kRotary, s.context));
  HADAL_ASSIGN_OR_RETURN(const Pool fp8_compressed,
                         Pool::Create(ops::RowFormat::kFp8DsMla, kDim, kRotary, compressed_rows));
  Fill(s.context, fp8_window, window);
  Fill(compressed_rows, fp8_compressed, compressed);
  const Step step(s.rows, s.context);
  std::vector<uint16_t> q = RandomBf16(s.rows * kHeads * kDim, 6);
  const std::vector<float> sink(kHeads, 0.5f);
  std::vector<uint16_t> out[2];
  const auto run = [&](const ops::PagedRows& w, const ops::PagedRows& c, int which) {
    ops::SparseAttentionArgs args;
    args.q = ops::MakeTensor(q.data(), DType::kBF16, s.rows, kHeads * kDim);
    args.heads = kHeads;
    args.head_dim = kDim;
    args.sink = sink.data();
    args.softmax_scale = 1.0f / std::sqrt(static_cast<float>(kDim));
    args.batch = step.batch();
    args.window = w;
    args.window_begin = step.window_begin.data();
    args.window_end = step.window_end.data();
    args.compressed = c;
    args.ratio = kRatio;
    args.topk = step.topk.data();
    args.topk_stride = kTopK;
    args.rope = {step.cos.data(), step.sin.data(), kRotary / 2};
    out[which].resize(q.size());
    args.out = ops::MakeTensor(out[which].data(), DType::kBF16, s.rows, kHeads * kDim);
    ops->SparseAttention(args);
  };
  const double gflop = 4e-9 * static_cast<double>(s.rows * kHeads * kDim * (kWindow + kTopK));
  Compare(
      "attention", s.rounds, s.rows, gflop, [&] { run(window.view(), compressed.view(), 0); },
      [&] { run(fp8_window.view(), fp8_compressed.view(), 1); });
  if (out[0] != out[1]) return FailedPrecondition("attention over packed rows differs from attention over plain rows");
  return absl::OkStatus();
}

absl::Status RunIndexer(const Settings& s, ops::Ops* ops) {
  const int64_t keys = s.context / kRatio;
  HADAL_ASSIGN_OR_RETURN(const Pool plain, Pool::Create(ops::RowFormat::kPlain, kIndexDim, 0, keys));
  HADAL_ASSIGN_OR_RETURN(const Pool packed, Pool::Create(ops::RowFormat::kMxfp4, kIndexDim, 0, keys));
  Fill(keys, packed, plain);
  const Step step(s.rows, s.context);
  std::vector<uint16_t> q = RandomBf16(s.rows * kIndexHeads * kIndexDim, 7);
  std::vector<uint16_t> weights = RandomBf16(s.rows * kIndexHeads, 8);
  std::vector<int32_t> chosen[2];
  const auto run = [&](const ops::PagedRows& pool, int which) {
    ops::IndexerTopkArgs args;
    args.q = ops::MakeTensor(q.data(), DType::kBF16, s.rows, kIndexHeads * kIndexDim);
    args.weights = ops::MakeTensor(weights.data(), DType::kBF16, s.rows, kIndexHeads);
    args.heads = kIndexHeads;
    args.head_dim = kIndexDim;
    args.ratio = kRatio;
    args.top_k = kTopK;
    args.batch = step.batch();
    args.keys = pool;
    chosen[which].resize(s.rows * kTopK);
    args.out = chosen[which].data();
    ops->IndexerTopk(args);
  };
  const double gflop = 2e-9 * static_cast<double>(s.rows * kIndexHeads * kIndexDim * keys);
  Compare(
      "indexer", std::min(s.rounds, 2), s.rows, gflop, [&] { run(plain.view(), 0); }, [&] { run(packed.view(), 1); });
  if (chosen[0] != chosen[1])
    return FailedPrecondition("the indexer chooses other rows from packed keys than from plain ones");
  return absl::OkStatus();
}

absl::Status Run(const Settings& s) {
  cpu::CpuOptions options;
  options.threads = s.threads;
  HADAL_ASSIGN_OR_RETURN(options.isa, cpu::ParseIsa(s.isa));
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> ops, cpu::MakeCpuOps(options));
  fmt::print("kernels: {}; {} rows at the end of {} positions\n", cpu::DescribeCpu(options), s.rows, s.context);
  if (s.rows < 1 || s.rows > s.context) return InvalidArgument("rows must be within the context of {}", s.context);
  ops::WorkspaceSpec spec;
  spec.max_tokens = s.rows;
  spec.hidden = 4096;
  spec.hc_mult = 4;
  spec.max_linear_k = 4096;
  spec.max_linear_n = 4096;
  spec.heads = kHeads;
  spec.head_dim = kDim;
  spec.max_attended_rows = kWindow + kTopK;
  spec.max_compressed_rows = s.context / kRatio;
  spec.index_heads = kIndexHeads;
  spec.index_head_dim = kIndexDim;
  HADAL_RETURN_IF_ERROR(ops->Reserve(spec));
  HADAL_RETURN_IF_ERROR(RunAttention(s, ops.get()));
  return RunIndexer(s, ops.get());
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  CLI::App app("Sparse attention and the indexer over plain and packed rows");
  hadal::bench::Settings s;
  app.add_option("--threads", s.threads, "worker threads, 0 for all");
  app.add_option("--isa", s.isa, "widest instruction set");
  app.add_option("--rows", s.rows, "of the step");
  app.add_option("--context", s.context, "positions up to the end of the step");
  app.add_option("--rounds", s.rounds, "of which the best counts");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = hadal::bench::Run(s);
  if (!status.ok()) {
    fmt::print(stderr, "attention_bench: {}\n", hadal::Message(status));
    return 1;
  }
  return 0;
}
