#include "models/registry/registry.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/status.h"
#include "models/deepseek_v32/amd/traits.h"
#include "models/deepseek_v32/common/model.h"
#include "models/deepseek_v32/nvidia/traits.h"
#include "models/deepseek_v4/amd/vl_shim.h"
#include "models/deepseek_v4/common/model.h"
#include "models/deepseek_v4/common/vl/vl_model.h"
#include "models/deepseek_v4/nvidia/vl_shim.h"
#include "models/registry/platforms.h"

namespace hadal::models {
namespace {

using checkpoint::ModelConfig;

// One implementation of a model. Platform folders under a model add theirs here; an architecture takes the first entry
// whose platform fits, unless it is overridden by name.
struct ModelClass {
  std::string_view name;
  bool vision;                // for checkpoints with a vision tower
  std::string_view platform;  // empty: any
  checkpoint::ModelFamily family;
  absl::StatusOr<std::unique_ptr<Model>> (*create)(const checkpoint::WeightSource&, std::unique_ptr<ops::Ops>,
                                                   const ModelLimits&);
  ModelMemory (*plan)(const ModelConfig&, const ops::Ops&, const ModelLimits&);
};

template <typename M>
absl::StatusOr<std::unique_ptr<Model>> Make(const checkpoint::WeightSource& weights, std::unique_ptr<ops::Ops> ops,
                                            const ModelLimits& limits) {
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, M::Create(weights, std::move(ops), limits));
  return model;
}

template <const deepseek_v4::VlShim& kShim>
absl::StatusOr<std::unique_ptr<Model>> MakeVl(const checkpoint::WeightSource& weights, std::unique_ptr<ops::Ops> ops,
                                              const ModelLimits& limits) {
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                         deepseek_v4::VlModel::Create(weights, std::move(ops), limits, kShim));
  return model;
}

template <const deepseek_v32::Traits& kTraits>
absl::StatusOr<std::unique_ptr<Model>> MakeV32(const checkpoint::WeightSource& weights, std::unique_ptr<ops::Ops> ops,
                                               const ModelLimits& limits) {
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                         deepseek_v32::Model::Create(weights, std::move(ops), limits, kTraits));
  return model;
}
template <const deepseek_v32::Traits& kTraits>
ModelMemory PlanV32(const ModelConfig& config, const ops::Ops& ops, const ModelLimits& limits) {
  return deepseek_v32::Model::Plan(config, ops, limits, kTraits);
}

constexpr std::array kClasses = {
    ModelClass{"DeepseekV4ForCausalLM", false, "", checkpoint::ModelFamily::kV4, Make<deepseek_v4::Model>,
               deepseek_v4::Model::Plan},
    ModelClass{"DeepseekV4ForConditionalGeneration", true, "cuda", checkpoint::ModelFamily::kV4,
               MakeVl<deepseek_v4::nvidia::kVlShim>, deepseek_v4::VlModel::Plan},
    ModelClass{"DeepseekV4ForConditionalGeneration", true, "hip", checkpoint::ModelFamily::kV4,
               MakeVl<deepseek_v4::amd::kVlShim>, deepseek_v4::VlModel::Plan},
    ModelClass{"DeepseekV4ForConditionalGeneration", true, "", checkpoint::ModelFamily::kV4,
               MakeVl<deepseek_v4::kPlainShim>, deepseek_v4::VlModel::Plan},
    ModelClass{"DeepseekV32ForCausalLM", false, "cuda", checkpoint::ModelFamily::kV32,
               MakeV32<deepseek_v32::nvidia::kTraits>, PlanV32<deepseek_v32::nvidia::kTraits>},
    ModelClass{"DeepseekV32ForCausalLM", false, "hip", checkpoint::ModelFamily::kV32,
               MakeV32<deepseek_v32::amd::kTraits>, PlanV32<deepseek_v32::amd::kTraits>},
    ModelClass{"DeepseekV32ForCausalLM", false, "", checkpoint::ModelFamily::kV32, MakeV32<deepseek_v32::kPlainTraits>,
               PlanV32<deepseek_v32::kPlainTraits>},
    ModelClass{"DeepseekV3ForCausalLM", false, "", checkpoint::ModelFamily::kV3, MakeV32<deepseek_v32::kPlainTraits>,
               PlanV32<deepseek_v32::kPlainTraits>},
};

