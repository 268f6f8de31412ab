// Forty requests of every kind get the same tokens and the same log-probabilities to the bit, however the runtime
// serves them: alone, in batches, in chunks, behind a cached prefix, preempted, with drafts, by one thread or two.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "invariance/serve.h"
#include "support/paths.h"
#include "text/json_text.h"

namespace hadal::test {
namespace {

using runtime::Engine;
using runtime::EngineOptions;
using runtime::GenerateRequest;

constexpr int64_t kContext = 2304;

std::unique_ptr<Engine> Load(EngineOptions options, int threads = 1) {
  options.max_model_len = kContext;
  options.model.threads = threads;
  options.model.deterministic = true;
  options.check_logits = false;
  return Value(Engine::Load(BundledModel(), std::move(options)));
}

GenerateRequest FromPrompt(Engine& engine, const runtime::EncodedPrompt& prompt, int number) {
  GenerateRequest request;
  request.prompt = prompt.ids;
  request.images = prompt.images;
  request.end_tokens = engine.end_tokens();
  request.parser.emplace();
  request.parser->starts_in_reasoning = prompt.starts_in_reasoning;
  request.max_tokens = 24;
  request.sampling.logprobs = 3;
  request.sampling.seed = static_cast<uint64_t>(100 + number);
  request.sampling.temperature = number % 3 == 0 ? 0.0 : 0.9;
  if (number % 4 == 1) request.sampling.top_p = 0.9;
  if (number % 5 == 2) request.sampling.frequency_penalty = 0.7;
  if (number % 7 == 3) request.sampling.repetition_penalty = 1.3;
  if (number % 6 == 4) request.sampling.min_tokens = 8;
  if (number % 9 == 5) request.grammar = Value(engine.CompileGrammar({guided::GuidedSpec::Kind::kJsonObject}));
  if (number % 9 == 2)
    request.grammar = Value(engine.CompileGrammar({guided::GuidedSpec::Kind::kRegex, "[a-z ]{3,20}[.!]"}));
  if (number % 10 == 8) request.sampling.thinking_token_budget = 5;
  return request;
}

// Lengths of the sweep as plain text, questions with and without thinking, calls of tools, images. The same on every
// call.
std::vector<GenerateRequest> Requests(Engine& engine) {
  std::vector<GenerateRequest> requests;
  const auto add = [&](const runtime::EncodedPrompt& prompt) {
    requests.push_back(FromPrompt(engine, prompt, static_cast<int>(requests.size())));
  };
  std::mt19937 random(11);
  std::vector<int32_t> text(kContext);
  for (int32_t& id : text) id = static_cast<int32_t>(3 + random() % 1200);
  for (const size_t length : {1, 3, 4, 5, 127, 128, 129, 130, 255, 256, 257, 511, 512, 513, 2047, 2048, 2052}) {
    runtime::EncodedPrompt prompt;
    // Half of them share a prefix.
    const size_t from = requests.size() % 2 == 0 ? 0 : requests.size();
    prompt.ids.assign(text.begin() + static_cast<std::ptrdiff_t>(from),
                      text.begin() + static_cast<std::ptrdiff_t>(from + length));
    prompt.ids.resize(length, 5);
    add(prompt);
  }
  const auto user = [](const std::string& content) {
    text::Json messages = text::Json::array();
    messages.push_back({{"role", "user"}, {"content", content}});
    return messages;
  };
  for (const bool thinking : {false, true}) {
    text::ThinkingChoice choice;
    if (thinking) choice.mode = text::ThinkingMode::kThinking;
    for (const char* question : {"What is 478 + 365?", "Who are you?", "What is the capital of Japan?", "79 + 5 = ?",
                                 "Tell me a story about 3 cats.", "Repeat: red green blue", "hi"}) {
      add(Value(engine.EncodeChat(user(question), choice)));
    }
  }
  const text::Json tools = Value(text::ParseJson(
      R"([{"type": "function", "function": {"name": "get_weather", "parameters":
           {"type": "object", "properties": {"city": {"type": "string"}}}}}])"));
  text::Json with_tools = text::Json::array();
  with_tools.push_back({{"role", "system"}, {"content", "Help."}, {"tools", tools}});
  with_tools.push_back(user("What is the weather in Paris?")[0]);
  add(Value(engine.EncodeChat(with_tools, {})));
  std::ifstream file(DataPath("eval/ocr.jsonl"));
  for (std::string line; requests.size() < 40 && std::getline(file, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    runtime::ImageList images;
    for (const std::string path : record["images"]) {
      std::ifstream image(DataPath("eval/" + path), std::ios::binary);
      const std::string bytes((std::istreambuf_iterator<char>(image)), {});
      images.push_back(Value(engine.PrepareImage({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()})));
    }
    add(Value(engine.EncodeRaw(record["prompt"].get<std::string>(), images)));
  }
  EXPECT_EQ(requests.size(), 40u);
  return requests;
}

class RequestsV4 : public testing::Test {
 protected:
  // Each request alone on an engine that keeps no prefix and drafts nothing, its prompt in chunks of 512.
  static void SetUpTestSuite() {
    EngineOptions options;
    options.executor.kv.prefix_cache = false;
    const auto engine = Load(options);
    requests_ = new std::vector<GenerateRequest>(Requests(*engine));
    want_ = new std::vector<Answer>();
    for (size_t i = 0; i < requests_->size(); ++i) want_->push_back(Serve(engine.get(), *requests_, {i})[i]);
  }
  static void TearDownTestSuite() {
    delete requests_;
    delete want_;
  }

