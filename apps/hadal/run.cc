// hadal run: one answer, a chat on the terminal, or the requests of a file.
#include "run.h"

#include <chrono>
#include <memory>

#include "answer.h"
#include "base/status.h"
#include "batch.h"
#include "images.h"

namespace hadal::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  hadal run models/tiny-v4-vision \"What is 478 + 365?\"\n"
    "  hadal run MODEL --prompt \"Prove it.\" --thinking --effort max\n"
    "  hadal run MODEL --json --temperature 0 < question.txt\n"
    "  hadal run MODEL --image a.png --image b.jpg \"What differs between {image} and {image}?\"\n"
    "  hadal run MODEL --raw --prompt \"<｜begin▁of▁sentence｜>Once upon a time\" --max-tokens 50\n"
    "  hadal run MODEL --batch requests.jsonl --output results.jsonl\n"
    "Without a prompt: the prompt is stdin if that is no terminal, else a chat starts (^C stops an answer, ^D ends).";

// Text that came through a pipe ends with a newline that nobody meant.
void TrimNewlines(std::string* text) {
  while (text->ends_with('\n') || text->ends_with('\r')) text->pop_back();
}

absl::StatusOr<runtime::EncodedPrompt> Encode(const RunFlags& flags, const text::ThinkingChoice& thinking,
                                              const runtime::ImageList& images, const runtime::Engine& engine) {
  if (flags.raw) return engine.EncodeRaw(flags.prompt, images);
  text::Json messages = text::Json::array();
  if (!flags.system.empty()) messages.push_back({{"role", "system"}, {"content", flags.system}});
  HADAL_ASSIGN_OR_RETURN(text::Json content, UserContent(flags.prompt, images.size()));
  messages.push_back({{"role", "user"}, {"content", std::move(content)}});
  return engine.EncodeChat(messages, thinking, images);
}

int RunOnce(const RunFlags& flags, const text::ThinkingChoice& thinking, const runtime::ImageList& images,
            std::shared_ptr<const guided::Grammar> grammar, runtime::Engine* engine, double load_seconds) {
  const absl::StatusOr<runtime::EncodedPrompt> prompt = Encode(flags, thinking, images, *engine);
  if (!prompt.ok()) return FailRequest(prompt.status());
  runtime::GenerateRequest request;
  flags.sampling.Apply(engine->default_sampling(), engine->tokenizer().get(), &request);
  request.prompt = prompt->ids;
  request.images = prompt->images;
  request.end_tokens = engine->end_tokens();
  // A raw prompt with an assistant's turn is a chat that somebody encoded; any other is text to be continued.
  const bool chat = !flags.raw || flags.prompt.find(text::kAssistantText) != std::string::npos;
  if (chat) request.parser = ParserFor(*prompt, flags.raw);
  request.grammar = std::move(grammar);
  runtime::Generator generator = engine->MakeGenerator();
  const absl::StatusOr<runtime::GenerateResult> result =
      Answer(&generator, request, flags.json ? Show::kNothing : Show::kStream);
  if (!result.ok()) return FailRequest(result.status());
  if (flags.json) WriteOut(AnswerJson(request, *result, load_seconds));
  if (const int code = OutputResult(); code != kOk) return code;
  if (!flags.json) PrintSpeed(*result);
  return result->finish_reason == runtime::FinishReason::kCancelled ? kInterrupted : kOk;
}

// Settles prompt and mode. Returns an exit code if there is nothing to run.
int ReadPrompt(RunFlags* flags, bool given) {
  if (flags->interactive) {
    if (given || flags->json || flags->raw) {
      return Fail(kUsage, "--interactive excludes a prompt, --raw and --json");
    }
    return kOk;
  }
  if (!given && StdinIsTerminal()) {
    if (flags->json || flags->raw) return Fail(kUsage, "no prompt: give --prompt TEXT, or pipe it in");
    flags->interactive = true;
    return kOk;
  }
  if (given && flags->prompt != "-") return kOk;
  absl::StatusOr<std::string> text = ReadStdin();
  if (!text.ok()) return FailRequest(text.status());
  flags->prompt = *std::move(text);
  if (!flags->raw) TrimNewlines(&flags->prompt);
  if (flags->prompt.empty()) return Fail(kBadRequest, "the prompt on stdin is empty");
  return kOk;
}

// --batch: the requests say everything else themselves.
int RunRequests(const RunFlags& flags, bool prompt_given) {
  if (flags.output.empty()) return Fail(kUsage, "--batch needs --output FILE (or --output -)");
  if (prompt_given || !flags.system.empty() || flags.raw || flags.interactive || flags.thinking ||
      !flags.effort.empty() || !flags.images.empty() || flags.show_images || flags.json || flags.guided.given()) {
    return Fail(
        kUsage,
        "--batch excludes a prompt, --system, --raw, --interactive, --thinking, --effort, --image, --show-images, "
        "--json and the form of the answer: its requests say that themselves");
  }
  return RunBatch({flags.engine, flags.sampling, flags.batch, flags.output});
}

