// First stage of the output parser: bytes as they are decoded become a stream in which text is valid UTF-8 and every
// control token is one byte that UTF-8 cannot contain. The second stage then never meets half a marker or half a
// character, and text that merely spells a control token is told from the token where the caller knows the difference.
// Internal to the library.
#pragma once

#include <string>
#include <string_view>

#include "text/dsml.h"

namespace hadal::text {

// Where a piece of output comes from.
enum class Origin {
  kUnknown,   // plain text of unknown tokens: whatever spells a control token is one
  kOrdinary,  // text of ordinary vocabulary entries: never control, whatever it spells
  kControl,   // exactly one control (added) token
};

// Control tokens in the symbol stream.
inline constexpr char kSymbolCallsEnd = '\xF7';
inline constexpr char kSymbolDsml = '\xF8';
inline constexpr char kSymbolThinkEnd = '\xF9';
inline constexpr char kSymbolThink = '\xFA';
inline constexpr char kSymbolEos = '\xFB';
inline constexpr char kSymbolCallsBegin = '\xFC';
inline constexpr char kSymbolCallBegin = '\xFD';
inline constexpr char kSymbolCallSep = '\xFE';
inline constexpr char kSymbolCallEnd = '\xFF';

inline bool IsControlSymbol(char c) { return static_cast<unsigned char>(c) >= 0xF7; }
// The symbol's spelling.
std::string_view SymbolText(char symbol);
// Appends symbols as the text they stand for.
void AppendSymbolsAsText(std::string_view symbols, std::string* out);

class SymbolScanner {
 public:
  // Only the tokens of that markup are control tokens, with the end token and those of thinking.
  explicit SymbolScanner(CallMarkup markup) : tokens_(markup != CallMarkup::kDsml) {}

  // Appends what is certain to `symbols`; keeps back an unfinished character and what could still become a control
  // token. Bytes that are no UTF-8 become U+FFFD, one for each maximal invalid sequence.
  void Push(std::string_view bytes, Origin origin, std::string* symbols);
  // End of output: what was kept back. An unfinished character at the very end is dropped: a completion cut at its
  // length limit ends there, and the history that is sent back should stay clean (serving-runtime 5.6).
  void Finish(std::string* symbols);

 private:
  void Sanitize(std::string_view bytes);
  void Match(std::string* symbols);

  bool tokens_;
  std::string partial_;  // at most 3 bytes of an unfinished character
  std::string text_;     // sanitised, not yet matched
};

}  // namespace hadal::text
