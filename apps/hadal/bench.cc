// hadal bench: how fast this machine serves a model: one batch at a time, as much as goes through, under arriving load,
// and with what prefixes save.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "base/status.h"
#include "bench_report.h"
#include "checkpoint/memory_plan.h"
#include "cli.h"
#include "engine_flags.h"
#include "text/json_text.h"

namespace hadal::cli {
namespace {

using runtime::GenerateRequest;
using runtime::GenerateResult;
using text::Json;
using Clock = std::chrono::steady_clock;

constexpr const char* kNote =
    "Prompts are random text tokens; answers go on behind end tokens. Seconds unless a unit is given.";

struct BenchFlags {
  EngineFlags engine;
  std::string mode;
  int64_t input_len = 512;
  int64_t output_len = 128;
  int64_t prefix_len = 1024;
  int64_t long_input_len = 0;
  int64_t num_prompts = 32;
  int64_t num_iters = 5;
  int64_t batch_size = 1;
  double request_rate = 1;
  double temperature = 0;
  double draft_acceptance = -1;  // negative: as the draft block drafts
  uint64_t seed = 0;
  bool json = false;
};

struct Sample {
  double arrival = 0;
  std::vector<double> tokens;  // when each came
  int64_t prompt_tokens = 0, cached_tokens = 0;

  double ttft() const { return tokens.front() - arrival; }
  double e2e() const { return tokens.back() - arrival; }
};

int64_t PeakResidentBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

class Bench {
 public:
  Bench(const BenchFlags& flags, runtime::Engine* engine)
      : flags_(flags), engine_(engine), random_(static_cast<uint32_t>(flags.seed)) {
    const text::Tokenizer& tokenizer = *engine->tokenizer();
    for (int32_t id = 0; id < static_cast<int32_t>(tokenizer.vocab_size()); ++id) {
      if (!tokenizer.IsAdded(id)) text_ids_.push_back(id);
    }
  }

  absl::Status Run() {
    if (text_ids_.size() < 2) return InvalidArgument("the tokenizer has less than two text tokens");
    HADAL_RETURN_IF_ERROR(WarmUp());
    if (flags_.mode == "latency") return Latency();
    if (flags_.mode == "throughput") return Throughput();
    if (flags_.mode == "serve-sim") return ServeSim();
    return Prefix();
  }

  const Json& report() const { return report_; }

 private:
  std::vector<int32_t> RandomIds(int64_t count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int32_t& id : ids) id = text_ids_[random_() % text_ids_.size()];
    return ids;
  }
  GenerateRequest Request(std::vector<int32_t> prompt, int64_t max_tokens) const {
    GenerateRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.ignore_end = true;
    request.sampling.temperature = flags_.temperature;
    request.sampling.seed = flags_.seed;
    return request;
  }
  static double Now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

  // The request joins samples_; a failure ends the run. `sequences` receives its prompt and answer in one.
  absl::Status Submit(GenerateRequest request, double arrival, std::vector<std::vector<int32_t>>* sequences = nullptr) {
    samples_.push_back(std::make_unique<Sample>());
    Sample* sample = samples_.back().get();
    sample->arrival = arrival;
    runtime::RequestCallbacks callbacks;
    callbacks.on_events = [this, sample, count = request.max_tokens](const auto&) {
      if (static_cast<int64_t>(sample->tokens.size()) < count) sample->tokens.push_back(Now());
      return !interrupt_.interrupted();
    };
    callbacks.on_done = [this, sample, sequences,
                         prompt = request.prompt](const absl::StatusOr<GenerateResult>& result) mutable {
      if (!result.ok()) {
        failure_ = result.status();
        return;
      }
      if (result->finish_reason == runtime::FinishReason::kCancelled) failure_ = absl::CancelledError("interrupted");
      sample->prompt_tokens = result->prompt_tokens;
      sample->cached_tokens = result->cached_tokens;
      if (sequences == nullptr) return;
      prompt.insert(prompt.end(), result->token_ids.begin(), result->token_ids.end());
      sequences->push_back(std::move(prompt));
    };
    return engine_->executor().Submit(std::move(request), std::move(callbacks)).status();
  }
  absl::Status Drain() {
    while (failure_.ok() && engine_->executor().Step()) {
    }
    return failure_;
  }

