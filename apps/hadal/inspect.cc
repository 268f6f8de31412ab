// hadal inspect: what a model directory holds and what it will take to run it, without reading a weight.
#include <map>
#include <memory>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/memory_plan.h"
#include "checkpoint/tensor_table.h"
#include "cli.h"
#include "images.h"
#include "models/registry/registry.h"
#include "text/json_text.h"

namespace hadal::cli {
namespace {

using checkpoint::BytesText;
using checkpoint::Checkpoint;
using checkpoint::ModelConfig;
using text::Json;

struct InspectFlags {
  std::string model;
  std::vector<std::string> images;
  bool json = false;
};

struct Sum {
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t elements = 0;  // scales not counted
};

struct Census {
  std::map<std::string, Sum> by_dtype, by_kind;
  int64_t unused = 0;  // tensors that the model does not have
};

Census TakeCensus(const Checkpoint& checkpoint) {
  Census census;
  const bool draft = checkpoint.draft() != checkpoint::DraftKind::kNone;
  const checkpoint::TensorTable table = checkpoint::TensorTable::For(checkpoint.config(), draft);
  for (const checkpoint::TensorEntry& entry : checkpoint.tensors()) {
    const checkpoint::TensorSpec* spec = table.Find(entry.name);
    if (spec == nullptr) {
      ++census.unused;
      continue;
    }
    const int64_t elements = spec->is_scale() ? 0 : entry.elements();
    for (Sum* sum : {&census.by_dtype[std::string(DTypeName(entry.dtype))],
                     &census.by_kind[std::string(checkpoint::CategoryName(spec->category))]}) {
      sum->tensors += 1;
      sum->bytes += entry.bytes;
      sum->elements += elements;
    }
  }
  return census;
}

const char* DraftName(checkpoint::DraftKind kind) {
  switch (kind) {
    case checkpoint::DraftKind::kNone:
      return "none";
    case checkpoint::DraftKind::kMtp:
      return "MTP";
    case checkpoint::DraftKind::kDSpark:
      return "DSpark";
  }
  HADAL_CHECK(false);
}

const char* ExpertName(checkpoint::ExpertDType dtype) { return dtype == checkpoint::ExpertDType::kFp4 ? "FP4" : "FP8"; }

// Main layers by compression ratio.
std::map<int, int64_t> LayersByRatio(const ModelConfig& config) {
  std::map<int, int64_t> layers;
  for (int64_t i = 0; i < config.num_hidden_layers && i < std::ssize(config.compress_ratios); ++i) {
    ++layers[config.compress_ratios[i]];
  }
  return layers;
}

// Memory for one sequence of one length.
struct ContextPlan {
  int64_t context = 0;
  checkpoint::MemoryPlan fp8, bf16;
  absl::StatusOr<models::ModelMemory> here;  // this build's own numbers on this machine's platform
};

std::vector<ContextPlan> PlanContexts(const Checkpoint& checkpoint) {
  std::vector<ContextPlan> plans;
  const ModelConfig& config = checkpoint.config();
  for (const int64_t context : {int64_t{8} << 10, int64_t{128} << 10, int64_t{1} << 20}) {
    if (context > config.max_position_embeddings) continue;
    checkpoint::MemoryRequest request;
    request.context_length = context;
    models::ModelOptions options;
    options.limits.max_context = context;
    request.draft = models::LoadsDraft(config, options.limits);
    ContextPlan plan{.context = context, .fp8 = {}, .bf16 = {}, .here = models::ModelMemory{}};
    plan.fp8 = checkpoint::PlanMemory(config, &checkpoint, request);
    request.kv_format = checkpoint::KvFormat::kBf16;
    plan.bf16 = checkpoint::PlanMemory(config, &checkpoint, request);
    plan.here = models::PlanMemory(config, options);
    plans.push_back(std::move(plan));
  }
  return plans;
}

std::string Heading(const Checkpoint& checkpoint) {
  const ModelConfig& c = checkpoint.config();
  std::string out =
      fmt::format("{}{} ({})\n", checkpoint::FamilyName(c.family), c.has_vision() ? " Vision" : "", c.architecture);
  out += fmt::format("  layers      {}", c.num_hidden_layers);
  if (c.family == checkpoint::ModelFamily::kV4) {
    for (const auto& [ratio, count] : LayersByRatio(c)) out += fmt::format(", {} of ratio {}", count, ratio);
    out += fmt::format(", {} routed by hash", c.num_hash_layers);
  } else {
    out += fmt::format(", {} dense", c.first_k_dense_replace);
  }
  out += fmt::format("\n  draft       {}\n", DraftName(checkpoint.draft()));
  out += fmt::format("  experts     {} ({}), {} a token, {} shared\n", c.n_routed_experts, ExpertName(c.expert_dtype),
                     c.num_experts_per_tok, c.n_shared_experts);
  out += fmt::format("  hidden      {}, {} heads\n", c.hidden_size, c.num_attention_heads);
  out += fmt::format("  vocabulary  {}\n  context     {}\n", c.vocab_size, c.max_position_embeddings);
  if (c.has_vision()) out += fmt::format("  vision      {} layers of {}\n", c.vision.n_layers, c.vision.dim);
  out += fmt::format("  files       {} shards, {} of tensors\n", checkpoint.files().size(),
                     BytesText(checkpoint.tensor_bytes()));
  return out;
}

std::string CensusTable(const char* title, const std::map<std::string, Sum>& sums) {
  std::string out = fmt::format("\n{:<34} {:>9} {:>18} {:>12}\n", title, "tensors", "values", "size");
  for (const auto& [name, sum] : sums) {
    out += fmt::format("  {:<32} {:>9} {:>18} {:>12}\n", name, sum.tensors, sum.elements, BytesText(sum.bytes));
  }
  return out;
}

std::string MemoryTable(const std::vector<ContextPlan>& plans) {
  std::string out = fmt::format("\n{:<34}", "memory, one sequence of");
  for (const ContextPlan& plan : plans) {
    out += fmt::format(" {:>12}", plan.context >= 1 << 20 ? fmt::format("{}M", plan.context >> 20)
                                                          : fmt::format("{}k", plan.context >> 10));
  }
  out += "\n";
  const auto row = [&](const char* name, auto value) {
    out += fmt::format("  {:<32}", name);
    for (const ContextPlan& plan : plans) out += fmt::format(" {:>12}", value(plan));
    out += "\n";
  };
  row("weights", [](const ContextPlan& p) { return BytesText(p.fp8.weights()); });
  row("GPU: cache fp8 (fp8_ds_mla)", [](const ContextPlan& p) { return BytesText(p.fp8.cache_bytes); });
  row("GPU: cache bf16", [](const ContextPlan& p) { return BytesText(p.bf16.cache_bytes); });
  row("GPU: scratch", [](const ContextPlan& p) { return BytesText(p.fp8.scratch_bytes); });
  row("GPU: total with fp8", [](const ContextPlan& p) { return BytesText(p.fp8.total()); });
  row("GPU: total with bf16", [](const ContextPlan& p) { return BytesText(p.bf16.total()); });
  if (plans.empty() || !plans.front().here.ok()) return out;
  row("CPU: cache", [](const ContextPlan& p) { return BytesText(static_cast<int64_t>(p.here->cache)); });
  row("CPU: scratch", [](const ContextPlan& p) { return BytesText(static_cast<int64_t>(p.here->scratch)); });
  row("CPU: total", [](const ContextPlan& p) {
    return BytesText(p.fp8.weights() + static_cast<int64_t>(p.here->cache + p.here->scratch));
  });
  return out;
}

Json CensusJson(const std::map<std::string, Sum>& sums) {
  Json out = Json::object();
  for (const auto& [name, sum] : sums) {
    out[name] = {{"tensors", sum.tensors}, {"values", sum.elements}, {"bytes", sum.bytes}};
  }
  return out;
}

Json MemoryJson(const ContextPlan& plan) {
  Json out = {{"context", plan.context},
              {"weights", plan.fp8.weights()},
              {"gpu",
               {{"cache_fp8", plan.fp8.cache_bytes},
                {"cache_bf16", plan.bf16.cache_bytes},
                {"scratch", plan.fp8.scratch_bytes},
                {"total_fp8", plan.fp8.total()},
                {"total_bf16", plan.bf16.total()}}}};
  if (plan.here.ok()) {
    const auto cache = static_cast<int64_t>(plan.here->cache), scratch = static_cast<int64_t>(plan.here->scratch);
    out["cpu"] = {{"cache", cache}, {"scratch", scratch}, {"total", plan.fp8.weights() + cache + scratch}};
  }
  return out;
}

std::string ReportJson(const Checkpoint& checkpoint, const Census& census, const std::vector<ContextPlan>& plans,
                       const absl::StatusOr<std::string>& runs, const Json& images) {
  const ModelConfig& c = checkpoint.config();
  Json out = {{"family", checkpoint::FamilyName(c.family)},
              {"architecture", c.architecture},
              {"vision", c.has_vision()},
              {"draft", DraftName(checkpoint.draft())},
              {"layers", c.num_hidden_layers},
              {"hidden_size", c.hidden_size},
              {"attention_heads", c.num_attention_heads},
              {"vocab_size", c.vocab_size},
              {"max_position_embeddings", c.max_position_embeddings},
              {"experts", c.n_routed_experts},
              {"experts_per_token", c.num_experts_per_tok},
              {"expert_dtype", ExpertName(c.expert_dtype)}};
  if (c.family == checkpoint::ModelFamily::kV4) {
    out["hash_layers"] = c.num_hash_layers;
    for (const auto& [ratio, count] : LayersByRatio(c)) out["layers_by_ratio"][std::to_string(ratio)] = count;
  }
  out["shards"] = checkpoint.files().size();
  out["tensor_bytes"] = checkpoint.tensor_bytes();
  out["by_dtype"] = CensusJson(census.by_dtype);
  out["by_kind"] = CensusJson(census.by_kind);
  out["unused_tensors"] = census.unused;
  out["memory"] = Json::array();
  for (const ContextPlan& plan : plans) out["memory"].push_back(MemoryJson(plan));
  out["runs_here"] = runs.ok() ? Json(*runs) : Json(nullptr);
  if (!images.empty()) out["images"] = images;
  out["warnings"] = checkpoint.warnings();
  return text::DumpJson(out) + "\n";
}

std::string ReportText(const Checkpoint& checkpoint, const Census& census, const std::vector<ContextPlan>& plans,
                       const absl::StatusOr<std::string>& runs) {
  std::string out = Heading(checkpoint);
  out += fmt::format("  runs here   {}\n", runs.ok() ? *runs : fmt::format("no: {}", Message(runs.status())));
  out += CensusTable("dtype", census.by_dtype);
  out += CensusTable("kind", census.by_kind);
  out += MemoryTable(plans);
  if (!checkpoint.warnings().empty()) out += "\nwarnings\n";
  for (const std::string& warning : checkpoint.warnings()) out += "  " + warning + "\n";
  return out;
}

absl::StatusOr<vision::PreparedImage> Prepare(const ModelConfig& config, const std::string& path) {
  if (!config.has_vision()) {
    return InvalidArgument("--image {}: this is a text model: it takes no images (vision_n_layers is 0)", path);
  }
  HADAL_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, ReadImageFile(path));
  absl::StatusOr<vision::PreparedImage> image =
      vision::PrepareImage(bytes, vision::DecodeOptions{}, runtime::SizeRulesOf(config.vision));
  if (!image.ok()) return absl::Status(image.status().code(), fmt::format("{}: {}", path, Message(image.status())));
  return image;
}

int Inspect(const InspectFlags& flags) {
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(flags.model);
  if (!checkpoint.ok()) return FailLoading(checkpoint.status());
  const Census census = TakeCensus(**checkpoint);
  const std::vector<ContextPlan> plans = PlanContexts(**checkpoint);
  const absl::StatusOr<std::string> runs = models::DescribeModel((*checkpoint)->config(), {});
  Json images = Json::array();
  std::string image_text;
  for (const std::string& path : flags.images) {
    const absl::StatusOr<vision::PreparedImage> image = Prepare((*checkpoint)->config(), path);
    if (!image.ok()) return FailRequest(image.status());
    images.push_back(ImageReportJson(path, *image));
    image_text += ImageReport(path, *image);
  }
  WriteOut(flags.json ? ReportJson(**checkpoint, census, plans, runs, images)
                      : ReportText(**checkpoint, census, plans, runs) + image_text);
  return OutputResult();
}

}  // namespace

void AddInspect(CLI::App* app, int* result) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* inspect = app->add_subcommand("inspect", "Say what a checkpoint holds and what memory it needs");
  inspect->add_option("MODEL", flags->model, "Model directory")->required();
  AddList(inspect, "--image", &flags->images, "Image file: say how the model would see it");
  inspect->add_flag("--json", flags->json, "Print one JSON object");
  inspect->callback([=] { *result = Inspect(*flags); });
}

}  // namespace hadal::cli
