#include "runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "paged_fake_model.h"
#include "support/paths.h"

namespace hadal::runtime {
namespace {

using test::PagedFakeModel;
using testing::HasSubstr;
using text::OutputEvent;

constexpr int64_t kVocab = 300;

std::shared_ptr<const text::Tokenizer> Tokens() {
  static const auto tokenizer = text::Tokenizer::Load(test::BundledModel());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *tokenizer;
}

struct ServerSetup {
  int64_t seqs = 8;
  int64_t slabs = 2000;
  int64_t batch = 64;
  int64_t drafts = 0;
  int64_t context = 512;
  ExecutorOptions options = {};
};

// A model with an executor, and everything that came out of it.
class Server {
 public:
  explicit Server(const ServerSetup& setup) {
    models::ModelLimits limits;
    limits.max_seqs = setup.seqs;
    limits.max_context = setup.context;
    limits.max_batch_tokens = std::max(setup.batch, setup.seqs * (1 + setup.drafts));
    limits.max_logit_rows = std::max<int64_t>(setup.seqs * (1 + setup.drafts), 4);
    limits.max_draft_tokens = setup.drafts;
    limits.cache_slabs = setup.slabs;
    model = std::make_unique<PagedFakeModel>(kVocab, limits);
    ExecutorOptions options = setup.options;
    options.max_batch_tokens = setup.batch;
    options.num_speculative_tokens = setup.drafts;
    executor = std::make_unique<Executor>(model.get(), Tokens(), std::nullopt, options);
  }

  int64_t Submit(GenerateRequest request) {
    const auto index = results.size();
    results.emplace_back();
    RequestCallbacks callbacks;
    callbacks.on_events = [](const std::vector<OutputEvent>&) { return true; };
    callbacks.on_done = [this, index](absl::StatusOr<GenerateResult> result) {
      EXPECT_FALSE(results[index].has_value()) << "a request ends once";
      results[index] = std::move(result);
    };
    const absl::StatusOr<int64_t> id = executor->Submit(std::move(request), std::move(callbacks));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(-1);
  }
  void Run() {
    while (executor->Step()) ASSERT_TRUE(executor->cache().Consistent());
    EXPECT_TRUE(executor->idle());
    EXPECT_EQ(executor->cache().available(), executor->cache().slabs()) << "a block was lost";
  }

  std::unique_ptr<PagedFakeModel> model;
  std::unique_ptr<Executor> executor;
  std::vector<std::optional<absl::StatusOr<GenerateResult>>> results;
};

GenerateRequest Request(std::vector<int32_t> prompt, int64_t max_tokens, double temperature = 0, uint64_t seed = 0) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.end_tokens = {1};
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  return request;
}

std::vector<int32_t> Alone(const GenerateRequest& request, int64_t context) {
  return test::AloneOnPagedFake(request, kVocab, context);
}

// Requests of every length class, some of which share prefixes; greedy, drawn, and with penalties.
std::vector<GenerateRequest> ManyRequests(int count, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  std::vector<int32_t> shared(400);
  for (int32_t& id : shared) id = 2 + below(kVocab - 2);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t> prompt(shared.begin(), shared.begin() + (below(2) == 0 ? 0 : below(300)));
    for (int n = 1 + (below(4) == 0 ? below(150) : below(20)); n > 0; --n) prompt.push_back(2 + below(kVocab - 2));
    GenerateRequest request = Request(prompt, 1 + below(60), below(3) == 0 ? 0 : 1, static_cast<uint64_t>(i));
    if (below(4) == 0) request.sampling.frequency_penalty = 1.5;
    if (below(4) == 0) request.sampling.top_p = 0.7;
    request.priority = below(3);
    requests.push_back(std::move(request));
  }
  return requests;
}

void ExpectTheirOwnTokens(const Server& server, const std::vector<GenerateRequest>& requests, int64_t context) {
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(server.results[i].has_value()) << "request " << i << " never ended";
    ASSERT_TRUE(server.results[i]->ok()) << server.results[i]->status();
    EXPECT_EQ((*server.results[i])->token_ids, Alone(requests[i], context)) << "request " << i;
  }
}

