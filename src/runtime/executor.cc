#include "runtime/executor.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "text/dsml.h"

namespace hadal::runtime {
namespace {

SchedulerOptions SchedulerOptionsFor(const models::ModelLimits& limits, const ExecutorOptions& options) {
  SchedulerOptions scheduler;
  scheduler.max_step_rows = limits.max_batch_tokens;
  scheduler.max_batch_tokens = options.max_batch_tokens > 0
                                   ? std::min(options.max_batch_tokens, limits.max_batch_tokens)
                                   : limits.max_batch_tokens;
  scheduler.max_seqs = limits.max_seqs;
  scheduler.max_context = limits.max_context;
  scheduler.max_logit_rows = limits.max_logit_rows;
  scheduler.max_prefill_with_decode = options.max_prefill_with_decode;
  scheduler.num_speculative_tokens = options.num_speculative_tokens;
  return scheduler;
}

SequenceSetup SetupFor(const models::Model& model, std::shared_ptr<const text::Tokenizer> tokenizer,
                       std::optional<ImageTokenIds> image_tokens) {
  SequenceSetup setup;
  setup.tokenizer = std::move(tokenizer);
  setup.image_tokens = image_tokens;
  if (image_tokens.has_value()) {
    setup.banned.push_back(image_tokens->placeholder);
    for (int32_t i = 0; i < 5; ++i) setup.banned.push_back(image_tokens->first + i);
  }
  if (setup.tokenizer != nullptr) setup.think_end = setup.tokenizer->TokenId(text::kThinkEndText).value_or(-1);
  setup.vocab = model.config().vocab_size;
  setup.max_context = model.limits().max_context;
  return setup;
}

}  // namespace

Executor::Executor(models::Model* model, std::shared_ptr<const text::Tokenizer> tokenizer,
                   std::optional<ImageTokenIds> image_tokens, const ExecutorOptions& options)
    : model_(model),
      setup_(SetupFor(*model, std::move(tokenizer), image_tokens)),
      options_(options),
      cache_(model, options.kv),
      scheduler_(&cache_, SchedulerOptionsFor(model->limits(), options)) {
  const models::ModelLimits& limits = model->limits();
  HADAL_CHECK(options.num_speculative_tokens <= limits.max_draft_tokens);
  if (options.rejection_sampling) setup_.rejection_drafts = options.num_speculative_tokens;
  const auto rows = static_cast<size_t>(limits.max_batch_tokens);
  for (auto* list : {&ids_, &positions_, &seqs_, &left_, &right_, &source_rows_}) list->reserve(rows);
  embeddings_of_rows_.reserve(rows);
  logit_rows_.reserve(static_cast<size_t>(limits.max_logit_rows));
  logits_.resize(static_cast<size_t>(limits.max_logit_rows * setup_.vocab));
  outcomes_.reserve(static_cast<size_t>(limits.max_seqs));
  drafting_.reserve(static_cast<size_t>(limits.max_seqs));
  draft_rows_.reserve(static_cast<size_t>(limits.max_seqs));
  stats_.drafted_at.assign(static_cast<size_t>(options.num_speculative_tokens), 0);
  stats_.accepted_at.assign(static_cast<size_t>(options.num_speculative_tokens), 0);
}

Executor::~Executor() = default;

ExecutorStats Executor::stats() const {
  ExecutorStats stats = stats_;
  stats.preemptions = scheduler_.preemptions();
  return stats;
}

absl::StatusOr<int64_t> Executor::Submit(GenerateRequest request, RequestCallbacks callbacks) {
  const int64_t id = next_id_;
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> sequence,
                         Sequence::Create(id, std::move(request), std::move(callbacks), setup_));
  HADAL_RETURN_IF_ERROR(scheduler_.CheckFits(sequence->prompt_size(), sequence->room()));
  if (static_cast<int64_t>(scheduler_.waiting()) >= options_.max_waiting) {
    return absl::UnavailableError(fmt::format("{} requests are waiting already, at most {} may: try again later",
                                              scheduler_.waiting(), options_.max_waiting));
  }
  ++next_id_;
  ++stats_.requests;
  scheduler_.Add(sequence.get());
  requests_.emplace(id, std::move(sequence));
  return id;
}

void Executor::Abort(int64_t id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  it->second->Cancel();
  End(it->second.get(), absl::OkStatus(), Clock::now());
}

