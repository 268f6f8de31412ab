// Generated tokens to what a user sees: visible text, reasoning, tool calls, with stop strings applied.
//
// Two forms. Chat: text::OutputParser takes reasoning and calls apart, and stop strings are searched for in the visible
// content only (spec deepseek-v4-text 6.5). Raw: all decoded text is content, control tokens included, and stop strings
// are searched for in all of it. The end token has no text in either form.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/stop_strings.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace hadal::runtime {

class OutputStream {
 public:
  // `parser` absent: raw form.
  OutputStream(std::shared_ptr<const text::Tokenizer> tokenizer, const std::optional<text::ParserOptions>& parser,
               std::vector<std::string> stop);

  // Takes a token that is not an end token; returns what became certain. The result lives until the next call. Stop
  // strings are looked for in the text of tokens with `may_stop` only.
  const std::vector<text::OutputEvent>& Push(int32_t id, bool may_stop = true);
  // The end of the output: what was held back.
  const std::vector<text::OutputEvent>& Finish(text::EndCause cause);

  bool stopped() const { return stop_.matched(); }
  const std::string& stop_string() const { return stop_.match(); }
  bool in_reasoning() const { return parser_.has_value() && parser_->in_reasoning(); }

  // Everything so far. Content is cut at the stop string.
  const std::string& content() const { return content_; }
  const std::string& reasoning() const;
  const std::vector<text::ToolCall>& tool_calls() const;

 private:
  void Take(std::vector<text::OutputEvent> events);
  void Content(std::string text);
  // Text in which stop strings count, or not.
  void Searched(const std::string& text);

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::optional<text::OutputParser> parser_;
  text::Detokenizer detokenizer_;
  StopStrings stop_;
  bool may_stop_ = true;  // of the token at hand
  std::string content_;
  std::vector<text::OutputEvent> events_;
};

}  // namespace hadal::runtime
