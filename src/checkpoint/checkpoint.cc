// Opening a model directory: configuration, shards, canonical names, closed-set check.
#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "base/memory_region.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/stacked_experts.h"
#include "checkpoint/tensor_table.h"
#include "checkpoint/weight_map.h"

namespace hadal::checkpoint {

struct Checkpoint::State {
  std::string dir;
  ModelConfig config;
  GenerationConfig generation;
  ShardSet shards;
  std::vector<std::string> paths;
  std::vector<TensorEntry> tensors;
  std::unordered_map<std::string_view, size_t> index;  // keys live in tensors
  std::vector<std::unique_ptr<std::byte[]>> copies;    // of misaligned tensors
  MemoryRegion memory;                                 // of all, after CopyToMemory
  int64_t realigned_bytes = 0;
  int64_t tensor_bytes = 0;
  DraftKind draft = DraftKind::kNone;
  std::vector<std::string> warnings;

  void Warn(std::string text) { warnings.push_back(std::move(text)); }

  absl::Status ReadConfigs();
  absl::Status CollectTensors();
  void ResolveExpertDType();
  void ResolveKvBDType();
  void ResolveDraft();
  absl::Status CheckAgainstTable();
  void Realign();
};

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigFile = 1 << 20;

absl::Status CheckDuplicates(const std::vector<TensorEntry>& sorted) {
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].name != sorted[i - 1].name) continue;
    return InvalidArgument("two tensors mean \"{}\": one in {}, one in {}", sorted[i].name, sorted[i - 1].file,
                           sorted[i].file);
  }
  return absl::OkStatus();
}

bool AnyStartsWith(const std::vector<TensorEntry>& sorted, std::string_view prefix) {
  const auto it = std::lower_bound(sorted.begin(), sorted.end(), prefix,
                                   [](const TensorEntry& entry, std::string_view key) { return entry.name < key; });
  return it != sorted.end() && it->name.compare(0, prefix.size(), prefix) == 0;
}

}  // namespace

absl::Status Checkpoint::State::ReadConfigs() {
  const std::string config_path = (fs::path(dir) / "config.json").string();
  HADAL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(config_path, kMaxConfigFile));
  HADAL_ASSIGN_OR_RETURN(config, ParseModelConfig(text, config_path));
  const std::string generation_path = (fs::path(dir) / "generation_config.json").string();
  const absl::StatusOr<std::string> generation_text = ReadTextFile(generation_path, kMaxConfigFile);
  if (generation_text.ok()) {
    HADAL_ASSIGN_OR_RETURN(generation, ParseGenerationConfig(*generation_text, generation_path));
  } else if (!absl::IsNotFound(generation_text.status())) {
    return generation_text.status();
  }
  return absl::OkStatus();
}

