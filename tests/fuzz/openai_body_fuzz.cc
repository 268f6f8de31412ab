// Bodies of OpenAI requests: any bytes give a job or a 400 that says why; a job can be built into an answer, whole or
// streamed, and text to be tokenized into one at once. The first byte chooses the kind. A kept input of 1000 bytes
// takes less than a millisecond; images are the image target's.
#include <string_view>

#include "serving/openai/stream.h"
#include "serving/openai/tokenize.h"
#include "serving_body_fuzz.h"

namespace {

using namespace hadal;

using fuzz::CheckJson;
using fuzz::TheEngine;

void CheckJob(const serving::Job& job) {
  HADAL_CHECK(!job.requests.empty() && !job.prompts.empty() && job.choices.size() >= job.requests.size());
  for (const serving::Choice& choice : job.choices) {
    HADAL_CHECK(choice.request < job.requests.size() && choice.prompt < job.prompts.size());
  }
  for (const runtime::GenerateRequest& request : job.requests) {
    HADAL_CHECK(!request.prompt.empty());
    HADAL_CHECK(runtime::CheckSamplingParams(request.sampling, TheEngine().config().vocab_size).ok());
  }
  const std::vector<runtime::GenerateResult> results(job.requests.size());
  CheckJson(serving::BuildAnswer(job, results, TheEngine().tokenizer()));
  const auto encoder = serving::MakeOpenAiStream(job, TheEngine().tokenizer());
  for (const serving::StreamFrame& frame : encoder->Begin()) HADAL_CHECK(text::ParseJson(frame.data).ok());
}

void CheckError(const absl::Status& status) {
  HADAL_CHECK(serving::HttpStatus(status) == 400);
  CheckJson(serving::ErrorBody(status));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const absl::StatusOr<text::Json> json = text::ParseJson(body);
  if (!json.ok()) {
    CheckError(json.status());
    return 0;
  }
  if (data[0] % 4 >= 2) {
    const auto answer =
        data[0] % 2 == 0 ? serving::Tokenize(*json, TheEngine()) : serving::Detokenize(*json, TheEngine());
    if (!answer.ok()) {
      CheckError(answer.status());
    } else {
      CheckJson(*answer);
    }
    return 0;
  }
  const absl::StatusOr<serving::Job> job = data[0] % 2 == 0 ? serving::ParseChatCompletion(*json, TheEngine())
                                                            : serving::ParseCompletion(*json, TheEngine());
  if (job.ok()) {
    CheckJob(*job);
  } else {
    CheckError(job.status());
  }
  return 0;
}