void Executor::End(Sequence* sequence, const absl::Status& status, Clock::time_point now) {
  scheduler_.Remove(sequence);
  // Out of the table first: what the callbacks see is an executor without it.
  const auto node = requests_.extract(sequence->id);
  if (!status.ok()) {
    ++stats_.failed;
    sequence->Fail(status);
    return;
  }
  ++(sequence->cancelled() ? stats_.cancelled : stats_.finished);
  stats_.prompt_tokens += sequence->prompt_size();
  stats_.generated_tokens += sequence->size() - sequence->prompt_size();
  sequence->Finish(now);
}

std::span<const float> Executor::LogitRow(int64_t row) const {
  return std::span(logits_).subspan(static_cast<size_t>(row * setup_.vocab), static_cast<size_t>(setup_.vocab));
}

// The first step of a sequence, and the first after a preemption, encodes its images from where it starts.
absl::Status Executor::PrepareImages(const std::vector<Work>& plan) {
  for (const Work& work : plan) {
    Sequence* sequence = work.sequence;
    if (sequence->images.has_value()) continue;
    if (sequence->request().images.empty()) {
      sequence->images.emplace();
      continue;
    }
    absl::StatusOr<ImageContext> images =
        ImageContext::Create(model_, sequence->request().images, sequence->request().prompt, *setup_.image_tokens,
                             &embeddings_, sequence->computed);
    if (!images.ok()) {
      End(sequence, images.status(), Clock::now());
      return images.status();
    }
    sequence->images = *std::move(images);
  }
  return absl::OkStatus();
}

void Executor::FillStep(const std::vector<Work>& plan) {
  for (auto* list : {&ids_, &positions_, &seqs_, &logit_rows_, &left_, &right_}) list->clear();
  embeddings_of_rows_.clear();
  outcomes_.clear();
  has_images_ = false;
  for (const Work& work : plan) {
    const Sequence& sequence = *work.sequence;
    Outcome outcome;
    outcome.first_logit_row = static_cast<int64_t>(logit_rows_.size());
    outcomes_.push_back(outcome);
    const auto first_row = static_cast<int32_t>(ids_.size());
    const std::span<const int32_t> tokens = sequence.tokens();
    for (int64_t i = 0; i < work.rows; ++i) {
      const int64_t position = work.begin + i;
      const int64_t draft = position - sequence.size();
      ids_.push_back(draft < 0 ? tokens[position] : sequence.drafts[draft]);
      positions_.push_back(static_cast<int32_t>(position));
      seqs_.push_back(sequence.slot);
      const ImageContext::Row image = sequence.images->At(position);
      embeddings_of_rows_.push_back(image.embedding);
      left_.push_back(image.left);
      right_.push_back(image.right);
      has_images_ = has_images_ || image.embedding != nullptr || image.left > 0 || image.right > 0;
    }
    const bool reports = sequence.request().sampling.prompt_logprobs >= 0 && work.begin < sequence.prompt_size();
    const int64_t wanted = reports ? work.rows : (work.samples ? 1 + work.drafts : 0);
    for (int64_t i = work.rows - wanted; i < work.rows; ++i) {
      logit_rows_.push_back(first_row + static_cast<int32_t>(i));
    }
  }
}

// Draws from the rows of the last token and of the drafts behind it, as long as the drafts are what is drawn.
void Executor::Sample(const Work& work, Outcome* outcome, Clock::time_point now) {
  Sequence* sequence = work.sequence;
  outcome->committed = work.rows - work.drafts;
  if (!work.samples) return;
  // With drafts, rows that come before the last token's are those of a reported prompt.
  int64_t row = outcome->first_logit_row;
  const bool reports = sequence->request().sampling.prompt_logprobs >= 0 && work.begin < sequence->prompt_size();
  if (reports) row += work.rows - 1;
  int64_t held = 0;
  for (int64_t i = 0; i <= work.drafts; ++i) {
    const absl::StatusOr<SampledToken> token = sequence->Draw(LogitRow(row + i), i < work.drafts ? i : -1);
    if (!token.ok()) {
      outcome->over = true;
      outcome->status = token.status();
      break;
    }
    const bool right = i < work.drafts && token->id == sequence->drafts[i];
    if (right) {
      ++held;
      ++outcome->committed;
      ++stats_.accepted_at[i];
    }
    if (!sequence->Take(*token, now)) {
      outcome->over = true;
      break;
    }
    if (!right) break;
  }
  if (work.drafts == 0) return;
  ++stats_.drafts;
  stats_.draft_tokens += work.drafts;
  stats_.accepted_tokens += held;
  for (int64_t i = 0; i < work.drafts; ++i) ++stats_.drafted_at[i];
  sequence->result().draft_tokens += work.drafts;
  sequence->result().accepted_tokens += held;
}