TEST(Executor, ManyRequestsAtOnceGetTheirOwnTokens) {
  const std::vector<GenerateRequest> requests = ManyRequests(40, 1);
  for (const int64_t seqs : {1, 2, 7, 32}) {
    for (const int64_t batch : {1, 7, 64, 512}) {
      Server server({.seqs = seqs, .slabs = 6000, .batch = batch});
      for (const GenerateRequest& request : requests) server.Submit(request);
      server.Run();
      ExpectTheirOwnTokens(server, requests, 512);
      EXPECT_LE(server.model->most_rows, std::max(batch, seqs));
    }
  }
}

TEST(Executor, AWarmPrefixCacheChangesNothingButTheWork) {
  const std::vector<GenerateRequest> requests = ManyRequests(30, 2);
  Server server({.slabs = 6000});
  for (int round = 0; round < 3; ++round) {
    server.results.clear();
    for (const GenerateRequest& request : requests) server.Submit(request);
    server.Run();
    ExpectTheirOwnTokens(server, requests, 512);
  }
  int64_t cached = 0;
  for (const auto& result : server.results) cached += (*result)->cached_tokens;
  EXPECT_GT(cached, 1000);
}

TEST(Executor, PreemptionChangesNothing) {
  std::vector<GenerateRequest> requests = ManyRequests(40, 3);
  // Short prompts with long answers: all of them start, not all of them can go on.
  for (int32_t i = 0; i < 12; ++i) {
    GenerateRequest request = Request({2 + i, 7, 8}, 150, i % 2, static_cast<uint64_t>(i));
    request.end_tokens = {};
    requests.push_back(request);
  }
  for (const bool prefix : {true, false}) {
    // A cache that does not hold what eight sequences want.
    ServerSetup setup = {.slabs = 60, .batch = 32};
    setup.options.kv.prefix_cache = prefix;
    Server server(setup);
    for (const GenerateRequest& request : requests) server.Submit(request);
    server.Run();
    ExpectTheirOwnTokens(server, requests, 512);
    EXPECT_GT(server.executor->stats().preemptions, 0);
  }
  // At random, any running request.
  Server server({.slabs = 3000});
  std::mt19937 random(5);
  server.executor->SetPreemptionSource([&](const std::vector<int64_t>& running) {
    std::vector<int64_t> some;
    for (const int64_t id : running) {
      if (random() % 10 == 0) some.push_back(id);
    }
    return some;
  });
  for (const GenerateRequest& request : requests) server.Submit(request);
  server.Run();
  ExpectTheirOwnTokens(server, requests, 512);
  EXPECT_GT(server.executor->stats().preemptions, 20);
}

TEST(Executor, DraftsChangeNothing) {
  const std::vector<GenerateRequest> requests = ManyRequests(40, 4);
  for (int64_t k = 1; k <= 4; ++k) {
    Server server({.slabs = 3000, .drafts = k});
    for (const GenerateRequest& request : requests) server.Submit(request);
    server.Run();
    ExpectTheirOwnTokens(server, requests, 512);
    const ExecutorStats stats = server.executor->stats();
    // The first draft is right two times of three for greedy requests; drawn ones share the target's noise.
    EXPECT_GT(stats.accepted_at[0], stats.drafted_at[0] / 2);
    EXPECT_LT(stats.accepted_at[0], stats.drafted_at[0]);
    for (int64_t i = 1; i < k; ++i) EXPECT_LE(stats.accepted_at[i], stats.accepted_at[i - 1]);
  }
}

TEST(Executor, RandomPaddingAndForeignDraftsChangeNothing) {
  const std::vector<GenerateRequest> requests = ManyRequests(40, 5);
  for (int64_t k = 1; k <= 4; ++k) {
    Server server({.slabs = 120, .drafts = k});  // and preemption with it
    std::mt19937 random(static_cast<uint32_t>(k));
    server.executor->SetDraftSource([&](std::span<const int32_t>, int64_t count) {
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random() % kVocab));
      if (random() % 5 == 0) ids.back() = -1;
      if (random() % 7 == 0) ids.front() = 1 << 30;
      if (random() % 9 == 0) ids.clear();
      if (random() % 11 == 0) ids.resize(20, 5);
      return ids;
    });
    for (const GenerateRequest& request : requests) server.Submit(request);
    server.Run();
    ExpectTheirOwnTokens(server, requests, 512);
  }
}

