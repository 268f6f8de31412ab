#include "runtime/service.h"

#include <utility>

#include "base/status.h"

namespace hadal::runtime {

Service::Service(Executor* executor, int64_t max_waiting)
    : executor_(executor), max_waiting_(max_waiting), thread_([this] { Loop(); }) {}

Service::~Service() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::StatusOr<int64_t> Service::Submit(GenerateRequest request, RequestCallbacks callbacks,
                                        std::function<void()> on_accepted) {
  int64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || draining_) return absl::UnavailableError("the service takes no more requests: it is stopping");
    if (stats_.waiting + static_cast<int64_t>(orders_.size()) >= max_waiting_) {
      return absl::UnavailableError(fmt::format("{} requests are waiting already, at most {} may: try again later",
                                                stats_.waiting + static_cast<int64_t>(orders_.size()), max_waiting_));
    }
    id = next_id_++;
    orders_.push_back({id, std::move(request), std::move(callbacks), std::move(on_accepted)});
  }
  changed_.notify_all();
  return id;
}

void Service::Abort(int64_t id) {
  {
    const std::lock_guard lock(mutex_);
    aborts_.push_back(id);
  }
  changed_.notify_all();
}

bool Service::Drain(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  changed_.notify_all();
  const auto done = [&] { return !busy_ && orders_.empty(); };
  if (idle_.wait_until(lock, deadline, done)) return true;
  stopping_ = true;
  changed_.notify_all();
  idle_.wait(lock, done);
  return false;
}

ServiceStats Service::stats() const {
  const std::lock_guard lock(mutex_);
  ServiceStats stats = stats_;
  stats.waiting += static_cast<int64_t>(orders_.size());
  if (busy_) stats.step_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - progress_).count();
  return stats;
}

void Service::TakeStats() {
  const std::lock_guard lock(mutex_);
  progress_ = std::chrono::steady_clock::now();
  stats_.executor = executor_->stats();
  stats_.cache = executor_->cache().stats();
  stats_.cache_usage = executor_->cache().usage();
  stats_.running = static_cast<int64_t>(executor_->running());
  stats_.waiting = static_cast<int64_t>(executor_->waiting());
}

void Service::Begin(Order order) {
  const int64_t id = order.id;
  auto done = std::make_shared<std::function<void(absl::StatusOr<GenerateResult>)>>(std::move(order.callbacks.on_done));
  order.callbacks.on_done = [this, id, done](absl::StatusOr<GenerateResult> result) {
    numbers_.erase(id);
    TakeStats();  // whoever hears of the end may submit at once: there is room again
    (*done)(std::move(result));
  };
  const absl::StatusOr<int64_t> number = executor_->Submit(std::move(order.request), std::move(order.callbacks));
  if (number.ok()) {
    numbers_.emplace(id, *number);
    if (order.on_accepted) order.on_accepted();
  } else {
    (*done)(number.status());
  }
}

bool Service::TakeOrders() {
  {
    std::unique_lock lock(mutex_);
    if (executor_->idle() && orders_.empty()) {
      busy_ = false;
      aborts_.clear();  // of requests that are over
      idle_.notify_all();
      changed_.wait(lock, [&] { return stopping_ || !orders_.empty(); });
    }
    if (!busy_) progress_ = std::chrono::steady_clock::now();
    busy_ = true;
    for (Order& order : orders_) taken_.push_back(std::move(order));
    orders_.clear();
    taken_aborts_.swap(aborts_);
    if (stopping_) {
      for (const auto& [id, number] : numbers_) taken_aborts_.push_back(id);
      for (const Order& order : taken_) taken_aborts_.push_back(order.id);
    }
  }
  for (Order& order : taken_) Begin(std::move(order));
  taken_.clear();
  for (const int64_t id : taken_aborts_) {
    const auto it = numbers_.find(id);
    if (it != numbers_.end()) executor_->Abort(it->second);
  }
  taken_aborts_.clear();
  TakeStats();
  const std::lock_guard lock(mutex_);
  if (!stopping_ || !executor_->idle() || !orders_.empty()) return true;
  busy_ = false;
  idle_.notify_all();
  return false;
}

void Service::Loop() {
  while (TakeOrders()) {
    executor_->Step();
    TakeStats();
  }
}

absl::StatusOr<std::shared_ptr<Stream>> Stream::Start(Service* service, GenerateRequest request, size_t most_unread) {
  auto stream = std::make_shared<Stream>();
  auto shared = std::make_shared<Shared>();
  RequestCallbacks callbacks;
  callbacks.on_events = [shared, most_unread](const std::vector<text::OutputEvent>& events) {
    if (events.empty()) return true;
    const std::lock_guard lock(shared->mutex);
    if (shared->unwanted) return !shared->closed;
    for (const text::OutputEvent& event : events) {
      shared->unread_bytes += event.text.size();
      // Text goes on where it stopped.
      const bool text = event.kind == text::OutputEvent::Kind::kReasoning ||
                        event.kind == text::OutputEvent::Kind::kContent ||
                        event.kind == text::OutputEvent::Kind::kCallArguments;
      if (text && !shared->unread.empty() && shared->unread.back().kind == event.kind &&
          shared->unread.back().call == event.call) {
        shared->unread.back().text += event.text;
        continue;
      }
      shared->unread.push_back(event);
      shared->unread_bytes += sizeof(event);
    }
    shared->changed.notify_all();
    return !shared->closed && shared->unread_bytes <= most_unread;
  };
  callbacks.on_done = [shared](absl::StatusOr<GenerateResult> result) {
    const std::lock_guard lock(shared->mutex);
    shared->result = std::move(result);
    shared->changed.notify_all();
  };
  HADAL_ASSIGN_OR_RETURN(stream->id_, service->Submit(std::move(request), std::move(callbacks)));
  stream->service_ = service;
  stream->shared_ = std::move(shared);
  return stream;
}

Stream::~Stream() {
  if (shared_ != nullptr) Cancel();
}

void Stream::Cancel() {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->result.has_value()) return;
    shared_->closed = true;
  }
  service_->Abort(id_);
}

std::vector<text::OutputEvent> Stream::Next() {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [&] { return !shared_->unread.empty() || shared_->result.has_value(); });
  std::vector<text::OutputEvent> events;
  events.swap(shared_->unread);
  shared_->unread_bytes = 0;
  return events;
}

absl::StatusOr<GenerateResult> Stream::Result() {
  std::unique_lock lock(shared_->mutex);
  shared_->unwanted = true;
  shared_->unread.clear();
  shared_->unread_bytes = 0;
  shared_->changed.wait(lock, [&] { return shared_->result.has_value(); });
  return *shared_->result;
}

}  // namespace hadal::runtime
