// What is asked for, and what comes back.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "guided/grammar.h"
#include "runtime/images.h"
#include "runtime/sampler.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace hadal::runtime {

struct GenerateRequest {
  std::vector<int32_t> prompt;      // 1 to max_context - 1 ids
  std::vector<PlacedImage> images;  // whose blocks stand in the prompt
  SamplingParams sampling;
  int64_t max_tokens = 0;  // 0: as many as the context holds. Larger than that counts as that.
  std::vector<int32_t> end_tokens;
  bool ignore_end = false;  // go on behind end tokens, which then count as ordinary ones
  std::vector<std::string> stop;
  // Absent: raw text. What it takes for reasoning is what sampling.thinking_token_budget counts; </think> is forced
  // behind that.
  std::optional<text::ParserOptions> parser;
  // The form that the answer has to have, from Engine::CompileGrammar; null: any. It holds from the end of the
  // reasoning on, in which the answer does not end, and ends the answer where it allows nothing more.
  std::shared_ptr<const guided::Grammar> grammar;
  int64_t priority = 0;    // lower goes first
  std::string cache_salt;  // requests of different salts share no cached prefix
};

enum class FinishReason {
  kStop,       // end token or stop string
  kLength,     // max_tokens or the end of the context
  kToolCalls,  // as kStop or kLength, with at least one complete call
  kCancelled,
};
std::string_view FinishReasonName(FinishReason reason);  // "stop", "length", "tool_calls", "cancelled"

struct GenerateTimings {
  double queue_seconds = 0;        // until the first of its rows was computed
  double prefill_seconds = 0;      // from the start until the first token was known, the queue included
  double decode_seconds = 0;       // the tokens after the first
  double longest_gap_seconds = 0;  // between two tokens
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;  // 0 with fewer than two tokens
};

// What one token cost and gave.
struct TokenStep {
  int32_t id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top = {};
  int32_t rank = 0;  // 1: the likeliest
};

struct GenerateResult {
  std::vector<int32_t> token_ids;          // generated, the end token included
  std::vector<TokenStep> logprobs;         // one for each of token_ids, if asked for
  std::vector<TokenStep> prompt_logprobs;  // of the prompt's second token and those behind it, if asked for
  std::string content;
  std::string reasoning;
  std::vector<text::ToolCall> tool_calls;
  FinishReason finish_reason = FinishReason::kStop;
  std::string stop_string;  // that ended it, if one did
  int32_t stop_token = -1;  // of SamplingParams::stop_token_ids, if one of those ended it
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;     // of the prompt, found in the prefix cache at the first start
  int64_t reasoning_tokens = 0;  // of token_ids, </think> included
  int64_t draft_tokens = 0;      // checked
  int64_t accepted_tokens = 0;   // of those
  int64_t preemptions = 0;
  GenerateTimings timings;
};

// How a request's text comes back. All are called from within Executor::Step (or Abort); none may call back into the
// executor.
struct RequestCallbacks {
  // Each generated token before the text that it gave, the one that ends the answer included. `now` is the time of the
  // step that gave it. May be empty.
  std::function<void(const TokenStep& token, std::chrono::steady_clock::time_point now)> on_token = {};
  // After each token and once at the end, with the text that became certain; often none. False cancels.
  std::function<bool(const std::vector<text::OutputEvent>&)> on_events;
  // Once, last.
  std::function<void(absl::StatusOr<GenerateResult>)> on_done;
};

// The token sequences of words for SamplingParams::bad_words: each as it is tokenized at the start of a text and behind
// a space.
std::vector<std::vector<int32_t>> BadWordTokens(const text::Tokenizer& tokenizer,
                                                const std::vector<std::string>& words);

}  // namespace hadal::runtime
