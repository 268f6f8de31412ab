// Bodies of the Responses API: any bytes give a job, or an error that says why; a job becomes an answer, whole and
// streamed. The first byte says whether there is a store, with one response in it.
#include "serving/responses/responses.h"
#include "serving_body_fuzz.h"

namespace {

using namespace hadal;

void CheckResponse(const serving::Job& job) {
  fuzz::CheckJob(job);
  const text::Json response = serving::BuildResponse(job, runtime::GenerateResult());
  fuzz::CheckJson(response);
  serving::KeepResponse(job, response);
  fuzz::CheckStream(serving::MakeResponsesStream(job).get());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = fuzz::ParseBody(data, size);
  if (!json.has_value()) return 0;
  serving::ResponseStore kept({.max_bytes = 1 << 16});
  kept.Put("", "resp_1", {"{}", R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])"});
  serving::ParseOptions options;
  options.store = data[0] % 2 == 0 ? &kept : nullptr;
  const absl::StatusOr<serving::Job> job = serving::ParseResponses(*json, fuzz::TheEngine(), options);
  if (job.ok()) {
    CheckResponse(*job);
  } else {
    const int status = serving::ResponsesHttpStatus(job.status());
    HADAL_CHECK(status == 400 || status == 404 || status == 501);
    fuzz::CheckJson(serving::ResponsesErrorBody(job.status()));
  }
  return 0;
}
