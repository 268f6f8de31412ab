// What enters and leaves the prefix cache, for those who send requests to where their prefix is.
#pragma once

#include <cstdint>
#include <span>

#include "base/sha256.h"

namespace hadal::runtime {

// Told on the engine's thread, in the middle of a step: implementations take notes and return.
class KvEvents {
 public:
  virtual ~KvEvents() = default;
  // A block of a prefix: its rows are in memory from now on. `parent`: hash of the block before it, null for the first.
  virtual void Stored(const Sha256Digest& hash, const Sha256Digest* parent, std::span<const int32_t> tokens) = 0;
  virtual void Removed(const Sha256Digest& hash) = 0;
  virtual void Cleared() = 0;  // all blocks
};

}  // namespace hadal::runtime
