// The fields that chat and plain completions share (spec serving-runtime 5.2 and 6.2).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/status.h"
#include "runtime/stop_strings.h"
#include "serving/openai/request_parts.h"

namespace hadal::serving {
namespace {

using text::Json;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxLogprobs = 20;
constexpr size_t kMaxBadWords = 128;
constexpr size_t kMaxChars = 1024;  // of a stop string, and of cache_salt
constexpr size_t kMaxRequestId = 128;
constexpr double kMaxBias = 100;

absl::Status ReadStop(const Fields& body, std::vector<std::string>* stop) {
  const Json& json = body["stop"];
  if (json.is_null()) return absl::OkStatus();
  if (json.is_string()) {
    *stop = {json.get<std::string>()};
  } else if (json.is_array()) {
    HADAL_RETURN_IF_ERROR(body.ReadStrings("stop", stop));
  } else {
    return body.Expected("stop", "a string or an array of strings");
  }
  for (const std::string& text : *stop) {
    const size_t chars = CountChars(text);
    if (chars > kMaxChars) {
      return InvalidArgument("stop: expected strings of at most {} characters, found one of {}", kMaxChars, chars);
    }
  }
  return runtime::CheckStopStrings(*stop);
}

absl::Status ReadLogitBias(const Fields& body, int64_t vocab, std::vector<std::pair<int32_t, float>>* bias) {
  const Json& json = body["logit_bias"];
  if (json.is_null()) return absl::OkStatus();
  if (!json.is_object()) return body.Expected("logit_bias", "an object of token ids and numbers");
  bias->clear();
  for (const auto& [key, value] : json.get_ref<const Json::object_t&>()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab) {
      return InvalidArgument("logit_bias: expected keys that are token ids from 0 to {}, found {}", vocab - 1,
                             Describe(Json(key)));
    }
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      return InvalidArgument("logit_bias.{}: expected a finite number, found {}", id, Describe(value));
    }
    bias->emplace_back(id, static_cast<float>(std::clamp(value.get<double>(), -kMaxBias, kMaxBias)));
  }
  return absl::OkStatus();
}

absl::Status ReadBadWords(const Fields& body, const text::Tokenizer& tokenizer,
                          std::vector<std::vector<int32_t>>* sequences) {
  std::vector<std::string> words;
  HADAL_RETURN_IF_ERROR(body.ReadStrings("bad_words", &words));
  if (!body.Has("bad_words")) return absl::OkStatus();
  if (words.empty()) return InvalidArgument("bad_words: expected at least one word, found none");
  if (words.size() > kMaxBadWords) {
    return InvalidArgument("bad_words: expected at most {}, found {}", kMaxBadWords, words.size());
  }
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].empty()) return InvalidArgument("bad_words[{}]: expected a word, found \"\"", i);
    if (CountChars(words[i]) > kMaxChars) {
      return InvalidArgument("bad_words[{}]: expected at most {} characters, found {}", i, kMaxChars,
                             CountChars(words[i]));
    }
  }
  *sequences = runtime::BadWordTokens(tokenizer, words);
  return absl::OkStatus();
}

absl::Status ReadLimits(const Fields& body, const ParseOptions& options, Common* common) {
  runtime::GenerateRequest& request = common->request;
  HADAL_RETURN_IF_ERROR(body.ReadCount("max_tokens", 1, kMost, &request.max_tokens));
  // Some clients send both; an answer is within either.
  const int64_t older = body.Has("max_tokens") ? request.max_tokens : kMost;
  HADAL_RETURN_IF_ERROR(body.ReadCount("max_completion_tokens", 1, kMost, &request.max_tokens));
  request.max_tokens = std::min(request.max_tokens, older);
  HADAL_RETURN_IF_ERROR(body.ReadCount("min_tokens", 0, kMost, &request.sampling.min_tokens));
  if (request.max_tokens > 0 && request.sampling.min_tokens > request.max_tokens) {
    return InvalidArgument("min_tokens: expected at most max_tokens, which is {}, found {}", request.max_tokens,
                           request.sampling.min_tokens);
  }
  return body.ReadRange("n", 1, options.max_n, &common->n);
}

