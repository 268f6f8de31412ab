#include "serving/openai/stream.h"

#include <utility>

#include "serving/openai/response_parts.h"

namespace hadal::serving {
namespace {

using runtime::GenerateResult;
using runtime::TokenStep;
using text::Json;
using text::OutputEvent;

// What both kinds of chunk have: the frame around a choice, usage, and the end.
class ChunkEncoder : public StreamEncoder {
 public:
  ChunkEncoder(const Job& job, std::shared_ptr<const text::Tokenizer> tokenizer, const char* object)
      : job_(job), tokenizer_(std::move(tokenizer)), object_(object), counts_(job.requests.size()) {}

  std::vector<StreamFrame> Add(size_t request, const StreamDelta& delta) final {
    for (const TokenStep& token : delta.tokens) counts_[request].token_ids.push_back(token.id);
    std::vector<StreamFrame> frames;
    ForChoices(request, [&](size_t index) { AddToChoice(index, delta, &frames); });
    return frames;
  }

  std::vector<StreamFrame> Finish(size_t request, const GenerateResult& result) final {
    GenerateResult& counts = counts_[request];
    counts.cached_tokens = result.cached_tokens;
    counts.reasoning_tokens = result.reasoning_tokens;
    counts.draft_tokens = result.draft_tokens;
    counts.accepted_tokens = result.accepted_tokens;
    std::vector<StreamFrame> frames;
    ForChoices(request, [&](size_t index) { FinishChoice(index, result, &frames); });
    return frames;
  }

  std::vector<StreamFrame> End() final {
    std::vector<StreamFrame> frames;
    if (job_.include_usage) {
      Json body = Head(job_, object_);
      body["usage"] = Usage(job_, counts_);
      frames.push_back({"", text::DumpJson(body)});
    }
    frames.push_back({"", "[DONE]"});
    return frames;
  }

  std::vector<StreamFrame> Fail(const absl::Status& error) final {
    return {{"", text::DumpJson(ErrorBody(error))}, {"", "[DONE]"}};
  }

 protected:
  virtual void AddToChoice(size_t index, const StreamDelta& delta, std::vector<StreamFrame>* frames) = 0;
  virtual void FinishChoice(size_t index, const GenerateResult& result, std::vector<StreamFrame>* frames) = 0;

  const Job& job() const { return job_; }
  const std::shared_ptr<const text::Tokenizer>& tokenizer() const { return tokenizer_; }
  bool WantsLogprobs(size_t index) const { return job_.requests[job_.choices[index].request].sampling.logprobs >= 0; }

  StreamFrame Chunk(Json choice) const {
    Json body = Head(job_, object_);
    body["choices"].push_back(std::move(choice));
    if (job_.continuous_usage_stats) {
      body["usage"] = UsageSoFar();
    } else if (job_.include_usage) {
      body["usage"] = nullptr;
    }
    return {"", text::DumpJson(body)};
  }

 private:
  template <typename Function>
  void ForChoices(size_t request, Function function) const {
    for (size_t i = 0; i < job_.choices.size(); ++i) {
      if (job_.choices[i].request == request) function(i);
    }
  }

  Json UsageSoFar() const {
    size_t prompt = 0, completion = 0;
    for (const PromptInfo& info : job_.prompts) prompt += info.ids.size();
    for (const Choice& choice : job_.choices) completion += counts_[choice.request].token_ids.size();
    return {{"prompt_tokens", prompt}, {"completion_tokens", completion}, {"total_tokens", prompt + completion}};
  }

  const Job& job_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const char* object_;
  std::vector<GenerateResult> counts_;  // of the requests, without texts
};

// Tokens of a choice that no chunk has told of yet: text may be held back, and an end token has none.
class UntoldTokens {
 public:
  // So many that they get a chunk without text.
  bool many() const { return steps_.size() >= kMany; }
  void Add(const StreamDelta& delta) { steps_.insert(steps_.end(), delta.tokens.begin(), delta.tokens.end()); }
  bool empty() const { return steps_.empty(); }
  std::vector<TokenStep> Take() { return std::exchange(steps_, {}); }

 private:
  static constexpr size_t kMany = 32;
  std::vector<TokenStep> steps_;
};

Json IdsOf(const std::vector<TokenStep>& steps) {
  Json ids = Json::array();
  for (const TokenStep& step : steps) ids.push_back(step.id);
  return ids;
}

class ChatEncoder final : public ChunkEncoder {
 public:
  ChatEncoder(const Job& job, std::shared_ptr<const text::Tokenizer> tokenizer)
      : ChunkEncoder(job, std::move(tokenizer), "chat.completion.chunk"), untold_(job.choices.size()) {}

  std::vector<StreamFrame> Begin() override {
    std::vector<StreamFrame> frames;
    for (size_t i = 0; i < job().choices.size(); ++i) {
      Json choice = ChoiceJson(i, {{"role", "assistant"}, {"content", ""}});
      if (job().return_token_ids) choice["prompt_token_ids"] = job().prompts[job().choices[i].prompt].ids;
      frames.push_back(Chunk(std::move(choice)));
      const std::string& echo = job().prompts[job().choices[i].prompt].echo;
      if (job().echo && !echo.empty()) frames.push_back(Chunk(ChoiceJson(i, {{"content", echo}})));
    }
    return frames;
  }