TEST(Executor, DraftsThatAreRightAreAllTaken) {
  const std::vector<GenerateRequest> requests = ManyRequests(10, 6);
  std::vector<std::vector<int32_t>> answers;
  for (const GenerateRequest& request : requests) answers.push_back(Alone(request, 512));
  Server server({.slabs = 3000, .drafts = 4});
  server.executor->SetDraftSource([&](std::span<const int32_t> tokens, int64_t count) {
    for (size_t i = 0; i < requests.size(); ++i) {
      const std::vector<int32_t>& prompt = requests[i].prompt;
      if (tokens.size() < prompt.size() || !std::equal(prompt.begin(), prompt.end(), tokens.begin())) continue;
      const size_t at = tokens.size() - prompt.size();
      if (at > answers[i].size() || !std::equal(tokens.begin() + prompt.size(), tokens.end(), answers[i].begin())) {
        continue;
      }
      const auto end = std::min(answers[i].size(), at + static_cast<size_t>(count));
      return std::vector<int32_t>(answers[i].begin() + at, answers[i].begin() + end);
    }
    return std::vector<int32_t>();
  });
  for (const GenerateRequest& request : requests) server.Submit(request);
  server.Run();
  ExpectTheirOwnTokens(server, requests, 512);
  const ExecutorStats stats = server.executor->stats();
  EXPECT_GT(stats.draft_tokens, 100);
  EXPECT_EQ(stats.accepted_tokens, stats.draft_tokens);
}

// Stops that fall on each place of a run of accepted drafts (spec 1.7, 1.10 test 6).
TEST(Executor, StopsInsideAnAcceptedRun) {
  GenerateRequest request = Request({5, 6, 7}, 40, 1, 9);
  request.ignore_end = true;
  const std::vector<int32_t> all = [&] {
    GenerateRequest endless = request;
    endless.end_tokens = {};
    return Alone(endless, 512);
  }();
  const auto oracle = [&](std::span<const int32_t> tokens, int64_t count) {
    const size_t at = tokens.size() - 3;
    return std::vector<int32_t>(all.begin() + at, all.begin() + std::min(all.size(), at + static_cast<size_t>(count)));
  };
  for (size_t stop = 0; stop < 12; ++stop) {
    if (std::find(all.begin(), all.begin() + stop, all[stop]) != all.begin() + stop) continue;
    const std::vector<int32_t> want(all.begin(), all.begin() + stop + 1);
    for (int how = 0; how < 3; ++how) {
      GenerateRequest cut = request;
      if (how == 0) cut.sampling.stop_token_ids = {all[stop]};
      if (how == 1) cut.max_tokens = static_cast<int64_t>(stop) + 1;
      if (how == 2) {
        cut.ignore_end = false;
        cut.end_tokens = {all[stop]};
      }
      Server server({.drafts = 4});
      server.executor->SetDraftSource(oracle);
      server.Submit(cut);
      server.Run();
      ASSERT_TRUE(server.results[0]->ok());
      EXPECT_EQ((*server.results[0])->token_ids, want) << "stop " << stop << " by " << how;
    }
  }
}

TEST(Executor, TheEndOfTheContextIsNeverPassed) {
  for (const int64_t k : {0, 1, 4}) {
    for (int prompt = 40; prompt < 64; ++prompt) {
      Server server({.seqs = 1, .drafts = k, .context = 64});
      GenerateRequest request = Request(std::vector<int32_t>(static_cast<size_t>(prompt), 9), 0);
      request.ignore_end = true;
      request.end_tokens = {};
      server.Submit(request);
      server.Run();
      ASSERT_TRUE(server.results[0]->ok());
      EXPECT_EQ((*server.results[0])->token_ids.size(), 64u - static_cast<size_t>(prompt));
      EXPECT_EQ((*server.results[0])->finish_reason, FinishReason::kLength);
    }
  }
}

