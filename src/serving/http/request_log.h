// One line on stderr for each request that is over: names and numbers, never what it says.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/request.h"

namespace hadal::serving {

struct RequestRecord {
  std::string id;  // X-Request-Id
  std::string method, route;
  std::chrono::steady_clock::time_point arrival = std::chrono::steady_clock::now();
  int status = 0;  // 499: the client had gone
  bool stream = false;
  // Of requests that generate.
  bool generates = false;
  int64_t answers = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double queue_seconds = 0, first_token_seconds = 0;
  std::string finish;

  // Adds one runtime result.
  void Add(const runtime::GenerateResult& result);
};

// "request id=... route=... status=200 ..." at level info.
void LogRequest(const RequestRecord& record);
// What a request or its answer says; for --log-content alone.
void LogContent(std::string_view id, std::string_view what, std::string_view text);

}  // namespace hadal::serving
