#include "serving/events/kv_event_publisher.h"

#include <fmt/format.h>

#include "base/status.h"
#include "text/json_text.h"

#if HADAL_ZMQ
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#endif

namespace hadal::serving {
namespace {

using text::Json;

absl::Status Expected(std::string_view field, const char* what, const Json& found) {
  return InvalidArgument("{}: expected {}, found {}", field, what, text::DumpJson(found));
}

absl::Status ReadText(const std::string& field, const Json& value, std::string* text) {
  if (!value.is_string()) return Expected(field, "a string", value);
  *text = value;
  return absl::OkStatus();
}

absl::Status ReadCount(const std::string& field, const Json& value, int64_t most, int64_t* count) {
  if (!value.is_number_integer() || value < 0 || value > most) {
    return Expected(field, fmt::format("an integer from 0 to {}", most).c_str(), value);
  }
  *count = value;
  return absl::OkStatus();
}

absl::Status ReadField(const std::string& field, const Json& value, KvEventOptions* options) {
  constexpr int64_t kMost = 1'000'000'000;
  if (field == "enable_kv_cache_events") {
    if (!value.is_boolean()) return Expected(field, "true or false", value);
    options->enabled = options->enabled && value;
    return absl::OkStatus();
  }
  if (field == "publisher") {
    if (value != "zmq" && value != "null") return Expected(field, "\"zmq\" or \"null\"", value);
    options->enabled = options->enabled && value == "zmq";
    return absl::OkStatus();
  }
  if (field == "endpoint") return ReadText(field, value, &options->endpoint);
  if (field == "replay_endpoint") {
    return value.is_null() ? absl::OkStatus() : ReadText(field, value, &options->replay_endpoint);
  }
  if (field == "topic") return ReadText(field, value, &options->topic);
  if (field == "buffer_steps") return ReadCount(field, value, kMost, &options->buffer_steps);
  if (field == "max_queue_size") return ReadCount(field, value, kMost, &options->max_queue_size);
  if (field == "hwm") {
    int64_t hwm = 0;
    HADAL_RETURN_IF_ERROR(ReadCount(field, value, kMost, &hwm));
    options->hwm = static_cast<int>(hwm);
    return absl::OkStatus();
  }
  return InvalidArgument(
      "{}: expected enable_kv_cache_events, publisher, endpoint, replay_endpoint, buffer_steps, hwm, max_queue_size or "
      "topic",
      field);
}

#if HADAL_ZMQ

constexpr int64_t kEndOfReplay = -1;
constexpr int kLingerMs = 1000;
constexpr const char* kMedium = "GPU";

std::array<unsigned char, 8> BigEndian(int64_t number) {
  std::array<unsigned char, 8> bytes;
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(static_cast<uint64_t>(number) >> (56 - 8 * i));
  return bytes;
}

uint64_t ShortHash(const Sha256Digest& digest) {
  uint64_t hash = 0;
  for (size_t i = digest.size() - 8; i < digest.size(); ++i) hash = hash << 8 | digest[i];
  return hash;
}

struct CloseContext {
  void operator()(void* context) const { zmq_ctx_term(context); }
};
struct CloseSocket {
  void operator()(void* socket) const { zmq_close(socket); }
};
using Context = std::unique_ptr<void, CloseContext>;
using Socket = std::unique_ptr<void, CloseSocket>;

class Publisher final : public runtime::KvEvents {
 public:
  explicit Publisher(KvEventOptions options) : options_(std::move(options)), context_(zmq_ctx_new()) {}

  ~Publisher() override {
    if (thread_.joinable()) {
      stopping_ = true;
      Wake();
      thread_.join();
    }
    if (wake_ >= 0) close(wake_);
  }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  absl::Status Start() {
    if (context_ == nullptr) return absl::InternalError("ZeroMQ cannot start");
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0) return absl::ResourceExhaustedError("no file descriptor is left for the events' publisher");
    HADAL_RETURN_IF_ERROR(Bind(ZMQ_PUB, options_.endpoint, &publish_));
    if (!options_.replay_endpoint.empty()) HADAL_RETURN_IF_ERROR(Bind(ZMQ_ROUTER, options_.replay_endpoint, &replay_));
    Cleared();
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  void Stored(const Sha256Digest& hash, const Sha256Digest* parent, std::span<const int32_t> tokens) override {
    Event event = {.kind = Event::Kind::kStored, .hash = ShortHash(hash)};
    if (parent != nullptr) event.parent = ShortHash(*parent);
    event.tokens.assign(tokens.begin(), tokens.end());
    Add(std::move(event));
  }
  void Removed(const Sha256Digest& hash) override { Add({.kind = Event::Kind::kRemoved, .hash = ShortHash(hash)}); }
  void Cleared() override { Add({.kind = Event::Kind::kCleared}); }

 private:
  struct Event {
    enum class Kind { kStored, kRemoved, kCleared };
    Kind kind = Kind::kCleared;
    uint64_t hash = 0;
    std::optional<uint64_t> parent = {};
    std::vector<int32_t> tokens = {};
  };

  absl::Status Bind(int type, const std::string& endpoint, Socket* socket) {
    socket->reset(zmq_socket(context_.get(), type));
    if (*socket == nullptr) return absl::InternalError(zmq_strerror(zmq_errno()));
    zmq_setsockopt(socket->get(), ZMQ_SNDHWM, &options_.hwm, sizeof(options_.hwm));
    zmq_setsockopt(socket->get(), ZMQ_LINGER, &kLingerMs, sizeof(kLingerMs));
    if (zmq_bind(socket->get(), endpoint.c_str()) == 0) return absl::OkStatus();
    return absl::UnavailableError(fmt::format("cannot bind {}: {}", endpoint, zmq_strerror(zmq_errno())));
  }

