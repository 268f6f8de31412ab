// What this machine can do, measured: the limits that every benchmark prints beside its result.
#pragma once

#include <cstdint>
#include <string>

#include "base/thread_pool.h"

namespace hadal::bench {

struct MachineLimits {
  double read_gb_per_s = 0;     // reading memory that no cache holds, all threads
  double bf16_gflop_per_s = 0;  // AMX TDPBF16PS on registers, all threads; 0 without AMX
  double f32_gflop_per_s = 0;   // fp32 fused multiply-add, all threads
};

// Takes a few seconds. Peaks are the best of several short runs: what the machine gives when nothing else runs.
MachineLimits MeasureMachine(ThreadPool& pool);
double MeasureReadBandwidth(ThreadPool& pool);

std::string DescribeLimits(const MachineLimits& limits, int threads);

// Seconds of a steady clock.
double Now();

}  // namespace hadal::bench
