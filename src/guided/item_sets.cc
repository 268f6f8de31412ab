#include "guided/item_sets.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "base/status.h"

namespace hadal::guided {
namespace {

// A matcher's memory for sets: compaction is tried above kCompactionBytes, and this is the end.
constexpr size_t kMaxBytes = 64u << 20;

}  // namespace

size_t ItemSets::Hash::operator()(SetId set) const {
  size_t hash = 0;
  for (const Item& item : Of(owner->kernels_, owner->sets_[set].kernel)) {
    hash = absl::HashOf(hash, item.state, item.origin);
  }
  return hash;
}

bool ItemSets::Equal::operator()(SetId a, SetId b) const {
  const auto left = Of(owner->kernels_, owner->sets_[a].kernel), right = Of(owner->kernels_, owner->sets_[b].kernel);
  return std::equal(left.begin(), left.end(), right.begin(), right.end());
}

ItemSets::ItemSets(const Automaton& automaton)
    : automaton_(automaton),
      num_classes_(static_cast<size_t>(automaton.num_classes)),
      index_(0, Hash{this}, Equal{this}) {
  Clear();
}

void ItemSets::Clear() {
  index_.clear();
  sets_.assign(1, Set());
  steps_.assign(num_classes_, kDead);
  kernels_.clear();
  moves_.clear();
  waiting_.clear();
  start_ = kDead;
}

SetId ItemSets::Start() {
  if (start_ == kDead) {
    next_kernel_.assign(1, {.state = automaton_.rules[0].start, .origin = kRootOrigin});
    start_ = Intern(next_kernel_);
  }
  return start_;
}

void ItemSets::AllowWork(uint64_t work) {
  work_left_ = work;
  exhausted_ = false;
}

bool ItemSets::Spend(uint64_t work) {
  if (work > work_left_ || memory() > kMaxBytes) exhausted_ = true;
  if (exhausted_) return false;
  work_left_ -= work;
  return true;
}

size_t ItemSets::memory() const {
  return sets_.size() * sizeof(Set) + steps_.size() * sizeof(uint32_t) + waiting_.size() * sizeof(Waiting) +
         (kernels_.size() + moves_.size()) * sizeof(Item);
}

std::vector<uint32_t> ItemSets::States(SetId set) const {
  std::vector<uint32_t> states;
  for (const Item& item : Of(kernels_, sets_[set].kernel)) {
    if (states.empty() || states.back() != item.state) states.push_back(item.state);
  }
  return states;
}

SetId ItemSets::WithUnknownCallers(std::span<const uint32_t> states) {
  next_kernel_.clear();
  for (const uint32_t state : states) next_kernel_.push_back({.state = state, .origin = kUnknownOrigin});
  return Intern(next_kernel_);
}

SetId ItemSets::TakeStep(SetId set, uint8_t byte_class) {
  const Slice moves = sets_[set].moves;
  next_kernel_.clear();
  uint64_t work = 1;
  for (const Item& item : Of(moves_, moves)) {
    const auto edges = automaton_.bytes_of(item.state);
    work += edges.size();
    for (const Automaton::ByteEdge& edge : edges) {
      if (byte_class < edge.lo || byte_class > edge.hi) continue;
      const Item next = {.state = edge.target, .origin = item.origin};
      if (NestingOf(next) <= kMaxNesting) next_kernel_.push_back(next);
    }
  }
  if (!Spend(work)) return kDead;
  std::sort(next_kernel_.begin(), next_kernel_.end());
  next_kernel_.erase(std::unique(next_kernel_.begin(), next_kernel_.end()), next_kernel_.end());
  const SetId next = next_kernel_.empty() ? kDead : Intern(next_kernel_);
  if (exhausted_) return kDead;
  steps_[set * num_classes_ + byte_class] = next;
  return next;
}

SetId ItemSets::Intern(const std::vector<Item>& kernel) {
  const auto id = static_cast<SetId>(sets_.size());
  const size_t before = kernels_.size();
  sets_.push_back({.kernel = Append(kernel, &kernels_)});
  const auto [found, inserted] = index_.insert(id);
  const SetId known = *found;
  if (inserted) {
    Close(id);
    if (!exhausted_) {
      steps_.resize(steps_.size() + num_classes_, kNotTaken);
      return id;
    }
    index_.erase(id);  // incomplete
  }
  sets_.pop_back();
  kernels_.resize(before);
  return inserted ? kDead : known;
}

template <typename T>
ItemSets::Slice ItemSets::Append(const std::vector<T>& items, std::vector<T>* pool) {
  const Slice slice = {.begin = static_cast<uint32_t>(pool->size()), .size = static_cast<uint32_t>(items.size())};
  pool->insert(pool->end(), items.begin(), items.end());
  return slice;
}

void ItemSets::AddItem(Item item) {
  if (seen_.insert(static_cast<uint64_t>(item.state) << 32 | item.origin).second) closure_.push_back(item);
}

// Everything that holds before the next byte: empty steps, beginnings of called rules, ends of complete ones.
void ItemSets::Close(SetId id) {
  Set set = sets_[id];
  if (seen_.bucket_count() > 4096) {
    seen_ = {};  // clearing takes time in the size of the largest set so far
  } else {
    seen_.clear();
  }
  closure_.clear();
  closure_moves_.clear();
  closure_waiting_.clear();
  for (const Item& item : Of(kernels_, set.kernel)) {
    AddItem(item);
    set.nesting = std::max(set.nesting, NestingOf(item));
  }
  for (size_t next = 0; next < closure_.size();) {
    const Item item = closure_[next++];
    if (!Spend(1)) break;
    if (!automaton_.bytes_of(item.state).empty()) closure_moves_.push_back(item);
    for (const uint32_t target : automaton_.empties_of(item.state)) AddItem({target, item.origin});
    for (const Automaton::CallEdge& call : automaton_.calls_of(item.state)) {
      closure_waiting_.push_back({.rule = call.rule, .after = {call.target, item.origin}});
      AddItem({automaton_.rules[call.rule].start, id});
      // A rule that matches the empty text is complete where it begins; Complete passes over that case.
      if (automaton_.rules[call.rule].nullable) AddItem({call.target, item.origin});
    }
    const uint32_t final_rule = automaton_.states[item.state].final_rule;
    if (final_rule != Automaton::kNotFinal) Complete(final_rule, item.origin, id, &set);
  }
  if (exhausted_) return;
  std::sort(closure_waiting_.begin(), closure_waiting_.end());
  set.moves = Append(closure_moves_, &moves_);
  set.waiting = Append(closure_waiting_, &waiting_);
  sets_[id] = set;
}

void ItemSets::Complete(uint32_t rule, SetId origin, SetId self, Set* set) {
  if (origin == kRootOrigin) {
    set->accepting = true;
  } else if (origin == kUnknownOrigin) {
    set->open = true;
  } else if (origin != self) {
    const auto waiting = Of(waiting_, sets_[origin].waiting);
    auto found = std::lower_bound(waiting.begin(), waiting.end(), Waiting{.rule = rule, .after = {0, 0}});
    for (; found != waiting.end() && found->rule == rule; ++found) {
      if (!Spend(1)) return;
      AddItem(found->after);
    }
  }
}

void ItemSets::Compact(std::span<std::vector<SetId>* const> keep) {
  std::vector<bool> live(sets_.size(), false);
  std::vector<SetId> work;
  const auto mark = [&](SetId id) {
    if (!IsSet(id) || live[id]) return;
    live[id] = true;
    work.push_back(id);
  };
  for (const std::vector<SetId>* ids : keep) {
    for (const SetId id : *ids) mark(id);
  }
  while (!work.empty()) {
    const Set& set = sets_[work.back()];
    work.pop_back();
    for (const Item& item : Of(kernels_, set.kernel)) mark(item.origin);
    for (const Item& item : Of(moves_, set.moves)) mark(item.origin);
    for (const Waiting& waiting : Of(waiting_, set.waiting)) mark(waiting.after.origin);
  }

  // Origins are older than what refers to them (or are it), so ascending ids find theirs renamed already, and the
  // renaming keeps every order.
  const std::vector<Set> old_sets = std::exchange(sets_, {});
  const std::vector<Item> old_kernels = std::exchange(kernels_, {}), old_moves = std::exchange(moves_, {});
  const std::vector<Waiting> old_waiting = std::exchange(waiting_, {});
  Clear();
  std::vector<SetId> renamed(old_sets.size(), kDead);
  const auto rename = [&](Item item) -> Item {
    return {item.state, IsSet(item.origin) ? renamed[item.origin] : item.origin};
  };
  for (SetId id = 1; id < old_sets.size(); ++id) {
    if (!live[id]) continue;
    const auto new_id = static_cast<SetId>(sets_.size());
    renamed[id] = new_id;
    Set set = old_sets[id];
    const Slice kernel = set.kernel, moves = set.moves, waiting = set.waiting;
    set.kernel.begin = static_cast<uint32_t>(kernels_.size());
    set.moves.begin = static_cast<uint32_t>(moves_.size());
    set.waiting.begin = static_cast<uint32_t>(waiting_.size());
    for (const Item& item : Of(old_kernels, kernel)) kernels_.push_back(rename(item));
    for (const Item& item : Of(old_moves, moves)) moves_.push_back(rename(item));
    for (const Waiting& old : Of(old_waiting, waiting)) waiting_.push_back({old.rule, rename(old.after)});
    sets_.push_back(set);
    steps_.resize(steps_.size() + num_classes_, kNotTaken);
    index_.insert(new_id);
  }
  for (std::vector<SetId>* ids : keep) {
    for (SetId& id : *ids) id = renamed[id];
  }
  compaction_threshold_ = std::max(kCompactionBytes, 2 * memory());
  ++compactions_;
}

}  // namespace hadal::guided
