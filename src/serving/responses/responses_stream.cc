// Streamed responses (spec serving-runtime 6.10): events that open, fill and close one item after the other.
#include <utility>

#include "base/status.h"
#include "serving/answer.h"
#include "serving/responses/response_parts.h"
#include "serving/responses/responses.h"

namespace hadal::serving {
namespace {

using text::Json;
using text::OutputEvent;

class ResponsesStream : public StreamEncoder {
 public:
  explicit ResponsesStream(const Job& job) : job_(job) {}

  std::vector<StreamFrame> Begin() override {
    const Json response = ResponseJson(job_, Json::array(), nullptr);
    Emit("response.created", {{"response", response}});
    Emit("response.in_progress", {{"response", response}});
    return std::exchange(frames_, {});
  }

  std::vector<StreamFrame> Add(size_t /*request*/, const StreamDelta& delta) override {
    for (const OutputEvent& event : delta.events) AddEvent(event);
    return std::exchange(frames_, {});
  }

  std::vector<StreamFrame> Finish(size_t /*request*/, const runtime::GenerateResult& result) override {
    const bool cut = result.finish_reason == runtime::FinishReason::kLength;
    if (NeedsEmptyText(job_, result) && open_ != Item::kMessage) Enter(Item::kMessage);
    Close(cut ? ItemStatus::kIncomplete : ItemStatus::kCompleted);
    response_ = ResponseJson(job_, output_, &result);
    const bool cancelled = result.finish_reason == runtime::FinishReason::kCancelled;
    last_event_ = cut ? "response.incomplete" : cancelled ? "response.failed" : "response.completed";
    return std::exchange(frames_, {});
  }

  std::vector<StreamFrame> End() override {
    KeepResponse(job_, response_);
    Emit(last_event_, {{"response", response_}});
    return std::exchange(frames_, {});
  }

  std::vector<StreamFrame> Fail(const absl::Status& error) override {
    const Json body = ResponsesErrorBody(error)["error"];
    const char* code = ResponsesHttpStatus(error) == 429 ? "rate_limit_exceeded" : "server_error";
    Emit("error", {{"code", code}, {"message", body["message"]}, {"param", body["param"]}});
    Json response = ResponseJson(job_, output_, nullptr);
    response["status"] = "failed";
    response["error"] = {{"code", code}, {"message", body["message"]}};
    Emit("response.failed", {{"response", response}});
    return std::exchange(frames_, {});
  }

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall };

  void AddEvent(const OutputEvent& event) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        if (!job_.include_reasoning || event.text.empty()) return;
        if (open_ != Item::kReasoning) Enter(Item::kReasoning);
        return Text("response.reasoning_text.delta", event.text);
      case OutputEvent::Kind::kContent:
        if (event.text.empty()) return;
        if (open_ != Item::kMessage) Enter(Item::kMessage);
        return Text("response.output_text.delta", event.text);
      case OutputEvent::Kind::kCallBegin:
        if (complete_calls_ > 0 && !job_.parallel_tool_calls) return Close(ItemStatus::kCompleted);
        return Enter(Item::kCall, event.text);
      case OutputEvent::Kind::kCallArguments:
        if (open_ == Item::kCall) Text("response.function_call_arguments.delta", event.text);
        return;
      case OutputEvent::Kind::kCallEnd:
        if (open_ != Item::kCall) return;
        if (event.complete) ++complete_calls_;
        return Close(event.complete ? ItemStatus::kCompleted : ItemStatus::kIncomplete);
    }
  }

  void Enter(Item item, const std::string& name = "") {
    Close(ItemStatus::kCompleted);
    open_ = item;
    text_.clear();
    name_ = name;
    id_ = RandomId(item == Item::kReasoning ? "rs_" : item == Item::kMessage ? "msg_" : "fc_");
    if (item == Item::kCall) call_id_ = RandomId("call_");
    Emit("response.output_item.added", {{"output_index", output_.size()}, {"item", OpenItem(ItemStatus::kInProgress)}});
    if (item != Item::kCall) EmitInside("response.content_part.added", {{"part", OpenPart()}});
  }

  void Text(const char* type, const std::string& delta) {
    text_ += delta;
    EmitInside(type, {{"delta", delta}});
  }

  void Close(ItemStatus status) {
    switch (open_) {
      case Item::kNone:
        return;
      case Item::kReasoning:
        EmitInside("response.reasoning_text.done", {{"text", text_}});
        EmitInside("response.content_part.done", {{"part", OpenPart()}});
        break;
      case Item::kMessage:
        EmitInside("response.output_text.done", {{"text", text_}});
        EmitInside("response.content_part.done", {{"part", OpenPart()}});
        break;
      case Item::kCall:
        EmitInside("response.function_call_arguments.done", {{"name", name_}, {"arguments", text_}});
        break;
    }
    Json item = OpenItem(status);
    Emit("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
    output_.push_back(std::move(item));
    open_ = Item::kNone;
  }

  Json OpenPart() const { return open_ == Item::kReasoning ? ReasoningPart(text_) : TextPart(text_); }

  // The open item as far as it is; without content while it has none.
  Json OpenItem(ItemStatus status) const {
    if (open_ == Item::kCall) return CallItem(id_, call_id_, name_, text_, status);
    const Json content = status == ItemStatus::kInProgress ? Json::array() : Json::array({OpenPart()});
    return open_ == Item::kReasoning ? ReasoningItem(id_, content, status) : MessageItem(id_, content, status);
  }

  // An event of the open item. Texts stand in its only part.
  void EmitInside(const char* type, const Json& data) {
    Json all = {{"item_id", id_}, {"output_index", output_.size()}};
    if (open_ != Item::kCall) all["content_index"] = 0;
    all.update(data);
    // The clients' types have them in events of text.
    if (open_ == Item::kMessage && !data.contains("part")) all["logprobs"] = Json::array();
    Emit(type, all);
  }
  void Emit(const char* type, const Json& data) {
    Json all = {{"type", type}, {"sequence_number", sequence_++}};
    all.update(data);
    frames_.push_back({type, text::DumpJson(all)});
  }

  const Job& job_;
  std::vector<StreamFrame> frames_;
  int64_t sequence_ = 0;
  Json output_ = Json::array();  // items that are closed
  Item open_ = Item::kNone;
  std::string id_, call_id_, name_, text_;  // of the open item
  int64_t complete_calls_ = 0;
  Json response_;  // from Finish on
  const char* last_event_ = "response.completed";
};

}  // namespace

std::unique_ptr<StreamEncoder> MakeResponsesStream(const Job& job) { return std::make_unique<ResponsesStream>(job); }

}  // namespace hadal::serving
