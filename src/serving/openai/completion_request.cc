// The body of /v1/completions (spec serving-runtime 6.8).
#include <algorithm>
#include <utility>

#include "base/status.h"
#include "serving/openai/request_parts.h"

namespace hadal::serving {
namespace {

using text::Json;

constexpr int64_t kMaxLogprobs = 20;
constexpr const char* kPromptKinds = "a string, an array of strings, an array of token ids or an array of those";

bool IsIdList(const Json& json) {
  return json.is_array() && !json.empty() && !json[0].is_string() && !json[0].is_array();
}

class PromptReader {
 public:
  PromptReader(const runtime::Engine& engine, const ParseOptions& options, const Common& common, Job* job)
      : engine_(engine), options_(options), common_(common), job_(job) {}

  absl::Status ReadAll(const Fields& body) {
    const Json& prompt = body["prompt"];
    if (prompt.is_string() || IsIdList(prompt)) return Read(prompt, "prompt");
    if (!prompt.is_array() || prompt.empty()) return body.Expected("prompt", kPromptKinds);
    if (prompt.size() > options_.max_prompts) {
      return InvalidArgument("prompt: expected at most {} prompts, found {}", options_.max_prompts, prompt.size());
    }
    for (size_t i = 0; i < prompt.size(); ++i) {
      const std::string path = fmt::format("prompt[{}]", i);
      if (prompt[i].type() != prompt[0].type()) {
        return InvalidArgument("{}: expected {}, found {} among them", path, kPromptKinds, Describe(prompt[i]));
      }
      HADAL_RETURN_IF_ERROR(Read(prompt[i], path));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Read(const Json& prompt, const std::string& path) {
    runtime::EncodedPrompt encoded;
    if (prompt.is_string()) {
      absl::StatusOr<runtime::EncodedPrompt> text = engine_.EncodeRaw(prompt.get_ref<const std::string&>());
      if (!text.ok()) return InvalidArgument("{}: {}", path, Message(text.status()));
      encoded = *std::move(text);
    } else {
      HADAL_RETURN_IF_ERROR(ReadIdList(prompt, path, engine_.config().vocab_size, &encoded.ids));
    }
    HADAL_RETURN_IF_ERROR(CheckNoImages(encoded.ids, path));
    return AddPrompt(common_, std::move(encoded), path, engine_, options_, job_);
  }

  absl::Status CheckNoImages(const std::vector<int32_t>& ids, const std::string& path) const {
    if (!engine_.image_tokens().has_value()) return absl::OkStatus();
    for (size_t i = 0; i < ids.size(); ++i) {
      if (engine_.image_tokens()->contains(ids[i])) {
        return InvalidArgument("{}: token {} is {}, which stands for an image: expected text", path, i, ids[i]);
      }
    }
    return absl::OkStatus();
  }

  const runtime::Engine& engine_;
  const ParseOptions& options_;
  const Common& common_;
  Job* job_;
};

}  // namespace

absl::StatusOr<Job> ParseCompletion(const Json& body, const runtime::Engine& engine, const ParseOptions& options) {
  if (!body.is_object()) return InvalidArgument("expected an object, found {}", Describe(body));
  const Fields fields(body);
  Job job;
  job.kind = Job::Kind::kCompletion;
  HADAL_ASSIGN_OR_RETURN(Common common, ReadCommon(fields, engine, options, &job));
  std::string suffix;
  HADAL_RETURN_IF_ERROR(fields.Read("suffix", &suffix));
  if (!suffix.empty()) {
    return InvalidArgument("suffix: not supported: text can only be continued");
  }
  int64_t best_of = common.n;
  HADAL_RETURN_IF_ERROR(fields.ReadRange("best_of", 1, options.max_n, &best_of));
  if (best_of != common.n) {
    return InvalidArgument("best_of: expected the same as n, which is {}, found {}", common.n, best_of);
  }
  runtime::SamplingParams& sampling = common.request.sampling;
  int64_t logprobs = sampling.logprobs;
  HADAL_RETURN_IF_ERROR(fields.ReadRange("logprobs", 0, kMaxLogprobs, &logprobs));
  sampling.logprobs = static_cast<int>(logprobs);
  // The echoed prompt is reported like the answer behind it.
  job.prompt_logprobs = sampling.prompt_logprobs >= 0;
  if (job.echo && job.stream && sampling.logprobs >= 0) {
    return InvalidArgument("echo: expected only without logprobs in a stream: those of the prompt come last");
  }
  if (job.echo) sampling.prompt_logprobs = std::max(sampling.prompt_logprobs, sampling.logprobs);
  HADAL_ASSIGN_OR_RETURN(common.request.grammar, ReadGrammar(fields, engine));
  HADAL_RETURN_IF_ERROR(PromptReader(engine, options, common, &job).ReadAll(fields));
  job.id = RandomId("cmpl-");
  job.created = UnixSeconds();
  return job;
}

}  // namespace hadal::serving
