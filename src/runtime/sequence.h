// One request on its way: its tokens, what it needs to draw the next one, and what came out so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "guided/matcher.h"
#include "runtime/images.h"
#include "runtime/output_stream.h"
#include "runtime/request.h"
#include "runtime/sampler.h"

namespace hadal::runtime {

using Clock = std::chrono::steady_clock;

// What sequences are made with, the same for all of a model.
struct SequenceSetup {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::optional<ImageTokenIds> image_tokens;  // never generated; a prompt holds them in the blocks of its images only
  std::vector<int32_t> banned;                // those
  int32_t think_end = -1;                     // </think>; -1: the tokenizer has none
  int64_t vocab = 0;
  int64_t max_context = 0;
  int64_t rejection_drafts = 0;  // drafts at most in rejection mode; 0: matching mode
};

class Sequence {
 public:
  // InvalidArgument for a request that cannot be run; FailedPrecondition for images where the model takes none.
  static absl::StatusOr<std::unique_ptr<Sequence>> Create(int64_t id, GenerateRequest request,
                                                          RequestCallbacks callbacks, const SequenceSetup& setup);

  const GenerateRequest& request() const { return request_; }
  std::span<const int32_t> tokens() const { return tokens_; }
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t prompt_size() const { return prompt_size_; }
  // Tokens that may still be generated.
  int64_t room() const { return limit_ - (size() - prompt_size_); }
  // All rows but that of the last token are computed, and it was generated.
  bool decoding() const { return computed + 1 == size() && size() > prompt_size_; }
  // Rows before this one are not needed to continue.
  int64_t remaining() const { return size() - computed; }

  // The token at position size() from its row of logits. Errors of Sampler::Next. In rejection mode draft `draft` of
  // drafts has a say in it (spec serving-runtime 1.5); -1: there is none.
  absl::StatusOr<SampledToken> Draw(std::span<const float> logits, int64_t draft = -1);
  // Drafts a token behind tokens() and `drafts` from a row of the draft block; false if there is none.
  bool DrawDraft(std::span<const float> logits);
  // Not any more once several rows of the draft block were none to draw from.
  bool drafts_help() const { return draft_faults_ < kMostDraftFaults; }
  // The log-probability of the prompt's token at `position`, from the row of logits before it. Internal if that is not
  // finite. Positions that were reported before a preemption are left alone.
  absl::Status ReportPrompt(int64_t position, std::span<const float> logits);
  void DropDrafts() {
    drafts.clear();
    drawn_drafts_ = 0;
  }
  // Takes a token into the output. False if the sequence is over with it.
  bool Take(const SampledToken& token, Clock::time_point now);
  // The reader wants no more.
  void Cancel();
  bool cancelled() const { return result_.finish_reason == FinishReason::kCancelled; }
  // Delivers the end. Nothing may be called afterwards.
  void Finish(Clock::time_point now);
  void Fail(const absl::Status& status);

  const int64_t id;
  // Of the scheduler and the executor.
  int32_t slot = -1;        // of the cache, while it runs
  int64_t computed = 0;     // rows in the cache
  int64_t blocked_at = -1;  // available blocks when it did not fit, while it waits
  std::vector<int32_t> drafts;
  std::optional<ImageContext> images;  // while it runs
  bool started = false;

  GenerateResult& result() { return result_; }
  Clock::time_point arrival() const { return start_; }
  void NoteStart(Clock::time_point now);

 private:
  static constexpr int kMostDraftFaults = 4;

  Sequence(int64_t number, GenerateRequest request, RequestCallbacks callbacks, const SequenceSetup& setup,
           Sampler sampler);

  absl::StatusOr<RowOptions> OptionsOfRow();
  // Whether the next token is one of the answer, which the grammar rules.
  bool GrammarRules() const { return matcher_.has_value() && !output_.in_reasoning(); }
  bool MaskBehindDrafts();

  const SequenceSetup& setup_;
  GenerateRequest request_;
  RequestCallbacks callbacks_;
  Sampler sampler_;
  OutputStream output_;
  std::optional<guided::Matcher> matcher_;
  std::vector<uint32_t> mask_;
  // Of rows in the reasoning before a form: all but the end tokens, behind which the form would never come. Empty
  // without one.
  std::vector<uint32_t> no_end_mask_;
  std::vector<int32_t> tokens_;
  std::vector<std::vector<float>> draft_rows_;  // rejection mode: what each of drafts was drawn from
  size_t drawn_drafts_ = 0;                     // of them
  int draft_faults_ = 0;
  int64_t prompt_size_ = 0;
  int64_t limit_ = 0;
  GenerateResult result_;
  Clock::time_point start_, last_token_, first_token_;
};

}  // namespace hadal::runtime
