#include "guided/token_masks.h"

#include <utility>

namespace hadal::guided {

std::shared_ptr<const TokenMask> TokenMaskCache::Find(const std::vector<uint32_t>& states) const {
  const std::lock_guard lock(mutex_);
  const auto found = masks_.find(states);
  return found == masks_.end() ? nullptr : found->second;
}

void TokenMaskCache::Insert(std::vector<uint32_t> states, const std::shared_ptr<const TokenMask>& mask) const {
  const size_t bytes = mask->bytes() + states.size() * sizeof(uint32_t);
  const std::lock_guard lock(mutex_);
  if (bytes_ + bytes > kMaxBytes) {
    masks_.clear();
    bytes_ = 0;
  }
  if (masks_.try_emplace(std::move(states), mask).second) bytes_ += bytes;
}

void TokenWalker::CompactIfWanted() {
  if (!sets_.wants_compaction()) return;
  std::vector<SetId>* const keep[] = {keep_, &path_};
  sets_.Compact(keep);
}

TokenMask TokenWalker::WalkStates(std::span<const uint32_t> states) {
  TokenMask mask;
  mask.allowed.assign(vocabulary_.mask_words(), 0);
  path_.assign(vocabulary_.longest_token() + 1, kDead);
  path_[0] = sets_.WithUnknownCallers(states);
  // Whether a rule was completed on the way to here.
  std::vector<uint8_t> open(path_.size(), 0);
  open[0] = sets_.open(path_[0]);
  const auto nodes = vocabulary_.nodes();
  for (uint32_t i = 0; i < nodes.size();) {
    const TokenVocabulary::Node& node = nodes[i];
    const SetId next = sets_.StepByte(path_[node.depth - 1u], node.byte);
    if (next == kDead) {
      if (open[node.depth - 1u]) mask.depends.push_back(i);
      i = node.subtree_end;
      continue;
    }
    // A rule that is complete can go on with its caller, so a token that ends there is allowed whoever that is.
    Allow(i, mask.allowed);
    path_[node.depth] = next;
    open[node.depth] = open[node.depth - 1u] | static_cast<uint8_t>(sets_.open(next));
    CompactIfWanted();
    ++i;
  }
  return mask;
}

void TokenWalker::WalkSubtree(uint32_t begin, uint32_t end, std::span<uint32_t> mask) {
  const auto nodes = vocabulary_.nodes();
  for (uint32_t i = begin; i < end;) {
    const TokenVocabulary::Node& node = nodes[i];
    const SetId next = sets_.StepByte(path_[node.depth - 1u], node.byte);
    if (next == kDead) {
      i = node.subtree_end;
      continue;
    }
    Allow(i, mask);
    path_[node.depth] = next;
    CompactIfWanted();
    ++i;
  }
}

void TokenWalker::WalkAll(std::span<uint32_t> mask) {
  path_.assign(vocabulary_.longest_token() + 1, kDead);
  path_[0] = keep_->back();
  WalkSubtree(0, static_cast<uint32_t>(vocabulary_.nodes().size()), mask);
}

// Makes the path end at `node`. Neighbouring subtrees share most of it.
void TokenWalker::StepTo(uint32_t node) {
  const auto nodes = vocabulary_.nodes();
  const size_t depth = nodes[node].depth;
  nodes_.resize(depth, TokenVocabulary::kNoParent);
  size_t known = depth;
  for (uint32_t at = node; known > 0 && nodes_[known - 1] != at; at = nodes[at].parent) nodes_[--known] = at;
  for (; known < depth; ++known) path_[known + 1] = sets_.StepByte(path_[known], nodes[nodes_[known]].byte);
}

void TokenWalker::WalkSubtrees(std::span<const uint32_t> roots, std::span<uint32_t> mask) {
  path_.assign(vocabulary_.longest_token() + 1, kDead);
  path_[0] = keep_->back();
  nodes_.clear();
  const auto nodes = vocabulary_.nodes();
  for (const uint32_t root : roots) {
    const uint32_t parent = nodes[root].parent;
    if (parent == TokenVocabulary::kNoParent) {
      nodes_.clear();
    } else {
      StepTo(parent);
    }
    // The walk overwrites the path below the parent.
    nodes_.resize(nodes[root].depth - 1u);
    WalkSubtree(root, nodes[root].subtree_end, mask);
  }
}

}  // namespace hadal::guided
