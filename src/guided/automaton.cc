#include "guided/automaton.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace hadal::guided {
namespace {

constexpr uint32_t kNoState = 0xFFFFFFFF;
// Rules of more states than this are called, not copied. A copy lets a token mask look beyond the rule's end
// (token_masks.h), a call keeps the automaton small; JSON strings and numbers, which matter most, are below.
constexpr size_t kMaxInlineStates = 128;
constexpr int kMaxInlineNesting = 4;

struct Edge {
  enum class Kind : uint8_t { kByte, kEmpty, kCall };
  Kind kind;
  uint8_t lo = 0, hi = 0;
  uint32_t rule = 0;
  uint32_t target = 0;
};

// The automata under construction.
struct Draft {
  struct State {
    absl::InlinedVector<Edge, 2> edges;
    uint32_t final_rule = Automaton::kNotFinal;
  };
  std::vector<State> states;
  std::vector<uint32_t> rule_starts;
};

uint64_t PairKey(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) << 32 | b; }

// Estimated states of each expression if all calls in it were written out; saturates at kTooLarge, where recursion ends
// up too.
class Sizes {
 public:
  static constexpr size_t kTooLarge = 1u << 20;

  explicit Sizes(const Expressions& expressions) : rules_(expressions.rules().size(), kTooLarge) {
    std::vector<size_t> sizes(expressions.size());
    // Each round knows the rules of one more level.
    for (int round = 0; round < kMaxInlineNesting; ++round) {
      for (Expr expr = 0; expr < expressions.size(); ++expr) sizes[expr] = Size(expressions.node(expr), sizes);
      for (size_t i = 0; i < rules_.size(); ++i) rules_[i] = sizes[expressions.rules()[i].body];
    }
  }

  size_t rule(RuleId rule) const { return rules_[rule]; }

 private:
  size_t Size(const Expressions::Node& node, const std::vector<size_t>& sizes) const {
    using Kind = Expressions::Kind;
    if (node.kind == Kind::kRule) return rules_[node.children[0]];
    size_t sum = 1;
    for (const Expr child : node.children) {
      sum = node.kind == Kind::kIntersection ? sum * (1 + sizes[child]) : sum + sizes[child];
      sum = std::min(sum, kTooLarge);
    }
    if (node.kind != Kind::kRepeat) return sum;
    return std::min(kTooLarge, sum * std::max<size_t>(1, node.max == kUnlimited ? node.min : node.max));
  }

  std::vector<size_t> rules_;
};

class Builder {
 public:
  Builder(const Expressions& expressions, Budget* budget)
      : expressions_(expressions), budget_(budget), sizes_(expressions) {}

  absl::StatusOr<Draft> Build(Expr root) {
    Start(root, 0);
    while (status_.ok() && !called_.empty()) {
      const RuleId rule = called_.front();
      called_.pop_front();
      Start(expressions_.rules()[rule].body, called_index_[rule]);
    }
    if (!status_.ok()) return status_;
    return std::move(draft_);
  }

 private:
  struct Pending {
    uint32_t state;
    Expr body;
    uint32_t next;
  };

  // Builds the automaton of one rule.
  void Start(Expr body, uint32_t rule) {
    built_.clear();
    final_ = NewState();
    if (!status_.ok()) return;
    draft_.states[final_].final_rule = rule;
    const uint32_t start = BuildExpr(body, final_);
    while (status_.ok() && !pending_.empty()) {
      const Pending pending = pending_.back();
      pending_.pop_back();
      const uint32_t target = BuildExpr(pending.body, pending.next);
      AddEmpty(pending.state, target);
    }
    if (draft_.rule_starts.size() <= rule) draft_.rule_starts.resize(rule + 1, kNoState);
    draft_.rule_starts[rule] = start;
  }

  uint32_t NewState() {
    if (status_.ok()) status_ = budget_->CheckStates(draft_.states.size() + 1);
    if (status_.ok()) status_ = budget_->CheckTime();
    if (!status_.ok()) return 0;
    draft_.states.emplace_back();
    return static_cast<uint32_t>(draft_.states.size() - 1);
  }

