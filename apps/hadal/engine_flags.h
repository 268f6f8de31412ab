// The flags that say how a model is loaded and run, the same for every subcommand that runs one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli.h"
#include "runtime/engine.h"

namespace hadal::cli {

class EngineFlags {
 public:
  // Adds the positional MODEL and the flags, in help groups of their own.
  void Register(CLI::App* app);

  const std::string& model() const { return model_; }
  bool rejection_sampling() const { return options_.executor.rejection_sampling; }
  const std::string& kv_cache_dtype() const { return options_.kv_cache_dtype; }
  int64_t num_speculative_tokens() const { return options_.num_speculative_tokens; }

  // What --max-num-seqs is if it was not given.
  void SetDefaultMaxSeqs(int64_t max_seqs) {
    if (max_seqs_given_->count() == 0) options_.max_seqs = max_seqs;
  }

  // Requests that may wait.
  void SetMaxWaiting(int64_t max_waiting) { options_.executor.max_waiting = max_waiting; }
  // Who is told of blocks that enter and leave the prefix cache.
  void SetKvEvents(std::shared_ptr<runtime::KvEvents> events) { options_.executor.kv.events = std::move(events); }
  // The name of MODEL's directory.
  std::string model_name() const;

  // Loads with a progress line, prints warnings. On failure prints the error, puts the exit code into `code` and
  // returns null.
  std::unique_ptr<runtime::Engine> Load(int* code) const;

 private:
  std::string model_;
  std::string load_format_ = "auto";
  std::string mmap_ = "auto";
  std::string mm_limit_;
  std::string device_ = "auto";
  std::string numerics_ = "published";
  std::string isa_ = "auto";
  std::string class_overrides_;  // as a list split at commas
  bool skip_memory_check_ = false;
  bool no_prefix_cache_ = false;
  uint64_t kv_cache_dir_size_ = uint64_t{16} << 30;
  uint64_t kv_cache_memory_ = 0;
  runtime::EngineOptions options_;
  const CLI::Option* max_seqs_given_ = nullptr;
};

}  // namespace hadal::cli