TEST(Executor, AbortsLeaveTheOthersAlone) {
  const std::vector<GenerateRequest> requests = ManyRequests(60, 8);
  Server server({.slabs = 150, .drafts = 2});
  std::mt19937 random(3);
  std::vector<int64_t> ids;
  for (const GenerateRequest& request : requests) ids.push_back(server.Submit(request));
  std::vector<bool> aborted(requests.size(), false);
  for (int step = 0; server.executor->Step(); ++step) {
    ASSERT_TRUE(server.executor->cache().Consistent());
    if (step % 3 != 0) continue;
    const size_t victim = random() % ids.size();
    if (!server.results[victim].has_value()) aborted[victim] = true;
    server.executor->Abort(ids[victim]);
  }
  EXPECT_EQ(server.executor->cache().available(), 150);
  int64_t cancelled = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(server.results[i].has_value() && server.results[i]->ok());
    const GenerateResult& result = **server.results[i];
    const std::vector<int32_t> want = Alone(requests[i], 512);
    ASSERT_LE(result.token_ids.size(), want.size());
    EXPECT_TRUE(std::equal(result.token_ids.begin(), result.token_ids.end(), want.begin()));
    EXPECT_EQ(result.finish_reason == FinishReason::kCancelled, aborted[i]);
    if (aborted[i]) ++cancelled;
    if (!aborted[i]) {
      EXPECT_EQ(result.token_ids, want);
    }
  }
  EXPECT_GT(cancelled, 5);
  EXPECT_EQ(server.executor->stats().cancelled, cancelled);
}

// Robustness 51: a row that is no numbers costs the request whose row it is, and no other.
TEST(Executor, LogitsThatAreNoNumbersEndOneRequest) {
  const std::vector<GenerateRequest> requests = ManyRequests(30, 9);
  size_t victim = 0;
  while (Alone(requests.at(victim), 512).size() < 6) ++victim;
  const std::vector<int32_t> answer = Alone(requests[victim], 512);
  std::vector<int32_t> tokens = requests[victim].prompt;
  tokens.insert(tokens.end(), answer.begin(), answer.begin() + 4);
  std::vector<uint64_t> values;
  const uint64_t poisoned = PagedFakeModel::PlainValue(tokens, &values);
  for (const int64_t drafts : {0, 2}) {
    Server server({.slabs = 3000, .drafts = drafts});
    server.model->poisoned = poisoned;
    for (const GenerateRequest& request : requests) server.Submit(request);
    server.Run();
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(server.results[i].has_value()) << i;
      if (i == victim) {
        EXPECT_TRUE(absl::IsInternal(server.results[i]->status())) << server.results[i]->status();
        EXPECT_THAT(std::string(server.results[i]->status().message()),
                    HasSubstr(fmt::format("position {}", tokens.size())));
        continue;
      }
      ASSERT_TRUE(server.results[i]->ok()) << server.results[i]->status();
      EXPECT_EQ((*server.results[i])->token_ids, Alone(requests[i], 512)) << "request " << i;
    }
    EXPECT_EQ(server.executor->stats().failed, 1);
    EXPECT_EQ(server.executor->stats().failed_steps, 0);
  }
}

// Robustness 52: all that are in the step end with the model's error. What waits is served when the model works again.
TEST(Executor, AFailedStepEndsAllThatAreInIt) {
  std::vector<GenerateRequest> requests;
  for (int32_t i = 0; i < 10; ++i) requests.push_back(Request({5 + i, 6, 7}, 30));
  for (const bool drafting : {false, true}) {
    Server server({.seqs = 4, .drafts = drafting ? 1 : 0});
    absl::Status& fault = drafting ? server.model->draft_fault : server.model->fault;
    for (const GenerateRequest& request : requests) server.Submit(request);
    for (int i = 0; i < 3; ++i) server.executor->Step();
    ASSERT_EQ(server.executor->running(), 4u);
    fault = absl::InternalError("the device is lost");
    EXPECT_TRUE(server.executor->Step());
    EXPECT_EQ(server.executor->running(), 0u);
    EXPECT_EQ(server.executor->waiting(), 6u);
    EXPECT_EQ(server.executor->stats().failed, 4);
    EXPECT_EQ(server.executor->stats().failed_steps, 1);
    for (size_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(server.results[i].has_value()) << i;
      EXPECT_EQ(server.results[i]->status(), fault);
    }
    fault = absl::OkStatus();
    server.Run();
    EXPECT_EQ(server.executor->stats().failed_steps, 0);
    for (size_t i = 4; i < 10; ++i) {
      ASSERT_TRUE(server.results[i].has_value() && server.results[i]->ok()) << i;
      EXPECT_EQ((*server.results[i])->token_ids, Alone(requests[i], 512));
    }
  }
}