  void AddEmpty(uint32_t from, uint32_t to) {
    if (!status_.ok()) return;
    draft_.states[from].edges.push_back({.kind = Edge::Kind::kEmpty, .target = to});
  }

  // The state from which `expr` and then what `next` begins is matched.
  uint32_t BuildExpr(Expr expr, uint32_t next) {
    if (!status_.ok() || expr == kEmptyText) return next;
    const uint64_t key = PairKey(expr, next);
    const auto found = built_.find(key);
    if (found != built_.end()) return found->second;
    const uint32_t start = BuildNode(expressions_.node(expr), next);
    built_.emplace(key, start);
    return start;
  }

  uint32_t BuildNode(const Expressions::Node& node, uint32_t next) {
    using Kind = Expressions::Kind;
    switch (node.kind) {
      case Kind::kNever:
        return NewState();
      case Kind::kEmpty:
        return next;
      case Kind::kByteRange:
        return BuildByteRange(node, next);
      case Kind::kSequence:
        for (size_t i = node.children.size(); i-- > 0;) next = BuildExpr(node.children[i], next);
        return next;
      case Kind::kChoice:
        return BuildChoice(node, next);
      case Kind::kRepeat:
        return BuildRepeat(node, next);
      case Kind::kIntersection:
        return BuildIntersection(node, next);
      case Kind::kRule:
        return BuildRule(node.children[0], next);
    }
    return next;
  }

  uint32_t BuildByteRange(const Expressions::Node& node, uint32_t next) {
    const uint32_t state = NewState();
    if (!status_.ok()) return next;
    draft_.states[state].edges.push_back({.kind = Edge::Kind::kByte, .lo = node.lo, .hi = node.hi, .target = next});
    return state;
  }

  uint32_t BuildChoice(const Expressions::Node& node, uint32_t next) {
    const uint32_t state = NewState();
    for (const Expr child : node.children) {
      const uint32_t target = BuildExpr(child, next);
      AddEmpty(state, target);
    }
    return state;
  }

  uint32_t BuildRepeat(const Expressions::Node& node, uint32_t next) {
    const Expr part = node.children[0];
    uint32_t start = next;
    if (node.max == kUnlimited) {
      start = NewState();
      AddEmpty(start, next);
      const uint32_t again = BuildExpr(part, start);
      AddEmpty(start, again);
    } else {
      for (uint32_t i = node.min; i < node.max && status_.ok(); ++i) {
        const uint32_t state = NewState();
        AddEmpty(state, next);
        const uint32_t once = BuildExpr(part, start);
        AddEmpty(state, once);
        start = state;
      }
    }
    for (uint32_t i = 0; i < node.min && status_.ok(); ++i) start = BuildExpr(part, start);
    return start;
  }

  // The product of both sides' automata.
  uint32_t BuildIntersection(const Expressions::Node& node, uint32_t next) {
    ++intersections_;
    uint32_t ends[2], starts[2];
    for (int side = 0; side < 2; ++side) {
      ends[side] = NewState();
      starts[side] = BuildExpr(node.children[side], ends[side]);
    }
    --intersections_;
    absl::flat_hash_map<uint64_t, uint32_t> product;
    std::vector<std::pair<uint64_t, uint32_t>> work;
    const auto state_of = [&](uint32_t a, uint32_t b) {
      const auto found = product.find(PairKey(a, b));
      if (found != product.end()) return found->second;
      const uint32_t state = NewState();
      product.emplace(PairKey(a, b), state);
      work.emplace_back(PairKey(a, b), state);
      return state;
    };
    const uint32_t start = state_of(starts[0], starts[1]);
    while (status_.ok() && !work.empty()) {
      const auto [key, state] = work.back();
      work.pop_back();
      const auto a = static_cast<uint32_t>(key >> 32), b = static_cast<uint32_t>(key);
      if (a == ends[0] && b == ends[1]) AddEmpty(state, next);
      AddProductEdges(a, b, state, state_of);
    }
    return start;
  }

