// Which rows the next step computes (spec serving-runtime 4.1 to 4.3, 4.6).
//
// There are no phases: a sequence has tokens whose rows are not computed yet, and each step takes some of them. Running
// sequences that only lack their last token go first, so that a stream that has begun goes on; then prompts. While
// streams run, the rows of prompts in a step are bounded (max_prefill_with_decode), and with them the longest pause
// that a long prompt causes. Of the rows for prompts half go to the sequence that came first, the rest to those that
// need the fewest: a short prompt does not wait behind a long one, and the long one does not starve.
//
// When cache blocks run out, the worst sequence (largest priority value, then the last to arrive) gives all of its up
// and waits again, with its tokens; what it had computed usually is still in the prefix cache then.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/kv/kv_cache.h"
#include "runtime/sequence.h"

namespace hadal::runtime {

struct SchedulerOptions {
  int64_t max_batch_tokens = 512;  // rows of a step
  int64_t max_step_rows = 512;     // what the model takes: more than that only for an image
  int64_t max_seqs = 1;
  int64_t max_context = 0;
  int64_t max_logit_rows = 1;
  int64_t max_prefill_with_decode = 128;  // rows of prompts in a step with running streams
  int64_t num_speculative_tokens = 0;
};

// Rows [begin, begin + rows) of a sequence; the last `drafts` of them hold drafted tokens.
struct Work {
  Sequence* sequence = nullptr;
  int64_t begin = 0;
  int64_t rows = 0;
  int64_t drafts = 0;
  bool samples = false;  // the rows reach the last token: the next one is drawn
};

class Scheduler {
 public:
  Scheduler(KvCache* cache, const SchedulerOptions& options);

  // Whether the sequence could ever run, with nothing else there: ResourceExhausted with the numbers if not.
  absl::Status CheckFits(int64_t prompt_tokens, int64_t max_tokens) const;

  void Add(Sequence* sequence);
  // The sequence is over. Its blocks are free for others from now on.
  void Remove(Sequence* sequence);

  // A running sequence gives up its blocks and waits again.
  void Preempt(Sequence* sequence);

  // The next step; empty if there is nothing to do. Sequences that cannot go on at all are put into failed().
  const std::vector<Work>& Plan();
  const std::vector<Sequence*>& failed() const { return failed_; }

  size_t running() const { return running_.size(); }
  size_t waiting() const { return waiting_.size(); }
  int64_t preemptions() const { return preemptions_; }

 private:
  bool PlanDecode(Sequence* sequence);
  // Up to `most` rows of a prompt; false if there was no room for any.
  bool PlanPrefill(Sequence* sequence, int64_t most);
  void PlanPrefills();
  void ExtendPrefill(Sequence* sequence);
  void Admit();
  // Blocks for rows up to `end`, taken from worse sequences if need be. False if even that does not help.
  bool ReserveOrPreempt(Sequence* sequence, int64_t end);
  bool Start(Sequence* sequence);
  int64_t LastRowWithDrafts(int64_t end) const;
  int64_t PrefillBudget() const;

  KvCache* cache_;
  SchedulerOptions options_;
  std::vector<Sequence*> waiting_;  // best first
  std::vector<Sequence*> running_;  // best first
  std::vector<int32_t> free_slots_;
  std::vector<Work> plan_;
  std::vector<Sequence*> failed_;
  std::vector<Sequence*> order_;                          // of one call
  int64_t rows_ = 0, prefill_rows_ = 0, logit_rows_ = 0;  // of the plan
  bool preempted_ = false;
  bool streams_ = false;  // the step has decoding sequences
  size_t bypasses_ = 0;   // requests that started before the head of the queue
  int64_t preemptions_ = 0;
};

}  // namespace hadal::runtime
