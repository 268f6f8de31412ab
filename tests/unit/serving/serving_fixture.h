// The bundled model, loaded once for all tests of the program, and bodies to try on it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "serving/openai/job.h"
#include "support/paths.h"

namespace hadal::serving {

inline constexpr int64_t kContext = 1024;

inline runtime::Engine& BundledEngine() {
  static runtime::Engine* const engine = [] {
    runtime::EngineOptions options;
    options.max_model_len = kContext;
    options.max_seqs = 4;
    options.model.threads = 1;
    auto loaded = runtime::Engine::Load(test::BundledModel(), options);
    HADAL_CHECK(loaded.ok());
    return loaded->release();
  }();
  return *engine;
}

inline text::Json Body(std::string_view json) {
  auto parsed = text::ParseJson(json);
  EXPECT_TRUE(parsed.ok()) << json << ": " << parsed.status();
  return parsed.ok() ? *parsed : text::Json();
}

inline absl::StatusOr<Job> Parse(const text::Json& body, const ParseOptions& options = {}) {
  const bool chat = !body.is_object() || !body.contains("prompt");
  return chat ? ParseChatCompletion(body, BundledEngine(), options) : ParseCompletion(body, BundledEngine(), options);
}

// A chat with one question, and `fields` beside it: "\"n\": 2, \"seed\": 1".
inline std::string Chat(std::string_view fields) {
  return fmt::format(R"({{"messages": [{{"role": "user", "content": "What is 478 + 365?"}}]{}{}}})",
                     fields.empty() ? "" : ", ", fields);
}
inline std::string Messages(std::string_view messages) { return fmt::format(R"({{"messages": {}}})", messages); }
inline std::string Prompt(std::string_view prompt, std::string_view fields = "") {
  return fmt::format(R"({{"prompt": {}{}{}}})", prompt, fields.empty() ? "" : ", ", fields);
}

// What the error says, or "accepted".
inline std::string Refusal(std::string_view json, const ParseOptions& options = {}) {
  const absl::StatusOr<Job> job = Parse(Body(json), options);
  if (job.ok()) return "accepted";
  EXPECT_EQ(HttpStatus(job.status()), 400) << job.status();
  return std::string(Message(job.status()));
}

inline Job Accepted(std::string_view json, const ParseOptions& options = {}) {
  absl::StatusOr<Job> job = Parse(Body(json), options);
  EXPECT_TRUE(job.ok()) << json << ": " << job.status();
  return job.ok() ? *std::move(job) : Job();
}

}  // namespace hadal::serving
