// Routing and the mixture of experts of the CPU platform (spec deepseek-v4-text 3.8).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "platforms/cpu/cpu_ops_impl.h"

namespace hadal::cpu {
namespace {

// Weight rows of one task.
constexpr int64_t kTaskRows = kRowBlock;

// sqrt(softplus(v)), where log1p keeps very negative logits from vanishing, or the sigmoid.
float RouterScore(ops::RouterScores kind, float v) {
  if (kind == ops::RouterScores::kSigmoid) return 1.0f / (1.0f + std::exp(-v));
  return std::sqrt(v > 20.0f ? v : std::log1p(std::exp(v)));
}

// Experts outside the `kept` groups whose two best choices have the largest sums are ruled out.
void LimitGroups(int64_t experts, int64_t groups, int64_t kept, float* choice) {
  constexpr int64_t kMostGroups = 64;
  HADAL_CHECK(groups <= kMostGroups);
  const int64_t size = experts / groups;
  std::array<float, kMostGroups> sums;
  for (int64_t g = 0; g < groups; ++g) {
    float best = -HUGE_VALF, second = -HUGE_VALF;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      if (choice[e] > best) {
        second = best;
        best = choice[e];
      } else {
        second = std::max(second, choice[e]);
      }
    }
    sums[g] = size > 1 ? best + second : best;
  }
  for (int64_t g = 0; g < groups; ++g) {
    // Groups before this one: those with larger sums, and equal ones of a lower index.
    int64_t before = 0;
    for (int64_t other = 0; other < groups; ++other) {
      before += sums[other] > sums[g] || (sums[other] == sums[g] && other < g) ? 1 : 0;
    }
    if (before >= kept) std::fill(choice + g * size, choice + (g + 1) * size, -HUGE_VALF);
  }
}

}  // namespace

void CpuOps::MoeRoute(const ops::MoeRouteArgs& args) {
  const int64_t experts = args.logits.cols;
  const int64_t k = args.experts_per_token;
  pool_.ParallelFor((args.logits.rows + 15) / 16, [&](int64_t task, int worker) {
    float* score = scratch_.workers[worker].rows;
    float* choice = score + experts;
    for (int64_t t = task * 16; t < std::min(args.logits.rows, task * 16 + 16); ++t) {
      const float* logits = static_cast<const float*>(args.logits.data) + t * args.logits.stride;
      const int32_t id = args.batch.ids[t];
      for (int64_t e = 0; e < experts; ++e) score[e] = RouterScore(args.scores, logits[e]);
      int32_t* chosen = args.experts + t * k;
      float* weight = args.weights + t * k;
      const bool image =
          args.bias_vl != nullptr && args.image_first > 0 && id >= args.image_first && id < args.image_first + 5;
      if (args.token_to_expert != nullptr && !image) {
        std::copy_n(args.token_to_expert + static_cast<int64_t>(id) * k, k, chosen);
      } else {
        const float* bias = image ? args.bias_vl : args.bias;
        for (int64_t e = 0; e < experts; ++e) {
          const float v = bias == nullptr ? score[e] : score[e] + bias[e];
          choice[e] = std::isnan(v) ? -HUGE_VALF : v;
        }
        if (args.groups > 1) LimitGroups(experts, args.groups, args.topk_groups, choice);
        for (int64_t i = 0; i < k; ++i) {
          int64_t best = -1;
          for (int64_t e = 0; e < experts; ++e) {
            if (std::find(chosen, chosen + i, static_cast<int32_t>(e)) != chosen + i) continue;
            if (best < 0 || choice[e] > choice[best]) best = e;
          }
          chosen[i] = static_cast<int32_t>(best);
        }
      }
      float sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += weight[i] = score[chosen[i]];
      for (int64_t i = 0; i < k; ++i) {
        weight[i] = (sum == 0 || !args.normalise ? weight[i] : weight[i] / sum) * args.scale;
      }
    }
  });
}

