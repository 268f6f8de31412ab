#include "text/dsml.h"

#include <optional>
#include <unordered_set>
#include <utility>

namespace hadal::text {

std::string_view CallBlockName(Dialect dialect) { return dialect == Dialect::kV4 ? "tool_calls" : "function_calls"; }

namespace {

// Reads forward to the first of several stop strings, as the vendor's parser does.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  struct Piece {
    std::string_view text;  // up to the stop string, or to the end
    int stop = -1;          // which stop string; -1: none was left
  };
  Piece ReadUntil(std::initializer_list<std::string_view> stops) {
    size_t best = std::string_view::npos;
    Piece piece;
    int i = 0;
    for (const std::string_view stop : stops) {
      const size_t at = text_.find(stop, position_);
      if (at < best) {
        best = at;
        piece.stop = i;
      }
      ++i;
    }
    if (piece.stop < 0) {
      piece.text = text_.substr(position_);
      position_ = text_.size();
      return piece;
    }
    piece.text = text_.substr(position_, best - position_);
    position_ = best + std::data(stops)[piece.stop].size();
    return piece;
  }

  bool AtEnd() const { return position_ == text_.size(); }
  size_t position() const { return position_; }

 private:
  std::string_view text_;
  size_t position_ = 0;
};

bool StripPrefix(std::string_view prefix, std::string_view* text) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

struct Tags {
  explicit Tags(Dialect dialect) {
    const std::string_view block = CallBlockName(dialect);
    block_begin = fmt::format("\n\n<{}{}", kDsmlText, block);
    block_end = fmt::format("</{}{}>", kDsmlText, block);
    invoke = fmt::format("<{}invoke", kDsmlText);
    invoke_end = fmt::format("</{}invoke", kDsmlText);
    parameter = fmt::format("<{}parameter", kDsmlText);
    parameter_end = fmt::format("/{}parameter", kDsmlText);
  }
  std::string block_begin, block_end, invoke, invoke_end, parameter, parameter_end;
};

// ` name="NAME">` and a newline; the reference's end anchor lets one more newline pass.
std::optional<std::string_view> InvokeName(std::string_view header) {
  if (!StripPrefix(" name=\"", &header)) return std::nullopt;
  if (header.ends_with("\">\n\n")) return header.substr(0, header.size() - 4);
  if (header.ends_with("\">\n")) return header.substr(0, header.size() - 3);
  return std::nullopt;
}

struct Parameter {
  std::string_view name, value;
  bool is_string = false;
};

// ` name="K" string="true|false">VALUE<`, with the first place where the middle fits.
std::optional<Parameter> ParseParameter(std::string_view text) {
  if (!StripPrefix(" name=\"", &text) || !text.ends_with("<")) return std::nullopt;
  text.remove_suffix(1);
  constexpr std::string_view kTrue = "\" string=\"true\">";
  constexpr std::string_view kFalse = "\" string=\"false\">";
  const size_t at_true = text.find(kTrue);
  const size_t at_false = text.find(kFalse);
  if (at_true == text.npos && at_false == text.npos) return std::nullopt;
  const bool is_string = at_true < at_false;
  const size_t at = is_string ? at_true : at_false;
  return Parameter{text.substr(0, at), text.substr(at + (is_string ? kTrue : kFalse).size()), is_string};
}

absl::Status FormatError(const Cursor& cursor, std::string_view expected) {
  return InvalidArgument("tool call markup: expected {} before byte {}", expected, cursor.position());
}

absl::StatusOr<ToolCall> ParseInvoke(const Tags& tags, Cursor* cursor) {
  Cursor::Piece piece = cursor->ReadUntil({tags.parameter, tags.invoke_end});
  const std::optional<std::string_view> name = InvokeName(piece.text);
  if (!name.has_value()) return FormatError(*cursor, " name=\"...\">");
  ToolCall call{std::string(*name), "{", 0};
  std::unordered_set<std::string_view> seen;
  while (piece.stop == 0) {
    piece = cursor->ReadUntil({tags.parameter_end});
    const std::optional<Parameter> parameter =
        piece.stop == 0 ? ParseParameter(piece.text) : std::optional<Parameter>();
    if (!parameter.has_value()) return FormatError(*cursor, " name=\"...\" string=\"true|false\">...</");
    if (!seen.empty()) call.arguments += ", ";
    if (!seen.insert(parameter->name).second) return InvalidArgument("parameter \"{}\" appears twice", parameter->name);
    call.arguments += JsonQuoted(parameter->name);
    call.arguments += ": ";
    call.arguments += parameter->is_string ? JsonQuoted(parameter->value) : std::string(parameter->value);
    piece = cursor->ReadUntil({tags.parameter, tags.invoke_end});
    if (piece.text != ">\n") return FormatError(*cursor, ">\\n after a parameter");
  }
  if (piece.stop != 1) return FormatError(*cursor, "the end tag of invoke");
  call.arguments += '}';
  return call;
}

absl::Status ParseBlock(const Tags& tags, Cursor* cursor, std::vector<ToolCall>* calls) {
  while (true) {
    const Cursor::Piece piece = cursor->ReadUntil({tags.invoke, tags.block_end});
    if (piece.stop < 0) return FormatError(*cursor, "an invoke or the end tag of the block");
    if (piece.text != ">\n") return FormatError(*cursor, ">\\n");
    if (piece.stop == 1) return absl::OkStatus();
    HADAL_ASSIGN_OR_RETURN(ToolCall call, ParseInvoke(tags, cursor));
    call.index = static_cast<int>(calls->size());
    calls->push_back(std::move(call));
  }
}

absl::Status CheckNoControlText(std::string_view text, std::string_view what) {
  for (const std::string_view control : {kBosText, kEosText, kThinkText, kThinkEndText, kDsmlText}) {
    if (text.find(control) != text.npos) return InvalidArgument("{} contains the control text {}", what, control);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParsedMessage> ParseStrict(std::string_view completion, ThinkingMode mode, Dialect dialect) {
  const Tags tags(dialect);
  Cursor cursor(completion);
  ParsedMessage message;
  if (mode == ThinkingMode::kThinking) {
    const Cursor::Piece piece = cursor.ReadUntil({kThinkEndText, tags.block_begin});
    if (piece.stop != 0) return InvalidArgument("thinking mode: expected {} before the answer", kThinkEndText);
    message.reasoning = piece.text;
  }
  const Cursor::Piece piece = cursor.ReadUntil({kEosText, tags.block_begin});
  message.content = piece.text;
  if (piece.stop < 0) return InvalidArgument("the completion does not end with {}", kEosText);
  if (piece.stop == 1) {
    HADAL_RETURN_IF_ERROR(ParseBlock(tags, &cursor, &message.tool_calls));
    const Cursor::Piece tail = cursor.ReadUntil({kEosText});
    if (!tail.text.empty()) return InvalidArgument("unexpected text after the tool calls");
  }
  if (!cursor.AtEnd()) return InvalidArgument("unexpected text after {}", kEosText);
  HADAL_RETURN_IF_ERROR(CheckNoControlText(message.reasoning, "reasoning"));
  HADAL_RETURN_IF_ERROR(CheckNoControlText(message.content, "content"));
  return message;
}

}  // namespace hadal::text