int Run(RunFlags flags, bool prompt_given) {
  if (const absl::Status status = flags.sampling.Check(); !status.ok()) return Fail(kUsage, Message(status));
  if (!flags.batch.empty()) return RunRequests(flags, prompt_given);
  if (!flags.output.empty()) return Fail(kUsage, "--output belongs to --batch");
  if (flags.raw && (!flags.system.empty() || flags.thinking || !flags.effort.empty())) {
    return Fail(kUsage, "--raw excludes --system, --thinking and --effort: a raw prompt holds all of that itself");
  }
  if (const int code = ReadPrompt(&flags, prompt_given); code != kOk) return code;

  const auto start = std::chrono::steady_clock::now();
  int code = kOk;
  const std::unique_ptr<runtime::Engine> engine = flags.engine.Load(&code);
  if (engine == nullptr) return code;
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  text::ThinkingRequest wanted;
  if (flags.thinking) wanted.thinking = true;
  if (!flags.effort.empty()) wanted.effort = flags.effort;
  const absl::StatusOr<text::ThinkingChoice> thinking =
      text::ResolveThinking(wanted, engine->effort_profile(), text::EffortTable::kService, false);
  if (!thinking.ok()) return Fail(kUsage, Message(thinking.status()));
  std::string pictures;
  const absl::StatusOr<runtime::ImageList> images =
      LoadImages(*engine, flags.images, flags.show_images ? &pictures : nullptr);
  if (!images.ok()) return FailRequest(images.status());
  if (flags.json) {
    std::fputs(pictures.c_str(), stderr);  // stdout holds the JSON alone
  } else if (!pictures.empty()) {
    WriteOut(pictures);
    if (const int written = OutputResult(); written != kOk) return written;
  }
  absl::StatusOr<std::shared_ptr<const guided::Grammar>> grammar = flags.guided.Compile(engine.get());
  if (!grammar.ok()) return FailRequest(grammar.status());
  return flags.interactive ? RunInteractive(flags, *thinking, *images, *std::move(grammar), engine.get())
                           : RunOnce(flags, *thinking, *images, *std::move(grammar), engine.get(), load_seconds);
}

}  // namespace

text::ParserOptions ParserFor(const runtime::EncodedPrompt& prompt, bool tools_allowed) {
  text::ParserOptions options;
  options.starts_in_reasoning = prompt.starts_in_reasoning;
  options.markup = prompt.markup;
  options.tools_allowed = tools_allowed;
  return options;
}

void AddRun(CLI::App* app, int* result) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* run = app->add_subcommand("run", "Answer a prompt, or chat on the terminal");
  flags->engine.Register(run);
  CLI::Option* positional = run->add_option("PROMPT", flags->prompt, "The user's message; - reads it from stdin");
  const std::string group = "Prompt";
  CLI::Option* prompt = run->add_option("--prompt", flags->prompt, "The same as PROMPT")->group(group);
  prompt->excludes(positional);
  run->add_option("--system", flags->system, "System message")->group(group);
  run->add_flag("--raw", flags->raw, "The prompt is complete text: control tokens are matched, nothing is added")
      ->group(group);
  run->add_flag("--interactive,-i", flags->interactive, "Chat with history on the terminal")->group(group);
  run->add_flag("--thinking", flags->thinking, "Let the model think first")->group(group);
  run->add_option("--effort", flags->effort, "Reasoning effort (low, high, max, ...; none: do not think)")
      ->group(group);
  AddList(run, "--image", &flags->images,
          "Image file (JPEG, PNG, WebP) for the message: where it says {image}, or before it")
      ->group(group);
  run->add_flag("--show-images", flags->show_images, "Draw the images in the terminal")->group("Output");
  run->add_option("--batch", flags->batch,
                  "Answer the requests of this file, many at once: OpenAI's batch format, a JSON object a line (docs/"
                  "batch.md)")
      ->group("Batch");
  run->add_option("--output", flags->output,
                  "Results of --batch, a line each; a file that has some already is continued; - is stdout")
      ->group("Batch");
  flags->sampling.Register(run);
  flags->guided.Register(run);
  run->add_flag("--json", flags->json, "Print one JSON object: text, token_ids, finish_reason, usage, timings")
      ->group("Output");
  run->footer(kExamples);
  run->callback([=] { *result = Run(*flags, positional->count() + prompt->count() > 0); });
}

}  // namespace hadal::cli