int64_t CpuOps::GroupByExpert(const ops::MoeExpertsArgs& args) {
  const int64_t tokens = args.x.rows;
  const int64_t k = args.experts_per_token;
  const auto experts = static_cast<int64_t>(args.routed.size());
  int64_t* begin = scratch_.moe.expert_begin;
  std::fill(begin, begin + experts + 2, 0);
  for (int64_t i = 0; i < tokens * k; ++i) {
    if (args.experts[i] >= 0) ++begin[args.experts[i] + 1];
  }
  for (int64_t e = 0; e < experts; ++e) begin[e + 1] += begin[e];
  const int64_t routed = begin[experts];
  // Rows in ascending order within an expert; begin[] is used as the fill pointer and restored.
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < k; ++i) {
      const int32_t e = args.experts[t * k + i];
      if (e < 0) continue;
      const int64_t slot = begin[e]++;
      scratch_.moe.slot_row[slot] = static_cast<int32_t>(t);
      scratch_.moe.slot_weight[slot] = args.weights[t * k + i];
    }
  }
  for (int64_t e = experts; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
  // A row's slots in ascending expert order: the order in which its outputs are summed.
  std::fill(scratch_.moe.row_fill, scratch_.moe.row_fill + tokens, 0);
  for (int64_t slot = 0; slot < routed; ++slot) {
    const int32_t t = scratch_.moe.slot_row[slot];
    scratch_.moe.row_slots[t * k + scratch_.moe.row_fill[t]++] = static_cast<int32_t>(slot);
  }
  // The shared expert takes every row with weight 1, in the last slots.
  for (int64_t t = 0; t < tokens; ++t) {
    scratch_.moe.slot_row[routed + t] = static_cast<int32_t>(t);
    scratch_.moe.slot_weight[routed + t] = 1.0f;
  }
  return routed;
}