 protected:
  void AddToChoice(size_t index, const StreamDelta& delta, std::vector<StreamFrame>* frames) override {
    if (WantsTokens(index)) untold_[index].Add(delta);
    for (const OutputEvent& event : delta.events) {
      Json json = DeltaJson(event);
      if (!json.is_null()) frames->push_back(Chunk(WithTokens(index, ChoiceJson(index, std::move(json)))));
    }
    if (untold_[index].many()) frames->push_back(Chunk(WithTokens(index, ChoiceJson(index, Json::object()))));
  }

  void FinishChoice(size_t index, const GenerateResult& result, std::vector<StreamFrame>* frames) override {
    if (job().include_stop && !result.stop_string.empty()) {
      frames->push_back(Chunk(WithTokens(index, ChoiceJson(index, {{"content", result.stop_string}}))));
    }
    Json choice = WithTokens(index, ChoiceJson(index, Json::object()));
    choice["finish_reason"] = FinishReason(result);
    choice["stop_reason"] = StopReason(result);
    frames->push_back(Chunk(std::move(choice)));
  }

 private:
  bool WantsTokens(size_t index) const { return job().return_token_ids || WantsLogprobs(index); }

  static Json ChoiceJson(size_t index, Json delta) {
    return {{"index", index}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  }

  Json WithTokens(size_t index, Json choice) {
    if (untold_[index].empty()) return choice;
    const std::vector<TokenStep> steps = untold_[index].Take();
    if (WantsLogprobs(index)) choice["logprobs"] = ChatLogprobs(*tokenizer(), steps);
    if (job().return_token_ids) choice["token_ids"] = IdsOf(steps);
    return choice;
  }

  // Null for what is not told.
  Json DeltaJson(const OutputEvent& event) const {
    const bool told = job().parallel_tool_calls || event.call < 1;  // of calls
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        if (!job().include_reasoning || event.text.empty()) return {};
        return {{"reasoning_content", event.text}, {"reasoning", event.text}};
      case OutputEvent::Kind::kContent:
        return event.text.empty() ? Json() : Json({{"content", event.text}});
      case OutputEvent::Kind::kCallBegin:
        if (!told) return {};
        return CallJson({{"index", event.call},
                         {"id", RandomId("call_")},
                         {"type", "function"},
                         {"function", {{"name", event.text}, {"arguments", ""}}}});
      case OutputEvent::Kind::kCallArguments:
        if (!told || event.text.empty()) return {};
        return CallJson({{"index", event.call}, {"function", {{"arguments", event.text}}}});
      case OutputEvent::Kind::kCallEnd:
        return {};
    }
    return {};
  }
  static Json CallJson(Json call) { return {{"tool_calls", Json::array({std::move(call)})}}; }

  std::vector<UntoldTokens> untold_;
};

class CompletionEncoder final : public ChunkEncoder {
 public:
  CompletionEncoder(const Job& job, const std::shared_ptr<const text::Tokenizer>& vocabulary)
      : ChunkEncoder(job, vocabulary, "text_completion"), untold_(job.choices.size()) {
    for (size_t i = 0; i < job.choices.size(); ++i) logprobs_.emplace_back(vocabulary);
  }

  std::vector<StreamFrame> Begin() override {
    std::vector<StreamFrame> frames;
    for (size_t i = 0; i < job().choices.size(); ++i) {
      const PromptInfo& prompt = job().prompts[job().choices[i].prompt];
      if (!job().echo && !job().return_token_ids) continue;
      Json choice = ChoiceJson(i, job().echo ? prompt.echo : std::string());
      if (job().return_token_ids) choice["prompt_token_ids"] = prompt.ids;
      frames.push_back(Chunk(std::move(choice)));
    }
    return frames;
  }

 protected:
  void AddToChoice(size_t index, const StreamDelta& delta, std::vector<StreamFrame>* frames) override {
    if (job().return_token_ids) untold_[index].Add(delta);
    if (WantsLogprobs(index)) {
      for (const TokenStep& token : delta.tokens) logprobs_[index].Add(token);
    }
    std::string text;
    for (const OutputEvent& event : delta.events) text += event.text;
    if (!text.empty()) frames->push_back(Chunk(WithTokens(index, ChoiceJson(index, std::move(text)))));
  }

  void FinishChoice(size_t index, const GenerateResult& result, std::vector<StreamFrame>* frames) override {
    Json choice = WithTokens(index, ChoiceJson(index, job().include_stop ? result.stop_string : std::string()));
    choice["finish_reason"] = FinishReason(result);
    choice["stop_reason"] = StopReason(result);
    frames->push_back(Chunk(std::move(choice)));
  }

 private:
  static Json ChoiceJson(size_t index, std::string text) {
    return {{"index", index}, {"text", std::move(text)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  }

  Json WithTokens(size_t index, Json choice) {
    if (WantsLogprobs(index)) choice["logprobs"] = logprobs_[index].Take();
    if (!untold_[index].empty()) choice["token_ids"] = IdsOf(untold_[index].Take());
    return choice;
  }

  std::vector<UntoldTokens> untold_;
  std::vector<LegacyLogprobs> logprobs_;
};

}  // namespace

std::unique_ptr<StreamEncoder> MakeOpenAiStream(const Job& job,
                                                const std::shared_ptr<const text::Tokenizer>& tokenizer) {
  if (job.kind == Job::Kind::kChat) return std::make_unique<ChatEncoder>(job, tokenizer);
  return std::make_unique<CompletionEncoder>(job, tokenizer);
}

}  // namespace hadal::serving
