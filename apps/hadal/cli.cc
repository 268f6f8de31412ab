#include "cli.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/status.h"

namespace hadal::cli {
namespace {

constexpr size_t kMaxStdin = 64 << 20;

std::atomic<bool> interrupt_flag{false};
std::atomic<bool> in_scope{false};
static_assert(std::atomic<bool>::is_always_lock_free, "the signal handler uses them");

int interrupt_pipe[2] = {-1, -1};  // holds a byte for each ^C, so that poll() sees what a flag alone would miss

void OnInterrupt(int) {
  if (!in_scope || interrupt_flag.exchange(true)) _exit(kInterrupted);
  const int saved = errno;
  static_cast<void>(!write(interrupt_pipe[1], "", 1));
  errno = saved;
}

int output_errno = 0;

std::string OneLine(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "; ";
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace

const char kExitCodesHelp[] =
    "Exit codes:\n"
    "  0 success                                       1 internal error, or stdout cannot be written\n"
    "  2 wrong command line                            3 bad checkpoint, configuration or tokenizer\n"
    "  4 unsupported architecture, platform or CPU     5 not enough memory or disk space\n"
    "  6 bad request: prompt too long, images, malformed input\n"
    "  130 interrupted by ^C                           141 the reader of stdout went away";

int Fail(ExitCode code, std::string_view message) {
  std::fflush(stdout);
  std::fputs(("hadal: error: " + OneLine(message) + "\n").c_str(), stderr);
  return code;
}

int FailLoading(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOutOfRange:
      return Fail(kUsage, Message(status));
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition:
      return Fail(kUnsupported, Message(status));
    case absl::StatusCode::kResourceExhausted:
      return Fail(kNoMemory, Message(status));
    case absl::StatusCode::kInternal:
      return Fail(kInternal, Message(status));
    default:
      return Fail(kBadCheckpoint, Message(status));
  }
}

int FailRequest(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return Fail(kNoMemory, Message(status));
  // FailedPrecondition: something that this model or these settings do not do, such as images.
  const bool bad_request =
      absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) || absl::IsFailedPrecondition(status);
  return Fail(bad_request ? kBadRequest : kInternal, Message(status));
}

void Warn(std::string_view message) { std::fputs(("hadal: warning: " + OneLine(message) + "\n").c_str(), stderr); }

bool WriteOut(std::string_view text) {
  if (output_errno != 0) return false;
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return true;
  output_errno = errno != 0 ? errno : EIO;
  return false;
}

int OutputResult() {
  if (output_errno == 0) return kOk;
  if (output_errno == EPIPE) return kClosedPipe;
  return Fail(kInternal, fmt::format("cannot write to stdout: {}", std::strerror(output_errno)));
}

absl::StatusOr<std::string> ReadStdin() {
  std::string text;
  char buffer[1 << 16];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), stdin)) {
    text.append(buffer, n);
    if (text.size() > kMaxStdin) {
      return InvalidArgument("stdin: expected at most {} MiB of prompt, found more", kMaxStdin >> 20);
    }
  }
  if (std::ferror(stdin) != 0) return absl::InternalError("stdin cannot be read");
  return text;
}

bool StdinIsTerminal() { return isatty(STDIN_FILENO) != 0; }
bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) != 0; }
bool StderrIsTerminal() { return isatty(STDERR_FILENO) != 0; }

void InstallSignalHandlers() {
  std::signal(SIGPIPE, SIG_IGN);
  HADAL_CHECK(pipe2(interrupt_pipe, O_CLOEXEC | O_NONBLOCK) == 0);
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

InterruptScope::InterruptScope() {
  char byte = 0;
  while (read(interrupt_pipe[0], &byte, 1) == 1) {
  }
  interrupt_flag = false;
  in_scope = true;
}
InterruptScope::~InterruptScope() { in_scope = false; }
const std::atomic<bool>* InterruptScope::flag() const { return &interrupt_flag; }

bool InterruptScope::WaitReadable(int fd) const {
  pollfd fds[2] = {{fd, POLLIN, 0}, {interrupt_pipe[0], POLLIN, 0}};
  while (poll(fds, 2, -1) < 0 && errno == EINTR) {
  }
  return !interrupted();
}

void ProgressLine::Show(std::string_view text) {
  if (!StderrIsTerminal()) return;
  std::fputs(fmt::format("\r\033[K{}", text).c_str(), stderr);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::ShowBar(std::string_view text, int64_t done, int64_t total, std::string_view detail) {
  constexpr int64_t kWidth = 30;
  const int64_t filled = total > 0 ? std::clamp<int64_t>(done * kWidth / total, 0, kWidth) : 0;
  Show(fmt::format("{} [{}{}] {}", text, std::string(filled, '#'), std::string(kWidth - filled, '.'), detail));
}

void ProgressLine::Clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

CLI::Option* AddList(CLI::App* app, const std::string& name, std::vector<std::string>* values,
                     const std::string& description) {
  return app->add_option(name, *values, description)->allow_extra_args(false);
}

CLI::Validator Int64Text() {
  return CLI::Validator(
      [](std::string& text) {
        int64_t value = 0;
        const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool good = error == std::errc() && rest == text.data() + text.size();
        return good ? std::string() : fmt::format("expected an integer of 64 bits, found {}", text);
      },
      "");
}

}  // namespace hadal::cli
