// The tables of a cache: which slab holds which positions of a sequence, written by the host between steps and read by
// operators.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "models/kv_layout.h"
#include "ops/memory.h"

namespace hadal::models {

class BlockTables {
 public:
  BlockTables() = default;
  // Tables of `sequences` sequences for the groups of `layout`, all zero. `memory` outlives them.
  static absl::StatusOr<BlockTables> Create(ops::Memory& memory, const KvLayout& layout, int64_t sequences);

  // For the host: [table_blocks] of one sequence.
  std::span<int32_t> Table(int64_t group, int64_t sequence);
  // For operators: [sequences, table_blocks].
  const int32_t* device(int64_t group) const { return groups_[group].device; }
  // What changed of the tables of these sequences goes where operators read it. Before a step.
  void Commit(std::span<const int32_t> sequences);

 private:
  struct Group {
    int64_t entries = 0;
    int32_t* host = nullptr;
    int32_t* device = nullptr;
    std::vector<int32_t> known;  // what the device has; empty where it reads the host's tables
  };

  ops::Memory* memory_ = nullptr;
  ops::Buffer host_, device_;
  std::vector<Group> groups_;
};

}  // namespace hadal::models
