// Model output to reasoning, content and tool calls, piece by piece: the tolerant parser of all encodings (spec
// deepseek-v4-text 6.5, deepseek-v32 7.4 "Server" and 7.5, serving-runtime 6.5). One object per request, shared by all
// HTTP protocols; objects share no state. The result does not depend on how the output was cut: the concatenated deltas
// of any cutting are those of ParseRobust, which is the same parser fed once.
//
// What it accepts beyond the strict grammar, and what it makes of broken output:
//  - A call block may start in the reasoning (a missing </think> is implied) and an invoke may stand without a block.
//    Newlines before either are dropped, as are newlines before </think>, leading newlines of reasoning and content,
//    whitespace that would be all of the content beside calls, a second </think>, and everything after the block's end.
//  - A call is announced when its invoke header is complete. String values are passed on as they come, other values
//  when
//    they are complete; both as JSON. A call is complete when its invoke is closed: by its end tag, by the next invoke,
//    by the end of the block, or by the end token if no parameter is open. Its arguments are then a JSON object.
//  - An invoke without a proper name, or with a broken parameter tag, is given up; its siblings are kept. A value whose
//    end tag is missing before the end of its invoke is closed there if another invoke, the block's end or the end
//    token follows.
//  - Markup never reaches content. If in the end no call is complete, the text between the tags of broken calls is
//  given
//    as content, so that no answer is lost: always when the model stopped by itself, and when it was cut off only if
//    nothing of a call was streamed.
//  - Calls in control tokens (CallMarkup::kTokens, kFencedTokens) are treated alike. Their arguments are passed on as
//  the
//    model writes them, control characters in strings escaped, up to the end of the object; what follows it is dropped.
//    A call whose object is cut off or no JSON is not complete.
//  - Reasoning that the model ends with the end token and no </think> is given as content too (option).
// Time is linear in the output; memory is a small multiple of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/dsml.h"
#include "text/output_parser_args.h"
#include "text/output_parser_input.h"

namespace hadal::text {

struct ToolSpec {
  std::string name;
  Json parameters;  // JSON Schema, or null
};

// The tools of a request (OpenAI style) as the parser wants them. InvalidArgument names the element at fault.
absl::StatusOr<std::vector<ToolSpec>> ReadToolSpecs(const Json& tools);

struct ParserOptions {
  CallMarkup markup = CallMarkup::kDsml;  // MarkupOf(format)
  bool starts_in_reasoning = false;       // Prompt::starts_in_reasoning
  // False for tool_choice "none" and for requests without tools: calls are then treated as broken ones.
  bool tools_allowed = true;
  // Their schemas guide types and unwrapping. Empty: nothing is known.
  std::vector<ToolSpec> tools;
  // Whether well-formed names outside `tools` (if any) are calls too, for the client to answer (serving-runtime 6.5),
  // or broken ones (tool_choice with a name). Names of more than 128 bytes, or with whitespace, quotes, brackets or
  // control characters, are broken unless they are in `tools`.
  bool pass_unknown_tools = true;
  bool unclosed_reasoning_is_content = true;
};

struct OutputEvent {
  enum class Kind {
    kReasoning,      // text: reasoning delta
    kContent,        // text: content delta. Stop strings apply here: search the text of these events only.
    kCallBegin,      // text: the tool's name
    kCallArguments,  // text: piece of the JSON text of the arguments
    kCallEnd,        // complete: whether the pieces form a JSON object
  };
  Kind kind;
  std::string text;
  int call = -1;  // index of the call, from 0 in order of appearance; calls do not overlap
  bool complete = false;
};

// Why generation ended: the end token or a stop sequence; or a limit, so that the model would have gone on.
enum class EndCause { kStop, kLength };

class OutputParser {
 public:
  explicit OutputParser(ParserOptions options);
  OutputParser(OutputParser&&) = default;
  OutputParser& operator=(OutputParser&&) = default;

  // Takes the next bytes of the output and returns what became certain; adjacent deltas of one kind are one event.
  // Bytes may be cut anywhere, also inside a character. Text of the end token is taken as the end. With origins other
  // than kUnknown, only the control tokens themselves are markup; ordinary text that spells markup stays text.
  std::vector<OutputEvent> Push(std::string_view bytes, Origin origin = Origin::kUnknown);
  // The end of the output: flushes what was held back. Push and Finish return nothing afterwards. If the end token was
  // in the output, the cause is kStop whatever is given.
  std::vector<OutputEvent> Finish(EndCause cause);

