// Events of the prefix cache as a router's socket sees them.
#include "serving/events/kv_event_publisher.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"

namespace hadal::serving {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string Number(int64_t n) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(static_cast<uint64_t>(n) >> shift);
  return bytes;
}

class Peer {
 public:
  Peer(int type, const std::string& endpoint) : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    const int wait = 60'000;
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &wait, sizeof(wait));
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0);
  }
  ~Peer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  std::vector<std::string> Receive() {
    std::vector<std::string> parts;
    int more = 1;
    while (more != 0) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      if (zmq_msg_recv(&part, socket_, 0) < 0) {
        ADD_FAILURE() << "nothing came: " << zmq_strerror(zmq_errno());
        return {};
      }
      parts.emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
      more = zmq_msg_more(&part);
      zmq_msg_close(&part);
    }
    return parts;
  }
  void Send(const std::vector<std::string>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      zmq_send(socket_, parts[i].data(), parts[i].size(), i + 1 < parts.size() ? ZMQ_SNDMORE : 0);
    }
  }

 private:
  void* context_;
  void* socket_;
};

Sha256Digest Digest(uint8_t last) {
  Sha256Digest digest = {};
  digest[0] = 9;  // is not looked at
  digest[30] = 1;
  digest[31] = last;
  return digest;
}

class KvEventPublisher : public testing::Test {
 protected:
  void Make(int64_t buffer_steps = 10000, int64_t max_queue_size = 100000) {
    KvEventOptions options;
    options.endpoint = events_;
    options.replay_endpoint = replay_;
    options.topic = "kv@here";
    options.buffer_steps = buffer_steps;
    options.max_queue_size = max_queue_size;
    auto made = MakeKvEventPublisher(options);
    ASSERT_TRUE(made.ok()) << made.status();
    publisher_ = *std::move(made);
  }
  // What is kept, from `first` on: number and events of each message.
  std::vector<std::pair<std::string, json>> Replay(int64_t first) const {
    std::vector<std::pair<std::string, json>> messages;
    Peer dealer(ZMQ_DEALER, replay_);
    dealer.Send({"", Number(first)});
    while (true) {
      const std::vector<std::string> parts = dealer.Receive();
      if (parts.size() != 3) {
        ADD_FAILURE() << parts.size() << " parts";
        return messages;
      }
      EXPECT_EQ(parts[0], "");
      if (parts[1] == Number(-1)) return messages;
      messages.emplace_back(parts[1], json::from_msgpack(parts[2]));
    }
  }
  // The events of all messages, once there are `count`.
  json EventsOnceThereAre(size_t count) const {
    json all;
    for (int i = 0; i < 6000 && all.size() < count; ++i) {
      all = json::array();
      for (const auto& [number, batch] : Replay(0)) {
        for (const json& event : batch[1]) all.push_back(event);
      }
    }
    return all;
  }

  const std::string stem_ = "ipc://" + testing::TempDir() + fmt::format("kv_events_{}", getpid());
  const std::string events_ = stem_ + ".pub", replay_ = stem_ + ".replay";
  std::shared_ptr<runtime::KvEvents> publisher_;
};

TEST_F(KvEventPublisher, MessagesAreAsVllmsSubscribersReadThem) {
  Make();
  const Sha256Digest first = Digest(1), second = Digest(2);
  publisher_->Stored(first, nullptr, std::vector<int32_t>{5, 6, 7});
  publisher_->Stored(second, &first, std::vector<int32_t>{8, 9, 10});
  publisher_->Removed(first);
  publisher_->Cleared();
  EXPECT_EQ(EventsOnceThereAre(5), json::parse(R"([["AllBlocksCleared"],
      ["BlockStored", [257], null, [5, 6, 7], 3, null, "GPU"],
      ["BlockStored", [258], 257, [8, 9, 10], 3, null, "GPU"],
      ["BlockRemoved", [257], "GPU"],
      ["AllBlocksCleared"]])"));
  for (const auto& [number, batch] : Replay(0)) {
    EXPECT_EQ(batch.size(), 3u);
    EXPECT_GT(batch[0].get<double>(), 1.7e9);  // seconds since 1970
    EXPECT_EQ(batch[2], 0);
  }
}

