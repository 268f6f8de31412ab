// Mapping and writing of safetensors files; the header itself is read in safetensors_header.cc.
#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/status.h"

namespace hadal::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in the file");

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::StatusOr<uint64_t> RegularFileSize(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return InvalidArgument("{}: cannot stat: {}", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("{}: expected a regular file", path);
  return static_cast<uint64_t>(info.st_size);
}

absl::Status OpenError(const std::string& path) {
  const std::string text = fmt::format("{}: cannot open: {}", path, std::strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return OpenError(path);
  HADAL_ASSIGN_OR_RETURN(const uint64_t size, RegularFileSize(fd.get(), path));
  if (size < 8) {
    return InvalidArgument("{}: truncated: expected at least 8 bytes of header length, the file has {}", path, size);
  }
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  file->size_ = size;
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapping == MAP_FAILED) return InvalidArgument("{}: cannot map {} bytes: {}", path, size, std::strerror(errno));
  file->mapping_ = mapping;

  const std::byte* base = static_cast<const std::byte*>(mapping);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, base, 8);
  if (header_bytes > kMaxHeaderBytes) {
    return InvalidArgument("{}: header length {} is above the limit of {}; this is not a safetensors file", path,
                           header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > size - 8) {
    return InvalidArgument("{}: truncated: a header of {} bytes needs a file of at least {} bytes, the file has {}",
                           path, header_bytes, header_bytes + 8, size);
  }
  const std::string_view json(reinterpret_cast<const char*>(base) + 8, header_bytes);
  const uint64_t payload = size - 8 - header_bytes;
  absl::StatusOr<SafetensorsHeader> header = ParseHeader(json, payload, path);
  if (!header.ok()) {
    // The sizes of the whole file are what a user compares with a directory listing.
    if (Message(header.status()).find(": truncated: ") == std::string_view::npos) return header.status();
    return InvalidArgument("{} (the header is {} bytes, the file has {} bytes)", Message(header.status()), header_bytes,
                           size);
  }
  file->metadata_ = std::move(header->metadata);
  file->entries_.reserve(header->entries.size());
  for (HeaderEntry& entry : header->entries) {
    file->entries_.push_back(TensorEntry{.name = std::move(entry.name),
                                         .dtype = entry.dtype,
                                         .shape = std::move(entry.shape),
                                         .data = base + 8 + header_bytes + entry.begin,
                                         .bytes = static_cast<int64_t>(entry.end - entry.begin),
                                         .file = file->path_,
                                         .droppable = true});
  }
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) munmap(mapping_, size_);
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, const std::vector<Spec>& specs, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const Spec& spec : specs) {
    int64_t elements = 1;
    for (int64_t dim : spec.shape) elements *= dim;
    const int64_t bytes = DTypeBytes(spec.dtype, elements);
    // push_back keeps this linear: operator[] of an ordered object searches all earlier members.
    header.get_ref<nlohmann::ordered_json::object_t&>().push_back({spec.name,
                                                                   {{"dtype", std::string(DTypeName(spec.dtype))},
                                                                    {"shape", spec.shape},
                                                                    {"data_offsets", {offset, offset + bytes}}}});
    offset += bytes;
  }
  std::string json;
  try {
    json = header.dump();
  } catch (const std::exception& error) {
    return InvalidArgument("{}: {}", path, error.what());
  }
  json.append((64 - (json.size() + 8) % 64) % 64, ' ');

  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  writer->path_ = path;
  writer->temporary_path_ = fmt::format("{}.tmp.{}", path, getpid());
  writer->payload_bytes_ = offset;
  writer->fd_ = open(writer->temporary_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (writer->fd_ < 0) return InvalidArgument("{}: cannot create: {}", writer->temporary_path_, std::strerror(errno));
  const uint64_t length = json.size();
  HADAL_RETURN_IF_ERROR(writer->WriteAll(std::as_bytes(std::span(&length, 1))));
  HADAL_RETURN_IF_ERROR(writer->WriteAll(std::as_bytes(std::span(json))));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) {
    close(fd_);
    unlink(temporary_path_.c_str());
  }
}

absl::Status SafetensorsWriter::WriteAll(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return ResourceExhausted("{}: cannot write: {}", temporary_path_, std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  if (fd_ < 0) return FailedPrecondition("{}: already finished", path_);
  if (static_cast<int64_t>(bytes.size()) > payload_bytes_ - written_) {
    return FailedPrecondition("{}: {} bytes more than the {} that the header announces", path_,
                              written_ + static_cast<int64_t>(bytes.size()) - payload_bytes_, payload_bytes_);
  }
  HADAL_RETURN_IF_ERROR(WriteAll(bytes));
  written_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (fd_ < 0) return FailedPrecondition("{}: already finished", path_);
  if (written_ != payload_bytes_) {
    return FailedPrecondition("{}: {} of {} payload bytes were written", path_, written_, payload_bytes_);
  }
  const int closed = close(fd_);
  fd_ = -1;
  if (closed != 0 || rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    unlink(temporary_path_.c_str());
    return ResourceExhausted("{}: cannot finish: {}", path_, reason);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes) {
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return OpenError(path);
  HADAL_ASSIGN_OR_RETURN(const uint64_t size, RegularFileSize(fd.get(), path));
  if (size > max_bytes) return InvalidArgument("{}: {} bytes, expected at most {}", path, size, max_bytes);
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = read(fd.get(), text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return InvalidArgument("{}: cannot read: {}", path, std::strerror(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

absl::Status WriteTextFile(const std::string& path, std::string_view text) {
  const std::string temporary = fmt::format("{}.tmp.{}", path, getpid());
  const FileDescriptor fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) return InvalidArgument("{}: cannot create: {}", temporary, std::strerror(errno));
  while (!text.empty()) {
    const ssize_t n = write(fd.get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const std::string reason = std::strerror(errno);
      unlink(temporary.c_str());
      return ResourceExhausted("{}: cannot write: {}", path, reason);
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    unlink(temporary.c_str());
    return ResourceExhausted("{}: cannot rename: {}", path, reason);
  }
  return absl::OkStatus();
}

}  // namespace hadal::checkpoint
