// Bodies of the Messages API: any bytes give a job, or a 400 that says why; a job becomes an answer, whole and
// streamed. The first byte chooses between messages and count_tokens.
#include "serving/anthropic/messages.h"
#include "serving_body_fuzz.h"

namespace {

using namespace hadal;

void CheckMessage(const serving::Job& job) {
  fuzz::CheckJob(job);
  fuzz::CheckJson(serving::BuildMessage(job, runtime::GenerateResult()));
  fuzz::CheckStream(serving::MakeMessagesStream(job).get());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = fuzz::ParseBody(data, size);
  if (!json.has_value()) return 0;
  absl::Status status;
  if (data[0] % 2 == 0) {
    const absl::StatusOr<serving::Job> job = serving::ParseMessages(*json, fuzz::TheEngine());
    if (job.ok()) CheckMessage(*job);
    status = job.status();
  } else {
    status = serving::CountMessageTokens(*json, fuzz::TheEngine()).status();
  }
  if (!status.ok()) {
    HADAL_CHECK(serving::HttpStatus(status) == 400);
    fuzz::CheckJson(serving::MessagesErrorBody(status));
  }
  return 0;
}
