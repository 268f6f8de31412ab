#include "guided/expression.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"

namespace hadal::guided {

size_t Expressions::Hash::operator()(Expr expr) const {
  const Node& node = (*nodes)[expr];
  return absl::HashOf(static_cast<int>(node.kind), node.lo, node.hi, node.min, node.max, node.children);
}

Expressions::Expressions() : index_(0, Hash{&nodes_}, Equal{&nodes_}) {
  Intern({.kind = Kind::kNever});
  Intern({.kind = Kind::kEmpty});
}

Expr Expressions::Intern(Node node) {
  nodes_.push_back(std::move(node));
  const auto [found, inserted] = index_.insert(static_cast<Expr>(nodes_.size() - 1));
  if (!inserted) nodes_.pop_back();
  return *found;
}

Expr Expressions::ByteRange(uint8_t lo, uint8_t hi) {
  if (lo > hi) return kNoText;
  return Intern({.kind = Kind::kByteRange, .lo = lo, .hi = hi});
}

Expr Expressions::Literal(std::string_view bytes) {
  std::vector<Expr> parts;
  parts.reserve(bytes.size());
  for (const char c : bytes) parts.push_back(ByteRange(static_cast<uint8_t>(c), static_cast<uint8_t>(c)));
  return Sequence(std::move(parts));
}

Expr Expressions::Sequence(std::vector<Expr> parts) {
  if (std::find(parts.begin(), parts.end(), kNoText) != parts.end()) return kNoText;
  std::erase(parts, kEmptyText);
  if (parts.empty()) return kEmptyText;
  if (parts.size() == 1) return parts[0];
  return Intern({.kind = Kind::kSequence, .children = std::move(parts)});
}

Expr Expressions::Choice(const std::vector<Expr>& options) {
  std::vector<Expr> kept;
  absl::flat_hash_set<Expr> seen = {kNoText};
  for (const Expr option : options) {
    if (seen.insert(option).second) kept.push_back(option);
  }
  if (kept.empty()) return kNoText;
  if (kept.size() == 1) return kept[0];
  return Intern({.kind = Kind::kChoice, .children = std::move(kept)});
}

Expr Expressions::Repeat(Expr part, uint32_t min, uint32_t max) {
  if (min > max) return kNoText;
  if (max == 0 || part == kEmptyText) return kEmptyText;
  if (part == kNoText) return min == 0 ? kEmptyText : kNoText;
  if (min == 1 && max == 1) return part;
  return Intern({.kind = Kind::kRepeat, .min = min, .max = max, .children = {part}});
}

Expr Expressions::Intersection(Expr a, Expr b) {
  if (a == kNoText || b == kNoText) return kNoText;
  if (a == b) return a;
  return Intern({.kind = Kind::kIntersection, .children = {std::min(a, b), std::max(a, b)}});
}

RuleId Expressions::DeclareRule(std::string name, bool always_inline) {
  rules_.push_back({.name = std::move(name), .body = kNoText, .always_inline = always_inline});
  return static_cast<RuleId>(rules_.size() - 1);
}

Expr Expressions::Call(RuleId rule) { return Intern({.kind = Kind::kRule, .children = {rule}}); }

}  // namespace hadal::guided