// Robustness 50: draft rows that are no numbers give no drafts, and after a few of them the request asks for none.
TEST(Executor, ADrafterThatFailsIsGivenUp) {
  const std::vector<GenerateRequest> requests = ManyRequests(20, 10);
  for (const bool rejection : {false, true}) {
    ServerSetup setup = {.slabs = 3000, .drafts = 2};
    setup.options.rejection_sampling = rejection;
    Server server(setup);
    server.model->poison_drafts = true;
    for (const GenerateRequest& request : requests) server.Submit(request);
    server.Run();
    ExpectTheirOwnTokens(server, requests, 512);
    EXPECT_EQ(server.executor->stats().draft_tokens, 0);
    EXPECT_GT(server.model->draft_rows, 0);
    EXPECT_LE(server.model->draft_rows, 4 * 20);
  }
}

TEST(Executor, BetterPrioritiesStartFirstAndEqualOnesInOrder) {
  Server server({.seqs = 1});
  std::vector<int> order;
  const auto submit = [&](int name, int64_t priority) {
    GenerateRequest request = Request({5, 6, static_cast<int32_t>(7 + name)}, 2);
    request.ignore_end = true;
    request.priority = priority;
    RequestCallbacks callbacks;
    callbacks.on_events = [](const auto&) { return true; };
    callbacks.on_done = [&order, name](const auto&) { order.push_back(name); };
    ASSERT_TRUE(server.executor->Submit(request, callbacks).ok());
  };
  submit(0, 5);
  submit(1, 5);
  submit(2, -1);
  submit(3, 5);
  submit(4, 0);
  server.Run();
  EXPECT_EQ(order, (std::vector<int>{2, 4, 0, 1, 3}));
}

// What waits for room is not asked for again and again, and what goes before it is bounded.
TEST(Executor, AHeadThatDoesNotFitIsPassedABoundedNumberOfTimes) {
  Server server({.seqs = 4, .slabs = 60});
  std::string order;
  int64_t prompt_tokens = 0;
  const auto submit = [&](char name, int64_t prompt, int64_t answer) {
    GenerateRequest request = Request(std::vector<int32_t>(static_cast<size_t>(prompt)), answer);
    for (size_t i = 0; i < request.prompt.size(); ++i) {
      request.prompt[i] = static_cast<int32_t>(2 + (name + 31 * i) % 290);
    }
    request.end_tokens = {};
    prompt_tokens += prompt;
    RequestCallbacks callbacks;
    callbacks.on_events = [](const auto&) { return true; };
    callbacks.on_done = [&order, name](const absl::StatusOr<GenerateResult>& result) {
      EXPECT_TRUE(result.ok());
      order += name;
    };
    ASSERT_TRUE(server.executor->Submit(std::move(request), std::move(callbacks)).ok());
  };
  submit('A', 200, 150);
  server.executor->Step();
  submit('B', 440, 2);  // has no room beside A
  for (int i = 0; i < 20; ++i) submit('c', 5 + i, 1);
  server.Run();
  EXPECT_EQ(order.substr(0, 9), "ccccccccA") << order;
  EXPECT_EQ(order.size(), 22u);
  EXPECT_EQ(server.executor->stats().preemptions, 0);
  EXPECT_EQ(server.executor->cache().stats().query_tokens, prompt_tokens) << "each prompt asked once";
}

// A stream gets a token in every step while a long prompt is computed, and no step has more rows of prompts than
// promised; a short prompt that comes later does not wait for the long one.
TEST(Executor, ALongPromptStallsNobody) {
  ServerSetup setup = {.slabs = 6000, .batch = 256, .context = 4096};
  setup.options.max_prefill_with_decode = 32;
  Server server(setup);
  int64_t tokens = 0;
  bool long_done = false, short_done = false;
  const auto submit = [&](GenerateRequest request, std::function<void()> on_token, bool* done) {
    request.ignore_end = true;
    RequestCallbacks callbacks;
    callbacks.on_events = [on_token](const auto&) {
      on_token();
      return true;
    };
    callbacks.on_done = [done](const auto&) { *done = true; };
    ASSERT_TRUE(server.executor->Submit(std::move(request), std::move(callbacks)).ok());
  };
  bool stream_done = false;
  submit(
      Request({5, 6, 7}, 400), [&] { ++tokens; }, &stream_done);
  server.executor->Step();
  EXPECT_EQ(tokens, 1);
  std::vector<int32_t> prompt(3000);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(2 + i % 290);
  submit(
      Request(prompt, 1), [] {}, &long_done);
  int64_t steps = 0, short_submitted = 0;
  while (!long_done) {
    const int64_t before = tokens;
    server.model->most_rows = 0;
    server.executor->Step();
    ASSERT_EQ(tokens, before + 1) << "the stream missed a step";
    ASSERT_LE(server.model->most_rows, 1 + 1 + 32);
    if (++steps == 10) {
      submit(
          Request(std::vector<int32_t>(20, 8), 1), [] {}, &short_done);
      short_submitted = steps;
    }
    if (short_done && short_submitted > 0) {
      EXPECT_LE(steps - short_submitted, 3) << "a prompt of 20 tokens beside one of 3000";
      short_submitted = 0;
    }
  }
  EXPECT_TRUE(short_done);
  EXPECT_GE(steps, 3000 / 32);
}

