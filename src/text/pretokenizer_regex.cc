// Regex translation: \s, \S and the properties that newer Unicode versions extended.
#include "text/pretokenizer_regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace hadal::text {
namespace {

using Range = std::pair<uint32_t, uint32_t>;  // first and last code point

struct Additions {
  char category;
  std::vector<Range> ranges;
};

// Assigned in Unicode 15.0, 15.1 and 16.0, by general category (DerivedGeneralCategory.txt).
const std::vector<Additions>& AddedSinceUnicode14() {
  static const std::vector<Additions> kAdditions = {
      {'L', {{0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D4A, 0x10D65},
             {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x1123F, 0x11240}, {0x11380, 0x11389}, {0x1138B, 0x1138B},
             {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3},
             {0x11BC0, 0x11BE0}, {0x11F02, 0x11F02}, {0x11F04, 0x11F10}, {0x11F12, 0x11F33}, {0x1342F, 0x1342F},
             {0x13441, 0x13446}, {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF},
             {0x1B132, 0x1B132}, {0x1B155, 0x1B155}, {0x1DF25, 0x1DF2A}, {0x1E030, 0x1E06D}, {0x1E4D0, 0x1E4EB},
             {0x1E5D0, 0x1E5ED}, {0x1E5F0, 0x1E5F0}, {0x2B739, 0x2B739}, {0x2EBF0, 0x2EE5D}, {0x31350, 0x323AF}}},
      {'M', {{0x10D69, 0x10D6D}, {0x10EFC, 0x10EFF}, {0x11241, 0x11241}, {0x113B8, 0x113C0}, {0x113C2, 0x113C2},
             {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2}, {0x113E1, 0x113E2},
             {0x11F00, 0x11F01}, {0x11F03, 0x11F03}, {0x11F34, 0x11F3A}, {0x11F3E, 0x11F42}, {0x11F5A, 0x11F5A},
             {0x13440, 0x13440}, {0x13447, 0x13455}, {0x1611E, 0x1612F}, {0x1E08F, 0x1E08F}, {0x1E4EC, 0x1E4EF},
             {0x1E5EE, 0x1E5EF}}},
      {'N',
       {{0x10D40, 0x10D49},
        {0x116D0, 0x116E3},
        {0x11BF0, 0x11BF9},
        {0x11F50, 0x11F59},
        {0x16130, 0x16139},
        {0x16D70, 0x16D79},
        {0x1CCF0, 0x1CCF9},
        {0x1D2C0, 0x1D2D3},
        {0x1E4F0, 0x1E4F9},
        {0x1E5F1, 0x1E5FA}}},
      {'P',
       {{0x1B4E, 0x1B4F},
        {0x1B7F, 0x1B7F},
        {0x10D6E, 0x10D6E},
        {0x113D4, 0x113D5},
        {0x113D7, 0x113D8},
        {0x11B00, 0x11B09},
        {0x11BE1, 0x11BE1},
        {0x11F43, 0x11F4F},
        {0x16D6D, 0x16D6F},
        {0x1E5FF, 0x1E5FF}}},
      {'S', {{0x2427, 0x2429},   {0x2FFC, 0x2FFF},   {0x10D8E, 0x10D8F}, {0x1CC00, 0x1CCEF}, {0x1CD00, 0x1CEB3},
             {0x1F6DC, 0x1F6DC}, {0x1F774, 0x1F776}, {0x1F77B, 0x1F77F}, {0x1F7D9, 0x1F7D9}, {0x1F8B2, 0x1F8BB},
             {0x1F8C0, 0x1F8C1}, {0x1FA75, 0x1FA77}, {0x1FA87, 0x1FA89}, {0x1FA8F, 0x1FA8F}, {0x1FAAD, 0x1FAAF},
             {0x1FABB, 0x1FABF}, {0x1FAC6, 0x1FAC6}, {0x1FACE, 0x1FACF}, {0x1FADA, 0x1FADC}, {0x1FADF, 0x1FADF},
             {0x1FAE8, 0x1FAE9}, {0x1FAF7, 0x1FAF8}, {0x1FBCB, 0x1FBEF}}},
  };
  return kAdditions;
}

// `\x{..}-\x{..}...` for a one-letter property, empty if it has no additions.
std::string AddedRanges(char category) {
  std::string ranges;
  for (const Additions& additions : AddedSinceUnicode14()) {
    if (additions.category != category) continue;
    for (const auto& [first, last] : additions.ranges) ranges += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", first, last);
  }
  return ranges;
}

// All additions as one sorted list.
std::vector<Range> SortedAdditions() {
  std::vector<Range> sorted;
  for (const Additions& additions : AddedSinceUnicode14()) {
    sorted.insert(sorted.end(), additions.ranges.begin(), additions.ranges.end());
  }
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

std::string TranslateRegex(std::string_view pattern, UnicodeVersion version) {
  std::string result;
  bool in_class = false;
  size_t class_start = 0;  // where a `]` would still be an ordinary character
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const std::string_view rest = pattern.substr(i + 1);
      if (rest[0] == 's' || rest[0] == 'S') {
        result += rest[0] == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
        i += 1;
      } else if (rest.size() >= 4 && rest.starts_with("p{") && rest[3] == '}') {
        const std::string property =
            fmt::format("\\p{{{}}}{}", rest[2], version == UnicodeVersion::k16 ? AddedRanges(rest[2]) : "");
        result += in_class ? property : fmt::format("[{}]", property);
        i += 4;
      } else {
        // Any other escape stays; as a pair, so that in `\\s` the s is no escape.
        result += pattern.substr(i, 2);
        i += 1;
      }
      continue;
    }
    result += c;
    if (!in_class && c == '[') {
      in_class = true;
      if (pattern.substr(i + 1).starts_with('^')) {
        result += '^';
        ++i;
      }
      class_start = i + 1;
    } else if (in_class && c == '[' && pattern.substr(i + 1).starts_with(':')) {
      // [:alpha:]: its own bracket does not end the class.
      const size_t end = pattern.find(":]", i + 2);
      if (end == std::string_view::npos) continue;
      result += pattern.substr(i + 1, end + 1 - i);
      i = end + 1;
    } else if (in_class && c == ']' && i > class_start) {
      in_class = false;
    }
  }
  return result;
}

bool HasNewerCharacters(std::string_view text) {
  static const std::vector<Range> kAdditions = SortedAdditions();
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  for (size_t i = 0; i < text.size();) {
    const uint32_t lead = byte(i);
    if (lead < 0x80) {
      uint64_t word = 0;
      if (i + 8 <= text.size()) std::memcpy(&word, text.data() + i, 8);
      i += i + 8 <= text.size() && (word & 0x8080808080808080u) == 0 ? 8 : 1;
      continue;
    }
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // Those of three bytes start with E1, E2 or EA: not with what most Chinese, Japanese and Korean text consists of.
    if (length == 4 || lead == 0xE1 || lead == 0xE2 || lead == 0xEA) {
      uint32_t character = lead & (0x7F >> length);
      for (size_t k = 1; k < length; ++k) character = character << 6 | (byte(i + k) & 0x3F);
      const auto after = std::upper_bound(kAdditions.begin(), kAdditions.end(), Range(character, 0xFFFFFFFF));
      if (after != kAdditions.begin() && std::prev(after)->second >= character) return true;
    }
    i += length;
  }
  return false;
}

}  // namespace hadal::text
