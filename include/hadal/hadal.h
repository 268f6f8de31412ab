/* libhadal for C and for whatever calls C: hadal.hpp with handles, and JSON where that has structures.
 *
 *   hadal_engine* engine = NULL;
 *   char *answer = NULL, *error = NULL;
 *   if (hadal_engine_load("models/tiny-v4-vision", "{\"max_model_len\": 4096}", NULL, NULL, &engine, &error) !=
 * HADAL_OK)
 *     ...
 *   hadal_chat_completion(engine, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}", &answer, &error);
 *
 * Text is UTF-8 and ends with a zero byte. What comes back through a `char**`, `int32_t**` or as a `char*` belongs to
 * the caller, who gives it back with hadal_free. A function that fails leaves its other outputs alone; `error`, which
 * may be NULL, then receives a message. Handles may be used from any number of threads at once, but for being freed; a
 * stream is for one reader, though hadal_stream_cancel may come from any thread. No exception leaves a function. */
#ifndef HADAL_HADAL_H_
#define HADAL_HADAL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HADAL_C_API __attribute__((visibility("default")))

/* The values of hadal::ErrorCode. */
typedef enum hadal_status {
  HADAL_OK = 0,
  HADAL_INVALID_ARGUMENT = 1,
  HADAL_NOT_FOUND = 2,
  HADAL_UNIMPLEMENTED = 3,
  HADAL_FAILED_PRECONDITION = 4,
  HADAL_OUT_OF_RANGE = 5,
  HADAL_RESOURCE_EXHAUSTED = 6,
  HADAL_UNAVAILABLE = 7,
  HADAL_CANCELLED = 8,
  HADAL_INTERNAL = 9
} hadal_status;

typedef struct hadal_engine hadal_engine;
typedef struct hadal_stream hadal_stream;

/* "0.1.0"; not to be freed. */
HADAL_C_API const char* hadal_version(void);
/* Frees what a function handed out. NULL is fine. */
HADAL_C_API void hadal_free(void* memory);

/* Called while a model loads, from the loading thread; done and total in bytes, 0 where they do not apply. */
typedef void (*hadal_progress)(const char* stage, int64_t done, int64_t total, void* user);

/* `model`: a directory as published. `options`: a JSON object with members of hadal::EngineOptions; NULL: none.
 * `progress` may be NULL; `user` is handed to it. */
HADAL_C_API hadal_status hadal_engine_load(const char* model, const char* options, hadal_progress progress, void* user,
                                           hadal_engine** engine, char** error);
/* Cancels what runs, but for what a stream still reads. NULL is fine. */
HADAL_C_API void hadal_engine_free(hadal_engine* engine);

/* A JSON object: model, architecture, description, cache, vocab_size, max_model_len, takes_images, warnings. */
HADAL_C_API hadal_status hadal_engine_info(const hadal_engine* engine, char** info, char** error);
/* A JSON object with the members of hadal::EngineStats. */
HADAL_C_API hadal_status hadal_engine_stats(const hadal_engine* engine, char** stats, char** error);

/* The ids of text in which nothing is a control token. */
HADAL_C_API hadal_status hadal_tokenize(const hadal_engine* engine, const char* text, int32_t** ids, size_t* count,
                                        char** error);
HADAL_C_API hadal_status hadal_detokenize(const hadal_engine* engine, const int32_t* ids, size_t count, char** text,
                                          char** error);

/* Body and answer of POST /v1/chat/completions and /v1/completions of the OpenAI API, with `stream` false. */
HADAL_C_API hadal_status hadal_chat_completion(hadal_engine* engine, const char* body, char** answer, char** error);
HADAL_C_API hadal_status hadal_completion(hadal_engine* engine, const char* body, char** answer, char** error);

typedef enum hadal_event_kind {
  HADAL_EVENT_END = 0,            /* nothing more comes */
  HADAL_EVENT_REASONING = 1,      /* text */
  HADAL_EVENT_CONTENT = 2,        /* text */
  HADAL_EVENT_CALL_BEGIN = 3,     /* text: the tool's name */
  HADAL_EVENT_CALL_ARGUMENTS = 4, /* text: a piece of the JSON text */
  HADAL_EVENT_CALL_END = 5
} hadal_event_kind;

typedef struct hadal_event {
  hadal_event_kind kind;
  const char* text; /* belongs to the stream, until its next call */
  size_t size;      /* bytes of text */
  int32_t call;     /* number of the call in the answer, or -1 */
} hadal_event;

/* The answer to a chat body (n 1) as it comes; `stream` in the body is ignored. */
HADAL_C_API hadal_status hadal_stream_start(hadal_engine* engine, const char* body, hadal_stream** stream,
                                            char** error);
/* The next event, waiting for it. Who lets 1 MiB of text wait is cancelled. */
HADAL_C_API hadal_status hadal_stream_next(hadal_stream* stream, hadal_event* event, char** error);
/* Waits for the end, then gives the whole answer as hadal_chat_completion does. */
HADAL_C_API hadal_status hadal_stream_finish(hadal_stream* stream, char** answer, char** error);
HADAL_C_API void hadal_stream_cancel(hadal_stream* stream);
/* Cancels what is not over. NULL is fine. */
HADAL_C_API void hadal_stream_free(hadal_stream* stream);

#ifdef __cplusplus
}
#endif

#endif /* HADAL_HADAL_H_ */
