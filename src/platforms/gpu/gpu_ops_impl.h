// Internals of GpuOps, shared by its translation units: gpu_ops.cc (scratch, what is no family of its own),
// gpu_rows.cc (norms, rotations, caches, hyper-connections, compressor), gpu_linear.cc (products), gpu_moe.cc,
// gpu_attention.cc (attention and indexer), gpu_vision.cc. Each calls the launchers of kernels/<family>.h.
#pragma once

#include <memory>
#include <unordered_map>

#include "base/carver.h"
#include "platforms/gpu/backend.h"
#include "platforms/gpu/gpu_ops.h"
#include "platforms/gpu/kernels/attention.h"
#include "platforms/gpu/kernels/linear.h"
#include "platforms/gpu/kernels/moe.h"
#include "platforms/gpu/kernels/rows.h"
#include "platforms/gpu/runtime.h"

namespace hadal::gpu::HADAL_GPU_NS {

class GpuOps final : public ops::Ops {
 public:
  GpuOps(const GpuOptions& options, std::unique_ptr<Device> device);
  ~GpuOps() override;

  bool Supports(ops::Feature /*feature*/) const override { return false; }
  std::string_view name() const override;
  ops::Numerics numerics() const override { return options_.numerics; }
  ops::Memory& memory() const override { return *device_; }
  size_t WorkspaceBytes(const ops::WorkspaceSpec& spec) const override;
  absl::Status Reserve(const ops::WorkspaceSpec& spec) override;
  absl::Status PrepareExperts(std::span<const ops::ExpertWeights> experts) override;
  absl::Status Synchronize() override;

  void Embed(const ops::BatchRows& batch, const ops::LinearWeight& table, int64_t hc, ops::Tensor streams) override;
  void Linear(ops::Tensor x, std::span<const ops::LinearTarget> targets) override;
  void GroupedLinear(const ops::GroupedLinearArgs& args) override;
  void RmsNorm(ops::Tensor x, ops::Vector weight, float eps, ops::Tensor out) override;
  void HcPre(const ops::HcPreArgs& args) override;
  void HcPost(const ops::HcPostArgs& args) override;
  void HcHead(const ops::HcHeadArgs& args) override;
  void ComputeRopeAngles(const ops::BatchRows& batch, std::span<const float> freqs, float* cos, float* sin) override;
  void QNormRope(const ops::QNormRopeArgs& args) override;
  void KvNormRopeStore(const ops::KvNormRopeStoreArgs& args) override;
  void Compress(const ops::CompressArgs& args) override;
  void IndexerQuery(const ops::IndexerQueryArgs& args) override;
  void IndexerTopk(const ops::IndexerTopkArgs& args) override;
  void SparseAttention(const ops::SparseAttentionArgs& args) override;
  void MoeRoute(const ops::MoeRouteArgs& args) override;
  void MoeExperts(const ops::MoeExpertsArgs& args) override;
  void MtpCombine(const ops::MtpCombineArgs& args) override;
  void AddRmsNorm(const ops::AddRmsNormArgs& args) override;
  void RopeTail(const ops::RopeTailArgs& args) override;
  void IndexerKeyStore(const ops::IndexerKeyStoreArgs& args) override;
  void MtpNorm(const ops::MtpNormArgs& args) override;
  void GatherRows(ops::Tensor from, std::span<const int32_t> rows, ops::Tensor out) override;
  void PlaceEmbeddings(std::span<const void* const> rows, int64_t hc, ops::Tensor streams) override;
  void NormalisePixels(const uint8_t* pixels, ops::Tensor out) override;
  void VisionAttention(const ops::VisionAttentionArgs& args) override;
  void Add(ops::Tensor x, ops::Tensor y) override;
  void SiluMul(ops::Tensor gate_up, ops::Tensor out) override;
  void Gelu(ops::Tensor x) override;
  void UnfoldGrid(ops::Tensor x, int64_t rows, int64_t cols, int64_t edge, ops::Tensor out) override;
  absl::Status CombineTopkSwaIndices(const ops::CombineIndicesArgs& args) override;

 private:
  bool published() const { return options_.numerics == ops::Numerics::kPublished; }
  size_t Carve(const ops::WorkspaceSpec& spec, std::byte* base);

  // The experts of a layer, by the address that they are given with.
  struct PreparedExperts {
    ExpertTable table;
    ops::Buffer pointers;
  };
  absl::StatusOr<PreparedExperts> MakeExpertTable(std::span<const ops::ExpertWeights> experts);

  GpuOptions options_;
  std::unique_ptr<Device> device_;
  ops::WorkspaceSpec spec_;
  ops::Buffer workspace_;
  RowsScratch rows_;
  LinearScratch linear_;
  MoeScratch moe_;
  AttentionScratch attention_;
  std::unordered_map<const ops::ExpertWeights*, PreparedExperts> prepared_experts_;
  PreparedExperts unprepared_experts_;
};

}  // namespace hadal::gpu::HADAL_GPU_NS