TEST_F(KvEventPublisher, SubscribersGetNumberedMessages) {
  Make();
  Peer subscriber(ZMQ_SUB, events_);
  // Until the subscription has arrived messages pass it by.
  std::atomic<bool> stop = false;
  std::thread sender([&] {
    while (!stop) {
      publisher_->Removed(Digest(7));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  int64_t last = -1;
  for (int i = 0; i < 10; ++i) {
    const std::vector<std::string> parts = subscriber.Receive();
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[0], "kv@here");
    int64_t number = 0;
    for (const char c : parts[1]) number = number << 8 | static_cast<uint8_t>(c);
    EXPECT_TRUE(last < 0 || number == last + 1) << last << ", " << number;
    last = number;
    const json batch = json::from_msgpack(parts[2]);
    for (const json& event : batch[1]) EXPECT_EQ(event, json::parse(R"(["BlockRemoved", [263], "GPU"])"));
  }
  stop = true;
  sender.join();
}

TEST_F(KvEventPublisher, AReplayHasWhatIsKept) {
  Make(2);
  EventsOnceThereAre(1);
  for (int i = 0; i < 5; ++i) {
    publisher_->Removed(Digest(static_cast<uint8_t>(i)));
    for (int tries = 0; tries < 6000; ++tries) {  // each in a message of its own
      const auto messages = Replay(0);
      if (!messages.empty() && messages.back().first == Number(i + 1)) break;
    }
  }
  const auto kept = Replay(0);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].first, Number(4));
  EXPECT_EQ(kept[1].first, Number(5));
  EXPECT_EQ(Replay(5).size(), 1u);
  EXPECT_EQ(Replay(6).size(), 0u);
  // What is no request changes nothing.
  Peer(ZMQ_DEALER, replay_).Send({"", "abc"});
  Peer(ZMQ_DEALER, replay_).Send({"one part"});
  EXPECT_EQ(Replay(0).size(), 2u);
}

TEST_F(KvEventPublisher, MoreThanMayWaitIsToldAsCleared) {
  Make(10000, 1);
  EventsOnceThereAre(1);
  for (int i = 0; i < 2000; ++i) publisher_->Removed(Digest(3));
  publisher_->Removed(Digest(4));
  const json last = json::parse(R"(["BlockRemoved", [260], "GPU"])");
  json events;
  for (int i = 0; i < 6000 && (events.empty() || events.back() != last); ++i) events = EventsOnceThereAre(1);
  ASSERT_EQ(events.back(), last) << events;
  EXPECT_GT(std::count(events.begin(), events.end(), json::parse(R"(["AllBlocksCleared"])")), 1);
}

TEST_F(KvEventPublisher, AnEndpointThatIsTakenIsAnError) {
  Make();
  KvEventOptions options;
  options.endpoint = "tcp://nowhere";
  const absl::Status status = MakeKvEventPublisher(options).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(Message(status)), HasSubstr("cannot bind tcp://nowhere"));
}

TEST(KvEventsConfig, IsVllms) {
  const auto options = ParseKvEventsConfig(
      R"({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:1", "replay_endpoint": "tcp://*:2",
          "buffer_steps": 3, "hwm": 4, "max_queue_size": 5, "topic": "t"})");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->enabled);
  EXPECT_EQ(options->endpoint, "tcp://*:1");
  EXPECT_EQ(options->replay_endpoint, "tcp://*:2");
  EXPECT_EQ(options->buffer_steps, 3);
  EXPECT_EQ(options->hwm, 4);
  EXPECT_EQ(options->max_queue_size, 5);
  EXPECT_EQ(options->topic, "t");
  EXPECT_FALSE(ParseKvEventsConfig(R"({"enable_kv_cache_events": false})")->enabled);
  EXPECT_FALSE(ParseKvEventsConfig(R"({"publisher": "null"})")->enabled);
  EXPECT_TRUE(ParseKvEventsConfig(R"({"replay_endpoint": null})")->replay_endpoint.empty());
  const std::pair<const char*, const char*> bad[] = {
      {"", "JSON"},
      {"[]", "object"},
      {R"({"endpoint": 5})", "endpoint: expected a string, found 5"},
      {R"({"hwm": -1})", "hwm: expected an integer"},
      {R"({"buffer_steps": 1.5})", "buffer_steps: expected an integer"},
      {R"({"publisher": "nats"})", "publisher: expected \"zmq\" or \"null\""},
      {R"({"end_point": "tcp://*:1"})", "end_point: expected enable_kv_cache_events"},
      {R"({"enable_kv_cache_events": 1})", "enable_kv_cache_events: expected true or false"},
  };
  for (const auto& [text, says] : bad) {
    const absl::Status status = ParseKvEventsConfig(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(Message(status)), HasSubstr(says));
  }
}

}  // namespace
}  // namespace hadal::serving
