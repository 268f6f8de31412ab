// A model directory made ready to answer: checkpoint, tokenizer, chat encoding and model, chosen together from what the
// checkpoint says (field report B05), with every check that can be made before the first request.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/memory_plan.h"
#include "checkpoint/synth.h"
#include "guided/grammar.h"
#include "models/registry/registry.h"
#include "runtime/executor.h"
#include "runtime/generator.h"
#include "runtime/images.h"
#include "runtime/sampler.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace hadal::runtime {

// Context of an engine that is not told one, if the model and the memory have it.
inline constexpr int64_t kDefaultContext = 32768;

enum class LoadFormat {
  kAuto,   // the weights in the directory
  kDummy,  // random weights of the shape in the directory's config.json, or of a preset (checkpoint/synth.h)
};

// What Load is doing; done and total in bytes, 0 where they do not apply.
struct LoadProgress {
  std::string_view stage;
  int64_t done = 0;
  int64_t total = 0;
};

// Where the weights lie while the engine runs.
enum class WeightMemory {
  kAuto,    // a copy where it pays: checkpoints of 64 MiB and more
  kCopy,    // in huge pages of memory (Checkpoint::CopyToMemory)
  kMapped,  // the files, mapped: starts at once, and several processes share them
};

struct EngineOptions {
  LoadFormat load_format = LoadFormat::kAuto;
  std::string tokenizer;       // file or directory; empty: the model's directory
  bool need_tokenizer = true;  // false: without one the engine takes token ids only
  int64_t max_model_len = 0;   // 0: min(max_position_embeddings, kDefaultContext), halved until it fits into memory
  int64_t max_batch_tokens = 512;
  int64_t max_images = -1;  // a prompt; 0: the vision tower is not loaded, -1: no limit
  int64_t max_seqs = 1;     // requests that run at once
  // Bytes of the cache; 0: max_seqs sequences of max_model_len, with a prefix cache one more, or what memory allows but
  // at least one.
  int64_t kv_cache_memory = 0;
  std::string kv_cache_dtype = "auto";  // ParseKvCacheDtype
  std::string mla_prefill =
      "absorbed";  // or expanded: V3.x, the form in which prompts attend (ModelLimits::expand_rows)
  int64_t block_size = 256;
  // Where the prefix cache keeps its blocks beyond the process (runtime/kv/kv_store.h), and the bound on the files;
  // empty: nowhere.
  std::string kv_cache_dir = {};
  int64_t kv_cache_dir_bytes = int64_t{16} << 30;
  int64_t num_speculative_tokens = 0;  // 0 to 4; needs a checkpoint with MTP blocks
  ExecutorOptions executor;            // max_batch_tokens and num_speculative_tokens are filled by Load
  models::ModelOptions model;          // `limits` is filled by Load
  WeightMemory weight_memory = WeightMemory::kAuto;
  bool check_memory = true;  // refuse what does not fit
  bool check_values = true;  // read scales and routing tables (Checkpoint::CheckValues)
  bool check_logits = true;  // runtime/startup_check.h
  uint64_t dummy_seed = 0;
  std::function<void(const LoadProgress&)> progress;  // may be empty
};

// The cache's row format by the names that are in use (spec vision-and-cache 6.5): auto, fp8 and any name that begins
// with fp8; bfloat16 or bf16. InvalidArgument for others: "only supports fp8 kv-cache".
absl::StatusOr<models::KvCacheDtype> ParseKvCacheDtype(std::string_view name);

struct EncodedPrompt {
  std::vector<int32_t> ids;
  // What the output parser must know of the prompt.
  bool starts_in_reasoning = false;
  text::CallMarkup markup = text::CallMarkup::kDsml;
  std::vector<PlacedImage> images;
};
using ImageList = std::vector<std::shared_ptr<const vision::PreparedImage>>;

class Engine {
 public:
  // `source` is a model directory, or with kDummy also the name of a preset. Errors:
  //   InvalidArgument, NotFound: checkpoint, configuration or tokenizer are not as they should be;
  //   Unimplemented: architecture or platform is not in this build;
  //   FailedPrecondition: this machine cannot do what is asked for, or the start-up check failed;
  //   OutOfRange: an option has an impossible value;
  //   ResourceExhausted: it does not fit, with the numbers.
  static absl::StatusOr<std::unique_ptr<Engine>> Load(const std::string& source, EngineOptions options);

  const checkpoint::ModelConfig& config() const { return weights_->config(); }
  const checkpoint::Checkpoint* checkpoint() const { return checkpoint_; }  // null with dummy weights
  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::string& description() const { return description_; }  // class, platform, instruction sets, threads
  const checkpoint::MemoryPlan& memory_plan() const { return plan_; }
  int64_t max_model_len() const { return options_.model.limits.max_context; }
  models::Model& model() { return *model_; }
  const std::shared_ptr<const text::Tokenizer>& tokenizer() const { return tokenizer_; }  // may be null, see options

