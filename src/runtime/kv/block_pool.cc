#include "runtime/kv/block_pool.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace hadal::runtime {

BlockPool::BlockPool(int64_t slabs, std::function<void(int64_t)> on_evict)
    : slabs_(static_cast<size_t>(slabs)), on_evict_(std::move(on_evict)) {
  free_.reserve(slabs_.size());
  for (int64_t slab = slabs - 1; slab >= 0; --slab) free_.push_back(static_cast<int32_t>(slab));
}

// Moves an object into or out of the list of those that may be given up.
void BlockPool::Changed(Object* object, ObjectId id, int64_t before) {
  const auto count = static_cast<int64_t>(object->slabs.size());
  if (before > 0 && object->holds == 0) {
    object->place = evictable_.insert(evictable_.end(), id);
    evictable_slabs_ += count;
  } else if (before == 0 && object->holds > 0) {
    evictable_.erase(object->place);
    evictable_slabs_ -= count;
  }
}

int32_t BlockPool::Allocate() {
  if (free_.empty()) {
    HADAL_CHECK(!evictable_.empty());
    const ObjectId victim = evictable_.front();
    on_evict_(objects_[victim].tag);
    Drop(victim);
  }
  const int32_t slab = free_.back();
  free_.pop_back();
  HADAL_CHECK(slabs_[slab].holders == 0 && slabs_[slab].object == kNoObject);
  slabs_[slab].holders = 1;
  return slab;
}

void BlockPool::Hold(int32_t slab) {
  Slab& s = slabs_[slab];
  HADAL_CHECK(s.holders > 0 || s.object != kNoObject);
  ++s.holders;
  if (s.object == kNoObject) return;
  Object& object = objects_[s.object];
  Changed(&object, s.object, object.holds++);
}

void BlockPool::LetGo(int32_t slab) {
  Slab& s = slabs_[slab];
  HADAL_CHECK(s.holders > 0);
  --s.holders;
  if (s.object != kNoObject) {
    Object& object = objects_[s.object];
    Changed(&object, s.object, object.holds--);
  } else if (s.holders == 0) {
    free_.push_back(slab);
  }
}

BlockPool::ObjectId BlockPool::Keep(std::span<const int32_t> slabs, int64_t tag) {
  HADAL_CHECK(!slabs.empty());
  ObjectId id = static_cast<ObjectId>(objects_.size());
  if (unused_objects_.empty()) {
    objects_.emplace_back();
  } else {
    id = unused_objects_.back();
    unused_objects_.pop_back();
  }
  Object& object = objects_[id];
  object.slabs.assign(slabs.begin(), slabs.end());
  object.tag = tag;
  object.used = true;
  object.holds = 0;
  for (const int32_t slab : slabs) {
    HADAL_CHECK(slabs_[slab].holders > 0 && slabs_[slab].object == kNoObject);
    slabs_[slab].object = id;
    object.holds += slabs_[slab].holders;
  }
  return id;
}

void BlockPool::Drop(ObjectId id) {
  Object& object = objects_[id];
  HADAL_CHECK(object.used);
  if (object.holds == 0) {
    evictable_.erase(object.place);
    evictable_slabs_ -= static_cast<int64_t>(object.slabs.size());
  }
  for (const int32_t slab : object.slabs) {
    slabs_[slab].object = kNoObject;
    if (slabs_[slab].holders == 0) free_.push_back(slab);
  }
  object.slabs.clear();
  object.holds = 0;
  object.used = false;
  unused_objects_.push_back(id);
}

bool BlockPool::Consistent() const {
  std::vector<int> places(slabs_.size(), 0);
  for (const int32_t slab : free_) {
    ++places[slab];
    if (slabs_[slab].holders != 0 || slabs_[slab].object != kNoObject) return false;
  }
  int64_t evictable = 0;
  for (size_t id = 0; id < objects_.size(); ++id) {
    const Object& object = objects_[id];
    int64_t holds = 0;
    for (const int32_t slab : object.slabs) {
      if (slabs_[slab].object != static_cast<ObjectId>(id)) return false;
      ++places[slab];
      holds += slabs_[slab].holders;
    }
    if (holds != object.holds || (!object.used && !object.slabs.empty())) return false;
    if (object.used && holds == 0) evictable += static_cast<int64_t>(object.slabs.size());
  }
  for (size_t slab = 0; slab < slabs_.size(); ++slab) {
    const bool held_alone = slabs_[slab].holders > 0 && slabs_[slab].object == kNoObject;
    if (places[slab] + (held_alone ? 1 : 0) != 1) return false;
  }
  return evictable == evictable_slabs_;
}

}  // namespace hadal::runtime
