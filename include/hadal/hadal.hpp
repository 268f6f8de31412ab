// libhadal: DeepSeek V4, V4 Vision and V3.2 inside a C++20 program. Link hadal::hadal (CMake) or `pkg-config hadal`.
//
//   hadal::Result<hadal::Engine> engine = hadal::Engine::Load("models/tiny-v4-vision");
//   if (!engine) { std::cerr << engine.error().message; return 1; }
//   hadal::Request request;
//   request.messages = {hadal::ChatMessage::User("What is 17 + 25?")};
//   hadal::Result<hadal::Answer> answer = engine->Generate(request);
//
// An engine runs any number of requests at once. What a request gets depends on the request and its seed alone: not on
// what runs beside it, nor on what the engine ran before. All functions but Load's and the destructor may be called
// from any thread at any time. Nothing here needs a header beside the standard library's.
//
// Errors come as values. Exceptions leave no function except std::bad_alloc, and Result::value() on an error.
// docs/library.md is the guide; hadal.h gives the same to C and to whatever calls C.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#define HADAL_API __attribute__((visibility("default")))

namespace hadal {

enum class ErrorCode {
  kInvalidArgument = 1,  // a request, option or file is not as it should be; the message says where
  kNotFound,
  kUnimplemented,       // not in this build: an architecture, a device
  kFailedPrecondition,  // this machine or this model cannot do it
  kOutOfRange,
  kResourceExhausted,  // it does not fit, with the numbers
  kUnavailable,        // too many requests are waiting: try again later
  kCancelled,
  kInternal,
};
// "InvalidArgument".
HADAL_API std::string_view ErrorCodeName(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // what was expected, what was found, and where
};

// A value or the error that there is instead of it.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : content_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return content_.index() == 0; }
  explicit operator bool() const { return ok(); }
  // Of a result that is not ok.
  const Error& error() const { return std::get<1>(content_); }
  // Throws std::runtime_error with the error's message if there is no value.
  T& value() & {
    Check();
    return std::get<0>(content_);
  }
  const T& value() const& {
    Check();
    return std::get<0>(content_);
  }
  T value() && {
    Check();
    return std::get<0>(std::move(content_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void Check() const {
    if (!ok()) throw std::runtime_error(error().message);
  }

  std::variant<T, Error> content_;
};

// How a model is loaded and run. The names are those of the command line's flags (docs/command-line.md).
struct EngineOptions {
  std::string tokenizer;                           // file or directory; empty: the model's directory
  std::string load_format = "auto";                // auto: the weights of the directory; dummy: random ones
  std::string device = "auto";                     // auto, cpu, cuda, hip, xpu, reference
  int threads = 0;                                 // 0: all that the process may use
  std::string cpu_isa = "auto";                    // auto, baseline, avx2, avx512, amx: the widest to use
  std::string numerics = "published";              // published, f32
  std::string mmap = "auto";                       // auto, on (share the mapped files), off (copy them into huge pages)
  std::vector<std::string> model_class_overrides;  // "Architecture=Class"

  int64_t max_model_len = 0;  // tokens of prompt and answer; 0: the model's, up to 32768, less if memory is short
  int64_t max_num_seqs = 8;   // requests that run at once
  int64_t max_num_batched_tokens = 512;  // rows of a step
  int64_t max_waiting = 4096;            // requests that wait beside those that run; more are kUnavailable
  int64_t limit_images_per_prompt = -1;  // -1: no limit; 0: the vision tower is not loaded

  int64_t kv_cache_memory = 0;          // bytes; 0: max_num_seqs contexts and one more, or what is free
  std::string kv_cache_dtype = "auto";  // auto, fp8, bfloat16 (docs/command-line.md)
  int64_t block_size = 256;             // tokens of a cache block: a multiple of 128 (V3.2: of 16)
  bool prefix_cache = true;
  std::string kv_cache_dir;                       // where prefixes are kept on disk; empty: nowhere
  int64_t kv_cache_dir_size = int64_t{16} << 30;  // most bytes of its files
  int64_t num_speculative_tokens = 0;  // drafts of the checkpoint's MTP block, 0 to 4: the answers are the same
  bool rejection_sampling = false;     // keep drafts by the ratio of probabilities: same distribution, other tokens

  bool memory_check = true;  // refuse what does not seem to fit
  // Called while Load works, from its thread; done and total in bytes, both 0 where they do not apply. May be empty.
  std::function<void(std::string_view stage, int64_t done, int64_t total)> progress;
};

struct EngineInfo {
  std::string model;         // name of the directory
  std::string architecture;  // as config.json names it
  std::string description;   // class, platform, instruction sets, threads
  std::string cache;         // size and row format of the cache
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  bool takes_images = false;
  std::vector<std::string> warnings;  // of Load
};

// Between two steps.
struct EngineStats {
  int64_t running = 0, waiting = 0;
  int64_t finished = 0, failed = 0, cancelled = 0;
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0;  // of requests that are over
  int64_t draft_tokens = 0, accepted_tokens = 0;
  double cache_usage = 0;  // share of the blocks that running requests hold
};

using Bytes = std::vector<uint8_t>;

// A piece of a message: text, or the bytes of a PNG, JPEG or WebP file.
struct ContentPart {
  std::string text;
  Bytes image;  // not empty: the part is an image

  static ContentPart Text(std::string text) { return {std::move(text), {}}; }
  static ContentPart Image(Bytes file) { return {{}, std::move(file)}; }
};

struct ToolCall {
  std::string id;  // links a result to its call; may be empty
  std::string name;
  std::string arguments;  // a JSON object
};

struct ChatMessage {
  std::string role;  // system, user, assistant, tool
  std::vector<ContentPart> content;
  std::string reasoning;             // of the assistant
  std::vector<ToolCall> tool_calls;  // of the assistant
  std::string tool_call_id;          // of a tool's result

  static ChatMessage System(std::string text) { return Of("system", std::move(text)); }
  static ChatMessage User(std::string text) { return Of("user", std::move(text)); }
  static ChatMessage User(std::vector<ContentPart> parts) {
    ChatMessage message;
    message.role = "user";
    message.content = std::move(parts);
    return message;
  }
  static ChatMessage Assistant(std::string text) { return Of("assistant", std::move(text)); }
  static ChatMessage Tool(std::string text, std::string tool_call_id) {
    ChatMessage message = Of("tool", std::move(text));
    message.tool_call_id = std::move(tool_call_id);
    return message;
  }

 private:
  static ChatMessage Of(std::string role, std::string text) {
    ChatMessage message;
    message.role = std::move(role);
    message.content.push_back(ContentPart::Text(std::move(text)));
    return message;
  }
};

// How tokens are drawn. What is absent is as the model's generation_config.json says; ranges as in the OpenAI API.
struct Sampling {
  std::optional<double> temperature;  // 0: greedy
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<uint64_t> seed;  // absent: random. A token depends on seed and position only.
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<std::string> bad_words;
  std::vector<int32_t> stop_token_ids;
  std::vector<int32_t> allowed_token_ids;
  int64_t min_tokens = 0;
  int logprobs = -1;         // -1: none; 0 to 20: of each token, and of so many likeliest beside it
  int prompt_logprobs = -1;  // the same for the prompt
  int64_t thinking_token_budget = -1;
};

enum class Thinking { kDefault, kOff, kOn };  // kDefault: as the model's service does

// The form that an answer is held to, behind its reasoning.
struct Form {
  enum class Kind {
    kAny,
    kJsonObject,
    kJsonSchema,  // text: the schema
    kRegex,       // text: the pattern
    kChoice,      // choices
    kGrammar,     // text: EBNF with a rule `root`
  };
  Kind kind = Kind::kAny;
  std::string text;
  std::vector<std::string> choices;
};

struct Request {
  // One of these three is given.
  std::vector<ChatMessage> messages;
  std::string prompt;               // raw text; control tokens that it spells are control tokens
  std::vector<int32_t> prompt_ids;  // tokens

  std::vector<Bytes> images;               // of `prompt`: the files that its placeholders stand for
  std::string tools;                       // of `messages`: a JSON array of OpenAI tools
  Thinking thinking = Thinking::kDefault;  // of `messages`
  std::string reasoning_effort;            // of `messages`: low, medium, high, max, ...; empty: none
  Sampling sampling;
  int64_t max_tokens = 0;  // 0: as many as the context holds
  std::vector<std::string> stop;
  bool ignore_eos = false;
  Form form;
  int64_t priority = 0;    // lower goes first
  std::string cache_salt;  // requests of different salts share no cached prefix
};

enum class FinishReason { kStop, kLength, kToolCalls, kCancelled };

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
};
struct TokenLogprobs {
  int32_t id = 0;
  float logprob = 0;
  int32_t rank = 0;  // 1: the likeliest
  std::vector<TokenLogprob> top;
};

struct Answer {
  std::string content;
  std::string reasoning;
  std::vector<ToolCall> tool_calls;
  FinishReason finish_reason = FinishReason::kStop;
  std::string stop_string;                     // that ended it, if one did
  std::vector<int32_t> token_ids;              // end token included
  std::vector<TokenLogprobs> logprobs;         // one for each of token_ids, if asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // from the prompt's second token on, if asked for
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;     // of those, found in the prefix cache
  int64_t reasoning_tokens = 0;  // of token_ids
  int64_t draft_tokens = 0, accepted_tokens = 0;
  double time_to_first_token = 0;  // seconds
  double decode_tokens_per_second = 0;
};

// What became certain of an answer's text.
struct Event {
  enum class Kind {
    kReasoning,      // text
    kContent,        // text
    kCallBegin,      // text: the tool's name
    kCallArguments,  // text: a piece of the JSON text
    kCallEnd,
  };
  Kind kind = Kind::kContent;
  std::string text;
  int call = -1;  // number of the call in the answer
};

// An answer on its way. It keeps its engine alive; going out of scope cancels it. For one thread at a time, but Cancel
// may come from any.
class HADAL_API Stream {
 public:
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  // The next events, waiting for them; none at the end. Who lets 1 MiB of text wait is cancelled.
  std::vector<Event> Next();
  // Waits for the end. What Next did not give is passed over.
  Result<Answer> Finish();
  // The same as a body of the API: for streams of StartChatCompletion, others say kFailedPrecondition.
  Result<std::string> FinishJson();
  void Cancel();

 private:
  friend class Engine;
  struct Impl;
  explicit Stream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class HADAL_API Engine {
 public:
  // `model`: a directory as published (config.json, *.safetensors, tokenizer.json).
  static Result<Engine> Load(const std::string& model, const EngineOptions& options = {});
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  // Cancels what runs, unless a stream still reads it.
  ~Engine();

  const EngineInfo& info() const;
  EngineStats stats() const;

  // The tokens that a request's prompt has, images expanded; nothing is computed.
  Result<std::vector<int32_t>> Encode(const Request& request) const;
  // Text in which nothing is a control token.
  std::vector<int32_t> Tokenize(std::string_view text) const;
  Result<std::string> Detokenize(std::span<const int32_t> ids) const;

  // Waits for the whole answer.
  Result<Answer> Generate(const Request& request);
  // All of them, as many at once as max_num_seqs allows; answers in the order of the requests.
  std::vector<Result<Answer>> Generate(std::span<const Request> requests);
  // Hands a request in; the answer comes through the stream.
  Result<Stream> Start(const Request& request);

  // Bodies of POST /v1/chat/completions and /v1/completions of the OpenAI API, with `stream` false: JSON in, JSON out.
  Result<std::string> ChatCompletion(std::string_view body);
  Result<std::string> Completion(std::string_view body);
  // A chat body with one answer (n 1), streamed; its own `stream` and `stream_options` do not count.
  Result<Stream> StartChatCompletion(std::string_view body);

 private:
  friend class Stream;
  struct Impl;
  explicit Engine(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// "0.1.0".
HADAL_API std::string_view Version();

}  // namespace hadal
