// Regular expressions over bytes by Brzozowski's derivatives: slow, and obviously right. What Compile is held against.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <string_view>

namespace hadal::guided::test {

struct Regular;
using RegularPtr = std::shared_ptr<const Regular>;

struct Regular {
  enum class Kind { kNever, kEmpty, kByte, kSequence, kChoice, kStar };
  Kind kind = Kind::kNever;
  char byte = 0;
  RegularPtr a, b;
};

inline RegularPtr MakeRegular(Regular::Kind kind, char byte = 0, RegularPtr a = nullptr, RegularPtr b = nullptr) {
  return std::make_shared<const Regular>(Regular{kind, byte, std::move(a), std::move(b)});
}

// Keep "matches nothing" recognisable: only kNever does.
inline RegularPtr Then(const RegularPtr& a, const RegularPtr& b) {
  using Kind = Regular::Kind;
  if (a->kind == Kind::kNever || b->kind == Kind::kEmpty) return a;
  if (b->kind == Kind::kNever || a->kind == Kind::kEmpty) return b;
  return MakeRegular(Kind::kSequence, 0, a, b);
}
inline RegularPtr Either(const RegularPtr& a, const RegularPtr& b) {
  using Kind = Regular::Kind;
  if (a->kind == Kind::kNever) return b;
  if (b->kind == Kind::kNever) return a;
  return MakeRegular(Kind::kChoice, 0, a, b);
}

inline bool Nullable(const RegularPtr& r) {
  switch (r->kind) {
    case Regular::Kind::kEmpty:
    case Regular::Kind::kStar:
      return true;
    case Regular::Kind::kSequence:
      return Nullable(r->a) && Nullable(r->b);
    case Regular::Kind::kChoice:
      return Nullable(r->a) || Nullable(r->b);
    default:
      return false;
  }
}

inline RegularPtr Derive(const RegularPtr& r, char byte) {
  static const RegularPtr never = MakeRegular(Regular::Kind::kNever), empty = MakeRegular(Regular::Kind::kEmpty);
  switch (r->kind) {
    case Regular::Kind::kByte:
      return r->byte == byte ? empty : never;
    case Regular::Kind::kSequence: {
      const RegularPtr first = Then(Derive(r->a, byte), r->b);
      return Nullable(r->a) ? Either(first, Derive(r->b, byte)) : first;
    }
    case Regular::Kind::kChoice:
      return Either(Derive(r->a, byte), Derive(r->b, byte));
    case Regular::Kind::kStar:
      return Then(Derive(r->a, byte), r);
    default:
      return never;
  }
}

inline RegularPtr DeriveAll(RegularPtr r, std::string_view text) {
  for (const char c : text) r = Derive(r, c);
  return r;
}

// A random expression and the same as a pattern.
struct RandomRegex {
  RegularPtr regular;
  std::string pattern;
};

inline RegularPtr RegularText(std::string_view text) {
  RegularPtr r = MakeRegular(Regular::Kind::kEmpty);
  for (const char c : text) r = Then(r, MakeRegular(Regular::Kind::kByte, c));
  return r;
}

inline RandomRegex MakeRandomRegex(std::mt19937* random, int depth) {
  const auto below = [&](int bound) { return static_cast<int>((*random)() % static_cast<unsigned>(bound)); };
  static constexpr const char* kChars[] = {"a", "b", "c", "é", "è", "€"};
  if (depth == 0 || below(6) == 0) {
    if (below(3) > 0) {
      const std::string c = kChars[below(6)];
      return {RegularText(c), c};
    }
    // A class of two.
    const std::string c = kChars[below(6)], d = kChars[below(6)];
    return {Either(RegularText(c), RegularText(d)), "[" + c + d + "]"};
  }
  const RandomRegex a = MakeRandomRegex(random, depth - 1);
  switch (below(5)) {
    case 0: {
      const RandomRegex b = MakeRandomRegex(random, depth - 1);
      return {Either(a.regular, b.regular), "(" + a.pattern + "|" + b.pattern + ")"};
    }
    case 1:
      return {MakeRegular(Regular::Kind::kStar, 0, a.regular), "(" + a.pattern + ")*"};
    case 2: {
      const int min = below(3), more = below(3);
      RegularPtr r = MakeRegular(Regular::Kind::kEmpty);
      for (int i = 0; i < min; ++i) r = Then(r, a.regular);
      for (int i = 0; i < more; ++i) r = Then(r, Either(MakeRegular(Regular::Kind::kEmpty), a.regular));
      return {r, "(" + a.pattern + "){" + std::to_string(min) + "," + std::to_string(min + more) + "}"};
    }
    default: {
      const RandomRegex b = MakeRandomRegex(random, depth - 1);
      return {Then(a.regular, b.regular), a.pattern + b.pattern};
    }
  }
}

}  // namespace hadal::guided::test
