// Results as responses (spec serving-runtime 6.10).
#include <utility>

#include "base/status.h"
#include "serving/answer.h"
#include "serving/responses/response_parts.h"
#include "serving/responses/responses.h"

namespace hadal::serving {
namespace {

using runtime::FinishReason;
using runtime::GenerateResult;
using text::Json;

const char* StatusName(ItemStatus status) {
  switch (status) {
    case ItemStatus::kInProgress:
      return "in_progress";
    case ItemStatus::kCompleted:
      return "completed";
    case ItemStatus::kIncomplete:
      break;
  }
  return "incomplete";
}

Json Usage(const Job& job, const GenerateResult& result) {
  const auto input = static_cast<int64_t>(job.prompts[0].ids.size());
  const auto output = static_cast<int64_t>(result.token_ids.size());
  return {{"input_tokens", input},
          {"input_tokens_details", {{"cached_tokens", result.cached_tokens}}},
          {"output_tokens", output},
          {"output_tokens_details", {{"reasoning_tokens", result.reasoning_tokens}}},
          {"total_tokens", input + output}};
}

// A result's status as the API names it.
const char* ResponseStatus(const GenerateResult* result) {
  if (result == nullptr) return "in_progress";
  if (result->finish_reason == FinishReason::kLength) return "incomplete";
  return result->finish_reason == FinishReason::kCancelled ? "failed" : "completed";
}

// Of an item of the input.
const char* IdPrefix(const Json& item) {
  const Json type = item.value("type", Json());
  if (type == "function_call") return "fc_";
  if (type == "function_call_output") return "fco_";
  return type == "reasoning" ? "rs_" : "msg_";
}

}  // namespace

Json ReasoningPart(const std::string& text) { return {{"type", "reasoning_text"}, {"text", text}}; }

Json TextPart(const std::string& text) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

Json ReasoningItem(const std::string& id, const Json& content, ItemStatus status) {
  return {{"id", id},
          {"type", "reasoning"},
          {"summary", Json::array()},
          {"content", content},
          {"status", StatusName(status)}};
}

Json MessageItem(const std::string& id, const Json& content, ItemStatus status) {
  return {{"id", id}, {"type", "message"}, {"status", StatusName(status)}, {"role", "assistant"}, {"content", content}};
}

Json CallItem(const std::string& id, const std::string& call_id, const std::string& name, const std::string& arguments,
              ItemStatus status) {
  return {{"id", id},     {"type", "function_call"}, {"status", StatusName(status)}, {"call_id", call_id},
          {"name", name}, {"arguments", arguments}};
}

Json ResponseJson(const Job& job, Json output, const GenerateResult* result) {
  const std::string_view status = ResponseStatus(result);
  Json body = {{"id", job.id},
               {"object", "response"},
               {"created_at", job.created},
               {"status", status},
               {"error", nullptr},
               {"incomplete_details", nullptr},
               {"model", job.model},
               {"output", std::move(output)},
               {"usage", result == nullptr ? Json() : Usage(job, *result)}};
  if (status == "incomplete") body["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (status == "failed") body["error"] = {{"code", "server_error"}, {"message", "the request was cancelled"}};
  body.update(job.responses.repeated);
  return body;
}

Json BuildResponse(const Job& job, const GenerateResult& result) {
  Json output = Json::array();
  const ItemStatus last =
      result.finish_reason == FinishReason::kLength ? ItemStatus::kIncomplete : ItemStatus::kCompleted;
  const bool has_text = !result.content.empty() || NeedsEmptyText(job, result);
  if (job.include_reasoning && !result.reasoning.empty()) {
    output.push_back(ReasoningItem(RandomId("rs_"), Json::array({ReasoningPart(result.reasoning)}),
                                   has_text ? ItemStatus::kCompleted : last));
  }
  if (has_text) output.push_back(MessageItem(RandomId("msg_"), Json::array({TextPart(result.content)}), last));
  for (size_t i = 0; i < result.tool_calls.size() && (i == 0 || job.parallel_tool_calls); ++i) {
    const text::ToolCall& call = result.tool_calls[i];
    output.push_back(CallItem(RandomId("fc_"), RandomId("call_"), call.name, call.arguments, ItemStatus::kCompleted));
  }
  return ResponseJson(job, std::move(output), &result);
}

void KeepResponse(const Job& job, const Json& response) {
  if (job.responses.store == nullptr || response["status"] == "failed") return;
  Json items = job.responses.items;
  for (const Json& item : response["output"]) items.push_back(item);
  for (Json& item : items) {
    // Whoever lists them goes on behind one of them.
    if (!item.contains("id") || !item["id"].is_string()) item["id"] = RandomId(IdPrefix(item));
  }
  job.responses.store->Put(job.responses.owner, job.id, {text::DumpJson(response), text::DumpJson(items)});
}

}  // namespace hadal::serving
