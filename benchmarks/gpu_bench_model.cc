// Whole-model rates of gpu_bench: V4-Flash cut to a few layers, its experts and widths as published.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <thread>
#include <unordered_set>
#include <utility>

#include "checkpoint/synth.h"
#include "gpu_bench.h"
#include "models/registry/registry.h"

namespace hadal::bench {
namespace {

using checkpoint::ModelConfig;

constexpr int64_t kPublishedLayers = 43;

absl::StatusOr<ModelConfig> SliceConfig(const GpuSettings& s) {
  HADAL_ASSIGN_OR_RETURN(const ModelConfig config, checkpoint::PresetConfig(s.preset));
  if (config.family != checkpoint::ModelFamily::kV4) return InvalidArgument("--preset {} is no V4 shape", s.preset);
  checkpoint::ConfigOverrides overrides;
  overrides.num_mtp_layers = 0;
  if (s.layers < config.num_hidden_layers) {
    // As the layers behind the first three: indexed and compressed by turns.
    std::vector<int> ratios;
    for (int64_t i = 0; i < s.layers; ++i) ratios.push_back(i % 2 == 0 ? 4 : 128);
    overrides.num_hidden_layers = s.layers;
    overrides.num_hash_layers = 0;
    overrides.compress_ratios = ratios;
  }
  if (s.quick) {
    overrides.hidden_size = 512;
    overrides.num_attention_heads = 8;
    overrides.q_lora_rank = 128;
    overrides.o_groups = 2;
    overrides.o_lora_rank = 128;
    overrides.moe_intermediate_size = 256;
    overrides.n_routed_experts = 16;
    overrides.vocab_size = 2048;
    overrides.index_topk = 64;
  }
  return checkpoint::ApplyOverrides(config, overrides);
}

// What the weights of a step cost, by what every row or only some rows need.
struct WeightCosts {
  double always = 0;     // bytes: attention, shared experts, norms
  double head = 0;       // bytes
  double expert = 0;     // bytes of one expert of one layer
  double fp8_flop = 0;   // of one row, without the head
  double bf16_flop = 0;  // the same
  double head_elements = 0;
};

bool Contains(const std::string& name, std::string_view part) { return name.find(part) != std::string::npos; }

WeightCosts CostsOf(const checkpoint::DummyWeights& weights) {
  const ModelConfig& c = weights.config();
  const double chosen = static_cast<double>(c.num_experts_per_tok) / static_cast<double>(c.n_routed_experts);
  WeightCosts out;
  for (const checkpoint::TensorEntry& entry : weights.tensors()) {
    const auto bytes = static_cast<double>(entry.bytes);
    if (entry.name == "embed.weight" || Contains(entry.name, "tid2eid")) continue;
    if (entry.name == "head.weight") {
      out.head += bytes;
      out.head_elements += static_cast<double>(entry.elements());
      continue;
    }
    const bool routed = Contains(entry.name, ".experts.");
    (routed ? out.expert : out.always) +=
        routed ? bytes / static_cast<double>(c.n_routed_experts * c.num_hidden_layers) : bytes;
    if (entry.shape.size() != 2 || !entry.name.ends_with(".weight")) continue;
    const double flop = 2 * static_cast<double>(entry.elements()) * (routed ? chosen : 1.0);
    // Inputs of wo_a are not quantised.
    const bool fp8 = (entry.dtype == DType::kF8E4M3 || entry.dtype == DType::kF4E2M1) && !Contains(entry.name, "wo_a");
    (fp8 ? out.fp8_flop : out.bf16_flop) += flop;
  }
  return out;
}

constexpr double kRowBytes = 584;  // a latent row of 512
constexpr double kKeyBytes = 68;   // an indexer key of 128

struct CacheCosts {
  double read = 0;       // bytes that a row at this position reads
  double flop = 0;       // bf16, attention and indexer
  double per_token = 0;  // bytes that a token adds for good
};

CacheCosts CacheOf(const ModelConfig& c, int64_t position) {
  CacheCosts out;
  const auto p = static_cast<double>(position + 1);
  const double attended_flop = 4 * static_cast<double>(c.num_attention_heads * c.head_dim);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const int ratio = c.compress_ratios[i];
    double rows = std::min(p, static_cast<double>(c.sliding_window));
    if (ratio == 4) {
      const double keys = std::floor(p / 4);
      rows += std::min(keys, static_cast<double>(c.index_topk));
      out.read += keys * kKeyBytes;
      out.flop += 2 * keys * static_cast<double>(c.index_n_heads * c.index_head_dim);
      out.per_token += (kRowBytes + kKeyBytes) / 4;
    } else if (ratio > 4) {
      rows += std::floor(p / ratio);
      out.per_token += kRowBytes / ratio;
    }
    out.read += rows * kRowBytes;
    out.flop += rows * attended_flop;
  }
  return out;
}

// Experts that a step visits, of all its layers.
class CountExperts final : public models::StepObserver {
 public:
  explicit CountExperts(int64_t chosen) : chosen_(chosen) {}
  void OnRoute(int /*layer*/, const ops::Tensor& logits, int32_t* experts, float* /*weights*/) override {
    experts_ += std::unordered_set<int32_t>(experts, experts + logits.rows * chosen_).size();
  }
  double experts() const { return static_cast<double>(experts_); }

