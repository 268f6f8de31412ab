// Routing and experts on a GPU (spec deepseek-v4-text 3.8).
#include <utility>
#include <vector>

#include "base/status.h"
#include "platforms/gpu/gpu_ops_impl.h"

namespace hadal::gpu::HADAL_GPU_NS {

void GpuOps::MoeRoute(const ops::MoeRouteArgs& args) {
  HADAL_CHECK(args.experts_per_token <= args.logits.cols);
  HADAL_CHECK(args.logits.cols <= kMostExperts && args.groups <= kMostGroups);
  LaunchMoeRoute(device_->stream(), args);
}

absl::StatusOr<GpuOps::PreparedExperts> GpuOps::MakeExpertTable(std::span<const ops::ExpertWeights> experts) {
  PreparedExperts prepared;
  if (experts.empty()) return prepared;
  const int64_t hidden = experts[0].w1.k;
  prepared.table = ExpertTable::Of(experts[0]);
  std::vector<ExpertPointers> pointers;
  pointers.reserve(experts.size());
  for (const ops::ExpertWeights& expert : experts) {
    if (!prepared.table.CanJoin(expert, hidden)) {
      return InvalidArgument(
          "expert {} has weights [{}, {}] in {}, the first expert of its layer [{}, {}] in {}; a layer's experts must "
          "have one format and shape",
          pointers.size(), expert.w1.n, expert.w1.k, DTypeName(expert.w1.dtype), prepared.table.width, hidden,
          DTypeName(prepared.table.dtype));
    }
    prepared.table.aligned = prepared.table.aligned && AreAligned(expert);
    pointers.push_back(PointersOf(expert));
  }
  const size_t bytes = pointers.size() * sizeof(ExpertPointers);
  HADAL_ASSIGN_OR_RETURN(prepared.pointers, device_->Allocate(bytes, "a layer's table of experts"));
  device_->Upload(prepared.pointers.data(), pointers.data(), bytes);
  HADAL_RETURN_IF_ERROR(device_->Synchronize());  // `pointers` goes
  prepared.table.experts = reinterpret_cast<const ExpertPointers*>(prepared.pointers.data());
  prepared.table.count = static_cast<int64_t>(experts.size());
  return prepared;
}

absl::Status GpuOps::PrepareExperts(std::span<const ops::ExpertWeights> experts) {
  HADAL_ASSIGN_OR_RETURN(PreparedExperts prepared, MakeExpertTable(experts));
  HADAL_RETURN_IF_ERROR(Synchronize());  // an earlier table of this address may be in use
  prepared_experts_[experts.data()] = std::move(prepared);
  return absl::OkStatus();
}

void GpuOps::MoeExperts(const ops::MoeExpertsArgs& args) {
  HADAL_CHECK(args.experts_per_token <= kMostChoices);
  ExpertTable routed, shared;
  if (!args.routed.empty()) {
    if (const auto it = prepared_experts_.find(args.routed.data()); it != prepared_experts_.end()) {
      routed = it->second.table;
      HADAL_CHECK(routed.count == static_cast<int64_t>(args.routed.size()));
    } else {
      // Not prepared (a test of this operator): the table is made now, for this call.
      absl::StatusOr<PreparedExperts> prepared = MakeExpertTable(args.routed);
      HADAL_CHECK(prepared.ok() && Synchronize().ok());
      unprepared_experts_ = *std::move(prepared);
      routed = unprepared_experts_.table;
    }
  }
  if (args.shared != nullptr) {
    shared = ExpertTable::Of(*args.shared);
    HADAL_CHECK(shared.CanJoin(*args.shared, args.x.cols));
  }
  LaunchMoeExperts(device_->stream(), device_->info().multiprocessors, args, routed, shared, moe_);
}

}  // namespace hadal::gpu::HADAL_GPU_NS
