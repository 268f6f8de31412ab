// The one representation all front ends produce: expressions over bytes, with rules that may refer to each other
// (a context-free grammar whose right sides are regular expressions). automaton.h compiles it.
//
// Equal expressions have equal ids, so front ends may build the same thing twice at no cost, and what is simple stays
// simple: kNoText in a sequence makes the sequence kNoText, empty parts vanish, repeating the empty text is the empty
// text.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace hadal::guided {

using Expr = uint32_t;
using RuleId = uint32_t;

inline constexpr uint32_t kUnlimited = std::numeric_limits<uint32_t>::max();
inline constexpr Expr kNoText = 0;     // matches no text
inline constexpr Expr kEmptyText = 1;  // matches the empty text only

class Expressions {
 public:
  enum class Kind : uint8_t { kNever, kEmpty, kByteRange, kSequence, kChoice, kRepeat, kIntersection, kRule };

  struct Node {
    Kind kind = Kind::kNever;
    uint8_t lo = 0, hi = 0;               // kByteRange
    uint32_t min = 0, max = 0;            // kRepeat; max may be kUnlimited
    std::vector<uint32_t> children = {};  // expressions; of kRule: the rule
    bool operator==(const Node&) const = default;
  };

  struct Rule {
    std::string name;  // for messages
    Expr body = kNoText;
    // Its text always becomes part of the automaton that refers to it; must not be recursive. Otherwise small rules do,
    // and calls in tail position, and the rest is called (automaton.h).
    bool always_inline = false;
  };

  Expressions();
  Expressions(const Expressions&) = delete;
  Expressions& operator=(const Expressions&) = delete;

  Expr ByteRange(uint8_t lo, uint8_t hi);
  Expr Literal(std::string_view bytes);
  Expr Sequence(std::vector<Expr> parts);
  Expr Choice(const std::vector<Expr>& options);
  Expr Repeat(Expr part, uint32_t min, uint32_t max);
  Expr Optional(Expr part) { return Choice({kEmptyText, part}); }
  // Texts that match both. Neither side may contain a rule.
  Expr Intersection(Expr a, Expr b);

  RuleId DeclareRule(std::string name, bool always_inline = false);
  void DefineRule(RuleId rule, Expr body) { rules_[rule].body = body; }
  Expr Call(RuleId rule);

  const Node& node(Expr expr) const { return nodes_[expr]; }
  size_t size() const { return nodes_.size(); }
  const std::vector<Rule>& rules() const { return rules_; }

 private:
  struct Hash {
    const std::vector<Node>* nodes;
    size_t operator()(Expr expr) const;
  };
  struct Equal {
    const std::vector<Node>* nodes;
    bool operator()(Expr a, Expr b) const { return (*nodes)[a] == (*nodes)[b]; }
  };

  Expr Intern(Node node);

  std::vector<Node> nodes_;
  std::vector<Rule> rules_;
  absl::flat_hash_set<Expr, Hash, Equal> index_;
};

}  // namespace hadal::guided