  // Memory that is touched for the first time is slow.
  absl::Status WarmUp() {
    HADAL_RETURN_IF_ERROR(Submit(Request(RandomIds(std::min<int64_t>(flags_.input_len, 16)), 4), Now()));
    HADAL_RETURN_IF_ERROR(Drain());
    samples_.clear();
    before_ = engine_->executor().stats();
    return absl::OkStatus();
  }

  absl::Status Latency() {
    for (int64_t i = 0; i < flags_.num_iters; ++i) {
      std::vector<GenerateRequest> requests;
      requests.reserve(static_cast<size_t>(flags_.batch_size));
      for (int64_t b = 0; b < flags_.batch_size; ++b) {
        requests.push_back(Request(RandomIds(flags_.input_len), flags_.output_len));
      }
      if (flags_.draft_acceptance >= 0) HADAL_RETURN_IF_ERROR(LearnAnswers(requests));
      const double now = Now();
      for (GenerateRequest& request : requests) HADAL_RETURN_IF_ERROR(Submit(std::move(request), now));
      HADAL_RETURN_IF_ERROR(Drain());
    }
    Report();
    return absl::OkStatus();
  }

  // Runs the requests once, unmeasured, and lets drafts be right with --draft-acceptance from then on: no draft changes
  // a token, so what the second run will draw is known.
  absl::Status LearnAnswers(const std::vector<GenerateRequest>& requests) {
    const runtime::ExecutorStats begin = engine_->executor().stats();
    const size_t measured = samples_.size();
    engine_->executor().SetDraftSource(nullptr);
    answers_.clear();
    for (GenerateRequest request : requests) {
      request.cache_salt = "unmeasured";  // the second run computes its prompts anew
      HADAL_RETURN_IF_ERROR(Submit(std::move(request), Now(), &answers_));
    }
    HADAL_RETURN_IF_ERROR(Drain());
    samples_.resize(measured);
    Skip(begin);
    engine_->executor().SetDraftSource(
        [this](std::span<const int32_t> tokens, int64_t count) { return DraftsFor(tokens, count); }, true);
    return absl::OkStatus();
  }

  std::vector<int32_t> DraftsFor(std::span<const int32_t> tokens, int64_t count) {
    std::vector<int32_t> drafts;
    for (const std::vector<int32_t>& answer : answers_) {
      if (answer.size() <= tokens.size() || !std::equal(tokens.begin(), tokens.end(), answer.begin())) continue;
      std::bernoulli_distribution right(flags_.draft_acceptance);
      const size_t end = std::min(answer.size(), tokens.size() + static_cast<size_t>(count));
      for (size_t i = tokens.size(); i < end; ++i) {
        drafts.push_back(right(random_drafts_) ? answer[i] : (answer[i] == text_ids_[0] ? text_ids_[1] : text_ids_[0]));
      }
      break;
    }
    return drafts;
  }

  // What was done since `begin` is not reported.
  void Skip(const runtime::ExecutorStats& begin) {
    const runtime::ExecutorStats now = engine_->executor().stats();
    before_.steps += now.steps - begin.steps;
    before_.preemptions += now.preemptions - begin.preemptions;
    before_.drafts += now.drafts - begin.drafts;
    before_.accepted_tokens += now.accepted_tokens - begin.accepted_tokens;
    for (size_t i = 0; i < before_.drafted_at.size(); ++i) {
      before_.drafted_at[i] += now.drafted_at[i] - begin.drafted_at[i];
      before_.accepted_at[i] += now.accepted_at[i] - begin.accepted_at[i];
    }
  }

