#include "serving/http/request_log.h"

#include <algorithm>

#include "base/log.h"
#include "text/json_text.h"

namespace hadal::serving {

void RequestRecord::Add(const runtime::GenerateResult& result) {
  ++answers;
  prompt_tokens += result.prompt_tokens;
  cached_tokens += result.cached_tokens;
  completion_tokens += static_cast<int64_t>(result.token_ids.size());
  queue_seconds = std::max(queue_seconds, result.timings.queue_seconds);
  first_token_seconds = std::max(first_token_seconds, result.timings.prefill_seconds);
  finish = runtime::FinishReasonName(result.finish_reason);
}

void LogRequest(const RequestRecord& record) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - record.arrival).count();
  std::string line = fmt::format("request id={} method={} route={} status={} seconds={:.6f}", record.id, record.method,
                                 record.route, record.status, seconds);
  if (record.generates) {
    line += fmt::format(
        " stream={} answers={} prompt_tokens={} cached_tokens={} completion_tokens={} queue_seconds={:.6f} "
        "first_token_seconds={:.6f} finish={}",
        record.stream, record.answers, record.prompt_tokens, record.cached_tokens, record.completion_tokens,
        record.queue_seconds, record.first_token_seconds, record.finish.empty() ? "none" : record.finish);
  }
  spdlog::info("{}", line);
}

void LogContent(std::string_view id, std::string_view what, std::string_view text) {
  // Quoted as JSON, so that it stays one line.
  spdlog::info("content id={} {}={}", id, what, text::JsonQuoted(text));
}

}  // namespace hadal::serving
