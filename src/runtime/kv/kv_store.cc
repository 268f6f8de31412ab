#include "runtime/kv/kv_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "base/log.h"
#include "base/status.h"

namespace hadal::runtime {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'h', 'a', 'd', 'a', 'l', 'k', 'v', '1'};
constexpr int64_t kLeastBytes = int64_t{1} << 20;
// What waits to be written; more is not kept.
constexpr int64_t kMostQueued = int64_t{512} << 20;
constexpr size_t kSeedBytes = 32;

// Before the object's bytes. Integers as the machine has them: the files are of this machine.
struct Header {
  char magic[8];
  uint64_t bytes;
  Sha256Digest hash;
  uint32_t part;
  uint32_t content_crc;
  uint32_t reserved;
  uint32_t header_crc;  // of all before it
};
static_assert(sizeof(Header) == 64);

uint32_t Crc(const void* data, size_t bytes) {
  return static_cast<uint32_t>(crc32_z(0, static_cast<const Bytef*>(data), bytes));
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// The number of bytes moved: less at the end of the file or after an error.
template <typename Call>
size_t Whole(Call&& call, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = call(done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}
size_t ReadWhole(int fd, void* to, size_t bytes) {
  return Whole([&](size_t at, size_t n) { return read(fd, static_cast<char*>(to) + at, n); }, bytes);
}
size_t WriteWhole(int fd, const void* from, size_t bytes) {
  return Whole([&](size_t at, size_t n) { return write(fd, static_cast<const char*>(from) + at, n); }, bytes);
}

absl::Status FileError(const char* what, const std::string& path) {
  return absl::FailedPreconditionError(fmt::format("kv_cache_dir: {} {}: {}", what, path, std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::shared_ptr<KvStore>> KvStore::Open(const KvStoreOptions& options) {
  if (options.max_bytes < kLeastBytes) {
    return absl::OutOfRangeError(
        fmt::format("kv_cache_dir_size: expected at least {} bytes, found {}", kLeastBytes, options.max_bytes));
  }
  std::shared_ptr<KvStore> store(new KvStore(options));
  std::error_code error;
  fs::create_directories(options.dir, error);
  if (error) {
    errno = error.value();
    return FileError("cannot make", options.dir);
  }
  HADAL_RETURN_IF_ERROR(store->Lock());
  HADAL_RETURN_IF_ERROR(store->ReadSeed());
  store->Scan();
  {
    const std::lock_guard lock(store->mutex_);
    store->MakeRoom(0);
  }
  store->thread_ = std::thread([raw = store.get()] { raw->Loop(); });
  return store;
}

KvStore::~KvStore() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  if (lock_ >= 0) close(lock_);
}

absl::Status KvStore::Lock() {
  const std::string path = options_.dir + "/lock";
  lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) return FileError("cannot open", path);
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FileError("cannot lock", path);
    return absl::FailedPreconditionError(fmt::format("kv_cache_dir: {} is in use by another process", options_.dir));
  }
  return absl::OkStatus();
}

// Random bytes of the directory: nobody outside can make a hash that is in it.
absl::Status KvStore::ReadSeed() {
  const std::string path = options_.dir + "/seed";
  std::string seed(kSeedBytes, '\0');
  {
    const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.fd() < 0 || ReadWhole(file.fd(), seed.data(), kSeedBytes) != kSeedBytes) seed.clear();
  }
  if (seed.empty()) {
    std::random_device entropy;
    for (size_t i = 0; i < kSeedBytes; ++i) seed.push_back(static_cast<char>(entropy()));
    const std::string temporary = path + ".new";
    const File file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (file.fd() < 0 || WriteWhole(file.fd(), seed.data(), seed.size()) != seed.size() ||
        rename(temporary.c_str(), path.c_str()) != 0) {
      return FileError("cannot write", path);
    }
  }
  seed_ = std::move(seed);
  return absl::OkStatus();
}

// Files are named by what they hold; their time is that of the last use.
void KvStore::Scan() {
  struct Seen {
    fs::file_time_type time;
    std::string key, path;
    int64_t bytes;
  };
  std::vector<Seen> seen;
  std::error_code error;
  for (fs::recursive_directory_iterator it(options_.dir, fs::directory_options::skip_permission_denied, error), end;
       !error && it != end; it.increment(error)) {
    const fs::path& path = it->path();
    std::error_code ignored;
    if (!it->is_regular_file(ignored)) continue;
    if (path.extension() == ".new") {  // a write that never ended
      if (path.filename() != "seed.new") fs::remove(path, ignored);
      continue;
    }
    if (path.extension() != ".block" && path.extension() != ".tail") continue;
    const auto bytes = static_cast<int64_t>(it->file_size(ignored));
    const fs::file_time_type time = it->last_write_time(ignored);
    seen.push_back({time, path.filename().string(), path.string(), bytes});
  }
  std::sort(seen.begin(), seen.end(), [](const Seen& a, const Seen& b) { return a.time < b.time; });
  const std::lock_guard lock(mutex_);
  for (Seen& file : seen) Insert(file.key, std::move(file.path), file.bytes);
}

std::string KvStore::Key(const Sha256Digest& hash, Part part) {
  return HexDigest(hash) + (part == Part::kBlock ? ".block" : ".tail");
}
std::string KvStore::PathOf(const std::string& key) const {
  return fmt::format("{}/{}/{}", options_.dir, key.substr(0, 2), key);
}

void KvStore::Insert(const std::string& key, std::string path, int64_t bytes) {
  if (entries_.contains(key)) return;
  const auto place = by_use_.insert(by_use_.end(), key);
  entries_.emplace(key, Entry{std::move(path), bytes, place});
  ++stats_.objects;
  stats_.bytes += bytes;
}

void KvStore::Forget(const std::string& key, bool damaged) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  unlink(it->second.path.c_str());
  by_use_.erase(it->second.place);
  --stats_.objects;
  stats_.bytes -= it->second.bytes;
  if (damaged) ++stats_.damaged;
  entries_.erase(it);
}