  // Whether the next byte would be reasoning. False from </think> (or an implied one) on.
  bool in_reasoning() const { return place_ == Place::kReasoning; }
  // The end token was met; more output is ignored.
  bool ended() const { return ended_; }

  // Everything so far: the concatenated deltas, and the complete calls. finish_reason is "tool_calls" iff there are
  // any.
  const ParsedMessage& message() const { return message_; }
  // A call that was announced and not completed: the last one, with the pieces streamed of it.
  const std::optional<ToolCall>& incomplete_call() const { return incomplete_; }
  // All text from the first tag on, for logs and debugging, if some markup was broken or a call was cut; else empty.
  std::string BrokenMarkup() const;

 private:
  // Where in the message we are.
  enum class Place { kReasoning, kContent, kBlock, kInvoke, kSkip, kDone };
  // What the next symbol belongs to.
  enum class Lex {
    kText,
    kTagWord,
    kTagEnd,
    kInvokeHeader,
    kParameterHeader,
    kValue,
    // Calls in control tokens.
    kCallHeader,  // the name, or "function"
    kCallName,    // the name behind "function"
    kCallLead,    // before the arguments
    kCallObject,  // arguments that are passed on
    kCallBody,    // arguments that are no object
  };
  // What a value's held-back symbols can still become.
  enum class ValueTail { kNothing, kPartial, kParameterEnd, kInvokeEnd, kInvokeBegin };

  void Feed(std::string_view symbols);
  void FeedSymbol(char c);
  void FeedText(char c);
  void FeedTagWord(char c);
  void FeedInvokeHeader(char c);
  void FeedParameterHeader(char c);
  void FeedValue(char c);

  // Calls in control tokens (output_parser_tokens.cc).
  void FeedTokens(char c);
  void FeedCallHeader(char c);
  void FeedCallArguments(char c);
  void OpenTokenCall();
  void LeaveTokenCall();

  void Text(char c);
  void ThinkEnd();
  void EnterTools();
  void BeginTag(bool close);
  void EndTagWord();
  void BeginCall();
  void OpenCall(const std::string& name);
  void CloseCall(bool complete);
  void BeginParameter();
  void GiveUpHeader(char c);
  void GiveUpInvoke();
  void LeaveInvoke();

  ValueTail ClassifyValueTail(std::string_view held, bool at_end) const;
  void ValueText(std::string_view symbols);
  void EndValue(bool keep_newline);

  void FlushVisible(bool trim_end);
  void FinishLexing(bool stop);
  void FinishPlace(bool stop);

  bool NameAllowed(std::string_view name) const;
  const ToolSpec* FindTool(std::string_view name) const;
  void Emit(OutputEvent::Kind kind, std::string_view text);
  void EmitArguments(std::string_view json);

  ParserOptions options_;
  SymbolScanner scanner_;
  std::vector<OutputEvent> events_;  // of the current Push or Finish
  ParsedMessage message_;
  std::optional<ToolCall> call_;  // open call
  std::optional<ToolCall> incomplete_;
  std::optional<ArgumentWriter> arguments_;
  std::optional<ObjectStream> object_;  // arguments of the open call that are passed on as they are
  int calls_begun_ = 0;
  bool ended_ = false;
  bool finished_ = false;
  bool broken_ = false;

  Place place_;
  Lex lex_ = Lex::kText;
  bool in_block_ = false;       // a block tag is open (an invoke may stand alone)
  std::string markup_;          // symbols from the first tag on
  std::string visible_;         // held back: newlines, or any whitespace at the start
  bool at_start_ = true;        // nothing visible yet in this place
  std::string less_;            // held back: "<" or "</"
  bool tag_close_ = false;      // current tag is an end tag
  std::string word_;            // its name
  std::string header_;          // its attributes
  std::string value_tail_;      // symbols of a value that may be its end
  bool value_newline_ = false;  // a newline of the value is held back
  bool value_has_invoke_ = false;
};

// Final message of a whole output.
struct RobustResult {
  ParsedMessage message;
  std::optional<ToolCall> incomplete_call;
};
RobustResult ParseRobust(std::string_view output, ParserOptions options, EndCause cause = EndCause::kStop);

}  // namespace hadal::text
