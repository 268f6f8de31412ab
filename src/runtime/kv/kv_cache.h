// The cache blocks of running sequences, and what stays of them for later ones (spec serving-runtime 4.4,
// deepseek-v4-vision-and-cache 6.6).
//
// Every sequence holds, in each group of the model's layout, the blocks that its next rows may read and those that they
// will write. Complete blocks of groups without a window are kept under a hash of all tokens up to their end, and so is
// now and then the tail: the windowed blocks that resuming there needs. A new sequence begins behind the longest prefix
// whose blocks are all there and that ends with a tail.
//
// Tails are kept at the last boundary of a prompt, where prompts were seen to part, at every retention_interval tokens,
// and at the last boundary that an answer has reached. A boundary inside an image is none, since images are computed
// whole.
//
// With a store (kv_store.h) what is kept also goes to disk, and prefixes that are only there are read back when a
// sequence begins with them.
//
// Rows do not depend on how they came about (ops/ops.h), so a sequence that resumes has the bits of one that did not.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/sha256.h"
#include "models/model.h"
#include "runtime/kv/block_pool.h"
#include "runtime/kv/kv_events.h"
#include "runtime/kv/kv_store.h"

namespace hadal::runtime {

struct KvCacheOptions {
  bool prefix_cache = true;
  int64_t retention_interval = 4096;  // tokens, rounded up to resume points; 0: none of these tails
  // Enters every hash, so that hashes of another process, model or setting are never taken for ours. Empty: random.
  std::string hash_seed = {};
  std::shared_ptr<KvStore> store = {};    // hash_seed is its own; null: prefixes end with the process
  std::shared_ptr<KvEvents> events = {};  // is told of every block; null: nobody asks
};

// An image of a prompt: positions [offset, offset + length).
struct KvImage {
  int64_t offset = 0;
  int64_t length = 0;
  Sha256Digest content = {};
};

struct KvSequence {
  std::span<const int32_t> prompt = {};
  std::vector<KvImage> images = {};  // ascending
  std::string salt = {};             // sequences of different salts share nothing
  bool read_prefix = true;           // false: compute everything, as logits of prompt rows need
};

struct KvCacheStats {
  int64_t query_tokens = 0;  // of prompts that asked, each time they began to be computed
  int64_t hit_tokens = 0;
  int64_t evicted = 0;   // blocks and tails given up
  int64_t restored = 0;  // blocks and tails read from the store
};

class KvCache {
 public:
  // The model's tables are written from now on; it must have been made with limits().cache_slabs, or have no cache.
  KvCache(models::Model* model, KvCacheOptions options);

  // Tokens that `sequence` could skip now, if the store's files are whole; nothing changes.
  int64_t CachedTokens(const KvSequence& sequence) const;

  // Gives slot `index` to a sequence; returns how many of its tokens are there already, less than the prompt has. The
  // slot must be free.
  int64_t Begin(int32_t index, KvSequence sequence);
  // Blocks for positions up to `end`, beside those that the sequence has. False, and no change, if there are not
  // enough.
  bool Reserve(int32_t index, int64_t end);
  // Positions up to `computed` hold rows of `tokens`, which are final. Keeps what is complete, and lets go what no
  // later row reads.
  void Commit(int32_t index, std::span<const int32_t> tokens, int64_t computed);
  // The sequence is over, or makes room. What was kept stays until its slabs are wanted.
  void End(int32_t index);
  // Forgets every prefix that no sequence uses.
  void ResetPrefixCache();

  // Slabs that positions up to `tokens` need at most, computed in steps of up to `step` rows.
  int64_t SlabsFor(int64_t tokens, int64_t step) const { return layout_.SlabsFor(tokens, step); }
  int64_t slabs() const { return pool_.slabs(); }
  int64_t available() const { return pool_.available(); }
  // Share of the slabs that sequences hold.
  double usage() const;
  const KvCacheStats& stats() const { return stats_; }
  // Every slab is accounted for. For tests.
  bool Consistent() const;

 private:
  using ObjectId = BlockPool::ObjectId;

  // What is known of the prefix with this hash.
  struct Prefix {
    Sha256Digest hash = {};
    ObjectId block = BlockPool::kNoObject;  // a slab of each group without a window
    ObjectId tail = BlockPool::kNoObject;   // the windowed blocks, by group and ascending
    bool used = false;
  };
  struct Held {
    int64_t first = 0, end = 0;  // block numbers
  };
  struct Slot {
    bool used = false;
    bool counted = false;  // in stats_, from the first step on: many a sequence is tried more than once
    KvSequence sequence;   // without its prompt
    int64_t prompt_tokens = 0;
    int64_t computed = 0;
    std::vector<Held> held;            // by group
    std::vector<Sha256Digest> hashes;  // of prefixes up to each boundary
    int64_t junction = 0;              // a boundary where a tail was missing
    bool has_answer_tail = false;      // a tail marks how far the answer is
    Sha256Digest answer_tail = {};     // of which prefix
    int64_t answer_tail_tokens = 0;    // its length
  };

  Sha256Digest HashBlock(const Slot& slot, int64_t block, std::span<const int32_t> tokens) const;
  bool MayResumeAt(const Slot& slot, int64_t position) const;
  bool WantsTail(const Slot& slot, int64_t position) const;
  // Walks the prefixes of the prompt; returns the last boundary to resume at, and where the known blocks end.
  struct Found {
    int64_t tokens = 0;
    int64_t known = 0;
  };
  Found Find(Slot* slot, std::span<const int32_t> prompt) const;
  int32_t& Entry(int64_t group, int32_t slot, int64_t block);
  int32_t PrefixIndex(const Sha256Digest& hash);  // finds or makes
  void ForgetIfEmpty(int32_t index);
  bool Known(const Sha256Digest& hash, KvStore::Part part) const;  // in memory or in the store
  // Reads what is only in the store of the prefix up to `tokens`; returns the last resume point that is in memory then.
  int64_t BringBack(Slot* slot, std::span<const int32_t> prompt, int64_t tokens);
  bool Restore(const Sha256Digest& hash, KvStore::Part part, int64_t position, std::vector<int32_t>* held);
  // The object's slabs as the store has them: the bytes of each that are used, one behind the other.
  void Save(const Sha256Digest& hash, KvStore::Part part, int64_t position);
  // The groups of an object's slabs, in their order.
  void GroupsOf(KvStore::Part part, int64_t position, std::vector<size_t>* groups) const;
  void Attach(int32_t index, int64_t tokens);
  void KeepBlock(int32_t index, int64_t block, std::span<const int32_t> tokens);
  void KeepTail(int32_t index, int64_t position);
  void DropTail(const Sha256Digest& hash);
  // Tells that a block of the slot's prefix is in memory.
  void TellStored(const Slot& slot, int64_t block, std::span<const int32_t> tokens) const;
  void Evicted(int64_t tag);

  models::Model* model_;
  const models::KvLayout layout_;
  KvCacheOptions options_;
  bool windows_ = false;  // some groups have one: a resume point needs a tail
  BlockPool pool_;
  std::vector<Slot> slots_;
  std::vector<Prefix> prefixes_;
  std::vector<int32_t> unused_prefixes_;
  absl::flat_hash_map<Sha256Digest, int32_t> by_hash_;
  KvCacheStats stats_;
  std::vector<int32_t> gathered_;  // of one object
  std::vector<size_t> groups_;     // the same
};

}  // namespace hadal::runtime
