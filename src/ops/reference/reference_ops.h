// Every operator of ops.h in plain loops with the casts of the specification (deepseek-v4-text 3, with
// deepseek-v4-vision-and-cache 2.4, 3, 4, 5.2 and 5.6). It is what platforms are tested against and nobody's production
// path: it runs on one thread, decodes weights anew in every call and takes its scratch from the heap.
//
// Where the specification leaves a choice:
//  - RMS of queries in elementwise bf16 operations, as the published code evaluates it, and in fp32 in f32 numerics;
//  - attention probabilities stay fp32;
//  - in f32 numerics the Hadamard rotation of the indexer is still applied, to queries and keys alike;
//  - MoeExperts quantises the input of FP8 and FP4 experts; experts in kBF16 or kF32 take it as it is;
//  - NaN never reaches a comparison that could misbehave: in a selection it ranks below every number.
#pragma once

#include <memory>

#include "base/float_formats.h"
#include "ops/ops.h"

namespace hadal::ops {

class ReferenceOps : public Ops {
 public:
  explicit ReferenceOps(Numerics numerics) : numerics_(numerics) {}

  bool Supports(Feature /*feature*/) const override { return true; }
  std::string_view name() const override { return "reference"; }
  Numerics numerics() const override { return numerics_; }

  size_t WorkspaceBytes(const WorkspaceSpec&) const override { return 0; }
  absl::Status Reserve(const WorkspaceSpec&) override { return absl::OkStatus(); }

  void Embed(const BatchRows& batch, const LinearWeight& table, int64_t hc, Tensor streams) override;
  void Linear(Tensor x, std::span<const LinearTarget> targets) override;
  void GroupedLinear(const GroupedLinearArgs& args) override;
  void RmsNorm(Tensor x, Vector weight, float eps, Tensor out) override;
  void HcPre(const HcPreArgs& args) override;
  void HcPost(const HcPostArgs& args) override;
  void HcHead(const HcHeadArgs& args) override;
  void ComputeRopeAngles(const BatchRows& batch, std::span<const float> freqs, float* cos, float* sin) override;
  void QNormRope(const QNormRopeArgs& args) override;
  void KvNormRopeStore(const KvNormRopeStoreArgs& args) override;
  void Compress(const CompressArgs& args) override;
  void IndexerQuery(const IndexerQueryArgs& args) override;
  void IndexerTopk(const IndexerTopkArgs& args) override;
  void SparseAttention(const SparseAttentionArgs& args) override;
  void MoeRoute(const MoeRouteArgs& args) override;
  void MoeExperts(const MoeExpertsArgs& args) override;
  void MtpCombine(const MtpCombineArgs& args) override;
  void AddRmsNorm(const AddRmsNormArgs& args) override;
  void RopeTail(const RopeTailArgs& args) override;
  void IndexerKeyStore(const IndexerKeyStoreArgs& args) override;
  void MtpNorm(const MtpNormArgs& args) override;
  void ExpandedAttention(const ExpandedAttentionArgs& args) override;
  void PlaceEmbeddings(std::span<const void* const> rows, int64_t hc, Tensor streams) override;
  void NormalisePixels(const uint8_t* pixels, Tensor out) override;
  void VisionAttention(const VisionAttentionArgs& args) override;
  void Add(Tensor x, Tensor y) override;
  void SiluMul(Tensor gate_up, Tensor out) override;
  void Gelu(Tensor x) override;
  void UnfoldGrid(Tensor x, int64_t rows, int64_t cols, int64_t edge, Tensor out) override;
  absl::Status CombineTopkSwaIndices(const CombineIndicesArgs& args) override;

 private:
  bool published() const { return numerics_ == Numerics::kPublished; }

  // v as a buffer of the activation dtype would hold it.
  float Act(float v) const { return published() ? RoundBF16(v) : v; }
  void Act(float* x, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) x[i] = Act(x[i]);
  }

  // x = act(w * (x * rms)) for one row (spec 3.1).
  void Normalize(float* x, const float* weight, int64_t n, float eps) const;
  // Rotates the adjacent pairs of x[0, 2*half), back if `inverse`, and rounds (spec 3.1 RoPE).
  void Rotate(float* x, const float* cos, const float* sin, int64_t half, bool inverse) const;
  // Rotates the pairs (x[i], x[i + half]) and rounds (vision spec 3 step 5, deepseek-v32 3.4).
  void RotateHalves(float* x, const float* cos, const float* sin, int64_t half) const;
  // x = act(H*x / sqrt(n)) (spec 3.6 step 2).
  void HadamardAct(float* x, int64_t n) const;
  // The FP4 simulation of an indexer query or key; nothing in f32 numerics (spec 3.6 step 3).
  void SimulateKey(float* x, int64_t n) const;
  // The FP8 simulation of the first n values of a KV row; nothing in f32 numerics (spec 3.4 step 4).
  void SimulateKv(float* x, int64_t n) const;

  // One fused row of HcPre/HcHead: mix[i] = (fn_i . x) * rho (spec 3.3).
  void HcMix(const float* x, int64_t n, const float* fn, int64_t outputs, float eps, float* mix) const;
  // x = act(sum over s of pre[s]*streams[s]).
  void HcCollapse(const float* streams, const float* pre, int64_t hc, int64_t d, float* out) const;

  // One row through one compression window: the pooled row before its norm (spec 3.5).
  void PoolWindow(const CompressArgs& args, int32_t seq, int64_t window, float* row) const;

  const Numerics numerics_;
};

std::unique_ptr<Ops> MakeReferenceOps(Numerics numerics);

}  // namespace hadal::ops