  template <typename StateOf>
  void AddProductEdges(uint32_t a, uint32_t b, uint32_t state, const StateOf& state_of) {
    // Copies: state_of adds states and may move the others.
    const auto edges_a = draft_.states[a].edges;
    const auto edges_b = draft_.states[b].edges;
    for (const Edge& edge : edges_a) {
      if (edge.kind == Edge::Kind::kEmpty) AddEmpty(state, state_of(edge.target, b));
    }
    for (const Edge& edge : edges_b) {
      if (edge.kind == Edge::Kind::kEmpty) AddEmpty(state, state_of(a, edge.target));
    }
    for (const Edge& left : edges_a) {
      for (const Edge& right : edges_b) {
        if (left.kind != Edge::Kind::kByte || right.kind != Edge::Kind::kByte) continue;
        const uint8_t lo = std::max(left.lo, right.lo), hi = std::min(left.hi, right.hi);
        if (lo > hi) continue;
        const uint32_t target = state_of(left.target, right.target);
        if (!status_.ok()) return;
        draft_.states[state].edges.push_back({.kind = Edge::Kind::kByte, .lo = lo, .hi = hi, .target = target});
      }
    }
  }

  uint32_t BuildRule(RuleId rule, uint32_t next) {
    HADAL_CHECK(intersections_ == 0);  // front ends intersect only what has no rules
    const uint32_t state = NewState();
    if (!status_.ok()) return next;
    // Copies stop when a part of the allowance is used, so that a grammar is not refused for them.
    const size_t left = budget_->limits().states - draft_.states.size();
    const bool is_small = sizes_.rule(rule) <= kMaxInlineStates && left > budget_->limits().states * 3 / 4;
    const bool is_tail = next == final_ && left > budget_->limits().states / 2;
    if (is_tail || is_small || expressions_.rules()[rule].always_inline) {
      pending_.push_back({.state = state, .body = expressions_.rules()[rule].body, .next = next});
      return state;
    }
    const auto [index, is_new] = called_index_.try_emplace(rule, static_cast<uint32_t>(called_index_.size() + 1));
    if (is_new) called_.push_back(rule);
    draft_.states[state].edges.push_back({.kind = Edge::Kind::kCall, .rule = index->second, .target = next});
    return state;
  }

  const Expressions& expressions_;
  Budget* budget_;
  Sizes sizes_;
  Draft draft_;
  absl::Status status_;
  int intersections_ = 0;  // that we are inside
  std::deque<RuleId> called_;
  absl::flat_hash_map<RuleId, uint32_t> called_index_;  // rules of the draft; 0 is the root
  // Of the rule being built.
  uint32_t final_ = kNoState;
  absl::flat_hash_map<uint64_t, uint32_t> built_;  // (expression, following state) to state
  std::vector<Pending> pending_;
};

// Which states can reach the end of their rule: at all, or (`by_bytes` false) without a byte.
std::vector<bool> ReachEnd(const Draft& draft, bool by_bytes) {
  struct Caller {
    uint32_t from, rule, target;
  };
  const size_t num_states = draft.states.size();
  std::vector<std::vector<uint32_t>> reverse(num_states);
  std::vector<std::vector<Caller>> by_target(num_states), by_start(num_states);
  std::vector<bool> reaches(num_states, false);
  std::vector<uint32_t> work;
  const auto mark = [&](uint32_t state) {
    if (reaches[state]) return;
    reaches[state] = true;
    work.push_back(state);
  };
  for (uint32_t state = 0; state < num_states; ++state) {
    if (draft.states[state].final_rule != Automaton::kNotFinal) mark(state);
    for (const Edge& edge : draft.states[state].edges) {
      if (edge.kind == Edge::Kind::kCall) {
        const Caller caller = {state, edge.rule, edge.target};
        by_target[edge.target].push_back(caller);
        by_start[draft.rule_starts[edge.rule]].push_back(caller);
      } else if (edge.kind == Edge::Kind::kEmpty || by_bytes) {
        reverse[edge.target].push_back(state);
      }
    }
  }
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    for (const uint32_t from : reverse[state]) mark(from);
    for (const Caller& caller : by_target[state]) {
      if (reaches[draft.rule_starts[caller.rule]]) mark(caller.from);
    }
    for (const Caller& caller : by_start[state]) {
      if (reaches[caller.target]) mark(caller.from);
    }
  }
  return reaches;
}

