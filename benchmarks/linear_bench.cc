// How close do the quantised linears come to the machine? FP8, FP4 and BF16 weights, M = 1 ... 512 rows, at V4-Flash's
// widths: as a share of memory bandwidth while the weights are what has to move, of the matrix units' peak beyond that.
//
//   linear_bench [--threads N] [--isa auto|amx|avx512|avx2|baseline] [--rows 1,4,16,128,512]
#include <fmt/format.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "base/status.h"
#include "machine.h"
#include "platforms/cpu/cpu_ops.h"

namespace hadal::bench {
namespace {

struct Shape {
  const char* name;
  DType dtype;
  int64_t n;
  int64_t k;
};

constexpr Shape kShapes[] = {{"wq_b", DType::kF8E4M3, 32768, 1024},     {"wo_b", DType::kF8E4M3, 4096, 8192},
                             {"shared w1", DType::kF8E4M3, 2048, 4096}, {"expert w1", DType::kF4E2M1, 2048, 4096},
                             {"expert w2", DType::kF4E2M1, 4096, 2048}, {"head (part)", DType::kBF16, 16384, 4096}};

int64_t ScaleBytes(const Shape& s) {
  if (s.dtype == DType::kF8E4M3) return (s.n + 127) / 128 * ((s.k + 127) / 128);
  return s.dtype == DType::kF4E2M1 ? s.n * s.k / 32 : 0;
}

// Memory in huge pages, as loaded weights have it.
struct Unmap {
  size_t bytes;
  void operator()(uint8_t* p) const { munmap(p, bytes); }
};
using Memory = std::unique_ptr<uint8_t, Unmap>;

Memory MapHuge(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  HADAL_CHECK(p != MAP_FAILED);
  madvise(p, bytes, MADV_HUGEPAGE);
  return Memory(static_cast<uint8_t*>(p), Unmap{bytes});
}

// Copies of one weight, together larger than any cache, with random codes and scales near one.
Memory MakeWeights(const Shape& shape, int64_t copies, std::vector<ops::LinearWeight>& out) {
  const int64_t bytes = DTypeBytes(shape.dtype, shape.n * shape.k);
  Memory memory = MapHuge(copies * (bytes + ScaleBytes(shape)));
  std::mt19937_64 random(1);
  std::vector<uint8_t> tile(1 << 20);
  for (auto& b : tile) {
    const uint64_t v = random();
    // bf16: sign and exponent near 2^-6 in the odd bytes; fp8: everything but NaN.
    b = shape.dtype == DType::kBF16 ? static_cast<uint8_t>((&b - tile.data()) % 2 == 0 ? v : (v & 0x80) | 0x3C)
                                    : static_cast<uint8_t>((v & 0x7F) == 0x7F ? v ^ 1 : v);
  }
  uint8_t* at = memory.get();
  for (int64_t c = 0; c < copies; ++c) {
    for (int64_t i = 0; i < bytes; i += static_cast<int64_t>(tile.size())) {
      std::memcpy(at + i, tile.data(), std::min<int64_t>(bytes - i, tile.size()));
    }
    ops::LinearWeight w;
    w.n = shape.n;
    w.k = shape.k;
    w.dtype = shape.dtype;
    w.data = at;
    w.scale = at + bytes;
    std::memset(at + bytes, 120, ScaleBytes(shape));
    out.push_back(w);
    at += bytes + ScaleBytes(shape);
  }
  return memory;
}

absl::Status Run(int threads, const std::string& isa, const std::vector<int64_t>& row_counts) {
  cpu::CpuOptions options;
  options.threads = threads;
  HADAL_ASSIGN_OR_RETURN(options.isa, cpu::ParseIsa(isa));
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> ops, cpu::MakeCpuOps(options));
  ThreadPool pool(threads == 0 ? AvailableCpus() : threads);
  const MachineLimits limits = MeasureMachine(pool);
  fmt::print("{}\n", DescribeLimits(limits, pool.threads()));
  fmt::print("kernels: {}\n\n", cpu::DescribeCpu(options));
  fmt::print("| weight | dtype | n x k | rows | ms | weights GB/s | of read bandwidth | GFLOP/s | of peak |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|\n");
  const bool amx = isa != "avx512" && isa != "avx2" && isa != "baseline" && limits.bf16_gflop_per_s > 0;
  const double peak = amx ? limits.bf16_gflop_per_s : limits.f32_gflop_per_s;

  ops::WorkspaceSpec spec;
  spec.max_tokens = *std::max_element(row_counts.begin(), row_counts.end());
  spec.hidden = 4096;
  spec.hc_mult = 1;
  spec.max_linear_k = 8192;
  spec.max_linear_n = 32768;
  spec.heads = 1;
  spec.head_dim = 512;
  HADAL_RETURN_IF_ERROR(ops->Reserve(spec));
  for (const Shape& shape : kShapes) {
    const int64_t bytes = DTypeBytes(shape.dtype, shape.n * shape.k) + ScaleBytes(shape);
    const int64_t copies = (int64_t{1536} << 20) / bytes + 1;
    std::vector<ops::LinearWeight> weights;
    const Memory memory = MakeWeights(shape, copies, weights);
    for (const int64_t rows : row_counts) {
      std::vector<uint16_t> x(rows * shape.k, 0x3F80);
      std::vector<uint16_t> y(rows * shape.n);
      const ops::Tensor in = ops::MakeTensor(x.data(), DType::kBF16, rows, shape.k);
      const ops::Tensor out = ops::MakeTensor(y.data(), DType::kBF16, rows, shape.n);
      const auto quant = shape.dtype == DType::kBF16 ? ops::InputQuant::kNone : ops::InputQuant::kFp8;
      double seconds = 1e9;
      size_t next = 0;
      for (int run = 0; run < 3; ++run) {
        int64_t calls = 0;
        const double begin = Now();
        while (calls < 3 || Now() - begin < 0.3) {
          const ops::LinearTarget target = {&weights[next++ % weights.size()], out, quant};
          ops->Linear(in, {&target, 1});
          ++calls;
        }
        seconds = std::min(seconds, (Now() - begin) / static_cast<double>(calls));
      }
      const double gb = static_cast<double>(bytes) / seconds / 1e9;
      const double gflop = 2.0 * static_cast<double>(rows * shape.n * shape.k) / seconds / 1e9;
      fmt::print("| {} | {} | {} x {} | {} | {:.3f} | {:.1f} | {:.0f} % | {:.0f} | {:.0f} % |\n", shape.name,
                 DTypeName(shape.dtype), shape.n, shape.k, rows, seconds * 1e3, gb, 100 * gb / limits.read_gb_per_s,
                 gflop, 100 * gflop / peak);
      std::fflush(stdout);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  CLI::App app("Quantised linears against the machine's limits");
  int threads = 0;
  std::string isa = "auto";
  std::vector<int64_t> rows = {1, 4, 16, 128, 512};
  app.add_option("--threads", threads, "worker threads, 0 for all");
  app.add_option("--isa", isa, "widest instruction set");
  app.add_option("--rows", rows, "row counts")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = hadal::bench::Run(threads, isa, rows);
  if (!status.ok()) {
    fmt::print(stderr, "linear_bench: {}\n", hadal::Message(status));
    return 1;
  }
  return 0;
}