  // What the chat template beside the tokenizer asks for, or the default of the model's family.
  text::ChatFormat chat_format() const { return chat_format_; }
  text::EffortProfile effort_profile() const;
  // Absent where the tokenizer has no image tokens.
  const std::optional<ImageTokenIds>& image_tokens() const { return image_tokens_; }
  bool takes_images() const { return options_.model.limits.images; }
  std::vector<int32_t> end_tokens() const;
  // What generation_config.json says: greedy if do_sample is false, else its temperature, top_p and top_k. The seed is
  // 0.
  SamplingParams default_sampling() const;

  // Whether a prompt may have so many images: FailedPrecondition where the model takes none, InvalidArgument where it
  // is more than --limit-mm-per-prompt allows.
  absl::Status CheckImages(size_t count) const;

  // Decodes and cuts an image file's bytes. FailedPrecondition where the model takes no images; else the errors of
  // vision::PrepareImage.
  absl::StatusOr<std::shared_ptr<const vision::PreparedImage>> PrepareImage(std::span<const uint8_t> bytes) const;

  // Token ids of chat messages (text/chat.h); nothing that stands in a message becomes a control token. `images` stand
  // for the image parts of the messages, in their order.
  absl::StatusOr<EncodedPrompt> EncodeChat(const text::Json& messages, const text::ThinkingChoice& thinking,
                                           const ImageList& images = {}) const;
  // Token ids of a complete prompt in which control tokens are matched: for trusted callers. starts_in_reasoning is set
  // if it ends with <think>. `images` stand for its placeholders.
  absl::StatusOr<EncodedPrompt> EncodeRaw(std::string_view prompt, const ImageList& images = {}) const;

  // A form that answers can be held to (guided/grammar.h), for GenerateRequest::grammar. Those used last are kept. From
  // any thread. Requires a tokenizer. InvalidArgument for what cannot be compiled.
  absl::StatusOr<std::shared_ptr<const guided::Grammar>> CompileGrammar(const guided::GuidedSpec& spec) const;

  // Requires a tokenizer.
  Executor& executor();
  Generator MakeGenerator() { return Generator(&executor()); }
  // "cache 1.50 GiB: 1755 blocks of 917568 bytes (fp8_ds_mla), 2.0 sequences of 32768 tokens".
  std::string CacheDescription() const;

 private:
  explicit Engine(EngineOptions options) : options_(std::move(options)) {}

  void Report(std::string_view stage, int64_t done = 0, int64_t total = 0) const;
  absl::Status OpenCheckpoint(const std::string& dir);
  absl::Status ReadDummyConfig(const std::string& source);
  absl::Status LoadTokenizer(const std::string& source);
  absl::Status SetUpImages();
  absl::Status PlaceImages(const ImageList& images, EncodedPrompt* prompt) const;
  absl::Status CheckOptions();
  void SetLimits();
  absl::Status CheckCacheOptions();
  absl::StatusOr<checkpoint::MemoryPlan> Plan(int64_t context);
  absl::Status FitMemory();
  absl::Status MakeDummyWeights();
  absl::Status ReadWeights();
  absl::Status OpenKvStore();
  absl::StatusOr<std::string> KvIdentity() const;
  const checkpoint::ModelConfig& planned_config() const;

  EngineOptions options_;
  std::unique_ptr<checkpoint::WeightSource> weights_;
  checkpoint::Checkpoint* checkpoint_ = nullptr;            // weights_, if it is one
  std::optional<checkpoint::ModelConfig> dummy_config_;     // until the dummy weights are made
  std::optional<checkpoint::GenerationConfig> generation_;  // absent: the usual defaults
  std::vector<std::string> warnings_;
  std::string description_;
  checkpoint::MemoryPlan plan_;
  bool weights_on_device_ = false;
  int64_t least_slabs_ = 0;  // of one sequence of max_model_len
  int64_t slab_bytes_ = 0;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  text::ChatFormat chat_format_ = text::ChatFormat::kV4;
  std::optional<ImageTokenIds> image_tokens_;
  absl::StatusOr<std::shared_ptr<const guided::TokenVocabulary>> GuidedVocabulary() const;
  mutable std::mutex grammar_mutex_;  // of the next two
  mutable std::shared_ptr<const guided::TokenVocabulary> guided_vocabulary_;
  // The last used first.
  mutable std::list<std::pair<guided::GuidedSpec, std::shared_ptr<const guided::Grammar>>> grammars_;
  std::unique_ptr<models::Model> model_;  // reads weights_
  std::unique_ptr<Executor> executor_;    // runs model_
};

}  // namespace hadal::runtime
