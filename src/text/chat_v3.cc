// The encoder of the checkpoints before V3.2: V3.1, its Terminus and V3.2-Exp (spec deepseek-v32 7.5), V3 and R1. It
// writes what their published templates do. Beyond those, because a template has no say in it:
//  - Tools. The templates have no section for them. V3.1's model card gives one; V3 and R1 have the same with their own
//    form of a call.
//  - R1-0528's template leaves <think> to the model, which always writes it. It is written here, as R1's template does,
//    so that a grammar or a budget of reasoning tokens holds from the first token on.
#include <utility>
#include <vector>

#include "text/chat.h"
#include "text/chat_messages.h"
#include "text/chat_render.h"

namespace hadal::text {
namespace {

constexpr std::string_view kToolsHead = "## Tools\nYou have access to the following tools:\n\n";

// Model card of V3.1; the braces are its own.
constexpr std::string_view kToolsTailV31 =
    "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"
    "{additional_tool_calls}<｜tool▁calls▁end｜>\n\n"
    "Where:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces";

// No publication gives one for V3 and R1; the form of the calls is that of their templates.
constexpr std::string_view kToolsTailV3 =
    "To use tools, write exactly this and nothing after it:\n"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>\n\n"
    "NAME is the name of one of the tools, ARGUMENTS a JSON object that follows its parameters. Several calls stand in "
    "one block, with a newline between them.";

absl::Status WriteTool(const Json& tool, std::string_view where, PromptWriter* writer) {
  const Json& function = Field(tool, "function");
  if (!function.is_object()) return InvalidArgument("{}.function: expected an object", where);
  const std::string inner = fmt::format("{}.function", where);
  HADAL_ASSIGN_OR_RETURN(const std::string_view name, StringField(function, "name", inner));
  if (name.empty()) return InvalidArgument("{}.name: expected a string", inner);
  HADAL_ASSIGN_OR_RETURN(const std::string_view description, StringField(function, "description", inner));
  const Json& parameters = Field(function, "parameters");
  writer->Trusted("### ");
  writer->Plain(name);
  writer->Trusted("\nDescription: ");
  writer->Plain(description);
  writer->Trusted("\n\nParameters: ");
  writer->Plain(parameters.is_null() ? "{}" : DumpJson(parameters));
  writer->Trusted("\n\n");
  return absl::OkStatus();
}

class Encoder {
 public:
  Encoder(ChatFormat format, const ChatOptions& options, std::vector<ListedMessage> messages)
      : format_(format),
        fenced_(MarkupOf(format) == CallMarkup::kFencedTokens),
        options_(options),
        messages_(std::move(messages)) {}

  absl::StatusOr<Prompt> Encode() {
    HADAL_ASSIGN_OR_RETURN(places_, OrderResults(&messages_));
    for (const ListedMessage& message : messages_) {
      if (message.role != Role::kSystem) continue;
      has_system_ = true;
      has_tools_ |= HasTools(*message.source);
    }
    if (options_.add_bos) writer_.Trusted(kBosText);
    HADAL_RETURN_IF_ERROR(WriteSystem());
    for (size_t i = 0; i < messages_.size(); ++i) HADAL_RETURN_IF_ERROR(WriteMessage(i));
    WriteOpening();
    return writer_.Take();
  }

 private:
  // "Tool calls are supported in non-thinking mode" (model card).
  bool thinking() const { return options_.mode == ThinkingMode::kThinking && !has_tools_; }

  // All system texts stand at the front, the tools behind them.
  absl::Status WriteSystem() {
    bool first = true;
    for (const ListedMessage& message : messages_) {
      if (message.role != Role::kSystem) continue;
      if (!IsEmpty(Field(*message.source, "response_format"))) {
        return InvalidArgument("{}.response_format: this encoding has no text for it", message.where);
      }
      if (!first) writer_.Trusted("\n\n");
      first = false;
      HADAL_RETURN_IF_ERROR(WriteText(message));
    }
    if (!has_tools_) return absl::OkStatus();
    writer_.Trusted("\n\n");
    writer_.Trusted(kToolsHead);
    for (const ListedMessage& message : messages_) {
      if (message.role != Role::kSystem || !HasTools(*message.source)) continue;
      const Json& tools = Field(*message.source, "tools");
      if (!tools.is_array()) {
        return InvalidArgument("{}.tools: expected an array, found {}", message.where, tools.type_name());
      }
      for (size_t i = 0; i < tools.size(); ++i) {
        HADAL_RETURN_IF_ERROR(WriteTool(tools[i], fmt::format("{}.tools[{}]", message.where, i), &writer_));
      }
    }
    writer_.Trusted(fenced_ ? kToolsTailV3 : kToolsTailV31);
    return absl::OkStatus();
  }

  absl::Status WriteMessage(size_t i) {
    const ListedMessage& message = messages_[i];
    switch (message.role) {
      case Role::kSystem:
        return absl::OkStatus();
      case Role::kUser:
        if (fenced_ && last_ == Role::kUser) writer_.Trusted(kAssistantText);
        writer_.Trusted(kUserText);
        HADAL_RETURN_IF_ERROR(WriteText(message));
        break;
      case Role::kAssistant:
        HADAL_RETURN_IF_ERROR(WriteAssistant(message));
        break;
      case Role::kTool:
        HADAL_RETURN_IF_ERROR(WriteResult(i));
        break;
      default:
        return InvalidArgument("{}.role: this encoding has no role \"developer\"", message.where);
    }
    last_ = message.role;
    continued_ = message.role == Role::kAssistant && !IsEmpty(Field(*message.source, "wo_eos"));
    return absl::OkStatus();
  }

  absl::Status WriteText(const ListedMessage& message) {
    return WriteContent(Field(*message.source, "content"), ContentStyle{}, message.index, message.where, &writer_);
  }

