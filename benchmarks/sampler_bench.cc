// What does a token cost once its logits are there? One row of V = 129280 through each way of drawing, on one thread,
// beside the time that this machine takes to read such a row once from memory.
//
//   sampler_bench [--vocab 129280] [--rows 32] [--seconds 0.5]
//
// Rows "peaked" are like a language model's: most tokens 15 to 25 below the likeliest, a handful near it. Rows "flat"
// are the bad case: every token has a share.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "machine.h"
#include "runtime/sampler.h"

namespace hadal::bench {
namespace {

using runtime::Sampler;
using runtime::SamplingParams;

struct Settings {
  int64_t vocab = 129280;
  int rows = 32;
  double seconds = 0.5;
};

struct Mode {
  const char* name;
  SamplingParams params;
};

std::vector<Mode> Modes() {
  return {{"greedy", {.temperature = 0}},        {"temperature 1", {}},
          {"temperature 2", {.temperature = 2}}, {"top_p 0.95", {.top_p = 0.95}},
          {"top_p 0.999", {.top_p = 0.999}},     {"top_k 50", {.top_k = 50}},
          {"top_k 20000", {.top_k = 20000}},     {"top_k 50, top_p 0.95", {.top_p = 0.95, .top_k = 50}},
          {"min_p 0.05", {.min_p = 0.05}},       {"greedy, 20 logprobs", {.temperature = 0, .logprobs = 20}}};
}

using Rows = std::vector<std::vector<float>>;

Rows MakeRows(const Settings& s, float spread, int peaks) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, spread), peak(18, 3);
  std::uniform_int_distribution<size_t> token(0, static_cast<size_t>(s.vocab) - 1);
  Rows rows(s.rows);
  for (std::vector<float>& row : rows) {
    row.resize(s.vocab);
    for (float& v : row) v = normal(random);
    for (int i = 0; i < peaks; ++i) row[token(random)] = peak(random);
  }
  return rows;
}

// Nanoseconds of `work(i)` for i = 0, 1, ...: of groups of calls, for the given time, the fastest. What else runs on
// the machine makes the others slower.
template <typename Work>
double Measure(double seconds, Work work) {
  constexpr int kGroup = 8;
  const double end = Now() + seconds;
  double best = std::numeric_limits<double>::infinity();
  for (int64_t call = 0; Now() < end;) {
    const double begin = Now();
    for (int i = 0; i < kGroup; ++i) work(call++);
    best = std::min(best, (Now() - begin) / kGroup);
  }
  return 1e9 * best;
}

void Print(const char* rows, const char* name, double ns, double limit) {
  fmt::print("{:<7} {:<22} {:>11.0f} ns per row {:>6.1f} % of one read\n", rows, name, ns, 100 * limit / ns);
}

void Run(const Settings& s) {
  ThreadPool pool(1);
  const double gb_per_s = MeasureReadBandwidth(pool);
  const double limit = 4 * static_cast<double>(s.vocab) / gb_per_s;  // bytes / (bytes per ns)
  fmt::print("machine, 1 thread: memory read {:.1f} GB/s: one read of a row of {} takes {:.0f} ns\n", gb_per_s, s.vocab,
             limit);
  for (const auto& [label, rows] :
       {std::pair<const char*, Rows>{"peaked", MakeRows(s, 3, 8)}, {"flat", MakeRows(s, 1, 0)}}) {
    for (const Mode& mode : Modes()) {
      absl::StatusOr<Sampler> sampler = Sampler::Create(s.vocab, mode.params, {}, {});
      HADAL_CHECK(sampler.ok());
      Print(label, mode.name,
            Measure(s.seconds,
                    [&, &rows = rows](int64_t i) { HADAL_CHECK(sampler->Next(rows[i % rows.size()], i).ok()); }),
            limit);
    }
  }
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  CLI::App app("The sampler over rows of logits");
  hadal::bench::Settings s;
  app.add_option("--vocab", s.vocab, "tokens of a row")->check(CLI::Range(16, 1 << 24));
  app.add_option("--rows", s.rows, "different rows, taken in turn")->check(CLI::Range(1, 4096));
  app.add_option("--seconds", s.seconds, "for each line");
  CLI11_PARSE(app, argc, argv);
  hadal::bench::Run(s);
  return 0;
}
