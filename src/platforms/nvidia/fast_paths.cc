#include "platforms/gpu/fast_paths.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/status.h"
#include "platforms/nvidia/hopper_linear.h"

namespace hadal::gpu::cuda {
namespace {

constexpr int kHopper = 90;
constexpr int64_t kMostRows = 8192;    // quantised at a time
constexpr int64_t kMostTokens = 4096;  // at the experts at a time

int64_t Padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

ops::Tensor RowsOf(const ops::Tensor& t, int64_t first, int64_t rows) {
  ops::Tensor part = t;
  part.data = static_cast<std::byte*>(t.data) + DTypeBytes(t.dtype, first * t.stride);
  part.rows = rows;
  return part;
}

// The weights of an expert in the order of their tables.
constexpr std::array kWeights = {&ops::ExpertWeights::w1, &ops::ExpertWeights::w3, &ops::ExpertWeights::w2};

int64_t TableBytes(std::span<const ops::ExpertWeights> experts, size_t which) {
  return Padded(
      static_cast<int64_t>(HopperExpertsBytes(static_cast<int64_t>(experts.size()), (experts[0].*kWeights[which]).n)));
}

// Scratch of FastExperts for a part of a step. Inputs of the first and of the second products share a place, as do the
// outputs of both: the shared expert is through before the others begin.
struct ExpertsScratch {
  void *plan, *shared_plan, *inputs;
  std::byte *outputs, *shared_out;
  int32_t* zeros;  // the shared expert's choices
  int64_t bytes;

