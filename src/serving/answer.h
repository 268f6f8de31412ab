// What is said of an answer in every protocol that makes blocks or items of it.
#pragma once

#include "runtime/request.h"
#include "serving/openai/job.h"

namespace hadal::serving {

// Whether an answer gets a text without a character: clients look for one. An answer that was cut while it reasoned is
// that reasoning alone.
bool NeedsEmptyText(const Job& job, const runtime::GenerateResult& result);

}  // namespace hadal::serving
