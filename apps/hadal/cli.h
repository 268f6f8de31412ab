// What every subcommand shares: exit codes, error lines, writing to stdout, signals, and what a terminal gets.
//
// stdout carries results only; everything said to the person at the terminal goes to stderr.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hadal::cli {

// A contract with scripts; `hadal --help` lists them.
enum ExitCode {
  kOk = 0,
  kInternal = 1,       // a fault of hadal's own, or stdout cannot be written
  kUsage = 2,          // the command line
  kBadCheckpoint = 3,  // checkpoint, configuration or tokenizer: missing, damaged, not as expected
  kUnsupported = 4,    // architecture or platform that this build or machine does not have
  kNoMemory = 5,       // memory or disk space
  kBadRequest = 6,     // prompt too long, images, malformed input records
  kInterrupted = 130,  // ^C
  kClosedPipe = 141,   // nobody reads stdout any more
};
extern const char kExitCodesHelp[];

// "hadal: error: MESSAGE" as one line on stderr; returns `code`.
int Fail(ExitCode code, std::string_view message);
// The same for what Engine::Load and the checkpoint library return.
int FailLoading(const absl::Status& status);
// The same for what encoding and generation return.
int FailRequest(const absl::Status& status);
// "hadal: warning: MESSAGE".
void Warn(std::string_view message);

// Writes and flushes. False when the reader has gone away or the write failed; OutputResult() then says it.
bool WriteOut(std::string_view text);
// kOk, or what went wrong with stdout, after saying so (a closed pipe needs no words).
int OutputResult();

// All of stdin; InvalidArgument above the limit of prompts.
absl::StatusOr<std::string> ReadStdin();

bool StdinIsTerminal();
bool StdoutIsTerminal();
bool StderrIsTerminal();

// SIGPIPE becomes an error of write. ^C ends the process, except inside an InterruptScope, where the first one sets a
// flag and the second ends it.
void InstallSignalHandlers();
class InterruptScope {
 public:
  InterruptScope();  // clears the flag
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  const std::atomic<bool>* flag() const;
  bool interrupted() const { return flag()->load(); }
  // Waits until `fd` can be read. False if ^C comes first, in whichever thread and at whatever moment it arrives.
  bool WaitReadable(int fd) const;
};

// One line on stderr that overwrites itself; nothing unless stderr is a terminal.
class ProgressLine {
 public:
  ~ProgressLine() { Clear(); }
  void Show(std::string_view text);
  // A bar for done of total.
  void ShowBar(std::string_view text, int64_t done, int64_t total, std::string_view detail);
  void Clear();

 private:
  bool shown_ = false;
};

// A repeatable option that takes one value each time (CLI11 would take all that follow).
CLI::Option* AddList(CLI::App* app, const std::string& name, std::vector<std::string>* values,
                     const std::string& description);

// Refuses text that is no integer or does not fit; CLI11 itself would take the nearest that does.
CLI::Validator Int64Text();

// Subcommands. Each adds itself to `app` and leaves its exit code in `result` when it has run.
void AddRun(CLI::App* app, int* result);
void AddInspect(CLI::App* app, int* result);
void AddSynth(CLI::App* app, int* result);
void AddEval(CLI::App* app, int* result);
void AddBench(CLI::App* app, int* result);
void AddBenchServe(CLI::App* bench, int* result);
void AddTokenize(CLI::App* app, int* result);
void AddServe(CLI::App* app, int* result);

}  // namespace hadal::cli
