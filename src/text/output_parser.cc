#include "text/output_parser.h"

#include <utility>

namespace hadal::text {
namespace {

constexpr size_t kMaxNameBytes = 128;     // of tools that the request does not list
constexpr size_t kMaxHeaderBytes = 4096;  // of a tag's attributes
constexpr size_t kMaxTagWordBytes = 64;
constexpr size_t kMaxTagSpaces = 16;  // whitespace tolerated between an invoke's end and the next tag

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}
bool IsBlockWord(std::string_view word) { return word == "tool_calls" || word == "function_calls"; }

bool HasOddQuotes(std::string_view text) {
  bool odd = false;
  for (const char c : text) odd ^= c == '"';
  return odd;
}

// Takes `prefix` and optional spaces before it off the front.
bool TakeAttribute(std::string_view prefix, std::string_view* text) {
  while (!text->empty() && IsSpace(text->front())) text->remove_prefix(1);
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// The text of broken markup without its tags: a tag's name and attributes go with it, the quote of an unfinished
// name="... too, so that what the model meant to say remains.
std::string StripTags(std::string_view symbols) {
  std::string out;
  size_t i = 0;
  while (i < symbols.size()) {
    const std::string_view rest = symbols.substr(i);
    size_t tag = 0;
    if (rest.starts_with('<')) tag = rest.starts_with("</") ? 2 : 1;
    if (tag < rest.size() && rest[tag] == kSymbolDsml) {
      size_t end = tag + 1;
      while (end < rest.size() && IsWordChar(rest[end])) ++end;
      const size_t close = rest.find_first_of(">\n\xF8", end);
      if (close != rest.npos && rest[close] == '>') {
        end = close + 1;
      } else if (rest.substr(end).starts_with(" name=\"")) {
        end += std::string_view(" name=\"").size();
      }
      i += end;
      continue;
    }
    if (!IsControlSymbol(symbols[i])) out += symbols[i];
    ++i;
  }
  const size_t begin = out.find_first_not_of(" \t\r\n");
  if (begin == out.npos) return {};
  return out.substr(begin, out.find_last_not_of(" \t\r\n") + 1 - begin);
}

}  // namespace

absl::StatusOr<std::vector<ToolSpec>> ReadToolSpecs(const Json& tools) {
  std::vector<ToolSpec> specs;
  if (tools.is_null()) return specs;
  if (!tools.is_array()) return InvalidArgument("tools: expected an array, found {}", tools.type_name());
  for (size_t i = 0; i < tools.size(); ++i) {
    const auto function = tools[i].is_object() ? tools[i].find("function") : tools[i].end();
    if (function == tools[i].end() || !function->is_object()) {
      return InvalidArgument("tools[{}].function: expected an object", i);
    }
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string()) {
      return InvalidArgument("tools[{}].function.name: expected a string", i);
    }
    const auto parameters = function->find("parameters");
    specs.push_back({name->get<std::string>(), parameters == function->end() ? Json() : *parameters});
  }
  return specs;
}

OutputParser::OutputParser(ParserOptions options)
    : options_(std::move(options)),
      scanner_(options_.markup),
      place_(options_.starts_in_reasoning ? Place::kReasoning : Place::kContent) {}

std::vector<OutputEvent> OutputParser::Push(std::string_view bytes, Origin origin) {
  if (finished_ || ended_) return {};
  std::string symbols;
  scanner_.Push(bytes, origin, &symbols);
  Feed(symbols);
  return std::exchange(events_, {});
}

std::vector<OutputEvent> OutputParser::Finish(EndCause cause) {
  if (finished_) return {};
  if (!ended_) {
    std::string symbols;
    scanner_.Finish(&symbols);
    Feed(symbols);
  }
  finished_ = true;
  const bool stop = ended_ || cause == EndCause::kStop;
  FinishLexing(stop);
  FinishPlace(stop);
  return std::exchange(events_, {});
}

std::string OutputParser::BrokenMarkup() const {
  std::string text;
  if (broken_) AppendSymbolsAsText(markup_, &text);
  return text;
}

void OutputParser::Feed(std::string_view symbols) {
  for (const char c : symbols) {
    if (ended_) return;
    FeedSymbol(c);
  }
}

