#include "guided/char_set.h"

#include <algorithm>
#include <string>

namespace hadal::guided {
namespace {

constexpr uint32_t kSurrogateBegin = 0xD800;
constexpr uint32_t kSurrogateEnd = 0xDFFF;

void Normalize(std::vector<CharSet::Range>* ranges) {
  std::sort(ranges->begin(), ranges->end());
  std::vector<CharSet::Range> merged;
  for (const auto& [lo, hi] : *ranges) {
    if (lo > hi) continue;
    if (!merged.empty() && lo <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, hi);
    } else {
      merged.emplace_back(lo, hi);
    }
  }
  *ranges = std::move(merged);
}

// Appends the UTF-8 of lo..hi, whose encodings have the same length, to `options`: a byte range per position where that
// is exact, else split where the tails of the encodings run over.
void AddSameLength(const std::string& lo, const std::string& hi, size_t at, std::vector<Expr> prefix,
                   Expressions* expressions, std::vector<Expr>* options) {
  const auto byte = [](char c) { return static_cast<uint8_t>(c); };
  if (at + 1 == lo.size()) {
    prefix.push_back(expressions->ByteRange(byte(lo[at]), byte(hi[at])));
    options->push_back(expressions->Sequence(std::move(prefix)));
    return;
  }
  if (lo[at] == hi[at]) {
    prefix.push_back(expressions->ByteRange(byte(lo[at]), byte(lo[at])));
    return AddSameLength(lo, hi, at + 1, std::move(prefix), expressions, options);
  }
  const std::string lowest_tail(lo.size() - at - 1, '\x80'), highest_tail(lo.size() - at - 1, '\xBF');
  uint8_t first = byte(lo[at]), last = byte(hi[at]);
  const auto edge = [&](uint8_t lead, const std::string& from, const std::string& to) {
    std::vector<Expr> with_lead = prefix;
    with_lead.push_back(expressions->ByteRange(lead, lead));
    AddSameLength(from, to, at + 1, std::move(with_lead), expressions, options);
  };
  if (lo.substr(at + 1) != lowest_tail) edge(first++, lo, lo.substr(0, at + 1) + highest_tail);
  if (hi.substr(at + 1) != highest_tail) edge(last--, hi.substr(0, at + 1) + lowest_tail, hi);
  if (first > last) return;
  prefix.push_back(expressions->ByteRange(first, last));
  for (size_t i = at + 1; i < lo.size(); ++i) prefix.push_back(expressions->ByteRange(0x80, 0xBF));
  options->push_back(expressions->Sequence(std::move(prefix)));
}

}  // namespace

CharSet::CharSet(const std::vector<Range>& ranges) {
  for (const auto& [lo, hi] : ranges) {
    ranges_.emplace_back(lo, std::min(hi, kSurrogateBegin - 1));
    ranges_.emplace_back(std::max(lo, kSurrogateEnd + 1), std::min(hi, kMaxChar));
  }
  Normalize(&ranges_);
}

CharSet CharSet::Or(const CharSet& other) const {
  std::vector<Range> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CharSet(both);
}

CharSet CharSet::Not() const {
  std::vector<Range> gaps;
  uint32_t next = 0;
  for (const auto& [lo, hi] : ranges_) {
    if (lo > next) gaps.emplace_back(next, lo - 1);
    next = hi + 1;
  }
  if (next <= kMaxChar) gaps.emplace_back(next, kMaxChar);
  return CharSet(gaps);
}

Expr Utf8Expr(const CharSet& set, Expressions* expressions) {
  static constexpr CharSet::Range kLengths[] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, kMaxChar}};
  std::vector<Expr> options;
  for (const auto& [lo, hi] : set.ranges()) {
    for (const auto& [length_lo, length_hi] : kLengths) {
      const uint32_t from = std::max(lo, length_lo), to = std::min(hi, length_hi);
      if (from <= to) AddSameLength(ToUtf8(from), ToUtf8(to), 0, {}, expressions, &options);
    }
  }
  return expressions->Choice(options);
}

bool TakeUtf8(std::string_view* text, uint32_t* c) {
  if (text->empty()) return false;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>((*text)[i]); };
  const uint8_t lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0 || text->size() < length) return false;
  uint32_t value = length == 1 ? lead : lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return false;
    value = value << 6 | (byte(i) & 0x3F);
  }
  static constexpr uint32_t kShortest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kShortest[length] || value > kMaxChar) return false;
  if (value >= kSurrogateBegin && value <= kSurrogateEnd) return false;
  *c = value;
  text->remove_prefix(length);
  return true;
}

std::string ToUtf8(uint32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
}

size_t FindInvalidUtf8(std::string_view text) {
  std::string_view rest = text;
  uint32_t c = 0;
  while (!rest.empty()) {
    if (!TakeUtf8(&rest, &c)) return text.size() - rest.size();
  }
  return std::string_view::npos;
}

}  // namespace hadal::guided
