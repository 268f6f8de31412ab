// Runs any number of requests on one model, step by step (spec serving-runtime 1.2, 4).
//
// A step computes rows of many requests at once: prompts in chunks, and for each stream its last token together with
// the drafts behind it. A request's tokens depend on its prompt, its sampling parameters and the model alone: rows do
// not depend on what else is in a step (ops/ops.h), a draw depends on the seed and the position (runtime/sampler.h),
// and a draft is kept only if it is the token that is drawn anyway (unless ExecutorOptions::rejection_sampling).
//
// Not thread-safe: one thread submits, aborts and steps (runtime/service.h puts a thread around it).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "models/model.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/scheduler.h"
#include "runtime/sequence.h"

namespace hadal::runtime {

struct ExecutorOptions {
  // 0: as many as the model's limits say. Streams and their drafts count too; an image always has room beside them.
  int64_t max_batch_tokens = 0;
  int64_t max_prefill_with_decode = 128;  // SchedulerOptions
  // Drafts are drawn from the draft block's distribution, and kept or replaced so that what comes out has the target's
  // (spec serving-runtime 1.5). The tokens of requests that are not greedy then depend on the drafts. Off: a draft is
  // kept if it is the token that is drawn anyway.
  bool rejection_sampling = false;
  int64_t num_speculative_tokens = 0;  // drafts of the model's own draft blocks, at most; needs such a block
  int64_t max_waiting = 4096;          // requests
  KvCacheOptions kv;
};

struct ExecutorStats {
  int64_t steps = 0;
  int64_t failed_steps = 0;  // of the model, since the last that did not
  int64_t rows = 0;
  int64_t requests = 0, finished = 0, failed = 0, cancelled = 0;
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0;  // of finished requests
  // Speculation (spec 1.10): steps of a stream with at least one draft, their drafts, and those that held, by place.
  int64_t drafts = 0, draft_tokens = 0, accepted_tokens = 0;
  std::vector<int64_t> drafted_at, accepted_at;
};

class Executor {
 public:
  // `model` must outlive the executor, and belongs to it alone.
  Executor(models::Model* model, std::shared_ptr<const text::Tokenizer> tokenizer,
           std::optional<ImageTokenIds> image_tokens, const ExecutorOptions& options);
  ~Executor();

  // The request's number. Its callbacks come from Step. InvalidArgument, FailedPrecondition: it cannot be run, nothing
  // is kept of it; ResourceExhausted: it can never fit into the cache; Unavailable: too many are waiting.
  absl::StatusOr<int64_t> Submit(GenerateRequest request, RequestCallbacks callbacks);
  // Ends a request with what it has so far (kCancelled). Nothing happens if it is over already.
  void Abort(int64_t id);
  // One step. False if there was nothing to do. A failure of one request ends that request; a failure of the model ends
  // all that were in the step.
  bool Step();

  bool idle() const { return requests_.empty(); }
  size_t running() const { return scheduler_.running(); }
  size_t waiting() const { return scheduler_.waiting(); }
  ExecutorStats stats() const;
  const KvCache& cache() const { return cache_; }
  KvCache& cache() { return cache_; }
  models::Model& model() { return *model_; }

  // What the draft block gives is replaced by what this returns: `count` ids for the tokens behind the sequence's. For
  // tests: no draft may change a token. With `run_block` the block runs as it would, for benchmarks: its time is spent,
  // and as many drafts are replaced as it made.
  using DraftSource = std::function<std::vector<int32_t>(std::span<const int32_t> tokens, int64_t count)>;
  void SetDraftSource(DraftSource source, bool run_block = false) {
    draft_source_ = std::move(source);
    run_block_ = run_block;
  }
  // Called before each step with the numbers of the running requests; those it returns are preempted. For tests.
  using PreemptionSource = std::function<std::vector<int64_t>(const std::vector<int64_t>& running)>;
  void SetPreemptionSource(PreemptionSource source) { preemption_source_ = std::move(source); }

 private:
  // What a step's rows gave for one piece of work.
  struct Outcome {
    int64_t first_logit_row = 0;
    int64_t committed = 0;  // rows of the work that hold final tokens
    bool over = false;
    absl::Status status;
  };

  absl::Status PrepareImages(const std::vector<Work>& plan);
  void FillStep(const std::vector<Work>& plan);
  void Sample(const Work& work, Outcome* outcome, Clock::time_point now);
  absl::Status ReportPrompt(const Work& work, Outcome* outcome);
  // Draft rows for everything that the step computed for good, and the next drafts.
  absl::Status Draft(const std::vector<Work>& plan);
  absl::Status DraftMore();
  absl::Status RunDraftBlock();
  void TakeDrafts();
  void ReplaceDrafts(Sequence* sequence, int64_t count);
  void End(Sequence* sequence, const absl::Status& status, Clock::time_point now);
  std::span<const float> LogitRow(int64_t row) const;
  int64_t RowsOfStep() const { return static_cast<int64_t>(ids_.size()); }

  models::Model* model_;
  SequenceSetup setup_;
  ExecutorOptions options_;
  KvCache cache_;
  Scheduler scheduler_;
  EmbeddingCache embeddings_;
  absl::flat_hash_map<int64_t, std::unique_ptr<Sequence>> requests_;
  int64_t next_id_ = 0;
  ExecutorStats stats_;
  DraftSource draft_source_;
  bool run_block_ = false;
  PreemptionSource preemption_source_;

  // Of one step; reserved once.
  std::vector<Outcome> outcomes_;
  std::vector<int32_t> ids_, positions_, seqs_, logit_rows_, left_, right_, source_rows_;
  std::vector<const void*> embeddings_of_rows_;
  bool has_images_ = false;
  std::vector<float> logits_;  // [max_logit_rows, vocab]
  std::vector<Sequence*> drafting_;
  std::vector<int32_t> draft_rows_;  // of drafting_, in the last draft step
};

}  // namespace hadal::runtime