void OutputParser::FeedSymbol(char c) {
  if (c == kSymbolEos) {
    ended_ = true;
    return;
  }
  if (options_.markup != CallMarkup::kDsml) return FeedTokens(c);
  switch (lex_) {
    case Lex::kText:
      return FeedText(c);
    case Lex::kTagWord:
      return FeedTagWord(c);
    case Lex::kTagEnd:
      lex_ = Lex::kText;
      if (c == '>') {
        markup_ += c;
        return;
      }
      return FeedText(c);
    case Lex::kInvokeHeader:
      return FeedInvokeHeader(c);
    case Lex::kParameterHeader:
      return FeedParameterHeader(c);
    case Lex::kValue:
      return FeedValue(c);
    default:
      return;  // of calls in control tokens
  }
}

// --- Text outside tags -----------------------------------------------------------------------------------------------

void OutputParser::FeedText(char c) {
  if (place_ == Place::kDone) return;
  if (c == kSymbolDsml) {
    if (!less_.empty()) return BeginTag(less_.size() == 2);
    markup_ += c;  // a marker outside any tag says nothing
    return;
  }
  if (less_ == "<" && c == '/') {
    less_ += c;
    return;
  }
  for (const char held : std::exchange(less_, {})) Text(held);
  if (c == '<') {
    less_ = c;
  } else if (c == kSymbolThinkEnd) {
    ThinkEnd();
  } else {
    Text(c);
  }
}

void OutputParser::Text(char c) {
  if (place_ == Place::kBlock || place_ == Place::kSkip || place_ == Place::kInvoke) {
    markup_ += c;
    if (place_ == Place::kInvoke) {
      arguments_->Body(IsControlSymbol(c) ? SymbolText(c) : std::string_view(&c, 1));
    } else if (place_ == Place::kBlock && !IsSpace(c)) {
      broken_ = true;
    }
    return;
  }
  if (c == kSymbolThink && place_ == Place::kReasoning && at_start_) return;  // repeats the prompt's last token
  if (c == '\n' || (at_start_ && IsSpace(c))) {
    visible_ += c;
    return;
  }
  FlushVisible(/*trim_end=*/false);
  at_start_ = false;
  Emit(place_ == Place::kReasoning ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent,
       IsControlSymbol(c) ? SymbolText(c) : std::string_view(&c, 1));
}

// Passes on whitespace that was held back: without leading newlines at the start of a place, without trailing ones if
// what follows swallows them.
void OutputParser::FlushVisible(bool trim_end) {
  std::string_view text = visible_;
  if (at_start_) {
    while (text.starts_with('\n')) text.remove_prefix(1);
  }
  if (trim_end) {
    while (text.ends_with('\n')) text.remove_suffix(1);
  }
  Emit(place_ == Place::kReasoning ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent, text);
  visible_.clear();
}

void OutputParser::ThinkEnd() {
  if (place_ == Place::kReasoning) {
    FlushVisible(/*trim_end=*/true);
    place_ = Place::kContent;
    at_start_ = true;
  } else if (place_ == Place::kInvoke || place_ == Place::kBlock || place_ == Place::kSkip) {
    markup_ += kSymbolThinkEnd;
  }
}

// --- Tags ------------------------------------------------------------------------------------------------------------

// The first tag ends reasoning or content.
void OutputParser::EnterTools() {
  if (place_ == Place::kReasoning) {
    FlushVisible(/*trim_end=*/true);
    place_ = Place::kContent;
    at_start_ = true;
  } else if (place_ == Place::kContent) {
    if (at_start_) visible_.clear();  // whitespace alone is no content beside calls
    FlushVisible(/*trim_end=*/true);
  }
}

void OutputParser::BeginTag(bool close) {
  EnterTools();
  markup_ += std::exchange(less_, {});
  markup_ += kSymbolDsml;
  tag_close_ = close;
  word_.clear();
  lex_ = Lex::kTagWord;
}

void OutputParser::FeedTagWord(char c) {
  if (word_.empty() && (c == ' ' || c == '\t')) {
    markup_ += c;
    return;
  }
  if (IsWordChar(c) && word_.size() < kMaxTagWordBytes) {
    markup_ += c;
    word_ += c;
    return;
  }
  EndTagWord();
  FeedSymbol(c);
}

