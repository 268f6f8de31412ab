// Which tokens may come next, as a bit per token.
//
// A mask is found by walking the vocabulary's trie along the grammar. Most of the answer does not depend on who called
// the rule that is being matched: in the string of a JSON object, whatever surrounds it, the same tokens stay inside
// that object. So for a set of automaton states the walk is done once with unknown callers, and gives for every token:
// allowed, not allowed, or "the rule was completed on the way and what follows is up to the callers". The last kind is
// kept as subtrees of the trie, and only those are walked with the real callers, each time. (The split is that of
// XGrammar, arXiv 2411.15100; here it follows from running the same item sets with an unknown origin.)
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "guided/item_sets.h"
#include "guided/vocabulary.h"

namespace hadal::guided {

// What is known of a set of states without their callers.
struct TokenMask {
  std::vector<uint32_t> allowed;  // a bit per token
  // Roots of the trie's subtrees whose tokens depend on the callers, ascending.
  std::vector<uint32_t> depends;

  size_t bytes() const { return sizeof(*this) + (allowed.size() + depends.size()) * sizeof(uint32_t); }
};

// Masks by states, shared by all requests that use a grammar. Safe for several threads; the lock is held for a look-up.
class TokenMaskCache {
 public:
  // When more bytes would be held than this, all are forgotten.
  static constexpr size_t kMaxBytes = 64u << 20;

  std::shared_ptr<const TokenMask> Find(const std::vector<uint32_t>& states) const;
  void Insert(std::vector<uint32_t> states, const std::shared_ptr<const TokenMask>& mask) const;

 private:
  mutable std::mutex mutex_;  // of the next two
  mutable absl::flat_hash_map<std::vector<uint32_t>, std::shared_ptr<const TokenMask>> masks_;
  mutable size_t bytes_ = 0;
};

// The walks. One object per matcher; refers to its sets.
class TokenWalker {
 public:
  // `keep`: the ids that the owner holds; they are renamed when the sets are compacted.
  TokenWalker(const TokenVocabulary& vocabulary, ItemSets* sets, std::vector<SetId>* keep)
      : vocabulary_(vocabulary), sets_(*sets), keep_(keep) {}

  // Everything about the tokens that does not depend on callers.
  TokenMask WalkStates(std::span<const uint32_t> states);
  // Adds the allowed tokens of the subtrees at `roots` to `mask`, from the last of the kept ids.
  void WalkSubtrees(std::span<const uint32_t> roots, std::span<uint32_t> mask);
  // Adds all allowed tokens, from the last of the kept ids.
  void WalkAll(std::span<uint32_t> mask);

 private:
  void CompactIfWanted();
  void Allow(uint32_t node, std::span<uint32_t> mask) const {
    for (const int32_t token : vocabulary_.TokensAt(node)) {
      mask[static_cast<size_t>(token) / 32] |= 1u << (static_cast<uint32_t>(token) % 32);
    }
  }
  void StepTo(uint32_t node);
  void WalkSubtree(uint32_t begin, uint32_t end, std::span<uint32_t> mask);

  const TokenVocabulary& vocabulary_;
  ItemSets& sets_;
  std::vector<SetId>* keep_;
  std::vector<SetId> path_;      // sets after 0, 1, ... bytes of a token
  std::vector<uint32_t> nodes_;  // trie nodes of the path, for WalkSubtrees
};

}  // namespace hadal::guided