  absl::Status Throughput() {
    const double begin = Now();
    for (int64_t i = 0; i < flags_.num_prompts; ++i) {
      HADAL_RETURN_IF_ERROR(Submit(Request(RandomIds(flags_.input_len), flags_.output_len), begin));
    }
    HADAL_RETURN_IF_ERROR(Drain());
    ReportRates(Now() - begin);
    Report();
    return absl::OkStatus();
  }

  absl::Status ServeSim() {
    std::exponential_distribution<double> gap(flags_.request_rate);
    std::vector<std::pair<double, int64_t>> arrivals;  // when, and how long the prompt is
    double at = 0;
    for (int64_t i = 0; i < flags_.num_prompts; ++i) {
      arrivals.emplace_back(at, flags_.input_len);
      at += gap(random_);
    }
    if (flags_.long_input_len > 0) arrivals.emplace_back(at / 2, flags_.long_input_len);
    std::sort(arrivals.begin(), arrivals.end());
    const double begin = Now();
    size_t next = 0;
    while (failure_.ok() && (next < arrivals.size() || !engine_->executor().idle())) {
      for (; next < arrivals.size() && begin + arrivals[next].first <= Now(); ++next) {
        HADAL_RETURN_IF_ERROR(
            Submit(Request(RandomIds(arrivals[next].second), flags_.output_len), begin + arrivals[next].first));
      }
      if (engine_->executor().Step()) continue;
      if (next < arrivals.size()) {
        const double wait = begin + arrivals[next].first - Now();
        if (wait > 0) std::this_thread::sleep_for(std::chrono::duration<double>(wait));
      }
      if (interrupt_.interrupted()) return absl::CancelledError("interrupted");
    }
    HADAL_RETURN_IF_ERROR(failure_);
    ReportRates(Now() - begin);
    Report();
    return absl::OkStatus();
  }

  absl::Status Prefix() {
    std::vector<std::vector<int32_t>> prompts;
    const std::vector<int32_t> shared = RandomIds(flags_.prefix_len);
    for (int64_t i = 0; i < flags_.num_prompts; ++i) {
      prompts.push_back(shared);
      const std::vector<int32_t> own = RandomIds(flags_.input_len);
      prompts.back().insert(prompts.back().end(), own.begin(), own.end());
    }
    // One after the other, so that what is measured is the prefix and not the queue.
    const auto serve = [&](bool cold, const char* name) -> absl::StatusOr<double> {
      samples_.clear();
      for (const std::vector<int32_t>& prompt : prompts) {
        if (cold) engine_->executor().cache().ResetPrefixCache();
        HADAL_RETURN_IF_ERROR(Submit(Request(prompt, 1), Now()));
        HADAL_RETURN_IF_ERROR(Drain());
      }
      std::vector<double> ttft;
      int64_t tokens = 0, cached = 0;
      for (const auto& sample : samples_) {
        ttft.push_back(sample->ttft());
        tokens += sample->prompt_tokens;
        cached += sample->cached_tokens;
      }
      AddDistribution(fmt::format("ttft_{}", name), ttft, &report_);
      report_[fmt::format("hit_rate_{}", name)] = static_cast<double>(cached) / static_cast<double>(tokens);
      return Percentile(ttft, 50);
    };
    HADAL_ASSIGN_OR_RETURN(const double cold, serve(true, "cold"));
    // The second prompt leaves a tail where the prompts part; from the third on they start there.
    HADAL_RETURN_IF_ERROR(serve(false, "first").status());
    HADAL_ASSIGN_OR_RETURN(const double warm, serve(false, "warm"));
    report_["speedup"] = cold / warm;
    return absl::OkStatus();
  }

  void ReportRates(double seconds) {
    int64_t input = 0, output = 0;
    for (const auto& sample : samples_) {
      input += sample->prompt_tokens;
      output += static_cast<int64_t>(sample->tokens.size());
    }
    report_["seconds"] = seconds;
    report_["requests_per_second"] = static_cast<double>(samples_.size()) / seconds;
    report_["input_tokens_per_second"] = static_cast<double>(input) / seconds;
    report_["output_tokens_per_second"] = static_cast<double>(output) / seconds;
  }