TEST(Executor, RefusesWhatCanNeverRun) {
  Server server({.slabs = 30, .context = 512});
  RequestCallbacks callbacks;
  callbacks.on_events = [](const auto&) { return true; };
  callbacks.on_done = [](const auto&) { FAIL(); };
  const auto refused = [&](GenerateRequest request) { return server.executor->Submit(request, callbacks).status(); };
  EXPECT_TRUE(absl::IsInvalidArgument(refused(Request({}, 5))));
  EXPECT_TRUE(absl::IsInvalidArgument(refused(Request({1 << 20}, 5))));
  EXPECT_TRUE(absl::IsInvalidArgument(refused(Request(std::vector<int32_t>(512, 4), 5))));
  EXPECT_TRUE(absl::IsInvalidArgument(refused(Request({4}, -1))));
  const absl::Status large = refused(Request(std::vector<int32_t>(400, 4), 100));
  EXPECT_TRUE(absl::IsResourceExhausted(large)) << large;
  EXPECT_THAT(std::string(large.message()), HasSubstr("there are 30"));
  EXPECT_TRUE(server.executor->idle());
}

TEST(Executor, ABoundedQueueRefusesMore) {
  ServerSetup setup = {.seqs = 1};
  setup.options.max_waiting = 3;
  Server server(setup);
  for (int i = 0; i < 3; ++i) server.Submit(Request({4}, 5));
  RequestCallbacks callbacks;
  callbacks.on_done = [](const auto&) { FAIL(); };
  EXPECT_TRUE(absl::IsUnavailable(server.executor->Submit(Request({4}, 5), callbacks).status()));
  server.Run();
  server.Submit(Request({4}, 5));
  server.Run();
}

TEST(Executor, LogprobsOfThePromptDoNotDependOnChunksOrCache) {
  GenerateRequest request = Request(std::vector<int32_t>(100, 4), 3);
  for (size_t i = 0; i < 100; ++i) request.prompt[i] = static_cast<int32_t>(2 + i * 7 % 290);
  request.sampling.prompt_logprobs = 2;
  std::vector<TokenStep> want;
  for (const int64_t batch : {512, 64, 7, 1}) {
    Server server({.batch = batch});
    server.executor->SetPreemptionSource(
        [n = 0](const std::vector<int64_t>& running) mutable { return ++n == 3 ? running : std::vector<int64_t>(); });
    for (int round = 0; round < 2; ++round) {
      server.results.clear();
      server.Submit(request);
      server.Run();
      ASSERT_TRUE(server.results[0]->ok());
      const GenerateResult& result = **server.results[0];
      ASSERT_EQ(result.prompt_logprobs.size(), 99u);
      if (want.empty()) want = result.prompt_logprobs;
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(result.prompt_logprobs[i].id, request.prompt[i + 1]);
        EXPECT_EQ(result.prompt_logprobs[i].logprob, want[i].logprob);
        EXPECT_EQ(result.prompt_logprobs[i].rank, want[i].rank);
        EXPECT_EQ(result.prompt_logprobs[i].rank == 1,
                  result.prompt_logprobs[i].id == result.prompt_logprobs[i].top[0].id);
        ASSERT_EQ(result.prompt_logprobs[i].top.size(), 2u);
        EXPECT_GE(result.prompt_logprobs[i].top[0].logprob, result.prompt_logprobs[i].top[1].logprob);
      }
    }
  }
}

}  // namespace
}  // namespace hadal::runtime
