#include "runtime/generator.h"

#include <algorithm>
#include <chrono>

#include "base/status.h"

namespace hadal::runtime {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool IsSet(const std::atomic<bool>* flag) { return flag != nullptr && flag->load(std::memory_order_relaxed); }

}  // namespace

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  HADAL_CHECK(false);
}

std::vector<std::vector<int32_t>> BadWordTokens(const text::Tokenizer& tokenizer,
                                                const std::vector<std::string>& words) {
  std::vector<std::vector<int32_t>> sequences;
  for (const std::string& word : words) {
    for (const std::string& text : {word, " " + word}) {
      std::vector<int32_t> ids = tokenizer.Encode(text, text::Tokenizer::Special::kPlain);
      if (std::find(sequences.begin(), sequences.end(), ids) == sequences.end()) sequences.push_back(std::move(ids));
    }
  }
  return sequences;
}

Generator::Generator(models::Model* model, std::shared_ptr<const text::Tokenizer> tokenizer,
                     std::optional<ImageTokenIds> image_tokens, int32_t seq)
    : model_(model),
      tokenizer_(std::move(tokenizer)),
      image_tokens_(image_tokens),
      positions_(static_cast<size_t>(model->limits().max_batch_tokens)),
      seqs_(positions_.size(), seq),
      logits_(static_cast<size_t>(model->config().vocab_size)) {
  if (!image_tokens_.has_value()) return;
  banned_.push_back(image_tokens_->placeholder);
  for (int32_t i = 0; i < 5; ++i) banned_.push_back(image_tokens_->first + i);
}

absl::Status Generator::CheckPrompt(const GenerateRequest& request) const {
  const std::vector<int32_t>& prompt = request.prompt;
  const int64_t context = model_->limits().max_context;
  if (prompt.empty()) return InvalidArgument("the prompt is empty: expected at least one token");
  if (static_cast<int64_t>(prompt.size()) >= context) {
    return InvalidArgument("the prompt has {} tokens, the context {}: expected at most {} so that an answer has room",
                           prompt.size(), context, context - 1);
  }
  int64_t covered = 0;  // up to here tokens belong to images that were looked at
  size_t next = 0;
  const int64_t vocab = model_->config().vocab_size;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= vocab) {
      return InvalidArgument("token {} of the prompt is {}: expected ids from 0 to {}", i, prompt[i], vocab - 1);
    }
    const auto position = static_cast<int64_t>(i);
    if (next < request.images.size() && request.images[next].record.offset == position) {
      covered = position + request.images[next++].record.length;
    }
    if (position >= covered && Contains(banned_, prompt[i])) {
      return InvalidArgument(
          "token {} of the prompt is {} (\"{}\"), which stands for an image: no image was given for it", i, prompt[i],
          tokenizer_->TokenBytes(prompt[i]));
    }
  }
  if (next != request.images.size()) {
    return InvalidArgument("image {} is said to begin at token {}; expected ascending places in a prompt of {} tokens",
                           next, request.images[next].record.offset, prompt.size());
  }
  return absl::OkStatus();
}

absl::Status Generator::Step(std::span<const int32_t> ids, int64_t position, const ImageContext* images,
                             bool want_logits) {
  const auto count = static_cast<int64_t>(ids.size());
  for (int64_t i = 0; i < count; ++i) positions_[i] = static_cast<int32_t>(position + i);
  const auto last = static_cast<int32_t>(ids.size()) - 1;
  models::StepInput step;
  step.ids = ids;
  step.positions = std::span(positions_).first(ids.size());
  step.seqs = std::span(seqs_).first(ids.size());
  if (images != nullptr) images->Fill(position, position + count, &step);
  if (want_logits) {
    step.logit_rows = std::span(&last, 1);
    step.logits = logits_.data();
  }
  return model_->Forward(step);
}

absl::StatusOr<bool> Generator::Prefill(const std::vector<int32_t>& ids, const ImageContext& images,
                                        const std::atomic<bool>* cancel) {
  const std::span<const int32_t> all(ids);
  const auto size = static_cast<int64_t>(ids.size());
  int64_t end = 0;
  for (int64_t begin = 0; begin < size; begin = end) {
    if (IsSet(cancel)) return false;
    end = images.ChunkEnd(begin, static_cast<int64_t>(positions_.size()), size);
    HADAL_RETURN_IF_ERROR(Step(all.subspan(begin, end - begin), begin, &images, end == size));
  }
  return true;
}

