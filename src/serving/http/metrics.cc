#include "serving/http/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace hadal::serving {
namespace {

using runtime::FinishReason;
using runtime::GenerateResult;

// The buckets of vLLM, so that its dashboards fit.
std::vector<double> TtftBounds() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560};
}
std::vector<double> TokenTimeBounds() {
  return {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
}
std::vector<double> LatencyBounds() {
  return {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}
// 1, 2, 5, 10, ... up to the context.
std::vector<double> SizeBounds(int64_t most) {
  std::vector<double> bounds;
  for (int64_t decade = 1; decade <= most; decade *= 10) {
    for (const int64_t step : {1, 2, 5}) {
      if (decade * step <= most) bounds.push_back(static_cast<double>(decade * step));
    }
  }
  return bounds;
}

// A label's value: backslash, quote and newline are escaped.
std::string Escaped(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

void Describe(const char* name, const char* type, const char* help, std::string* out) {
  *out += fmt::format("# HELP vllm:{} {}\n# TYPE vllm:{} {}\n", name, help, name, type);
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds_.size() + 1)) {}

void Histogram::Observe(double value, uint64_t times) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(times, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(times), std::memory_order_relaxed);
}

void Histogram::Print(const std::string& name, const std::string& labels, std::string* out) const {
  uint64_t total = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    total += counts_[i].load(std::memory_order_relaxed);
    *out += fmt::format("vllm:{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], total);
  }
  total += counts_[bounds_.size()].load(std::memory_order_relaxed);
  *out += fmt::format("vllm:{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, total);
  *out += fmt::format("vllm:{}_sum{{{}}} {}\n", name, labels, sum_.load(std::memory_order_relaxed));
  *out += fmt::format("vllm:{}_count{{{}}} {}\n", name, labels, total);
}

Metrics::Metrics(Info info)
    : info_(std::move(info)),
      labels_(fmt::format("model_name=\"{}\",engine=\"0\"", Escaped(info_.model_name))),
      ttft_(TtftBounds()),
      inter_token_(TokenTimeBounds()),
      per_token_(TokenTimeBounds()),
      e2e_(LatencyBounds()),
      queue_(LatencyBounds()),
      prefill_(LatencyBounds()),
      decode_(LatencyBounds()),
      inference_(LatencyBounds()),
      prompt_sizes_(SizeBounds(info_.max_model_len)),
      generation_sizes_(SizeBounds(info_.max_model_len)),
      max_generation_sizes_(SizeBounds(info_.max_model_len)),
      max_tokens_(SizeBounds(info_.max_model_len)),
      params_n_({1, 2, 5, 10, 20}) {}

std::string Metrics::Text(const runtime::ServiceStats& stats) const {
  std::string out;
  const auto gauge = [&](const char* name, const char* help, double value) {
    Describe(name, "gauge", help, &out);
    out += fmt::format("vllm:{}{{{}}} {}\n", name, labels_, value);
  };
  // Counters have _total behind their name.
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    Describe(name, "counter", help, &out);
    out += fmt::format("vllm:{}{{{}}} {}\n", name, labels_, value);
  };
  const auto histogram = [&](const char* name, const char* help, const Histogram& values) {
    Describe(name, "histogram", help, &out);
    values.Print(name, labels_, &out);
  };
  gauge("num_requests_running", "Requests that run.", static_cast<double>(stats.running));
  gauge("num_requests_waiting", "Requests that wait.", static_cast<double>(stats.waiting));
  gauge("kv_cache_usage_perc", "Share of the cache's blocks that running requests hold, 0 to 1.", stats.cache_usage);
  Describe("cache_config_info", "gauge", "The cache as it was set up.", &out);
  out += fmt::format(
      "vllm:cache_config_info{{{},block_size=\"{}\",num_gpu_blocks=\"{}\",cache_dtype=\"{}\",max_model_len=\"{}\"}} "
      "1\n",
      labels_, info_.block_size, info_.blocks, Escaped(info_.cache_dtype), info_.max_model_len);

  counter("prefix_cache_queries_total", "Tokens of prompts that were looked up in the prefix cache.",
          static_cast<uint64_t>(stats.cache.query_tokens));
  counter("prefix_cache_hits_total", "Tokens of prompts that were found there.",
          static_cast<uint64_t>(stats.cache.hit_tokens));
  counter("num_preemptions_total", "Requests that had to give up their blocks and wait again.",
          static_cast<uint64_t>(stats.executor.preemptions));
  counter("prompt_tokens_total", "Tokens of prompts whose answer has begun.", prompt_tokens_);
  counter("generation_tokens_total", "Tokens generated.", generation_tokens_);
  counter("corrupted_requests_total", "Requests that ended by a fault of the engine.", corrupted_);
  counter("request_rejections_total", "Requests that were turned away because too many waited.", rejections_);
  Describe("request_success_total", "counter", "Requests that ended, by reason.", &out);
  for (const auto& [reason, count] : {std::pair<const char*, const std::atomic<uint64_t>*>{"stop", &stopped_},
                                      {"length", &cut_},
                                      {"abort", &aborted_},
                                      {"error", &failed_}}) {
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels_, reason, count->load());
  }
  if (!stats.executor.drafted_at.empty()) {
    counter("spec_decode_num_drafts_total", "Steps of a request that checked drafts.",
            static_cast<uint64_t>(stats.executor.drafts));
    counter("spec_decode_num_draft_tokens_total", "Drafts checked.",
            static_cast<uint64_t>(stats.executor.draft_tokens));
    counter("spec_decode_num_accepted_tokens_total", "Drafts that held.",
            static_cast<uint64_t>(stats.executor.accepted_tokens));
    Describe("spec_decode_num_accepted_tokens_per_pos_total", "counter", "Drafts that held, by their place.", &out);
    for (size_t i = 0; i < stats.executor.accepted_at.size(); ++i) {
      out += fmt::format("vllm:spec_decode_num_accepted_tokens_per_pos_total{{{},position=\"{}\"}} {}\n", labels_, i,
                         stats.executor.accepted_at[i]);
    }
  }
  histogram("time_to_first_token_seconds", "From a request's arrival to its first token.", ttft_);
  histogram("inter_token_latency_seconds", "Between two tokens of a request.", inter_token_);
  histogram("request_time_per_output_token_seconds", "A request's time for a token, the first left out.", per_token_);
  histogram("e2e_request_latency_seconds", "From a request's arrival to its end.", e2e_);
  histogram("request_queue_time_seconds", "Waiting.", queue_);
  histogram("request_prefill_time_seconds", "From the start to the first token.", prefill_);
  histogram("request_decode_time_seconds", "From the first token to the last.", decode_);
  histogram("request_inference_time_seconds", "From the start to the last token.", inference_);
  histogram("request_prompt_tokens", "Tokens of a prompt.", prompt_sizes_);
  histogram("request_generation_tokens", "Tokens of an answer.", generation_sizes_);
  histogram("request_max_num_generation_tokens", "Tokens that an answer could have had.", max_generation_sizes_);
  histogram("request_params_max_tokens", "max_tokens of requests that give it.", max_tokens_);
  histogram("request_params_n", "Answers to a prompt.", params_n_);
  return out;
}

