// UTF-8 as the tokenizer needs it: where text is valid, and how bytes that are not become U+FFFD.
//
// "Valid" is the Unicode standard's well-formed UTF-8 (table 3-7): no overlong forms, no surrogates, nothing above
// U+10FFFF. Replacement follows the standard's "maximal subpart" practice (section 3.9, also WHATWG's decoder): the
// longest start of a character that could have been valid becomes one U+FFFD, and so does each other stray byte.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hadal::text {

// What lies at the front of some bytes.
struct Utf8Step {
  enum class Kind {
    kChar,       // one valid character
    kInvalid,    // a maximal subpart that no further byte can complete: one U+FFFD
    kTruncated,  // the bytes end inside a character that is valid so far
  };
  Kind kind;
  size_t length;  // in bytes, at least 1
};

// Looks at the front of `bytes`, which must not be empty.
Utf8Step NextUtf8(std::string_view bytes);

// Length in bytes of the longest prefix of `bytes` that is valid UTF-8 as a whole.
size_t ValidUtf8Prefix(std::string_view bytes);

// Appends `bytes` to `out` with everything that is not valid UTF-8 replaced; a truncated end becomes one U+FFFD.
void AppendLossyUtf8(std::string_view bytes, std::string* out);

// The encoding of U+FFFD.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace hadal::text
