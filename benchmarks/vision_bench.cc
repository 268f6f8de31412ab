// How long does an image take? Decoding, resizing and cutting a photograph-sized file, and the tower and aligner of V4
// Flash Vision (published widths, random weights) over it. Prints the products of the tower as a share of the peak.
//
//   vision_bench [--threads N] [--isa ...] [--width 1920] [--height 1080] [--layers 32]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <random>
#include <utility>
#include <vector>

#include "base/memory_region.h"
#include "base/status.h"
#include "checkpoint/synth.h"
#include "machine.h"
#include "models/deepseek_v4/common/step_buffers.h"
#include "models/deepseek_v4/common/vl/vision_tower.h"
#include "platforms/cpu/cpu_ops.h"
#include "runtime/images.h"
#include "vision/preprocess.h"

namespace hadal::bench {
namespace {

namespace v4 = models::deepseek_v4;

struct Settings {
  int threads = 0;
  std::string isa = "auto";
  int width = 1920;
  int height = 1080;
  int64_t layers = 32;
};

// BF16 values around zero, one after the other in a region.
class RandomWeights {
 public:
  explicit RandomWeights(MemoryRegion memory) : memory_(std::move(memory)) {}
  ops::LinearWeight Linear(int64_t n, int64_t k) {
    ops::LinearWeight weight;
    weight.n = n;
    weight.k = k;
    weight.dtype = DType::kBF16;
    weight.data = Take(n * k);
    return weight;
  }
  ops::Vector Vector(int64_t n) { return {Take(n), DType::kBF16, n}; }

 private:
  const void* Take(int64_t count) {
    auto* out = reinterpret_cast<uint16_t*>(memory_.data() + used_);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t v = random_();
      out[i] = static_cast<uint16_t>((v & 0x807F) | 0x3C00);  // magnitudes near 2^-7
    }
    used_ += (static_cast<size_t>(count) * 2 + 63) / 64 * 64;
    HADAL_CHECK(used_ <= memory_.size());
    return out;
  }
  MemoryRegion memory_;
  size_t used_ = 0;
  std::mt19937_64 random_{1};
};

v4::VisionWeights MakeWeights(const checkpoint::ModelConfig& c, RandomWeights& random) {
  const checkpoint::VisionConfig& v = c.vision;
  v4::VisionWeights out;
  out.patch_embed = random.Linear(v.dim, 3 * v.patch_size * v.patch_size);
  out.patch_embed_bias = random.Vector(v.dim);
  for (int64_t i = 0; i < v.n_layers; ++i) {
    v4::VisionBlockWeights& block = out.blocks.emplace_back();
    block.norm1 = random.Vector(v.dim);
    block.norm2 = random.Vector(v.dim);
    block.wqkv = random.Linear(3 * v.dim, v.dim);
    block.wqkv_bias = random.Vector(3 * v.dim);
    block.wo = random.Linear(v.dim, v.dim);
    block.wo_bias = random.Vector(v.dim);
    block.w1 = random.Linear(2 * v.inter_dim, v.dim);
    block.w2 = random.Linear(v.dim, v.inter_dim);
  }
  out.norm = random.Vector(v.dim);
  out.aligner_w1 = random.Linear(c.hidden_size, v.dim * v.downsample_ratio * v.downsample_ratio);
  out.aligner_w1_bias = random.Vector(c.hidden_size);
  out.aligner_w2 = random.Linear(c.hidden_size, c.hidden_size);
  out.aligner_w2_bias = random.Vector(c.hidden_size);
  return out;
}

// Multiplications and additions of the products over n patches and l squares of them.
double Flops(const checkpoint::ModelConfig& c, double n, double l) {
  const checkpoint::VisionConfig& v = c.vision;
  const auto d = static_cast<double>(v.dim), f = static_cast<double>(v.inter_dim);
  const auto hidden = static_cast<double>(c.hidden_size);
  const double layer = n * (4 * d * d + 3 * d * f) + 2 * n * n * d;
  const auto square = static_cast<double>(v.downsample_ratio * v.downsample_ratio);
  return 2 * (n * d * 3 * static_cast<double>(v.patch_size * v.patch_size) + static_cast<double>(v.n_layers) * layer +
              l * hidden * (d * square + hidden));
}

absl::Status Run(const Settings& s) {
  HADAL_ASSIGN_OR_RETURN(checkpoint::ModelConfig config, checkpoint::PresetConfig("v4-flash-vision"));
  config.vision.n_layers = s.layers;
  cpu::CpuOptions options;
  options.threads = s.threads;
  HADAL_ASSIGN_OR_RETURN(options.isa, cpu::ParseIsa(s.isa));
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<ops::Ops> ops, cpu::MakeCpuOps(options));
  const int threads = s.threads == 0 ? AvailableCpus() : s.threads;
  MachineLimits limits;
  {
    ThreadPool pool(threads);
    limits = MeasureMachine(pool);
  }
  fmt::print("{}\nkernels: {}\n", DescribeLimits(limits, threads), cpu::DescribeCpu(options));

