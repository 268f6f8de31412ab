#include "batch.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "batch_output.h"
#include "cli.h"
#include "runtime/executor.h"
#include "serving/openai/job.h"

namespace hadal::cli {
namespace {

using runtime::GenerateResult;
using text::Json;
using Clock = std::chrono::steady_clock;

constexpr const char* kChatUrl = "/v1/chat/completions";
constexpr const char* kCompletionUrl = "/v1/completions";

bool IsBlank(const std::string& line) { return line.find_first_not_of(" \t\r") == std::string::npos; }

// A line of the input that has a request on it.
struct Line {
  int64_t number = 0;  // from 1
  std::string custom_id;
  bool chat = true;
  Json body;
};

// The envelope around a request. custom_id is set as soon as it is known, also if the rest is wrong.
absl::Status ReadEnvelope(const std::string& text, Line* line) {
  HADAL_ASSIGN_OR_RETURN(Json json, text::ParseJson(text));
  if (!json.is_object()) return InvalidArgument("expected an object");
  const auto string = [&](const char* name) {
    return json.contains(name) && json[name].is_string() ? json[name].get<std::string>() : std::string();
  };
  line->custom_id = string("custom_id");
  if (line->custom_id.empty()) return InvalidArgument("custom_id: expected a string that is not empty");
  if (string("method") != "POST") return InvalidArgument("method: expected \"POST\"");
  const std::string url = string("url");
  if (url != kChatUrl && url != kCompletionUrl) {
    return InvalidArgument("url: expected \"{}\" or \"{}\"", kChatUrl, kCompletionUrl);
  }
  line->chat = url == kChatUrl;
  if (!json.contains("body") || !json["body"].is_object()) return InvalidArgument("body: expected an object");
  line->body = std::move(json["body"]);
  return absl::OkStatus();
}

// The lines of the input, one after the other.
class BatchInput {
 public:
  // Counts the requests. InvalidArgument if the file cannot be read.
  absl::Status Open(const std::string& path) {
    path_ = path;
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
      return InvalidArgument("{}: expected a file of requests, which is read more than once", path);
    }
    std::ifstream count(path, std::ios::binary);
    for (std::string line; std::getline(count, line);) total_ += IsBlank(line) ? 0 : 1;
    file_.open(path, std::ios::binary);
    if (!file_ || count.bad()) return InvalidArgument("{}: cannot be read", path);
    return absl::OkStatus();
  }

  // The next line that is not blank; false at the end.
  bool Next(std::string* text, int64_t* number) {
    while (std::getline(file_, *text)) {
      ++number_;
      *number = number_;
      if (!IsBlank(*text)) return true;
    }
    return false;
  }

  int64_t total() const { return total_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::ifstream file_;
  int64_t number_ = 0;
  int64_t total_ = 0;
};

// A request of the batch on its way through the executor: one sequence for each answer that it wants.
struct Task {
  std::string custom_id;
  serving::Job job;
  size_t submitted = 0;
  size_t ended = 0;
  std::vector<int64_t> ids;  // of the executor, of those submitted
  std::vector<GenerateResult> results;
  absl::Status status;  // the first failure

  bool all_submitted() const { return submitted == job.requests.size() || !status.ok(); }
  bool over() const { return all_submitted() && ended == ids.size(); }
};

class Batch {
 public:
  Batch(const BatchFlags& flags, BatchInput* input, BatchOutput* output, DoneRequests done, runtime::Engine* engine)
      : input_(*input),
        output_(*output),
        done_before_(std::move(done)),
        engine_(*engine),
        executor_(engine->executor()),
        most_in_flight_(2 * static_cast<size_t>(engine->model().limits().max_seqs)),
        failed_(done_before_.failed) {
    options_.model = flags.engine.model_name();
    flags.sampling.Apply(engine->default_sampling(), engine->tokenizer().get(), &options_.defaults.emplace());
    options_.has_seed = flags.sampling.has_seed();
  }

  // Cancelled after ^C; other errors are of the output.
  absl::Status Run() {
    InterruptScope interrupt;
    while (true) {
      if (interrupt.interrupted()) {
        AbortAll();
        HADAL_RETURN_IF_ERROR(output_.Sync());
        return absl::CancelledError("interrupted");
      }
      HADAL_RETURN_IF_ERROR(Fill());
      if (tasks_.empty()) break;
      // A request that ended while it was submitted leaves nothing to step.
      if (!executor_.idle() && !executor_.Step()) return absl::InternalError("requests are waiting and none can run");
      HADAL_RETURN_IF_ERROR(Collect());
      ShowProgress();
    }
    return output_.Sync();
  }

