#include "runtime/sequence.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace hadal::runtime {
namespace {

// The usual length of an answer; longer ones grow it now and then.
constexpr int64_t kUsualAnswer = 4096;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

absl::Status CheckPrompt(const GenerateRequest& request, const SequenceSetup& setup) {
  const std::vector<int32_t>& prompt = request.prompt;
  const int64_t context = setup.max_context;
  if (prompt.empty()) return InvalidArgument("the prompt is empty: expected at least one token");
  if (static_cast<int64_t>(prompt.size()) >= context) {
    return InvalidArgument("the prompt has {} tokens, the context {}: expected at most {} so that an answer has room",
                           prompt.size(), context, context - 1);
  }
  int64_t covered = 0;  // up to here tokens belong to images that were looked at
  size_t next = 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= setup.vocab) {
      return InvalidArgument("token {} of the prompt is {}: expected ids from 0 to {}", i, prompt[i], setup.vocab - 1);
    }
    const auto position = static_cast<int64_t>(i);
    if (next < request.images.size() && request.images[next].record.offset == position) {
      covered = position + request.images[next++].record.length;
    }
    if (position >= covered && Contains(setup.banned, prompt[i])) {
      return InvalidArgument(
          "token {} of the prompt is {} (\"{}\"), which stands for an image: no image was given for it", i, prompt[i],
          setup.tokenizer->TokenBytes(prompt[i]));
    }
  }
  if (next != request.images.size()) {
    return InvalidArgument("image {} is said to begin at token {}; expected ascending places in a prompt of {} tokens",
                           next, request.images[next].record.offset, prompt.size());
  }
  if (!request.images.empty() && !setup.image_tokens.has_value()) {
    return absl::FailedPreconditionError("this model takes text only: its tokenizer has no image tokens");
  }
  return absl::OkStatus();
}

absl::Status CheckThinkingBudget(const GenerateRequest& request, const SequenceSetup& setup) {
  if (request.sampling.thinking_token_budget < 0 || setup.think_end >= 0) return absl::OkStatus();
  return InvalidArgument("thinking_token_budget: the tokenizer has no token {}", text::kThinkEndText);
}

}  // namespace

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  HADAL_CHECK(false);
}

std::vector<std::vector<int32_t>> BadWordTokens(const text::Tokenizer& tokenizer,
                                                const std::vector<std::string>& words) {
  std::vector<std::vector<int32_t>> sequences;
  for (const std::string& word : words) {
    for (const std::string& text : {word, " " + word}) {
      std::vector<int32_t> ids = tokenizer.Encode(text, text::Tokenizer::Special::kPlain);
      if (std::find(sequences.begin(), sequences.end(), ids) == sequences.end()) sequences.push_back(std::move(ids));
    }
  }
  return sequences;
}

absl::StatusOr<std::unique_ptr<Sequence>> Sequence::Create(int64_t id, GenerateRequest request,
                                                           RequestCallbacks callbacks, const SequenceSetup& setup) {
  HADAL_RETURN_IF_ERROR(CheckPrompt(request, setup));
  HADAL_RETURN_IF_ERROR(CheckStopStrings(request.stop));
  HADAL_RETURN_IF_ERROR(CheckThinkingBudget(request, setup));
  if (request.max_tokens < 0) return InvalidArgument("max_tokens: expected at least 1, found {}", request.max_tokens);
  HADAL_ASSIGN_OR_RETURN(Sampler sampler,
                         Sampler::Create(setup.vocab, request.sampling, request.prompt, setup.banned,
                                         request.ignore_end ? std::span<const int32_t>() : request.end_tokens));
  return std::unique_ptr<Sequence>(
      new Sequence(id, std::move(request), std::move(callbacks), setup, std::move(sampler)));
}

