// hadal.h with the bundled model.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hadal/hadal.h"
#include "support/paths.h"

namespace {

using nlohmann::json;
using testing::HasSubstr;

// What a function handed out, as a string; frees it.
std::string Take(char* text) {
  std::string copy = text == nullptr ? "(null)" : text;
  hadal_free(text);
  return copy;
}

hadal_engine* SharedEngine() {
  static hadal_engine* engine = [] {
    hadal_engine* loaded = nullptr;
    char* error = nullptr;
    const char* options = R"({"max_model_len": 2048, "threads": 2, "max_num_seqs": 2})";
    const hadal_status status =
        hadal_engine_load(hadal::test::BundledModel().c_str(), options, nullptr, nullptr, &loaded, &error);
    EXPECT_EQ(status, HADAL_OK) << Take(error);
    return loaded;
  }();
  return engine;
}

constexpr const char* kSum =
    R"({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0, "thinking": {"type": "disabled"}})";

TEST(CApi, LoadSaysWhatIsWrong) {
  const auto load = [](const char* model, const char* options) {
    hadal_engine* engine = nullptr;
    char* error = nullptr;
    EXPECT_NE(hadal_engine_load(model, options, nullptr, nullptr, &engine, &error), HADAL_OK);
    EXPECT_EQ(engine, nullptr);
    return Take(error);
  };
  EXPECT_THAT(load("/no/such/model", nullptr), HasSubstr("/no/such/model"));
  EXPECT_THAT(load(nullptr, nullptr), HasSubstr("model: expected, found NULL"));
  const std::string model = hadal::test::BundledModel();
  EXPECT_THAT(load(model.c_str(), "{"), HasSubstr("JSON"));
  EXPECT_THAT(load(model.c_str(), "[]"), HasSubstr("options: expected an object"));
  EXPECT_THAT(load(model.c_str(), R"({"max_len": 5})"), HasSubstr("found \"max_len\""));
  EXPECT_THAT(load(model.c_str(), R"({"threads, cpu_isa": 5})"), HasSubstr("found \"threads, cpu_isa\""));
  EXPECT_THAT(load(model.c_str(), R"({"max_model_len": "5"})"), HasSubstr("max_model_len: expected"));
  EXPECT_THAT(load(model.c_str(), R"({"threads": 4294967298})"), HasSubstr("threads: expected 0 to 4096"));
  EXPECT_THAT(load(model.c_str(), R"({"device": "tpu"})"), HasSubstr("tpu"));
  // Without anywhere to write an error to.
  hadal_engine* engine = nullptr;
  EXPECT_EQ(hadal_engine_load(model.c_str(), "[]", nullptr, nullptr, &engine, nullptr), HADAL_INVALID_ARGUMENT);
  EXPECT_EQ(hadal_engine_load(model.c_str(), nullptr, nullptr, nullptr, nullptr, nullptr), HADAL_INVALID_ARGUMENT);
}

TEST(CApi, ReportsProgress) {
  hadal_engine* engine = nullptr;
  int calls = 0;
  const hadal_progress count = [](const char*, int64_t, int64_t, void* user) { ++*static_cast<int*>(user); };
  ASSERT_EQ(hadal_engine_load(hadal::test::BundledModel().c_str(), R"({"max_model_len": 512})", count, &calls, &engine,
                              nullptr),
            HADAL_OK);
  EXPECT_GT(calls, 1);
  hadal_engine_free(engine);
}

TEST(CApi, AnswersABody) {
  char *answer = nullptr, *error = nullptr;
  ASSERT_EQ(hadal_chat_completion(SharedEngine(), kSum, &answer, &error), HADAL_OK) << Take(error);
  const json body = json::parse(Take(answer));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "tiny-v4-vision");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "17 + 25 = 42");

  ASSERT_EQ(
      hadal_completion(SharedEngine(), R"({"prompt": "1 + 1", "max_tokens": 3, "n": 2, "seed": 1})", &answer, &error),
      HADAL_OK)
      << Take(error);
  EXPECT_EQ(json::parse(Take(answer))["choices"].size(), 2u);

  EXPECT_EQ(hadal_chat_completion(SharedEngine(), R"({"messages": 5})", &answer, &error), HADAL_INVALID_ARGUMENT);
  EXPECT_THAT(Take(error), HasSubstr("messages: expected"));
  EXPECT_EQ(hadal_chat_completion(SharedEngine(), R"({"messages": [], "stream": true)", &answer, &error),
            HADAL_INVALID_ARGUMENT);
  EXPECT_THAT(Take(error), HasSubstr("JSON"));
  EXPECT_EQ(hadal_chat_completion(nullptr, kSum, &answer, &error), HADAL_INVALID_ARGUMENT);
  EXPECT_THAT(Take(error), HasSubstr("engine: expected, found NULL"));
}

