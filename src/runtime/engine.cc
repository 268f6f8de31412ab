#include "runtime/engine.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_table.h"
#include "runtime/chat_template.h"
#include "runtime/startup_check.h"

namespace hadal::runtime {
namespace {

using checkpoint::Checkpoint;
using checkpoint::ModelConfig;

constexpr int64_t kLeastDefaultContext = 2048;
constexpr int64_t kMostBatchTokens = 1 << 16;
constexpr int64_t kMostSeqs = 1 << 12;
constexpr uint64_t kMaxConfigFile = 1 << 20;
constexpr int64_t kLeastBlock = 128, kMostBlock = 8192;
constexpr int64_t kLeastPlainBlock = 16;  // V3.2
constexpr int64_t kMostDrafts = 4;        // what a block drafts further ahead is hardly ever right
constexpr int64_t kExpandRows = 128;      // fewer rows of a prompt do not repay the expansion (docs/performance.md)
constexpr int64_t kReportRows = 16;       // logits of a prompt that are reported together

bool IsDirectory(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

}  // namespace

void Engine::Report(std::string_view stage, int64_t done, int64_t total) const {
  if (options_.progress) options_.progress({stage, done, total});
}

const ModelConfig& Engine::planned_config() const {
  return dummy_config_.has_value() ? *dummy_config_ : weights_->config();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Load(const std::string& source, EngineOptions options) {
  std::unique_ptr<Engine> engine(new Engine(std::move(options)));
  const bool dummy = engine->options_.load_format == LoadFormat::kDummy;
  engine->Report("opening");
  HADAL_RETURN_IF_ERROR(dummy ? engine->ReadDummyConfig(source) : engine->OpenCheckpoint(source));
  HADAL_RETURN_IF_ERROR(engine->CheckOptions());
  HADAL_RETURN_IF_ERROR(engine->OpenKvStore());
  HADAL_RETURN_IF_ERROR(engine->LoadTokenizer(source));
  HADAL_RETURN_IF_ERROR(engine->SetUpImages());
  HADAL_RETURN_IF_ERROR(engine->FitMemory());
  if (dummy) {
    engine->Report("making random weights");
    HADAL_RETURN_IF_ERROR(engine->MakeDummyWeights());
  } else {
    if (engine->options_.check_values) {
      engine->Report("checking values");
      HADAL_RETURN_IF_ERROR(engine->checkpoint_->CheckValues());
    }
    HADAL_RETURN_IF_ERROR(engine->ReadWeights());
  }
  engine->Report("preparing the model");
  HADAL_ASSIGN_OR_RETURN(engine->model_, models::CreateModel(*engine->weights_, engine->options_.model));
  if (engine->options_.check_logits) {
    engine->Report("start-up check");
    HADAL_RETURN_IF_ERROR(CheckFirstLogits(engine->model_.get()));
  }
  if (engine->options_.executor.kv.store != nullptr) {
    HADAL_ASSIGN_OR_RETURN(const std::string identity, engine->KvIdentity());
    engine->options_.executor.kv.hash_seed = engine->options_.executor.kv.store->HashSeed(identity);
  }
  engine->executor_ = std::make_unique<Executor>(engine->model_.get(), engine->tokenizer_, engine->image_tokens_,
                                                 engine->options_.executor);
  return engine;
}

// What rows depend on beside the tokens: everything that enters a row's bits. Of weights only samples are looked at:
// reading all of them takes as long as loading them.
absl::StatusOr<std::string> Engine::KvIdentity() const {
  models::ModelOptions one_thread = options_.model;
  one_thread.threads = 1;  // rows do not depend on it
  HADAL_ASSIGN_OR_RETURN(const std::string platform, models::DescribeModel(config(), one_thread));
  const models::ModelLimits& limits = options_.model.limits;
  Sha256 hash;
  const auto add = [&](std::string_view text) {
    hash.Update({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
    const uint8_t end = 0;
    hash.Update({&end, 1});
  };
  add(fmt::format("rows 1, {}, numerics {}, {} {} {}, expanded from {} of {} rows", platform, options_.model.numerics,
                  options_.kv_cache_dtype, options_.model.deterministic, options_.model.fp8_products,
                  limits.expand_rows, limits.expand_rows > 0 ? limits.max_batch_tokens : 0));
  add(checkpoint::ModelConfigToJson(config()));
  for (const models::KvGroup& group : model_->kv_layout().groups) {
    add(fmt::format("{} {} {}", group.name, group.block_tokens, group.bytes));
  }
  constexpr int64_t kSample = 64;
  for (const checkpoint::TensorEntry& entry : weights_->tensors()) {
    add(fmt::format("{} {} {}", entry.name, DTypeName(entry.dtype), fmt::join(entry.shape, "x")));
    for (const int64_t at : {int64_t{0}, entry.bytes / 2}) {
      const auto bytes = static_cast<size_t>(std::min(kSample, entry.bytes - at));
      hash.Update({reinterpret_cast<const uint8_t*>(entry.data + at), bytes});
    }
  }
  return HexDigest(hash.Finish());
}

// Before anything slow: a directory that cannot be used is known at once.
absl::Status Engine::OpenKvStore() {
  KvCacheOptions& kv = options_.executor.kv;
  if (options_.kv_cache_dir.empty() || !kv.prefix_cache) return absl::OkStatus();
  HADAL_ASSIGN_OR_RETURN(kv.store, KvStore::Open({options_.kv_cache_dir, options_.kv_cache_dir_bytes}));
  return absl::OkStatus();
}

absl::Status Engine::OpenCheckpoint(const std::string& dir) {
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(dir));
  warnings_ = checkpoint->warnings();
  generation_ = checkpoint->generation_config();
  checkpoint_ = checkpoint.get();
  weights_ = std::move(checkpoint);
  return absl::OkStatus();
}

absl::Status Engine::ReadDummyConfig(const std::string& source) {
  if (!IsDirectory(source)) {
    absl::StatusOr<ModelConfig> preset = checkpoint::PresetConfig(source);
    if (!preset.ok()) {
      return NotFound("{}: expected a directory with config.json, or one of the presets {}", source,
                      fmt::join(checkpoint::PresetNames(), ", "));
    }
    dummy_config_ = *std::move(preset);
    return absl::OkStatus();
  }
  const std::string path = (std::filesystem::path(source) / "config.json").string();
  HADAL_ASSIGN_OR_RETURN(const std::string text, checkpoint::ReadTextFile(path, kMaxConfigFile));
  HADAL_ASSIGN_OR_RETURN(dummy_config_, checkpoint::ParseModelConfig(text, path));
  return absl::OkStatus();
}

absl::Status Engine::CheckOptions() {
  const ModelConfig& config = planned_config();
  const int64_t longest = config.max_position_embeddings;
  if (options_.max_model_len < 0 || options_.max_model_len > longest) {
    return absl::OutOfRangeError(fmt::format("max_model_len: expected 1 to {} (max_position_embeddings), found {}",
                                             longest, options_.max_model_len));
  }
  if (options_.max_batch_tokens < 1 || options_.max_batch_tokens > kMostBatchTokens) {
    return absl::OutOfRangeError(
        fmt::format("max_num_batched_tokens: expected 1 to {}, found {}", kMostBatchTokens, options_.max_batch_tokens));
  }
  if (options_.max_seqs < 1 || options_.max_seqs > kMostSeqs) {
    return absl::OutOfRangeError(fmt::format("max_num_seqs: expected 1 to {}, found {}", kMostSeqs, options_.max_seqs));
  }
  HADAL_RETURN_IF_ERROR(CheckCacheOptions());
  absl::StatusOr<std::string> description = models::DescribeModel(config, options_.model);
  if (absl::IsInvalidArgument(description.status())) {
    return absl::OutOfRangeError(std::string(Message(description.status())));
  }
  HADAL_ASSIGN_OR_RETURN(description_, std::move(description));
  return absl::OkStatus();
}

absl::Status Engine::CheckCacheOptions() {
  HADAL_ASSIGN_OR_RETURN(options_.model.limits.kv_cache_dtype, ParseKvCacheDtype(options_.kv_cache_dtype));
  if (options_.model.numerics == "f32" && options_.model.limits.kv_cache_dtype != models::KvCacheDtype::kAuto) {
    return absl::OutOfRangeError(
        fmt::format("kv_cache_dtype: f32 numerics keep fp32 rows, expected auto, found {}", options_.kv_cache_dtype));
  }
  const bool v4 = planned_config().family == checkpoint::ModelFamily::kV4;
  if (options_.mla_prefill == "expanded" && !v4) {
    options_.model.limits.expand_rows = kExpandRows;
  } else if (options_.mla_prefill != "absorbed") {
    return absl::OutOfRangeError(fmt::format("mla_prefill: expected absorbed{}, found {}",
                                             v4 ? ", the one form that DeepSeek V4 has" : " or expanded",
                                             options_.mla_prefill));
  }
  // Blocks of V4 hold whole windows of its compressors.
  const int64_t least = planned_config().family == checkpoint::ModelFamily::kV4 ? kLeastBlock : kLeastPlainBlock;
  if (options_.block_size < least || options_.block_size > kMostBlock || options_.block_size % least != 0) {
    return absl::OutOfRangeError(fmt::format("block_size: expected a multiple of {} up to {}, found {}", least,
                                             kMostBlock, options_.block_size));
  }
  if (options_.kv_cache_memory < 0) {
    return absl::OutOfRangeError(
        fmt::format("kv_cache_memory: expected a number of bytes, found {}", options_.kv_cache_memory));
  }
  const int64_t drafts = options_.num_speculative_tokens;
  if (drafts < 0 || drafts > kMostDrafts) {
    return absl::OutOfRangeError(
        fmt::format("num_speculative_tokens: expected 0 to {}, found {}", kMostDrafts, drafts));
  }
  if (drafts > 0 && planned_config().num_mtp_layers == 0) {
    return absl::OutOfRangeError(
        "num_speculative_tokens: this checkpoint has no MTP block to draft with (num_nextn_predict_layers is 0)");
  }
  return absl::OkStatus();
}

absl::StatusOr<models::KvCacheDtype> ParseKvCacheDtype(std::string_view name) {
  if (name == "auto") return models::KvCacheDtype::kAuto;
  if (name.starts_with("fp8") && name != "fp8_e5m2") return models::KvCacheDtype::kFp8DsMla;
  if (name == "bfloat16" || name == "bf16") return models::KvCacheDtype::kBf16;
  return absl::OutOfRangeError(fmt::format(
      "kv_cache_dtype: only supports fp8 kv-cache (auto, fp8, fp8_e4m3, fp8_ds_mla) and bfloat16; found {}", name));
}

absl::Status Engine::LoadTokenizer(const std::string& source) {
  const std::string path = options_.tokenizer.empty() ? source : options_.tokenizer;
  absl::StatusOr<std::shared_ptr<const text::Tokenizer>> tokenizer = text::Tokenizer::Load(path);
  if (absl::IsNotFound(tokenizer.status()) && !options_.need_tokenizer) return absl::OkStatus();
  if (absl::IsNotFound(tokenizer.status())) {
    return NotFound(
        "no tokenizer: {}; a model directory holds tokenizer.json as published, or name one with "
        "--tokenizer",
        Message(tokenizer.status()));
  }
  HADAL_ASSIGN_OR_RETURN(tokenizer_, std::move(tokenizer));
  chat_format_ = ChooseChatFormat(path, planned_config().family, &warnings_);
  if (tokenizer_->vocab_size() > planned_config().vocab_size) {
    return InvalidArgument(
        "{}: the tokenizer has {} tokens, the model only {} (vocab_size): they do not belong "
        "together",
        path, tokenizer_->vocab_size(), planned_config().vocab_size);
  }
  return absl::OkStatus();
}

absl::Status Engine::SetUpImages() {
  models::ModelLimits& limits = options_.model.limits;
  const ModelConfig& config = planned_config();
  if (tokenizer_ == nullptr) return absl::OkStatus();
  const absl::StatusOr<ImageTokenIds> found = FindImageTokens(*tokenizer_);
  if (found.ok()) image_tokens_ = *found;
  if (!config.has_vision()) return absl::OkStatus();
  HADAL_RETURN_IF_ERROR(found.status());
  limits.image_first_id = found->first;
  limits.images = options_.max_images != 0;
  // Every token of an image sees every other, so all of them have to be in one step.
  const int64_t needed = MaxImageTokens(config.vision);
  if (limits.images && options_.max_batch_tokens < needed) {
    warnings_.push_back(fmt::format(
        "max_num_batched_tokens is raised from {} to {}: an image of up to {} tokens is never cut into chunks",
        options_.max_batch_tokens, needed, needed));
    options_.max_batch_tokens = needed;
  }
  return absl::OkStatus();
}

// Everything but the context and the size of the cache.
void Engine::SetLimits() {
  models::ModelLimits& limits = options_.model.limits;
  const int64_t stream_rows = options_.max_seqs * (1 + options_.num_speculative_tokens);
  limits.max_seqs = options_.max_seqs;
  limits.max_draft_tokens = options_.num_speculative_tokens;
  limits.block_size = options_.block_size;
  // Every stream has its rows in every step; an image has room beside them.
  limits.max_batch_tokens = std::max(options_.max_batch_tokens, stream_rows);
  if (limits.images && options_.max_seqs > 1) {
    limits.max_batch_tokens = std::max(limits.max_batch_tokens, MaxImageTokens(planned_config().vision) + stream_rows);
  }
  limits.max_logit_rows = std::max(stream_rows, std::min(kReportRows, limits.max_batch_tokens));
  options_.executor.max_batch_tokens = options_.max_batch_tokens;
  options_.executor.num_speculative_tokens = options_.num_speculative_tokens;
}

// Also settles how many slabs there are, from what was asked for or wished for; not yet from what is free.
absl::StatusOr<checkpoint::MemoryPlan> Engine::Plan(int64_t context) {
  models::ModelLimits& limits = options_.model.limits;
  limits.max_context = context;
  HADAL_ASSIGN_OR_RETURN(const models::ModelMemory memory, models::PlanMemory(planned_config(), options_.model));
  const models::KvLayout& layout = memory.layout;
  const int64_t needed = layout.SlabsFor(context, limits.max_batch_tokens + limits.max_draft_tokens);
  if (options_.kv_cache_memory > 0) {
    limits.cache_slabs = options_.kv_cache_memory / layout.slab_bytes;
  } else {
    limits.cache_slabs = needed * (options_.max_seqs + (options_.executor.kv.prefix_cache ? 1 : 0));
  }
  least_slabs_ = needed;
  slab_bytes_ = layout.slab_bytes;
  checkpoint::MemoryRequest request;
  request.context_length = context;
  request.max_seqs = options_.max_seqs;
  request.chunk_tokens = options_.max_batch_tokens;
  request.draft = models::LoadsDraft(planned_config(), limits);
  request.images = limits.images;
  request.cache_bytes_per_sequence = needed * layout.slab_bytes;
  request.cache_bytes = limits.cache_slabs * layout.slab_bytes;
  request.scratch_bytes = static_cast<int64_t>(memory.scratch);
  return checkpoint::PlanMemory(planned_config(), checkpoint_, request);
}

// Settles the limits and the plan.
absl::Status Engine::FitMemory() {
  models::ModelLimits& limits = options_.model.limits;
  SetLimits();
  const bool free_choice = options_.max_model_len == 0;
  int64_t context =
      free_choice ? std::min(planned_config().max_position_embeddings, kDefaultContext) : options_.max_model_len;
  HADAL_ASSIGN_OR_RETURN(const models::PlatformMemory memory, models::MemoryOf(options_.model));
  weights_on_device_ = !memory.is_host;
  checkpoint::AvailableMemory available = {INT64_MAX, "not looked at"};
  if (options_.check_memory) {
    if (memory.free.has_value()) {
      // What the driver, kernels and the allocator's granules take besides.
      constexpr int64_t kDeviceReserve = int64_t{512} << 20;
      available = {memory.free->bytes - kDeviceReserve, "free memory of " + memory.free->source};
    } else {
      HADAL_ASSIGN_OR_RETURN(available, checkpoint::ReadAvailableMemory());
    }
  }
  while (true) {
    HADAL_ASSIGN_OR_RETURN(plan_, Plan(context));
    // A cache that nobody gave a size takes what is left, down to one sequence.
    if (options_.kv_cache_memory == 0 && plan_.total() > available.bytes) {
      const int64_t left = available.bytes - (plan_.total() - plan_.cache_bytes);
      limits.cache_slabs = std::max(least_slabs_, left / slab_bytes_);
      plan_.cache_bytes = limits.cache_slabs * slab_bytes_;
    }
    const bool fits = plan_.total() <= available.bytes && limits.cache_slabs >= least_slabs_;
    if (fits || !free_choice || context / 2 < kLeastDefaultContext) break;
    context /= 2;
  }
  if (limits.cache_slabs < least_slabs_) {
    return ResourceExhausted(
        "kv_cache_memory: {} are {} blocks of {} bytes; one sequence of max_model_len {} needs {} blocks, which is {}",
        checkpoint::BytesText(options_.kv_cache_memory), limits.cache_slabs, slab_bytes_, context, least_slabs_,
        checkpoint::BytesText(least_slabs_ * slab_bytes_));
  }
  if (limits.cache_slabs > INT32_MAX) {
    return ResourceExhausted("kv_cache_memory: at most {} blocks of {} bytes are possible, asked for {}", INT32_MAX,
                             slab_bytes_, limits.cache_slabs);
  }
  return options_.check_memory ? checkpoint::CheckFits(plan_, available) : absl::OkStatus();
}

absl::Status Engine::MakeDummyWeights() {
  checkpoint::SynthOptions synth;
  synth.seed = options_.dummy_seed;
  const int threads = options_.model.threads > 0 ? options_.model.threads : AvailableCpus();
  HADAL_ASSIGN_OR_RETURN(
      weights_, checkpoint::DummyWeights::Create(*dummy_config_, synth,
                                                 models::LoadsDraft(*dummy_config_, options_.model.limits), threads));
  dummy_config_.reset();
  return absl::OkStatus();
}

// Copies the weights, or brings the mapped files into memory in their order, which is the fastest way to read them: the
// first answers then do not wait for the disk.
absl::Status Engine::ReadWeights() {
  if (weights_on_device_) return absl::OkStatus();  // copied there from the mapped files
  constexpr int64_t kPage = 4096, kReportEvery = 64 << 20, kWorthCopying = 64 << 20;
  const int64_t total = checkpoint_->tensor_bytes();
  const bool draft = models::LoadsDraft(config(), options_.model.limits);
  const bool may_copy = options_.weight_memory == WeightMemory::kAuto && total >= kWorthCopying;
  if (options_.weight_memory == WeightMemory::kCopy || may_copy) {
    const int threads = options_.model.threads > 0 ? options_.model.threads : AvailableCpus();
    absl::Status copied = checkpoint_->CopyToMemory(threads, draft, options_.model.limits.images, [&](int64_t bytes) {
      Report("reading weights", std::min(bytes, total), total);
    });
    // Where memory cannot be promised ahead (no overcommit) the mapped files still serve.
    if (copied.ok() || !may_copy || !absl::IsResourceExhausted(copied)) return copied;
  }
  int64_t done = 0, reported = 0;
  const checkpoint::TensorTable table = checkpoint::TensorTable::For(config(), draft);
  for (const checkpoint::TensorEntry& entry : checkpoint_->tensors()) {
    if (table.Find(entry.name) == nullptr) continue;
    checkpoint::Prefetch(entry);
    for (int64_t at = 0; at < entry.bytes; at += kPage) {
      static_cast<void>(*static_cast<const volatile std::byte*>(entry.data + at));
    }
    done += entry.bytes;
    if (done - reported < kReportEvery) continue;
    reported = done;
    Report("reading weights", std::min(done, total), total);
  }
  Report("reading weights", total, total);
  return absl::OkStatus();
}

// Spec deepseek-v4-text 6.3: dspark_* keys mark the later encoders.
text::EffortProfile Engine::effort_profile() const {
  return config().dspark.has_value() ? text::EffortProfile::kTiered : text::EffortProfile::kFirstRelease;
}

std::vector<int32_t> Engine::end_tokens() const {
  std::vector<int32_t> ids;
  const auto add = [&](const std::vector<int64_t>& from) {
    for (const int64_t id : from) {
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(static_cast<int32_t>(id));
    }
  };
  add(config().eos_token_ids);
  if (generation_.has_value()) add(generation_->eos_token_ids);
  return ids;
}

SamplingParams Engine::default_sampling() const {
  SamplingParams params;
  if (!generation_.has_value()) return params;
  if (generation_->do_sample == false) {
    params.temperature = 0;
    return params;
  }
  params.temperature = generation_->temperature.value_or(params.temperature);
  params.top_p = generation_->top_p.value_or(params.top_p);
  params.top_k = generation_->top_k.value_or(params.top_k);
  return params;
}

absl::Status Engine::CheckImages(size_t count) const {
  if (count == 0) return absl::OkStatus();
  if (!config().has_vision()) {
    return absl::FailedPreconditionError("this is a text model: it takes no images (vision_n_layers is 0)");
  }
  if (!takes_images()) return absl::FailedPreconditionError("images are disabled (--limit-mm-per-prompt image=0)");
  if (options_.max_images >= 0 && static_cast<int64_t>(count) > options_.max_images) {
    return InvalidArgument("the prompt has {} images; at most {} are allowed (--limit-mm-per-prompt)", count,
                           options_.max_images);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const vision::PreparedImage>> Engine::PrepareImage(
    std::span<const uint8_t> bytes) const {
  HADAL_RETURN_IF_ERROR(CheckImages(1));
  HADAL_ASSIGN_OR_RETURN(vision::PreparedImage image,
                         vision::PrepareImage(bytes, vision::DecodeOptions{}, SizeRulesOf(config().vision)));
  return std::make_shared<const vision::PreparedImage>(std::move(image));
}

absl::Status Engine::PlaceImages(const ImageList& images, EncodedPrompt* prompt) const {
  if (images.empty()) return absl::OkStatus();  // a placeholder without an image is refused by the generator
  HADAL_RETURN_IF_ERROR(CheckImages(images.size()));
  HADAL_CHECK(image_tokens_.has_value());
  HADAL_ASSIGN_OR_RETURN(prompt->images, ExpandImages(images, *image_tokens_, &prompt->ids));
  return absl::OkStatus();
}

absl::StatusOr<EncodedPrompt> Engine::EncodeChat(const text::Json& messages, const text::ThinkingChoice& thinking,
                                                 const ImageList& images) const {
  HADAL_CHECK(tokenizer_ != nullptr);
  text::ChatOptions options;
  options.mode = thinking.mode;
  options.effort = thinking.effort;
  options.effort_profile = effort_profile();
  options.trim_content_before_calls = true;
  options.allow_images = takes_images();
  HADAL_ASSIGN_OR_RETURN(const text::Prompt prompt, text::EncodeChat(chat_format_, messages, options));
  std::vector<text::Tokenizer::Span> spans;
  spans.reserve(prompt.spans.size());
  for (const text::PromptSpan& span : prompt.spans) spans.push_back({span.text, span.trusted});
  EncodedPrompt out = {tokenizer_->EncodeSpans(spans), prompt.starts_in_reasoning, text::MarkupOf(chat_format_), {}};
  HADAL_RETURN_IF_ERROR(PlaceImages(images, &out));
  return out;
}

absl::StatusOr<EncodedPrompt> Engine::EncodeRaw(std::string_view prompt, const ImageList& images) const {
  HADAL_CHECK(tokenizer_ != nullptr);
  EncodedPrompt out = {tokenizer_->Encode(prompt, text::Tokenizer::Special::kMatch),
                       text::OpensReasoning(prompt),
                       text::MarkupOf(chat_format_),
                       {}};
  HADAL_RETURN_IF_ERROR(PlaceImages(images, &out));
  return out;
}

absl::StatusOr<std::shared_ptr<const guided::TokenVocabulary>> Engine::GuidedVocabulary() const {
  HADAL_CHECK(tokenizer_ != nullptr);
  const std::lock_guard lock(grammar_mutex_);
  if (guided_vocabulary_ != nullptr) return guided_vocabulary_;
  // As many as the model has logits; ids that the tokenizer does not know have no bytes.
  std::vector<std::string> bytes(static_cast<size_t>(config().vocab_size));
  std::vector<int32_t> special, forbidden;
  for (int32_t id = 0; id < static_cast<int32_t>(tokenizer_->vocab_size()); ++id) {
    bytes[id] = tokenizer_->TokenBytes(id);
    if (tokenizer_->IsAdded(id)) special.push_back(id);
    if (image_tokens_.has_value() && image_tokens_->contains(id)) forbidden.push_back(id);
  }
  HADAL_ASSIGN_OR_RETURN(guided_vocabulary_,
                         guided::TokenVocabulary::Create(std::move(bytes), special, end_tokens(), forbidden));
  return guided_vocabulary_;
}

absl::StatusOr<std::shared_ptr<const guided::Grammar>> Engine::CompileGrammar(const guided::GuidedSpec& spec) const {
  constexpr size_t kMostGrammars = 64;
  HADAL_ASSIGN_OR_RETURN(std::shared_ptr<const guided::TokenVocabulary> vocabulary, GuidedVocabulary());
  {
    const std::lock_guard lock(grammar_mutex_);
    const auto it = std::find_if(grammars_.begin(), grammars_.end(), [&](const auto& g) { return g.first == spec; });
    if (it != grammars_.end()) {
      grammars_.splice(grammars_.begin(), grammars_, it);
      return it->second;
    }
  }
  HADAL_ASSIGN_OR_RETURN(std::shared_ptr<const guided::Grammar> grammar, guided::Compile(spec, std::move(vocabulary)));
  const std::lock_guard lock(grammar_mutex_);
  grammars_.emplace_front(spec, grammar);
  if (grammars_.size() > kMostGrammars) grammars_.pop_back();
  return grammar;
}

Executor& Engine::executor() {
  HADAL_CHECK(tokenizer_ != nullptr);
  return *executor_;
}

std::string Engine::CacheDescription() const {
  const models::ModelLimits& limits = model_->limits();
  const models::KvLayout& layout = model_->kv_layout();
  const bool packed =
      limits.kv_cache_dtype == models::KvCacheDtype::kFp8DsMla ||
      (limits.kv_cache_dtype == models::KvCacheDtype::kAuto && config().family == checkpoint::ModelFamily::kV4);
  const char* rows = model_->ops().numerics() == ops::Numerics::kF32 ? "fp32" : packed ? "fp8_ds_mla" : "bf16";
  return fmt::format("cache {}: {} blocks of {} bytes ({}), {:.1f} sequences of {} tokens",
                     checkpoint::BytesText(plan_.cache_bytes), limits.cache_slabs, layout.slab_bytes, rows,
                     static_cast<double>(limits.cache_slabs) / static_cast<double>(least_slabs_), limits.max_context);
}

}  // namespace hadal::runtime
