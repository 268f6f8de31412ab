// A streamed answer as the frames of server-sent events (spec serving-runtime 6.7). Each protocol has its own encoder;
// nothing here knows a socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/request.h"
#include "text/output_parser.h"

namespace hadal::serving {

// One frame: "event: ..." (left out if empty) and "data: ...", which has no line break.
struct StreamFrame {
  std::string event;
  std::string data;
};

// What became known about one request since it was last asked.
struct StreamDelta {
  std::vector<text::OutputEvent> events;
  std::vector<runtime::TokenStep> tokens;  // generated, with log-probabilities if the request asked for them
};

// Frames of one answer, in order. Called by one thread at a time: Begin, then Add and Finish for each of the job's
// requests, in any mixture, then End. After Fail nothing more is asked for.
class StreamEncoder {
 public:
  virtual ~StreamEncoder() = default;

  virtual std::vector<StreamFrame> Begin() = 0;
  // `request`: index into Job::requests. Deltas that say nothing give no frame.
  virtual std::vector<StreamFrame> Add(size_t request, const StreamDelta& delta) = 0;
  // All of a request's deltas were added.
  virtual std::vector<StreamFrame> Finish(size_t request, const runtime::GenerateResult& result) = 0;
  virtual std::vector<StreamFrame> End() = 0;
  // The answer cannot be completed; the last frames.
  virtual std::vector<StreamFrame> Fail(const absl::Status& error) = 0;
};

}  // namespace hadal::serving