  void Add(Event event) {
    {
      const std::lock_guard lock(mutex_);
      // Who knows too little asks for a prefix too often; who knows what is gone would ask in vain.
      if (static_cast<int64_t>(pending_.size()) >= options_.max_queue_size) {
        pending_.clear();
        pending_.push_back({.kind = Event::Kind::kCleared});
      }
      pending_.push_back(std::move(event));
    }
    Wake();
  }

  void Wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = write(wake_, &one, sizeof(one));
  }

  void Run() {
    std::array<zmq_pollitem_t, 2> items = {{{nullptr, wake_, ZMQ_POLLIN, 0}, {replay_.get(), 0, ZMQ_POLLIN, 0}}};
    const int count = replay_ != nullptr ? 2 : 1;
    while (true) {
      const bool last = stopping_;
      if (!last && zmq_poll(items.data(), count, -1) < 0 && zmq_errno() != EINTR) {
        spdlog::error("KV-cache events end here: {}", zmq_strerror(zmq_errno()));
        return;
      }
      uint64_t ignored = 0;
      [[maybe_unused]] const ssize_t n = read(wake_, &ignored, sizeof(ignored));
      Publish();
      if (last) return;
      if (count > 1 && (items[1].revents & ZMQ_POLLIN) != 0) Replay();
    }
  }

  Json JsonOf(const Event& event) const {
    switch (event.kind) {
      case Event::Kind::kStored:
        return Json::array({"BlockStored", Json::array({event.hash}), event.parent ? Json(*event.parent) : Json(),
                            event.tokens, event.tokens.size(), nullptr, kMedium});
      case Event::Kind::kRemoved:
        return Json::array({"BlockRemoved", Json::array({event.hash}), kMedium});
      default:
        return Json::array({"AllBlocksCleared"});
    }
  }

  // Everything that waits, as one message.
  void Publish() {
    std::vector<Event> events;
    {
      const std::lock_guard lock(mutex_);
      events.swap(pending_);
    }
    if (events.empty()) return;
    Json list = Json::array();
    for (const Event& event : events) list.push_back(JsonOf(event));
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    const std::vector<uint8_t> payload = Json::to_msgpack(Json::array({now, std::move(list), 0}));
    const auto number = BigEndian(next_);
    zmq_send(publish_.get(), options_.topic.data(), options_.topic.size(), ZMQ_SNDMORE);
    zmq_send(publish_.get(), number.data(), number.size(), ZMQ_SNDMORE);
    zmq_send(publish_.get(), payload.data(), payload.size(), 0);
    sent_.emplace_back(next_++, payload);
    while (static_cast<int64_t>(sent_.size()) > options_.buffer_steps) sent_.pop_front();
  }

  // The parts of one message; empty if there is none.
  std::vector<std::string> Receive() const {
    std::vector<std::string> parts;
    int more = 1;
    while (more != 0) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      if (zmq_msg_recv(&part, replay_.get(), ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&part);
        return {};
      }
      parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
      more = zmq_msg_more(&part);
      zmq_msg_close(&part);
    }
    return parts;
  }

  void Replay() {
    const std::vector<std::string> parts = Receive();
    if (parts.size() != 3 || parts[2].size() != 8) {
      if (!parts.empty()) spdlog::warn("KV-cache events: a request for a replay is not a number of 8 bytes");
      return;
    }
    uint64_t first = 0;
    for (const char c : parts[2]) first = first << 8 | static_cast<uint8_t>(c);
    for (const auto& [number, payload] : sent_) {
      if (static_cast<uint64_t>(number) >= first && !SendReplay(parts[0], number, payload)) return;
    }
    SendReplay(parts[0], kEndOfReplay, {});
  }

  // False for a client that has gone or does not read.
  bool SendReplay(const std::string& client, int64_t number, const std::vector<uint8_t>& payload) const {
    const auto bytes = BigEndian(number);
    return zmq_send(replay_.get(), client.data(), client.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(replay_.get(), "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(replay_.get(), bytes.data(), bytes.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(replay_.get(), payload.data(), payload.size(), ZMQ_DONTWAIT) >= 0;
  }

  const KvEventOptions options_;
  Context context_;
  Socket publish_, replay_;  // of the thread, once it runs
  int wake_ = -1;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::vector<Event> pending_;
  // Of the thread.
  int64_t next_ = 0;
  std::deque<std::pair<int64_t, std::vector<uint8_t>>> sent_;
  std::thread thread_;
};

#endif

}  // namespace

absl::StatusOr<KvEventOptions> ParseKvEventsConfig(std::string_view json) {
  absl::StatusOr<Json> config = text::ParseJson(json);
  if (!config.ok()) return config.status();
  if (!config->is_object()) return InvalidArgument("expected a JSON object, found {}", text::DumpJson(*config));
  KvEventOptions options;
  for (const auto& [field, value] : config->items()) HADAL_RETURN_IF_ERROR(ReadField(field, value, &options));
  return options;
}

absl::StatusOr<std::shared_ptr<runtime::KvEvents>> MakeKvEventPublisher(
    [[maybe_unused]] const KvEventOptions& options) {
#if HADAL_ZMQ
  auto publisher = std::make_shared<Publisher>(options);
  HADAL_RETURN_IF_ERROR(publisher->Start());
  return publisher;
#else
  return absl::UnimplementedError("this build of hadal has no ZeroMQ (HADAL_ZMQ)");
#endif
}

}  // namespace hadal::serving
