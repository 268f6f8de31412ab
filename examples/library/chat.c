/* chat_c MODEL BODY: streams the answer to the body of a chat completion, such as
 * '{"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0}', then prints it whole as JSON. */
#include <stdio.h>

#include "hadal/hadal.h"

static int fail(char* error) {
  fprintf(stderr, "%s\n", error != NULL ? error : "out of memory");
  hadal_free(error);
  return 1;
}

int main(int argc, char** argv) {
  hadal_engine* engine = NULL;
  hadal_stream* stream = NULL;
  char *answer = NULL, *error = NULL;
  hadal_event event;
  int status = 0;

  if (argc != 3) {
    fprintf(stderr, "usage: %s MODEL BODY\n", argv[0]);
    return 2;
  }
  if (hadal_engine_load(argv[1], "{\"max_model_len\": 4096}", NULL, NULL, &engine, &error) != HADAL_OK) {
    return fail(error);
  }
  if (hadal_stream_start(engine, argv[2], &stream, &error) != HADAL_OK) {
    hadal_engine_free(engine);
    return fail(error);
  }
  do {
    if (hadal_stream_next(stream, &event, &error) != HADAL_OK) break;
    if (event.kind == HADAL_EVENT_CONTENT) fputs(event.text, stdout);
    fflush(stdout);
  } while (event.kind != HADAL_EVENT_END);
  if (error == NULL && hadal_stream_finish(stream, &answer, &error) == HADAL_OK) {
    printf("\n%s\n", answer);
    hadal_free(answer);
  }
  if (error != NULL) status = fail(error);
  hadal_stream_free(stream);
  hadal_engine_free(engine);
  return status;
}