// The name of a tag is complete; decides what the rest of it is.
void OutputParser::EndTagWord() {
  lex_ = Lex::kTagEnd;
  if (tag_close_) {
    if (word_ == "invoke") {
      LeaveInvoke();
    } else if (IsBlockWord(word_)) {
      if (call_.has_value()) CloseCall(/*complete=*/true);
      const bool inside = in_block_ || calls_begun_ > 0 || place_ == Place::kBlock || place_ == Place::kSkip;
      if (inside) place_ = Place::kDone;
      in_block_ = false;
    }
    return;
  }
  if (word_ == "invoke") {
    if (call_.has_value()) CloseCall(/*complete=*/true);
    header_.clear();
    lex_ = Lex::kInvokeHeader;
  } else if (word_ == "parameter") {
    if (call_.has_value()) {
      header_.clear();
      lex_ = Lex::kParameterHeader;
    } else {
      broken_ = true;
      place_ = Place::kSkip;
    }
  } else {
    // A block, or a misspelt one ("toolcalls" has been seen): what counts is the invokes in it.
    if (!IsBlockWord(word_)) broken_ = true;
    if (place_ == Place::kContent) {
      place_ = Place::kBlock;
      in_block_ = true;
    }
  }
}

// --- Invokes ---------------------------------------------------------------------------------------------------------

bool OutputParser::NameAllowed(std::string_view name) const {
  if (!options_.tools_allowed) return false;
  if (FindTool(name) != nullptr) return true;
  if (!options_.pass_unknown_tools && !options_.tools.empty()) return false;
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  for (const char c : name) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '\x7F') return false;
  }
  return name.find_first_of("\"'`<>{}[]()\\") == name.npos;
}

const ToolSpec* OutputParser::FindTool(std::string_view name) const {
  for (const ToolSpec& tool : options_.tools) {
    if (tool.name == name) return &tool;
  }
  return nullptr;
}

void OutputParser::FeedInvokeHeader(char c) {
  // ` name="NAME">` on one line.
  if (IsControlSymbol(c) || c == '\n' || header_.size() >= kMaxHeaderBytes) return GiveUpHeader(c);
  markup_ += c;
  header_ += c;
  if (c == '>' && !HasOddQuotes(header_)) BeginCall();
}

void OutputParser::BeginCall() {
  std::string_view rest = header_;
  const size_t end = rest.rfind('"');
  const bool spaced = rest.starts_with(' ') || rest.starts_with('\t');
  if (!spaced || !TakeAttribute("name=\"", &rest) || rest.find('"') != rest.rfind('"')) return GiveUpInvoke();
  const std::string name(rest.substr(0, rest.find('"')));
  std::string_view tail = std::string_view(header_).substr(end + 1);
  if (!TakeAttribute(">", &tail) || !NameAllowed(name)) return GiveUpInvoke();
  OpenCall(name);
  lex_ = Lex::kText;
}

void OutputParser::OpenCall(const std::string& name) {
  const ToolSpec* tool = FindTool(name);
  call_ = ToolCall{name, "", calls_begun_++};
  arguments_.emplace(tool == nullptr || tool->parameters.is_null() ? nullptr : &tool->parameters);
  object_.reset();
  place_ = Place::kInvoke;
  Emit(OutputEvent::Kind::kCallBegin, name);
}

// A tag's attributes run into `c`, which cannot be part of them. If that is the marker of another tag, the "<" or "</"
// before it is that tag's.
void OutputParser::GiveUpHeader(char c) {
  size_t less = 0;
  if (c == kSymbolDsml && header_.ends_with('<')) less = 1;
  if (c == kSymbolDsml && header_.ends_with("</")) less = 2;
  markup_.resize(markup_.size() - less);
  GiveUpInvoke();
  less_.assign("</", less);
  FeedSymbol(c);
}

// The current invoke cannot be read: everything up to its end, or to the next one, is skipped.
void OutputParser::GiveUpInvoke() {
  broken_ = true;
  if (call_.has_value()) CloseCall(/*complete=*/false);
  place_ = Place::kSkip;
  lex_ = Lex::kText;
}

void OutputParser::CloseCall(bool complete) {
  std::string json;
  if (object_.has_value()) {
    complete = complete && object_->closed() && IsJsonObject(call_->arguments);
  } else {
    complete = complete && arguments_->Finish(&json);
  }
  EmitArguments(json);
  events_.push_back({OutputEvent::Kind::kCallEnd, "", call_->index, complete});
  if (complete) {
    message_.tool_calls.push_back(*std::move(call_));
  } else {
    broken_ = true;
    incomplete_ = std::move(call_);
  }
  call_.reset();
  arguments_.reset();
}

