// hadal.h: each function does what the one of hadal.hpp does, with every exception caught.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "api/convert.h"
#include "hadal/hadal.h"
#include "hadal/hadal.hpp"
#include "text/json_text.h"

struct hadal_engine {
  hadal::Engine engine;
};

struct hadal_stream {
  hadal::Stream stream;
  std::deque<hadal::Event> events;  // not handed out yet; the first was, if `given`
  bool given = false;
};

namespace {

using hadal::Error;
using hadal::ErrorCode;
using hadal::Result;
using hadal::text::Json;

char* Copy(std::string_view text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

hadal_status Fail(ErrorCode code, const char* message, char** error) {
  if (error != nullptr) *error = strdup(message);
  return static_cast<hadal_status>(code);
}
hadal_status Fail(const Error& failure, char** error) { return Fail(failure.code, failure.message.c_str(), error); }

// Runs `work`, which returns a status.
template <typename Work>
hadal_status Guard(char** error, Work work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kResourceExhausted, "out of memory", error);
  } catch (const std::exception& exception) {
    return Fail(ErrorCode::kInternal, exception.what(), error);
  }
}

hadal_status Give(const Result<std::string>& result, char** text, char** error) {
  if (!result.ok()) return Fail(result.error(), error);
  *text = Copy(*result);
  return HADAL_OK;
}

// What has to be there. Returns from the function if it is not.
#define HADAL_REQUIRE(pointer)                                                                                    \
  do {                                                                                                            \
    if ((pointer) == nullptr) return Fail(ErrorCode::kInvalidArgument, #pointer ": expected, found NULL", error); \
  } while (false)

hadal_event_kind KindOf(hadal::Event::Kind kind) {
  switch (kind) {
    case hadal::Event::Kind::kReasoning:
      return HADAL_EVENT_REASONING;
    case hadal::Event::Kind::kContent:
      return HADAL_EVENT_CONTENT;
    case hadal::Event::Kind::kCallBegin:
      return HADAL_EVENT_CALL_BEGIN;
    case hadal::Event::Kind::kCallArguments:
      return HADAL_EVENT_CALL_ARGUMENTS;
    case hadal::Event::Kind::kCallEnd:
      return HADAL_EVENT_CALL_END;
  }
  return HADAL_EVENT_END;
}

}  // namespace

const char* hadal_version(void) { return HADAL_VERSION; }
void hadal_free(void* memory) { std::free(memory); }

hadal_status hadal_engine_load(const char* model, const char* options, hadal_progress progress, void* user,
                               hadal_engine** engine, char** error) {
  HADAL_REQUIRE(model);
  HADAL_REQUIRE(engine);
  return Guard(error, [&] {
    absl::StatusOr<hadal::EngineOptions> read = hadal::api::ReadEngineOptions(options == nullptr ? "" : options);
    if (!read.ok()) return Fail(hadal::api::ToError(read.status()), error);
    if (progress != nullptr) {
      read->progress = [progress, user](std::string_view stage, int64_t done, int64_t total) {
        progress(std::string(stage).c_str(), done, total, user);
      };
    }
    Result<hadal::Engine> loaded = hadal::Engine::Load(model, *read);
    if (!loaded.ok()) return Fail(loaded.error(), error);
    *engine = new hadal_engine{*std::move(loaded)};
    return HADAL_OK;
  });
}

void hadal_engine_free(hadal_engine* engine) { delete engine; }

hadal_status hadal_engine_info(const hadal_engine* engine, char** info, char** error) {
  HADAL_REQUIRE(engine);
  HADAL_REQUIRE(info);
  return Guard(error, [&] {
    const hadal::EngineInfo& from = engine->engine.info();
    *info = Copy(hadal::text::DumpJson(Json{{"model", from.model},
                                            {"architecture", from.architecture},
                                            {"description", from.description},
                                            {"cache", from.cache},
                                            {"vocab_size", from.vocab_size},
                                            {"max_model_len", from.max_model_len},
                                            {"takes_images", from.takes_images},
                                            {"warnings", from.warnings}}));
    return HADAL_OK;
  });
}