 private:
  int64_t chosen_;
  size_t experts_ = 0;
};

class ModelBench {
 public:
  ModelBench(const GpuSettings& settings, const GpuLimits& limits) : s_(settings), limits_(limits) {
    if (!s_.quick) return;
    s_.context = 160;
    s_.prompt = 256;
    s_.chunk = 128;
    s_.decode_steps = 2;
    s_.batches = {1, 3};
  }

  absl::Status Run() {
    HADAL_RETURN_IF_ERROR(Create());
    fmt::print("| model | time ms | tok/s | GB/s | TFLOP/s | limit | share % | bar % | met |\n");
    fmt::print("|---|---|---|---|---|---|---|---|---|\n");
    for (const int64_t batch : s_.batches) HADAL_RETURN_IF_ERROR(Decode(batch));
    HADAL_RETURN_IF_ERROR(Prefill());
    PrintNotes();
    return absl::OkStatus();
  }

 private:
  absl::Status Create() {
    HADAL_ASSIGN_OR_RETURN(config_, SliceConfig(s_));
    const auto threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    const double begin = Now();
    HADAL_ASSIGN_OR_RETURN(weights_, checkpoint::DummyWeights::Create(config_, {}, false, threads));
    costs_ = CostsOf(*weights_);
    models::ModelOptions options;
    options.device = s_.device;
    options.deterministic = s_.deterministic;
    options.fp8_products = s_.fp8_products;
    most_ = *std::max_element(s_.batches.begin(), s_.batches.end());
    options.limits.max_seqs = most_;
    options.limits.max_context = std::max(s_.context + 4 * s_.decode_steps + 8, s_.prompt);
    options.limits.max_batch_tokens = std::max(s_.chunk, most_);
    options.limits.max_logit_rows = most_;
    HADAL_ASSIGN_OR_RETURN(const std::string description, models::DescribeModel(config_, options));
    HADAL_ASSIGN_OR_RETURN(const models::ModelMemory memory, models::PlanMemory(config_, options));
    HADAL_ASSIGN_OR_RETURN(model_, models::CreateModel(*weights_, options));
    logits_.resize(most_ * config_.vocab_size);
    std::string ratios;
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
      ratios += fmt::format("{}{}", ratios.empty() ? "" : ",", config_.compress_ratios[i]);
    }
    fmt::print(
        "{}: {} of {} layers (ratios {}), {} experts; made and loaded in {:.0f} s; {:.2f} GB of caches, {:.2f} GB "
        "of buffers\n\n",
        description, config_.num_hidden_layers, kPublishedLayers, ratios, config_.n_routed_experts, Now() - begin,
        static_cast<double>(memory.cache) / 1e9, static_cast<double>(memory.scratch) / 1e9);
    std::fflush(stdout);
    return absl::OkStatus();
  }

