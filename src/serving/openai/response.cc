// Results as bodies of the API (spec serving-runtime 5.4, 6.1, 6.6, 6.8).
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/status.h"
#include "serving/openai/job.h"
#include "serving/openai/request_parts.h"
#include "serving/openai/response_parts.h"

namespace hadal::serving {
namespace {

using runtime::GenerateResult;
using runtime::TokenStep;
using text::Json;

// null, then for each token of the prompt an object of ids.
Json PromptLogprobs(const text::Tokenizer& tokenizer, const std::vector<TokenStep>& steps, int top) {
  Json out = Json::array({nullptr});
  for (const TokenStep& step : steps) {
    Json token = Json::object();
    const auto add = [&](int32_t id, float logprob, Json rank) {
      const std::string key = std::to_string(id);
      if (token.contains(key)) return;
      token[key] = {
          {"logprob", FiniteLogprob(logprob)}, {"rank", std::move(rank)}, {"decoded_token", TokenText(tokenizer, id)}};
    };
    const size_t shown = std::min(step.top.size(), static_cast<size_t>(std::max(top, 0)));
    for (size_t i = 0; i < shown; ++i) add(step.top[i].id, step.top[i].logprob, i + 1);
    add(step.id, step.logprob, step.rank > 0 ? Json(step.rank) : Json());
    out.push_back(std::move(token));
  }
  return out;
}

Json CallsJson(const std::vector<text::ToolCall>& calls, bool parallel) {
  Json out = Json::array();
  for (const text::ToolCall& call : calls) {
    if (!parallel && !out.empty()) break;
    out.push_back({{"id", RandomId("call_")},
                   {"type", "function"},
                   {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return out;
}

std::string Content(const Job& job, const Choice& choice, const GenerateResult& result) {
  std::string text = job.echo ? job.prompts[choice.prompt].echo : "";
  text += result.content;
  if (job.include_stop) text += result.stop_string;
  return text;
}

Json Message(const Job& job, const Choice& choice, const GenerateResult& result) {
  Json message = {{"role", "assistant"}, {"content", nullptr}};
  const std::string content = Content(job, choice, result);
  if (!content.empty() || result.tool_calls.empty()) message["content"] = content;
  if (job.include_reasoning && !result.reasoning.empty()) {
    message["reasoning_content"] = result.reasoning;
    message["reasoning"] = result.reasoning;
  }
  if (!result.tool_calls.empty()) message["tool_calls"] = CallsJson(result.tool_calls, job.parallel_tool_calls);
  return message;
}

Json CompletionLogprobs(const Job& job, const Choice& choice, const std::vector<GenerateResult>& results,
                        const std::shared_ptr<const text::Tokenizer>& tokenizer) {
  LegacyLogprobs logprobs(tokenizer);
  if (job.echo) {
    const PromptInfo& prompt = job.prompts[choice.prompt];
    logprobs.AddFirst(prompt.ids[0]);
    for (const TokenStep& step : results[prompt.request].prompt_logprobs) logprobs.Add(step);
  }
  for (const TokenStep& step : results[choice.request].logprobs) logprobs.Add(step);
  return logprobs.Take();
}

std::string_view ErrorType(int http_status) {
  switch (http_status) {
    case 400:
      return "BadRequestError";
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 422:
      return "UnprocessableEntityError";
    case 429:
      return "RateLimitError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailable";
    default:
      return http_status < 500 ? "BadRequestError" : "InternalServerError";
  }
}

// The path at the start of a message, if there is one.
std::string_view ParamOf(std::string_view message) {
  const std::string_view path = message.substr(0, message.find(": "));
  if (path.empty() || path.size() == message.size()) return {};
  const bool good = std::all_of(path.begin(), path.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '[' || c == ']';
  });
  return good ? path : std::string_view();
}

}  // namespace

std::string RandomId(std::string_view prefix) {
  return fmt::format("{}{:016x}{:016x}", prefix, runtime::RandomSeed(), runtime::RandomSeed());
}

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Json BuildChatCompletion(const Job& job, const std::vector<GenerateResult>& results,
                         const std::shared_ptr<const text::Tokenizer>& tokenizer) {
  HADAL_CHECK(results.size() == job.requests.size());
  Json body = Head(job, "chat.completion");
  for (size_t i = 0; i < job.choices.size(); ++i) {
    const Choice& choice = job.choices[i];
    const GenerateResult& result = results[choice.request];
    const bool logprobs = job.requests[choice.request].sampling.logprobs >= 0;
    Json out = {{"index", i},
                {"message", Message(job, choice, result)},
                {"logprobs", logprobs ? ChatLogprobs(*tokenizer, result.logprobs) : Json()},
                {"finish_reason", FinishReason(result)},
                {"stop_reason", StopReason(result)}};
    if (job.return_token_ids) out["token_ids"] = result.token_ids;
    body["choices"].push_back(std::move(out));
  }
  body["usage"] = Usage(job, results);
  if (job.prompt_logprobs) {
    body["prompt_logprobs"] =
        PromptLogprobs(*tokenizer, results[0].prompt_logprobs, job.requests[0].sampling.prompt_logprobs);
  }
  if (job.return_token_ids) body["prompt_token_ids"] = job.prompts[0].ids;
  return body;
}

Json BuildCompletion(const Job& job, const std::vector<GenerateResult>& results,
                     const std::shared_ptr<const text::Tokenizer>& tokenizer) {
  HADAL_CHECK(results.size() == job.requests.size());
  Json body = Head(job, "text_completion");
  for (size_t i = 0; i < job.choices.size(); ++i) {
    const Choice& choice = job.choices[i];
    const PromptInfo& prompt = job.prompts[choice.prompt];
    const GenerateResult& result = results[choice.request];
    const bool logprobs = job.requests[choice.request].sampling.logprobs >= 0;
    Json out = {{"index", i},
                {"text", Content(job, choice, result)},
                {"logprobs", logprobs ? CompletionLogprobs(job, choice, results, tokenizer) : Json()},
                {"finish_reason", FinishReason(result)},
                {"stop_reason", StopReason(result)}};
    if (job.prompt_logprobs) {
      out["prompt_logprobs"] = PromptLogprobs(*tokenizer, results[prompt.request].prompt_logprobs,
                                              job.requests[prompt.request].sampling.prompt_logprobs);
    }
    if (job.return_token_ids) {
      out["token_ids"] = result.token_ids;
      out["prompt_token_ids"] = prompt.ids;
    }
    body["choices"].push_back(std::move(out));
  }
  body["usage"] = Usage(job, results);
  return body;
}

Json BuildAnswer(const Job& job, const std::vector<GenerateResult>& results,
                 const std::shared_ptr<const text::Tokenizer>& tokenizer) {
  return job.kind == Job::Kind::kChat ? BuildChatCompletion(job, results, tokenizer)
                                      : BuildCompletion(job, results, tokenizer);
}

int HttpStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:  // something that this model or these settings do not do
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:  // it never fits
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kUnavailable:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    default:
      return 500;
  }
}

Json ErrorBody(int http_status, std::string_view message, const Json& param, const Json& code) {
  return {{"error",
           {{"message", message},
            {"type", ErrorType(http_status)},
            {"param", param},
            {"code", code.is_null() ? Json(http_status) : code}}}};
}

Json ErrorBody(const absl::Status& status) { return ErrorBody(HttpStatus(status), status); }

Json ErrorBody(int http_status, const absl::Status& status) {
  const std::string_view message = hadal::Message(status);
  Json param;
  if (const auto named = status.GetPayload(kParamPayload)) {
    param = std::string(*named);
  } else if (const std::string_view path = ParamOf(message); !path.empty()) {
    param = path;
  }
  const auto code = status.GetPayload(kCodePayload);
  return ErrorBody(http_status, message, param, code.has_value() ? Json(std::string(*code)) : Json());
}

}  // namespace hadal::serving
