// gpu_bench: what its parts share. A row of the report sets a measured time against the time that the machine's limits
// allow for the bytes and operations of the shape.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "machine.h"
#include "ops/ops.h"

namespace hadal::bench {

struct GpuSettings {
  std::string device = "auto";
  bool quick = false;  // small shapes, few repeats: does the program work?
  bool deterministic = false;
  bool fp8_products = false;
  std::string only;  // rows whose kernel's name contains it
  std::string preset = "v4-flash";
  int64_t layers = 4;
  int64_t context = 1024;
  int64_t prompt = 8192;
  int64_t chunk = 4096;
  int64_t decode_steps = 32;
  std::vector<int64_t> batches = {1, 8, 64};
};

struct GpuLimits {
  double copy_gb_per_s = 0;  // read and written, measured
  double fp8_tflop_per_s = 0;
  double bf16_tflop_per_s = 0;  // 0: not known
};

// What a shape has to move and compute.
struct Cost {
  double bytes = 0;
  double fp8_flop = 0;
  double bf16_flop = 0;
};

struct Bar {
  double memory = 75;   // percent of the copy bandwidth, where that is the limit
  double compute = 70;  // percent of the peak, where that is the limit; 0: none is asked for
};

// The table of kernels; prints every row as it comes.
class GpuReport {
 public:
  GpuReport(const GpuLimits& limits, double launch_seconds) : limits_(limits), launch_seconds_(launch_seconds) {}
  void Header() const;
  void Add(std::string_view kernel, std::string_view shape, double seconds, const Cost& cost, const Bar& bar);
  void Summary() const;

 private:
  GpuLimits limits_;
  double launch_seconds_;
  int met_ = 0, missed_ = 0, launch_bound_ = 0;
};

// Seconds that the limits allow for a cost, and the name of the one that binds.
struct Roofline {
  double seconds = 0;
  bool memory_bound = true;
  std::string limit;  // "memory 4010 GB/s"
};
Roofline RooflineOf(const GpuLimits& limits, const Cost& cost);

// Seconds of one call: a warm-up, then the median of three runs of calls that are enqueued together. `call` takes the
// number of the call, by which it turns over its copies of weights.
template <typename Call>
absl::StatusOr<double> TimeCalls(ops::Ops& ops, bool quick, const Call& call) {
  int64_t next = 0;
  call(next++);
  HADAL_RETURN_IF_ERROR(ops.Synchronize());
  const double probe_begin = Now();
  call(next++);
  HADAL_RETURN_IF_ERROR(ops.Synchronize());
  const double probe = std::max(Now() - probe_begin, 1e-7);
  const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>((quick ? 1e-3 : 0.15) / probe), quick ? 1 : 4, 4000);
  std::vector<double> runs;
  for (int run = 0; run < (quick ? 1 : 4); ++run) {  // the first brings the clocks up
    const double begin = Now();
    for (int64_t i = 0; i < calls; ++i) call(next++);
    HADAL_RETURN_IF_ERROR(ops.Synchronize());
    runs.push_back((Now() - begin) / static_cast<double>(calls));
  }
  if (runs.size() > 1) runs.erase(runs.begin());
  std::nth_element(runs.begin(), runs.begin() + static_cast<int64_t>(runs.size() / 2), runs.end());
  return runs[runs.size() / 2];
}

// Random contents of device memory.
enum class Contents {
  kBf16,   // magnitudes in [1/8, 1/2)
  kF32,    // magnitudes in [1/8, 1/4)
  kFp8,    // any e4m3 but NaN
  kBytes,  // any: packed e2m1
  kScale,  // e8m0, 2^-7 each
};
absl::StatusOr<ops::Buffer> RandomBuffer(ops::Ops& ops, Contents contents, size_t bytes);
absl::Status FillRandom(ops::Ops& ops, Contents contents, std::byte* to, size_t bytes);

// A copy in device memory.
absl::StatusOr<ops::Buffer> PutBytes(ops::Ops& ops, const void* data, size_t bytes);
template <typename T>
absl::StatusOr<ops::Buffer> Put(ops::Ops& ops, const std::vector<T>& values) {
  return PutBytes(ops, values.data(), values.size() * sizeof(T));
}
template <typename T>
T* As(const ops::Buffer& buffer) {
  return reinterpret_cast<T*>(buffer.data());
}

absl::Status RunGpuKernels(const GpuSettings& settings, const GpuLimits& limits, double launch_seconds, ops::Ops& ops);
// Makes the model on its own; nothing else may hold much of the device's memory.
absl::Status RunGpuModel(const GpuSettings& settings, const GpuLimits& limits);

}  // namespace hadal::bench