absl::StatusOr<const ModelClass*> FindClass(const ModelConfig& config, const ModelOptions& options,
                                            std::string_view platform) {
  std::string_view wanted;
  for (const std::string& text : options.class_overrides) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
      return InvalidArgument("model class override \"{}\"; expected Architecture=Class", text);
    }
    const std::string_view target = std::string_view(text).substr(equals + 1);
    const bool known = std::any_of(kClasses.begin(), kClasses.end(), [&](const auto& c) { return c.name == target; });
    if (!known) {
      return InvalidArgument("model class override names \"{}\"; registered classes: {}", target, RegisteredClasses());
    }
    if (std::string_view(text).substr(0, equals) == config.architecture) wanted = target;
  }
  for (const ModelClass& entry : kClasses) {
    if (!entry.platform.empty() && entry.platform != platform) continue;
    // The published vision configuration names the text architecture: vision_n_layers decides (spec vision-and-cache
    // 1.2).
    const bool fits = entry.family == config.family && entry.vision == config.has_vision();
    if (wanted.empty() ? fits : entry.name == wanted) {
      if (entry.family != config.family) {
        return InvalidArgument("class {} implements {}, the checkpoint is {}", entry.name,
                               checkpoint::FamilyName(entry.family), checkpoint::FamilyName(config.family));
      }
      return &entry;
    }
  }
  return Unimplemented("no implementation of {} ({}) for {}; registered classes: {}", config.architecture,
                       checkpoint::FamilyName(config.family), platform, RegisteredClasses());
}

}  // namespace

std::string RegisteredClasses() {
  std::string out;
  for (const ModelClass& entry : kClasses) {
    if (AvailablePlatforms().find(entry.platform) == std::string::npos) continue;
    if (!out.empty()) out += ", ";
    out += entry.name;
    out += entry.platform.empty() ? " (any platform)" : fmt::format(" ({})", entry.platform);
  }
  return out;
}

absl::StatusOr<std::string> DescribeModel(const ModelConfig& config, const ModelOptions& options) {
  HADAL_ASSIGN_OR_RETURN(const Platform platform, MakePlatform(options));
  HADAL_ASSIGN_OR_RETURN(const ModelClass* entry, FindClass(config, options, platform.name));
  return fmt::format("{} on {} ({})", entry->name, platform.name, platform.description);
}

bool LoadsDraft(const ModelConfig& config, const ModelLimits& limits) {
  return config.num_mtp_layers > 0 && (config.family == checkpoint::ModelFamily::kV4 || limits.max_draft_tokens > 0);
}

absl::StatusOr<ModelMemory> PlanMemory(const ModelConfig& config, const ModelOptions& options) {
  HADAL_ASSIGN_OR_RETURN(const Platform platform, MakePlatform(options));
  HADAL_ASSIGN_OR_RETURN(const ModelClass* entry, FindClass(config, options, platform.name));
  return entry->plan(config, *platform.ops, options.limits);
}

absl::StatusOr<PlatformMemory> MemoryOf(const ModelOptions& options) {
  HADAL_ASSIGN_OR_RETURN(const Platform platform, MakePlatform(options));
  const ops::Memory& memory = platform.ops->memory();
  return PlatformMemory{memory.is_host(), memory.Free()};
}

absl::StatusOr<std::unique_ptr<Model>> CreateModel(const checkpoint::WeightSource& weights,
                                                   const ModelOptions& options) {
  HADAL_ASSIGN_OR_RETURN(Platform platform, MakePlatform(options));
  HADAL_ASSIGN_OR_RETURN(const ModelClass* entry, FindClass(weights.config(), options, platform.name));
  return entry->create(weights, std::move(platform.ops), options.limits);
}

}  // namespace hadal::models
