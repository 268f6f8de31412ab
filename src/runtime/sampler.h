// From one row of logits to one token (spec serving-runtime 1.3 to 1.6 and 5.1 to 5.4).
//
// Order of operations, in fp32: log-probabilities for the report are taken from the raw row (or, if asked for, from the
// processed one at the end); then logit bias, repetition penalty (prompt and output), frequency and presence penalty
// (output); tokens that cannot be (not allowed, completing a bad word, ending too early, banned, and last those that
// the grammar's mask leaves out); greedy ends here with the largest logit, the lowest id among equals; then
// temperature, min_p, top_k (ties with the k-th stay), top_p (the smallest set in descending order, lower ids first
// among equals, whose mass reaches top_p; never empty), and a draw. A forced token takes the place of all that.
//
// A draw is the Gumbel-max of the tokens that are left: argmax of l/T + g(token), g = -log(-log(u)), where u comes
// from Philox 4x32-10 with the request's seed as key and (position, stream, token/4) as counter. So a token depends
// on the logits, the seed and its absolute position in the sequence; never on the batch, on earlier draws, on how the
// prompt was cut, or on preemption. The streams, one for each purpose, are independent of each other: the target's
// tokens (Next), drafts (DrawDraft), the test of a draft and what replaces it (Verify).
//
// Speculative decoding takes the rows of a verify pass one after the other, each followed by Accept of its token, up to
// and including the first whose token is not the draft; so every row sees the output before it, as without speculation.
//   matching   Next for each row: the tokens are those of decoding without drafts, whatever the drafts are (spec 1.4).
//   rejection  Verify for each row that has a draft, Next for the bonus row: the tokens have the same distribution as
//              without drafts, but are others (spec 1.5). Whether a draft is verified may depend on the output and on
//              drafts before it, not on its own value: one that is thrown away for what it is biases the result.
//
// Memory is taken in Create; nothing else allocates.
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
  double repetition_penalty = 1.0;                         // above 0, finite
  double presence_penalty = 0.0;                           // [-2, 2]
  double frequency_penalty = 0.0;                          // [-2, 2]
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // values are clamped to +-100; at most 1024 entries
  int64_t min_tokens = 0;  // end tokens and stop_token_ids are not drawn before, stop strings not looked for
  std::vector<int32_t> stop_token_ids = {};          // end the output as an end token does
  std::vector<int32_t> allowed_token_ids = {};       // nothing else is drawn; empty: all
  std::vector<std::vector<int32_t>> bad_words = {};  // sequences of the output that are never completed
  uint64_t seed = 0;
  int logprobs = -1;  // -1: none; n in [0, 20]: of the token and of the n likeliest
  // Of the row as the token was drawn from it, with everything that is ruled out at -infinity; greedily drawn tokens
  // know no temperature and no filters.
  bool logprobs_processed = false;
  int prompt_logprobs = -1;            // as logprobs, for the tokens of the prompt (ReportPrompt)
  int n = 1;                           // [1, 128] answers, each a sequence with a sampler of its own: ChildSeed
  int64_t thinking_token_budget = -1;  // -1: none; then RowOptions::forced ends the thinking (whoever counts it)

  bool greedy() const { return temperature < 1e-5; }
};

// The ranges of spec 5.2. InvalidArgument names the parameter, its range and what was given. Lists that were given but
// are empty are for the parser of the request to refuse: here an empty list is one that was not given.
absl::Status CheckSamplingParams(const SamplingParams& params, int64_t vocab);

// A seed for a request that gives none, from the system's entropy: 63 bits, so that it can be given again as an int64.
uint64_t RandomSeed();

// The seed of answer i of n (spec 5.3); the first has the request's own. Philox makes unrelated noise of related keys.
inline uint64_t ChildSeed(uint64_t seed, int i) { return seed + static_cast<uint64_t>(i); }

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // -infinity is possible
};

struct SampledToken {
  int32_t id = 0;
  float logprob = 0;                  // 0 unless asked for
  int32_t rank = 0;                   // 1 + the number of likelier tokens; 0 unless logprobs were asked for
  std::span<const TokenLogprob> top;  // likeliest first; valid until the next call
};

// What holds for one row only.
struct RowOptions {
  // Tokens that a grammar lets follow: bit t % 32 of word t / 32 for token t, ceil(vocab / 32) words. Empty: all.
  std::span<const uint32_t> mask = {};
  // If not negative, this is the token, whatever the row, the mask and the request say; its logprobs are those of the
  // raw row.
  int32_t forced = -1;
};

struct VerifiedToken {
  SampledToken token;
  bool accepted = false;  // whether the draft was taken; then token.id is the draft
};