Sequence::Sequence(int64_t number, GenerateRequest request, RequestCallbacks callbacks, const SequenceSetup& setup,
                   Sampler sampler)
    : id(number),
      setup_(setup),
      request_(std::move(request)),
      callbacks_(std::move(callbacks)),
      sampler_(std::move(sampler)),
      output_(setup.tokenizer, request_.parser, request_.stop),
      tokens_(request_.prompt),
      prompt_size_(static_cast<int64_t>(request_.prompt.size())),
      start_(Clock::now()) {
  const int64_t context_room = setup.max_context - prompt_size_;
  limit_ = request_.max_tokens == 0 ? context_room : std::min(request_.max_tokens, context_room);
  tokens_.reserve(static_cast<size_t>(prompt_size_ + std::min(limit_, kUsualAnswer)));
  result_.token_ids.reserve(static_cast<size_t>(std::min(limit_, kUsualAnswer)));
  result_.prompt_tokens = prompt_size_;
  if (request_.grammar != nullptr) {
    matcher_.emplace(request_.grammar);
    mask_.resize((static_cast<size_t>(setup.vocab) + 31) / 32);
    no_end_mask_.assign(mask_.size(), UINT32_MAX);
    for (const int32_t end : request_.end_tokens) {
      if (end >= 0 && end < setup.vocab) {
        no_end_mask_[static_cast<size_t>(end) / 32] &= ~(1u << (static_cast<uint32_t>(end) % 32));
      }
    }
  }
  // Greedy drafts hold or do not in either mode.
  if (sampler_.params().greedy()) return;
  draft_rows_.assign(static_cast<size_t>(setup.rejection_drafts), std::vector<float>(static_cast<size_t>(setup.vocab)));
}

void Sequence::NoteStart(Clock::time_point now) {
  if (started) return;
  started = true;
  result_.timings.queue_seconds = Seconds(now - start_);
}

absl::StatusOr<RowOptions> Sequence::OptionsOfRow() {
  RowOptions options;
  const int64_t budget = request_.sampling.thinking_token_budget;
  if (budget >= 0 && output_.in_reasoning() && result_.reasoning_tokens >= budget) options.forced = setup_.think_end;
  if (!GrammarRules()) {
    options.mask = no_end_mask_;
    return options;
  }
  HADAL_RETURN_IF_ERROR(matcher_->FillMask(mask_));
  options.mask = mask_;
  return options;
}

// What may follow drafts, into mask_. False if one of them may not be there, or the end is among them.
bool Sequence::MaskBehindDrafts() {
  size_t taken = 0;
  while (taken < drafts.size() && matcher_->Accept(drafts[taken])) ++taken;
  const bool known = taken == drafts.size() && !matcher_->IsTerminated() && matcher_->FillMask(mask_).ok();
  HADAL_CHECK(matcher_->Rollback(taken));
  return known;
}

absl::StatusOr<SampledToken> Sequence::Draw(std::span<const float> logits, int64_t draft) {
  HADAL_ASSIGN_OR_RETURN(const RowOptions options, OptionsOfRow());
  if (draft < 0 || draft_rows_.empty()) return sampler_.Next(logits, size(), options);
  std::span<const float> row;
  if (static_cast<size_t>(draft) < drawn_drafts_) row = draft_rows_[draft];
  HADAL_ASSIGN_OR_RETURN(const VerifiedToken token, sampler_.Verify(logits, size(), drafts[draft], row, options));
  return token.token;
}

bool Sequence::DrawDraft(std::span<const float> logits) {
  const int64_t position = size() + static_cast<int64_t>(drafts.size());
  int32_t draft = -1;
  if (draft_rows_.empty()) {
    // The target's own draw, from the drafted logits: with the same noise the two agree more often than with noise of
    // its own, and what the target draws does not depend on the draft (spec serving-runtime 1.4).
    RowOptions options;
    if (GrammarRules()) {
      if (!MaskBehindDrafts()) return false;
      options.mask = mask_;
    }
    const absl::StatusOr<SampledToken> token = sampler_.Next(logits, position, options);
    if (token.ok()) draft = token->id;
  } else {
    draft = sampler_.DrawDraft(logits, position, draft_rows_[drafts.size()]);
    drawn_drafts_ = drafts.size() + 1;
  }
  if (draft < 0) {
    ++draft_faults_;
    return false;
  }
  drafts.push_back(draft);
  return true;
}

