// One answer: generated, shown as it comes, and summed up.
#pragma once

#include <string>

#include "cli.h"
#include "runtime/engine.h"
#include "runtime/generator.h"

namespace hadal::cli {

enum class Show {
  kNothing,  // for --json
  kStream,   // content to stdout as it comes; on a terminal also the reasoning, dimmed
};

// Generates. ^C stops it, and so does a reader of stdout that goes away; what was generated so far comes back.
absl::StatusOr<runtime::GenerateResult> Answer(runtime::Generator* generator, const runtime::GenerateRequest& request,
                                               Show show);

// The JSON object of `hadal run --json`, with a newline.
std::string AnswerJson(const runtime::GenerateRequest& request, const runtime::GenerateResult& result,
                       double load_seconds);

// Token counts and speeds for people, to stderr.
void PrintSpeed(const runtime::GenerateResult& result);

}  // namespace hadal::cli
