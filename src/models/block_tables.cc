#include "models/block_tables.h"

#include <algorithm>

#include "base/status.h"

namespace hadal::models {

absl::StatusOr<BlockTables> BlockTables::Create(ops::Memory& memory, const KvLayout& layout, int64_t sequences) {
  BlockTables tables;
  tables.memory_ = &memory;
  int64_t total = 0;
  for (const KvGroup& group : layout.groups) total += sequences * group.table_blocks;
  const size_t bytes = static_cast<size_t>(total) * sizeof(int32_t);
  HADAL_ASSIGN_OR_RETURN(tables.host_, memory.AllocateStaging(bytes, "the tables of the cache"));
  if (!memory.is_host()) {
    HADAL_ASSIGN_OR_RETURN(tables.device_, memory.Allocate(bytes, "the tables of the cache"));
  }
  auto* host = reinterpret_cast<int32_t*>(tables.host_.data());
  auto* device = memory.is_host() ? host : reinterpret_cast<int32_t*>(tables.device_.data());
  for (const KvGroup& group : layout.groups) {
    const int64_t entries = sequences * group.table_blocks;
    tables.groups_.push_back({group.table_blocks, host, device, {}});
    if (!memory.is_host()) tables.groups_.back().known.resize(static_cast<size_t>(entries));
    host += entries;
    device += entries;
  }
  return tables;
}

std::span<int32_t> BlockTables::Table(int64_t group, int64_t sequence) {
  const Group& g = groups_[group];
  return {g.host + sequence * g.entries, static_cast<size_t>(g.entries)};
}

void BlockTables::Commit(std::span<const int32_t> sequences) {
  if (memory_->is_host()) return;
  int32_t last = -1;
  for (const int32_t sequence : sequences) {
    if (sequence == last) continue;  // rows of a sequence mostly stand together
    last = sequence;
    for (Group& g : groups_) {
      const int64_t at = sequence * g.entries;
      if (std::equal(g.host + at, g.host + at + g.entries, g.known.begin() + at)) continue;
      std::copy_n(g.host + at, g.entries, g.known.begin() + at);
      memory_->Upload(g.device + at, g.host + at, static_cast<size_t>(g.entries) * sizeof(int32_t));
    }
  }
}

}  // namespace hadal::models
