#include "runtime/scheduler.h"

#include <algorithm>

#include "base/status.h"

namespace hadal::runtime {
namespace {

// So often may others start before the head of the queue, when it does not fit and they do (spec 4.2).
constexpr size_t kMaxBypasses = 8;
// Share of the cache that admission leaves free, so that what has just started is not stopped at once.
constexpr int64_t kWatermark = 100;  // 1/100

bool Better(const Sequence* a, const Sequence* b) {
  if (a->request().priority != b->request().priority) return a->request().priority < b->request().priority;
  return a->id < b->id;
}

void Insert(std::vector<Sequence*>* list, Sequence* sequence) {
  list->insert(std::upper_bound(list->begin(), list->end(), sequence, Better), sequence);
}

KvSequence KvSequenceOf(const Sequence& sequence) {
  KvSequence kv;
  kv.prompt = sequence.tokens();
  kv.salt = sequence.request().cache_salt;
  kv.read_prefix = sequence.request().sampling.prompt_logprobs < 0;
  for (const PlacedImage& image : sequence.request().images) {
    kv.images.push_back({image.record.offset, image.record.length, image.image->content_hash});
  }
  return kv;
}

}  // namespace

Scheduler::Scheduler(KvCache* cache, const SchedulerOptions& options) : cache_(cache), options_(options) {
  for (auto slot = static_cast<int32_t>(options.max_seqs - 1); slot >= 0; --slot) free_slots_.push_back(slot);
}

// Drafts are written behind the last row that is planned.
int64_t Scheduler::LastRowWithDrafts(int64_t end) const {
  return std::min(end + options_.num_speculative_tokens, options_.max_context);
}

absl::Status Scheduler::CheckFits(int64_t prompt_tokens, int64_t max_tokens) const {
  const int64_t most = LastRowWithDrafts(std::min(options_.max_context, prompt_tokens + max_tokens));
  const int64_t needed = cache_->SlabsFor(most, 1 + 2 * options_.num_speculative_tokens);
  if (needed <= cache_->slabs()) return absl::OkStatus();
  return ResourceExhausted(
      "a prompt of {} tokens and up to {} generated need {} cache blocks, there are {}: ask for fewer tokens, or give "
      "more memory with --kv-cache-memory",
      prompt_tokens, max_tokens, needed, cache_->slabs());
}

void Scheduler::Add(Sequence* sequence) { Insert(&waiting_, sequence); }

void Scheduler::Remove(Sequence* sequence) {
  std::erase(waiting_, sequence);
  if (std::erase(running_, sequence) > 0) {
    cache_->End(sequence->slot);
    free_slots_.push_back(sequence->slot);
    sequence->slot = -1;
  }
}

void Scheduler::Preempt(Sequence* sequence) {
  const auto planned = std::find_if(plan_.begin(), plan_.end(), [&](const Work& w) { return w.sequence == sequence; });
  if (planned != plan_.end()) {
    rows_ -= planned->rows;
    if (planned->drafts == 0 && !sequence->decoding()) prefill_rows_ -= planned->rows;
    plan_.erase(planned);
  }
  Remove(sequence);
  sequence->computed = 0;
  sequence->DropDrafts();
  sequence->images.reset();
  ++sequence->result().preemptions;
  ++preemptions_;
  preempted_ = true;
  Add(sequence);
}

bool Scheduler::ReserveOrPreempt(Sequence* sequence, int64_t end) {
  while (!cache_->Reserve(sequence->slot, end)) {
    Sequence* worst = running_.back();
    if (worst == sequence) return false;
    Preempt(worst);
  }
  return true;
}

bool Scheduler::PlanDecode(Sequence* sequence) {
  const int64_t n = sequence->computed;
  int64_t drafts = std::min<int64_t>({static_cast<int64_t>(sequence->drafts.size()), options_.num_speculative_tokens,
                                      options_.max_context - 1 - n, sequence->room() - 1,
                                      options_.max_step_rows - rows_ - 1, options_.max_logit_rows - logit_rows_ - 1});
  if (drafts < 0) return false;
  // Drafts are worth something, but not another sequence's blocks.
  if (!cache_->Reserve(sequence->slot, LastRowWithDrafts(n + 1 + drafts))) drafts = 0;
  if (!ReserveOrPreempt(sequence, LastRowWithDrafts(n + 1))) return false;
  sequence->drafts.resize(static_cast<size_t>(drafts));
  plan_.push_back({sequence, n, 1 + drafts, drafts, true});
  rows_ += 1 + drafts;
  logit_rows_ += 1 + drafts;
  return true;
}

int64_t Scheduler::PrefillBudget() const {
  const int64_t left = std::max<int64_t>(0, options_.max_batch_tokens - rows_);
  return streams_ ? std::min(left, std::max<int64_t>(0, options_.max_prefill_with_decode - prefill_rows_)) : left;
}

bool Scheduler::PlanPrefill(Sequence* sequence, int64_t most) {
  const int64_t begin = sequence->computed;
  const bool reports = sequence->request().sampling.prompt_logprobs >= 0 && begin < sequence->prompt_size();
  if (reports) most = std::min(most, options_.max_logit_rows - logit_rows_);
  if (most < 1 || logit_rows_ >= options_.max_logit_rows) return false;
  while (true) {
    const int64_t end = ChunkEnd(sequence->request().images, begin, most, sequence->size());
    const int64_t rows = end - begin;
    // An image that is larger than what was left takes its place beside the streams, if the model's buffers have it.
    if (rows > options_.max_step_rows - rows_ || (rows > most && prefill_rows_ > 0)) return false;
    if (reports && rows > options_.max_logit_rows - logit_rows_) return false;
    const bool samples = end == sequence->size();
    if (cache_->Reserve(sequence->slot, samples ? LastRowWithDrafts(end) : end)) {
      plan_.push_back({sequence, begin, rows, 0, samples});
      rows_ += rows;
      prefill_rows_ += rows;
      logit_rows_ += reports ? rows : (samples ? 1 : 0);
      return true;
    }
    // Windows hold all blocks of a chunk at once, so fewer rows need fewer.
    if (rows <= 1 || rows > most) return false;
    most = rows / 2;
  }
}

void Scheduler::PlanPrefills() {
  order_.clear();
  for (Sequence* sequence : running_) {
    if (!sequence->decoding()) order_.push_back(sequence);
  }
  Sequence* first = order_.empty() ? nullptr : order_.front();
  const bool others = order_.size() > 1 || (!waiting_.empty() && !free_slots_.empty());
  if (first != nullptr && others) {
    PlanPrefill(first, std::max<int64_t>(1, PrefillBudget() / 2));
    std::stable_sort(order_.begin() + 1, order_.end(),
                     [](const Sequence* a, const Sequence* b) { return a->remaining() < b->remaining(); });
    for (size_t i = 1; i < order_.size(); ++i) PlanPrefill(order_[i], PrefillBudget());
  }
  if (!preempted_) Admit();
  if (first != nullptr) ExtendPrefill(first);
}

// The rows that nobody else took.
void Scheduler::ExtendPrefill(Sequence* sequence) {
  const auto planned =
      std::find_if(plan_.begin(), plan_.end(), [&](const Work& work) { return work.sequence == sequence; });
  const int64_t more = PrefillBudget();
  if (planned == plan_.end()) {
    PlanPrefill(sequence, more);
    return;
  }
  const bool reports = sequence->request().sampling.prompt_logprobs >= 0;
  if (more < 1 || planned->samples || reports) return;
  const int64_t most = planned->rows + more;
  const int64_t end = ChunkEnd(sequence->request().images, planned->begin, most, sequence->size());
  const int64_t added = end - planned->begin - planned->rows;
  const bool samples = end == sequence->size();
  if (added <= 0 || added > more || (samples && logit_rows_ >= options_.max_logit_rows)) return;
  if (!cache_->Reserve(sequence->slot, samples ? LastRowWithDrafts(end) : end)) return;
  planned->rows += added;
  planned->samples = samples;
  rows_ += added;
  prefill_rows_ += added;
  logit_rows_ += samples ? 1 : 0;
}

bool Scheduler::Start(Sequence* sequence) {
  sequence->slot = free_slots_.back();
  sequence->computed = cache_->Begin(sequence->slot, KvSequenceOf(*sequence));
  // What the prompt needs in the end; on the way there a chunk may be as short as the room wants it.
  const int64_t whole = cache_->SlabsFor(sequence->size(), 1 + 2 * options_.num_speculative_tokens);
  const int64_t known = cache_->SlabsFor(sequence->computed, 1);
  const bool roomy = running_.empty() || whole - known + cache_->slabs() / kWatermark <= cache_->available();
  if (!roomy) sequence->blocked_at = cache_->available();
  free_slots_.pop_back();
  Insert(&running_, sequence);
  if (roomy && PlanPrefill(sequence, PrefillBudget())) {
    if (!sequence->started) sequence->result().cached_tokens = sequence->computed;
    sequence->blocked_at = -1;
    return true;
  }
  running_.erase(std::find(running_.begin(), running_.end(), sequence));
  cache_->End(sequence->slot);
  free_slots_.push_back(sequence->slot);
  sequence->slot = -1;
  sequence->computed = 0;
  return false;
}

void Scheduler::Admit() {
  for (size_t i = 0; i < waiting_.size() && !free_slots_.empty() && PrefillBudget() > 0;) {
    // The head does not fit. Others may go before it, but not for ever, and not many are looked at in one step.
    if (i > 0 && (bypasses_ >= kMaxBypasses || i > kMaxBypasses)) return;
    Sequence* sequence = waiting_[i];
    // What did not fit does not fit before there is more room than there was.
    const bool blocked = !running_.empty() && cache_->available() <= sequence->blocked_at;
    if (blocked || !Start(sequence)) {
      ++i;
      continue;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    bypasses_ = i == 0 ? 0 : bypasses_ + 1;
  }
}

const std::vector<Work>& Scheduler::Plan() {
  failed_.clear();
  while (true) {
    plan_.clear();
    rows_ = prefill_rows_ = logit_rows_ = 0;
    preempted_ = false;
    order_ = running_;
    for (Sequence* sequence : order_) {
      if (sequence->slot >= 0 && sequence->decoding() && !PlanDecode(sequence) && running_.back() == sequence &&
          running_.size() > 1) {
        Preempt(sequence);
      }
    }
    streams_ = !plan_.empty();
    PlanPrefills();
    if (!plan_.empty() || (running_.empty() && waiting_.empty())) return plan_;
    if (running_.empty() && !preempted_) {
      // Alone in an empty cache it does not fit: CheckFits promised otherwise, unless a chunk cannot be made small
      // enough (an image).
      failed_.push_back(waiting_.front());
      Remove(waiting_.front());
    } else if (running_.size() > 1) {
      Preempt(running_.back());
    } else if (running_.size() == 1) {
      failed_.push_back(running_.front());
      Remove(running_.front());
    }
  }
}

}  // namespace hadal::runtime
