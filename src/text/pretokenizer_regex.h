// Translates a regex of tokenizer.json to PCRE2's dialect, so that both match the same text.
//
// The files are written for Oniguruma, the engine of the reference library. For the constructs that pre-tokenizers use
// the two agree except here:
// - `\s` and `\S` mean the White_Space property; PCRE2's own also take U+180E.
// - PCRE2 10.42 knows Unicode 14, the reference Unicode 16. The 99 ranges of characters assigned since (U+1FA77 PINK
// HEART
//   among them) belong to \p{L}, \p{M}, \p{N}, \p{P} and \p{S} too. Long classes are slow to match and these characters
//   are rare, so a regex is translated twice, and text says which translation it needs.
// Oniguruma's own syntax (\h, nested classes, absent operators) is not translated.
#pragma once

#include <string>
#include <string_view>

namespace hadal::text {

enum class UnicodeVersion {
  kOfPcre2,  // for text without newer characters
  k16,       // for any text
};

std::string TranslateRegex(std::string_view pattern, UnicodeVersion version);

// True if `text`, which must be valid UTF-8, has a character assigned after Unicode 14 and up to 16.
bool HasNewerCharacters(std::string_view text);

}  // namespace hadal::text