  // Requests hold prepared images, which are the same for every engine.
  static void ExpectSame(const std::vector<Answer>& got, const std::vector<size_t>& order, const std::string& what) {
    test::ExpectSame(got, *want_, order, what);
  }

  static std::vector<GenerateRequest>* requests_;
  static std::vector<Answer>* want_;
};

std::vector<GenerateRequest>* RequestsV4::requests_ = nullptr;
std::vector<Answer>* RequestsV4::want_ = nullptr;

TEST_F(RequestsV4, TheyAreVaried) {
  size_t images = 0, drawn = 0, thinking = 0, tokens = 0;
  for (size_t i = 0; i < requests_->size(); ++i) {
    images += (*requests_)[i].images.size();
    drawn += (*requests_)[i].sampling.greedy() ? 0 : 1;
    thinking += (*want_)[i].reasoning.empty() ? 0 : 1;
    tokens += (*want_)[i].ids.size();
    EXPECT_FALSE((*want_)[i].ids.empty());
  }
  EXPECT_GE(images, 8u);
  EXPECT_GE(drawn, 20u);
  EXPECT_GE(thinking, 4u);
  EXPECT_GE(tokens, 400u);
}

TEST_F(RequestsV4, InBatches) {
  for (const int64_t seqs : {2, 5, 32}) {
    EngineOptions options;
    options.max_seqs = seqs;
    options.executor.kv.prefix_cache = false;
    const auto engine = Load(options);
    std::vector<size_t> order = All(requests_->size());
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<uint32_t>(seqs)));
    ExpectSame(Serve(engine.get(), *requests_, order), order, fmt::format("{} at once", seqs));
  }
}

TEST_F(RequestsV4, InChunks) {
  for (const int64_t chunk : {1, 7, 64, 128}) {
    EngineOptions options;
    options.max_seqs = 8;
    options.max_batch_tokens = chunk;
    options.max_images = 0;  // an image is a chunk of its own
    options.executor.kv.prefix_cache = false;
    const auto engine = Load(options);
    std::vector<size_t> order;
    for (const size_t i : All(requests_->size())) {
      if ((*requests_)[i].images.empty()) order.push_back(i);
    }
    ASSERT_GT(order.size(), 15u);
    ExpectSame(Serve(engine.get(), *requests_, order), order, fmt::format("chunks of {}", chunk));
  }
}

TEST_F(RequestsV4, ByTwoThreads) {
  EngineOptions options;
  options.max_seqs = 8;
  const auto engine = Load(options, 2);
  const std::vector<size_t> order = All(requests_->size());
  ExpectSame(Serve(engine.get(), *requests_, order), order, "two threads");
}

TEST_F(RequestsV4, BehindACachedPrefix) {
  for (const int64_t block : {128, 256}) {
    EngineOptions options;
    options.max_seqs = 4;
    options.block_size = block;
    const auto engine = Load(options);
    const std::vector<size_t> order = All(requests_->size());
    ExpectSame(Serve(engine.get(), *requests_, order), order, "cold");
    int64_t cached = 0;
    ExpectSame(Serve(engine.get(), *requests_, order, &cached), order, "warm");
    EXPECT_GT(cached, 5000);
  }
}

// A prompt that ends just behind each boundary, and a little further, is served from a cache that has all of it.
TEST_F(RequestsV4, AtEveryResumePoint) {
  const std::vector<int32_t>& text = requests_->at(16).prompt;
  ASSERT_GE(text.size(), 2048u);
  for (const int64_t block : {128, 256}) {
    EngineOptions cold_options;
    cold_options.executor.kv.prefix_cache = false;
    const auto cold = Load(cold_options);
    EngineOptions options;
    options.block_size = block;
    options.executor.kv.retention_interval = block;
    const auto warm = Load(options);
    std::vector<GenerateRequest> requests = {requests_->at(16)};
    Serve(warm.get(), requests, {0});
    for (int64_t point = block; point < 2048; point += block) {
      for (const int64_t behind : {1, 2, 5, 127}) {
        requests[0].prompt.assign(text.begin(), text.begin() + std::min<int64_t>(2048, point + behind));
        requests[0].max_tokens = 6;
        int64_t cached = 0;
        const Answer got = Serve(warm.get(), requests, {0}, &cached)[0];
        EXPECT_EQ(cached, point);
        EXPECT_TRUE(got == Serve(cold.get(), requests, {0})[0]) << point << " + " << behind;
      }
    }
  }
}

