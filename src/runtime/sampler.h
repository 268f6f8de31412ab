// From one row of logits to one token (spec serving-runtime 5.1 to 5.4).
//
// Order of operations, in fp32: log-probabilities for the report are taken from the raw row; then tokens that cannot be
// (banned, not allowed, completing a bad word, ending too early), logit bias, repetition penalty (prompt and output),
// frequency and presence penalty (output); greedy ends here with the largest logit, the lowest id among equals; then
// temperature, min_p, top_k (ties with the k-th stay), top_p (the smallest set in descending order, lower ids first
// among equals, whose mass reaches top_p; never empty), and a draw.
//
// The draw is the Gumbel-max of the tokens that are left: argmax of l/T + g(token), g = -log(-log(u)), where u comes
// from Philox 4x32-10 with the request's seed as key and (position, stream 0, token/4) as counter. So a token depends
// on the logits, the seed and its absolute position in the sequence; never on the batch, on earlier draws, on how the
// prompt was cut, or on preemption.
//
// Memory is taken in Create; Next and Accept allocate nothing.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hadal::runtime {

struct SamplingParams {
  double temperature = 1.0;                                // [0, 2]; below 1e-5 greedy, else at least 0.01
  double top_p = 1.0;                                      // (0, 1]
  int64_t top_k = 0;                                       // -1 and 0: off
  double min_p = 0.0;                                      // [0, 1]
  double repetition_penalty = 1.0;                         // (0, 100]
  double presence_penalty = 0.0;                           // [-2, 2]
  double frequency_penalty = 0.0;                          // [-2, 2]
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // values are clamped to +-100; at most 1024 entries
  int64_t min_tokens = 0;  // end tokens and stop_token_ids are not drawn before, stop strings not looked for
  std::vector<int32_t> stop_token_ids = {};          // end the output as an end token does
  std::vector<int32_t> allowed_token_ids = {};       // nothing else is drawn; empty: all
  std::vector<std::vector<int32_t>> bad_words = {};  // sequences of the output that are never completed
  uint64_t seed = 0;
  int logprobs = -1;  // -1: none; n in [0, 20]: of the token and of the n likeliest

  bool greedy() const { return temperature < 1e-5; }
};

// InvalidArgument names the parameter, its range and what was given.
absl::Status CheckSamplingParams(const SamplingParams& params, int64_t vocab);

// A seed for a request that gives none, from the system's entropy: 63 bits, so that it can be given again as an int64.
uint64_t RandomSeed();

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // of the raw row; -infinity is possible
};

struct SampledToken {
  int32_t id = 0;
  float logprob = 0;                  // 0 unless asked for
  std::span<const TokenLogprob> top;  // likeliest first; valid until the next call of Next
};

// For one sequence.
class Sampler {
 public:
  // `banned`: tokens that are never produced. `prompt` counts for the repetition penalty. `ends`: end tokens, which
  // min_tokens holds back. Ids outside the vocabulary in any of them are ignored. InvalidArgument also if nothing could
  // ever be drawn.
  static absl::StatusOr<Sampler> Create(int64_t vocab, SamplingParams params, std::span<const int32_t> prompt,
                                        std::span<const int32_t> banned, std::span<const int32_t> ends = {});

  // The token at `position` (counted from the start of the sequence). Internal if `logits` holds a NaN or +infinity, or
  // if no token is left; InvalidArgument if the request's own rules may have ruled out the last. Changes nothing that a
  // later call depends on.
  absl::StatusOr<SampledToken> Next(std::span<const float> logits, int64_t position);

  // `id` was taken into the output: it counts for the penalties from now on.
  void Accept(int32_t id);

  const SamplingParams& params() const { return params_; }

 private:
  struct Candidate {
    float score;
    int32_t id;
  };

  Sampler() = default;

  void Note(int32_t id);
  void Adjust(int64_t position);
  void Forbid(int64_t position);
  int32_t Greedy() const;
  int32_t DrawFromAll(int64_t position) const;
  int32_t DrawFromCandidates(int64_t position) const;
  void Filter();
  void KeepTopK();
  void KeepTopP();
  void ReportLogprobs(std::span<const float> logits, SampledToken* token);

  SamplingParams params_;
  std::vector<int32_t> banned_;
  std::vector<int32_t> late_;        // what min_tokens holds back
  int64_t first_free_ = 0;           // position from which on it does not
  std::vector<uint8_t> is_allowed_;  // by token; empty: all
  std::vector<int32_t> tail_;        // of the output: as much as the longest bad word may look at
  size_t longest_bad_word_ = 0;
  std::vector<float> scores_;  // the row as it is worked on
  std::vector<Candidate> candidates_;
  std::vector<TokenLogprob> top_;
  // With penalties only.
  bool penalties_ = false;
  std::vector<int32_t> counts_;   // by token, of the output
  std::vector<uint8_t> is_seen_;  // by token
  std::vector<int32_t> seen_;     // distinct tokens of prompt and output
};

}  // namespace hadal::runtime