// An invoke's end tag.
void OutputParser::LeaveInvoke() {
  if (call_.has_value()) CloseCall(/*complete=*/true);
  if (place_ != Place::kInvoke && place_ != Place::kSkip) return;
  place_ = in_block_ ? Place::kBlock : Place::kContent;
}

// --- Parameters ------------------------------------------------------------------------------------------------------

void OutputParser::FeedParameterHeader(char c) {
  // ` name="K" string="true|false">`; K may hold quotes and '>', so the full form ends the tag wherever it fits.
  if (IsControlSymbol(c) || header_.size() >= kMaxHeaderBytes) return GiveUpHeader(c);
  markup_ += c;
  header_ += c;
  if (c != '>') return;
  const std::string_view header = header_;
  if (header.ends_with("\" string=\"true\">") || header.ends_with("\" string=\"false\">") || !HasOddQuotes(header)) {
    BeginParameter();
  }
}

void OutputParser::BeginParameter() {
  std::string_view rest = header_;
  const bool spaced = rest.starts_with(' ') || rest.starts_with('\t');
  if (!spaced || !TakeAttribute("name=\"", &rest)) return GiveUpInvoke();
  auto claim = ArgumentWriter::Claim::kNone;
  size_t key_end = rest.find('"');
  for (const auto& [text, value] :
       {std::pair{std::string_view("\" string=\"true\">"), ArgumentWriter::Claim::kString},
        std::pair{std::string_view("\" string=\"false\">"), ArgumentWriter::Claim::kJson}}) {
    if (!rest.ends_with(text)) continue;
    claim = value;
    key_end = rest.size() - text.size();
  }
  if (key_end == rest.npos) return GiveUpInvoke();
  std::string json;
  arguments_->BeginParameter(rest.substr(0, key_end), claim, &json);
  EmitArguments(json);
  value_tail_.clear();
  value_newline_ = false;
  value_has_invoke_ = false;
  lex_ = Lex::kValue;
}

// What `held`, which starts with '<', can be: the end tag of the parameter; the end tag of the invoke followed by the
// next invoke or the block's end (or the end of output, if at_end), where the model forgot the parameter's; the start
// of an invoke inside the value.
OutputParser::ValueTail OutputParser::ClassifyValueTail(std::string_view held, bool at_end) const {
  constexpr std::string_view kParameterEnd = "</\xF8parameter";
  constexpr std::string_view kInvokeEnd = "</\xF8invoke";
  constexpr std::string_view kInvokeBegin = "<\xF8invoke";
  if (held == kParameterEnd) return ValueTail::kParameterEnd;
  if (held == kInvokeBegin) return ValueTail::kInvokeBegin;
  if (kParameterEnd.starts_with(held) || kInvokeEnd.starts_with(held) || kInvokeBegin.starts_with(held)) {
    return ValueTail::kPartial;
  }
  if (!held.starts_with(kInvokeEnd) || value_has_invoke_) return ValueTail::kNothing;
  held.remove_prefix(kInvokeEnd.size());
  if (!held.starts_with('>')) return ValueTail::kNothing;
  held.remove_prefix(1);
  size_t spaces = 0;
  while (spaces < held.size() && IsSpace(held[spaces])) ++spaces;
  if (spaces > kMaxTagSpaces) return ValueTail::kNothing;
  held.remove_prefix(spaces);
  if (held.empty()) return at_end ? ValueTail::kInvokeEnd : ValueTail::kPartial;
  for (const std::string_view next : {kInvokeBegin, std::string_view("</\xF8tool_calls"),
                                      std::string_view("</\xF8"
                                                       "function_calls")}) {
    if (held == next) return ValueTail::kInvokeEnd;
    if (next.starts_with(held)) return ValueTail::kPartial;
  }
  return ValueTail::kNothing;
}

void OutputParser::FeedValue(char c) {
  if (value_tail_.empty() && c != '<') return ValueText(std::string_view(&c, 1));
  value_tail_ += c;
  switch (ClassifyValueTail(value_tail_, /*at_end=*/false)) {
    case ValueTail::kPartial:
      return;
    case ValueTail::kParameterEnd:
      markup_ += std::exchange(value_tail_, {});
      EndValue(/*keep_newline=*/true);
      lex_ = Lex::kTagEnd;
      return;
    case ValueTail::kInvokeEnd: {
      // The held symbols are tags after all: read them as such.
      const std::string held = std::exchange(value_tail_, {});
      broken_ = true;
      EndValue(/*keep_newline=*/false);
      return Feed(held);
    }
    case ValueTail::kInvokeBegin:
      value_has_invoke_ = true;
      return ValueText(std::exchange(value_tail_, {}));
    case ValueTail::kNothing: {
      // The first symbol is text; the others may start anew.
      const std::string held = std::exchange(value_tail_, {});
      ValueText(std::string_view(held).substr(0, 1));
      return Feed(std::string_view(held).substr(1));
    }
  }
}

