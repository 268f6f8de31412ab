// Finds the implementation of a model for a platform, and makes it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "models/model.h"

namespace hadal::models {

struct ModelOptions {
  std::string device = "auto";         // auto, cpu, cuda, hip, xpu, reference; cuda:1 for the second card
  std::string numerics = "published";  // published, f32
  int threads = 0;                     // CPU: 0 takes all that the process may use
  std::string isa = "auto";            // CPU: auto, baseline, avx2, avx512, amx
  bool deterministic = false;          // GPUs: a row has the same bits in any batch (gpu_ops.h); others always do so
  bool fp8_products = false;           // GPUs: faster prompts, sums with fewer bits (gpu_ops.h)
  // "Architecture=Class": take a registered class other than the platform's own for an architecture.
  std::vector<std::string> class_overrides;
  ModelLimits limits;
};

// One more platform by its name, for programs that bring operators of their own (tests: GPU kernels on an emulator).
// Before any model is made.
using MakeOps = absl::StatusOr<std::unique_ptr<ops::Ops>> (*)(const ModelOptions& options, ops::Numerics numerics);
void AddPlatform(const std::string& name, MakeOps make);

// Names for --help and messages; classes of the platforms that are available.
std::string RegisteredClasses();
std::string AvailablePlatforms();

// What would run: "DeepseekV4ForCausalLM on cpu (amx + avx512, 2 threads)". Fails as CreateModel does, before any
// weight is read.
absl::StatusOr<std::string> DescribeModel(const checkpoint::ModelConfig& config, const ModelOptions& options);

// Whether a model with these limits binds the checkpoint's draft blocks. V3.2 without drafts does not (spec
// deepseek-v32 2, rule c); V4 always does.
bool LoadsDraft(const checkpoint::ModelConfig& config, const ModelLimits& limits);

// Bytes that the caches and one step's buffers will take, before anything is allocated.
absl::StatusOr<ModelMemory> PlanMemory(const checkpoint::ModelConfig& config, const ModelOptions& options);

// Where the platform keeps weights and caches.
struct PlatformMemory {
  bool is_host = true;
  std::optional<ops::FreeMemory> free;  // of a device with memory of its own
};
absl::StatusOr<PlatformMemory> MemoryOf(const ModelOptions& options);

// `weights` must outlive the model. Unimplemented for an architecture or platform that is not registered (the message
// lists those that are); InvalidArgument for unknown option values; ResourceExhausted when the caches cannot be
// reserved.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(const checkpoint::WeightSource& weights,
                                                   const ModelOptions& options);

}  // namespace hadal::models
