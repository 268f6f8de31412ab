// Answers of /v1/responses that later requests may continue (spec serving-runtime 6.10, "Storage"), in memory, bounded.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace hadal::serving {

struct StoredResponse {
  std::string response;  // JSON: the answer's body
  std::string items;     // JSON array: the conversation up to and with the answer
};

// Any thread may call any method at any time. Nobody but its owner gets to see an answer, nor learns that it is there.
class ResponseStore {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    size_t max_responses = 4096;
    size_t max_bytes = size_t{256} << 20;  // of text; what surrounds it is not counted
    std::chrono::seconds ttl = std::chrono::hours(24);
    std::function<Clock::time_point()> now = Clock::now;
  };

  explicit ResponseStore(Options options) : options_(std::move(options)) {}

  // The longest unused go, and what is older than ttl, until it fits. False, and nothing stored, if it never does.
  bool Put(const std::string& owner, const std::string& id, StoredResponse response);
  // Null if there is none. Counts as a use.
  std::shared_ptr<const StoredResponse> Get(const std::string& owner, const std::string& id);
  // Whether there was one.
  bool Delete(const std::string& owner, const std::string& id);

  size_t size() const;
  size_t bytes() const;

 private:
  struct Entry {
    std::string owner, id;
    std::shared_ptr<const StoredResponse> response;
    Clock::time_point stored;
  };
  using Entries = std::list<Entry>;

  static size_t SizeOf(const StoredResponse& response) { return response.response.size() + response.items.size(); }
  // The entry if it is the owner's and not too old.
  Entries::iterator Find(const std::string& owner, const std::string& id);
  void Erase(Entries::iterator entry);

  const Options options_;
  mutable std::mutex mutex_;  // of all below
  Entries entries_;           // the last used first
  absl::flat_hash_map<std::string, Entries::iterator> by_id_;
  size_t bytes_ = 0;
};

}  // namespace hadal::serving
