// hadal run --interactive: turns of a chat, with the whole history in every prompt.
#include <unistd.h>

#include <cstdio>

#include "answer.h"
#include "base/status.h"
#include "images.h"
#include "run.h"

namespace hadal::cli {
namespace {

enum class Line { kText, kEnd, kInterrupted };

// One line from stdin, byte by byte through the terminal's own line editing.
Line ReadLine(std::string* line) {
  InterruptScope interrupt;
  line->clear();
  if (StdinIsTerminal()) {
    std::fputs("> ", stderr);
    std::fflush(stderr);
  }
  while (true) {
    if (!interrupt.WaitReadable(STDIN_FILENO)) return Line::kInterrupted;
    char c = 0;
    const ssize_t n = read(STDIN_FILENO, &c, 1);
    if (n <= 0) return line->empty() ? Line::kEnd : Line::kText;
    if (c == '\n') return Line::kText;
    *line += c;
  }
}

text::Json AssistantMessage(const runtime::GenerateResult& result) {
  text::Json message = {{"role", "assistant"}, {"content", result.content}};
  if (!result.reasoning.empty()) message["reasoning_content"] = result.reasoning;
  return message;
}

absl::StatusOr<runtime::GenerateResult> AnswerTurn(const RunFlags& flags, const text::ThinkingChoice& thinking,
                                                   const text::Json& messages, const runtime::ImageList& images,
                                                   std::shared_ptr<const guided::Grammar> grammar,
                                                   runtime::Engine* engine, runtime::Generator* generator) {
  HADAL_ASSIGN_OR_RETURN(const runtime::EncodedPrompt prompt, engine->EncodeChat(messages, thinking, images));
  runtime::GenerateRequest request;
  flags.sampling.Apply(engine->default_sampling(), engine->tokenizer().get(), &request);
  request.prompt = prompt.ids;
  request.images = prompt.images;
  request.end_tokens = engine->end_tokens();
  request.parser = ParserFor(prompt, false);
  request.grammar = std::move(grammar);
  return Answer(generator, request, Show::kStream);
}

}  // namespace

int RunInteractive(const RunFlags& flags, const text::ThinkingChoice& thinking, const runtime::ImageList& images,
                   const std::shared_ptr<const guided::Grammar>& grammar, runtime::Engine* engine) {
  std::fputs(
      fmt::format("{}; {}. ^C stops an answer, ^D ends.\n", engine->description(), engine->CacheDescription()).c_str(),
      stderr);
  text::Json messages = text::Json::array();
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  const size_t before = messages.size();
  runtime::Generator generator = engine->MakeGenerator();
  for (std::string line;;) {
    const Line kind = ReadLine(&line);
    if (kind == Line::kInterrupted) {
      std::fputs("\n(^D ends)\n", stderr);
      continue;
    }
    if (kind == Line::kEnd) break;
    if (line.empty()) continue;
    absl::StatusOr<text::Json> content = UserContent(line, messages.size() == before ? images.size() : 0);
    if (!content.ok()) {
      FailRequest(content.status());
      continue;
    }
    messages.push_back({{"role", "user"}, {"content", *std::move(content)}});
    const absl::StatusOr<runtime::GenerateResult> result =
        AnswerTurn(flags, thinking, messages, images, grammar, engine, &generator);
    if (!result.ok()) {
      // The chat goes on without the message that could not be answered.
      FailRequest(result.status());
      messages.erase(messages.size() - 1);
      continue;
    }
    if (const int code = OutputResult(); code != kOk) return code;
    PrintSpeed(*result);
    messages.push_back(AssistantMessage(*result));
  }
  if (StdinIsTerminal()) std::fputs("\n", stderr);
  return kOk;
}

}  // namespace hadal::cli
