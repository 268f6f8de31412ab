#include "models/weight_store.h"

#include <algorithm>

#include "base/status.h"

namespace hadal::models {

absl::StatusOr<const void*> WeightStore::Place(const void* host, size_t bytes) {
  // Tensors by the ten thousand (experts) would each waste a part of an allocation's granule.
  constexpr size_t kSlab = size_t{64} << 20;
  constexpr size_t kAlignment = 256;  // of vectorised loads and bulk copies
  if (memory_.is_host() || host == nullptr) return host;
  if (const auto it = placed_.find(host); it != placed_.end()) return it->second;
  const size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::byte* at = nullptr;
  if (size > kSlab / 4) {
    HADAL_ASSIGN_OR_RETURN(ops::Buffer own, memory_.Allocate(size, "weights"));
    at = own.data();
    slabs_.insert(slabs_.begin(), std::move(own));  // the last one is the one with room
  } else {
    if (left_ < size) {
      HADAL_ASSIGN_OR_RETURN(ops::Buffer slab, memory_.Allocate(kSlab, "weights"));
      slabs_.push_back(std::move(slab));
      left_ = kSlab;
    }
    at = slabs_.back().data() + (kSlab - left_);
    left_ -= size;
  }
  memory_.Upload(at, host, bytes);
  bytes_ += size;
  placed_[host] = at;
  return at;
}

}  // namespace hadal::models
