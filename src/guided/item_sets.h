// Where a grammar can be after some bytes: sets of items, made on demand and remembered, so that a step that was taken
// before is one look-up.
//
// An item is (state, origin): a rule is being matched, `state` is how far it got, and `origin` is the set in which it
// was called. This is Earley's algorithm on the automata of automaton.h: a rule that is complete goes on, in its
// origin, with whatever called it there. It takes every context-free grammar, left recursion and ambiguity included.
// Sets are equal if their items are, and equal sets have one id; a set's origins are older than itself. So the sets
// form a deterministic automaton over stacks, of which only what was visited exists.
//
// The same machine runs with the callers unknown: items whose origin is kUnknownOrigin. When such an item's rule is
// complete, the set is marked `open`: what comes next depends on callers. token_masks.h rests on this.
//
// Not safe for several threads.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "guided/automaton.h"

namespace hadal::guided {

using SetId = uint32_t;
inline constexpr SetId kDead = 0;  // no item: not a prefix of any text

// Calls of rules inside one another; a byte that needs more is refused, so at the limit a text may have nowhere to go.
// In JSON a call is an array or object inside another. Far above what people write (Python's JSON parser gives up near
// 1000), low enough that a set stays cheap.
inline constexpr uint32_t kMaxNesting = 1000;

class ItemSets {
 public:
  // `automaton` must outlive this.
  explicit ItemSets(const Automaton& automaton);
  ItemSets(const ItemSets&) = delete;
  ItemSets& operator=(const ItemSets&) = delete;

  // Before the first byte. The same id until Compact.
  SetId Start();
  // After one more byte of class `byte_class`.
  SetId Step(SetId set, uint8_t byte_class) {
    const uint32_t known = steps_[static_cast<size_t>(set) * num_classes_ + byte_class];
    return known != kNotTaken ? known : TakeStep(set, byte_class);
  }
  SetId StepByte(SetId set, uint8_t byte) { return Step(set, automaton_.byte_class[byte]); }
  const Automaton& automaton() const { return automaton_; }

  // The text may end here.
  bool accepting(SetId set) const { return sets_[set].accepting; }
  // A rule whose caller is unknown is complete here.
  bool open(SetId set) const { return sets_[set].open; }
  // At most this many rules are being matched inside one another.
  uint32_t nesting(SetId set) const { return sets_[set].nesting; }

  // The distinct states of a set's items, ascending: what it is, if callers do not matter.
  std::vector<uint32_t> States(SetId set) const;
  // The set of these states with unknown callers.
  SetId WithUnknownCallers(std::span<const uint32_t> states);

  // Work and memory are bounded: after `work` more items were looked at in steps not taken before, or when no memory is
  // left after Compact, every new step leads to kDead and exhausted() is true until the next call of this.
  void AllowWork(uint64_t work);
  bool exhausted() const { return exhausted_; }

  // Whether Compact should be called before the next step.
  bool wants_compaction() const { return memory() > compaction_threshold_; }
  // Forgets all sets but these and what they refer to; they get new ids, which replace the old ones.
  void Compact(std::span<std::vector<SetId>* const> keep);
  // How often that was done: ids from before are not those of now.
  uint64_t compactions() const { return compactions_; }

 private:
  static constexpr uint32_t kNotTaken = 0xFFFFFFFF;
  static constexpr SetId kRootOrigin = 0xFFFFFFFF;
  static constexpr SetId kUnknownOrigin = 0xFFFFFFFE;

  struct Item {
    uint32_t state;
    SetId origin;
    bool operator==(const Item&) const = default;
    bool operator<(const Item& other) const { return std::tie(state, origin) < std::tie(other.state, other.origin); }
  };
  // A call that is waiting for its rule.
  struct Waiting {
    uint32_t rule;
    Item after;
    bool operator<(const Waiting& other) const { return std::tie(rule, after) < std::tie(other.rule, other.after); }
  };
  struct Slice {
    uint32_t begin = 0, size = 0;
  };
  struct Set {
    Slice kernel = {};   // its identity: items right after a byte, sorted
    Slice moves = {};    // all items that take a byte
    Slice waiting = {};  // by rule
    uint32_t nesting = 0;
    bool accepting = false, open = false;
  };
  struct Hash {
    const ItemSets* owner;
    size_t operator()(SetId set) const;
  };
  struct Equal {
    const ItemSets* owner;
    bool operator()(SetId a, SetId b) const;
  };

  static constexpr size_t kCompactionBytes = 16u << 20;

  static bool IsSet(SetId origin) { return origin < kUnknownOrigin; }
  template <typename T>
  static std::span<const T> Of(const std::vector<T>& pool, Slice slice) {
    return {pool.data() + slice.begin, slice.size};
  }
  template <typename T>
  static Slice Append(const std::vector<T>& items, std::vector<T>* pool);

  SetId TakeStep(SetId set, uint8_t byte_class);
  SetId Intern(const std::vector<Item>& kernel);
  void Close(SetId id);
  void AddItem(Item item);
  void Complete(uint32_t rule, SetId origin, SetId self, Set* set);
  uint32_t NestingOf(Item item) const { return IsSet(item.origin) ? sets_[item.origin].nesting + 1 : 0; }
  bool Spend(uint64_t work);
  size_t memory() const;
  void Clear();

  const Automaton& automaton_;
  const size_t num_classes_;
  std::vector<Set> sets_;
  std::vector<uint32_t> steps_;  // [set][class]
  std::vector<Item> kernels_, moves_;
  std::vector<Waiting> waiting_;
  absl::flat_hash_set<SetId, Hash, Equal> index_;
  SetId start_ = kDead;
  uint64_t work_left_ = 0;
  size_t compaction_threshold_ = kCompactionBytes;
  bool exhausted_ = false;
  uint64_t compactions_ = 0;

  // Scratch of Close and TakeStep.
  std::vector<Item> next_kernel_, closure_, closure_moves_;
  std::vector<Waiting> closure_waiting_;
  absl::flat_hash_set<uint64_t> seen_;
};

}  // namespace hadal::guided
