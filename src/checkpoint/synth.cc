// Writing synthetic checkpoints, and the same weights in memory.
#include "checkpoint/synth.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/memory_region.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "checkpoint/memory_plan.h"
#include "checkpoint/random_weights.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/tensor_table.h"

namespace hadal::checkpoint {
namespace {

namespace fs = std::filesystem;

std::vector<TensorSpec> SpecsToWrite(const ModelConfig& config, const SynthOptions& options, bool draft) {
  std::vector<TensorSpec> specs = TensorTable::For(config, draft).specs();
  for (TensorSpec& spec : specs) {
    if (spec.is_scale() && options.f32_scales) spec.preferred = DType::kF32;
  }
  return specs;
}

int64_t SpecBytes(const TensorSpec& spec) { return DTypeBytes(spec.preferred, spec.elements()); }

// As published files name and store it.
SafetensorsWriter::Spec OnDisk(const ModelConfig& config, const TensorSpec& spec) {
  SafetensorsWriter::Spec disk{.name = spec.name, .dtype = spec.preferred, .shape = spec.shape};
  if (config.family != ModelFamily::kV4 && !spec.name.starts_with("lm_head.")) disk.name = "model." + spec.name;
  if (spec.preferred == DType::kF4E2M1) {
    disk.dtype = DType::kI8;
    disk.shape.back() /= 2;
  }
  return disk;
}

// Cuts the table into shards; within a shard larger elements come first, so that every tensor is aligned.
std::vector<std::vector<const TensorSpec*>> CutIntoShards(const std::vector<TensorSpec>& specs, int64_t max_bytes) {
  std::vector<std::vector<const TensorSpec*>> shards(1);
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs) {
    if (!shards.back().empty() && bytes + SpecBytes(spec) > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(&spec);
    bytes += SpecBytes(spec);
  }
  for (auto& shard : shards) {
    std::stable_sort(shard.begin(), shard.end(), [](const TensorSpec* a, const TensorSpec* b) {
      return DTypeBits(a->preferred) > DTypeBits(b->preferred);
    });
  }
  return shards;
}

absl::Status CheckDiskSpace(const std::string& dir, int64_t bytes) {
  struct statvfs info;
  if (statvfs(dir.c_str(), &info) != 0) return InvalidArgument("{}: cannot stat: {}", dir, std::strerror(errno));
  const int64_t free = static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  if (bytes <= free) return absl::OkStatus();
  return ResourceExhausted("{}: {} needed, {} free on the disk", dir, BytesText(bytes), BytesText(free));
}

absl::Status WriteShard(const ModelConfig& config, const RandomWeights& weights,
                        const std::vector<const TensorSpec*>& shard, const std::string& path) {
  std::vector<SafetensorsWriter::Spec> disk;
  disk.reserve(shard.size());
  for (const TensorSpec* spec : shard) disk.push_back(OnDisk(config, *spec));
  HADAL_ASSIGN_OR_RETURN(const auto writer, SafetensorsWriter::Create(path, disk, {{"format", "pt"}}));
  for (const TensorSpec* spec : shard) {
    absl::Status status;
    weights.Generate(*spec, [&](std::span<const std::byte> piece) {
      status = writer->Append(piece);
      return status.ok();
    });
    HADAL_RETURN_IF_ERROR(status);
  }
  return writer->Finish();
}

std::string GenerationConfigText(const ModelConfig& config) {
  nlohmann::ordered_json j;
  j["_from_model_config"] = true;
  j["bos_token_id"] = config.bos_token_id;
  if (config.eos_token_ids.size() == 1) {
    j["eos_token_id"] = config.eos_token_ids[0];
  } else {
    j["eos_token_id"] = config.eos_token_ids;
  }
  j["do_sample"] = true;
  j["temperature"] = 1.0;
  j["top_p"] = config.family == ModelFamily::kV4 ? 1.0 : 0.95;
  return j.dump(2) + "\n";
}

absl::Status CopyTokenizer(const std::string& from, const std::string& to) {
  if (from.empty()) return absl::OkStatus();
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    const fs::path source = fs::path(from) / name;
    std::error_code error;
    if (std::string_view(name) == "tokenizer_config.json" && !fs::exists(source, error)) continue;
    fs::copy_file(source, fs::path(to) / name, fs::copy_options::overwrite_existing, error);
    if (error) return NotFound("{}: cannot copy: {}", source.string(), error.message());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SynthReport> WriteSyntheticCheckpoint(const ModelConfig& config, const std::string& dir,
                                                     const SynthOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return InvalidArgument("{}: cannot create: {}", dir, error.message());
  const std::vector<TensorSpec> specs = SpecsToWrite(config, options, true);
  SynthReport report;
  for (const TensorSpec& spec : specs) report.bytes += SpecBytes(spec);
  report.tensors = static_cast<int64_t>(specs.size());
  const int64_t total_size = report.bytes;
  HADAL_RETURN_IF_ERROR(CheckDiskSpace(dir, total_size));
  HADAL_RETURN_IF_ERROR(CopyTokenizer(options.tokenizer_dir, dir));
  HADAL_RETURN_IF_ERROR(WriteTextFile((fs::path(dir) / "config.json").string(), ModelConfigToJson(config)));
  HADAL_RETURN_IF_ERROR(
      WriteTextFile((fs::path(dir) / "generation_config.json").string(), GenerationConfigText(config)));

  const RandomWeights weights(config, specs, options.seed);
  const auto shards = CutIntoShards(specs, std::max<int64_t>(options.max_shard_bytes, 1));
  report.shards = static_cast<int>(shards.size());
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    HADAL_RETURN_IF_ERROR(WriteShard(config, weights, shards[i], (fs::path(dir) / name).string()));
    for (const TensorSpec* spec : shards[i]) weight_map[OnDisk(config, *spec).name] = name;
  }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total_size;
  index["weight_map"] = weight_map;
  HADAL_RETURN_IF_ERROR(WriteTextFile((fs::path(dir) / kIndexFile).string(), index.dump(1) + "\n"));
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

struct DummyWeights::State {
  ModelConfig config;
  MemoryRegion memory;
  std::vector<TensorEntry> tensors;
  std::unordered_map<std::string_view, size_t> index;  // keys live in tensors
};

DummyWeights::DummyWeights(std::unique_ptr<State> state) : state_(std::move(state)) {}
DummyWeights::~DummyWeights() = default;

absl::StatusOr<std::unique_ptr<DummyWeights>> DummyWeights::Create(const ModelConfig& config,
                                                                   const SynthOptions& options, bool draft,
                                                                   int threads) {
  constexpr int64_t kAlignment = 64;
  const std::vector<TensorSpec> specs = SpecsToWrite(config, options, draft);
  auto state = std::make_unique<State>();
  state->config = config;
  std::vector<int64_t> offsets;
  int64_t total = 0;
  for (const TensorSpec& spec : specs) {
    offsets.push_back(total);
    total += (SpecBytes(spec) + kAlignment - 1) / kAlignment * kAlignment;
  }
  HADAL_ASSIGN_OR_RETURN(state->memory, MemoryRegion::Map(static_cast<size_t>(total), "dummy weights"));

  const RandomWeights weights(config, specs, options.seed);
  std::byte* base = state->memory.data();
  ThreadPool pool(std::max(threads, 1));
  pool.ParallelFor(static_cast<int64_t>(specs.size()), [&](int64_t i, int) {
    std::byte* at = base + offsets[i];
    weights.Generate(specs[i], [&](std::span<const std::byte> piece) {
      std::memcpy(at, piece.data(), piece.size());
      at += piece.size();
      return true;
    });
  });
  state->memory.MakeReadOnly();
  for (size_t i = 0; i < specs.size(); ++i) {
    state->tensors.push_back({.name = specs[i].name,
                              .dtype = specs[i].preferred,
                              .shape = specs[i].shape,
                              .data = base + offsets[i],
                              .bytes = SpecBytes(specs[i]),
                              .file = "(dummy)"});
  }
  for (size_t i = 0; i < state->tensors.size(); ++i) state->index.emplace(state->tensors[i].name, i);
  return std::unique_ptr<DummyWeights>(new DummyWeights(std::move(state)));
}

const ModelConfig& DummyWeights::config() const { return state_->config; }
const std::vector<TensorEntry>& DummyWeights::tensors() const { return state_->tensors; }

const TensorEntry* DummyWeights::Find(std::string_view name) const {
  constexpr std::string_view kModel = "model.";
  if (name.substr(0, kModel.size()) == kModel) name.remove_prefix(kModel.size());
  const auto it = state_->index.find(name);
  return it == state_->index.end() ? nullptr : &state_->tensors[it->second];
}

}  // namespace hadal::checkpoint
