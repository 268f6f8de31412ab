// The flags that say how tokens are drawn and where an answer ends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli.h"
#include "runtime/generator.h"
#include "runtime/sampler.h"

namespace hadal::cli {

class SamplingFlags {
 public:
  // In the help group "Sampling".
  void Register(CLI::App* app);

  // InvalidArgument naming what is out of range, to be called before anything is loaded.
  absl::Status Check() const;

  // Fills sampling, max_tokens and stop: `defaults` where no flag was given; without --seed a random seed. Bad words
  // need a tokenizer: null leaves them out.
  void Apply(const runtime::SamplingParams& defaults, const text::Tokenizer* tokenizer,
             runtime::GenerateRequest* request) const;

  // Whether --seed was given.
  bool has_seed() const { return seed_ != -1; }

 private:
  std::optional<double> temperature_, top_p_, min_p_, repetition_penalty_, presence_penalty_, frequency_penalty_;
  std::optional<int64_t> top_k_;
  int64_t seed_ = -1;  // -1: random
  int64_t max_tokens_ = 0;
  int64_t min_tokens_ = 0;
  int64_t thinking_token_budget_ = -1;
  int logprobs_ = -1, prompt_logprobs_ = -1;
  std::vector<std::string> stop_, bad_words_;
  std::vector<int32_t> stop_token_ids_, allowed_token_ids_;
  bool ignore_eos_ = false;
};

}  // namespace hadal::cli