  // A step of `each` rows from `position` on of each of the sequences from `first_seq` on.
  absl::Status Step(int64_t first_seq, int64_t sequences, int64_t position, int64_t each, bool with_logits,
                    models::StepObserver* observer = nullptr) {
    ids_.clear();
    positions_.clear();
    seqs_.clear();
    logit_rows_.clear();
    for (int64_t i = 0; i < sequences; ++i) {
      for (int64_t t = 0; t < each; ++t) {
        const int64_t seq = first_seq + i;
        const int64_t at = position + t;
        ids_.push_back(static_cast<int32_t>((at * 7919 + seq * 104729 + 13) % config_.vocab_size));
        positions_.push_back(static_cast<int32_t>(at));
        seqs_.push_back(static_cast<int32_t>(seq));
      }
      if (with_logits) logit_rows_.push_back(static_cast<int32_t>(ids_.size() - 1));
    }
    models::StepInput step;
    step.ids = ids_;
    step.positions = positions_;
    step.seqs = seqs_;
    step.logit_rows = logit_rows_;
    step.logits = logits_.data();
    step.observer = observer;
    return model_->Forward(step);
  }

  void Row(const std::string& name, double seconds, double tokens, const Cost& cost, double memory_bar,
           double compute_bar) {
    const Roofline roofline = RooflineOf(limits_, cost);
    const double share = 100 * roofline.seconds / seconds;
    const double bar = roofline.memory_bound ? memory_bar : compute_bar;
    fmt::print("| {} | {:.2f} | {:.0f} | {:.0f} | {:.1f} | {} | {:.0f} | {:.0f} | {} |\n", name, seconds * 1e3,
               tokens / seconds, cost.bytes / seconds / 1e9, (cost.fp8_flop + cost.bf16_flop) / seconds / 1e12,
               roofline.limit, share, bar, share >= bar ? "yes" : "**no**");
    std::fflush(stdout);
  }

  absl::Status Decode(int64_t batch) {
    // The contexts that are not there yet, several sequences a step while they fit.
    const int64_t each = std::min(s_.chunk, s_.context);
    const int64_t together = std::max<int64_t>(1, s_.chunk / each);
    for (; filled_ < batch; filled_ += together) {
      const int64_t sequences = std::min(together, most_ - filled_);
      for (int64_t at = 0; at < s_.context; at += each) {
        HADAL_RETURN_IF_ERROR(Step(filled_, sequences, at, std::min(each, s_.context - at), false));
      }
    }
    int64_t position = s_.context;
    for (int i = 0; i < 4; ++i) HADAL_RETURN_IF_ERROR(Step(0, batch, position++, 1, true));
    double seconds = 1e9;
    for (int run = 0; run < 3; ++run) {
      const double begin = Now();
      for (int64_t i = 0; i < s_.decode_steps; ++i) HADAL_RETURN_IF_ERROR(Step(0, batch, position++, 1, true));
      seconds = std::min(seconds, (Now() - begin) / static_cast<double>(s_.decode_steps));
    }
    CountExperts count(config_.num_experts_per_tok);
    HADAL_RETURN_IF_ERROR(Step(0, batch, position, 1, true, &count));
    const CacheCosts cache = CacheOf(config_, position);
    const auto rows = static_cast<double>(batch);
    Cost cost;
    cost.bytes = costs_.always + costs_.head + count.experts() * costs_.expert + rows * cache.read;
    cost.fp8_flop = rows * costs_.fp8_flop;
    cost.bf16_flop = rows * (costs_.bf16_flop + cache.flop + 2 * costs_.head_elements);
    Row(fmt::format("decode, batch {}, context {}", batch, s_.context), seconds, rows, cost, 75, 50);

    HADAL_ASSIGN_OR_RETURN(const double head, HeadSeconds(batch));
    const double layers = static_cast<double>(kPublishedLayers) / static_cast<double>(config_.num_hidden_layers);
    const double full = head + (seconds - head) * layers;
    notes_.push_back(fmt::format(
        "decode at batch {}: {:.2f} GB a step ({:.0f} experts a layer visited, {:.1f} % cache); the head is {:.0f} % "
        "of "
        "the bytes and {:.0f} % of the time ({:.0f} us); {} layers would take {:.1f} ms a step, {:.0f} tok/s",
        batch, cost.bytes / 1e9, count.experts() / static_cast<double>(config_.num_hidden_layers),
        100 * rows * cache.read / cost.bytes, 100 * costs_.head / cost.bytes, 100 * head / seconds, head * 1e6,
        kPublishedLayers, full * 1e3, rows / full));
    return absl::OkStatus();
  }

