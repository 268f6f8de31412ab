#include "engine_flags.h"

#include <filesystem>
#include <sstream>

#include "base/status.h"
#include "checkpoint/memory_plan.h"

namespace hadal::cli {

namespace {

constexpr std::string_view kImageLimit = "image=";

std::string CheckMmLimit(const std::string& text) {
  const std::string_view number = std::string_view(text).substr(std::min(text.size(), kImageLimit.size()));
  const bool digits = !number.empty() && number.size() < 10 && number.find_first_not_of("0123456789") == number.npos;
  if (text.starts_with(kImageLimit) && digits) return "";
  return fmt::format("expected image=N, found {}", text);
}

// The number of a card is read where the platform is made.
std::string CheckDevice(const std::string& text) {
  const std::string name = text.substr(0, text.find(':'));
  const bool gpu = name == "cuda" || name == "hip";
  if (gpu || text == "auto" || text == "cpu" || text == "xpu" || text == "reference") return "";
  return fmt::format("expected auto, cpu, cuda, hip, xpu or reference, found {}", text);
}

}  // namespace

void EngineFlags::Register(CLI::App* app) {
  app->add_option("MODEL", model_, "Model directory as downloaded (config.json, *.safetensors, tokenizer.json)")
      ->required();
  const std::string model = "Model";
  app->add_option("--tokenizer", options_.tokenizer, "tokenizer.json, or its directory, from elsewhere")->group(model);
  app->add_option("--load-format", load_format_,
                  "auto: the weights in MODEL; dummy: random weights of the shape in MODEL/config.json, or of a preset "
                  "(hadal synth --help)")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str()
      ->group(model);
  app->add_option(
         "--mmap", mmap_,
         "off: copy the weights into huge pages, which are read faster; on: use the mapped files, which several "
         "processes share; auto: off from 64 MiB on")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(model);
  app->add_option("--max-model-len", options_.max_model_len,
                  fmt::format("Context in tokens, prompt and answer together [min(the model's, {}), less if memory "
                              "is short]",
                              runtime::kDefaultContext))
      ->check(CLI::PositiveNumber)
      ->group(model);
  app->add_option("--model-class-overrides", class_overrides_,
                  "Architecture=Class[,...]: take another registered class for an architecture")
      ->group(model);

  app->add_option("--limit-mm-per-prompt", mm_limit_,
                  "image=N: images that a prompt may have; image=0 leaves the vision tower out [no limit]")
      ->check(CheckMmLimit, "image=N")
      ->group(model);

  const std::string engine = "Engine";
  app->add_option("--device", device_,
                  "auto (a GPU if this build and machine have one), cpu, cuda, hip, xpu or reference; cuda:1 is the "
                  "second card")
      ->check(CheckDevice, "DEVICE")
      ->capture_default_str()
      ->group(engine);
  app->add_flag("--deterministic", options_.model.deterministic,
                "On a GPU: a request has the same bits in any batch, as it always has on the CPU")
      ->group(engine);
  app->add_flag("--fp8-products", options_.model.fp8_products,
                "On Hopper: prompts multiply in FP8 by FP8, several times as fast, with sums that keep fewer bits")
      ->group(engine);
  app->add_option("--threads", options_.model.threads, "CPU threads [all that this process may use]")
      ->check(CLI::Range(1, 4096))
      ->group(engine);
  app->add_option("--cpu-isa", isa_, "Widest instruction set to use: auto, baseline, avx2, avx512 or amx")
      ->check(CLI::IsMember({"auto", "baseline", "avx2", "avx512", "amx"}))
      ->capture_default_str()
      ->group(engine);
  app->add_option("--numerics", numerics_, "published: bf16 and FP8 activations as released; f32: for study")
      ->check(CLI::IsMember({"published", "f32"}))
      ->capture_default_str()
      ->group(engine);
  app->add_option("--max-num-batched-tokens", options_.max_batch_tokens, "Rows of one prefill step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(engine);
  max_seqs_given_ =
      app->add_option("--max-num-seqs", options_.max_seqs, "Requests that run at once [1; --batch and serve: 16]")
          ->check(CLI::PositiveNumber)
          ->group(engine);
  const std::string cache = "Cache and drafts";
  app->add_option("--kv-cache-memory", kv_cache_memory_,
                  "Memory of the cache, with a unit (512MiB, 4GiB); what is not in use keeps prefixes "
                  "[--max-num-seqs contexts and one more, or what is free but at least one]")
      ->transform(CLI::AsSizeValue(false), "SIZE")
      ->group(cache);
  app->add_option(
         "--kv-cache-dtype", options_.kv_cache_dtype,
         "Rows of the cache. V4: auto and fp8 (584 bytes each) or bfloat16 (1024), the answers are the same; V3.2: "
         "auto and bfloat16 (1152) or fp8 (656), which rounds")
      ->capture_default_str()
      ->group(cache);
  app->add_option(
         "--mla-prefill", options_.mla_prefill,
         "V3.x: prompts attend over latents (absorbed) as answers do, or, in chunks of 128 rows and more, over "
         "keys and values (expanded): faster, but answers then depend on how a prompt was cut")
      ->check(CLI::IsMember({"absorbed", "expanded"}))
      ->capture_default_str()
      ->group(cache);
  app->add_option("--block-size", options_.block_size,
                  "Tokens of a cache block: a multiple of 128 (V3.2: of 16); prefixes are shared by blocks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(cache);
  app->add_flag("--no-prefix-cache", no_prefix_cache_, "Compute every prompt anew")->group(cache);
  app->add_option("--kv-cache-dir", options_.kv_cache_dir,
                  "Keep prefixes on disk in this directory, for the next start too; one process at a time")
      ->group(cache);
  app->add_option("--kv-cache-dir-size", kv_cache_dir_size_,
                  "Most bytes of its files, with a unit; those used longest ago go first [16GiB]")
      ->transform(CLI::AsSizeValue(false), "SIZE")
      ->group(cache);
  app->add_option("--num-speculative-tokens", options_.num_speculative_tokens,
                  "Tokens that the checkpoint's MTP block drafts ahead, 0 to 4; the answers are the same")
      ->check(CLI::Range(0, 4))
      ->capture_default_str()
      ->group(cache);
  app->add_flag("--rejection-sampling", options_.executor.rejection_sampling,
                "Accept drafts by the ratio of probabilities: answers drawn at temperatures above 0 have the same "
                "distribution as without drafts, but not the same tokens")
      ->group(cache);
  app->add_flag("--no-memory-check", skip_memory_check_, "Start even if the model does not seem to fit into memory")
      ->group(engine);
}

std::string EngineFlags::model_name() const {
  std::filesystem::path path(model_);
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

std::unique_ptr<runtime::Engine> EngineFlags::Load(int* code) const {
  runtime::EngineOptions options = options_;
  options.load_format = load_format_ == "dummy" ? runtime::LoadFormat::kDummy : runtime::LoadFormat::kAuto;
  options.weight_memory = mmap_ == "on"    ? runtime::WeightMemory::kMapped
                          : mmap_ == "off" ? runtime::WeightMemory::kCopy
                                           : runtime::WeightMemory::kAuto;
  options.kv_cache_memory = static_cast<int64_t>(std::min<uint64_t>(kv_cache_memory_, INT64_MAX));
  options.kv_cache_dir_bytes = static_cast<int64_t>(std::min<uint64_t>(kv_cache_dir_size_, INT64_MAX));
  options.executor.kv.prefix_cache = !no_prefix_cache_;
  if (!mm_limit_.empty()) options.max_images = std::stoll(mm_limit_.substr(kImageLimit.size()));
  options.model.device = device_;
  options.model.numerics = numerics_;
  options.model.isa = isa_;
  options.check_memory = !skip_memory_check_;
  std::istringstream overrides(class_overrides_);
  for (std::string entry; std::getline(overrides, entry, ',');) options.model.class_overrides.push_back(entry);

  ProgressLine line;
  options.progress = [&](const runtime::LoadProgress& progress) {
    if (progress.total == 0) {
      line.Show(fmt::format("{}...", progress.stage));
      return;
    }
    line.ShowBar(progress.stage, progress.done, progress.total,
                 fmt::format("{} of {}", checkpoint::BytesText(progress.done), checkpoint::BytesText(progress.total)));
  };
  absl::StatusOr<std::unique_ptr<runtime::Engine>> engine = runtime::Engine::Load(model_, std::move(options));
  line.Clear();
  if (!engine.ok()) {
    *code = FailLoading(engine.status());
    return nullptr;
  }
  for (const std::string& warning : (*engine)->warnings()) Warn(warning);
  return *std::move(engine);
}

}  // namespace hadal::cli
