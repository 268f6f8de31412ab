// Engine and Stream of hadal.hpp: a runtime engine with a service around it.
#include "runtime/engine.h"

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "api/convert.h"
#include "base/status.h"
#include "hadal/hadal.hpp"
#include "runtime/service.h"
#include "serving/openai/job.h"
#include "text/json_text.h"

namespace hadal {
namespace {

// The directory's name, however the path is written.
std::string NameOf(const std::string& model) {
  std::filesystem::path path(model);
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

Error FailedAs(ErrorCode code, std::string message) { return {code, std::move(message)}; }

}  // namespace

// Members of a visible class are visible unless they say otherwise.
struct __attribute__((visibility("hidden"))) Engine::Impl {
  std::unique_ptr<runtime::Engine> engine;
  std::unique_ptr<runtime::Service> service;  // runs the engine's executor
  EngineInfo info;
  int64_t max_in_flight = 1;

  // Runs all of them, at most max_in_flight at a time; results in their order.
  std::vector<absl::StatusOr<runtime::GenerateResult>> RunAll(
      size_t count, const std::function<absl::StatusOr<runtime::GenerateRequest>(size_t)>& request);
  Result<std::string> Answer(std::string_view body, bool chat);
  // `streamed`: what the body says about streaming does not count.
  absl::StatusOr<serving::Job> Parse(std::string_view body, bool chat, bool streamed) const;
};

std::vector<absl::StatusOr<runtime::GenerateResult>> Engine::Impl::RunAll(
    size_t count, const std::function<absl::StatusOr<runtime::GenerateRequest>(size_t)>& request) {
  // Shared with the callbacks, which come even if this function leaves early for want of memory.
  struct Pending {
    std::mutex mutex;
    std::condition_variable changed;
    int64_t in_flight = 0;
    std::vector<absl::StatusOr<runtime::GenerateResult>> results;
  };
  const auto pending = std::make_shared<Pending>();
  pending->results.resize(count);
  for (size_t i = 0; i < count; ++i) {
    absl::StatusOr<runtime::GenerateRequest> next = request(i);
    std::unique_lock lock(pending->mutex);
    if (!next.ok()) {
      pending->results[i] = next.status();
      continue;
    }
    pending->changed.wait(lock, [&] { return pending->in_flight < max_in_flight; });
    runtime::RequestCallbacks callbacks;
    callbacks.on_events = [](const std::vector<text::OutputEvent>&) { return true; };
    callbacks.on_done = [pending, i](absl::StatusOr<runtime::GenerateResult> result) {
      const std::lock_guard done_lock(pending->mutex);
      pending->results[i] = std::move(result);
      --pending->in_flight;
      pending->changed.notify_all();
    };
    // The service calls back from its own thread only. It may be full of others' requests: then the next end of one of
    // ours is waited for.
    while (true) {
      const int64_t before = pending->in_flight;
      const absl::StatusOr<int64_t> id = service->Submit(*next, callbacks);
      if (id.ok()) {
        ++pending->in_flight;
        break;
      }
      if (!absl::IsUnavailable(id.status()) || before == 0) {
        pending->results[i] = id.status();
        break;
      }
      pending->changed.wait(lock, [&] { return pending->in_flight < before; });
    }
  }
  std::unique_lock lock(pending->mutex);
  pending->changed.wait(lock, [&] { return pending->in_flight == 0; });
  return std::move(pending->results);
}

absl::StatusOr<serving::Job> Engine::Impl::Parse(std::string_view body, bool chat, bool streamed) const {
  HADAL_ASSIGN_OR_RETURN(text::Json json, text::ParseJson(body));
  if (streamed && json.is_object()) {
    json.erase("stream");
    json.erase("stream_options");
  }
  serving::ParseOptions options;
  options.model = info.model;
  return chat ? serving::ParseChatCompletion(json, *engine, options) : serving::ParseCompletion(json, *engine, options);
}

Result<std::string> Engine::Impl::Answer(std::string_view body, bool chat) {
  absl::StatusOr<serving::Job> job = Parse(body, chat, false);
  if (!job.ok()) return api::ToError(job.status());
  if (job->stream) {
    return FailedAs(ErrorCode::kInvalidArgument, "stream: expected false: StartChatCompletion gives streams");
  }
  std::vector<absl::StatusOr<runtime::GenerateResult>> results =
      RunAll(job->requests.size(), [&](size_t i) { return job->requests[i]; });
  std::vector<runtime::GenerateResult> values;
  values.reserve(results.size());
  for (absl::StatusOr<runtime::GenerateResult>& result : results) {
    if (!result.ok()) return api::ToError(result.status());
    values.push_back(*std::move(result));
  }
  return text::DumpJson(serving::BuildAnswer(*job, values, engine->tokenizer()));
}

struct __attribute__((visibility("hidden"))) Stream::Impl {
  std::shared_ptr<Engine::Impl> owner;  // first, so that the service is there until the stream has left it
  std::shared_ptr<runtime::Stream> stream;
  std::optional<serving::Job> job;  // of StartChatCompletion
};

Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

std::vector<Event> Stream::Next() { return api::ToEvents(impl_->stream->Next()); }

Result<Answer> Stream::Finish() {
  absl::StatusOr<runtime::GenerateResult> result = impl_->stream->Result();
  if (!result.ok()) return api::ToError(result.status());
  return api::ToAnswer(*std::move(result));
}

Result<std::string> Stream::FinishJson() {
  if (!impl_->job.has_value()) {
    return FailedAs(ErrorCode::kFailedPrecondition, "FinishJson: the stream was not started by StartChatCompletion");
  }
  absl::StatusOr<runtime::GenerateResult> result = impl_->stream->Result();
  if (!result.ok()) return api::ToError(result.status());
  return text::DumpJson(serving::BuildAnswer(*impl_->job, {*std::move(result)}, impl_->owner->engine->tokenizer()));
}

void Stream::Cancel() { impl_->stream->Cancel(); }

Engine::Engine(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Result<Engine> Engine::Load(const std::string& model, const EngineOptions& options) {
  absl::StatusOr<runtime::EngineOptions> converted = api::ToEngineOptions(options);
  if (!converted.ok()) return api::ToError(converted.status());
  absl::StatusOr<std::unique_ptr<runtime::Engine>> engine = runtime::Engine::Load(model, *std::move(converted));
  if (!engine.ok()) return api::ToError(engine.status());
  auto impl = std::make_shared<Impl>();
  impl->engine = *std::move(engine);
  impl->info.model = NameOf(model);
  impl->info.architecture = impl->engine->config().architecture;
  impl->info.description = impl->engine->description();
  impl->info.vocab_size = impl->engine->config().vocab_size;
  impl->info.max_model_len = impl->engine->max_model_len();
  impl->info.takes_images = impl->engine->takes_images();
  impl->info.warnings = impl->engine->warnings();
  // The cache's description belongs to the executor, and so does the service's thread from here on.
  runtime::Executor& executor = impl->engine->executor();
  impl->info.cache = impl->engine->CacheDescription();
  // Behind those that run stand as many, so that a step never waits for one to be prepared.
  impl->max_in_flight = std::min(2 * impl->engine->model().limits().max_seqs, options.max_waiting);
  try {
    impl->service = std::make_unique<runtime::Service>(&executor, options.max_waiting);
  } catch (const std::system_error& error) {
    return FailedAs(ErrorCode::kResourceExhausted,
                    fmt::format("the model's thread cannot be started: {}", error.what()));
  }
  return Engine(std::move(impl));
}

const EngineInfo& Engine::info() const { return impl_->info; }

EngineStats Engine::stats() const {
  const runtime::ServiceStats from = impl_->service->stats();
  EngineStats stats;
  stats.running = from.running;
  stats.waiting = from.waiting;
  stats.finished = from.executor.finished;
  stats.failed = from.executor.failed;
  stats.cancelled = from.executor.cancelled;
  stats.preemptions = from.executor.preemptions;
  stats.prompt_tokens = from.executor.prompt_tokens;
  stats.generated_tokens = from.executor.generated_tokens;
  stats.draft_tokens = from.executor.draft_tokens;
  stats.accepted_tokens = from.executor.accepted_tokens;
  stats.cache_usage = from.cache_usage;
  return stats;
}

Result<std::vector<int32_t>> Engine::Encode(const Request& request) const {
  absl::StatusOr<runtime::GenerateRequest> converted = api::ToGenerateRequest(request, *impl_->engine);
  if (!converted.ok()) return api::ToError(converted.status());
  return std::move(converted->prompt);
}

std::vector<int32_t> Engine::Tokenize(std::string_view text) const {
  return impl_->engine->tokenizer()->Encode(text, text::Tokenizer::Special::kPlain);
}

Result<std::string> Engine::Detokenize(std::span<const int32_t> ids) const {
  const int64_t vocab = impl_->info.vocab_size;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      return api::ToError(InvalidArgument("ids[{}]: expected 0 to {}, found {}", i, vocab - 1, ids[i]));
    }
  }
  return impl_->engine->tokenizer()->Decode(ids);
}

Result<Answer> Engine::Generate(const Request& request) { return std::move(Generate(std::span(&request, 1))[0]); }

std::vector<Result<Answer>> Engine::Generate(std::span<const Request> requests) {
  std::vector<absl::StatusOr<runtime::GenerateResult>> results =
      impl_->RunAll(requests.size(), [&](size_t i) { return api::ToGenerateRequest(requests[i], *impl_->engine); });
  std::vector<Result<Answer>> answers;
  answers.reserve(results.size());
  for (absl::StatusOr<runtime::GenerateResult>& result : results) {
    if (result.ok()) {
      answers.emplace_back(api::ToAnswer(*std::move(result)));
    } else {
      answers.emplace_back(api::ToError(result.status()));
    }
  }
  return answers;
}

Result<Stream> Engine::Start(const Request& request) {
  absl::StatusOr<runtime::GenerateRequest> converted = api::ToGenerateRequest(request, *impl_->engine);
  if (!converted.ok()) return api::ToError(converted.status());
  absl::StatusOr<std::shared_ptr<runtime::Stream>> stream =
      runtime::Stream::Start(impl_->service.get(), *std::move(converted));
  if (!stream.ok()) return api::ToError(stream.status());
  auto impl = std::make_unique<Stream::Impl>();
  impl->owner = impl_;
  impl->stream = *std::move(stream);
  return Stream(std::move(impl));
}

Result<std::string> Engine::ChatCompletion(std::string_view body) { return impl_->Answer(body, true); }
Result<std::string> Engine::Completion(std::string_view body) { return impl_->Answer(body, false); }

Result<Stream> Engine::StartChatCompletion(std::string_view body) {
  absl::StatusOr<serving::Job> job = impl_->Parse(body, true, true);
  if (!job.ok()) return api::ToError(job.status());
  if (job->choices.size() != 1) {
    return FailedAs(ErrorCode::kInvalidArgument,
                    fmt::format("n: expected 1 for a stream, found {}", job->choices.size()));
  }
  absl::StatusOr<std::shared_ptr<runtime::Stream>> stream =
      runtime::Stream::Start(impl_->service.get(), job->requests[0]);
  if (!stream.ok()) return api::ToError(stream.status());
  auto impl = std::make_unique<Stream::Impl>();
  impl->owner = impl_;
  impl->stream = *std::move(stream);
  impl->job = *std::move(job);
  return Stream(std::move(impl));
}

std::string_view Version() { return HADAL_VERSION; }

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgument";
    case ErrorCode::kNotFound:
      return "NotFound";
    case ErrorCode::kUnimplemented:
      return "Unimplemented";
    case ErrorCode::kFailedPrecondition:
      return "FailedPrecondition";
    case ErrorCode::kOutOfRange:
      return "OutOfRange";
    case ErrorCode::kResourceExhausted:
      return "ResourceExhausted";
    case ErrorCode::kUnavailable:
      return "Unavailable";
    case ErrorCode::kCancelled:
      return "Cancelled";
    case ErrorCode::kInternal:
      return "Internal";
  }
  return "Internal";
}

}  // namespace hadal