  absl::Status WriteAssistant(const ListedMessage& message) {
    const bool calls = HasCalls(*message.source);
    CloseResults();
    HADAL_ASSIGN_OR_RETURN(const std::string_view reasoning, Reasoning(*message.source, message.where));
    // Reasoning is never shown again, but an answer that goes on stays behind what was thought for it.
    const bool goes_on = !IsEmpty(Field(*message.source, "wo_eos"));
    if (last_ == Role::kUser ||
        (last_ == Role::kSystem && has_system_ && calls && format_ == ChatFormat::kV31Terminus)) {
      writer_.Trusted(kAssistantText);
      if (!fenced_) {
        const bool thought = goes_on && !calls && thinking() && !reasoning.empty();
        if (thought) {
          writer_.Trusted(kThinkText);
          writer_.Plain(reasoning);
        }
        writer_.Trusted(kThinkEndText);
      }
    }
    PromptWriter flat;
    HADAL_RETURN_IF_ERROR(
        WriteContent(Field(*message.source, "content"), ContentStyle{}, message.index, message.where, &flat));
    const std::string content = flat.Take().Text();
    writer_.Plain(WithoutThought(content, calls));
    if (calls) HADAL_RETURN_IF_ERROR(WriteCalls(Field(*message.source, "tool_calls"), message.where));
    if (!goes_on) writer_.Trusted(kEosText);
    return absl::OkStatus();
  }

  // Clients that do not know reasoning send it back in the content.
  std::string_view WithoutThought(std::string_view content, bool calls) const {
    size_t at = content.npos;
    if (format_ == ChatFormat::kR1) {
      at = content.rfind(kThinkEndText);
    } else if (!fenced_ && !calls && last_ != Role::kTool) {
      at = content.find(kThinkEndText);
    }
    return at == content.npos ? content : content.substr(at + kThinkEndText.size());
  }

  absl::Status WriteCalls(const Json& calls, std::string_view where) {
    if (!calls.is_array()) {
      return InvalidArgument("{}.tool_calls: expected an array, found {}", where, calls.type_name());
    }
    writer_.Trusted(kCallsBeginText);
    for (size_t i = 0; i < calls.size(); ++i) {
      const std::string path = fmt::format("{}.tool_calls[{}].function", where, i);
      const Json& function = Field(calls[i], "function");
      if (!function.is_object()) return InvalidArgument("{}: expected an object", path);
      const Json& name = Field(function, "name");
      if (!name.is_string()) return InvalidArgument("{}.name: expected a string", path);
      const Json& arguments = Field(function, "arguments");
      if (!arguments.is_string() && !arguments.is_object()) {
        return InvalidArgument("{}.arguments: expected a string or an object, found {}", path, arguments.type_name());
      }
      if (i > 0 && fenced_) writer_.Trusted("\n");
      writer_.Trusted(kCallBeginText);
      if (fenced_) {
        writer_.Trusted("function");
        writer_.Trusted(kCallSepText);
      }
      writer_.Plain(name.get_ref<const std::string&>());
      writer_.Trusted(fenced_ ? "\n```json\n" : kCallSepText);
      // A string is what the model wrote: it is shown to it as it was.
      writer_.Plain(arguments.is_string() ? arguments.get<std::string>() : DumpJson(arguments));
      if (fenced_) writer_.Trusted("\n```");
      writer_.Trusted(kCallEndText);
    }
    writer_.Trusted(kCallsEndText);
    return absl::OkStatus();
  }

  absl::Status WriteResult(size_t i) {
    if (fenced_) writer_.Trusted(places_[i].number == 1 ? kOutputsBeginText : "\n");
    writer_.Trusted(kOutputBeginText);
    HADAL_RETURN_IF_ERROR(WriteText(messages_[i]));
    writer_.Trusted(kOutputEndText);
    return absl::OkStatus();
  }

  // The end of a group of results is written when an answer follows, which then needs no header; behind results that a
  // user's turn follows the template writes none.
  void CloseResults() {
    if (fenced_ && last_ == Role::kTool) writer_.Trusted(kOutputsEndText);
  }

  // What the next answer begins with.
  void WriteOpening() {
    CloseResults();
    if (continued_ || last_ == Role::kTool) return;
    // Behind anything but a user's turn V3.1 opens nothing, the others do.
    if (format_ == ChatFormat::kV31 && last_ != Role::kUser) return;
    writer_.Trusted(kAssistantText);
    if (format_ == ChatFormat::kR1) {
      writer_.Trusted("<think>\n");
    } else if (!fenced_) {
      writer_.Trusted(thinking() ? kThinkText : kThinkEndText);
    }
  }

  ChatFormat format_;
  bool fenced_;
  const ChatOptions& options_;
  std::vector<ListedMessage> messages_;
  std::vector<ResultPlace> places_;
  bool has_system_ = false, has_tools_ = false;
  Role last_ = Role::kSystem;  // of the messages written; system texts inside a conversation do not count
  bool continued_ = false;     // the last answer has no end
  PromptWriter writer_;
};

}  // namespace

absl::StatusOr<Prompt> EncodeChatV3(ChatFormat format, const Json& messages, const ChatOptions& options) {
  HADAL_CHECK(MarkupOf(format) != CallMarkup::kDsml);
  if (options.context != nullptr) {
    // Its system texts would have to stand in front of what is already written.
    return InvalidArgument("context: the {} encoding takes whole conversations only", ChatFormatName(format));
  }
  HADAL_ASSIGN_OR_RETURN(std::vector<ListedMessage> all, ListMessages(messages, options));
  return Encoder(format, options, std::move(all)).Encode();
}

}  // namespace hadal::text