// All tensors under canonical names, sorted; stacked experts cut into single ones.
absl::Status Checkpoint::State::CollectTensors() {
  HADAL_ASSIGN_OR_RETURN(const WeightMap canonical, WeightMap::Create(CanonicalRules(config.family)));
  // Names that are canonical already need no rules; this is every name of a published checkpoint but V3.x's "model.".
  const TensorTable table = TensorTable::For(config, true);
  for (const auto& file : shards.files) {
    for (const TensorEntry& entry : file->entries()) {
      TensorEntry tensor = entry;
      if (table.Find(entry.name) == nullptr) {
        HADAL_ASSIGN_OR_RETURN(const std::optional<MappedName> mapped, canonical.Apply(entry.name));
        if (!mapped.has_value()) continue;
        tensor.name = mapped->name;
      }
      HADAL_ASSIGN_OR_RETURN(const bool stacked, SplitStackedExperts(config.family, tensor, &tensors));
      if (!stacked) tensors.push_back(std::move(tensor));
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  HADAL_RETURN_IF_ERROR(CheckDuplicates(tensors));
  index.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) index.emplace(tensors[i].name, i);
  return absl::OkStatus();
}

// Spec text 1: told by the tensors, never by quantization_config.
void Checkpoint::State::ResolveExpertDType() {
  if (config.family != ModelFamily::kV4) {
    config.expert_dtype = ExpertDType::kFp8;
    return;
  }
  const auto it = index.find("layers.0.ffn.experts.0.w1.weight");
  if (it == index.end()) {
    if (config.expert_dtype == ExpertDType::kUnknown) config.expert_dtype = ExpertDType::kFp4;
    return;  // the check will name the missing tensor
  }
  const ExpertDType found = tensors[it->second].dtype == DType::kF8E4M3 ? ExpertDType::kFp8 : ExpertDType::kFp4;
  if (config.expert_dtype != ExpertDType::kUnknown && config.expert_dtype != found) {
    Warn(fmt::format("config.json: expert_dtype says {}, but the experts are stored as {}; the tensors are trusted",
                     config.expert_dtype == ExpertDType::kFp4 ? "fp4" : "fp8", DTypeName(tensors[it->second].dtype)));
  }
  config.expert_dtype = found;
}

// Layers of other storage than the first are mismatches of the table.
void Checkpoint::State::ResolveKvBDType() {
  if (config.family == ModelFamily::kV4) return;
  const auto it = index.find("layers.0.self_attn.kv_b_proj.weight");
  if (it == index.end()) return;  // the check will name it
  const DType found = tensors[it->second].dtype;
  const bool bytes = found == DType::kI8 || found == DType::kU8;
  if (found == DType::kBF16) config.kv_b_dtype = DType::kBF16;
  if (found == DType::kF4E2M1 || bytes) config.kv_b_dtype = DType::kF4E2M1;
}

// Field report B97: mtp.* is a DSpark drafter, an MTP block, or absent whatever the configuration says.
void Checkpoint::State::ResolveDraft() {
  const bool v4 = config.family == ModelFamily::kV4;
  const std::string first = v4 ? "mtp.0." : fmt::format("layers.{}.", config.num_hidden_layers);
  const bool has_tensors = AnyStartsWith(tensors, first);
  const bool looks_dspark =
      v4 && (AnyStartsWith(tensors, "mtp.0.main_proj.") || AnyStartsWith(tensors, "mtp.0.main_norm."));
  if (looks_dspark && !config.dspark.has_value()) {
    Warn("mtp.* holds a DSpark drafter, but config.json has no dspark_* field; drafting is off");
    config.num_mtp_layers = 0;
    config.compress_ratios.resize(config.num_hidden_layers);
    draft = DraftKind::kDSpark;
    return;
  }
  if (config.dspark.has_value() && has_tensors && !looks_dspark) {
    Warn("config.json has dspark_* fields, but mtp.* holds no DSpark drafter; drafting is off");
    return;
  }
  if (config.dspark.has_value()) {
    draft = has_tensors ? DraftKind::kDSpark : DraftKind::kNone;
    if (!has_tensors) Warn("config.json has dspark_* fields, but there is no tensor under mtp.*; drafting is off");
    return;
  }
  if (config.num_mtp_layers == 0) return;
  if (!has_tensors) {
    Warn(fmt::format(
        "MTP speculative decoding layer 0 weights missing from checkpoint (num_nextn_predict_layers = {}, no "
        "tensor under {}*); drafting is off",
        config.num_mtp_layers, first));
    config.num_mtp_layers = 0;
    if (v4) config.compress_ratios.resize(config.num_hidden_layers);
    return;
  }
  draft = DraftKind::kMtp;
}

absl::Status Checkpoint::State::CheckAgainstTable() {
  // A DSpark drafter is checked too, but only reported: the model runs without it.
  const bool full_dspark = draft == DraftKind::kDSpark && config.dspark.has_value() && config.dspark->complete();
  const TensorTable table = TensorTable::For(config, draft == DraftKind::kMtp || full_dspark);
  for (TensorEntry& entry : tensors) {
    const TensorSpec* spec = table.Find(entry.name);
    if (spec == nullptr) continue;
    NormaliseEntry(*spec, &entry);
    tensor_bytes += entry.bytes;
  }
  TableCheck check = CheckTensors(config, table, tensors);
  if (draft == DraftKind::kDSpark) {
    std::vector<std::string> faults;
    const auto is_draft = [](const std::string& text) {
      return text.starts_with("mtp.") || text.starts_with("tensor \"mtp.");
    };
    for (std::vector<std::string>* list : {&check.missing, &check.mismatched}) {
      const auto first = std::stable_partition(list->begin(), list->end(), [&](const auto& t) { return !is_draft(t); });
      faults.insert(faults.end(), first, list->end());
      list->erase(first, list->end());
    }
    if (!full_dspark) {
      std::erase_if(check.unexpected, is_draft);
      std::erase_if(check.layers_beyond, [&](const auto& item) { return is_draft(item.first + "."); });
    }
    if (!faults.empty()) Warn(fmt::format("DSpark drafter is incomplete: {}", NameList(faults)));
  }
  // Draft blocks (V3.2: the layer with eh_proj) may be left unused. A main layer may not: the answers of a model cut
  // short look right and are not.
  std::vector<std::string> extra_layers;
  for (const auto& [layer, count] : check.layers_beyond) {
    if (layer.starts_with("layers.") && !AnyStartsWith(tensors, layer + ".eh_proj.")) {
      extra_layers.push_back(layer);
    } else {
      Warn(fmt::format("{} tensors of {} belong to a draft block that config.json does not have, and are not used",
                       count, layer));
    }
  }
  if (!extra_layers.empty()) {
    return InvalidArgument("{}: expected {} layers (num_hidden_layers in config.json), found also {} in the files", dir,
                           config.num_hidden_layers, NameList(extra_layers));
  }
  if (!check.unexpected.empty()) {
    Warn(fmt::format("{} unexpected tensors are not used: {}", check.unexpected.size(), NameList(check.unexpected)));
  }
  if (check.missing.empty() && check.mismatched.empty()) return absl::OkStatus();
  std::string text;
  if (!check.missing.empty()) {
    text += fmt::format("{} of {} tensors are missing: {}", check.missing.size(), table.specs().size(),
                        NameList(check.missing));
  }
  if (!check.mismatched.empty()) {
    text += fmt::format("{}{} tensors are not as expected: {}", text.empty() ? "" : "; ", check.mismatched.size(),
                        NameList(check.mismatched));
  }
  return InvalidArgument("{}: {}", dir, text);
}

// Typed access needs aligned data; files may place tensors anywhere.
void Checkpoint::State::Realign() {
  for (TensorEntry& entry : tensors) {
    const uintptr_t size = static_cast<uintptr_t>(std::max(DTypeBits(entry.dtype) / 8, 1));
    if (reinterpret_cast<uintptr_t>(entry.data) % size == 0 || entry.bytes == 0) continue;
    std::unique_ptr<std::byte[]> copy(new std::byte[entry.bytes]);
    std::memcpy(copy.get(), entry.data, entry.bytes);
    entry.data = copy.get();
    entry.droppable = false;
    realigned_bytes += entry.bytes;
    copies.push_back(std::move(copy));
  }
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::~Checkpoint() = default;

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& dir) {
  std::error_code ignored;
  if (!fs::is_directory(dir, ignored)) return NotFound("{}: expected a model directory", dir);
  auto state = std::make_unique<State>();
  state->dir = dir;
  HADAL_RETURN_IF_ERROR(state->ReadConfigs());
  HADAL_ASSIGN_OR_RETURN(state->shards, OpenShards(dir));
  state->warnings = state->shards.warnings;
  for (const auto& file : state->shards.files) state->paths.push_back(file->path());
  HADAL_RETURN_IF_ERROR(state->CollectTensors());
  state->ResolveExpertDType();
  state->ResolveKvBDType();
  state->ResolveDraft();
  HADAL_RETURN_IF_ERROR(state->CheckAgainstTable());
  state->Realign();
  return std::unique_ptr<Checkpoint>(new Checkpoint(std::move(state)));
}

absl::Status Checkpoint::CopyToMemory(int threads, bool draft, bool images, absl::FunctionRef<void(int64_t)> report) {
  constexpr int64_t kAlignment = 64, kPiece = 8 << 20;
  struct Piece {
    std::byte* to;
    const std::byte* from;
    int64_t bytes;
  };
  // Unused tensors may be large (drafters, towers): the memory plan does not count them.
  const TensorTable table = TensorTable::For(state_->config, draft);
  std::vector<TensorEntry*> order;
  int64_t total = 0;
  for (TensorEntry& entry : state_->tensors) {
    const TensorSpec* spec = table.Find(entry.name);
    if (spec == nullptr || (spec->category == TensorCategory::kVision && !images)) continue;
    order.push_back(&entry);
    total += (entry.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  HADAL_ASSIGN_OR_RETURN(state_->memory, MemoryRegion::Map(static_cast<size_t>(total), "the weights"));
  // In the order of the files, a round of pieces at a time, so that the disk reads forward.
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->data < b->data; });
  ThreadPool pool(std::max(threads, 1));
  std::vector<Piece> round;
  std::vector<TensorEntry> mapped;  // of the round
  std::unordered_set<const std::byte*> replaced;
  int64_t done = 0;
  int64_t in_round = 0;
  const auto copy_round = [&] {
    pool.ParallelFor(static_cast<int64_t>(round.size()),
                     [&](int64_t i, int) { std::memcpy(round[i].to, round[i].from, round[i].bytes); });
    for (const TensorEntry& entry : mapped) ReleasePages(entry);
    done += in_round;
    in_round = 0;
    round.clear();
    mapped.clear();
    report(done);
  };
  std::byte* at = state_->memory.data();
  for (TensorEntry* entry : order) {
    Prefetch(*entry);
    for (int64_t i = 0; i < entry->bytes; i += kPiece) {
      const int64_t bytes = std::min(kPiece, entry->bytes - i);
      round.push_back({at + i, entry->data + i, bytes});
      in_round += bytes;
    }
    mapped.push_back(*entry);
    if (in_round >= 8 * kPiece * pool.threads()) copy_round();
    if (!entry->droppable) replaced.insert(entry->data);
    entry->data = at;
    entry->droppable = false;
    at += (entry->bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  copy_round();
  // Copies that were made because a file misplaced a tensor.
  std::erase_if(state_->copies, [&](const auto& copy) { return replaced.contains(copy.get()); });
  state_->memory.MakeReadOnly();
  return absl::OkStatus();
}

const ModelConfig& Checkpoint::config() const { return state_->config; }
const GenerationConfig& Checkpoint::generation_config() const { return state_->generation; }
const std::vector<TensorEntry>& Checkpoint::tensors() const { return state_->tensors; }
DraftKind Checkpoint::draft() const { return state_->draft; }
const std::vector<std::string>& Checkpoint::warnings() const { return state_->warnings; }
const std::vector<std::string>& Checkpoint::files() const { return state_->paths; }
int64_t Checkpoint::tensor_bytes() const { return state_->tensor_bytes; }
int64_t Checkpoint::realigned_bytes() const { return state_->realigned_bytes; }
const std::string& Checkpoint::dir() const { return state_->dir; }

const TensorEntry* Checkpoint::Find(std::string_view name) const {
  constexpr std::string_view kModel = "model.";
  if (name.substr(0, kModel.size()) == kModel) name.remove_prefix(kModel.size());
  const auto it = state_->index.find(name);
  return it == state_->index.end() ? nullptr : &state_->tensors[it->second];
}

absl::Status Checkpoint::CheckValues() const {
  const TensorTable table = TensorTable::For(config(), draft() == DraftKind::kMtp);
  for (const TensorEntry& entry : tensors()) {
    const TensorSpec* spec = table.Find(entry.name);
    if (spec == nullptr) continue;
    if (spec->is_scale()) HADAL_RETURN_IF_ERROR(CheckScale(entry));
    if (spec->dtypes.contains(DType::kI64)) {
      HADAL_RETURN_IF_ERROR(CheckTokenExperts(entry, config().n_routed_experts));
    }
  }
  return absl::OkStatus();
}

}  // namespace hadal::checkpoint