// Removes edges to states and rules that lead nowhere, and skips states that only pass on.
void Trim(Draft* draft, const std::vector<bool>& useful) {
  for (Draft::State& state : draft->states) {
    const auto leads_nowhere = [&](const Edge& edge) {
      return !useful[edge.target] || (edge.kind == Edge::Kind::kCall && !useful[draft->rule_starts[edge.rule]]);
    };
    state.edges.erase(std::remove_if(state.edges.begin(), state.edges.end(), leads_nowhere), state.edges.end());
  }
  const auto skip = [&](uint32_t state) {
    // The bound ends loops of empty steps.
    for (int steps = 0; steps < 64; ++steps) {
      const Draft::State& at = draft->states[state];
      if (at.final_rule != Automaton::kNotFinal || at.edges.size() != 1) break;
      if (at.edges[0].kind != Edge::Kind::kEmpty) break;
      state = at.edges[0].target;
    }
    return state;
  };
  for (Draft::State& state : draft->states) {
    for (Edge& edge : state.edges) edge.target = skip(edge.target);
  }
  for (uint32_t& start : draft->rule_starts) start = skip(start);
}

// New numbers of the states that the rules reach, or kNoState.
std::vector<uint32_t> NumberReachable(const Draft& draft, uint32_t* count) {
  std::vector<uint32_t> number(draft.states.size(), kNoState);
  std::vector<uint32_t> work;
  *count = 0;
  const auto visit = [&](uint32_t state) {
    if (number[state] != kNoState) return;
    number[state] = (*count)++;
    work.push_back(state);
  };
  for (const uint32_t start : draft.rule_starts) visit(start);
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    for (const Edge& edge : draft.states[state].edges) visit(edge.target);
  }
  return number;
}

void SetByteClasses(const Draft& draft, Automaton* automaton) {
  std::array<bool, 257> border = {};
  for (const Draft::State& state : draft.states) {
    for (const Edge& edge : state.edges) {
      if (edge.kind != Edge::Kind::kByte) continue;
      border[edge.lo] = true;
      border[edge.hi + 1] = true;
    }
  }
  int current = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte > 0 && border[byte]) ++current;
    automaton->byte_class[byte] = static_cast<uint8_t>(current);
  }
  automaton->num_classes = current + 1;
}

Automaton Pack(const Draft& draft, const std::vector<bool>& nullable) {
  Automaton automaton;
  SetByteClasses(draft, &automaton);
  uint32_t count = 0;
  const std::vector<uint32_t> number = NumberReachable(draft, &count);
  std::vector<uint32_t> order(count);
  for (uint32_t state = 0; state < draft.states.size(); ++state) {
    if (number[state] != kNoState) order[number[state]] = state;
  }
  const auto begin = [&] {
    automaton.states.push_back({.bytes = static_cast<uint32_t>(automaton.byte_edges.size()),
                                .empties = static_cast<uint32_t>(automaton.empty_edges.size()),
                                .calls = static_cast<uint32_t>(automaton.call_edges.size())});
  };
  for (const uint32_t state : order) {
    begin();
    automaton.states.back().final_rule = draft.states[state].final_rule;
    for (const Edge& edge : draft.states[state].edges) {
      const uint32_t target = number[edge.target];
      if (edge.kind == Edge::Kind::kByte) {
        automaton.byte_edges.push_back({automaton.byte_class[edge.lo], automaton.byte_class[edge.hi], target});
      } else if (edge.kind == Edge::Kind::kEmpty) {
        automaton.empty_edges.push_back(target);
      } else {
        automaton.call_edges.push_back({edge.rule, target});
      }
    }
  }
  begin();
  for (const uint32_t start : draft.rule_starts) {
    automaton.rules.push_back({.start = number[start], .nullable = nullable[start]});
  }
  return automaton;
}

}  // namespace

absl::StatusOr<Automaton> BuildAutomaton(const Expressions& expressions, Expr root, Budget* budget) {
  HADAL_ASSIGN_OR_RETURN(Draft draft, Builder(expressions, budget).Build(root));
  const std::vector<bool> useful = ReachEnd(draft, true);
  if (!useful[draft.rule_starts[0]]) return InvalidArgument("no text can satisfy it");
  Trim(&draft, useful);
  return Pack(draft, ReachEnd(draft, false));
}

}  // namespace hadal::guided
