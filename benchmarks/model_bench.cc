// How fast does a whole model decode and prefill? A slice of a published shape: its widths, four layers and 32 experts,
// random weights made in memory. Of V4 the layers have the ratios 0, 4, 128, 4; of V3.2 the first is dense. Prints
// tokens/s, the bytes a decoded token has to read and the share of the memory bandwidth that this is, measured in the
// same run.
//
//   model_bench [--preset v4-flash] [--threads N] [--isa ...] [--prefill 512] [--decode 64] [--ratios 0,4,128,4]
//               [--layers 4] [--experts 32] [--chunk 512]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <numeric>
#include <vector>

#include "base/status.h"
#include "checkpoint/synth.h"
#include "machine.h"
#include "models/registry/registry.h"

namespace hadal::bench {
namespace {

struct Settings {
  std::string preset = "v4-flash";
  int64_t layers = 4;  // of V3.2
  int threads = 0;
  std::string isa = "auto";
  int64_t prefill = 512;
  int64_t decode = 64;
  int64_t chunk = 512;
  int64_t depth = 0;
  std::vector<int> ratios = {0, 4, 128, 4};
  int64_t experts = 32;
  int64_t expand_rows = 0;
  int repeats = 3;
};

// Weight bytes that one decoded token reads: everything but the embedding and the experts it does not visit.
double BytesPerToken(const checkpoint::DummyWeights& weights) {
  const checkpoint::ModelConfig& c = weights.config();
  double bytes = 0;
  for (const checkpoint::TensorEntry& entry : weights.tensors()) {
    if (entry.name == "embed.weight" || entry.name == "embed_tokens.weight" ||
        entry.name.find("tid2eid") != std::string::npos)
      continue;
    const bool routed = entry.name.find(".experts.") != std::string::npos;
    bytes += static_cast<double>(entry.bytes) *
             (routed ? static_cast<double>(c.num_experts_per_tok) / static_cast<double>(c.n_routed_experts) : 1.0);
  }
  return bytes;
}

absl::Status Run(const Settings& s) {
  HADAL_ASSIGN_OR_RETURN(checkpoint::ModelConfig config, checkpoint::PresetConfig(s.preset));
  checkpoint::ConfigOverrides overrides;
  overrides.num_mtp_layers = 0;
  overrides.n_routed_experts = s.experts;
  if (config.family == checkpoint::ModelFamily::kV4) {
    overrides.num_hidden_layers = static_cast<int64_t>(s.ratios.size());
    overrides.num_hash_layers = 1;
    overrides.compress_ratios = s.ratios;
  } else {
    overrides.num_hidden_layers = s.layers;
    overrides.first_k_dense_replace = 1;
  }
  HADAL_ASSIGN_OR_RETURN(config, checkpoint::ApplyOverrides(config, overrides));
  const int threads = s.threads == 0 ? AvailableCpus() : s.threads;
  HADAL_ASSIGN_OR_RETURN(auto weights, checkpoint::DummyWeights::Create(config, {}, false, threads));

  models::ModelOptions options;
  options.device = "cpu";
  options.threads = threads;
  options.isa = s.isa;
  options.limits.max_context = s.depth + s.prefill + s.decode + 1;
  options.limits.max_batch_tokens = s.chunk;
  options.limits.expand_rows = s.expand_rows;
  HADAL_ASSIGN_OR_RETURN(const std::string description, models::DescribeModel(config, options));
  double read_gb = 0;
  {
    ThreadPool pool(threads);
    const MachineLimits limits = MeasureMachine(pool);
    read_gb = limits.read_gb_per_s;
    fmt::print("{}\n{}\n", DescribeLimits(limits, threads), description);
  }
  HADAL_ASSIGN_OR_RETURN(auto model, models::CreateModel(*weights, options));

  std::vector<float> logits(config.vocab_size);
  const int64_t most = std::max(s.depth + s.prefill, s.decode);
  std::vector<int32_t> ids(most + s.decode);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7919 % config.vocab_size);
  const std::vector<int32_t> seqs(s.chunk, 0);
  std::vector<int32_t> positions(most + s.decode + 1);
  std::iota(positions.begin(), positions.end(), 0);
  const auto feed = [&](int64_t first, int64_t count, int64_t chunk, bool every_row) -> absl::Status {
    for (int64_t at = first; at < first + count; at += chunk) {
      const int64_t n = std::min(chunk, first + count - at);
      const int32_t last = static_cast<int32_t>(n - 1);
      models::StepInput step;
      step.ids = std::span(ids).subspan(at, n);
      step.positions = std::span(positions).subspan(at, n);
      step.seqs = std::span(seqs).first(n);
      if (every_row || at + n == first + count) step.logit_rows = std::span(&last, 1);
      step.logits = logits.data();
      HADAL_RETURN_IF_ERROR(model->Forward(step));
    }
    return absl::OkStatus();
  };
  if (s.depth > 0) HADAL_RETURN_IF_ERROR(feed(0, s.depth, s.chunk, false));
  HADAL_RETURN_IF_ERROR(feed(s.depth, std::min<int64_t>(s.prefill, 32), s.chunk, false));  // touches all memory once
  double prefill = 1e9;
  double decode = 1e9;
  for (int i = 0; i < s.repeats; ++i) {
    double begin = Now();
    HADAL_RETURN_IF_ERROR(feed(s.depth, s.prefill, s.chunk, false));
    prefill = std::min(prefill, Now() - begin);
    begin = Now();
    HADAL_RETURN_IF_ERROR(feed(s.depth + s.prefill, s.decode, 1, true));
    decode = std::min(decode, Now() - begin);
  }
  const double bytes = BytesPerToken(*weights);
  const double decode_rate = static_cast<double>(s.decode) / decode;
  fmt::print("prefill {} tokens: {:.1f} tok/s\n", s.prefill, static_cast<double>(s.prefill) / prefill);
  fmt::print("decode {} tokens: {:.2f} tok/s; {:.1f} MB of weights a token, {:.1f} GB/s, {:.0f} % of {:.1f} GB/s\n",
             s.decode, decode_rate, bytes / 1e6, bytes * decode_rate / 1e9, 100 * bytes * decode_rate / 1e9 / read_gb,
             read_gb);
  return absl::OkStatus();
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  CLI::App app("Decode and prefill of a slice of a published shape");
  hadal::bench::Settings s;
  app.add_option("--preset", s.preset, "published shape: v4-flash, v4-pro, v3.2, ...");
  app.add_option("--layers", s.layers, "layers of a V3.2 slice");
  app.add_option("--threads", s.threads, "worker threads, 0 for all");
  app.add_option("--isa", s.isa, "widest instruction set");
  app.add_option("--prefill", s.prefill, "prompt tokens");
  app.add_option("--decode", s.decode, "decoded tokens");
  app.add_option("--depth", s.depth, "tokens in the context before the measurement");
  app.add_option("--chunk", s.chunk, "rows of a prefill step");
  app.add_option("--ratios", s.ratios, "compression ratio of each layer")->delimiter(',');
  app.add_option("--experts", s.experts, "routed experts a layer");
  app.add_option("--expand-rows", s.expand_rows, "V3.2: rows of a chunk from which on it attends expanded, 0: never");
  app.add_option("--repeats", s.repeats, "takes the best of this many");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = hadal::bench::Run(s);
  if (!status.ok()) {
    fmt::print(stderr, "model_bench: {}\n", hadal::Message(status));
    return 1;
  }
  return 0;
}