void OutputParser::ValueText(std::string_view symbols) {
  markup_ += symbols;
  std::string text;
  if (std::exchange(value_newline_, false)) text = "\n";
  AppendSymbolsAsText(symbols, &text);
  if (text.ends_with('\n')) {
    value_newline_ = true;
    text.pop_back();
  }
  std::string json;
  arguments_->Value(text, &json);
  EmitArguments(json);
}

void OutputParser::EndValue(bool keep_newline) {
  std::string json;
  if (std::exchange(value_newline_, false) && keep_newline) arguments_->Value("\n", &json);
  arguments_->EndParameter(&json);
  EmitArguments(json);
  lex_ = Lex::kText;
}

// --- End of output ---------------------------------------------------------------------------------------------------

void OutputParser::FinishLexing(bool stop) {
  switch (lex_) {
    case Lex::kText:
      if (place_ != Place::kDone) {
        for (const char held : std::exchange(less_, {})) Text(held);
      }
      return;
    case Lex::kTagWord:
      if (tag_close_) EndTagWord();
      broken_ = true;
      return;
    case Lex::kTagEnd:
      return;
    case Lex::kInvokeHeader:
    case Lex::kParameterHeader:
    case Lex::kCallHeader:
    case Lex::kCallName:
      return GiveUpInvoke();
    case Lex::kCallLead:
    case Lex::kCallObject:
    case Lex::kCallBody:
      return;
    case Lex::kValue: {
      const std::string held = std::exchange(value_tail_, {});
      if (stop && ClassifyValueTail(held, /*at_end=*/true) == ValueTail::kInvokeEnd) {
        broken_ = true;
        EndValue(/*keep_newline=*/false);
        const bool ended = std::exchange(ended_, false);  // for Feed: these symbols came before the end
        Feed(held);
        ended_ = ended;
        return;
      }
      // Not a tag: text of the value, unless a marker says that it was going to be one.
      if (held.find(kSymbolDsml) == held.npos) {
        ValueText(held);
      } else {
        markup_ += held;
      }
      return GiveUpInvoke();
    }
  }
}

void OutputParser::FinishPlace(bool stop) {
  const bool reasoning = place_ == Place::kReasoning;
  if (call_.has_value()) CloseCall(/*complete=*/stop && place_ == Place::kInvoke);
  if (reasoning || (place_ == Place::kContent && calls_begun_ == 0)) FlushVisible(/*trim_end=*/false);
  if (reasoning && stop && options_.unclosed_reasoning_is_content) {
    Emit(OutputEvent::Kind::kContent, std::string(message_.reasoning));
  }
  if (message_.tool_calls.empty() && (stop || calls_begun_ == 0)) {
    const std::string rest = StripTags(markup_);
    if (!rest.empty() && !message_.content.empty()) Emit(OutputEvent::Kind::kContent, "\n\n");
    Emit(OutputEvent::Kind::kContent, rest);
  }
}

// --- Events ----------------------------------------------------------------------------------------------------------

void OutputParser::Emit(OutputEvent::Kind kind, std::string_view text) {
  if (text.empty()) return;
  int call = -1;
  switch (kind) {
    case OutputEvent::Kind::kReasoning:
      message_.reasoning += text;
      break;
    case OutputEvent::Kind::kContent:
      message_.content += text;
      break;
    default:
      call = call_->index;
  }
  const bool delta = kind != OutputEvent::Kind::kCallBegin;
  if (delta && !events_.empty() && events_.back().kind == kind && events_.back().call == call) {
    events_.back().text += text;
    return;
  }
  events_.push_back({kind, std::string(text), call, false});
}

void OutputParser::EmitArguments(std::string_view json) {
  if (json.empty()) return;
  call_->arguments += json;
  Emit(OutputEvent::Kind::kCallArguments, json);
}

RobustResult ParseRobust(std::string_view output, ParserOptions options, EndCause cause) {
  OutputParser parser(std::move(options));
  parser.Push(output);
  parser.Finish(cause);
  return {parser.message(), parser.incomplete_call()};
}

}  // namespace hadal::text
