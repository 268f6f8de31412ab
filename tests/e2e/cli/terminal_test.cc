// hadal on a terminal: chat with history, ^C, ^D, dimmed reasoning, the progress line.
#include <gmock/gmock.h>
#include <pty.h>
#include <termios.h>

#include <chrono>

#include "cli_process.h"

namespace hadal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// `hadal` with one pseudo-terminal as stdin, stdout and stderr.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& args) {
    int child = -1;
    EXPECT_EQ(openpty(&fd_, &child, nullptr, nullptr, nullptr), 0);
    termios settings = {};
    tcgetattr(child, &settings);
    settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    tcsetattr(child, TCSANOW, &settings);
    pid_ = SpawnHadal(args, child, child, child);
    close(child);
  }
  ~Terminal() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      ExitCodeOf(pid_);
    }
    close(fd_);
  }

  // Reads until `text` has appeared; returns what came up to its end. What a slow reader got besides is for the next
  // call. Fails after a minute.
  std::string ReadUntil(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (unread_.find(text) == std::string::npos && std::chrono::steady_clock::now() < deadline) {
      pollfd fd = {fd_, POLLIN, 0};
      if (poll(&fd, 1, 100) <= 0) continue;
      char buffer[4096];
      const ssize_t n = read(fd_, buffer, sizeof(buffer));
      if (n <= 0) break;
      unread_.append(buffer, static_cast<size_t>(n));
    }
    EXPECT_THAT(unread_, HasSubstr(text));
    const size_t at = unread_.find(text);
    const std::string seen = unread_.substr(0, at == std::string::npos ? at : at + text.size());
    unread_.erase(0, seen.size());
    return seen;
  }
  void Type(const std::string& text) { EXPECT_EQ(write(fd_, text.data(), text.size()), std::ssize(text)); }
  void Interrupt() { kill(pid_, SIGINT); }
  int Wait() {
    const int code = ExitCodeOf(pid_);
    pid_ = 0;
    return code;
  }

 private:
  int fd_ = -1;
  pid_t pid_ = 0;
  std::string unread_;
};

TEST(TerminalChat, HistoryAndEnd) {
  Terminal terminal(RunArgs({"--temperature", "0"}));
  terminal.ReadUntil("> ");
  terminal.Type("What is 478 + 365?\n");
  terminal.ReadUntil("478 + 365 = 843");
  // The second prompt holds the first turn: it is longer than the first by more than its own text.
  const std::string first = terminal.ReadUntil("> ");
  EXPECT_THAT(first, HasSubstr("tokens/s"));
  terminal.Type("What is 31 - 0?\n");
  terminal.ReadUntil("31 - 0 = 31");
  terminal.ReadUntil("> ");
  terminal.Type("\x04");
  EXPECT_EQ(terminal.Wait(), 0);
}

TEST(TerminalChat, InterruptStopsTheAnswerAndNotTheChat) {
  Terminal terminal(RunArgs({"--ignore-eos", "--temperature", "0"}));
  terminal.ReadUntil("> ");
  terminal.Type("Who are you?\n");
  terminal.ReadUntil("Tiny");
  terminal.Interrupt();
  terminal.ReadUntil("> ");
  terminal.Interrupt();
  terminal.ReadUntil("^D ends");
  terminal.Type("\x04");
  EXPECT_EQ(terminal.Wait(), 0);
}

TEST(TerminalRun, ReasoningIsDimmed) {
  Terminal terminal(RunArgs({"79 + 5 = ?", "--thinking", "--temperature", "0"}));
  const std::string seen = terminal.ReadUntil("first after");
  EXPECT_THAT(seen, HasSubstr("\033[2mOnes: 9 + 5 = 14"));
  EXPECT_THAT(seen, HasSubstr("\033[0m\r\n79 + 5 = 84"));
  EXPECT_THAT(seen, HasSubstr("reading weights"));
  EXPECT_EQ(terminal.Wait(), 0);
}

TEST(TerminalRun, InterruptEndsWithItsCode) {
  Terminal terminal(RunArgs({"Who are you?", "--ignore-eos", "--temperature", "0"}));
  terminal.ReadUntil("Tiny");
  terminal.Interrupt();
  EXPECT_EQ(terminal.Wait(), 130);
}

}  // namespace
}  // namespace hadal::test