  int64_t done() const { return done_; }
  int64_t failed() const { return failed_; }
  int64_t skipped() const { return skipped_; }

  std::string Summary() const {
    std::string text = fmt::format("{} of {} requests done", done_, input_.total());
    if (skipped_ > 0) text += fmt::format(" ({} by an earlier run)", skipped_);
    return text + fmt::format(", {} failed, {} tokens generated at {:.1f} tokens/s", failed_, tokens_,
                              static_cast<double>(tokens_) / Seconds());
  }

 private:
  double Seconds() const { return std::max(std::chrono::duration<double>(Clock::now() - start_).count(), 1e-3); }

  // Submits as much as may be in flight: as many as run at once, and as many waiting behind them.
  absl::Status Fill() {
    while (in_flight_ < most_in_flight_) {
      if (!tasks_.empty() && !tasks_.back()->all_submitted()) {
        SubmitNext(tasks_.back().get());
        continue;
      }
      std::string text;
      int64_t number = 0;
      if (!input_.Next(&text, &number)) return absl::OkStatus();
      HADAL_RETURN_IF_ERROR(Take(text, number));
    }
    return absl::OkStatus();
  }

  // A line of the input becomes a task, an error line, or nothing if an earlier run has done it.
  absl::Status Take(const std::string& text, int64_t number) {
    Line line;
    absl::Status status = ReadEnvelope(text, &line);
    const bool is_new = line.custom_id.empty() || seen_.insert(line.custom_id).second;
    if (status.ok() && !is_new) status = InvalidArgument("custom_id: an earlier line has the same");
    if (done_before_.bad_lines.contains(number) || (status.ok() && done_before_.ids.contains(line.custom_id))) {
      ++skipped_;
      ++done_;
      return absl::OkStatus();
    }
    if (!status.ok()) return WriteBadLine(line, number, status);
    auto task = std::make_unique<Task>();
    task->custom_id = line.custom_id;
    absl::StatusOr<serving::Job> job = line.chat ? serving::ParseChatCompletion(line.body, engine_, options_)
                                                 : serving::ParseCompletion(line.body, engine_, options_);
    if (job.ok() && job->stream) job = InvalidArgument("stream: expected false: a batch writes whole answers");
    if (!job.ok()) return WriteError(task->custom_id, job.status());
    task->job = *std::move(job);
    task->results.resize(task->job.requests.size());
    tasks_.push_back(std::move(task));
    return absl::OkStatus();
  }

  void SubmitNext(Task* task) {
    const size_t index = task->submitted++;
    runtime::RequestCallbacks callbacks;
    callbacks.on_events = [this](const std::vector<text::OutputEvent>&) {
      ++tokens_;
      return true;
    };
    callbacks.on_done = [this, task, index](absl::StatusOr<GenerateResult> result) {
      ++task->ended;
      --in_flight_;
      if (result.ok()) {
        task->results[index] = *std::move(result);
      } else if (task->status.ok()) {
        task->status = result.status();
      }
    };
    // The job keeps what answers are built from.
    const absl::StatusOr<int64_t> id = executor_.Submit(task->job.requests[index], std::move(callbacks));
    if (!id.ok()) {
      task->status = id.status();
      return;
    }
    task->ids.push_back(*id);
    ++in_flight_;
  }

  // Writes the results of what is over.
  absl::Status Collect() {
    for (auto it = tasks_.begin(); it != tasks_.end();) {
      Task& task = **it;
      if (!task.status.ok() && !task.over()) {
        for (const int64_t id : task.ids) executor_.Abort(id);
      }
      if (!task.over()) {
        ++it;
        continue;
      }
      const std::unique_ptr<Task> owned = std::move(*it);
      it = tasks_.erase(it);
      if (owned->status.ok()) {
        HADAL_RETURN_IF_ERROR(
            WriteAnswer(owned->custom_id, 200, serving::BuildAnswer(owned->job, owned->results, engine_.tokenizer())));
      } else {
        HADAL_RETURN_IF_ERROR(WriteError(owned->custom_id, owned->status));
      }
    }
    return absl::OkStatus();
  }

