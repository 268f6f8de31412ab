#include "machine.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/status.h"
#include "platforms/cpu/linear.h"

namespace hadal::bench {
namespace {

// Larger than twice the last-level cache of the machines at hand.
constexpr int64_t kReadBytes = int64_t{1} << 30;
constexpr int kRuns = 5;

std::atomic<uint64_t> sink;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) double F32Avx512(int64_t rounds) {
  __m512 acc[16];
  for (auto& a : acc) a = _mm512_set1_ps(1.0f);
  const __m512 x = _mm512_set1_ps(0.999f);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& a : acc) a = _mm512_fmadd_ps(a, x, x);
  }
  alignas(64) float sum[16] = {};
  for (auto& a : acc) _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), a));
  sink += static_cast<uint64_t>(sum[0]);
  return 16.0 * 16 * 2 * static_cast<double>(rounds);
}

__attribute__((target("avx2,fma"))) double F32Avx2(int64_t rounds) {
  __m256 acc[12];
  for (auto& a : acc) a = _mm256_set1_ps(1.0f);
  const __m256 x = _mm256_set1_ps(0.999f);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& a : acc) a = _mm256_fmadd_ps(a, x, x);
  }
  float sum = 0;
  for (auto& a : acc) sum += _mm256_cvtss_f32(a);
  sink += static_cast<uint64_t>(sum);
  return 12.0 * 8 * 2 * static_cast<double>(rounds);
}

__attribute__((target("amx-tile,amx-bf16"))) double Bf16Amx(int64_t rounds) {
  struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t rest[15] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile("" : : "r"(&config) : "memory");  // the intrinsic does not say that it reads the struct
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4.0 * 16 * 16 * 32 * 2 * static_cast<double>(rounds);
}
#endif

// Best rate of `work` (which returns the operations it did), summed over threads.
template <typename Work>
double PeakRate(ThreadPool& pool, Work work) {
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<double> operations(pool.threads(), 0);
    const double begin = Now();
    pool.ParallelFor(pool.threads(), [&](int64_t task, int) { operations[task] = work(); });
    double total = 0;
    for (const double ops : operations) total += ops;
    best = std::max(best, total / (Now() - begin));
  }
  return best;
}

}  // namespace

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double MeasureReadBandwidth(ThreadPool& pool) {
  void* mapped = mmap(nullptr, kReadBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  HADAL_CHECK(mapped != MAP_FAILED);
  madvise(mapped, kReadBytes, MADV_HUGEPAGE);
  std::memset(mapped, 1, kReadBytes);
  const auto* words = static_cast<const uint64_t*>(mapped);
  constexpr int64_t kTaskWords = (1 << 20) / 8;
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    const double begin = Now();
    pool.ParallelFor(kReadBytes / 8 / kTaskWords, [&](int64_t task, int) {
      uint64_t sum[8] = {};
      const uint64_t* p = words + task * kTaskWords;
      for (int64_t i = 0; i < kTaskWords; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] += p[i + j];
      }
      uint64_t total = 0;
      for (const uint64_t s : sum) total += s;
      sink += total;
    });
    best = std::max(best, static_cast<double>(kReadBytes) / (Now() - begin));
  }
  munmap(mapped, kReadBytes);
  return best / 1e9;
}

MachineLimits MeasureMachine(ThreadPool& pool) {
  MachineLimits limits;
  limits.read_gb_per_s = MeasureReadBandwidth(pool);
#if defined(__x86_64__)
  constexpr int64_t kRounds = 2'000'000;
  if (__builtin_cpu_supports("avx512f") != 0) {
    limits.f32_gflop_per_s = PeakRate(pool, [] { return F32Avx512(kRounds); }) / 1e9;
  } else if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    limits.f32_gflop_per_s = PeakRate(pool, [] { return F32Avx2(kRounds); }) / 1e9;
  }
  // AmxLinear asks the kernel for the tile registers, which the probe needs too.
  if (cpu::AmxLinear() != nullptr) limits.bf16_gflop_per_s = PeakRate(pool, [] { return Bf16Amx(kRounds); }) / 1e9;
#endif
  return limits;
}

std::string DescribeLimits(const MachineLimits& limits, int threads) {
  return fmt::format("machine, {} thread{}: memory read {:.1f} GB/s, bf16 (AMX) {:.0f} GFLOP/s, fp32 {:.0f} GFLOP/s",
                     threads, threads == 1 ? "" : "s", limits.read_gb_per_s, limits.bf16_gflop_per_s,
                     limits.f32_gflop_per_s);
}

}  // namespace hadal::bench