hadal_status hadal_engine_stats(const hadal_engine* engine, char** stats, char** error) {
  HADAL_REQUIRE(engine);
  HADAL_REQUIRE(stats);
  return Guard(error, [&] {
    const hadal::EngineStats from = engine->engine.stats();
    *stats = Copy(hadal::text::DumpJson(Json{{"running", from.running},
                                             {"waiting", from.waiting},
                                             {"finished", from.finished},
                                             {"failed", from.failed},
                                             {"cancelled", from.cancelled},
                                             {"preemptions", from.preemptions},
                                             {"prompt_tokens", from.prompt_tokens},
                                             {"generated_tokens", from.generated_tokens},
                                             {"draft_tokens", from.draft_tokens},
                                             {"accepted_tokens", from.accepted_tokens},
                                             {"cache_usage", from.cache_usage}}));
    return HADAL_OK;
  });
}

hadal_status hadal_tokenize(const hadal_engine* engine, const char* text, int32_t** ids, size_t* count, char** error) {
  HADAL_REQUIRE(engine);
  HADAL_REQUIRE(text);
  HADAL_REQUIRE(ids);
  HADAL_REQUIRE(count);
  return Guard(error, [&] {
    const std::vector<int32_t> tokens = engine->engine.Tokenize(text);
    // One more, so that no tokens are not no memory.
    auto* copy = static_cast<int32_t*>(std::malloc((tokens.size() + 1) * sizeof(int32_t)));
    if (copy == nullptr) throw std::bad_alloc();
    std::copy(tokens.begin(), tokens.end(), copy);
    *ids = copy;
    *count = tokens.size();
    return HADAL_OK;
  });
}

hadal_status hadal_detokenize(const hadal_engine* engine, const int32_t* ids, size_t count, char** text, char** error) {
  HADAL_REQUIRE(engine);
  HADAL_REQUIRE(text);
  if (count > 0) HADAL_REQUIRE(ids);
  return Guard(error, [&] { return Give(engine->engine.Detokenize({ids, count}), text, error); });
}

hadal_status hadal_chat_completion(hadal_engine* engine, const char* body, char** answer, char** error) {
  HADAL_REQUIRE(engine);
  HADAL_REQUIRE(body);
  HADAL_REQUIRE(answer);
  return Guard(error, [&] { return Give(engine->engine.ChatCompletion(body), answer, error); });
}

hadal_status hadal_completion(hadal_engine* engine, const char* body, char** answer, char** error) {
  HADAL_REQUIRE(engine);
  HADAL_REQUIRE(body);
  HADAL_REQUIRE(answer);
  return Guard(error, [&] { return Give(engine->engine.Completion(body), answer, error); });
}

hadal_status hadal_stream_start(hadal_engine* engine, const char* body, hadal_stream** stream, char** error) {
  HADAL_REQUIRE(engine);
  HADAL_REQUIRE(body);
  HADAL_REQUIRE(stream);
  return Guard(error, [&] {
    Result<hadal::Stream> started = engine->engine.StartChatCompletion(body);
    if (!started.ok()) return Fail(started.error(), error);
    *stream = new hadal_stream{*std::move(started), {}, false};
    return HADAL_OK;
  });
}

hadal_status hadal_stream_next(hadal_stream* stream, hadal_event* event, char** error) {
  HADAL_REQUIRE(stream);
  HADAL_REQUIRE(event);
  return Guard(error, [&] {
    if (stream->given) stream->events.pop_front();
    stream->given = false;
    if (stream->events.empty()) {
      for (hadal::Event& next : stream->stream.Next()) stream->events.push_back(std::move(next));
    }
    if (stream->events.empty()) {
      *event = {HADAL_EVENT_END, "", 0, -1};
      return HADAL_OK;
    }
    stream->given = true;
    const hadal::Event& next = stream->events.front();
    *event = {KindOf(next.kind), next.text.c_str(), next.text.size(), next.call};
    return HADAL_OK;
  });
}

hadal_status hadal_stream_finish(hadal_stream* stream, char** answer, char** error) {
  HADAL_REQUIRE(stream);
  HADAL_REQUIRE(answer);
  return Guard(error, [&] { return Give(stream->stream.FinishJson(), answer, error); });
}

void hadal_stream_cancel(hadal_stream* stream) {
  if (stream != nullptr) stream->stream.Cancel();
}
void hadal_stream_free(hadal_stream* stream) { delete stream; }