  // The output head on its own, with the copy of its logits to the host.
  absl::StatusOr<double> HeadSeconds(int64_t rows) {
    ops::Ops& ops = model_->ops();
    const int64_t k = config_.hidden_size;
    const int64_t n = config_.vocab_size;
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer weight, RandomBuffer(ops, Contents::kBf16, 2 * n * k));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer x, RandomBuffer(ops, Contents::kBf16, 2 * rows * k));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer y, ops.memory().Allocate(4 * rows * n, "logits"));
    const ops::LinearWeight w = {.n = n, .k = k, .dtype = DType::kBF16, .data = weight.data()};
    const ops::LinearTarget target = {&w, ops::MakeTensor(y.data(), DType::kF32, rows, n), ops::InputQuant::kNone};
    return TimeCalls(ops, s_.quick, [&](int64_t) {
      ops.Linear(ops::MakeTensor(x.data(), DType::kBF16, rows, k), {&target, 1});
      ops.memory().Download(logits_.data(), y.data(), 4 * rows * n);
    });
  }

  absl::Status Prefill() {
    double seconds = 1e9;
    for (int run = 0; run < (s_.quick ? 1 : 3); ++run) {
      const double begin = Now();
      for (int64_t at = 0; at < s_.prompt; at += s_.chunk) {
        const int64_t rows = std::min(s_.chunk, s_.prompt - at);
        HADAL_RETURN_IF_ERROR(Step(0, 1, at, rows, at + rows == s_.prompt));
      }
      seconds = std::min(seconds, Now() - begin);
    }
    const auto rows = static_cast<double>(s_.prompt);
    const double steps = std::ceil(rows / static_cast<double>(s_.chunk));
    Cost cost;
    // A long chunk visits every expert.
    const auto experts = static_cast<double>(config_.n_routed_experts * config_.num_hidden_layers);
    cost.bytes = steps * (costs_.always + experts * costs_.expert) + costs_.head;
    cost.fp8_flop = rows * costs_.fp8_flop;
    cost.bf16_flop = rows * costs_.bf16_flop + 2 * costs_.head_elements;
    for (int64_t p = 0; p < s_.prompt; ++p) cost.bf16_flop += CacheOf(config_, p).flop;
    Row(fmt::format("prefill, {} tokens in chunks of {}", s_.prompt, s_.chunk), seconds, rows, cost, 50, 50);
    const double layers = static_cast<double>(kPublishedLayers) / static_cast<double>(config_.num_hidden_layers);
    notes_.push_back(fmt::format("prefill: {:.1f} GFLOP a token in {} layers; {} layers would run at {:.0f} tok/s",
                                 (cost.fp8_flop + cost.bf16_flop) / rows / 1e9, config_.num_hidden_layers,
                                 kPublishedLayers, rows / (seconds * layers)));
    return absl::OkStatus();
  }

  void PrintNotes() {
    fmt::print("\n");
    for (const std::string& note : notes_) fmt::print("- {}\n", note);
    fmt::print("- cache: {:.0f} bytes a token in {} layers", CacheOf(config_, 0).per_token, config_.num_hidden_layers);
    if (const auto published = checkpoint::PresetConfig(s_.preset); published.ok()) {
      fmt::print(", {:.0f} in the published {}", CacheOf(*published, 0).per_token, published->num_hidden_layers);
    }
    fmt::print("\n");
  }

  GpuSettings s_;
  GpuLimits limits_;
  ModelConfig config_;
  std::unique_ptr<checkpoint::DummyWeights> weights_;
  std::unique_ptr<models::Model> model_;
  WeightCosts costs_;
  int64_t most_ = 1;
  int64_t filled_ = 0;  // sequences whose contexts are computed
  std::vector<float> logits_;
  std::vector<int32_t> ids_, positions_, seqs_, logit_rows_;
  std::vector<std::string> notes_;
};

}  // namespace

absl::Status RunGpuModel(const GpuSettings& settings, const GpuLimits& limits) {
  return ModelBench(settings, limits).Run();
}

}  // namespace hadal::bench
