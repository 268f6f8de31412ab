// Streamed answers of the OpenAI API: chunks of chat completions and of completions (spec serving-runtime 6.6, 6.8).
#pragma once

#include <memory>

#include "serving/openai/job.h"
#include "serving/stream.h"

namespace hadal::serving {

// For a job of either kind, which must outlive the encoder. The deltas of a choice, joined, are what BuildAnswer puts
// into the whole answer.
std::unique_ptr<StreamEncoder> MakeOpenAiStream(const Job& job,
                                                const std::shared_ptr<const text::Tokenizer>& tokenizer);

}  // namespace hadal::serving