  // A step that gives a request several tokens counts as that many, of equal length (spec serving-runtime 6.12).
  static void AddGaps(const Sample& sample, std::vector<double>* gaps) {
    for (size_t i = 1; i < sample.tokens.size();) {
      size_t end = i + 1;
      while (end < sample.tokens.size() && sample.tokens[end] - sample.tokens[end - 1] < kSameStep) ++end;
      const double gap = (sample.tokens[end - 1] - sample.tokens[i - 1]) / static_cast<double>(end - i);
      gaps->insert(gaps->end(), end - i, gap);
      i = end;
    }
  }

  void Report() {
    std::vector<double> ttft, gaps, e2e, rates;
    for (const auto& sample : samples_) {
      if (sample->tokens.empty()) continue;
      ttft.push_back(sample->ttft());
      e2e.push_back(sample->e2e());
      AddGaps(*sample, &gaps);
      if (sample->tokens.size() > 1) {
        rates.push_back(static_cast<double>(sample->tokens.size() - 1) / (sample->tokens.back() - sample->tokens[0]));
      }
    }
    AddDistribution("ttft", ttft, &report_);
    AddDistribution("inter_token", gaps, &report_);
    AddDistribution("e2e", e2e, &report_);
    AddDistribution("output_tokens_per_second_of_a_request", rates, &report_);
    const runtime::ExecutorStats stats = engine_->executor().stats();
    report_["steps"] = stats.steps - before_.steps;
    report_["preemptions"] = stats.preemptions - before_.preemptions;
    if (const int64_t drafts = stats.drafts - before_.drafts; drafts > 0) {
      const int64_t accepted = stats.accepted_tokens - before_.accepted_tokens;
      Json spec;
      spec["mean_acceptance_length"] = 1 + static_cast<double>(accepted) / static_cast<double>(drafts);
      for (size_t i = 0; i < stats.accepted_at.size(); ++i) {
        const int64_t tried = stats.drafted_at[i] - before_.drafted_at[i];
        const int64_t held = stats.accepted_at[i] - before_.accepted_at[i];
        spec["acceptance_rate_by_position"].push_back(tried == 0 ? 0 : static_cast<double>(held) / drafts);
      }
      report_["speculation"] = std::move(spec);
    }
  }

  static constexpr double kSameStep = 20e-6;  // no model takes a step in less

