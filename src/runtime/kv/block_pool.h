// Slabs of the cache: who holds them, and which may be taken for something new.
//
// A slab is free, held by sequences (counted), or kept only because its content may be useful again. What is kept
// together is one object: a block of a prefix, or the tail that resuming behind it needs. An object whose slabs no
// sequence holds stays until its slabs are wanted; the one that was let go first is given up first.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <vector>

namespace hadal::runtime {

class BlockPool {
 public:
  using ObjectId = int32_t;
  static constexpr ObjectId kNoObject = -1;

  // `on_evict` is told the tag of an object that is given up; it must not call back into the pool.
  BlockPool(int64_t slabs, std::function<void(int64_t tag)> on_evict);

  int64_t slabs() const { return static_cast<int64_t>(slabs_.size()); }
  // Slabs that Allocate can give: free ones and those of objects that nobody holds.
  int64_t available() const { return static_cast<int64_t>(free_.size()) + evictable_slabs_; }

  // A slab, held once. Gives up objects if none is free. Requires available() > 0.
  int32_t Allocate();
  void Hold(int32_t slab);
  void LetGo(int32_t slab);  // requires that it is held

  // Keeps the slabs, all of them held and none in an object yet.
  ObjectId Keep(std::span<const int32_t> slabs, int64_t tag);
  // Ends that: slabs that nobody holds are free then. Does not call on_evict.
  void Drop(ObjectId id);
  std::span<const int32_t> SlabsOf(ObjectId object) const { return objects_[object].slabs; }

  // The sum over all slabs agrees with the counters, and no slab is in two places. For tests.
  bool Consistent() const;

 private:
  struct Slab {
    int32_t holders = 0;
    ObjectId object = kNoObject;
  };
  struct Object {
    std::vector<int32_t> slabs;
    int64_t tag = 0;
    int64_t holds = 0;  // of all its slabs
    bool used = false;
    std::list<ObjectId>::iterator place;  // in evictable_, while holds is 0
  };

  void Changed(Object* object, ObjectId id, int64_t before);

  std::vector<Slab> slabs_;
  std::vector<int32_t> free_;
  std::vector<Object> objects_;
  std::vector<ObjectId> unused_objects_;
  std::list<ObjectId> evictable_;  // let go first in front
  int64_t evictable_slabs_ = 0;
  std::function<void(int64_t)> on_evict_;
};

}  // namespace hadal::runtime
