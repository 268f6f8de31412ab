// A grammar as the matcher runs it: one nondeterministic byte automaton per rule, whose edges are byte ranges, empty
// steps, and calls of rules (a recursive transition network). item_sets.h walks it.
//
// How the automata come about. Expressions are compiled from the back, each with the state that follows it, and the
// pair (expression, following state) is compiled once: alternatives that end alike share states, and the
// optional-property chains of JSON objects stay linear. A rule becomes part of the automaton that refers to it if it is
// small and not recursive, or if the reference is the last thing the automaton does; in the second case recursion
// becomes a loop, so `ws ::= " " ws | ""` needs no stack. Any other reference is a call.
//
// Every state that is left can still reach the end of its rule, and every rule that is called has texts: whatever the
// matcher has not thrown away can be completed, so "some state is left" is exactly "this is a prefix of some text".
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "guided/budget.h"
#include "guided/expression.h"

namespace hadal::guided {

struct Automaton {
  static constexpr uint32_t kNotFinal = 0xFFFFFFFF;

  struct ByteEdge {
    uint8_t lo, hi;  // classes of bytes, both ends belong to it
    uint32_t target;
  };
  struct CallEdge {
    uint32_t rule;
    uint32_t target;  // where to go on once the rule is complete
  };
  // Edges of all states behind one another; those of a state end where the next one's begin.
  struct State {
    uint32_t bytes = 0, empties = 0, calls = 0;
    uint32_t final_rule = kNotFinal;  // the rule that is complete here
  };
  struct Rule {
    uint32_t start = 0;
    bool nullable = false;  // the empty text is one of its texts
  };

  std::vector<State> states;  // and one more, for the ends
  std::vector<ByteEdge> byte_edges;
  std::vector<uint32_t> empty_edges;
  std::vector<CallEdge> call_edges;
  std::vector<Rule> rules;  // the first is the root
  // Bytes that no edge tells apart have the same class.
  std::array<uint8_t, 256> byte_class = {};
  int num_classes = 1;

  size_t num_states() const { return states.size() - 1; }
  std::span<const ByteEdge> bytes_of(uint32_t state) const {
    return {byte_edges.data() + states[state].bytes, byte_edges.data() + states[state + 1].bytes};
  }
  std::span<const uint32_t> empties_of(uint32_t state) const {
    return {empty_edges.data() + states[state].empties, empty_edges.data() + states[state + 1].empties};
  }
  std::span<const CallEdge> calls_of(uint32_t state) const {
    return {call_edges.data() + states[state].calls, call_edges.data() + states[state + 1].calls};
  }
};

// InvalidArgument if a limit is exceeded or if no text matches.
absl::StatusOr<Automaton> BuildAutomaton(const Expressions& expressions, Expr root, Budget* budget);

}  // namespace hadal::guided
