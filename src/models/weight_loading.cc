#include "models/weight_loading.h"

#include <optional>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace hadal::models {
namespace {

constexpr std::string_view kLanguage = "language_model.";

}  // namespace

absl::StatusOr<PartLoader> PartLoader::Create(checkpoint::WeightMapRules rules, WeightTarget* language,
                                              WeightTarget* vision) {
  HADAL_ASSIGN_OR_RETURN(checkpoint::WeightMap map, checkpoint::WeightMap::Create(std::move(rules)));
  return PartLoader(std::move(map), language, vision);
}

absl::StatusOr<PartLoader::Part> PartLoader::Map(const checkpoint::TensorEntry& entry, MappedTensor* out) const {
  HADAL_ASSIGN_OR_RETURN(std::optional<checkpoint::MappedName> mapped, map_.Apply(entry.name));
  if (!mapped.has_value()) return Part::kDropped;
  const bool language = mapped->name.starts_with(kLanguage);
  out->name = language ? mapped->name.substr(kLanguage.size()) : std::move(mapped->name);
  out->shard = mapped->shard.value_or(-1);
  out->entry = &entry;
  return language ? Part::kLanguage : Part::kVision;
}

absl::Status PartLoader::LoadPart(std::span<const checkpoint::TensorEntry> tensors, Part part, WeightTarget* target) {
  size_t at = 0;
  MappedTensor current;
  return target->LoadWeights([&]() -> absl::StatusOr<const MappedTensor*> {
    while (at < tensors.size()) {
      HADAL_ASSIGN_OR_RETURN(const Part of, Map(tensors[at++], &current));
      if (of == part) return &current;
    }
    return nullptr;
  });
}

absl::Status PartLoader::LoadRuns(std::span<const checkpoint::TensorEntry> tensors) {
  size_t at = 0;
  MappedTensor current;
  Part part = Part::kDropped;
  const auto advance = [&]() -> absl::Status {
    part = Part::kDropped;
    while (at < tensors.size() && part == Part::kDropped) {
      HADAL_ASSIGN_OR_RETURN(part, Map(tensors[at++], &current));
    }
    return absl::OkStatus();
  };
  HADAL_RETURN_IF_ERROR(advance());
  while (part != Part::kDropped) {
    const Part run = part;
    bool first = true;
    const auto next = [&]() -> absl::StatusOr<const MappedTensor*> {
      if (!first) HADAL_RETURN_IF_ERROR(advance());
      first = false;
      return part == run ? &current : nullptr;
    };
    HADAL_RETURN_IF_ERROR((run == Part::kLanguage ? language_ : vision_)->LoadWeights(next));
    if (part == run) {
      return absl::InternalError(fmt::format("a part of the model left tensors of its group unread: {}", current.name));
    }
  }
  return absl::OkStatus();
}

absl::Status PartLoader::Load(std::span<const checkpoint::TensorEntry> tensors) {
  if (!language_->finalizes_during_load()) return LoadRuns(tensors);
  HADAL_RETURN_IF_ERROR(LoadPart(tensors, Part::kVision, vision_));
  HADAL_RETURN_IF_ERROR(LoadPart(tensors, Part::kLanguage, language_));
  finalized_ = true;
  return absl::OkStatus();
}

absl::Status PartLoader::ProcessWeightsAfterLoading() {
  if (finalized_) return absl::OkStatus();
  HADAL_RETURN_IF_ERROR(language_->ProcessWeightsAfterLoading());
  finalized_ = true;
  return absl::OkStatus();
}

}  // namespace hadal::models
