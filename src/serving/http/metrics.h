// Counters and histograms of the server in the Prometheus text format, under vLLM's names (spec serving-runtime 6.12).
//
// An object of our own instead of a client library: the hot path is one atomic addition a token, and what the runtime
// counts anyway is read when somebody asks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/request.h"
#include "runtime/service.h"

namespace hadal::serving {

// Observations from any thread.
class Histogram {
 public:
  // Upper bounds, ascending, without infinity.
  explicit Histogram(std::vector<double> bounds);
  void Observe(double value, uint64_t times = 1);
  // Lines of the text format; `labels` without braces.
  void Print(const std::string& name, const std::string& labels, std::string* out) const;

 private:
  const std::vector<double> bounds_;
  const std::unique_ptr<std::atomic<uint64_t>[]> counts_;  // one more, for the rest
  std::atomic<double> sum_ = 0;
};

class Metrics {
 public:
  // What does not change: of the labels and cache_config_info.
  struct Info {
    std::string model_name;
    int64_t max_model_len = 0;
    int64_t block_size = 0;
    int64_t blocks = 0;
    std::string cache_dtype;
  };
  explicit Metrics(Info info);

  std::string Text(const runtime::ServiceStats& stats) const;

  // A request was turned away because too many wait.
  void CountRejection() { ++rejections_; }
  // A job of `n` answers to a prompt.
  void CountJob(int64_t n) { params_n_.Observe(static_cast<double>(n)); }

 private:
  friend class RequestMetrics;

  const Info info_;
  const std::string labels_;
  std::atomic<uint64_t> rejections_ = 0, corrupted_ = 0, prompt_tokens_ = 0, generation_tokens_ = 0;
  std::atomic<uint64_t> stopped_ = 0, cut_ = 0, aborted_ = 0, failed_ = 0;
  Histogram ttft_, inter_token_, per_token_, e2e_, queue_, prefill_, decode_, inference_;
  Histogram prompt_sizes_, generation_sizes_, max_generation_sizes_, max_tokens_, params_n_;
};

// Of one runtime request, on the thread that generates.
class RequestMetrics {
 public:
  using Clock = std::chrono::steady_clock;
  // `max_tokens`: as in GenerateRequest.
  RequestMetrics(Metrics* metrics, int64_t prompt_tokens, int64_t max_tokens);

  void OnToken(Clock::time_point now);
  // Once, last.
  void OnDone(const absl::StatusOr<runtime::GenerateResult>& result);

 private:
  // A step that gave m tokens counts as m gaps of an m-th of its time (spec 6.12).
  void EndStep();

  Metrics& metrics_;
  const int64_t prompt_tokens_, max_tokens_;
  const Clock::time_point arrival_ = Clock::now();
  Clock::time_point step_, before_;  // times of the last step and of the one before
  uint64_t tokens_ = 0, in_step_ = 0;
};

}  // namespace hadal::serving
