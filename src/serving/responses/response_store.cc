#include "serving/responses/response_store.h"

#include <utility>

namespace hadal::serving {

bool ResponseStore::Put(const std::string& owner, const std::string& id, StoredResponse response) {
  const size_t size = SizeOf(response);
  if (size > options_.max_bytes || options_.max_responses == 0) return false;
  const Clock::time_point now = options_.now();
  const std::lock_guard lock(mutex_);
  if (const auto found = by_id_.find(id); found != by_id_.end()) Erase(found->second);
  while (!entries_.empty() && (entries_.size() >= options_.max_responses || bytes_ + size > options_.max_bytes ||
                               now - entries_.back().stored > options_.ttl)) {
    Erase(std::prev(entries_.end()));
  }
  entries_.push_front({owner, id, std::make_shared<const StoredResponse>(std::move(response)), now});
  by_id_[id] = entries_.begin();
  bytes_ += size;
  return true;
}

std::shared_ptr<const StoredResponse> ResponseStore::Get(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto entry = Find(owner, id);
  if (entry == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, entry);
  return entry->response;
}

bool ResponseStore::Delete(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto entry = Find(owner, id);
  if (entry == entries_.end()) return false;
  Erase(entry);
  return true;
}

size_t ResponseStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

ResponseStore::Entries::iterator ResponseStore::Find(const std::string& owner, const std::string& id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second->owner != owner) return entries_.end();
  if (options_.now() - found->second->stored > options_.ttl) {
    Erase(found->second);
    return entries_.end();
  }
  return found->second;
}

void ResponseStore::Erase(Entries::iterator entry) {
  bytes_ -= SizeOf(*entry->response);
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

}  // namespace hadal::serving