TEST_F(RequestsV4, Preempted) {
  for (const bool prefix : {true, false}) {
    EngineOptions options;
    options.max_seqs = 8;
    options.executor.kv.prefix_cache = prefix;
    const auto engine = Load(options);
    PreemptAtRandom(engine.get(), 17, 25);
    const std::vector<size_t> order = All(requests_->size());
    ExpectSame(Serve(engine.get(), *requests_, order), order, "preempted");
    EXPECT_GT(engine->executor().stats().preemptions, 10);
  }
}

TEST_F(RequestsV4, WithDrafts) {
  for (int64_t k = 1; k <= 4; ++k) {
    EngineOptions options;
    options.max_seqs = 8;
    options.num_speculative_tokens = k;
    const auto engine = Load(options);
    const std::vector<size_t> order = All(requests_->size());
    ExpectSame(Serve(engine.get(), *requests_, order), order, fmt::format("{} drafts", k));
    EXPECT_GT(engine->executor().stats().accepted_tokens, 50);
    // A second time behind cached prefixes, where the draft block's window has to be right too.
    ExpectSame(Serve(engine.get(), *requests_, order), order, fmt::format("{} drafts, warm", k));
  }
}

// Drafts from anywhere: random ids, ids that are none, tokens of another request, more than were asked for.
TEST_F(RequestsV4, WithDraftsOfNoUse) {
  for (const int64_t k : {1, 4}) {
    EngineOptions options;
    options.max_seqs = 8;
    options.num_speculative_tokens = k;
    const auto engine = Load(options);
    std::mt19937 random(23);
    engine->executor().SetDraftSource([&](std::span<const int32_t> tokens, int64_t count) {
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < count; ++i) {
        switch (random() % 5) {
          case 0:
            ids.push_back(static_cast<int32_t>(random() % 1280));
            break;
          case 1:
            ids.push_back(-1);
            break;
          case 2:
            ids.push_back(INT32_MAX);
            break;
          default:
            ids.push_back((*want_)[random() % want_->size()].ids[0]);
        }
      }
      if (tokens.size() % 3 == 0) ids.push_back(5);
      return ids;
    });
    const std::vector<size_t> order = All(requests_->size());
    ExpectSame(Serve(engine.get(), *requests_, order), order, fmt::format("{} useless drafts", k));
  }
}

// Field report B95: any number of drafts holds, from none to all; what the others left behind is gone.
TEST_F(RequestsV4, WithAnyNumberOfDraftsThatHold) {
  for (const int64_t k : {1, 4}) {
    EngineOptions options;
    options.max_seqs = 8;
    options.num_speculative_tokens = k;
    const auto engine = Load(options);
    std::mt19937 random(29);
    engine->executor().SetDraftSource([&](std::span<const int32_t> tokens, int64_t count) {
      std::vector<int32_t> ids;
      const auto right = static_cast<int64_t>(random() % static_cast<uint64_t>(count + 1));
      for (size_t i = 0; i < requests_->size() && ids.empty(); ++i) {
        const std::vector<int32_t>& prompt = (*requests_)[i].prompt;
        const std::vector<int32_t>& answer = (*want_)[i].ids;
        const size_t made = tokens.size() - std::min(tokens.size(), prompt.size());
        if (made == 0 || made >= answer.size()) continue;
        if (!std::equal(prompt.begin(), prompt.end(), tokens.begin()) ||
            !std::equal(answer.begin(), answer.begin() + static_cast<std::ptrdiff_t>(made),
                        tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()))) {
          continue;
        }
        for (int64_t j = 0; j < count && made + static_cast<size_t>(j) < answer.size(); ++j) {
          const int32_t id = answer[made + static_cast<size_t>(j)];
          ids.push_back(j < right ? id : (id == 5 ? 6 : 5));
        }
      }
      return ids;
    });
    const std::vector<size_t> order = All(requests_->size());
    ExpectSame(Serve(engine.get(), *requests_, order), order, fmt::format("up to {} drafts that hold", k));
    const runtime::ExecutorStats stats = engine->executor().stats();
    for (size_t place = 0; place < static_cast<size_t>(k); ++place) {
      EXPECT_GT(stats.accepted_at[place], 5) << place;
      EXPECT_GT(stats.drafted_at[place] - stats.accepted_at[place], 5) << place;
    }
  }
}

// Everything at once, in a cache that is too small for it.
TEST_F(RequestsV4, AllOfItTogether) {
  EngineOptions options;
  options.max_seqs = 6;
  options.max_batch_tokens = 200;
  options.num_speculative_tokens = 2;
  options.kv_cache_memory = 48 << 20;
  options.block_size = 128;
  const auto engine = Load(options, 2);
  std::vector<size_t> order = All(requests_->size());
  for (uint32_t round = 0; round < 2; ++round) {
    std::shuffle(order.begin(), order.end(), std::mt19937(round));
    ExpectSame(Serve(engine.get(), *requests_, order), order, "all of it");
  }
}

}  // namespace
}  // namespace hadal::test