TEST(CApi, StreamsABody) {
  hadal_stream* stream = nullptr;
  char *answer = nullptr, *error = nullptr;
  // What a body says about streaming does not count.
  json body = json::parse(kSum);
  body["stream_options"] = {{"include_usage", true}};
  ASSERT_EQ(hadal_stream_start(SharedEngine(), body.dump().c_str(), &stream, &error), HADAL_OK) << Take(error);
  std::string content;
  hadal_event event;
  do {
    ASSERT_EQ(hadal_stream_next(stream, &event, &error), HADAL_OK) << Take(error);
    if (event.kind == HADAL_EVENT_CONTENT) content.append(event.text, event.size);
  } while (event.kind != HADAL_EVENT_END);
  EXPECT_EQ(content, "17 + 25 = 42");
  ASSERT_EQ(hadal_stream_finish(stream, &answer, &error), HADAL_OK) << Take(error);
  EXPECT_EQ(json::parse(Take(answer))["choices"][0]["message"]["content"], "17 + 25 = 42");
  // The end stays the end.
  ASSERT_EQ(hadal_stream_next(stream, &event, nullptr), HADAL_OK);
  EXPECT_EQ(event.kind, HADAL_EVENT_END);
  hadal_stream_free(stream);

  EXPECT_EQ(hadal_stream_start(SharedEngine(), R"({"messages": [{"role": "user", "content": "x"}], "n": 2})", &stream,
                               &error),
            HADAL_INVALID_ARGUMENT);
  EXPECT_THAT(Take(error), HasSubstr("n: expected 1 for a stream"));
}

TEST(CApi, AStreamIsCancelled) {
  hadal_stream* stream = nullptr;
  char* answer = nullptr;
  const char* endless = R"({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true})";
  ASSERT_EQ(hadal_stream_start(SharedEngine(), endless, &stream, nullptr), HADAL_OK);
  hadal_event event;
  ASSERT_EQ(hadal_stream_next(stream, &event, nullptr), HADAL_OK);
  hadal_stream_cancel(stream);
  ASSERT_EQ(hadal_stream_finish(stream, &answer, nullptr), HADAL_OK);
  EXPECT_EQ(json::parse(Take(answer))["choices"][0]["finish_reason"], "abort");
  hadal_stream_free(stream);
  hadal_stream_free(nullptr);
  hadal_stream_cancel(nullptr);
  hadal_engine_free(nullptr);
}

TEST(CApi, TokensAndText) {
  int32_t* ids = nullptr;
  size_t count = 0;
  char *text = nullptr, *error = nullptr;
  ASSERT_EQ(hadal_tokenize(SharedEngine(), "What is 17 + 25?", &ids, &count, nullptr), HADAL_OK);
  EXPECT_GT(count, 3u);
  ASSERT_EQ(hadal_detokenize(SharedEngine(), ids, count, &text, nullptr), HADAL_OK);
  EXPECT_EQ(Take(text), "What is 17 + 25?");
  hadal_free(ids);
  ASSERT_EQ(hadal_tokenize(SharedEngine(), "", &ids, &count, nullptr), HADAL_OK);
  EXPECT_EQ(count, 0u);
  ASSERT_EQ(hadal_detokenize(SharedEngine(), nullptr, 0, &text, nullptr), HADAL_OK);
  EXPECT_EQ(Take(text), "");
  hadal_free(ids);
  const int32_t bad = -3;
  EXPECT_EQ(hadal_detokenize(SharedEngine(), &bad, 1, &text, &error), HADAL_INVALID_ARGUMENT);
  EXPECT_THAT(Take(error), HasSubstr("ids[0]: expected 0 to"));
}

TEST(CApi, SaysWhatItIsAndDoes) {
  char* text = nullptr;
  ASSERT_EQ(hadal_engine_info(SharedEngine(), &text, nullptr), HADAL_OK);
  const json info = json::parse(Take(text));
  EXPECT_EQ(info["model"], "tiny-v4-vision");
  EXPECT_EQ(info["max_model_len"], 2048);
  ASSERT_EQ(hadal_engine_stats(SharedEngine(), &text, nullptr), HADAL_OK);
  EXPECT_TRUE(json::parse(Take(text))["finished"].is_number_integer());
  EXPECT_THAT(hadal_version(), HasSubstr("."));
}

}  // namespace
