#include "api/convert.h"

#include <iterator>
#include <utility>

#include "base/status.h"
#include "guided/grammar.h"
#include "text/chat.h"
#include "text/json_text.h"
#include "text/output_parser.h"

namespace hadal::api {
namespace {

using text::Json;

// One of a few names. InvalidArgument lists them.
template <typename T>
absl::StatusOr<T> Choose(const char* option, const std::string& value,
                         std::initializer_list<std::pair<std::string_view, T>> choices) {
  std::string names;
  for (const auto& [name, chosen] : choices) {
    if (name == value) return chosen;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return InvalidArgument("{}: expected one of {}, found \"{}\"", option, names, value);
}

absl::Status CheckRange(const char* option, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidArgument("{}: expected {} to {}, found {}", option, least, most, value);
}

absl::StatusOr<std::shared_ptr<const vision::PreparedImage>> Prepare(const Bytes& file, const std::string& path,
                                                                     const runtime::Engine& engine) {
  absl::StatusOr<std::shared_ptr<const vision::PreparedImage>> image = engine.PrepareImage(file);
  if (image.ok()) return image;
  return absl::Status(image.status().code(), fmt::format("{}: {}", path, Message(image.status())));
}

// A message as the chat encoder takes it; images are prepared in the order of their parts.
absl::StatusOr<Json> MessageJson(const ChatMessage& message, const std::string& path, const runtime::Engine& engine,
                                 runtime::ImageList* images) {
  if (message.role != "system" && message.role != "user" && message.role != "assistant" && message.role != "tool") {
    return InvalidArgument("{}.role: expected system, user, assistant or tool, found \"{}\"", path, message.role);
  }
  Json content = Json::array();
  for (size_t i = 0; i < message.content.size(); ++i) {
    const ContentPart& part = message.content[i];
    if (part.image.empty()) {
      content.push_back({{"type", "text"}, {"text", part.text}});
      continue;
    }
    const std::string part_path = fmt::format("{}.content[{}]", path, i);
    if (message.role != "user") return InvalidArgument("{}: expected images in messages of the user only", part_path);
    HADAL_ASSIGN_OR_RETURN(std::shared_ptr<const vision::PreparedImage> image, Prepare(part.image, part_path, engine));
    images->push_back(std::move(image));
    content.push_back({{"type", "image"}});
  }
  Json json = {{"role", message.role}, {"content", std::move(content)}};
  if (!message.reasoning.empty()) json["reasoning_content"] = message.reasoning;
  if (!message.tool_call_id.empty()) json["tool_call_id"] = message.tool_call_id;
  for (const ToolCall& call : message.tool_calls) {
    json["tool_calls"].push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return json;
}

absl::StatusOr<text::ThinkingChoice> ToThinking(const Request& request, const runtime::Engine& engine) {
  text::ThinkingRequest wanted;
  if (request.thinking != Thinking::kDefault) wanted.thinking = request.thinking == Thinking::kOn;
  if (!request.reasoning_effort.empty()) wanted.effort = request.reasoning_effort;
  const bool on = text::ThinksByDefault(engine.chat_format());
  absl::StatusOr<text::ThinkingChoice> choice =
      text::ResolveThinking(wanted, engine.effort_profile(), text::EffortTable::kService, on);
  if (!choice.ok()) return InvalidArgument("reasoning_effort: {}", Message(choice.status()));
  return choice;
}

absl::Status EncodeMessages(const Request& request, const runtime::Engine& engine, runtime::EncodedPrompt* prompt,
                            text::ParserOptions* parser) {
  Json tools;
  if (!request.tools.empty()) {
    absl::StatusOr<Json> parsed = text::ParseJson(request.tools);
    if (!parsed.ok()) return InvalidArgument("tools: {}", Message(parsed.status()));
    if (!parsed->is_array()) return InvalidArgument("tools: expected a JSON array");
    if (!parsed->empty()) tools = *std::move(parsed);
  }
  size_t count = 0;
  for (const ChatMessage& message : request.messages) {
    for (const ContentPart& part : message.content) count += part.image.empty() ? 0 : 1;
  }
  if (count > 0) HADAL_RETURN_IF_ERROR(engine.CheckImages(count));
  Json messages = Json::array();
  runtime::ImageList images;
  for (size_t i = 0; i < request.messages.size(); ++i) {
    HADAL_ASSIGN_OR_RETURN(Json message,
                           MessageJson(request.messages[i], fmt::format("messages[{}]", i), engine, &images));
    messages.push_back(std::move(message));
  }
  HADAL_ASSIGN_OR_RETURN(const text::ThinkingChoice thinking, ToThinking(request, engine));
  parser->tools_allowed = !tools.is_null();
  HADAL_ASSIGN_OR_RETURN(parser->tools, text::ReadToolSpecs(tools));
  HADAL_RETURN_IF_ERROR(text::AttachToRequest(tools, nullptr, &messages).status());
  HADAL_ASSIGN_OR_RETURN(*prompt, engine.EncodeChat(messages, thinking, images));
  return absl::OkStatus();
}

absl::Status EncodePrompt(const Request& request, const runtime::Engine& engine, runtime::GenerateRequest* out) {
  const int given =
      (request.messages.empty() ? 0 : 1) + (request.prompt.empty() ? 0 : 1) + (request.prompt_ids.empty() ? 0 : 1);
  if (given != 1) return InvalidArgument("expected one of messages, prompt and prompt_ids, found {}", given);
  if (request.messages.empty() &&
      (!request.tools.empty() || !request.reasoning_effort.empty() || request.thinking != Thinking::kDefault)) {
    return InvalidArgument("tools, thinking and reasoning_effort: expected only together with messages");
  }
  if (request.prompt.empty() && !request.images.empty()) {
    return InvalidArgument("images: expected only together with prompt: those of a chat stand in its messages");
  }
  if (!request.prompt_ids.empty()) {
    out->prompt = request.prompt_ids;
    return absl::OkStatus();
  }
  runtime::EncodedPrompt prompt;
  text::ParserOptions parser;
  bool chat = true;
  if (!request.messages.empty()) {
    HADAL_RETURN_IF_ERROR(EncodeMessages(request, engine, &prompt, &parser));
  } else {
    if (!request.images.empty()) HADAL_RETURN_IF_ERROR(engine.CheckImages(request.images.size()));
    runtime::ImageList images;
    for (size_t i = 0; i < request.images.size(); ++i) {
      HADAL_ASSIGN_OR_RETURN(std::shared_ptr<const vision::PreparedImage> image,
                             Prepare(request.images[i], fmt::format("images[{}]", i), engine));
      images.push_back(std::move(image));
    }
    HADAL_ASSIGN_OR_RETURN(prompt, engine.EncodeRaw(request.prompt, images));
    // A raw prompt with an assistant's turn is a chat that somebody encoded; any other is text to be continued.
    chat = request.prompt.find(text::kAssistantText) != std::string::npos;
  }
  if (chat) {
    parser.starts_in_reasoning = prompt.starts_in_reasoning;
    parser.markup = prompt.markup;
    out->parser = std::move(parser);
  }
  out->prompt = std::move(prompt.ids);
  out->images = std::move(prompt.images);
  return absl::OkStatus();
}

absl::Status ApplySampling(const Sampling& from, const runtime::Engine& engine, runtime::SamplingParams* p) {
  *p = engine.default_sampling();
  p->temperature = from.temperature.value_or(p->temperature);
  p->top_p = from.top_p.value_or(p->top_p);
  p->top_k = from.top_k.value_or(p->top_k);
  p->min_p = from.min_p.value_or(p->min_p);
  p->repetition_penalty = from.repetition_penalty.value_or(p->repetition_penalty);
  p->presence_penalty = from.presence_penalty.value_or(p->presence_penalty);
  p->frequency_penalty = from.frequency_penalty.value_or(p->frequency_penalty);
  p->seed = from.seed.has_value() ? *from.seed : runtime::RandomSeed();
  p->logit_bias = from.logit_bias;
  for (size_t i = 0; i < from.bad_words.size(); ++i) {
    if (from.bad_words[i].empty()) return InvalidArgument("bad_words[{}]: expected a word, found \"\"", i);
  }
  p->bad_words = runtime::BadWordTokens(*engine.tokenizer(), from.bad_words);
  p->stop_token_ids = from.stop_token_ids;
  p->allowed_token_ids = from.allowed_token_ids;
  p->min_tokens = from.min_tokens;
  p->logprobs = from.logprobs;
  p->prompt_logprobs = from.prompt_logprobs;
  p->thinking_token_budget = from.thinking_token_budget;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const guided::Grammar>> CompileForm(const Form& form, const runtime::Engine& engine) {
  using Kind = guided::GuidedSpec::Kind;
  guided::GuidedSpec spec;
  switch (form.kind) {
    case Form::Kind::kAny:
      return std::shared_ptr<const guided::Grammar>();
    case Form::Kind::kJsonObject:
      spec.kind = Kind::kJsonObject;
      break;
    case Form::Kind::kJsonSchema:
      spec = {Kind::kJsonSchema, form.text};
      break;
    case Form::Kind::kRegex:
      spec = {Kind::kRegex, form.text};
      break;
    case Form::Kind::kGrammar:
      spec = {Kind::kGrammar, form.text};
      break;
    case Form::Kind::kChoice:
      spec = {Kind::kChoice, text::DumpJson(Json(form.choices))};
      break;
  }
  return engine.CompileGrammar(spec);
}

std::vector<TokenLogprobs> ToLogprobs(const std::vector<runtime::TokenStep>& steps) {
  std::vector<TokenLogprobs> out;
  out.reserve(steps.size());
  for (const runtime::TokenStep& step : steps) {
    TokenLogprobs& token = out.emplace_back(TokenLogprobs{step.id, step.logprob, step.rank, {}});
    token.top.reserve(step.top.size());
    for (const runtime::TokenLogprob& likely : step.top) token.top.push_back({likely.id, likely.logprob});
  }
  return out;
}

}  // namespace

Error ToError(const absl::Status& status) {
  Error error;
  error.message = Message(status);
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      error.code = ErrorCode::kInvalidArgument;
      break;
    case absl::StatusCode::kNotFound:
      error.code = ErrorCode::kNotFound;
      break;
    case absl::StatusCode::kUnimplemented:
      error.code = ErrorCode::kUnimplemented;
      break;
    case absl::StatusCode::kFailedPrecondition:
      error.code = ErrorCode::kFailedPrecondition;
      break;
    case absl::StatusCode::kOutOfRange:
      error.code = ErrorCode::kOutOfRange;
      break;
    case absl::StatusCode::kResourceExhausted:
      error.code = ErrorCode::kResourceExhausted;
      break;
    case absl::StatusCode::kUnavailable:
      error.code = ErrorCode::kUnavailable;
      break;
    case absl::StatusCode::kCancelled:
      error.code = ErrorCode::kCancelled;
      break;
    default:
      error.code = ErrorCode::kInternal;
  }
  return error;
}

absl::StatusOr<runtime::EngineOptions> ToEngineOptions(const EngineOptions& options) {
  constexpr int64_t kMost = INT64_MAX;
  runtime::EngineOptions out;
  out.tokenizer = options.tokenizer;
  HADAL_ASSIGN_OR_RETURN(out.load_format, Choose<runtime::LoadFormat>("load_format", options.load_format,
                                                                      {{"auto", runtime::LoadFormat::kAuto},
                                                                       {"dummy", runtime::LoadFormat::kDummy}}));
  HADAL_ASSIGN_OR_RETURN(out.weight_memory, Choose<runtime::WeightMemory>("mmap", options.mmap,
                                                                          {{"auto", runtime::WeightMemory::kAuto},
                                                                           {"on", runtime::WeightMemory::kMapped},
                                                                           {"off", runtime::WeightMemory::kCopy}}));
  HADAL_RETURN_IF_ERROR(CheckRange("threads", options.threads, 0, 4096));
  HADAL_RETURN_IF_ERROR(CheckRange("max_model_len", options.max_model_len, 0, kMost));
  HADAL_RETURN_IF_ERROR(CheckRange("max_num_seqs", options.max_num_seqs, 1, kMost));
  HADAL_RETURN_IF_ERROR(CheckRange("max_num_batched_tokens", options.max_num_batched_tokens, 1, kMost));
  HADAL_RETURN_IF_ERROR(CheckRange("max_waiting", options.max_waiting, 1, kMost));
  HADAL_RETURN_IF_ERROR(CheckRange("limit_images_per_prompt", options.limit_images_per_prompt, -1, kMost));
  HADAL_RETURN_IF_ERROR(CheckRange("kv_cache_memory", options.kv_cache_memory, 0, kMost));
  HADAL_RETURN_IF_ERROR(CheckRange("block_size", options.block_size, 1, kMost));
  HADAL_RETURN_IF_ERROR(CheckRange("num_speculative_tokens", options.num_speculative_tokens, 0, 4));
  out.max_model_len = options.max_model_len;
  out.max_seqs = options.max_num_seqs;
  out.max_batch_tokens = options.max_num_batched_tokens;
  out.max_images = options.limit_images_per_prompt;
  out.kv_cache_memory = options.kv_cache_memory;
  out.kv_cache_dtype = options.kv_cache_dtype;
  out.block_size = options.block_size;
  out.num_speculative_tokens = options.num_speculative_tokens;
  out.executor.rejection_sampling = options.rejection_sampling;
  out.executor.kv.prefix_cache = options.prefix_cache;
  out.kv_cache_dir = options.kv_cache_dir;
  out.kv_cache_dir_bytes = options.kv_cache_dir_size;
  out.executor.max_waiting = options.max_waiting;
  out.model.device = options.device;
  out.model.threads = options.threads;
  out.model.isa = options.cpu_isa;
  out.model.numerics = options.numerics;
  out.model.class_overrides = options.model_class_overrides;
  out.check_memory = options.memory_check;
  if (options.progress) {
    out.progress = [report = options.progress](const runtime::LoadProgress& progress) {
      report(progress.stage, progress.done, progress.total);
    };
  }
  return out;
}

absl::StatusOr<runtime::GenerateRequest> ToGenerateRequest(const Request& request, const runtime::Engine& engine) {
  runtime::GenerateRequest out;
  HADAL_RETURN_IF_ERROR(EncodePrompt(request, engine, &out));
  HADAL_RETURN_IF_ERROR(ApplySampling(request.sampling, engine, &out.sampling));
  HADAL_ASSIGN_OR_RETURN(out.grammar, CompileForm(request.form, engine));
  if (request.max_tokens < 0) return InvalidArgument("max_tokens: expected 0 or more, found {}", request.max_tokens);
  out.max_tokens = request.max_tokens;
  out.stop = request.stop;
  out.ignore_end = request.ignore_eos;
  out.end_tokens = engine.end_tokens();
  out.priority = request.priority;
  out.cache_salt = request.cache_salt;
  return out;
}

Answer ToAnswer(runtime::GenerateResult result) {
  Answer answer;
  answer.content = std::move(result.content);
  answer.reasoning = std::move(result.reasoning);
  for (text::ToolCall& call : result.tool_calls) {
    answer.tool_calls.push_back({"", std::move(call.name), std::move(call.arguments)});
  }
  switch (result.finish_reason) {
    case runtime::FinishReason::kStop:
      answer.finish_reason = FinishReason::kStop;
      break;
    case runtime::FinishReason::kLength:
      answer.finish_reason = FinishReason::kLength;
      break;
    case runtime::FinishReason::kToolCalls:
      answer.finish_reason = FinishReason::kToolCalls;
      break;
    case runtime::FinishReason::kCancelled:
      answer.finish_reason = FinishReason::kCancelled;
      break;
  }
  answer.stop_string = std::move(result.stop_string);
  answer.token_ids = std::move(result.token_ids);
  answer.logprobs = ToLogprobs(result.logprobs);
  answer.prompt_logprobs = ToLogprobs(result.prompt_logprobs);
  answer.prompt_tokens = result.prompt_tokens;
  answer.cached_tokens = result.cached_tokens;
  answer.reasoning_tokens = result.reasoning_tokens;
  answer.draft_tokens = result.draft_tokens;
  answer.accepted_tokens = result.accepted_tokens;
  answer.time_to_first_token = result.timings.prefill_seconds;
  answer.decode_tokens_per_second = result.timings.decode_tokens_per_second;
  return answer;
}

std::vector<Event> ToEvents(std::vector<text::OutputEvent> events) {
  std::vector<Event> out;
  out.reserve(events.size());
  for (text::OutputEvent& event : events) {
    Event& to = out.emplace_back();
    to.text = std::move(event.text);
    to.call = event.call;
    switch (event.kind) {
      case text::OutputEvent::Kind::kReasoning:
        to.kind = Event::Kind::kReasoning;
        break;
      case text::OutputEvent::Kind::kContent:
        to.kind = Event::Kind::kContent;
        break;
      case text::OutputEvent::Kind::kCallBegin:
        to.kind = Event::Kind::kCallBegin;
        break;
      case text::OutputEvent::Kind::kCallArguments:
        to.kind = Event::Kind::kCallArguments;
        break;
      case text::OutputEvent::Kind::kCallEnd:
        to.kind = Event::Kind::kCallEnd;
        break;
    }
  }
  return out;
}

}  // namespace hadal::api
