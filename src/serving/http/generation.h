// One job from its submission to the last byte of its answer, whole or streamed.
//
// Tokens come on the service's thread and are only kept there, so that no socket and no JSON holds up a step; the
// server's thread takes what came since the last time, encodes it and writes it. Text that comes faster than it is
// encoded is joined to fewer, larger pieces.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/service.h"
#include "serving/http/exchange.h"
#include "serving/http/metrics.h"
#include "serving/http/request_log.h"
#include "serving/http/server.h"
#include "serving/protocol.h"

namespace hadal::serving {

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Where it runs. All of it outlives the generation.
  struct Place {
    const Endpoint* endpoint = nullptr;
    runtime::Service* service = nullptr;
    HttpServer* server = nullptr;
    Metrics* metrics = nullptr;
    Vocabulary tokenizer;
  };
  // How it ends, on the server's thread.
  struct Ends {
    // The reply to a job that fails before its answer has begun.
    std::function<HttpReply(const absl::Status&)> refuse;
    // The reply to be sent, or begun, in its final form: id, CORS.
    std::function<HttpReply(HttpReply)> finish;
    // Once, last.
    std::function<void(const RequestRecord&)> over;
    bool log_content = false;
  };

  Generation(Place place, Ends ends, Job job, std::shared_ptr<Exchange> exchange, RequestRecord record);
  // On the server's thread.
  void Start();

 private:
  using Result = absl::StatusOr<runtime::GenerateResult>;

  runtime::RequestCallbacks CallbacksOf(size_t index);
  // Sees to it that Advance runs soon. With mutex_.
  void Schedule();
  void Advance();
  void TakeEnd(size_t index, Result result);
  void AdvanceStream();
  void WriteFrames(const std::vector<StreamFrame>& frames);
  // Ends every request that is not over.
  void AbortAll();
  void Fail(const absl::Status& status);
  void FinishWhole();
  void Over(int status);
  void OnGone();

  const Place place_;
  const Ends ends_;
  const Job job_;
  const std::shared_ptr<Exchange> exchange_;
  RequestRecord record_;

  // What came and was not taken yet.
  std::mutex mutex_;
  bool scheduled_ = false;
  size_t accepted_ = 0;
  std::vector<StreamDelta> deltas_;
  std::vector<std::pair<size_t, Result>> ended_;

  std::atomic<bool> unwanted_ = false;

  // Of the server's thread.
  std::vector<std::optional<int64_t>> ids_;  // of the service, while it runs
  std::vector<runtime::GenerateResult> results_;
  size_t left_ = 0;                // requests that have not ended
  std::vector<size_t> to_finish_;  // ended, and the stream does not say so yet
  std::unique_ptr<StreamEncoder> encoder_;
  std::vector<StreamDelta> taken_;
  bool begun_ = false, over_ = false, gone_ = false;
};

}  // namespace hadal::serving
