#include "batch_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/status.h"
#include "cli.h"
#include "text/json_text.h"

namespace hadal::cli {
namespace {

using text::Json;

constexpr std::chrono::seconds kSyncEvery{5};

absl::Status Failed(const std::string& path, std::string_view what) {
  const int error = errno;
  const std::string message = fmt::format("{}: cannot be {}: {}", path, what, std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

// Takes one line of results, or says that it is none.
bool NoteLine(const std::string& line, DoneRequests* done) {
  const absl::StatusOr<Json> json = text::ParseJson(line);
  if (!json.ok() || !json->is_object() || !json->contains("custom_id") || !json->contains("response") ||
      !json->contains("error")) {
    return false;
  }
  const Json& id = (*json)["custom_id"];
  const Json& error = (*json)["error"];
  if (error.is_object()) {
    if (!error.contains("line") || !error["line"].is_number_integer()) return false;
    done->bad_lines.insert(error["line"].get<int64_t>());
    ++done->failed;
    return true;
  }
  const Json& response = (*json)["response"];
  if (!id.is_string() || !response.is_object() || !response.contains("status_code")) return false;
  done->ids.insert(id.get<std::string>());
  if (response["status_code"] != 200) ++done->failed;
  return true;
}

// Reads the results; returns the bytes up to the end of the last complete line.
absl::StatusOr<int64_t> ReadResults(const std::string& path, DoneRequests* done) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return InvalidArgument("{}: cannot be read", path);
  int64_t complete = 0, number = 0;
  for (std::string line; std::getline(file, line);) {
    if (file.eof()) break;  // no newline: not written to its end
    ++number;
    if (!NoteLine(line, done)) {
      return InvalidArgument(
          "{} line {}: expected a result of a batch: the output file is continued, never overwritten", path, number);
    }
    complete += static_cast<int64_t>(line.size()) + 1;
  }
  return complete;
}

}  // namespace

BatchOutput::~BatchOutput() {
  if (fd_ >= 0) close(fd_);
}

absl::Status BatchOutput::Open(const std::string& path, DoneRequests* done, bool* cut) {
  *cut = false;
  path_ = path;
  if (path == "-") return absl::OkStatus();
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) return InvalidArgument("{}: cannot be opened: {}", path, std::strerror(errno));
  struct stat info = {};
  if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) return absl::OkStatus();  // a pipe, /dev/null: nothing is kept
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    return InvalidArgument("{}: another process is writing to it", path);
  }
  HADAL_ASSIGN_OR_RETURN(const int64_t complete, ReadResults(path, done));
  if (complete == info.st_size) return absl::OkStatus();
  if (ftruncate(fd_, complete) != 0) return Failed(path, "cut to its complete lines");
  *cut = true;
  return absl::OkStatus();
}

absl::Status BatchOutput::Write(std::string_view line) {
  const std::string text = std::string(line) + "\n";
  if (fd_ < 0) return WriteOut(text) ? absl::OkStatus() : absl::AbortedError("stdout cannot be written");
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = write(fd_, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failed(path_, "written");
    written += static_cast<size_t>(n);
  }
  return std::chrono::steady_clock::now() - last_sync_ < kSyncEvery ? absl::OkStatus() : Sync();
}

absl::Status BatchOutput::Sync() {
  last_sync_ = std::chrono::steady_clock::now();
  // Pipes and devices cannot be synced, and need not be.
  if (fd_ >= 0 && fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) return Failed(path_, "written");
  return absl::OkStatus();
}

}  // namespace hadal::cli
