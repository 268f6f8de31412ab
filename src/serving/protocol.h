// What a server needs to know of a protocol: one entry for each route that takes a JSON body. A protocol is added by
// its entries in the table of protocol.cc; nothing else of the server knows one.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine.h"
#include "serving/openai/job.h"
#include "serving/stream.h"
#include "text/json_text.h"

namespace hadal::serving {

using Vocabulary = std::shared_ptr<const text::Tokenizer>;

// A route by POST. It has either `answer`, or `parse`, `build` and `encode`.
struct Endpoint {
  std::string_view path;

  // The answer's body, where no token is generated.
  absl::StatusOr<text::Json> (*answer)(const text::Json& body, const runtime::Engine&, const ParseOptions&) = nullptr;

  // A body to requests, and their results to the answer's body.
  absl::StatusOr<Job> (*parse)(const text::Json& body, const runtime::Engine&, const ParseOptions&) = nullptr;
  text::Json (*build)(const Job&, const std::vector<runtime::GenerateResult>&, const Vocabulary&) = nullptr;
  // The encoder of a streamed answer; the job outlives it.
  std::unique_ptr<StreamEncoder> (*encode)(const Job&, const Vocabulary&) = nullptr;

  // The status line's number of an error.
  int (*status)(const absl::Status&) = HttpStatus;
  // The body of an error.
  text::Json (*error)(int http_status, const absl::Status&) = nullptr;
  // Sent over a stream on which nothing happens: a comment, or an event of the protocol.
  std::string_view keep_alive = ": keep-alive\n\n";
  // The key may also come in the header x-api-key.
  bool takes_x_api_key = false;
};

std::span<const Endpoint> Endpoints();

}  // namespace hadal::serving