bool Executor::Step() {
  if (preemption_source_) {
    std::vector<int64_t> running;
    for (const auto& [id, sequence] : requests_) {
      if (sequence->slot >= 0) running.push_back(id);
    }
    std::sort(running.begin(), running.end());
    for (const int64_t id : preemption_source_(running)) {
      const auto it = requests_.find(id);
      if (it != requests_.end() && it->second->slot >= 0) scheduler_.Preempt(it->second.get());
    }
  }
  const std::vector<Work>& plan = scheduler_.Plan();
  if (!scheduler_.failed().empty()) {
    const std::vector<Sequence*> failed = scheduler_.failed();
    for (Sequence* sequence : failed) {
      End(sequence,
          ResourceExhausted("the {} tokens of the request do not fit into a cache of {} blocks: give more memory with "
                            "--kv-cache-memory",
                            sequence->size(), cache_.slabs()),
          Clock::now());
    }
    return true;
  }
  if (plan.empty()) return false;
  // A request whose images cannot be encoded is over; the step is planned again without it.
  if (!PrepareImages(plan).ok()) return true;
  const Clock::time_point begin = Clock::now();
  for (const Work& work : plan) work.sequence->NoteStart(begin);
  FillStep(plan);
  models::StepInput step;
  step.ids = ids_;
  step.positions = positions_;
  step.seqs = seqs_;
  step.logit_rows = logit_rows_;
  step.logits = logits_.data();
  if (has_images_) {
    step.embeddings = embeddings_of_rows_;
    step.left_visible = left_;
    step.right_visible = right_;
  }
  ++stats_.steps;
  stats_.rows += RowsOfStep();
  absl::Status status = model_->Forward(step);
  const Clock::time_point now = Clock::now();
  for (size_t i = 0; i < plan.size(); ++i) {
    Outcome& outcome = outcomes_[i];
    if (!status.ok()) {
      outcome.over = true;
      outcome.status = status;
      continue;
    }
    outcome.status = ReportPrompt(plan[i], &outcome);
    outcome.over = !outcome.status.ok();
    if (!outcome.over) Sample(plan[i], &outcome, now);
  }
  if (status.ok() && options_.num_speculative_tokens > 0) status = Draft(plan);
  stats_.failed_steps = status.ok() ? 0 : stats_.failed_steps + 1;
  for (size_t i = 0; i < plan.size(); ++i) {
    Sequence* sequence = plan[i].sequence;
    const Outcome& outcome = outcomes_[i];
    if (outcome.status.ok()) {
      sequence->computed = plan[i].begin + outcome.committed;
      cache_.Commit(sequence->slot, sequence->tokens(), sequence->computed);
    }
    if (!status.ok()) {
      End(sequence, status, now);
    } else if (outcome.over) {
      End(sequence, outcome.status, now);
    }
  }
  return true;
}

absl::Status Executor::ReportPrompt(const Work& work, Outcome* outcome) {
  Sequence* sequence = work.sequence;
  if (sequence->request().sampling.prompt_logprobs < 0) return absl::OkStatus();
  for (int64_t i = 0; i < work.rows; ++i) {
    const int64_t position = work.begin + i + 1;
    if (position >= sequence->prompt_size()) break;
    HADAL_RETURN_IF_ERROR(sequence->ReportPrompt(position, LogitRow(outcome->first_logit_row + i)));
  }
  return absl::OkStatus();
}

