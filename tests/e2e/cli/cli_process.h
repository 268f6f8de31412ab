// Runs the built `hadal` as a user's script would, and looks at exit code, stdout and stderr.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/paths.h"

namespace hadal::test {

struct CliResult {
  int code = -1;  // 1000 + signal if one ended it
  std::string out, err;

  // The one JSON object on stdout; a failure of the test if there is anything else.
  nlohmann::json Json() const {
    nlohmann::json value = nlohmann::json::parse(out, nullptr, false);
    EXPECT_TRUE(value.is_object()) << "stdout: " << out << "stderr: " << err;
    return value;
  }
};

inline std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void WriteAll(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);  // it may be a copy of a read-only file
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string HadalBinary() { return std::string(HADAL_BINARY_DIR) + "/bin/hadal"; }

// Starts `hadal ARGS` with the given descriptors as its stdin, stdout and stderr.
inline pid_t SpawnHadal(const std::vector<std::string>& args, int in, int out, int err) {
  const std::string binary = HadalBinary();
  std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a server does not outlive a test that crashed
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  for (int fd = 3; fd < 256; ++fd) close(fd);
  execv(argv[0], argv.data());
  _exit(127);
}

inline int ExitCodeOf(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// `input` is all of stdin.
inline CliResult RunHadal(const std::vector<std::string>& args, const std::string& input = "") {
  std::signal(SIGPIPE, SIG_IGN);
  int in[2], out[2], err[2];
  EXPECT_EQ(pipe(in) | pipe(out) | pipe(err), 0);
  const pid_t pid = SpawnHadal(args, in[0], out[1], err[1]);
  close(in[0]);
  close(out[1]);
  close(err[1]);
  CliResult result;
  size_t written = 0;
  pollfd fds[3] = {{in[1], POLLOUT, 0}, {out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  if (input.empty()) {
    close(in[1]);
    fds[0].fd = -1;
  } else {
    fcntl(in[1], F_SETFL, O_NONBLOCK);
  }
  while (fds[1].fd >= 0 || fds[2].fd >= 0) {
    poll(fds, 3, -1);
    if (fds[0].fd >= 0 && fds[0].revents != 0) {
      const ssize_t n = write(in[1], input.data() + written, input.size() - written);
      if (n > 0) written += static_cast<size_t>(n);
      if (written == input.size() || (n < 0 && errno != EAGAIN)) {
        close(in[1]);
        fds[0].fd = -1;
      }
    }
    for (const int i : {1, 2}) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      char buffer[1 << 16];
      const ssize_t n = read(fds[i].fd, buffer, sizeof(buffer));
      if (n > 0) {
        (i == 1 ? result.out : result.err).append(buffer, static_cast<size_t>(n));
      } else {
        close(fds[i].fd);
        fds[i].fd = -1;
      }
    }
  }
  if (fds[0].fd >= 0) close(in[1]);
  result.code = ExitCodeOf(pid);
  return result;
}

// `hadal run MODEL` with a small context and one thread, so that tests start fast and do not wait for each other.
inline std::vector<std::string> RunArgs(std::vector<std::string> more, const std::string& model = BundledModel()) {
  std::vector<std::string> args = {"run", model, "--max-model-len", "2048"};
  if (std::find(more.begin(), more.end(), "--threads") == more.end()) args.insert(args.end(), {"--threads", "1"});
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// A failure leaves one line on stderr, nothing on stdout, and the documented code.
inline void ExpectFailure(const CliResult& result, int code, const std::string& said) {
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.rfind("hadal: error: ", 0), 0u) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(said), std::string::npos) << "expected \"" << said << "\" in: " << result.err;
}

}  // namespace hadal::test
