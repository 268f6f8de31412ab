// How a model's cache is divided into blocks, for whoever hands them out (spec deepseek-v4-vision-and-cache 6.1, 6.5).
//
// The cache is one pool of equal slabs. A group is a set of layers whose rows of the same positions share a slab; every
// sequence has one table of slab numbers a group. A slab belongs to one group of one run of positions at a time, and
// means nothing outside its table, so that sequences may share slabs whose rows are complete.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace hadal::models {

struct KvGroup {
  std::string name = {};
  int64_t block_tokens = 0;  // positions of a block
  // Positions that a later row may still read: with `computed` rows complete, those from
  // computed/period*period - lookback on. lookback -1: all.
  int64_t period = 1;
  int64_t lookback = -1;
  // Entries of a sequence's table. The block of positions [b*block_tokens, (b+1)*block_tokens) stands at entry
  // b % table_blocks.
  int64_t table_blocks = 0;
  int64_t bytes = 0;  // of a slab that are used

  bool windowed() const { return lookback >= 0; }
  int64_t FirstNeeded(int64_t computed) const {
    return windowed() ? std::max<int64_t>(0, computed / period * period - lookback) : 0;
  }
  // Blocks that hold a position of [begin, end).
  int64_t FirstBlock(int64_t begin) const { return begin / block_tokens; }
  int64_t EndBlock(int64_t end) const { return (end + block_tokens - 1) / block_tokens; }
};

struct KvLayout {
  std::vector<KvGroup> groups = {};  // groups without a window come first
  int64_t slab_bytes = 0;
  // A sequence can be resumed behind any multiple of this from the blocks that its groups still need there. A multiple
  // of every block_tokens.
  int64_t resume_tokens = 1;

  bool empty() const { return groups.empty(); }
  // Slabs that positions [0, tokens) need at most while they are computed in steps of up to `step` rows.
  int64_t SlabsFor(int64_t tokens, int64_t step) const {
    int64_t slabs = 0;
    for (const KvGroup& group : groups) {
      int64_t blocks = group.EndBlock(tokens);
      if (group.windowed()) blocks = std::min(blocks, BlocksOfWindow(group, step));
      slabs += blocks;
    }
    return slabs;
  }
  // Blocks that a sequence holds at most of a windowed group during a step of `step` rows.
  static int64_t BlocksOfWindow(const KvGroup& group, int64_t step) {
    return (group.period - 1 + group.lookback + step + group.block_tokens - 1) / group.block_tokens + 1;
  }
};

}  // namespace hadal::models