  vision::RgbImage photo = vision::RgbImage::Filled(s.width, s.height, 0);
  std::mt19937 random(2);
  for (uint8_t& value : photo.pixels) value = static_cast<uint8_t>(random());
  double begin = Now();
  HADAL_ASSIGN_OR_RETURN(const vision::PreparedImage image,
                         vision::PrepareImage(photo, runtime::SizeRulesOf(config.vision)));
  fmt::print("image {} x {}: resized and cut in {:.0f} ms; {} x {} patches, {} tokens\n", s.width, s.height,
             1e3 * (Now() - begin), image.grid.vit_cols, image.grid.vit_rows, image.grid.block_length);

  models::ModelLimits step;
  step.max_batch_tokens = 512;
  step.images = true;
  HADAL_RETURN_IF_ERROR(ops->Reserve(v4::WorkspaceFor(config, step)));
  HADAL_ASSIGN_OR_RETURN(MemoryRegion memory, MemoryRegion::Map(size_t{2} << 30, "random weights"));
  RandomWeights weights(std::move(memory));
  HADAL_ASSIGN_OR_RETURN(const std::unique_ptr<v4::VisionTower> tower,
                         v4::VisionTower::Create(config, MakeWeights(config, weights), ops.get(), 512));
  const auto tokens = static_cast<int64_t>(image.order.size());
  std::vector<uint16_t> out(tokens * config.hidden_size);
  const ops::Tensor rows = ops::MakeTensor(out.data(), DType::kBF16, tokens, config.hidden_size);
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    begin = Now();
    HADAL_RETURN_IF_ERROR(
        tower->Encode({image.patches_u8, image.grid.vit_rows, image.grid.vit_cols, image.order}, rows));
    best = std::min(best, Now() - begin);
  }
  const double gflop = Flops(config, image.grid.vit_rows * image.grid.vit_cols, static_cast<double>(tokens)) / 1e9;
  const double peak = limits.bf16_gflop_per_s > 0 ? limits.bf16_gflop_per_s : limits.f32_gflop_per_s;
  fmt::print("tower, {} layers: {:.2f} s, {:.0f} GFLOP, {:.0f} GFLOP/s, {:.0f} % of {:.0f}\n", s.layers, best, gflop,
             gflop / best, 100 * gflop / best / peak, peak);
  return absl::OkStatus();
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  CLI::App app("An image through preprocessing and the vision tower");
  hadal::bench::Settings s;
  app.add_option("--threads", s.threads, "worker threads, 0 for all");
  app.add_option("--isa", s.isa, "widest instruction set");
  app.add_option("--width", s.width, "of the image, pixels");
  app.add_option("--height", s.height, "of the image, pixels");
  app.add_option("--layers", s.layers, "of the tower");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = hadal::bench::Run(s);
  if (!status.ok()) {
    fmt::print(stderr, "vision_bench: {}\n", hadal::Message(status));
    return 1;
  }
  return 0;
}