  ExpertsScratch(std::byte* base, int64_t tokens, int64_t k, int64_t experts, int64_t hidden, int64_t width) {
    constexpr int64_t kBf16 = 2;
    bytes = 0;
    const auto take = [&](size_t size) {
      std::byte* at = base == nullptr ? nullptr : base + bytes;
      bytes += Padded(static_cast<int64_t>(size));
      return at;
    };
    const int64_t rows = HopperPlan::Carve(nullptr, tokens, k, experts).max_rows;
    plan = take(HopperPlan::Bytes(tokens, k, experts));
    shared_plan = take(HopperPlan::Bytes(tokens, 1, 1));
    inputs = take(std::max(HopperInput::Bytes(rows, hidden), HopperInput::Bytes(rows, width)));
    outputs = take(static_cast<size_t>(rows * std::max(2 * width, hidden) * kBf16));
    shared_out = take(static_cast<size_t>(tokens * hidden * kBf16));
    zeros = reinterpret_cast<int32_t*>(take(static_cast<size_t>(tokens) * sizeof(int32_t)));
  }
};

bool SharedSupported(const ops::ExpertWeights& shared, const ops::Tensor& out) {
  return HopperLinearSupported(shared.w1, out) && HopperLinearSupported(shared.w3, out) &&
         HopperLinearSupported(shared.w2, out) && shared.w1.n % 8 == 0;
}

// Gate and up values side by side: [rows, width] each.
HopperSwiGlu GateUp(void* outputs, int64_t rows, int64_t width, const ops::MoeExpertsArgs& args, bool weigh) {
  ops::Tensor gate = {outputs, DType::kBF16, rows, width, 2 * width};
  ops::Tensor up = gate;
  up.data = static_cast<std::byte*>(outputs) + DTypeBytes(DType::kBF16, width);
  return {gate, up, args.swiglu_limit, weigh};
}

void SharedExpert(Stream stream, const ops::MoeExpertsArgs& args, const ops::Tensor& x, const ExpertsScratch& scratch) {
  const ops::ExpertWeights& shared = *args.shared;
  (void)cudaMemsetAsync(scratch.zeros, 0, static_cast<size_t>(x.rows) * sizeof(int32_t),
                        static_cast<cudaStream_t>(stream.handle));
  // A plan of one expert, for the number of its rows.
  const HopperPlan plan = HopperPlan::Carve(scratch.shared_plan, x.rows, 1, 1);
  LaunchHopperPlan(stream, scratch.zeros, reinterpret_cast<const float*>(scratch.zeros), plan);
  const HopperInput in = HopperInput::Carve(scratch.inputs, x.rows, x.cols);
  LaunchHopperQuantize(stream, x, in);
  const HopperSwiGlu gate_up = GateUp(scratch.outputs, plan.max_rows, shared.w1.n, args, false);
  const std::array first = {HopperTarget{&shared.w1, RowsOf(gate_up.gate, 0, x.rows)},
                            HopperTarget{&shared.w3, RowsOf(gate_up.up, 0, x.rows)}};
  LaunchHopperLinear(stream, in, first);
  HopperInput hidden = HopperInput::Carve(scratch.inputs, plan.max_rows, shared.w1.n);
  LaunchHopperSwiGlu(stream, gate_up, plan, hidden);
  hidden.rows = x.rows;
  const HopperTarget second = {&shared.w2, ops::MakeTensor(scratch.shared_out, DType::kBF16, x.rows, x.cols)};
  LaunchHopperLinear(stream, hidden, {&second, 1});
}

}  // namespace

size_t FastLinearBytes(const ops::WorkspaceSpec& spec, ops::Numerics numerics) {
  if (numerics == ops::Numerics::kF32 || spec.max_tokens < kFastLinearRows) return 0;
  return HopperInput::Bytes(std::min(spec.max_tokens, kMostRows), spec.max_linear_k);
}

bool FastLinearTakes(const DeviceInfo& device, const ops::Tensor& x, const ops::LinearTarget& target) {
  return device.capability == kHopper && x.dtype == DType::kBF16 && target.quant == ops::InputQuant::kFp8 &&
         target.bias.empty() && HopperLinearSupported(*target.weight, target.out);
}

void FastLinear(Stream stream, const ops::Tensor& x, std::span<const ops::LinearTarget* const> targets, void* scratch,
                size_t scratch_bytes) {
  int64_t most = std::min(x.rows, kMostRows);
  while (HopperInput::Bytes(most, x.cols) > scratch_bytes) most = most * 3 / 4;
  HADAL_CHECK(most > 0);
  for (int64_t first = 0; first < x.rows; first += most) {
    const int64_t rows = std::min(most, x.rows - first);
    const HopperInput input = HopperInput::Carve(scratch, rows, x.cols);
    LaunchHopperQuantize(stream, RowsOf(x, first, rows), input);
    std::array<HopperTarget, kHopperTargets> group;
    for (size_t i = 0; i < targets.size(); i += kHopperTargets) {
      const size_t count = std::min<size_t>(kHopperTargets, targets.size() - i);
      for (size_t j = 0; j < count; ++j) {
        group[j] = {targets[i + j]->weight, RowsOf(targets[i + j]->out, first, rows)};
      }
      LaunchHopperLinear(stream, input, {group.data(), count});
    }
  }
}

absl::StatusOr<ops::Buffer> PrepareFastExperts(Device& device, std::span<const ops::ExpertWeights> experts) {
  if (experts.empty() || experts.size() > kHopperExperts || device.info().capability != kHopper) return ops::Buffer();
  int64_t bytes = 0;
  for (size_t which = 0; which < kWeights.size(); ++which) {
    for (const ops::ExpertWeights& expert : experts) {
      if (!HopperExpertsSupported(expert.*kWeights[which])) return ops::Buffer();
    }
    bytes += TableBytes(experts, which);
  }
  HADAL_ASSIGN_OR_RETURN(ops::Buffer tables,
                         device.Allocate(static_cast<size_t>(bytes) + sizeof(int32_t), "a layer's tables of experts"));
  auto* inexact = reinterpret_cast<int32_t*>(tables.data() + bytes);  // zeroed memory
  std::byte* at = tables.data();
  for (size_t which = 0; which < kWeights.size(); ++which) {
    std::vector<const ops::LinearWeight*> weights;
    weights.reserve(experts.size());
    for (const ops::ExpertWeights& expert : experts) weights.push_back(&(expert.*kWeights[which]));
    (void)LaunchHopperPrepareExperts(device.stream(), weights, at, inexact);
    at += TableBytes(experts, which);
  }
  int32_t rows = 0;
  device.Download(&rows, inexact, sizeof(rows));
  HADAL_RETURN_IF_ERROR(device.Synchronize());
  return rows == 0 ? std::move(tables) : ops::Buffer();
}

size_t FastExpertsBytes(const ops::WorkspaceSpec& spec, ops::Numerics numerics) {
  if (numerics == ops::Numerics::kF32 || spec.max_tokens < kFastExpertTokens || spec.experts == 0) return 0;
  return static_cast<size_t>(ExpertsScratch(nullptr, std::min(spec.max_tokens, kMostTokens), spec.experts_per_token,
                                            spec.experts, spec.hidden, spec.moe_intermediate)
                                 .bytes);
}

bool FastExperts(Device& device, const ops::MoeExpertsArgs& args, const ops::Buffer& prepared, void* scratch,
                 size_t scratch_bytes) {
  if (prepared.data() == nullptr || args.x.dtype != DType::kBF16 || args.quant != ops::InputQuant::kFp8) return false;
  const auto experts = static_cast<int64_t>(args.routed.size());
  const int64_t k = args.experts_per_token, hidden = args.x.cols;
  if (args.x.rows < kFastExpertTokens || args.x.rows * k < experts * kFastExpertChoices || k > kHopperChoices) {
    return false;
  }
  const auto aligned = [](const ops::Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride % 8 == 0 && t.cols % 8 == 0;
  };
  if (!aligned(args.out)) return false;
  const ops::ExpertWeights& first = args.routed[0];
  int64_t width = first.w1.n;
  if (args.shared != nullptr) {
    if (!SharedSupported(*args.shared, args.out)) return false;
    width = std::max(width, args.shared->w1.n);
  }
  const int64_t most = std::min(args.x.rows, kMostTokens);
  const ExpertsScratch at(static_cast<std::byte*>(scratch), most, k, experts, hidden, width);
  if (at.bytes > static_cast<int64_t>(scratch_bytes)) return false;

  std::array<HopperExperts, kWeights.size()> tables;
  int64_t offset = 0;
  for (size_t which = 0; which < kWeights.size(); ++which) {
    const ops::LinearWeight& w = first.*kWeights[which];
    tables[which] = {.table = reinterpret_cast<const HopperExpert*>(prepared.data() + offset),
                     .experts = static_cast<int>(experts),
                     .n = w.n,
                     .k = w.k,
                     .dtype = w.dtype,
                     .scale_f32 = w.scale_dtype == DType::kF32};
    offset += TableBytes(args.routed, which);
  }
  const Stream stream = device.stream();
  for (int64_t begin = 0; begin < args.x.rows; begin += most) {
    const int64_t tokens = std::min(most, args.x.rows - begin);
    const ops::Tensor x = RowsOf(args.x, begin, tokens);
    ops::Tensor shared_out;
    if (args.shared != nullptr) {
      SharedExpert(stream, args, x, at);
      shared_out = ops::MakeTensor(at.shared_out, DType::kBF16, tokens, hidden);
    }
    const HopperPlan plan = HopperPlan::Carve(at.plan, tokens, k, experts);
    LaunchHopperPlan(stream, args.experts + begin * k, args.weights + begin * k, plan);
    const HopperInput in = HopperInput::Carve(at.inputs, plan.max_rows, hidden);
    LaunchHopperScatter(stream, x, plan, in);
    const HopperSwiGlu gate_up = GateUp(at.outputs, plan.max_rows, first.w1.n, args, !args.weigh_outputs);
    const std::array products = {HopperGroupedTarget{tables[0], gate_up.gate},
                                 HopperGroupedTarget{tables[1], gate_up.up}};
    LaunchHopperGroupedLinear(stream, in, plan, products);
    const HopperInput act = HopperInput::Carve(at.inputs, plan.max_rows, first.w1.n);
    LaunchHopperSwiGlu(stream, gate_up, plan, act);
    const ops::Tensor rows = ops::MakeTensor(at.outputs, DType::kBF16, plan.max_rows, hidden);
    const HopperGroupedTarget down = {tables[2], rows};
    LaunchHopperGroupedLinear(stream, act, plan, {&down, 1});
    LaunchHopperCombine(stream, rows, args.experts + begin * k, plan, args.weigh_outputs, shared_out,
                        RowsOf(args.out, begin, tokens));
  }
  return true;
}

}  // namespace hadal::gpu::cuda
