// Streamed messages (spec serving-runtime 6.9): events that open, fill and close one block after the other.
#include <utility>

#include "base/sha256.h"
#include "base/status.h"
#include "serving/answer.h"
#include "serving/anthropic/message_parts.h"
#include "serving/anthropic/messages.h"

namespace hadal::serving {
namespace {

using text::Json;
using text::OutputEvent;

StreamFrame Frame(const char* type, const Json& data) {
  Json all = {{"type", type}};
  all.update(data);
  return {type, text::DumpJson(all)};
}

class MessagesStream : public StreamEncoder {
 public:
  explicit MessagesStream(const Job& job) : job_(job) {}

  std::vector<StreamFrame> Begin() override { return {Frame("message_start", {{"message", MessageHead(job_)}})}; }

  std::vector<StreamFrame> Add(size_t /*request*/, const StreamDelta& delta) override {
    for (const OutputEvent& event : delta.events) AddEvent(event);
    return std::exchange(frames_, {});
  }

  std::vector<StreamFrame> Finish(size_t /*request*/, const runtime::GenerateResult& result) override {
    if (NeedsEmptyText(job_, result)) Enter(Block::kText, {{"type", "text"}, {"text", ""}});
    Close();
    frames_.push_back(
        Frame("message_delta",
              {{"delta", {{"stop_reason", MessageStopReason(result)}, {"stop_sequence", MessageStopSequence(result)}}},
               {"usage", MessageUsage(job_, result)}}));
    return std::exchange(frames_, {});
  }

  std::vector<StreamFrame> End() override { return {Frame("message_stop", Json::object())}; }

  std::vector<StreamFrame> Fail(const absl::Status& error) override {
    return {{"error", text::DumpJson(MessagesErrorBody(error))}};
  }

 private:
  enum class Block { kNone, kThinking, kText, kToolUse };

  void AddEvent(const OutputEvent& event) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        if (!job_.include_reasoning || event.text.empty()) return;
        if (open_ != Block::kThinking) {
          Enter(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        }
        hash_.Update({reinterpret_cast<const uint8_t*>(event.text.data()), event.text.size()});
        return Delta({{"type", "thinking_delta"}, {"thinking", event.text}});
      case OutputEvent::Kind::kContent:
        if (event.text.empty()) return;
        if (open_ != Block::kText) Enter(Block::kText, {{"type", "text"}, {"text", ""}});
        return Delta({{"type", "text_delta"}, {"text", event.text}});
      case OutputEvent::Kind::kCallBegin:
        if (complete_calls_ > 0 && !job_.parallel_tool_calls) return Close();
        return Enter(
            Block::kToolUse,
            {{"type", "tool_use"}, {"id", RandomId("toolu_")}, {"name", event.text}, {"input", Json::object()}});
      case OutputEvent::Kind::kCallArguments:
        if (open_ == Block::kToolUse) Delta({{"type", "input_json_delta"}, {"partial_json", event.text}});
        return;
      case OutputEvent::Kind::kCallEnd:
        if (open_ == Block::kToolUse && event.complete) ++complete_calls_;
        return Close();
    }
  }

  void Enter(Block block, Json content) {
    Close();
    open_ = block;
    if (block == Block::kThinking) hash_ = Sha256();
    frames_.push_back(Frame("content_block_start", {{"index", index_}, {"content_block", std::move(content)}}));
  }
  void Delta(Json delta) {
    frames_.push_back(Frame("content_block_delta", {{"index", index_}, {"delta", std::move(delta)}}));
  }
  void Close() {
    if (open_ == Block::kNone) return;
    if (open_ == Block::kThinking) Delta({{"type", "signature_delta"}, {"signature", HexDigest(hash_.Finish())}});
    frames_.push_back(Frame("content_block_stop", {{"index", index_}}));
    open_ = Block::kNone;
    ++index_;
  }

  const Job& job_;
  std::vector<StreamFrame> frames_;
  Block open_ = Block::kNone;
  int64_t index_ = 0;  // of the open block or the next one
  Sha256 hash_;        // of the open thinking block
  int64_t complete_calls_ = 0;
};

}  // namespace

std::unique_ptr<StreamEncoder> MakeMessagesStream(const Job& job) { return std::make_unique<MessagesStream>(job); }

StreamFrame MessagesPing() { return Frame("ping", Json::object()); }

}  // namespace hadal::serving
