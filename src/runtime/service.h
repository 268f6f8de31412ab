// A thread that runs an executor, so that any thread can hand in requests, read what they give, and end them.
//
// Callbacks come from that thread and must return soon: while one runs, no token is computed for anybody. Stream is a
// reader that takes its own time; one that takes too much is cancelled (spec serving-runtime 4.7).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "runtime/executor.h"

namespace hadal::runtime {

// What is known about a service between two steps.
struct ServiceStats {
  ExecutorStats executor;
  KvCacheStats cache;
  double cache_usage = 0;  // share of the blocks that running requests hold
  int64_t running = 0;
  int64_t waiting = 0;      // those that the thread has not seen yet included
  double step_seconds = 0;  // since the last step ended, or the first began; 0 if there is nothing to do
};

class Service {
 public:
  // `executor` belongs to the service until it is gone. `max_waiting` bounds what is accepted beside what runs.
  explicit Service(Executor* executor, int64_t max_waiting = 4096);
  // Ends all requests (kCancelled), then the thread.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // The request's number; its end, a refusal included, comes through on_done, always exactly once. Unavailable, and no
  // callback: too many are waiting, or the service is draining. `on_accepted` (may be empty) comes before all others,
  // and only if the request is one that can be run.
  absl::StatusOr<int64_t> Submit(GenerateRequest request, RequestCallbacks callbacks,
                                 std::function<void()> on_accepted = {});
  // From any thread, at any time; before the next step.
  void Abort(int64_t id);

  // Accepts no more requests; returns once all are done, or ends what is left at the deadline. False if it had to.
  bool Drain(std::chrono::steady_clock::time_point deadline);

  ServiceStats stats() const;

 private:
  struct Order {
    int64_t id = 0;
    GenerateRequest request;
    RequestCallbacks callbacks;
    std::function<void()> on_accepted;
  };

  void Loop();
  // Takes what came in since the last step. False if there is nothing left to do but to stop.
  bool TakeOrders();
  void Begin(Order order);
  void TakeStats();

  Executor* executor_;
  const int64_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<Order> orders_;  // guarded by mutex_, as all up to the thread
  std::vector<int64_t> aborts_;
  bool stopping_ = false, draining_ = false, busy_ = false;
  int64_t next_id_ = 0;
  ServiceStats stats_;
  std::chrono::steady_clock::time_point progress_ = std::chrono::steady_clock::now();
  // Of the thread alone: the executor's number of each of ours.
  absl::flat_hash_map<int64_t, int64_t> numbers_;
  std::vector<Order> taken_;
  std::vector<int64_t> taken_aborts_;
  std::thread thread_;
};

// The text of one request, for a reader on a thread of its own. Must not outlive its service.
class Stream {
 public:
  // What is unread may grow to `most_unread` bytes; then the request is cancelled.
  static absl::StatusOr<std::shared_ptr<Stream>> Start(Service* service, GenerateRequest request,
                                                       size_t most_unread = size_t{1} << 20);
  // Cancels what is not over.
  ~Stream();

  // The next text, waiting for it; empty at the end.
  std::vector<text::OutputEvent> Next();
  // Waits for the end; text that was not read is dropped, and does not count against most_unread.
  absl::StatusOr<GenerateResult> Result();
  void Cancel();

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<text::OutputEvent> unread;
    size_t unread_bytes = 0;
    std::optional<absl::StatusOr<GenerateResult>> result;
    bool unwanted = false;  // the result alone is waited for
    bool closed = false;    // nobody reads any more
  };

  Service* service_ = nullptr;
  int64_t id_ = 0;
  std::shared_ptr<Shared> shared_;
};

}  // namespace hadal::runtime
