// Events of the prefix cache over ZeroMQ, in the format of vLLM's publisher, so that routers that follow prefixes take
// hadal for one of its servers (https://docs.vllm.ai, KV events).
//
// Each message on the PUB socket has three parts: the topic, a number that goes up by one (8 bytes, big end first), and
// MessagePack [seconds since 1970, [event...], 0] with the events
//   ["BlockStored", [hash], parent's hash or nil, [token...], tokens of a block, nil, "GPU"]
//   ["BlockRemoved", [hash], "GPU"]
//   ["AllBlocksCleared"]
// A hash is the last 8 bytes of the block's SHA-256; "GPU" is the memory that requests are computed from, on every
// platform. Whoever missed messages asks the ROUTER socket with the first
// number that is wanted and gets those that are still kept, each behind an empty part, and number -1 at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/kv/kv_events.h"

namespace hadal::serving {

struct KvEventOptions {
  bool enabled = true;
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint = {};  // empty: none
  std::string topic = {};
  int64_t buffer_steps = 10000;     // messages kept for the ROUTER socket
  int hwm = 100000;                 // messages kept for a subscriber that is slow
  int64_t max_queue_size = 100000;  // events that wait for the publisher's thread; more are told as AllBlocksCleared
};

// vLLM's --kv-events-config: a JSON object with enable_kv_cache_events, publisher ("zmq" or "null"), endpoint,
// replay_endpoint, buffer_steps, hwm, max_queue_size, topic. InvalidArgument names the field at fault.
absl::StatusOr<KvEventOptions> ParseKvEventsConfig(std::string_view json);

// Binds the sockets and publishes from a thread of its own; the first message is AllBlocksCleared. What was told before
// it is gone is sent by its destructor. Unavailable for an endpoint that cannot be had; Unimplemented in a build
// without ZeroMQ.
absl::StatusOr<std::shared_ptr<runtime::KvEvents>> MakeKvEventPublisher(const KvEventOptions& options);

}  // namespace hadal::serving
