// config.json and generation_config.json: any bytes give a status. An accepted configuration can be written, read back
// to the same, and gives a tensor table and a memory plan without overflow. The name maps take any name.
#include <string_view>

#include "base/status.h"
#include "checkpoint/memory_plan.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"
#include "checkpoint/weight_map.h"

namespace {

using namespace hadal;
using namespace hadal::checkpoint;

void CheckConfig(const ModelConfig& config) {
  const absl::StatusOr<ModelConfig> again = ParseModelConfig(ModelConfigToJson(config));
  HADAL_CHECK(again.ok());
  HADAL_CHECK(*again == config);
  // Tables of large models take a while; their arithmetic is the same as that of small ones.
  if ((config.num_hidden_layers + config.num_mtp_layers) * config.n_routed_experts > 2000) return;
  const MemoryPlan plan = PlanMemory(config, nullptr, {.context_length = 4096, .draft = true});
  HADAL_CHECK(plan.weights() > 0 && plan.total() > plan.weights());
  const TensorTable table = TensorTable::For(config, true);
  for (const TensorSpec& spec : table.specs()) HADAL_CHECK(spec.elements() > 0);
}

void CheckMaps(std::string_view text) {
  static const WeightMap* const maps[] = {
      new WeightMap(*WeightMap::Create(CanonicalRules(ModelFamily::kV4))),
      new WeightMap(*WeightMap::Create(CanonicalRules(ModelFamily::kV32))),
      new WeightMap(*WeightMap::Create(V4VisionRules(V4TextRules({}), true))),
  };
  for (const WeightMap* map : maps) {
    const auto mapped = map->Apply(text.substr(0, 512));
    HADAL_CHECK(mapped.ok() || absl::IsFailedPrecondition(mapped.status()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (config.ok()) CheckConfig(*config);
  HADAL_CHECK(config.ok() || !config.status().message().empty());
  (void)ParseGenerationConfig(text);
  CheckMaps(text);
  return 0;
}
