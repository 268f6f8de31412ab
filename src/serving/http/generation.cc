#include "serving/http/generation.h"

#include <exception>
#include <utility>

#include "base/status.h"

namespace hadal::serving {
namespace {

using text::OutputEvent;

// Text goes on where it stopped.
void AppendEvent(const OutputEvent& event, std::vector<OutputEvent>* events) {
  const bool text = event.kind != OutputEvent::Kind::kCallBegin && event.kind != OutputEvent::Kind::kCallEnd;
  if (text && !events->empty() && events->back().kind == event.kind && events->back().call == event.call) {
    events->back().text += event.text;
  } else {
    events->push_back(event);
  }
}

}  // namespace

Generation::Generation(Place place, Ends ends, Job job, std::shared_ptr<Exchange> exchange, RequestRecord record)
    : place_(std::move(place)),
      ends_(std::move(ends)),
      job_(std::move(job)),
      exchange_(std::move(exchange)),
      record_(std::move(record)),
      deltas_(job_.requests.size()),
      ids_(job_.requests.size()),
      results_(job_.requests.size()),
      left_(job_.requests.size()),
      taken_(job_.requests.size()) {
  record_.generates = true;
  record_.stream = job_.stream;
}

void Generation::Start() {
  const auto prompts = static_cast<int64_t>(std::max<size_t>(job_.prompts.size(), 1));
  place_.metrics->CountJob(static_cast<int64_t>(job_.choices.size()) / prompts);
  if (job_.stream) encoder_ = place_.endpoint->encode(job_, place_.tokenizer);
  for (size_t i = 0; i < job_.requests.size(); ++i) {
    const absl::StatusOr<int64_t> id =
        place_.service->Submit(job_.requests[i], CallbacksOf(i), [self = shared_from_this()] {
          const std::lock_guard lock(self->mutex_);
          ++self->accepted_;
          self->Schedule();
        });
    if (!id.ok()) {
      if (absl::IsUnavailable(id.status())) place_.metrics->CountRejection();
      Fail(id.status());
      return;
    }
    ids_[i] = *id;
  }
  exchange_->OnGone([self = shared_from_this()] { self->OnGone(); });
}

runtime::RequestCallbacks Generation::CallbacksOf(size_t index) {
  const runtime::GenerateRequest& request = job_.requests[index];
  auto metrics =
      std::make_shared<RequestMetrics>(place_.metrics, static_cast<int64_t>(request.prompt.size()), request.max_tokens);
  runtime::RequestCallbacks callbacks;
  callbacks.on_token = [this, self = shared_from_this(), metrics, index](const runtime::TokenStep& token, auto now) {
    metrics->OnToken(now);
    if (!job_.stream) return;
    const std::lock_guard lock(mutex_);
    deltas_[index].tokens.push_back(token);
  };
  callbacks.on_events = [this, self = shared_from_this(), index](const std::vector<OutputEvent>& events) {
    if (job_.stream && !events.empty()) {
      const std::lock_guard lock(mutex_);
      for (const OutputEvent& event : events) AppendEvent(event, &deltas_[index].events);
      Schedule();
    }
    return !unwanted_.load(std::memory_order_relaxed);
  };
  callbacks.on_done = [this, self = shared_from_this(), metrics, index](Result result) {
    metrics->OnDone(result);
    const std::lock_guard lock(mutex_);
    ended_.emplace_back(index, std::move(result));
    Schedule();
  };
  return callbacks;
}

void Generation::Schedule() {
  if (std::exchange(scheduled_, true)) return;
  place_.server->Post([self = shared_from_this()] { self->Advance(); });
}

void Generation::Advance() {
  std::vector<std::pair<size_t, Result>> ended;
  bool accepted = false;
  {
    const std::lock_guard lock(mutex_);
    scheduled_ = false;
    ended.swap(ended_);
    accepted = accepted_ == job_.requests.size();
    if (accepted) taken_.swap(deltas_);
  }
  for (auto& [index, result] : ended) TakeEnd(index, std::move(result));
  if (over_ || gone_ || !accepted) return;
  if (!job_.stream) {
    if (left_ == 0) FinishWhole();
    return;
  }
  AdvanceStream();
  if (left_ > 0) return;
  WriteFrames(encoder_->End());
  exchange_->EndStream();
  Over(200);
}

void Generation::TakeEnd(size_t index, Result result) {
  ids_[index].reset();
  --left_;
  if (over_) return;
  if (result.ok()) record_.Add(*result);
  if (gone_) {
    if (left_ == 0) Over(499);
    return;
  }
  if (!result.ok()) {
    Fail(result.status());
    return;
  }
  if (result->finish_reason == runtime::FinishReason::kCancelled) {
    // Nobody here wanted that: the service stops.
    Fail(absl::InternalError("the server is stopping: the answer is cut off"));
    return;
  }
  if (ends_.log_content) LogContent(record_.id, "answer", result->content);
  results_[index] = *std::move(result);
  to_finish_.push_back(index);
}

void Generation::AdvanceStream() {
  if (!std::exchange(begun_, true)) {
    HttpReply head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    exchange_->BeginStream(ends_.finish(std::move(head)), std::string(place_.endpoint->keep_alive));
    WriteFrames(encoder_->Begin());
  }
  for (size_t i = 0; i < taken_.size(); ++i) {
    StreamDelta& delta = taken_[i];
    if (delta.events.empty() && delta.tokens.empty()) continue;
    WriteFrames(encoder_->Add(i, delta));
    delta.events.clear();
    delta.tokens.clear();
  }
  for (const size_t index : to_finish_) WriteFrames(encoder_->Finish(index, results_[index]));
  to_finish_.clear();
}

void Generation::WriteFrames(const std::vector<StreamFrame>& frames) {
  for (const StreamFrame& frame : frames) {
    if (!frame.event.empty()) exchange_->Write(fmt::format("event: {}\n", frame.event));
    exchange_->Write(fmt::format("data: {}\n\n", frame.data));
  }
}

void Generation::AbortAll() {
  unwanted_ = true;
  for (const std::optional<int64_t>& id : ids_) {
    if (id.has_value()) place_.service->Abort(*id);
  }
}

void Generation::Fail(const absl::Status& status) {
  if (over_) return;
  AbortAll();
  if (begun_) {
    // What was generated before is not lost.
    AdvanceStream();
    WriteFrames(encoder_->Fail(status));
    exchange_->EndStream();
    record_.finish = "error";
    Over(200);
    return;
  }
  HttpReply reply = ends_.refuse(status);
  const int number = reply.status;
  exchange_->Send(ends_.finish(std::move(reply)));
  Over(number);
}

void Generation::FinishWhole() {
  over_ = true;  // nothing comes any more
  place_.server->Work([self = shared_from_this()] {
    HttpReply reply;
    absl::Status status;
    try {
      reply.body = text::DumpJson(self->place_.endpoint->build(self->job_, self->results_, self->place_.tokenizer));
    } catch (const std::exception& error) {
      status = absl::InternalError(error.what());
    }
    self->place_.server->Post([self, status, reply = std::move(reply)]() mutable {
      if (!status.ok()) reply = self->ends_.refuse(status);
      const int number = reply.status;
      self->exchange_->Send(self->ends_.finish(std::move(reply)));
      self->Over(number);
    });
  });
}

void Generation::OnGone() {
  if (over_) return;
  gone_ = true;
  AbortAll();
}

void Generation::Over(int status) {
  over_ = true;
  record_.status = status;
  ends_.over(record_);
}

}  // namespace hadal::serving
