// hadal synth: a checkpoint of a published shape, or a smaller one, with random weights.
#include "checkpoint/synth.h"

#include <filesystem>
#include <memory>

#include "base/status.h"
#include "checkpoint/memory_plan.h"
#include "cli.h"

namespace hadal::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  hadal synth /data/random-flash --preset v4-flash --layers 4 --experts 16\n"
    "  hadal synth /data/small --preset v4-flash --layers 4 --hidden 512 --vocab 1280 --compress-ratios 0,4,128,4 \\\n"
    "      --tokenizer models/tiny-v4-vision";

struct SynthFlags {
  std::string out;
  std::string preset = "v4-flash";
  checkpoint::ConfigOverrides overrides;
  std::vector<int> compress_ratios;
  checkpoint::SynthOptions options;
};

int Synth(SynthFlags flags) {
  std::error_code ignored;
  if (std::filesystem::exists(flags.out, ignored) && !std::filesystem::is_empty(flags.out, ignored)) {
    return Fail(kUsage, fmt::format("{}: expected a new or empty directory", flags.out));
  }
  if (!flags.compress_ratios.empty()) flags.overrides.compress_ratios = flags.compress_ratios;
  absl::StatusOr<checkpoint::ModelConfig> config = checkpoint::PresetConfig(flags.preset);
  if (config.ok()) config = checkpoint::ApplyOverrides(*std::move(config), flags.overrides);
  if (!config.ok()) return Fail(kUsage, Message(config.status()));
  std::string* const tokenizer = &flags.options.tokenizer_dir;
  if (!tokenizer->empty() && !std::filesystem::is_directory(*tokenizer, ignored)) {
    *tokenizer = std::filesystem::path(*tokenizer).parent_path().string();
    if (tokenizer->empty()) *tokenizer = ".";
  }
  const absl::StatusOr<checkpoint::SynthReport> report =
      checkpoint::WriteSyntheticCheckpoint(*config, flags.out, flags.options);
  if (!report.ok()) return FailLoading(report.status());
  WriteOut(fmt::format("{}: {} tensors, {} in {} files, {:.1f} s\n", flags.out, report->tensors,
                       checkpoint::BytesText(report->bytes), report->shards, report->seconds));
  return OutputResult();
}

}  // namespace

void AddSynth(CLI::App* app, int* result) {
  auto flags = std::make_shared<SynthFlags>();
  CLI::App* synth = app->add_subcommand("synth", "Write a checkpoint with random weights");
  synth->add_option("OUT", flags->out, "Directory to write, new or empty")->required();
  synth->add_option("--preset", flags->preset, fmt::format("Shape: {}", fmt::join(checkpoint::PresetNames(), ", ")))
      ->capture_default_str();
  const auto size = [&](const char* name, std::optional<int64_t>* value, const char* description) {
    synth->add_option(name, *value, description)->check(CLI::Range(int64_t{0}, int64_t{1} << 31))->group("Shape");
  };
  checkpoint::ConfigOverrides* o = &flags->overrides;
  size("--layers", &o->num_hidden_layers, "num_hidden_layers");
  size("--mtp-layers", &o->num_mtp_layers, "num_nextn_predict_layers");
  size("--hash-layers", &o->num_hash_layers, "num_hash_layers");
  size("--hidden", &o->hidden_size, "hidden_size");
  size("--heads", &o->num_attention_heads, "num_attention_heads");
  size("--q-lora-rank", &o->q_lora_rank, "q_lora_rank");
  size("--o-groups", &o->o_groups, "o_groups");
  size("--o-lora-rank", &o->o_lora_rank, "o_lora_rank");
  size("--experts", &o->n_routed_experts, "n_routed_experts");
  size("--experts-per-token", &o->num_experts_per_tok, "num_experts_per_tok");
  size("--moe-intermediate", &o->moe_intermediate_size, "moe_intermediate_size");
  size("--intermediate", &o->intermediate_size, "intermediate_size (V3.2)");
  size("--dense-layers", &o->first_k_dense_replace, "first_k_dense_replace (V3.2)");
  size("--vocab", &o->vocab_size, "vocab_size");
  size("--index-topk", &o->index_topk, "index_topk");
  synth->add_option("--compress-ratios", flags->compress_ratios, "One of 0, 4, 128 for each layer, between commas")
      ->delimiter(',')
      ->group("Shape");
  synth->add_option("--seed", flags->options.seed, "The same seed gives the same files")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  synth->add_option("--tokenizer", flags->options.tokenizer_dir, "Directory whose tokenizer files are copied");
  synth->add_flag("--f32-scales", flags->options.f32_scales, "F32 instead of E8M0 scales, as base checkpoints have");
  synth->footer(kExamples);
  synth->callback([=] { *result = Synth(*flags); });
}

}  // namespace hadal::cli