absl::Status Sequence::ReportPrompt(int64_t position, std::span<const float> logits) {
  std::vector<TokenStep>& report = result_.prompt_logprobs;
  if (position != static_cast<int64_t>(report.size()) + 1) return absl::OkStatus();
  HADAL_ASSIGN_OR_RETURN(const SampledToken token, sampler_.ReportPrompt(logits, tokens_[position]));
  report.push_back({token.id, token.logprob, {token.top.begin(), token.top.end()}, token.rank});
  return absl::OkStatus();
}

bool Sequence::Take(const SampledToken& token, Clock::time_point now) {
  const auto produced = static_cast<int64_t>(result_.token_ids.size());
  if (produced == 0) {
    first_token_ = now;
  } else {
    result_.timings.longest_gap_seconds = std::max(result_.timings.longest_gap_seconds, Seconds(now - last_token_));
  }
  last_token_ = now;
  sampler_.Accept(token.id);
  tokens_.push_back(token.id);
  result_.token_ids.push_back(token.id);
  if (request_.sampling.logprobs >= 0) {
    result_.logprobs.push_back({token.id, token.logprob, {token.top.begin(), token.top.end()}, token.rank});
    if (callbacks_.on_token) callbacks_.on_token(result_.logprobs.back(), now);
  } else if (callbacks_.on_token) {
    callbacks_.on_token({.id = token.id, .logprob = token.logprob, .rank = token.rank}, now);
  }
  if (output_.in_reasoning()) {
    ++result_.reasoning_tokens;
  } else if (matcher_.has_value()) {
    HADAL_CHECK(matcher_->Accept(token.id));  // it was drawn under the grammar's mask
    if (matcher_->IsTerminated()) return false;
  }
  if (!request_.ignore_end && Contains(request_.end_tokens, token.id)) return false;
  if (Contains(request_.sampling.stop_token_ids, token.id)) {
    result_.stop_token = token.id;
    return false;
  }
  const bool wanted = callbacks_.on_events(output_.Push(token.id, produced >= request_.sampling.min_tokens));
  if (output_.stopped()) {
    result_.stop_string = output_.stop_string();
    return false;
  }
  if (!wanted) {
    Cancel();
    return false;
  }
  if (produced + 1 == limit_) {
    result_.finish_reason = FinishReason::kLength;
    return false;
  }
  return true;
}

void Sequence::Cancel() { result_.finish_reason = FinishReason::kCancelled; }

void Sequence::Finish(Clock::time_point now) {
  const bool cut = result_.finish_reason != FinishReason::kStop;
  callbacks_.on_events(output_.Finish(cut ? text::EndCause::kLength : text::EndCause::kStop));
  result_.content = output_.content();
  result_.reasoning = output_.reasoning();
  result_.tool_calls = output_.tool_calls();
  if (!result_.tool_calls.empty() && result_.finish_reason != FinishReason::kCancelled) {
    result_.finish_reason = FinishReason::kToolCalls;
  }
  GenerateTimings& timings = result_.timings;
  if (result_.token_ids.empty()) first_token_ = last_token_ = now;
  timings.prefill_seconds = Seconds(first_token_ - start_);
  timings.decode_seconds = Seconds(last_token_ - first_token_);
  if (const double busy = timings.prefill_seconds - timings.queue_seconds; busy > 0) {
    timings.prefill_tokens_per_second = static_cast<double>(prompt_size_ - result_.cached_tokens) / busy;
  }
  if (result_.token_ids.size() > 1 && timings.decode_seconds > 0) {
    timings.decode_tokens_per_second = static_cast<double>(result_.token_ids.size() - 1) / timings.decode_seconds;
  }
  callbacks_.on_done(std::move(result_));
}

void Sequence::Fail(const absl::Status& status) { callbacks_.on_done(status); }

}  // namespace hadal::runtime
