// Generation of one sequence: prefill in chunks, then one token a step, until something ends it.
//
// The tokens depend on the prompt, the sampling parameters and the model; not on the size of the chunks (a model's rows
// do not depend on how a step is cut, ops/ops.h; a draw depends on the seed and the position, sampler.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "models/model.h"
#include "runtime/images.h"
#include "runtime/output_stream.h"
#include "runtime/sampler.h"

namespace hadal::runtime {

struct GenerateRequest {
  std::vector<int32_t> prompt;      // 1 to max_context - 1 ids
  std::vector<PlacedImage> images;  // whose blocks stand in the prompt
  SamplingParams sampling;
  int64_t max_tokens = 0;  // 0: as many as the context holds. Larger than that counts as that.
  std::vector<int32_t> end_tokens;
  bool ignore_end = false;  // go on behind end tokens, which then count as ordinary ones
  std::vector<std::string> stop;
  std::optional<text::ParserOptions> parser;  // absent: raw text
};

enum class FinishReason {
  kStop,       // end token or stop string
  kLength,     // max_tokens or the end of the context
  kToolCalls,  // as kStop or kLength, with at least one complete call
  kCancelled,
};
std::string_view FinishReasonName(FinishReason reason);  // "stop", "length", "tool_calls", "cancelled"

struct GenerateTimings {
  double prefill_seconds = 0;  // until the first token was known
  double decode_seconds = 0;   // the tokens after the first
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;  // 0 with fewer than two tokens
};

// The token sequences of words for SamplingParams::bad_words: each as it is tokenized at the start of a text and behind
// a space.
std::vector<std::vector<int32_t>> BadWordTokens(const text::Tokenizer& tokenizer,
                                                const std::vector<std::string>& words);

// What one token cost and gave.
struct TokenStep {
  int32_t id = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

struct GenerateResult {
  std::vector<int32_t> token_ids;   // generated, the end token included
  std::vector<TokenStep> logprobs;  // one for each of token_ids, if asked for
  std::string content;
  std::string reasoning;
  std::vector<text::ToolCall> tool_calls;
  FinishReason finish_reason = FinishReason::kStop;
  std::string stop_string;  // that ended it, if one did
  int32_t stop_token = -1;  // of SamplingParams::stop_token_ids, if one of those ended it
  int64_t prompt_tokens = 0;
  int64_t reasoning_tokens = 0;  // of token_ids, </think> included
  GenerateTimings timings;
};

// After each token and once at the end, with the text that became certain; often none. Returns false to cancel.
using OnEvents = absl::FunctionRef<bool(const std::vector<text::OutputEvent>&)>;

class Generator {
 public:
  // `image_tokens` (absent where the tokenizer has none) are never generated, and a prompt holds them in the blocks of
  // its images only. `seq` is the sequence of the model that the generator uses.
  Generator(models::Model* model, std::shared_ptr<const text::Tokenizer> tokenizer,
            std::optional<ImageTokenIds> image_tokens, int32_t seq = 0);

  // `cancel` (may be null) is looked at between steps; what was generated so far comes back.
  // InvalidArgument for a request that cannot be run, before anything is computed; FailedPrecondition for images where
  // the model takes none; Internal for logits that are not finite.
  absl::StatusOr<GenerateResult> Generate(const GenerateRequest& request, OnEvents on_events,
                                          const std::atomic<bool>* cancel = nullptr);

 private:
  absl::Status CheckPrompt(const GenerateRequest& request) const;
  // Runs ids from `position` on in chunks; the last row's logits are in logits_ afterwards. False if cancelled.
  absl::StatusOr<bool> Prefill(const std::vector<int32_t>& ids, const ImageContext& images,
                               const std::atomic<bool>* cancel);
  absl::Status Step(std::span<const int32_t> ids, int64_t position, const ImageContext* images, bool want_logits);

  models::Model* model_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::optional<ImageTokenIds> image_tokens_;
  std::vector<int32_t> banned_;  // those
  EmbeddingCache embeddings_;
  std::vector<int32_t> positions_, seqs_;  // of one step
  std::vector<float> logits_;              // [vocab]
};

}  // namespace hadal::runtime