absl::StatusOr<GenerateResult> Generator::Generate(const GenerateRequest& request, OnEvents on_events,
                                                   const std::atomic<bool>* cancel) {
  HADAL_RETURN_IF_ERROR(CheckPrompt(request));
  HADAL_RETURN_IF_ERROR(CheckStopStrings(request.stop));
  if (request.max_tokens < 0) return InvalidArgument("max_tokens: expected at least 1, found {}", request.max_tokens);
  HADAL_ASSIGN_OR_RETURN(Sampler sampler,
                         Sampler::Create(model_->config().vocab_size, request.sampling, request.prompt, banned_,
                                         request.ignore_end ? std::span<const int32_t>() : request.end_tokens));
  const auto prompt_size = static_cast<int64_t>(request.prompt.size());
  const int64_t room = model_->limits().max_context - prompt_size;
  const int64_t limit = request.max_tokens == 0 ? room : std::min(request.max_tokens, room);

  OutputStream output(tokenizer_, request.parser, request.stop);
  GenerateResult result;
  result.prompt_tokens = prompt_size;
  // The usual length of an answer; longer ones grow it now and then.
  result.token_ids.reserve(static_cast<size_t>(std::min<int64_t>(limit, 4096)));

  const Clock::time_point start = Clock::now();
  Clock::time_point first_token = start;
  ImageContext images;
  if (!request.images.empty()) {
    if (!image_tokens_.has_value()) {
      return absl::FailedPreconditionError("this model takes text only: its tokenizer has no image tokens");
    }
    HADAL_ASSIGN_OR_RETURN(images,
                           ImageContext::Create(model_, request.images, request.prompt, *image_tokens_, &embeddings_));
  }
  HADAL_ASSIGN_OR_RETURN(bool running, Prefill(request.prompt, images, cancel));
  if (!running) result.finish_reason = FinishReason::kCancelled;
  while (running) {
    const auto produced = static_cast<int64_t>(result.token_ids.size());
    HADAL_ASSIGN_OR_RETURN(const SampledToken token, sampler.Next(logits_, prompt_size + produced));
    if (produced == 0) first_token = Clock::now();
    sampler.Accept(token.id);
    result.token_ids.push_back(token.id);
    if (request.sampling.logprobs >= 0) {
      result.logprobs.push_back({token.id, token.logprob, {token.top.begin(), token.top.end()}});
    }
    if (output.in_reasoning()) ++result.reasoning_tokens;
    if (!request.ignore_end && Contains(request.end_tokens, token.id)) break;
    if (Contains(request.sampling.stop_token_ids, token.id)) {
      result.stop_token = token.id;
      break;
    }
    const bool wanted = on_events(output.Push(token.id, produced >= request.sampling.min_tokens));
    if (output.stopped()) {
      result.stop_string = output.stop_string();
      break;
    }
    if (!wanted || IsSet(cancel)) {
      result.finish_reason = FinishReason::kCancelled;
      break;
    }
    if (produced + 1 == limit) {
      result.finish_reason = FinishReason::kLength;
      break;
    }
    HADAL_RETURN_IF_ERROR(Step(std::span(&token.id, 1), prompt_size + produced, nullptr, true));
  }
  const Clock::time_point end = Clock::now();

  const bool cut = result.finish_reason != FinishReason::kStop;
  on_events(output.Finish(cut ? text::EndCause::kLength : text::EndCause::kStop));
  result.content = output.content();
  result.reasoning = output.reasoning();
  result.tool_calls = output.tool_calls();
  if (!result.tool_calls.empty() && result.finish_reason != FinishReason::kCancelled) {
    result.finish_reason = FinishReason::kToolCalls;
  }
  GenerateTimings& timings = result.timings;
  if (result.token_ids.empty()) first_token = end;
  timings.prefill_seconds = Seconds(first_token - start);
  timings.decode_seconds = Seconds(end - first_token);
  if (timings.prefill_seconds > 0) {
    timings.prefill_tokens_per_second = static_cast<double>(prompt_size) / timings.prefill_seconds;
  }
  if (result.token_ids.size() > 1 && timings.decode_seconds > 0) {
    timings.decode_tokens_per_second = static_cast<double>(result.token_ids.size() - 1) / timings.decode_seconds;
  }
  return result;
}

}  // namespace hadal::runtime
