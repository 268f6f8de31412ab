// The pieces that whole answers and streamed ones have in common. Internal to the library.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/openai/job.h"
#include "text/detokenizer.h"

namespace hadal::serving {

// JSON has no infinity: a token that cannot be has -9999.
double FiniteLogprob(float logprob);
// A token's text, with U+FFFD where its bytes are part of a character.
std::string TokenText(const text::Tokenizer& tokenizer, int32_t id);

// logprobs of a chat: {"content": [...]}.
text::Json ChatLogprobs(const text::Tokenizer& tokenizer, std::span<const runtime::TokenStep> steps);

// logprobs of a completion: columns.
class LegacyLogprobs {
 public:
  explicit LegacyLogprobs(std::shared_ptr<const text::Tokenizer> tokenizer);

  // A token that nothing stands before has no logprob.
  void AddFirst(int32_t id) { Add(id, nullptr, nullptr); }
  void Add(const runtime::TokenStep& step);
  // The columns of what was added since the last time; offsets go on.
  text::Json Take();

 private:
  void Add(int32_t id, text::Json logprob, text::Json top);

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  text::Detokenizer detokenizer_;
  text::Json tokens_, logprobs_, top_, offsets_;
  size_t offset_ = 0;  // characters so far
};

std::string_view FinishReason(const runtime::GenerateResult& result);
// The stop string or the id that ended it, or null.
text::Json StopReason(const runtime::GenerateResult& result);
// Of all results of a job; text and log-probabilities in them are not looked at.
text::Json Usage(const Job& job, const std::vector<runtime::GenerateResult>& results);
// What every body of the job begins with, and an empty list of choices.
text::Json Head(const Job& job, const char* object);

}  // namespace hadal::serving
