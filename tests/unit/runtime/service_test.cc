// The service under load from several threads: every request ends exactly once, with a prefix of the tokens that it
// would have alone, and nothing is left behind. HADAL_SOAK_SECONDS lengthens the soak (`make soak`).
#include "runtime/service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <random>
#include <thread>

#include "paged_fake_model.h"
#include "support/paths.h"

namespace hadal::runtime {
namespace {

using test::PagedFakeModel;

constexpr int64_t kVocab = 300;

std::shared_ptr<const text::Tokenizer> Tokens() {
  static const auto tokenizer = text::Tokenizer::Load(test::BundledModel());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

struct Running {
  explicit Running(int64_t seqs = 4, int64_t slabs = 150, int64_t drafts = 2)
      : model(kVocab, Limits(seqs, slabs, drafts)) {
    ExecutorOptions options;
    options.num_speculative_tokens = drafts;
    executor = std::make_unique<Executor>(&model, Tokens(), std::nullopt, options);
  }
  static models::ModelLimits Limits(int64_t seqs, int64_t slabs, int64_t drafts) {
    models::ModelLimits limits;
    limits.max_seqs = seqs;
    limits.max_context = 256;
    limits.max_batch_tokens = 48;
    limits.max_logit_rows = seqs * (1 + drafts);
    limits.max_draft_tokens = drafts;
    limits.cache_slabs = slabs;
    return limits;
  }

  PagedFakeModel model;
  std::unique_ptr<Executor> executor;
};

GenerateRequest Request(uint32_t number, int64_t max_tokens) {
  std::mt19937 random(number % 50);  // many share their prompt
  GenerateRequest request;
  request.prompt.resize(1 + random() % 90);
  for (int32_t& id : request.prompt) id = static_cast<int32_t>(2 + random() % 290);
  request.max_tokens = max_tokens;
  request.end_tokens = {1};
  request.sampling.seed = number;
  return request;
}

std::vector<int32_t> Alone(const GenerateRequest& request) { return test::AloneOnPagedFake(request, kVocab, 256); }

TEST(Service, StreamsGiveTheTextAndTheEnd) {
  Running running;
  Service service(running.executor.get());
  std::vector<std::shared_ptr<Stream>> streams;
  for (uint32_t i = 0; i < 12; ++i) streams.push_back(*Stream::Start(&service, Request(i, 20)));
  for (uint32_t i = 0; i < 12; ++i) {
    std::string text;
    for (auto events = streams[i]->Next(); !events.empty(); events = streams[i]->Next()) {
      for (const text::OutputEvent& event : events) text += event.text;
    }
    const auto result = streams[i]->Result();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(text, result->content);
    EXPECT_EQ(result->token_ids, Alone(Request(i, 20)));
  }
  // Figures are of the time between two steps: the last step has ended once nothing is left.
  EXPECT_TRUE(service.Drain(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  EXPECT_EQ(service.stats().executor.finished, 12);
}

TEST(Service, ARefusalIsAnEnd) {
  Running running;
  Service service(running.executor.get());
  const auto stream = Stream::Start(&service, GenerateRequest{});
  ASSERT_TRUE(stream.ok());
  EXPECT_TRUE((*stream)->Next().empty());
  EXPECT_TRUE(absl::IsInvalidArgument((*stream)->Result().status()));
}

TEST(Service, AReaderThatLetsGoEndsItsRequest) {
  Running running;
  Service service(running.executor.get());
  GenerateRequest request = Request(1, 200);
  request.ignore_end = true;
  { const auto stream = Stream::Start(&service, request); }
  EXPECT_TRUE(service.Drain(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  EXPECT_EQ(running.executor->stats().cancelled + running.executor->stats().finished, 1);
  EXPECT_EQ(running.executor->cache().available(), running.executor->cache().slabs());
}

TEST(Service, ASlowReaderIsCancelledInsteadOfFillingMemory) {
  Running running;
  Service service(running.executor.get());
  GenerateRequest request = Request(1, 200);
  request.ignore_end = true;
  const auto stream = Stream::Start(&service, request, 100);
  while (service.stats().executor.cancelled + service.stats().executor.finished == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto result = (*stream)->Result();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->finish_reason, FinishReason::kCancelled);
  EXPECT_LT(result->token_ids.size(), 200u);
}

TEST(Service, WhoWaitsForTheEndAloneIsNoSlowReader) {
  Running running;
  Service service(running.executor.get());
  // Holds the service's thread until the other request's reader waits.
  std::promise<void> gate;
  RequestCallbacks holding;
  holding.on_events = [open = gate.get_future().share()](const auto&) {
    open.wait();
    return true;
  };
  holding.on_done = [](const auto&) {};
  ASSERT_TRUE(service.Submit(Request(2, 1), std::move(holding)).ok());
  GenerateRequest request = Request(1, 150);
  request.ignore_end = true;
  const auto stream = Stream::Start(&service, request, 100);
  auto waiting = std::async(std::launch::async, [&] { return (*stream)->Result(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  gate.set_value();
  const auto result = waiting.get();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->finish_reason, FinishReason::kLength);
  EXPECT_EQ(result->token_ids.size(), 150u);
  EXPECT_TRUE((*stream)->Next().empty());
}

TEST(Service, DrainingRefusesNewOnesAndEndsTheRestAtTheDeadline) {
  Running running(1);
  Service service(running.executor.get());
  std::atomic<int> done = 0;
  for (uint32_t i = 0; i < 200; ++i) {
    GenerateRequest request = Request(i, 150);
    request.ignore_end = true;
    RequestCallbacks callbacks;
    callbacks.on_events = [](const auto&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return true;
    };
    callbacks.on_done = [&](const auto&) { ++done; };
    ASSERT_TRUE(service.Submit(std::move(request), std::move(callbacks)).ok());
  }
  EXPECT_FALSE(service.Drain(std::chrono::steady_clock::now() + std::chrono::milliseconds(50)));
  EXPECT_EQ(done, 200);
  EXPECT_TRUE(absl::IsUnavailable(service.Submit(Request(1, 1), {}).status()));
}

TEST(Service, ABoundedQueueRefuses) {
  Running running(1);
  Service service(running.executor.get(), 10);
  std::atomic<int> done = 0;
  int accepted = 0;
  for (uint32_t i = 0; i < 500; ++i) {
    GenerateRequest request = Request(i, 150);
    request.ignore_end = true;
    RequestCallbacks callbacks;
    callbacks.on_events = [](const auto&) { return true; };
    callbacks.on_done = [&](const auto&) { ++done; };
    const auto id = service.Submit(std::move(request), std::move(callbacks));
    if (id.ok()) ++accepted;
    if (!id.ok()) {
      EXPECT_TRUE(absl::IsUnavailable(id.status()));
    }
  }
  EXPECT_LT(accepted, 500);
  EXPECT_TRUE(service.Drain(std::chrono::steady_clock::now() + std::chrono::seconds(120)));
  EXPECT_EQ(done, accepted);
}

// Random arrivals at twice what the model can do, aborts and readers that go away.
TEST(Service, Soak) {
  const char* text = std::getenv("HADAL_SOAK_SECONDS");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(text == nullptr ? 2 : std::atoi(text));
  Running running(6, 80, 3);
  std::atomic<int64_t> submitted = 0, refused = 0, ended = 0, checked = 0;
  {
    Service service(running.executor.get(), 64);
    const auto client = [&](uint32_t seed) {
      std::mt19937 random(seed);
      std::vector<int64_t> mine;
      while (std::chrono::steady_clock::now() < until) {
        GenerateRequest request = Request(static_cast<uint32_t>(random()), 1 + random() % 60);
        request.priority = random() % 3;
        const auto want = std::make_shared<std::vector<int32_t>>();
        if (random() % 8 == 0) *want = Alone(request);
        auto once = std::make_shared<std::atomic<int>>(0);
        const bool leaves = random() % 10 == 0;
        RequestCallbacks callbacks;
        callbacks.on_events = [leaves, n = 0](const auto&) mutable { return !leaves || ++n < 5; };
        callbacks.on_done = [&, want, once](const absl::StatusOr<GenerateResult>& result) {
          EXPECT_EQ(once->fetch_add(1), 0);
          EXPECT_TRUE(result.ok()) << result.status();
          if (result.ok() && !want->empty()) {
            const std::vector<int32_t>& got = result->token_ids;
            EXPECT_LE(got.size(), want->size());
            EXPECT_TRUE(std::equal(got.begin(), got.end(), want->begin()));
            if (result->finish_reason != FinishReason::kCancelled) {
              EXPECT_EQ(got, *want);
            }
            ++checked;
          }
          ++ended;
        };
        const auto id = service.Submit(std::move(request), std::move(callbacks));
        if (id.ok()) {
          ++submitted;
          mine.push_back(*id);
        } else {
          ++refused;
          std::this_thread::sleep_for(std::chrono::milliseconds(random() % 5));
        }
        if (!mine.empty() && random() % 4 == 0) service.Abort(mine[random() % mine.size()]);
        if (mine.size() > 100) mine.clear();
      }
    };
    std::vector<std::thread> clients;
    for (uint32_t i = 0; i < 3; ++i) clients.emplace_back(client, i);
    for (std::thread& thread : clients) thread.join();
    if (submitted % 2 == 0) {
      EXPECT_TRUE(service.Drain(std::chrono::steady_clock::now() + std::chrono::seconds(300)));
    }
  }
  EXPECT_EQ(ended, submitted);
  EXPECT_GT(checked, 0);
  EXPECT_TRUE(running.executor->idle());
  EXPECT_TRUE(running.executor->cache().Consistent());
  EXPECT_EQ(running.executor->cache().available(), running.executor->cache().slabs());
  const ExecutorStats stats = running.executor->stats();
  EXPECT_EQ(stats.finished + stats.cancelled + stats.failed, submitted);
  EXPECT_EQ(stats.failed, 0);
  RecordProperty("requests", std::to_string(submitted));
  std::printf("soak: %lld requests, %lld refused, %lld cancelled, %lld preemptions, %lld checked against alone\n",
              static_cast<long long>(submitted), static_cast<long long>(refused),
              static_cast<long long>(stats.cancelled), static_cast<long long>(stats.preemptions),
              static_cast<long long>(checked));
}

}  // namespace
}  // namespace hadal::runtime
