#include "answer.h"

#include <cmath>

#include "base/status.h"
#include "text/json_text.h"

namespace hadal::cli {
namespace {

using text::Json;
using text::OutputEvent;

constexpr std::string_view kDim = "\033[2m", kPlain = "\033[0m";

// Writes events to stdout; knows whether the terminal is set to dim at the moment.
class StreamPrinter {
 public:
  bool Print(const std::vector<OutputEvent>& events) {
    std::string out;
    for (const OutputEvent& event : events) {
      if (event.kind == OutputEvent::Kind::kReasoning) {
        if (!terminal_) continue;
        SetDim(true, &out);
        out += event.text;
      } else if (event.kind == OutputEvent::Kind::kContent) {
        SetDim(false, &out);
        out += event.text;
      } else if (event.kind == OutputEvent::Kind::kCallBegin) {
        SetDim(false, &out);
        out += fmt::format("{}{}(", at_line_start_ && out.empty() ? "" : "\n", event.text);
      } else if (event.kind == OutputEvent::Kind::kCallArguments) {
        out += event.text;
      } else if (event.kind == OutputEvent::Kind::kCallEnd) {
        out += ")";
      }
    }
    return Write(out);
  }

  bool End() {
    std::string out;
    SetDim(false, &out);
    if (!at_line_start_ && !out.ends_with('\n')) out += '\n';
    return Write(out);
  }

 private:
  // Reasoning and content stand on lines of their own.
  void SetDim(bool dim, std::string* out) {
    if (dim == dim_) return;
    *out += dim ? kDim : kPlain;
    if (!dim) *out += "\n";
    dim_ = dim;
  }
  bool Write(const std::string& out) {
    if (out.empty()) return true;
    at_line_start_ = out.ends_with('\n');
    return WriteOut(out);
  }

  const bool terminal_ = StdoutIsTerminal();
  bool dim_ = false;
  bool at_line_start_ = true;
};

Json CallsJson(const std::vector<text::ToolCall>& calls) {
  Json out = Json::array();
  for (const text::ToolCall& call : calls) {
    out.push_back({{"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return out;
}

// JSON has no infinity: a token that cannot be has -9999 (spec serving-runtime 5.4).
double FiniteLogprob(float logprob) { return std::isinf(logprob) ? -9999.0 : static_cast<double>(logprob); }

Json LogprobsJson(const std::vector<runtime::TokenStep>& steps) {
  Json out = Json::array();
  for (const runtime::TokenStep& step : steps) {
    Json top = Json::array();
    for (const runtime::TokenLogprob& likely : step.top) {
      top.push_back({{"token_id", likely.id}, {"logprob", FiniteLogprob(likely.logprob)}});
    }
    out.push_back({{"token_id", step.id}, {"logprob", FiniteLogprob(step.logprob)}, {"top", std::move(top)}});
  }
  return out;
}

}  // namespace

absl::StatusOr<runtime::GenerateResult> Answer(runtime::Generator* generator, const runtime::GenerateRequest& request,
                                               Show show) {
  InterruptScope interrupt;
  StreamPrinter printer;
  absl::StatusOr<runtime::GenerateResult> result = generator->Generate(
      request, [&](const std::vector<OutputEvent>& events) { return show == Show::kNothing || printer.Print(events); },
      interrupt.flag());
  if (show == Show::kStream) printer.End();
  return result;
}

std::string AnswerJson(const runtime::GenerateRequest& request, const runtime::GenerateResult& result,
                       double load_seconds) {
  Json out;
  out["text"] = result.content;
  if (!result.reasoning.empty()) out["reasoning"] = result.reasoning;
  if (!result.tool_calls.empty()) out["tool_calls"] = CallsJson(result.tool_calls);
  out["token_ids"] = result.token_ids;
  out["finish_reason"] = runtime::FinishReasonName(result.finish_reason);
  if (!result.stop_string.empty()) out["stop_reason"] = result.stop_string;
  if (result.stop_token >= 0) out["stop_reason"] = result.stop_token;
  const auto generated = static_cast<int64_t>(result.token_ids.size());
  out["usage"] = {{"prompt_tokens", result.prompt_tokens},
                  {"completion_tokens", generated},
                  {"total_tokens", result.prompt_tokens + generated},
                  {"prompt_tokens_details", {{"cached_tokens", result.cached_tokens}}},
                  {"completion_tokens_details", {{"reasoning_tokens", result.reasoning_tokens}}}};
  if (result.draft_tokens > 0) {
    out["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] = result.accepted_tokens;
    out["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] =
        result.draft_tokens - result.accepted_tokens;
  }
  if (!result.logprobs.empty()) out["logprobs"] = LogprobsJson(result.logprobs);
  if (!result.prompt_logprobs.empty()) out["prompt_logprobs"] = LogprobsJson(result.prompt_logprobs);
  const runtime::GenerateTimings& t = result.timings;
  out["timings"] = {{"load_seconds", load_seconds},
                    {"ttft_seconds", t.prefill_seconds},
                    {"prefill_seconds", t.prefill_seconds},
                    {"decode_seconds", t.decode_seconds},
                    {"prefill_tokens_per_second", t.prefill_tokens_per_second},
                    {"decode_tokens_per_second", t.decode_tokens_per_second}};
  out["seed"] = static_cast<int64_t>(request.sampling.seed);
  return text::DumpJson(out) + "\n";
}

void PrintSpeed(const runtime::GenerateResult& result) {
  const runtime::GenerateTimings& t = result.timings;
  std::string line =
      fmt::format("{} prompt tokens at {:.1f} tokens/s", result.prompt_tokens, t.prefill_tokens_per_second);
  line += fmt::format(", {} generated", result.token_ids.size());
  if (t.decode_tokens_per_second > 0) line += fmt::format(" at {:.1f} tokens/s", t.decode_tokens_per_second);
  line += fmt::format(", first after {:.0f} ms", 1e3 * t.prefill_seconds);
  if (result.finish_reason == runtime::FinishReason::kLength) line += ", cut at the length limit";
  std::fputs((line + "\n").c_str(), stderr);
}

}  // namespace hadal::cli
