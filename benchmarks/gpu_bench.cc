// How close do the operators of a platform come to its limits? Times kernels at V4-Flash's shapes, and with --model the
// decode and prefill of V4-Flash cut to a few layers, through the interfaces that models use; so the same program
// measures every backend. Limits: the copy bandwidth is measured in the same run, peaks of the matrix units are given.
//
//   gpu_bench [--device auto|cuda|hip|cpu] [--kernels] [--model] [--layers 4] [--quick] [--deterministic]
//             [--fp8-products]
//             [--only linear] [--fp8-peak TFLOPs] [--bf16-peak TFLOPs]
#include "gpu_bench.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <utility>

#include "models/registry/platforms.h"

namespace hadal::bench {
namespace {

constexpr size_t kTileBytes = size_t{16} << 20;

struct Peaks {
  const char* name;
  double fp8, bf16;
};
// Dense, without sparsity.
constexpr Peaks kDatasheets[] = {{"H200", 1979, 989}, {"H100", 1979, 989}, {"MI300", 2615, 1307}};

uint64_t NextRandom(uint64_t* state) {  // splitmix64
  uint64_t z = *state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::vector<std::byte> MakeTile(Contents contents, size_t bytes) {
  std::vector<std::byte> tile((bytes + 7) / 8 * 8);
  uint64_t state = static_cast<uint64_t>(contents) + 1;
  for (size_t i = 0; i < tile.size(); i += 8) {
    uint64_t v = NextRandom(&state);
    switch (contents) {
      case Contents::kBytes:
        break;
      case Contents::kScale:
        v = 0x7878787878787878;
        break;
      case Contents::kFp8:
        for (int b = 0; b < 64; b += 8) {
          if ((v >> b & 0x7F) == 0x7F) v ^= uint64_t{1} << b;
        }
        break;
      case Contents::kBf16:  // sign and mantissa as they come, magnitudes in [1/8, 1/2)
        v = (v & 0x807F807F807F807F) | 0x3E003E003E003E00 | (v & 0x0100010001000100) >> 1;
        break;
      case Contents::kF32:
        v = (v & 0x807FFFFF807FFFFF) | 0x3E0000003E000000;
        break;
    }
    std::memcpy(&tile[i], &v, 8);
  }
  return tile;
}

// Bytes read and written by copies between two buffers that no cache holds.
absl::StatusOr<double> MeasureCopy(ops::Ops& ops, bool quick) {
  const size_t bytes = quick ? size_t{64} << 20 : size_t{2} << 30;
  HADAL_ASSIGN_OR_RETURN(const ops::Buffer from, RandomBuffer(ops, Contents::kBytes, bytes));
  HADAL_ASSIGN_OR_RETURN(const ops::Buffer to, ops.memory().Allocate(bytes, "a copy"));
  HADAL_ASSIGN_OR_RETURN(const double seconds,
                         TimeCalls(ops, quick, [&](int64_t) { ops.memory().Copy(to.data(), from.data(), bytes); }));
  return 2.0 * static_cast<double>(bytes) / seconds / 1e9;
}

// Seconds of a kernel that has nothing to do: of one row's norm.
absl::StatusOr<double> MeasureLaunch(ops::Ops& ops, bool quick) {
  constexpr int64_t kCols = 64;
  HADAL_RETURN_IF_ERROR(ops.Reserve({.max_tokens = 1,
                                     .hidden = kCols,
                                     .hc_mult = 1,
                                     .max_linear_k = kCols,
                                     .max_linear_n = kCols,
                                     .heads = 1,
                                     .head_dim = kCols}));
  HADAL_ASSIGN_OR_RETURN(const ops::Buffer x, RandomBuffer(ops, Contents::kBf16, 2 * kCols));
  HADAL_ASSIGN_OR_RETURN(const ops::Buffer w, RandomBuffer(ops, Contents::kBf16, 2 * kCols));
  const ops::Tensor row = ops::MakeTensor(x.data(), DType::kBF16, 1, kCols);
  return TimeCalls(ops, quick, [&](int64_t) { ops.RmsNorm(row, {w.data(), DType::kBF16, kCols}, 1e-6f, row); });
}

absl::Status Run(const GpuSettings& settings, bool kernels, bool model, double fp8_peak, double bf16_peak) {
  models::ModelOptions options;
  options.device = settings.device;
  options.deterministic = settings.deterministic;
  options.fp8_products = settings.fp8_products;
  HADAL_ASSIGN_OR_RETURN(models::Platform platform, models::MakePlatform(options));
  ops::Ops& ops = *platform.ops;
  fmt::print("platform: {} ({}){}{}\n", platform.name, platform.description,
             settings.deterministic ? ", deterministic" : "",
             settings.quick ? ", quick: small shapes, no figures" : "");

  const auto pick = [&](double given, double Peaks::*datasheet, const char* what) {
    if (given > 0) {
      fmt::print("{} peak: {:.4g} TFLOP/s (given)\n", what, given);
      return given;
    }
    for (const Peaks& peaks : kDatasheets) {
      if (platform.description.find(peaks.name) == std::string::npos) continue;
      fmt::print("{} peak: {:.4g} TFLOP/s (datasheet of {})\n", what, peaks.*datasheet, peaks.name);
      return peaks.*datasheet;
    }
    fmt::print("{} peak: not known; shares are of the copy bandwidth alone\n", what);
    return 0.0;
  };
  GpuLimits limits;
  limits.fp8_tflop_per_s = pick(fp8_peak, &Peaks::fp8, "fp8");
  limits.bf16_tflop_per_s = pick(bf16_peak, &Peaks::bf16, "bf16");
  HADAL_ASSIGN_OR_RETURN(limits.copy_gb_per_s, MeasureCopy(ops, settings.quick));
  HADAL_ASSIGN_OR_RETURN(const double launch, MeasureLaunch(ops, settings.quick));
  fmt::print("copy: {:.0f} GB/s read and written (measured); launch: {:.1f} us (one row of 64, normalised)\n\n",
             limits.copy_gb_per_s, launch * 1e6);
  std::fflush(stdout);
  if (kernels) HADAL_RETURN_IF_ERROR(RunGpuKernels(settings, limits, launch, ops));
  platform.ops.reset();
  return model ? RunGpuModel(settings, limits) : absl::OkStatus();
}

}  // namespace

absl::Status FillRandom(ops::Ops& ops, Contents contents, std::byte* to, size_t bytes) {
  const std::vector<std::byte> tile = MakeTile(contents, std::min(bytes, kTileBytes));
  for (size_t at = 0; at < bytes; at += kTileBytes) {
    ops.memory().Upload(to + at, tile.data(), std::min(kTileBytes, bytes - at));
  }
  return ops.Synchronize();
}

absl::StatusOr<ops::Buffer> RandomBuffer(ops::Ops& ops, Contents contents, size_t bytes) {
  HADAL_ASSIGN_OR_RETURN(ops::Buffer buffer, ops.memory().Allocate(bytes, "random values"));
  HADAL_RETURN_IF_ERROR(FillRandom(ops, contents, buffer.data(), bytes));
  return buffer;
}

absl::StatusOr<ops::Buffer> PutBytes(ops::Ops& ops, const void* data, size_t bytes) {
  HADAL_ASSIGN_OR_RETURN(ops::Buffer buffer, ops.memory().Allocate(std::max<size_t>(bytes, 1), "a benchmark's input"));
  ops.memory().Upload(buffer.data(), data, bytes);
  HADAL_RETURN_IF_ERROR(ops.Synchronize());
  return buffer;
}

Roofline RooflineOf(const GpuLimits& limits, const Cost& cost) {
  Roofline r;
  r.seconds = cost.bytes / (limits.copy_gb_per_s * 1e9);
  r.limit = fmt::format("memory {:.0f} GB/s", limits.copy_gb_per_s);
  if (limits.fp8_tflop_per_s <= 0 || limits.bf16_tflop_per_s <= 0) return r;
  const double compute =
      cost.fp8_flop / (limits.fp8_tflop_per_s * 1e12) + cost.bf16_flop / (limits.bf16_tflop_per_s * 1e12);
  if (compute <= r.seconds) return r;
  r.seconds = compute;
  r.memory_bound = false;
  r.limit = cost.fp8_flop <= 0 ? fmt::format("bf16 {:.4g} TFLOP/s", limits.bf16_tflop_per_s)
            : cost.bf16_flop <= 0
                ? fmt::format("fp8 {:.4g} TFLOP/s", limits.fp8_tflop_per_s)
                : fmt::format("fp8 and bf16, {:.4g} TFLOP/s", (cost.fp8_flop + cost.bf16_flop) / compute / 1e12);
  return r;
}

void GpuReport::Header() const {
  fmt::print("| kernel | shape | time us | GB/s | TFLOP/s | limit | share % | bar % | met |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|\n");
}

void GpuReport::Add(std::string_view kernel, std::string_view shape, double seconds, const Cost& cost, const Bar& bar) {
  const Roofline roofline = RooflineOf(limits_, cost);
  const double share = 100 * roofline.seconds / seconds;
  const double asked = roofline.memory_bound ? bar.memory : bar.compute;
  std::string met = "-";
  if (asked > 0 && share >= asked) {
    met = "yes";
    ++met_;
  } else if (asked > 0 && roofline.seconds < launch_seconds_) {
    met = "no: shorter than a launch";
    ++launch_bound_;
  } else if (asked > 0) {
    met = "**no**";
    ++missed_;
  }
  const double flop = cost.fp8_flop + cost.bf16_flop;
  fmt::print("| {} | {} | {:.1f} | {:.0f} | {} | {} | {:.0f} | {} | {} |\n", kernel, shape, seconds * 1e6,
             cost.bytes / seconds / 1e9, flop > 0 ? fmt::format("{:.1f}", flop / seconds / 1e12) : "-", roofline.limit,
             share, asked > 0 ? fmt::format("{:.0f}", asked) : "-", met);
  std::fflush(stdout);
}

void GpuReport::Summary() const {
  fmt::print("\nbars: {} met, {} missed, {} of shapes whose limit is shorter than a launch\n\n", met_, missed_,
             launch_bound_);
}

}  // namespace hadal::bench

int main(int argc, char** argv) {
  CLI::App app("Operators and models of a platform against its limits");
  hadal::bench::GpuSettings s;
  bool kernels = false;
  bool model = false;
  double fp8_peak = 0;
  double bf16_peak = 0;
  app.add_option("--device", s.device, "auto, cuda, hip, cpu; cuda:1 for the second card");
  app.add_flag("--kernels", kernels, "the table of kernels (default without --model)");
  app.add_flag("--model", model, "decode and prefill of a model of --layers layers");
  app.add_option("--only", s.only, "kernels whose name contains this");
  app.add_option("--layers", s.layers, "layers of the model");
  app.add_option("--preset", s.preset, "published V4 shape of the model");
  app.add_option("--context", s.context, "tokens in front of the decoded ones");
  app.add_option("--prompt", s.prompt, "tokens of the prefilled prompt");
  app.add_option("--chunk", s.chunk, "rows of a prefill step");
  app.add_option("--steps", s.decode_steps, "decode steps that are timed")->check(CLI::PositiveNumber);
  app.add_option("--batches", s.batches, "decoding sequences")->delimiter(',');
  app.add_flag("--quick", s.quick, "small shapes and few calls: only whether all of it runs");
  app.add_flag("--deterministic", s.deterministic, "a row has the same bits in any batch");
  app.add_flag("--fp8-products", s.fp8_products, "linears of many rows multiply FP8 by FP8 (Hopper)");
  app.add_option("--fp8-peak", fp8_peak, "TFLOP/s of the matrix units, e.g. measured with cuBLASLt");
  app.add_option("--bf16-peak", bf16_peak, "the same for bf16");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = hadal::bench::Run(s, kernels || !model, model, fp8_peak, bf16_peak);
  if (!status.ok()) {
    fmt::print(stderr, "gpu_bench: {}\n", hadal::Message(status));
    return 1;
  }
  return 0;
}
