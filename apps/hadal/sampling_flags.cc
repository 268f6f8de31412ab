#include "sampling_flags.h"

#include "base/status.h"
#include "runtime/stop_strings.h"

namespace hadal::cli {

void SamplingFlags::Register(CLI::App* app) {
  const std::string group = "Sampling";
  app->add_option("--temperature", temperature_, "0 to 2; 0: the likeliest token [generation_config.json, else 1]")
      ->group(group);
  app->add_option("--top-p", top_p_, "Keep the likeliest tokens with this mass [generation_config.json, else 1]")
      ->group(group);
  app->add_option("--top-k", top_k_, "Keep this many of the likeliest tokens [generation_config.json, else off]")
      ->group(group);
  app->add_option("--min-p", min_p_, "Keep tokens at least this likely, relative to the likeliest [0]")->group(group);
  app->add_option("--seed", seed_, "The same seed gives the same answer; -1: a random one [-1]")
      ->check(Int64Text())
      ->group(group);
  app->add_option("--repetition-penalty", repetition_penalty_, "Of tokens in prompt and answer [1: off]")->group(group);
  app->add_option("--presence-penalty", presence_penalty_, "-2 to 2, of tokens in the answer [0]")->group(group);
  app->add_option("--frequency-penalty", frequency_penalty_, "-2 to 2, for each use in the answer [0]")->group(group);
  app->add_option("--max-tokens", max_tokens_, "Longest answer [to the end of the context]")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app->add_option("--min-tokens", min_tokens_, "Shortest answer: before, nothing ends it [0]")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app->add_option("--stop-token-ids", stop_token_ids_, "Token ids that end the answer, comma between")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  app->add_option("--allowed-token-ids", allowed_token_ids_, "Draw no other tokens than these, comma between")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(group);
  AddList(app, "--bad-words", &bad_words_,
          "Word that is not drawn, at the start of a text or behind a space; may be repeated")
      ->group(group);
  AddList(app, "--stop", &stop_, "End the answer before this text; may be repeated")->group(group);
  app->add_option("--thinking-token-budget", thinking_token_budget_,
                  "End the thinking behind this many tokens [no limit]")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app->add_option("--logprobs", logprobs_, "With --json: log-probability of each token and of the N likeliest, 0 to 20")
      ->check(CLI::Range(0, 20))
      ->group(group);
  app->add_option("--prompt-logprobs", prompt_logprobs_, "With --json: the same for the tokens of the prompt")
      ->check(CLI::Range(0, 20))
      ->group(group);
  app->add_flag("--ignore-eos", ignore_eos_, "Go on behind the end token, to measure speed")->group(group);
}

absl::Status SamplingFlags::Check() const {
  runtime::GenerateRequest request;
  Apply({}, nullptr, &request);
  HADAL_RETURN_IF_ERROR(runtime::CheckSamplingParams(request.sampling, INT32_MAX));
  constexpr size_t kMaxBadWords = 128;
  if (bad_words_.size() > kMaxBadWords) {
    return InvalidArgument("bad_words: expected at most {}, found {}", kMaxBadWords, bad_words_.size());
  }
  for (const std::string& word : bad_words_) {
    if (word.empty()) return InvalidArgument("bad_words: expected non-empty words, found an empty one");
  }
  return runtime::CheckStopStrings(stop_);
}

void SamplingFlags::Apply(const runtime::SamplingParams& defaults, const text::Tokenizer* tokenizer,
                          runtime::GenerateRequest* request) const {
  runtime::SamplingParams& p = request->sampling;
  p = defaults;
  p.temperature = temperature_.value_or(p.temperature);
  p.top_p = top_p_.value_or(p.top_p);
  p.top_k = top_k_.value_or(p.top_k);
  p.min_p = min_p_.value_or(p.min_p);
  p.repetition_penalty = repetition_penalty_.value_or(p.repetition_penalty);
  p.presence_penalty = presence_penalty_.value_or(p.presence_penalty);
  p.frequency_penalty = frequency_penalty_.value_or(p.frequency_penalty);
  p.min_tokens = min_tokens_;
  p.stop_token_ids = stop_token_ids_;
  p.allowed_token_ids = allowed_token_ids_;
  if (tokenizer != nullptr) p.bad_words = runtime::BadWordTokens(*tokenizer, bad_words_);
  p.thinking_token_budget = thinking_token_budget_;
  p.logprobs = logprobs_;
  p.prompt_logprobs = prompt_logprobs_;
  p.seed = seed_ == -1 ? runtime::RandomSeed() : static_cast<uint64_t>(seed_);
  request->max_tokens = max_tokens_;
  request->stop = stop_;
  request->ignore_end = ignore_eos_;
}

}  // namespace hadal::cli
