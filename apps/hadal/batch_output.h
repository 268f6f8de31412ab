// The file of a batch's results: one line for each request, in the order in which they were done.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hadal::cli {

// What a results file holds from an earlier run.
struct DoneRequests {
  absl::flat_hash_set<std::string> ids;    // custom_ids that were answered
  absl::flat_hash_set<int64_t> bad_lines;  // of the input, that were no requests
  int64_t failed = 0;                      // of all of them
};

class BatchOutput {
 public:
  BatchOutput() = default;
  ~BatchOutput();
  BatchOutput(const BatchOutput&) = delete;
  BatchOutput& operator=(const BatchOutput&) = delete;

  // Opens `path` ("-": stdout), or makes it, and reads into `done` what it holds. A last line that was not written to
  // its end is cut off, and `cut` says so. InvalidArgument if the file holds anything else than results, if it cannot
  // be opened, or if another process has it open.
  absl::Status Open(const std::string& path, DoneRequests* done, bool* cut);

  // Writes one line, newline added, in one go; every few seconds also through to the disk. Internal, ResourceExhausted.
  absl::Status Write(std::string_view line);
  // Through to the disk.
  absl::Status Sync();

  bool to_stdout() const { return fd_ < 0; }

 private:
  std::string path_;
  int fd_ = -1;
  std::chrono::steady_clock::time_point last_sync_ = std::chrono::steady_clock::now();
};

}  // namespace hadal::cli
