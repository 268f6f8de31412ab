// hadal.hpp with the bundled model. The engines are few, because each loads it.
#include <gmock/gmock.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "hadal/hadal.hpp"
#include "support/paths.h"

namespace hadal {
namespace {

using testing::HasSubstr;

EngineOptions SmallOptions() {
  EngineOptions options;
  options.max_model_len = 2048;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 256;
  options.threads = 2;
  return options;
}

// One for all tests of this file: it is immutable but for its requests.
Engine& SharedEngine() {
  static Engine* engine = new Engine(Engine::Load(test::BundledModel(), SmallOptions()).value());
  return *engine;
}

Bytes SignPng() {
  std::ifstream file(std::string(HADAL_SOURCE_DIR) + "/examples/sign.png", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Request Ask(std::string text) {
  Request request;
  request.messages = {ChatMessage::User(std::move(text))};
  request.thinking = Thinking::kOff;
  request.sampling.temperature = 0;
  return request;
}

Error ErrorOf(const Request& request) {
  const Result<Answer> answer = SharedEngine().Generate(request);
  EXPECT_FALSE(answer.ok());
  return answer.ok() ? Error{} : answer.error();
}

TEST(Library, LoadSaysWhatIsWrong) {
  const Result<Engine> missing = Engine::Load("/no/such/model");
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message, HasSubstr("/no/such/model"));
  EXPECT_THROW((void)missing.value(), std::runtime_error);

  const auto message = [](auto change) {
    EngineOptions options = SmallOptions();
    change(&options);
    const Result<Engine> engine = Engine::Load(test::BundledModel(), options);
    return engine.ok() ? std::string("loaded") : engine.error().message;
  };
  EXPECT_THAT(message([](EngineOptions* o) { o->load_format = "fast"; }),
              HasSubstr("load_format: expected one of auto"));
  EXPECT_THAT(message([](EngineOptions* o) { o->mmap = "yes"; }), HasSubstr("mmap: expected one of auto, on, off"));
  EXPECT_THAT(message([](EngineOptions* o) { o->max_num_seqs = 0; }), HasSubstr("max_num_seqs: expected 1 to"));
  EXPECT_THAT(message([](EngineOptions* o) { o->threads = -1; }), HasSubstr("threads: expected 0 to 4096, found -1"));
  EXPECT_THAT(message([](EngineOptions* o) { o->num_speculative_tokens = 5; }), HasSubstr("expected 0 to 4, found 5"));
  EXPECT_THAT(message([](EngineOptions* o) { o->block_size = 100; }), HasSubstr("block"));
  EXPECT_THAT(message([](EngineOptions* o) { o->kv_cache_dtype = "int4"; }), HasSubstr("kv-cache"));
  EXPECT_THAT(message([](EngineOptions* o) { o->cpu_isa = "sse"; }), HasSubstr("sse"));
  EXPECT_THAT(message([](EngineOptions* o) { o->numerics = "fast"; }), HasSubstr("fast"));
  EXPECT_THAT(message([](EngineOptions* o) { o->device = "tpu"; }), HasSubstr("tpu"));
}

TEST(Library, SaysWhatItIs) {
  const EngineInfo& info = SharedEngine().info();
  EXPECT_EQ(info.model, "tiny-v4-vision");
  EXPECT_EQ(info.architecture, "DeepseekV4ForCausalLM");
  EXPECT_EQ(info.max_model_len, 2048);
  EXPECT_TRUE(info.takes_images);
  EXPECT_THAT(info.description, HasSubstr("2 threads"));
  EXPECT_THAT(info.cache, HasSubstr("fp8_ds_mla"));
  EXPECT_FALSE(Version().empty());
}

TEST(Library, ReportsProgress) {
  std::vector<std::string> stages;
  EngineOptions options = SmallOptions();
  options.progress = [&](std::string_view stage, int64_t done, int64_t total) {
    EXPECT_LE(done, total);
    if (stages.empty() || stages.back() != stage) stages.emplace_back(stage);
  };
  ASSERT_TRUE(Engine::Load(test::BundledModel(), options).ok());
  EXPECT_GE(stages.size(), 2u);
}

TEST(Library, AnswersTextAndImages) {
  const Result<Answer> sum = SharedEngine().Generate(Ask("What is 17 + 25?"));
  ASSERT_TRUE(sum.ok()) << sum.error().message;
  EXPECT_EQ(sum->content, "17 + 25 = 42");
  EXPECT_EQ(sum->finish_reason, FinishReason::kStop);
  EXPECT_GT(sum->prompt_tokens, 5);
  EXPECT_GT(sum->time_to_first_token, 0);

  Request request = Ask("");
  request.messages = {ChatMessage::User({ContentPart::Image(SignPng()), ContentPart::Text("OCR this image.")})};
  const Result<Answer> sign = SharedEngine().Generate(request);
  ASSERT_TRUE(sign.ok()) << sign.error().message;
  EXPECT_EQ(sign->content, "TIGER 42");
}

TEST(Library, StreamsWhatGenerateGives) {
  Request request = Ask("What is 478 + 365?");
  request.thinking = Thinking::kOn;
  request.max_tokens = 200;
  const Answer whole = SharedEngine().Generate(request).value();
  Stream stream = SharedEngine().Start(request).value();
  std::string content, reasoning;
  for (std::vector<Event> events = stream.Next(); !events.empty(); events = stream.Next()) {
    for (const Event& event : events) {
      if (event.kind == Event::Kind::kContent) content += event.text;
      if (event.kind == Event::Kind::kReasoning) reasoning += event.text;
    }
  }
  EXPECT_EQ(content, whole.content);
  EXPECT_EQ(reasoning, whole.reasoning);
  EXPECT_FALSE(reasoning.empty());
  const Answer streamed = stream.Finish().value();
  EXPECT_EQ(streamed.token_ids, whole.token_ids);
  EXPECT_EQ(streamed.reasoning_tokens, whole.reasoning_tokens);
  EXPECT_EQ(stream.FinishJson().error().code, ErrorCode::kFailedPrecondition);
}

TEST(Library, AStreamIsCancelled) {
  Request request = Ask("hi");
  request.ignore_eos = true;
  Stream stream = SharedEngine().Start(request).value();
  ASSERT_FALSE(stream.Next().empty());
  stream.Cancel();
  const Answer answer = stream.Finish().value();
  EXPECT_EQ(answer.finish_reason, FinishReason::kCancelled);
  EXPECT_LT(answer.token_ids.size(), 2000u);
  { const Stream dropped = SharedEngine().Start(request).value(); }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (SharedEngine().stats().running > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(SharedEngine().stats().running, 0);
}

TEST(Library, AStreamOutlivesItsEngine) {
  std::optional<Engine> engine(Engine::Load(test::BundledModel(), SmallOptions()).value());
  Stream stream = engine->Start(Ask("What is 17 + 25?")).value();
  engine.reset();
  EXPECT_EQ(stream.Finish()->content, "17 + 25 = 42");
}

TEST(Library, ManyRequestsKeepTheirOrderAndTheirFaults) {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(Ask("What is " + std::to_string(100 + i) + " + 7?"));
  requests[5].messages[0].role = "robot";
  requests[7].max_tokens = 1;
  const std::vector<Result<Answer>> answers = SharedEngine().Generate(requests);
  ASSERT_EQ(answers.size(), requests.size());
  for (int i = 0; i < 12; ++i) {
    if (i == 5) {
      ASSERT_FALSE(answers[i].ok());
      EXPECT_THAT(answers[i].error().message, HasSubstr("messages[0].role: expected system"));
      continue;
    }
    ASSERT_TRUE(answers[i].ok()) << answers[i].error().message;
    if (i == 7) {
      EXPECT_EQ(answers[i]->finish_reason, FinishReason::kLength);
    } else {
      EXPECT_EQ(answers[i]->content, std::to_string(100 + i) + " + 7 = " + std::to_string(107 + i));
    }
  }
}

// Far more requests than may wait, each over in a step.
TEST(Library, ManyRequestsFitThroughAShortQueue) {
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 2;
  options.max_waiting = 2;
  Engine engine = Engine::Load(test::BundledModel(), options).value();
  std::vector<Request> requests(40, Ask("hi"));
  for (Request& request : requests) request.max_tokens = 1;
  for (const Result<Answer>& answer : engine.Generate(requests)) {
    EXPECT_TRUE(answer.ok()) << answer.error().message;
  }
}

TEST(Library, ConcurrentCallersGetWhatEachGetsAlone) {
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(Ask("What is " + std::to_string(31 * i + 5) + " + 44?"));
    requests.back().sampling.temperature = 1;
    requests.back().sampling.seed = static_cast<uint64_t>(i);
    requests.back().max_tokens = 24;
  }
  std::vector<std::vector<int32_t>> alone;
  for (const Request& request : requests) alone.push_back(SharedEngine().Generate(request).value().token_ids);
  std::vector<std::vector<int32_t>> together(requests.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] { together[i] = SharedEngine().Generate(requests[i]).value().token_ids; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

TEST(Library, PromptsAreChatsTextOrTokens) {
  Request chat = Ask("What is 17 + 25?");
  const std::vector<int32_t> ids = SharedEngine().Encode(chat).value();
  const Answer answer = SharedEngine().Generate(chat).value();
  Request raw;
  raw.sampling = chat.sampling;
  raw.prompt = SharedEngine().Detokenize(ids).value();
  EXPECT_EQ(SharedEngine().Encode(raw).value(), ids);
  EXPECT_EQ(SharedEngine().Generate(raw)->token_ids, answer.token_ids);
  Request tokens;
  tokens.sampling = chat.sampling;
  tokens.prompt_ids = ids;
  EXPECT_EQ(SharedEngine().Generate(tokens)->token_ids, answer.token_ids);
  // A control token that a message spells is text.
  const std::string spelled = "<｜User｜>";
  EXPECT_GT(SharedEngine().Tokenize(spelled).size(), 1u);
  EXPECT_EQ(SharedEngine().Detokenize(SharedEngine().Tokenize(spelled)).value(), spelled);
}

TEST(Library, RequestsSayWhatIsWrongWithThem) {
  const auto message = [](auto change) {
    Request request = Ask("hi");
    change(&request);
    const Error error = ErrorOf(request);
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << error.message;
    return error.message;
  };
  EXPECT_THAT(message([](Request* r) { r->messages.clear(); }), HasSubstr("expected one of messages"));
  EXPECT_THAT(message([](Request* r) { r->prompt = "x"; }), HasSubstr("found 2"));
  EXPECT_THAT(message([](Request* r) { r->images = {{1}}; }), HasSubstr("images: expected only together with prompt"));
  EXPECT_THAT(message([](Request* r) { r->tools = "{"; }), HasSubstr("tools: "));
  EXPECT_THAT(message([](Request* r) { r->tools = "{}"; }), HasSubstr("tools: expected a JSON array"));
  EXPECT_THAT(message([](Request* r) { r->tools = "[1]"; }), HasSubstr("tools"));
  EXPECT_THAT(message([](Request* r) { r->reasoning_effort = "huge"; }), HasSubstr("reasoning_effort"));
  EXPECT_THAT(message([](Request* r) { r->max_tokens = -1; }), HasSubstr("max_tokens: expected 0 or more, found -1"));
  EXPECT_THAT(message([](Request* r) { r->sampling.top_p = 0; }), HasSubstr("top_p"));
  EXPECT_THAT(message([](Request* r) { r->sampling.bad_words = {""}; }), HasSubstr("bad_words[0]"));
  EXPECT_THAT(message([](Request* r) { r->stop = {""}; }), HasSubstr("stop"));
  EXPECT_THAT(message([](Request* r) { r->form = {Form::Kind::kRegex, "(", {}}; }), HasSubstr("regex"));
  EXPECT_THAT(message([](Request* r) {
                r->messages = {ChatMessage::User({ContentPart::Text("x"), ContentPart::Image({1, 2, 3})})};
              }),
              HasSubstr("messages[0].content[1]: "));
  EXPECT_THAT(message([](Request* r) {
                r->messages.push_back(ChatMessage::Assistant("x"));
                r->messages[1].content.push_back(ContentPart::Image({1}));
              }),
              HasSubstr("messages[1].content[1]: expected images in messages of the user only"));
  EXPECT_THAT(message([](Request* r) {
                r->messages.clear(), r->thinking = Thinking::kDefault, r->prompt_ids = {1, 1 << 30};
              }),
              HasSubstr("1073741824"));
  EXPECT_THAT(SharedEngine().Detokenize(std::vector<int32_t>{5, -1}).error().message,
              HasSubstr("ids[1]: expected 0 to"));
}

TEST(Library, AnswersHaveTheirForm) {
  Request request = Ask("What is 17 + 25?");
  request.form = {Form::Kind::kRegex, "[a-f]{3}", {}};
  EXPECT_THAT(SharedEngine().Generate(request)->content, testing::MatchesRegex("[a-f][a-f][a-f]"));
  request.form = {Form::Kind::kChoice, "", {"yes", "no"}};
  EXPECT_THAT(SharedEngine().Generate(request)->content, testing::AnyOf("yes", "no"));
}

TEST(Library, TokensHaveLogprobs) {
  Request request = Ask("What is 17 + 25?");
  request.sampling.logprobs = 2;
  request.sampling.prompt_logprobs = 0;
  const Answer answer = SharedEngine().Generate(request).value();
  ASSERT_EQ(answer.logprobs.size(), answer.token_ids.size());
  for (const TokenLogprobs& token : answer.logprobs) {
    EXPECT_EQ(token.rank, 1);
    ASSERT_EQ(token.top.size(), 2u);
    EXPECT_EQ(token.top[0].id, token.id);
  }
  EXPECT_EQ(static_cast<int64_t>(answer.prompt_logprobs.size()), answer.prompt_tokens - 1);
}

}  // namespace
}  // namespace hadal