void KvStore::MakeRoom(int64_t bytes) {
  while (!by_use_.empty() && stats_.bytes + bytes > options_.max_bytes) Forget(std::string(by_use_.front()), false);
}

bool KvStore::Has(const Sha256Digest& hash, Part part) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains(Key(hash, part));
}

bool KvStore::Read(const Sha256Digest& hash, Part part, std::span<std::byte> to) {
  const std::string key = Key(hash, part);
  std::string path;
  {
    const std::lock_guard lock(mutex_);
    const auto it = entries_.find(key);
    if (it == entries_.end()) return false;
    by_use_.splice(by_use_.end(), by_use_, it->second.place);
    path = it->second.path;
  }
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Header header;
  char more = 0;
  const bool whole = file.fd() >= 0 && ReadWhole(file.fd(), &header, sizeof(header)) == sizeof(header) &&
                     std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0 &&
                     header.header_crc == Crc(&header, offsetof(Header, header_crc)) && header.hash == hash &&
                     header.part == static_cast<uint32_t>(part) && header.bytes == to.size() &&
                     ReadWhole(file.fd(), to.data(), to.size()) == to.size() && ReadWhole(file.fd(), &more, 1) == 0 &&
                     header.content_crc == Crc(to.data(), to.size());
  if (whole) futimens(file.fd(), nullptr);  // used now, for the next process too
  const std::lock_guard lock(mutex_);
  if (!whole) {
    spdlog::warn("kv_cache_dir: {} is damaged; it is removed and its rows are computed anew", path);
    Forget(key, true);
    return false;
  }
  ++stats_.read;
  return true;
}

void KvStore::Write(const Sha256Digest& hash, Part part, std::vector<std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  std::string key = Key(hash, part);
  {
    const std::lock_guard lock(mutex_);
    if (entries_.contains(key)) return;
    if (queued_bytes_ + size > kMostQueued || size + static_cast<int64_t>(sizeof(Header)) > options_.max_bytes) {
      ++stats_.dropped;
      return;
    }
    queued_bytes_ += size;
    orders_.push_back({std::move(key), hash, part, std::move(bytes)});
  }
  changed_.notify_one();
}

absl::Status KvStore::WriteFile(const Order& order, const std::string& path) const {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.bytes = order.bytes.size();
  header.hash = order.hash;
  header.part = static_cast<uint32_t>(order.part);
  header.content_crc = Crc(order.bytes.data(), order.bytes.size());
  header.header_crc = Crc(&header, offsetof(Header, header_crc));
  std::error_code ignored;
  fs::create_directories(fs::path(path).parent_path(), ignored);
  const std::string temporary = path + ".new";
  absl::Status status;
  {
    const File file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (file.fd() < 0) return FileError("cannot make", temporary);
    if (WriteWhole(file.fd(), &header, sizeof(header)) != sizeof(header) ||
        WriteWhole(file.fd(), order.bytes.data(), order.bytes.size()) != order.bytes.size()) {
      status = FileError("cannot write", temporary);
    }
  }
  // No fsync: what a power cut tears is found by its checksum.
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) status = FileError("cannot rename", temporary);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

void KvStore::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !orders_.empty(); });
    if (orders_.empty()) return;
    const Order order = std::move(orders_.front());
    orders_.pop_front();
    const auto bytes = static_cast<int64_t>(order.bytes.size() + sizeof(Header));
    if (!entries_.contains(order.key)) {
      MakeRoom(bytes);
      const std::string path = PathOf(order.key);
      writing_ = true;
      lock.unlock();
      const absl::Status status = WriteFile(order, path);
      lock.lock();
      writing_ = false;
      if (status.ok()) {
        Insert(order.key, path, bytes);
        ++stats_.written;
      } else {
        ++stats_.dropped;
        // A full disk would say so with every block.
        if (!std::exchange(complained_, true))
          spdlog::warn("{}; blocks that cannot be written are not kept", Message(status));
      }
    }
    queued_bytes_ -= static_cast<int64_t>(order.bytes.size());
    if (orders_.empty()) idle_.notify_all();
  }
}

void KvStore::Flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return orders_.empty() && !writing_; });
}

KvStoreStats KvStore::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace hadal::runtime
