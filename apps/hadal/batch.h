// hadal run --batch: the requests of a file, many at once, in the format of OpenAI's batches (docs/batch.md).
#pragma once

#include <string>

#include "engine_flags.h"
#include "sampling_flags.h"

namespace hadal::cli {

inline constexpr int64_t kBatchMaxSeqs = 16;  // requests that run at once, unless --max-num-seqs says it

struct BatchFlags {
  EngineFlags engine;
  SamplingFlags sampling;  // for requests that do not say it themselves
  std::string input;
  std::string output;  // "-": stdout
};

// The exit code: kOk if every request was answered with 200, kBadRequest if not.
int RunBatch(BatchFlags flags);

}  // namespace hadal::cli