  void AbortAll() {
    for (const std::unique_ptr<Task>& task : tasks_) {
      for (const int64_t id : task->ids) executor_.Abort(id);
    }
  }

  absl::Status WriteAnswer(const std::string& custom_id, int http_status, Json body) {
    ++done_;
    failed_ += http_status == 200 ? 0 : 1;
    return output_.Write(text::DumpJson(
        {{"id", serving::RandomId("batch_req_")},
         {"custom_id", custom_id},
         {"response",
          {{"status_code", http_status}, {"request_id", serving::RandomId("req_")}, {"body", std::move(body)}}},
         {"error", nullptr}}));
  }

  absl::Status WriteError(const std::string& custom_id, const absl::Status& status) {
    return WriteAnswer(custom_id, serving::HttpStatus(status), serving::ErrorBody(status));
  }

  // What is no request gets no response. The line's number is what a later run knows it by.
  absl::Status WriteBadLine(const Line& line, int64_t number, const absl::Status& status) {
    ++done_;
    ++failed_;
    const std::string message = fmt::format("{} line {}: {}", input_.path(), number, Message(status));
    return output_.Write(
        text::DumpJson({{"id", serving::RandomId("batch_req_")},
                        {"custom_id", line.custom_id.empty() ? Json() : Json(line.custom_id)},
                        {"response", nullptr},
                        {"error", {{"code", "invalid_line"}, {"message", message}, {"line", number}}}}));
  }

  void ShowProgress() {
    constexpr std::chrono::milliseconds kEvery{100};
    const Clock::time_point now = Clock::now();
    if (now - shown_ < kEvery) return;
    shown_ = now;
    progress_.ShowBar("batch", done_, input_.total(),
                      fmt::format("{} of {}, {} failed, {:.1f} tokens/s", done_, input_.total(), failed_,
                                  static_cast<double>(tokens_) / Seconds()));
  }

  BatchInput& input_;
  BatchOutput& output_;
  const DoneRequests done_before_;
  runtime::Engine& engine_;
  runtime::Executor& executor_;
  serving::ParseOptions options_;
  const size_t most_in_flight_;
  absl::flat_hash_set<std::string> seen_;  // custom_ids of the input
  std::list<std::unique_ptr<Task>> tasks_;
  size_t in_flight_ = 0;  // sequences
  int64_t done_ = 0, failed_ = 0, skipped_ = 0;
  int64_t tokens_ = 0;  // generated, about: each request ends with one more call
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_;
  ProgressLine progress_;
};

int FailOutput(const absl::Status& status) {
  if (absl::IsAborted(status)) return OutputResult();
  return Fail(absl::IsResourceExhausted(status) ? kNoMemory : kInternal, Message(status));
}

}  // namespace

int RunBatch(BatchFlags flags) {
  BatchInput input;
  if (const absl::Status status = input.Open(flags.input); !status.ok()) return FailRequest(status);
  BatchOutput output;
  DoneRequests done;
  bool cut = false;
  if (const absl::Status status = output.Open(flags.output, &done, &cut); !status.ok()) return FailRequest(status);
  if (cut) Warn(fmt::format("{}: the last line was not written to its end: cut off", flags.output));

  flags.engine.SetDefaultMaxSeqs(kBatchMaxSeqs);
  int code = kOk;
  const std::unique_ptr<runtime::Engine> engine = flags.engine.Load(&code);
  if (engine == nullptr) return code;
  std::string summary;
  absl::Status status;
  int64_t failed = 0;
  {
    Batch batch(flags, &input, &output, std::move(done), engine.get());
    status = batch.Run();
    summary = batch.Summary();
    failed = batch.failed();
  }
  if (absl::IsCancelled(status)) {
    const char* resume = output.to_stdout() ? "" : "; the same command again does the rest";
    return Fail(kInterrupted, fmt::format("interrupted: {}{}", summary, resume));
  }
  if (!status.ok()) return FailOutput(status);
  std::fputs((summary + "\n").c_str(), stderr);
  return failed == 0 ? kOk : Fail(kBadRequest, fmt::format("{} of {} requests failed", failed, input.total()));
}

}  // namespace hadal::cli