RequestMetrics::RequestMetrics(Metrics* metrics, int64_t prompt_tokens, int64_t max_tokens)
    : metrics_(*metrics), prompt_tokens_(prompt_tokens), max_tokens_(max_tokens) {
  if (max_tokens > 0) metrics_.max_tokens_.Observe(static_cast<double>(max_tokens));
}

void RequestMetrics::OnToken(Clock::time_point now) {
  metrics_.generation_tokens_.fetch_add(1, std::memory_order_relaxed);
  if (tokens_++ == 0) {
    metrics_.ttft_.Observe(std::chrono::duration<double>(now - arrival_).count());
    metrics_.prompt_tokens_.fetch_add(static_cast<uint64_t>(prompt_tokens_), std::memory_order_relaxed);
    step_ = now;
    return;  // nothing stands before it
  }
  if (now != step_) {
    EndStep();
    before_ = step_;
    step_ = now;
  }
  ++in_step_;
}

void RequestMetrics::EndStep() {
  if (in_step_ == 0) return;
  const double seconds = std::chrono::duration<double>(step_ - before_).count();
  metrics_.inter_token_.Observe(seconds / static_cast<double>(in_step_), in_step_);
  in_step_ = 0;
}

void RequestMetrics::OnDone(const absl::StatusOr<GenerateResult>& result) {
  EndStep();
  if (!result.ok()) {
    ++metrics_.failed_;
    if (absl::IsInternal(result.status())) ++metrics_.corrupted_;
    return;
  }
  switch (result->finish_reason) {
    case FinishReason::kStop:
    case FinishReason::kToolCalls:
      ++metrics_.stopped_;
      break;
    case FinishReason::kLength:
      ++metrics_.cut_;
      break;
    case FinishReason::kCancelled:
      ++metrics_.aborted_;
      break;
  }
  const runtime::GenerateTimings& timings = result->timings;
  const double prefill = timings.prefill_seconds - timings.queue_seconds;
  metrics_.e2e_.Observe(std::chrono::duration<double>(Clock::now() - arrival_).count());
  metrics_.queue_.Observe(timings.queue_seconds);
  metrics_.prefill_.Observe(prefill);
  metrics_.decode_.Observe(timings.decode_seconds);
  metrics_.inference_.Observe(prefill + timings.decode_seconds);
  const size_t tokens = result->token_ids.size();
  if (tokens > 1) metrics_.per_token_.Observe(timings.decode_seconds / static_cast<double>(tokens - 1));
  metrics_.prompt_sizes_.Observe(static_cast<double>(result->prompt_tokens));
  metrics_.generation_sizes_.Observe(static_cast<double>(tokens));
  const int64_t room = metrics_.info_.max_model_len - prompt_tokens_;
  metrics_.max_generation_sizes_.Observe(static_cast<double>(max_tokens_ > 0 ? std::min(max_tokens_, room) : room));
}

}  // namespace hadal::serving