absl::Status ReadSampling(const Fields& body, const runtime::Engine& engine, runtime::SamplingParams* p) {
  const int64_t vocab = engine.config().vocab_size;
  HADAL_RETURN_IF_ERROR(body.Read("temperature", &p->temperature));
  HADAL_RETURN_IF_ERROR(body.Read("top_p", &p->top_p));
  HADAL_RETURN_IF_ERROR(body.ReadCount("top_k", -1, kMost, &p->top_k));
  HADAL_RETURN_IF_ERROR(body.Read("min_p", &p->min_p));
  HADAL_RETURN_IF_ERROR(body.Read("repetition_penalty", &p->repetition_penalty));
  HADAL_RETURN_IF_ERROR(body.Read("presence_penalty", &p->presence_penalty));
  HADAL_RETURN_IF_ERROR(body.Read("frequency_penalty", &p->frequency_penalty));
  HADAL_RETURN_IF_ERROR(ReadLogitBias(body, vocab, &p->logit_bias));
  HADAL_RETURN_IF_ERROR(body.ReadIds("stop_token_ids", vocab, &p->stop_token_ids));
  HADAL_RETURN_IF_ERROR(body.ReadIds("allowed_token_ids", vocab, &p->allowed_token_ids));
  HADAL_RETURN_IF_ERROR(ReadBadWords(body, *engine.tokenizer(), &p->bad_words));
  HADAL_RETURN_IF_ERROR(body.ReadCount("thinking_token_budget", 0, kMost, &p->thinking_token_budget));
  int64_t prompt_logprobs = p->prompt_logprobs;
  HADAL_RETURN_IF_ERROR(body.ReadRange("prompt_logprobs", 0, kMaxLogprobs, &prompt_logprobs));
  p->prompt_logprobs = static_cast<int>(prompt_logprobs);
  int64_t seed = -1;
  HADAL_RETURN_IF_ERROR(body.Read("seed", &seed));
  if (seed != -1) p->seed = static_cast<uint64_t>(seed);
  return absl::OkStatus();
}

absl::Status ReadStreaming(const Fields& body, Job* job) {
  HADAL_RETURN_IF_ERROR(body.Read("stream", &job->stream));
  HADAL_RETURN_IF_ERROR(body.CheckObject("stream_options"));
  if (!body.Has("stream_options")) return absl::OkStatus();
  if (!job->stream) return InvalidArgument("stream_options: expected only together with stream: true");
  const Fields stream(body["stream_options"], "stream_options");
  HADAL_RETURN_IF_ERROR(stream.Read("include_usage", &job->include_usage));
  return stream.Read("continuous_usage_stats", &job->continuous_usage_stats);
}

absl::Status ReadIdentity(const Fields& body, const ParseOptions& options, Job* job,
                          runtime::GenerateRequest* request) {
  HADAL_RETURN_IF_ERROR(body.Read("model", &job->model));
  HADAL_RETURN_IF_ERROR(body.Read("user", &job->user));
  HADAL_RETURN_IF_ERROR(body.Read("request_id", &job->request_id));
  if (job->request_id.size() > kMaxRequestId) {
    return InvalidArgument("request_id: expected at most {} bytes, found {}", kMaxRequestId, job->request_id.size());
  }
  HADAL_RETURN_IF_ERROR(body.Read("priority", &request->priority));
  request->priority = std::max(request->priority, options.best_priority);
  HADAL_RETURN_IF_ERROR(body.Read("cache_salt", &request->cache_salt));
  const size_t salt = CountChars(request->cache_salt);
  if (body.Has("cache_salt") && (salt == 0 || salt > kMaxChars)) {
    return InvalidArgument("cache_salt: expected 1 to {} characters, found {}", kMaxChars, salt);
  }
  return absl::OkStatus();
}

absl::Status ReadOutputFields(const Fields& body, Job* job, Common* common) {
  HADAL_RETURN_IF_ERROR(body.Read("echo", &job->echo));
  HADAL_RETURN_IF_ERROR(body.Read("return_token_ids", &job->return_token_ids));
  HADAL_RETURN_IF_ERROR(body.Read("include_stop_str_in_output", &job->include_stop));
  HADAL_RETURN_IF_ERROR(body.Read("ignore_eos", &common->request.ignore_end));
  HADAL_RETURN_IF_ERROR(body.ReadCount("truncate_prompt_tokens", -1, kMost, &common->truncate_prompt));
  if (common->truncate_prompt == 0 && body.Has("truncate_prompt_tokens")) {
    return body.Expected("truncate_prompt_tokens", "-1 (what the context holds) or an integer of at least 1");
  }
  if (body.Has("repetition_detection")) return InvalidArgument("repetition_detection: not supported");
  bool skip_special = true;
  HADAL_RETURN_IF_ERROR(body.Read("skip_special_tokens", &skip_special));
  if (!skip_special && job->kind == Job::Kind::kChat) {
    return InvalidArgument("skip_special_tokens: expected true: /v1/completions gives answers as they are");
  }
  // Without an effect: the tokenizer of these models puts no spaces there and adds no tokens to a prompt.
  bool ignored = true;
  HADAL_RETURN_IF_ERROR(body.Read("spaces_between_special_tokens", &ignored));
  return body.Read("add_special_tokens", &ignored);
}