// The draft block runs over every row whose token is final: its own window needs a row for each (spec 2.2). Row p takes
// the embedding of token p+1.
absl::Status Executor::Draft(const std::vector<Work>& plan) {
  for (auto* list : {&ids_, &positions_, &seqs_, &source_rows_, &logit_rows_, &draft_rows_}) list->clear();
  embeddings_of_rows_.clear();
  drafting_.clear();
  has_images_ = false;
  int64_t first_row = 0;
  for (size_t w = 0; w < plan.size(); ++w) {
    const Work& work = plan[w];
    const int64_t row = first_row;
    first_row += work.rows;
    Sequence* sequence = work.sequence;
    sequence->DropDrafts();
    if (outcomes_[w].over) continue;
    const std::span<const int32_t> tokens = sequence->tokens();
    for (int64_t i = 0; i < outcomes_[w].committed; ++i) {
      const int64_t position = work.begin + i;
      ids_.push_back(tokens[position + 1]);
      positions_.push_back(static_cast<int32_t>(position));
      seqs_.push_back(sequence->slot);
      source_rows_.push_back(static_cast<int32_t>(row + i));
      const ImageContext::Row image = sequence->images->At(position + 1);
      embeddings_of_rows_.push_back(image.embedding);
      has_images_ = has_images_ || image.embedding != nullptr;
    }
    // One draft at least must be of use: it is checked together with the last token, and one more is drawn.
    if (!work.samples || sequence->room() < 2 || sequence->size() + 1 >= setup_.max_context) continue;
    if (!sequence->drafts_help()) continue;
    drafting_.push_back(sequence);
    draft_rows_.push_back(static_cast<int32_t>(ids_.size()) - 1);
  }
  if (draft_source_ && !run_block_) {
    for (Sequence* sequence : drafting_) ReplaceDrafts(sequence, options_.num_speculative_tokens);
    return absl::OkStatus();
  }
  if (ids_.empty()) return absl::OkStatus();
  logit_rows_ = draft_rows_;
  HADAL_RETURN_IF_ERROR(RunDraftBlock());
  TakeDrafts();
  for (int64_t made = 1; made < options_.num_speculative_tokens && !drafting_.empty(); ++made) {
    HADAL_RETURN_IF_ERROR(DraftMore());
    TakeDrafts();
  }
  if (!draft_source_) return absl::OkStatus();
  for (const Work& work : plan) {
    if (!work.sequence->drafts.empty()) {
      ReplaceDrafts(work.sequence, static_cast<int64_t>(work.sequence->drafts.size()));
    }
  }
  return absl::OkStatus();
}

void Executor::ReplaceDrafts(Sequence* sequence, int64_t count) {
  sequence->DropDrafts();
  sequence->drafts = draft_source_(sequence->tokens(), count);
  // No embedding is looked up for what is no token (spec 1.2).
  const auto none = [&](int32_t id) { return id < 0 || id >= setup_.vocab; };
  sequence->drafts.erase(std::find_if(sequence->drafts.begin(), sequence->drafts.end(), none), sequence->drafts.end());
}

absl::Status Executor::RunDraftBlock() {
  models::StepInput step;
  step.ids = ids_;
  step.positions = positions_;
  step.seqs = seqs_;
  step.source_rows = source_rows_;
  step.logit_rows = logit_rows_;
  step.logits = logits_.data();
  if (has_images_) step.embeddings = embeddings_of_rows_;
  return model_->Draft(0, step);
}

// The next draft of each drafting sequence from its row of logits; those that have no use for another one leave.
void Executor::TakeDrafts() {
  size_t kept = 0;
  for (size_t i = 0; i < drafting_.size(); ++i) {
    Sequence* sequence = drafting_[i];
    if (!sequence->DrawDraft(LogitRow(static_cast<int64_t>(i)))) continue;
    const auto made = static_cast<int64_t>(sequence->drafts.size());
    if (made + 1 >= sequence->room() || sequence->size() + made + 1 >= setup_.max_context) continue;
    drafting_[kept] = sequence;
    draft_rows_[kept++] = draft_rows_[i];
  }
  drafting_.resize(kept);
  draft_rows_.resize(kept);
}

// One more row a sequence: its last draft, behind the row that gave it (spec 2.3).
absl::Status Executor::DraftMore() {
  ids_.clear();
  positions_.clear();
  seqs_.clear();
  logit_rows_.clear();
  source_rows_ = draft_rows_;
  for (size_t i = 0; i < drafting_.size(); ++i) {
    const Sequence& sequence = *drafting_[i];
    ids_.push_back(sequence.drafts.back());
    // The first draft's row stood at the last computed position.
    positions_.push_back(static_cast<int32_t>(sequence.size() - 2 + static_cast<int64_t>(sequence.drafts.size())));
    seqs_.push_back(sequence.slot);
    logit_rows_.push_back(static_cast<int32_t>(i));
    draft_rows_[i] = static_cast<int32_t>(i);
  }
  has_images_ = false;  // drafts are text
  return RunDraftBlock();
}

}  // namespace hadal::runtime