void CpuOps::MoeExperts(const ops::MoeExpertsArgs& args) {
  const int64_t tokens = args.x.rows;
  const int64_t d = args.x.cols;
  const auto experts = static_cast<int64_t>(args.routed.size());
  const int64_t routed = GroupByExpert(args);
  const ops::InputQuant quant = published() ? args.quant : ops::InputQuant::kNone;

  // One job per expert with rows; the shared expert is the last.
  struct Job {
    const ops::ExpertWeights* weights;
    int64_t slot;  // first slot
    int64_t rows;
    size_t in_offset;  // bytes into packed_in and packed_hidden
    size_t hidden_offset;
    int64_t pack_task;  // first task of each phase
    int64_t w1_task;
    int64_t w2_task;
  };
  std::array<Job, kMaxJobs> jobs;
  const int64_t f = args.shared != nullptr ? args.shared->w1.n : args.routed[0].w1.n;
  int64_t count = 0;
  size_t in_bytes = 0;
  size_t hidden_bytes = 0;
  int64_t pack_tasks = 0;
  int64_t w1_tasks = 0;
  int64_t w2_tasks = 0;
  const auto add = [&](const ops::ExpertWeights& weights, int64_t slot, int64_t rows) {
    HADAL_CHECK(count < kMaxJobs);
    jobs[count++] = {&weights, slot, rows, in_bytes, hidden_bytes, pack_tasks, w1_tasks, w2_tasks};
    in_bytes += PackedBytes(LayoutFor(amx_, weights.w1, quant), rows, d);
    hidden_bytes += PackedBytes(LayoutFor(amx_, weights.w2, quant), rows, f);
    pack_tasks += (rows + kPackRows - 1) / kPackRows;
    w1_tasks += (f + kTaskRows - 1) / kTaskRows;
    w2_tasks += (d + kTaskRows - 1) / kTaskRows;
  };
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = scratch_.moe.expert_begin[e];
    const int64_t rows = scratch_.moe.expert_begin[e + 1] - begin;
    if (rows > 0) add(args.routed[e], begin, rows);
  }
  if (args.shared != nullptr) add(*args.shared, routed, tokens);

  const auto find = [&](int64_t task, int64_t Job::*first) -> const Job& {
    const Job* job = std::upper_bound(jobs.data(), jobs.data() + count, task,
                                      [&](int64_t value, const Job& j) { return value < j.*first; });
    return *(job - 1);
  };
  const auto pack = [&](const Job& job, int64_t task, const ops::Tensor& x, const int32_t* index, int64_t first_row,
                        const ops::LinearWeight& w, std::byte* base, WorkerScratch& scratch) {
    const bool quantised = w.dtype == DType::kF8E4M3 || w.dtype == DType::kF4E2M1;
    const InputLayout layout = LayoutFor(amx_, w, quant);
    const int64_t k = w.k;
    const int64_t first = task * kPackRows;
    const int64_t group = GroupSize(layout, job.rows);
    const size_t bytes = PackedOffset(layout, job.rows, k, first);
    PackGroup(x, index, first_row + first, std::min(kPackRows, job.rows - first), 0, k,
              quantised ? quant : ops::InputQuant::kNone, layout, group, base + bytes, scratch);
  };

  auto* packed_in = static_cast<std::byte*>(scratch_.moe.packed_in);
  auto* packed_hidden = static_cast<std::byte*>(scratch_.moe.packed_hidden);
  pool_.ParallelFor(pack_tasks, [&](int64_t task, int worker) {
    const Job& job = find(task, &Job::pack_task);
    pack(job, task - job.pack_task, args.x, scratch_.moe.slot_row, job.slot, job.weights->w1, packed_in + job.in_offset,
         scratch_.workers[worker]);
  });

  const ops::Tensor hidden = ops::MakeTensor(scratch_.moe.hidden, act(), routed + tokens, f);
  pool_.ParallelFor(w1_tasks, [&](int64_t task, int worker) {
    const Job& job = find(task, &Job::w1_task);
    WorkerScratch& scratch = scratch_.workers[worker];
    const InputLayout layout = LayoutFor(amx_, job.weights->w1, quant);
    const PackedInput input = {layout, job.rows, d, GroupSize(layout, job.rows), packed_in + job.in_offset};
    const int64_t begin = (task - job.w1_task) * kTaskRows;
    const int64_t end = std::min(f, begin + kTaskRows);
    for (int64_t n = begin; n < end; n += kRowBlock) {
      const int64_t rows = std::min(kRowBlock, end - n);
      NextRows next = {&job.weights->w1, n + rows};
      if (next.row == f) next = {&job < &jobs[count - 1] ? &(&job + 1)->weights->w1 : nullptr, 0};
      float* gate = scratch.block;
      float* up = gate + input.groups() * input.group * rows;
      BackendFor(layout).block(input, job.weights->w1, n, n + rows, {&job.weights->w3, n}, gate, scratch.linear);
      BackendFor(layout).block(input, job.weights->w3, n, n + rows, next, up, scratch.linear);
      for (int64_t m = 0; m < job.rows; ++m) {
        float* g = gate + m * rows;
        kernels_.round(g, rows, act());
        kernels_.round(up + m * rows, rows, act());
        const float weight = args.weigh_outputs ? 1.0f : scratch_.moe.slot_weight[job.slot + m];
        kernels_.swiglu(g, up + m * rows, rows, args.swiglu_limit, weight, g);
        kernels_.store(g, rows, static_cast<std::byte*>(hidden.data) + ((job.slot + m) * f + n) * DTypeBytes(act(), 1),
                       act());
      }
    }
  });

  pool_.ParallelFor(pack_tasks, [&](int64_t task, int worker) {
    const Job& job = find(task, &Job::pack_task);
    pack(job, task - job.pack_task, hidden, nullptr, job.slot, job.weights->w2, packed_hidden + job.hidden_offset,
         scratch_.workers[worker]);
  });

  const ops::Tensor out = ops::MakeTensor(scratch_.moe.out, act(), routed + tokens, d);
  pool_.ParallelFor(w2_tasks, [&](int64_t task, int worker) {
    const Job& job = find(task, &Job::w2_task);
    WorkerScratch& scratch = scratch_.workers[worker];
    const InputLayout layout = LayoutFor(amx_, job.weights->w2, quant);
    const PackedInput input = {layout, job.rows, f, GroupSize(layout, job.rows), packed_hidden + job.hidden_offset};
    const int64_t begin = (task - job.w2_task) * kTaskRows;
    const int64_t end = std::min(d, begin + kTaskRows);
    for (int64_t n = begin; n < end; n += kRowBlock) {
      const int64_t rows = std::min(kRowBlock, end - n);
      NextRows next = {&job.weights->w2, n + rows};
      if (next.row == d) next = {&job < &jobs[count - 1] ? &(&job + 1)->weights->w2 : nullptr, 0};
      BackendFor(layout).block(input, job.weights->w2, n, n + rows, next, scratch.block, scratch.linear);
      StoreBlock(input, rows, scratch.block, out, job.slot, n);
    }
  });

  const int64_t k = args.experts_per_token;
  pool_.ParallelFor(tokens, [&](int64_t t, int worker) {
    float* sum = scratch_.workers[worker].vectors;
    float* part = sum + d;
    const auto row = [&](int64_t slot) {
      return static_cast<const std::byte*>(out.data) + slot * d * DTypeBytes(act(), 1);
    };
    std::fill(sum, sum + d, 0.0f);
    for (int64_t i = 0; i < scratch_.moe.row_fill[t]; ++i) {
      const int64_t slot = scratch_.moe.row_slots[t * k + i];
      const float weight = args.weigh_outputs ? scratch_.moe.slot_weight[slot] : 1.0f;
      kernels_.load(row(slot), act(), d, part);
      for (int64_t c = 0; c < d; ++c) sum[c] += weight * part[c];
    }
    if (args.shared != nullptr) {
      kernels_.load(row(routed + t), act(), d, part);
      for (int64_t c = 0; c < d; ++c) sum[c] += part[c];
    }
    kernels_.store(sum, d, static_cast<std::byte*>(args.out.data) + t * args.out.stride * DTypeBytes(act(), 1),
                   args.out.dtype);
  });
}

}  // namespace hadal::cpu