absl::Status Truncate(int64_t keep, int64_t context, runtime::EncodedPrompt* prompt) {
  if (keep == 0) return absl::OkStatus();
  const int64_t most = keep < 0 ? context - 1 : keep;
  const auto size = static_cast<int64_t>(prompt->ids.size());
  if (size <= most) return absl::OkStatus();
  if (!prompt->images.empty()) {
    return InvalidArgument("truncate_prompt_tokens: a prompt with images cannot be cut: it has {} tokens", size);
  }
  prompt->ids.erase(prompt->ids.begin(), prompt->ids.begin() + (size - most));
  return absl::OkStatus();
}

absl::Status CheckLength(const std::vector<int32_t>& ids, const std::string& path, const Common& common,
                         const runtime::Engine& engine, const ParseOptions& options) {
  const auto size = static_cast<int64_t>(ids.size());
  if (size == 0) return InvalidArgument("{}: expected at least one token, found none", path);
  if (size >= engine.max_model_len()) {
    absl::Status status =
        InvalidArgument("{}: the prompt has {} tokens, the context {}: expected at most {} so that an answer has room",
                        path, size, engine.max_model_len(), engine.max_model_len() - 1);
    status.SetPayload(kCodePayload, absl::Cord("context_length_exceeded"));
    return status;
  }
  const int64_t entries = common.request.sampling.prompt_logprobs + 1;
  if (entries > 0 && size * entries > options.max_prompt_logprobs) {
    return InvalidArgument("prompt_logprobs: expected at most {} values in all, found {} tokens with {} each",
                           options.max_prompt_logprobs, size, entries);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Common> ReadCommon(const Fields& body, const runtime::Engine& engine, const ParseOptions& options,
                                  Job* job) {
  Common common;
  runtime::GenerateRequest& request = common.request;
  job->model = options.model;
  if (options.defaults.has_value()) {
    request = *options.defaults;
  } else {
    request.sampling = engine.default_sampling();
  }
  if (!options.has_seed) request.sampling.seed = runtime::RandomSeed();
  request.end_tokens = engine.end_tokens();
  HADAL_RETURN_IF_ERROR(ReadIdentity(body, options, job, &request));
  HADAL_RETURN_IF_ERROR(ReadStreaming(body, job));
  HADAL_RETURN_IF_ERROR(ReadLimits(body, options, &common));
  HADAL_RETURN_IF_ERROR(ReadSampling(body, engine, &request.sampling));
  HADAL_RETURN_IF_ERROR(ReadStop(body, &request.stop));
  HADAL_RETURN_IF_ERROR(ReadOutputFields(body, job, &common));
  if (job->stream && body.Has("prompt_logprobs")) {
    return InvalidArgument("prompt_logprobs: expected only without stream");
  }
  HADAL_RETURN_IF_ERROR(runtime::CheckSamplingParams(request.sampling, engine.config().vocab_size));
  return common;
}

absl::Status AddPrompt(const Common& common, runtime::EncodedPrompt prompt, const std::string& path,
                       const runtime::Engine& engine, const ParseOptions& options, Job* job) {
  HADAL_RETURN_IF_ERROR(Truncate(common.truncate_prompt, engine.max_model_len(), &prompt));
  HADAL_RETURN_IF_ERROR(CheckLength(prompt.ids, path, common, engine, options));
  const size_t first = job->requests.size();
  const bool copies = common.request.sampling.greedy();
  for (int64_t i = 0; i < common.n; ++i) {
    if (i == 0 || !copies) {
      runtime::GenerateRequest& request = job->requests.emplace_back(common.request);
      request.prompt = prompt.ids;
      request.images = prompt.images;
      request.sampling.seed = runtime::ChildSeed(request.sampling.seed, static_cast<int>(i));
      if (request.parser.has_value()) {
        request.parser->starts_in_reasoning = prompt.starts_in_reasoning;
        request.parser->markup = prompt.markup;
      }
      // The others' would be the same.
      if (i > 0) request.sampling.prompt_logprobs = -1;
    }
    job->choices.push_back({job->requests.size() - 1, job->prompts.size()});
  }
  const bool echo = job->kind == Job::Kind::kCompletion && job->echo;
  std::string text = echo ? engine.tokenizer()->Decode(prompt.ids) : "";
  job->prompts.push_back({std::move(prompt.ids), std::move(text), first});
  return absl::OkStatus();
}

}  // namespace hadal::serving
