#include "serving/openai/response_parts.h"

#include <cmath>
#include <utility>

#include "serving/openai/fields.h"

namespace hadal::serving {
namespace {

using runtime::GenerateResult;
using runtime::TokenLogprob;
using runtime::TokenStep;
using text::Json;

// A token as the chat format has it.
Json TokenJson(const text::Tokenizer& tokenizer, int32_t id, float logprob) {
  Json bytes = Json::array();
  for (const char c : tokenizer.TokenBytes(id)) bytes.push_back(static_cast<uint8_t>(c));
  return {{"token", TokenText(tokenizer, id)}, {"logprob", FiniteLogprob(logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

double FiniteLogprob(float logprob) { return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0; }

std::string TokenText(const text::Tokenizer& tokenizer, int32_t id) { return tokenizer.Decode({&id, 1}); }

Json ChatLogprobs(const text::Tokenizer& tokenizer, std::span<const TokenStep> steps) {
  Json content = Json::array();
  for (const TokenStep& step : steps) {
    Json token = TokenJson(tokenizer, step.id, step.logprob);
    Json& top = token["top_logprobs"] = Json::array();
    for (const TokenLogprob& likely : step.top) top.push_back(TokenJson(tokenizer, likely.id, likely.logprob));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

LegacyLogprobs::LegacyLogprobs(std::shared_ptr<const text::Tokenizer> tokenizer)
    : tokenizer_(tokenizer),
      detokenizer_(std::move(tokenizer)),
      tokens_(Json::array()),
      logprobs_(Json::array()),
      top_(Json::array()),
      offsets_(Json::array()) {}

void LegacyLogprobs::Add(const TokenStep& step) {
  Json top = Json::object();
  for (const TokenLogprob& likely : step.top) {
    // Parts of characters may look the same; the likelier one stays.
    const std::string text = TokenText(*tokenizer_, likely.id);
    if (!top.contains(text)) top[text] = FiniteLogprob(likely.logprob);
  }
  const std::string text = TokenText(*tokenizer_, step.id);
  if (!top.contains(text)) top[text] = FiniteLogprob(step.logprob);
  Add(step.id, FiniteLogprob(step.logprob), std::move(top));
}

Json LegacyLogprobs::Take() {
  Json columns = {{"tokens", std::move(tokens_)},
                  {"token_logprobs", std::move(logprobs_)},
                  {"top_logprobs", std::move(top_)},
                  {"text_offset", std::move(offsets_)}};
  tokens_ = logprobs_ = top_ = offsets_ = Json::array();
  return columns;
}

void LegacyLogprobs::Add(int32_t id, Json logprob, Json top) {
  tokens_.push_back(TokenText(*tokenizer_, id));
  logprobs_.push_back(std::move(logprob));
  top_.push_back(std::move(top));
  offsets_.push_back(offset_);
  offset_ += CountChars(detokenizer_.Push(id));
}

std::string_view FinishReason(const GenerateResult& result) {
  return result.finish_reason == runtime::FinishReason::kCancelled ? "abort" : FinishReasonName(result.finish_reason);
}

Json StopReason(const GenerateResult& result) {
  if (!result.stop_string.empty()) return result.stop_string;
  return result.stop_token >= 0 ? Json(result.stop_token) : Json();
}

Json Usage(const Job& job, const std::vector<GenerateResult>& results) {
  int64_t prompt = 0, cached = 0, completion = 0, reasoning = 0, drafts = 0, accepted = 0;
  for (const PromptInfo& info : job.prompts) {
    prompt += static_cast<int64_t>(info.ids.size());
    cached += results[info.request].cached_tokens;
  }
  for (const Choice& choice : job.choices) {
    const GenerateResult& result = results[choice.request];
    completion += static_cast<int64_t>(result.token_ids.size());
    reasoning += result.reasoning_tokens;
    drafts += result.draft_tokens;
    accepted += result.accepted_tokens;
  }
  Json usage = {{"prompt_tokens", prompt},
                {"completion_tokens", completion},
                {"total_tokens", prompt + completion},
                {"prompt_tokens_details", {{"cached_tokens", cached}}},
                {"completion_tokens_details", {{"reasoning_tokens", reasoning}}},
                {"prompt_cache_hit_tokens", cached},
                {"prompt_cache_miss_tokens", prompt - cached}};
  if (drafts > 0) {
    usage["completion_tokens_details"]["accepted_prediction_tokens"] = accepted;
    usage["completion_tokens_details"]["rejected_prediction_tokens"] = drafts - accepted;
  }
  return usage;
}

Json Head(const Job& job, const char* object) {
  return {{"id", job.id},
          {"object", object},
          {"created", job.created},
          {"model", job.model},
          {"system_fingerprint", nullptr},
          {"choices", Json::array()}};
}

}  // namespace hadal::serving
