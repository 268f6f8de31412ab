#include "text/output_parser_input.h"

#include <cstdint>
#include <span>

namespace hadal::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Control {
  char symbol;
  std::string_view text;
};
// No text is a prefix of another, so at most one of them matches at a place.
constexpr Control kControls[] = {
    {kSymbolDsml, kDsmlText},       {kSymbolThinkEnd, kThinkEndText},     {kSymbolThink, kThinkText},
    {kSymbolEos, kEosText},         {kSymbolCallsBegin, kCallsBeginText}, {kSymbolCallBegin, kCallBeginText},
    {kSymbolCallSep, kCallSepText}, {kSymbolCallEnd, kCallEndText},       {kSymbolCallsEnd, kCallsEndText}};

// Those of DSML stand first, those of the other markup follow; they share the middle.
std::span<const Control> ControlsOf(bool tokens) {
  constexpr std::span<const Control> kAll = kControls;
  return tokens ? kAll.subspan(1) : kAll.first(4);
}

// Continuation bytes that may follow `lead` as its first; false if lead starts no character of several bytes
// (Unicode 15, table 3-7).
bool LeadRange(uint8_t lead, int* length, uint8_t* low, uint8_t* high) {
  *low = 0x80;
  *high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    *length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    *length = 3;
    if (lead == 0xE0) *low = 0xA0;
    if (lead == 0xED) *high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    *length = 4;
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::string_view SymbolText(char symbol) {
  for (const Control& control : kControls) {
    if (control.symbol == symbol) return control.text;
  }
  return {};
}

void AppendSymbolsAsText(std::string_view symbols, std::string* out) {
  for (const char c : symbols) {
    if (IsControlSymbol(c)) {
      *out += SymbolText(c);
    } else {
      *out += c;
    }
  }
}

void SymbolScanner::Sanitize(std::string_view bytes) {
  for (const char c : bytes) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (!partial_.empty()) {
      int length = 0;
      uint8_t low = 0, high = 0;
      LeadRange(static_cast<uint8_t>(partial_[0]), &length, &low, &high);
      if (partial_.size() > 1) low = 0x80, high = 0xBF;
      if (byte >= low && byte <= high) {
        partial_ += c;
        if (partial_.size() == length) {
          text_ += partial_;
          partial_.clear();
        }
        continue;
      }
      text_ += kReplacement;
      partial_.clear();
    }
    int length = 0;
    uint8_t low = 0, high = 0;
    if (byte < 0x80) {
      text_ += c;
    } else if (LeadRange(byte, &length, &low, &high)) {
      partial_ = c;
    } else {
      text_ += kReplacement;
    }
  }
}

void SymbolScanner::Match(std::string* symbols) {
  const std::string_view text = text_;
  size_t i = 0;
  while (i < text.size()) {
    if (text[i] != '<' && text[i] != kDsmlText[0]) {
      *symbols += text[i++];
      continue;
    }
    const std::string_view rest = text.substr(i);
    bool could_match = false;
    const Control* match = nullptr;
    for (const Control& control : ControlsOf(tokens_)) {
      if (rest.starts_with(control.text)) match = &control;
      could_match = could_match || control.text.starts_with(rest);
    }
    if (match != nullptr) {
      *symbols += match->symbol;
      i += match->text.size();
    } else if (could_match) {
      break;
    } else {
      *symbols += text[i++];
    }
  }
  text_.erase(0, i);
}

void SymbolScanner::Push(std::string_view bytes, Origin origin, std::string* symbols) {
  if (origin == Origin::kUnknown) {
    Sanitize(bytes);
    Match(symbols);
    return;
  }
  // What was held back can no longer become a token together with text of another origin.
  *symbols += text_;
  text_.clear();
  if (origin == Origin::kControl) {
    if (!partial_.empty()) *symbols += kReplacement;
    partial_.clear();
    for (const Control& control : ControlsOf(tokens_)) {
      if (bytes == control.text) {
        *symbols += control.symbol;
        return;
      }
    }
  }
  Sanitize(bytes);
  *symbols += text_;
  text_.clear();
}

void SymbolScanner::Finish(std::string* symbols) {
  partial_.clear();
  *symbols += text_;
  text_.clear();
}

}  // namespace hadal::text
