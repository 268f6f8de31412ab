// /tokenize and /detokenize (spec serving-runtime 6.8), as vLLM has them.
#pragma once

#include "absl/status/statusor.h"
#include "runtime/engine.h"
#include "serving/openai/job.h"
#include "text/json_text.h"

namespace hadal::serving {

// A body with `prompt` gives its ids as /v1/completions would take them, one with `messages` those of the chat's
// prompt: {"count", "max_model_len", "tokens", "token_strs"}.
absl::StatusOr<text::Json> Tokenize(const text::Json& body, const runtime::Engine& engine,
                                    const ParseOptions& options = {});
// {"tokens": [...]} to {"prompt": ...}.
absl::StatusOr<text::Json> Detokenize(const text::Json& body, const runtime::Engine& engine,
                                      const ParseOptions& options = {});

}  // namespace hadal::serving