// For one sequence.
class Sampler {
 public:
  // `banned`: tokens that are never produced. `prompt` counts for the repetition penalty. `ends`: end tokens, which
  // min_tokens holds back. Ids outside the vocabulary in any of them are ignored. InvalidArgument also if nothing could
  // ever be drawn.
  static absl::StatusOr<Sampler> Create(int64_t vocab, SamplingParams params, std::span<const int32_t> prompt,
                                        std::span<const int32_t> banned, std::span<const int32_t> ends = {});

  // The token at `position` (counted from the start of the sequence). Internal if `logits` [vocab] holds a NaN or
  // +infinity, if no token is left, or if the mask ruled out the last; InvalidArgument if the request's own rules may
  // have done that. Changes nothing that a later call depends on.
  absl::StatusOr<SampledToken> Next(std::span<const float> logits, int64_t position, const RowOptions& options = {});

  // A draft for `position` from a drafter's row. `scaled` [vocab] receives the logits of the distribution that the
  // draft was drawn from, which is the row at the request's temperature and no more (spec 2.4); with an empty `scaled`,
  // or for greedy requests, which leave it as it is, the draft is the largest logit, the lowest id among equals. Banned
  // tokens are not drafted. -1 if the row holds a NaN or +infinity or has no token: no draft, and none to draft behind
  // it.
  int32_t DrawDraft(std::span<const float> logits, int64_t position, std::span<float> scaled = {});

  // Rejection mode: the token at `position` from the target's row, given a draft for it (spec 1.5). `draft_row` is what
  // DrawDraft wrote, or the logits of whatever distribution the draft was drawn from, independently of this sampler's
  // other streams; empty if the draft was not drawn but chosen. A draft outside the vocabulary, or from a row that is
  // no distribution, is rejected. Greedy requests and forced rows accept the draft that is the token. Errors as for
  // Next.
  absl::StatusOr<VerifiedToken> Verify(std::span<const float> logits, int64_t position, int32_t draft,
                                       std::span<const float> draft_row = {}, const RowOptions& options = {});

  // What prompt_logprobs (at least 0) asks to be said of the prompt's token that follows a row: always of the raw row.
  // Internal if the row holds a NaN or +infinity.
  absl::StatusOr<SampledToken> ReportPrompt(std::span<const float> logits, int32_t token);

  // `id` was taken into the output: it counts for the penalties from now on.
  void Accept(int32_t id);

  const SamplingParams& params() const { return params_; }

 private:
  struct Candidate {
    float score;
    int32_t id;
  };

  // scores_ as a row's tokens are drawn from it, and what is known of the outcome.
  struct Row {
    int32_t token = 0;     // forced, or the likeliest
    bool decided = false;  // forced or greedy: there is no draw
    bool raw = true;       // logprobs are of the raw row
  };

  Sampler() = default;

  void Note(int32_t id);
  absl::StatusOr<Row> Process(std::span<const float> logits, int64_t position, const RowOptions& options);
  void Adjust(int64_t position);
  void Forbid(int64_t position);
  absl::Status NothingLeft(std::span<const float> logits, int64_t position, const RowOptions& options);
  void Scale(float highest);
  void Filter();
  float KthLargest(size_t k);
  void KeepTopP();
  void Cut(float lowest, int32_t last);
  int32_t Draw(int64_t position, uint32_t stream, int32_t likeliest) const;
  int32_t DrawResidual(int64_t position, int32_t likeliest, double log_mass, int32_t draft,
                       std::span<const float> draft_row, double draft_log_mass) const;
  void Summarise(std::span<const float> row, float highest, int wanted);
  SampledToken Report(std::span<const float> row, int32_t id, int wanted) const;

  SamplingParams params_;
  std::vector<int32_t> banned_;
  std::vector<int32_t> late_;      // what min_tokens holds back
  int64_t first_free_ = 0;         // position from which on it does not
  std::vector<uint32_t> allowed_;  // as RowOptions::mask
  std::vector<int32_t> tail_;      // of the output: as much as the longest bad word may look at
  size_t longest_bad_word_ = 0;
  std::vector<float> scores_;          // the row as it is worked on; -infinity: cannot be drawn
  std::vector<Candidate> candidates_;  // scratch of top_k and top_p
  double log_sum_ = 0;                 // of the row that logprobs are reported of: log of the sum of e^logit
  std::vector<TokenLogprob> top_;      // of it
  // With penalties only.
  bool penalties_ = false;
  std::vector<int32_t> counts_;   // by token, of the output
  std::vector<uint8_t> is_seen_;  // by token
  std::vector<int32_t> seen_;     // distinct tokens of prompt and output
};

}  // namespace hadal::runtime
