// The part of the output parser that reads calls written in control tokens: V3.1's
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>...<｜tool▁calls▁end｜>
// and the form of V3 and R1, where "function" stands before the separator and NAME, a newline and a fenced object
// behind it. Each form may have a fence or none.
#include <utility>

#include "text/output_parser.h"

namespace hadal::text {
namespace {

constexpr size_t kMaxNamePartBytes = 4096;  // of what stands before the arguments

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

// Whether an object may still follow, or none at all: whitespace, "```", a language, whitespace, perhaps "```" again.
bool IsFenceStart(std::string_view text) {
  size_t i = 0;
  const auto skip = [&](auto&& skips, size_t most) {
    size_t n = 0;
    while (i < text.size() && n < most && skips(text[i])) ++i, ++n;
    return n;
  };
  const auto tick = [](char c) { return c == '`'; };
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  skip(IsSpace, text.size());
  if (skip(tick, 3) == 3) {
    skip(letter, text.size());
    skip(IsSpace, text.size());
    skip(tick, 3);
    skip(IsSpace, text.size());
  }
  return i == text.size();
}

}  // namespace

void OutputParser::FeedTokens(char c) {
  if (place_ == Place::kDone) return;
  switch (c) {
    case kSymbolCallsBegin:
    case kSymbolCallBegin:
      LeaveTokenCall();
      EnterTools();
      markup_ += c;
      if (c == kSymbolCallBegin) {
        header_.clear();
        lex_ = Lex::kCallHeader;
      } else if (place_ == Place::kContent) {
        place_ = Place::kBlock;
        in_block_ = true;
      } else {
        broken_ = true;  // a block in a block
      }
      return;
    case kSymbolCallEnd:
      LeaveTokenCall();
      markup_ += c;
      return;
    case kSymbolCallsEnd:
      LeaveTokenCall();
      markup_ += c;
      if (in_block_ || calls_begun_ > 0) place_ = Place::kDone;
      in_block_ = false;
      return;
    default:
      break;
  }
  switch (lex_) {
    case Lex::kCallHeader:
    case Lex::kCallName:
      return FeedCallHeader(c);
    case Lex::kCallLead:
    case Lex::kCallObject:
    case Lex::kCallBody:
      return FeedCallArguments(c);
    default:
      break;
  }
  if (c == kSymbolCallSep) {
    markup_ += c;  // outside a call it says nothing
  } else if (c == kSymbolThinkEnd) {
    ThinkEnd();
  } else if (c == kSymbolThink && place_ == Place::kContent && at_start_) {
    // Behind a tool result the prompt opens nothing: R1 opens its reasoning itself.
    visible_.clear();
    place_ = Place::kReasoning;
  } else {
    Text(c);
  }
}

// A call that is open is over: by its end, or because the next one or the end of the block stands there.
void OutputParser::LeaveTokenCall() {
  if (lex_ == Lex::kCallHeader || lex_ == Lex::kCallName) GiveUpInvoke();
  lex_ = Lex::kText;
  LeaveInvoke();
}

// What stands before the arguments: the name, or "function" and the name.
void OutputParser::FeedCallHeader(char c) {
  const bool fenced = options_.markup == CallMarkup::kFencedTokens;
  const bool named = !Trim(header_).empty();
  if (c == kSymbolCallSep && lex_ == Lex::kCallHeader) {
    markup_ += c;
    if (!fenced) return OpenTokenCall();
    header_.clear();
    lex_ = Lex::kCallName;
    return;
  }
  if (lex_ == Lex::kCallName && named && (c == '\n' || c == '`' || c == '{')) {
    OpenTokenCall();
    return FeedSymbol(c);
  }
  markup_ += c;
  header_ += c;
  if (IsControlSymbol(c) || header_.size() > kMaxNamePartBytes) GiveUpInvoke();
}

void OutputParser::OpenTokenCall() {
  const std::string name(Trim(header_));
  header_.clear();
  if (!NameAllowed(name)) return GiveUpInvoke();
  OpenCall(name);
  lex_ = Lex::kCallLead;
}

void OutputParser::FeedCallArguments(char c) {
  markup_ += c;
  const std::string_view text = IsControlSymbol(c) ? SymbolText(c) : std::string_view(&c, 1);
  switch (lex_) {
    case Lex::kCallLead:
      if (c == '{') {
        object_.emplace();
        lex_ = Lex::kCallObject;
        break;
      }
      header_ += text;
      if (header_.size() <= kMaxNamePartBytes && IsFenceStart(header_)) return;
      arguments_->Body(std::exchange(header_, {}));
      lex_ = Lex::kCallBody;
      return;
    case Lex::kCallBody:
      return arguments_->Body(text);
    default:
      break;
  }
  if (object_->closed()) {
    broken_ |= !IsSpace(c) && c != '`';  // behind the object only its fence
    return;
  }
  std::string json;
  object_->Push(text, &json);
  EmitArguments(json);
}

}  // namespace hadal::text
