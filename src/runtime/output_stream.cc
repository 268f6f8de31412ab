#include "runtime/output_stream.h"

#include <utility>

namespace hadal::runtime {

using text::OutputEvent;

OutputStream::OutputStream(std::shared_ptr<const text::Tokenizer> tokenizer,
                           const std::optional<text::ParserOptions>& parser, std::vector<std::string> stop)
    : tokenizer_(std::move(tokenizer)), detokenizer_(tokenizer_), stop_(std::move(stop)) {
  if (parser.has_value()) parser_.emplace(*parser);
}

void OutputStream::Content(std::string text) {
  if (text.empty()) return;
  content_ += text;
  events_.push_back({.kind = OutputEvent::Kind::kContent, .text = std::move(text)});
}

void OutputStream::Searched(const std::string& text) { Content(may_stop_ ? stop_.Push(text) : stop_.Flush() + text); }

void OutputStream::Take(std::vector<OutputEvent> events) {
  for (OutputEvent& event : events) {
    if (stop_.matched()) return;
    if (event.kind == OutputEvent::Kind::kContent) {
      Searched(event.text);
      continue;
    }
    // A stop string does not reach across a call.
    if (event.kind == OutputEvent::Kind::kCallBegin) Content(stop_.Flush());
    events_.push_back(std::move(event));
  }
}

const std::vector<OutputEvent>& OutputStream::Push(int32_t id, bool may_stop) {
  events_.clear();
  may_stop_ = may_stop;
  if (parser_.has_value()) {
    const text::Origin origin = tokenizer_->IsAdded(id) ? text::Origin::kControl : text::Origin::kOrdinary;
    Take(parser_->Push(tokenizer_->TokenBytes(id), origin));
  } else {
    Searched(detokenizer_.Push(id));
  }
  return events_;
}

const std::vector<OutputEvent>& OutputStream::Finish(text::EndCause cause) {
  events_.clear();
  may_stop_ = true;
  if (parser_.has_value()) {
    Take(parser_->Finish(cause));
  } else {
    // An unfinished character at the end is dropped, as the parser does (spec serving-runtime 5.6).
    detokenizer_.Flush();
  }
  if (!stop_.matched()) Content(stop_.Flush());
  return events_;
}

const std::string& OutputStream::reasoning() const {
  static const std::string* const kNone = new std::string();
  return parser_.has_value() ? parser_->message().reasoning : *kNone;
}

const std::vector<text::ToolCall>& OutputStream::tool_calls() const {
  static const auto* const kNone = new std::vector<text::ToolCall>();
  return parser_.has_value() ? parser_->message().tool_calls : *kNone;
}

}  // namespace hadal::runtime
