// Blocks of the prefix cache on disk, so that a process that starts again finds the prompts of the one before (spec
// serving-runtime 4.4). One file an object, written by a thread of the store; a bound on all files together, over
// which those that were used longest ago go; a checksum in each, so that one that is torn, cut or changed is thrown
// away and computed anew.
//
// A directory belongs to one process at a time. It may hold the blocks of several models: they never meet, since their
// hashes begin with HashSeed(), but share the bound.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sha256.h"

namespace hadal::runtime {

struct KvStoreOptions {
  std::string dir;        // made if missing, with its parents
  int64_t max_bytes = 0;  // of all files
};

struct KvStoreStats {
  int64_t objects = 0, bytes = 0;  // on disk
  int64_t read = 0, written = 0;   // objects
  int64_t damaged = 0;             // files thrown away
  int64_t dropped = 0;             // writes given up: the disk was too slow or full
};

class KvStore {
 public:
  enum class Part : uint8_t { kBlock, kTail };  // of a prefix (kv_cache.h)

  // FailedPrecondition, with the path, where another process has the directory or files cannot be made in it;
  // OutOfRange for max_bytes below 1 MiB.
  static absl::StatusOr<std::shared_ptr<KvStore>> Open(const KvStoreOptions& options);
  // Writes what is still to be written.
  ~KvStore();
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  // KvCacheOptions::hash_seed for what `identity` says: all that rows depend on beside the tokens (weights, limits,
  // platform). Objects of another identity are never found, and nobody who does not read the directory can name one.
  std::string HashSeed(std::string_view identity) const { return seed_ + std::string(identity); }

  bool Has(const Sha256Digest& hash, Part part) const;
  // False if it is not there, not whole or not of this size; then it is gone.
  bool Read(const Sha256Digest& hash, Part part, std::span<std::byte> to);
  // Later, by the store's thread. Nothing happens to what is there already.
  void Write(const Sha256Digest& hash, Part part, std::vector<std::byte> bytes);
  // Waits until all is written.
  void Flush();
  KvStoreStats stats() const;

 private:
  struct Entry {
    std::string path;
    int64_t bytes = 0;  // of the file
    std::list<std::string>::iterator place;
  };
  struct Order {
    std::string key;
    Sha256Digest hash = {};
    Part part = Part::kBlock;
    std::vector<std::byte> bytes;
  };

  explicit KvStore(KvStoreOptions options) : options_(std::move(options)) {}
  absl::Status Lock();
  absl::Status ReadSeed();
  void Scan();
  static std::string Key(const Sha256Digest& hash, Part part);
  std::string PathOf(const std::string& key) const;
  // With the mutex held.
  void Insert(const std::string& key, std::string path, int64_t bytes);
  void Forget(const std::string& key, bool damaged);
  void MakeRoom(int64_t bytes);
  void Loop();
  absl::Status WriteFile(const Order& order, const std::string& path) const;

  const KvStoreOptions options_;
  std::string seed_;  // random bytes of the directory
  int lock_ = -1;

  mutable std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::list<std::string> by_use_;  // keys; used longest ago in front
  absl::flat_hash_map<std::string, Entry> entries_;
  std::deque<Order> orders_;
  int64_t queued_bytes_ = 0;
  bool writing_ = false, stopping_ = false, complained_ = false;
  KvStoreStats stats_;
  std::thread thread_;
};

}  // namespace hadal::runtime