  const BenchFlags& flags_;
  runtime::Engine* engine_;
  std::mt19937 random_, random_drafts_;
  std::vector<int32_t> text_ids_;
  std::vector<std::vector<int32_t>> answers_;  // prompts and answers of the batch, if drafts are to be right
  InterruptScope interrupt_;
  std::vector<std::unique_ptr<Sample>> samples_;
  runtime::ExecutorStats before_;
  absl::Status failure_;
  Json report_ = Json::object();
};

int RunBench(const BenchFlags& flags) {
  if (flags.draft_acceptance >= 0 && flags.engine.num_speculative_tokens() == 0) {
    return Fail(kUsage, "--draft-acceptance: expected with --num-speculative-tokens 1 or more");
  }
  if (flags.draft_acceptance >= 0 && flags.engine.rejection_sampling()) {
    return Fail(kUsage, "--draft-acceptance excludes --rejection-sampling, where tokens depend on drafts");
  }
  int code = kOk;
  const std::unique_ptr<runtime::Engine> engine = flags.engine.Load(&code);
  if (engine == nullptr) return code;
  Bench bench(flags, engine.get());
  const absl::Status status = bench.Run();
  if (absl::IsCancelled(status)) return Fail(kInterrupted, "interrupted");
  if (!status.ok()) return FailRequest(status);
  Json report = {{"mode", flags.mode},
                 {"engine", engine->description()},
                 {"cache", engine->CacheDescription()},
                 {"weights", checkpoint::BytesText(engine->memory_plan().weights())},
                 {"planned_bytes", engine->memory_plan().total()},
                 {"peak_resident_bytes", PeakResidentBytes()}};
  for (const auto& [name, value] : bench.report().items()) report[name] = value;
  return PrintReport(report, flags.json);
}

struct Mode {
  const char* name;
  const char* what;
  bool many;  // --num-prompts requests
};

constexpr Mode kModes[] = {
    {"latency", "--batch-size requests at a time, --num-iters times: what one user waits", false},
    {"throughput", "--num-prompts requests at once: what goes through", true},
    {"serve-sim", "Requests that arrive at --request-rate, inside this process: what users wait under load", true},
    {"prefix", "Requests that share --prefix-len tokens, first computed, then found in the prefix cache", true},
};

void AddMode(CLI::App* bench, const Mode& m, int* result) {
  auto flags = std::make_shared<BenchFlags>();
  flags->mode = m.name;
  CLI::App* mode = bench->add_subcommand(m.name, m.what);
  flags->engine.Register(mode);
  const std::string group = "Load";
  const auto count = [&](const char* name, int64_t* value, const char* what) {
    mode->add_option(name, *value, what)->check(CLI::PositiveNumber)->capture_default_str()->group(group);
  };
  const bool latency = flags->mode == "latency", prefix = flags->mode == "prefix";
  count("--input-len", &flags->input_len, prefix ? "Tokens of a prompt behind the shared ones" : "Tokens of a prompt");
  if (prefix) {
    count("--prefix-len", &flags->prefix_len, "Tokens that all prompts share");
  } else {
    count("--output-len", &flags->output_len, "Tokens of an answer");
  }
  if (m.many) count("--num-prompts", &flags->num_prompts, "Requests");
  if (latency) {
    count("--num-iters", &flags->num_iters, "Repetitions");
    count("--batch-size", &flags->batch_size, "Requests at a time");
    mode->add_option("--draft-acceptance", flags->draft_acceptance,
                     "Let drafts hold with this probability, each behind one that held, whatever the draft block "
                     "drafts: what a trained block would save on a model of random weights [as it drafts]")
        ->check(CLI::Range(0.0, 1.0))
        ->group(group);
  }
  if (flags->mode == "serve-sim") {
    mode->add_option("--long-input-len", flags->long_input_len,
                     "Tokens of one more, long prompt in the middle, whose effect on the others shows in the gaps "
                     "[none]")
        ->check(CLI::NonNegativeNumber)
        ->group(group);
    mode->add_option("--request-rate", flags->request_rate, "Requests a second, with exponential gaps")
        ->check(CLI::PositiveNumber)
        ->capture_default_str()
        ->group(group);
  }
  mode->add_option("--temperature", flags->temperature, "0 to 2")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str()
      ->group(group);
  mode->add_option("--seed", flags->seed, "Of prompts, arrivals and answers")->capture_default_str()->group(group);
  mode->add_flag("--json", flags->json, "Print one JSON object")->group("Output");
  mode->footer(kNote);
  mode->callback([=] { *result = RunBench(*flags); });
}

}  // namespace

void AddBench(CLI::App* app, int* result) {
  CLI::App* bench = app->add_subcommand("bench", "Measure how fast a model is served");
  for (const Mode& mode : kModes) AddMode(bench, mode, result);
  AddBenchServe(bench, result);
  // CLI11 alone would say that a subcommand is required, not which there are.
  bench->require_subcommand(0, 1)->allow_extras()->callback([=] {
    if (!bench->get_subcommands().empty()) return;
    const std::vector<std::string> found = bench->remaining();
    *result = Fail(kUsage, fmt::format("bench: expected latency, throughput, serve-sim, prefix or serve, found {}",
                                       found.empty() ? "none" : found.front()));
  });
}

}  // namespace hadal::cli
