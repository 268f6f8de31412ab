// Results as messages, and errors (spec serving-runtime 6.9).
#include <limits>
#include <utility>

#include "base/sha256.h"
#include "base/status.h"
#include "serving/answer.h"
#include "serving/anthropic/message_parts.h"
#include "serving/anthropic/messages.h"

namespace hadal::serving {
namespace {

using runtime::FinishReason;
using runtime::GenerateResult;
using text::Json;

Json Usage(int64_t input, int64_t cached, int64_t output) {
  return {{"input_tokens", input - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", output}};
}

int64_t PromptTokens(const Job& job) { return static_cast<int64_t>(job.prompts[0].ids.size()); }

// Arguments are the text of a JSON object; a model may nest them deeper than clients may nest a body.
Json Input(const std::string& arguments) {
  absl::StatusOr<Json> input = text::ParseJson(arguments, std::numeric_limits<int>::max());
  return input.ok() ? *std::move(input) : Json::object();
}

const char* ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::string ThinkingSignature(std::string_view thinking) {
  Sha256 hash;
  hash.Update({reinterpret_cast<const uint8_t*>(thinking.data()), thinking.size()});
  return HexDigest(hash.Finish());
}

Json MessageStopReason(const GenerateResult& result) {
  switch (result.finish_reason) {
    case FinishReason::kToolCalls:
      return "tool_use";
    case FinishReason::kLength:
      return "max_tokens";
    case FinishReason::kStop:
      return result.stop_string.empty() ? "end_turn" : "stop_sequence";
    case FinishReason::kCancelled:
      break;
  }
  return nullptr;
}

Json MessageStopSequence(const GenerateResult& result) {
  const bool stopped = result.finish_reason == FinishReason::kStop && !result.stop_string.empty();
  return stopped ? Json(result.stop_string) : Json();
}

Json MessageUsage(const Job& job, const GenerateResult& result) {
  return Usage(PromptTokens(job), result.cached_tokens, static_cast<int64_t>(result.token_ids.size()));
}

Json MessageHead(const Job& job) {
  return {{"id", job.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", job.model},
          {"content", Json::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage", Usage(PromptTokens(job), 0, 0)}};
}

Json BuildMessage(const Job& job, const GenerateResult& result) {
  Json body = MessageHead(job);
  Json& content = body["content"];
  if (job.include_reasoning && !result.reasoning.empty()) {
    content.push_back(
        {{"type", "thinking"}, {"thinking", result.reasoning}, {"signature", ThinkingSignature(result.reasoning)}});
  }
  if (!result.content.empty() || NeedsEmptyText(job, result)) {
    content.push_back({{"type", "text"}, {"text", result.content}});
  }
  for (size_t i = 0; i < result.tool_calls.size() && (i == 0 || job.parallel_tool_calls); ++i) {
    const text::ToolCall& call = result.tool_calls[i];
    content.push_back(
        {{"type", "tool_use"}, {"id", RandomId("toolu_")}, {"name", call.name}, {"input", Input(call.arguments)}});
  }
  body["stop_reason"] = MessageStopReason(result);
  body["stop_sequence"] = MessageStopSequence(result);
  body["usage"] = MessageUsage(job, result);
  return body;
}

Json MessagesErrorBody(int http_status, std::string_view message) {
  return {{"type", "error"}, {"error", {{"type", ErrorType(http_status)}, {"message", message}}}};
}

Json MessagesErrorBody(int http_status, const absl::Status& status) {
  Json body = MessagesErrorBody(http_status, Message(status));
  // With this clients go on without a thread.
  if (const auto code = status.GetPayload(kCodePayload); code == "thread_unsupported_request") {
    body["error"]["details"] = {{"error_code", std::string(*code)}, {"unsupported", {"thread"}}};
  }
  return body;
}

Json MessagesErrorBody(const absl::Status& status) { return MessagesErrorBody(HttpStatus(status), status); }

}  // namespace hadal::serving
