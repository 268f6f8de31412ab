// What the fuzz targets of request bodies share: the bundled model, and what holds for every job and every stream.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "serving/openai/job.h"
#include "serving/stream.h"
#include "text/json_text.h"

namespace hadal::fuzz {

inline const runtime::Engine& TheEngine() {
  static const runtime::Engine* const engine = [] {
    runtime::EngineOptions options;
    options.max_model_len = 512;
    options.max_batch_tokens = 128;
    options.model.threads = 1;
    auto loaded = runtime::Engine::Load(HADAL_SOURCE_DIR "/models/tiny-v4-vision", options);
    HADAL_CHECK(loaded.ok());
    return loaded->release();
  }();
  return *engine;
}

// The body behind the first byte, if it is JSON.
inline std::optional<text::Json> ParseBody(const uint8_t* data, size_t size) {
  if (size == 0) return std::nullopt;
  absl::StatusOr<text::Json> json = text::ParseJson({reinterpret_cast<const char*>(data) + 1, size - 1});
  return json.ok() ? std::optional(*std::move(json)) : std::nullopt;
}

inline void CheckJson(const text::Json& body) { HADAL_CHECK(text::ParseJson(text::DumpJson(body)).ok()); }

// Of a protocol that answers with one choice.
inline void CheckJob(const serving::Job& job) {
  HADAL_CHECK(job.requests.size() == 1 && job.prompts.size() == 1 && job.choices.size() == 1);
  HADAL_CHECK(!job.requests[0].prompt.empty() && job.requests[0].parser.has_value());
  HADAL_CHECK(runtime::CheckSamplingParams(job.requests[0].sampling, TheEngine().config().vocab_size).ok());
}

inline void CheckStream(serving::StreamEncoder* encoder) {
  const auto check = [](const std::vector<serving::StreamFrame>& frames) {
    for (const serving::StreamFrame& frame : frames) {
      HADAL_CHECK(text::ParseJson(frame.data).ok() && frame.data.find('\n') == std::string::npos);
    }
  };
  using Kind = text::OutputEvent::Kind;
  check(encoder->Begin());
  check(encoder->Add(0, {{{Kind::kReasoning, "a"},
                          {Kind::kContent, "b"},
                          {Kind::kCallBegin, "c", 0},
                          {Kind::kCallArguments, "{}", 0},
                          {Kind::kCallEnd, "", 0, true}},
                         {}}));
  check(encoder->Finish(0, runtime::GenerateResult()));
  check(encoder->End());
}

}  // namespace hadal::fuzz
