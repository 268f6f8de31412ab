// Linear layers of the CPU platform: preparing inputs, cutting products into tasks, writing results.
#include <algorithm>
#include <array>

#include "base/status.h"
#include "platforms/cpu/cpu_ops_impl.h"

namespace hadal::cpu {
namespace {

// A task reads about this many bytes of weights at most: small enough to share out evenly.
constexpr int64_t kTaskBytes = 1024 * 1024;
constexpr int64_t kInputBlock = 128;  // inputs that are quantised under one scale

int64_t RowsPerTask(const ops::LinearWeight& w, int64_t rows, int threads) {
  const int64_t by_memory = kTaskBytes / std::max<int64_t>(1, w.row_bytes());
  const int64_t by_share = rows / (4 * threads);
  return std::max<int64_t>(1, std::min(by_memory, by_share) / kRowBlock) * kRowBlock;
}

void AddBias(const float* bias, int64_t rows, int64_t n, float* block) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < n; ++i) block[m * n + i] += bias[i];
  }
}

// Index of a (layout, quantised) pair in Scratch::packed.
int Variant(InputLayout layout, bool quantize) { return static_cast<int>(layout) * 2 + (quantize ? 1 : 0); }

}  // namespace

void CpuOps::PackGroup(const ops::Tensor& x, const int32_t* index, int64_t first, int64_t count, int64_t column,
                       int64_t k, ops::InputQuant quant, InputLayout layout, int64_t group, void* out,
                       WorkerScratch& scratch) {
  std::array<const float*, kPackRows> rows;
  const int64_t element = DTypeBytes(x.dtype, 1);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = index != nullptr ? index[first + i] : first + i;
    float* dst = scratch.rows + i * k;
    kernels_.load(static_cast<const std::byte*>(x.data) + (row * x.stride + column) * element, x.dtype, k, dst);
    if (quant == ops::InputQuant::kFp8) kernels_.fake_e4m3(dst, k, kInputBlock);
    if (quant == ops::InputQuant::kFp8AnyScale) kernels_.fake_e4m3_any_scale(dst, k, kInputBlock);
    rows[i] = dst;
  }
  BackendFor(layout).pack_group(rows.data(), count, k, group, layout, out);
}

void CpuOps::StoreBlock(const PackedInput& x, int64_t rows, const float* block, const ops::Tensor& out, int64_t row0,
                        int64_t n0) {
  const int64_t element = DTypeBytes(out.dtype, 1);
  for (int64_t m = 0; m < x.m; ++m) {
    auto* dst = static_cast<std::byte*>(out.data) + ((row0 + m) * out.stride + n0) * element;
    kernels_.store(block + m * rows, rows, dst, out.dtype);
  }
}

void CpuOps::Linear(ops::Tensor x, std::span<const ops::LinearTarget> targets) {
  struct Pack {
    bool needed = false;
    ops::InputQuant quant = ops::InputQuant::kNone;
    PackedInput input;
  };
  std::array<Pack, Scratch::kPackVariants> packs;
  struct Job {
    const ops::LinearTarget* target;
    int variant;
    int64_t first_task;
    int64_t rows_per_task;
  };
  std::array<Job, 16> jobs;
  HADAL_CHECK(targets.size() <= jobs.size());
  int64_t tasks = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const ops::LinearTarget& target = targets[i];
    const ops::InputQuant quant = published() ? target.quant : ops::InputQuant::kNone;
    const InputLayout layout = LayoutFor(amx_, *target.weight, quant);
    const int variant = Variant(layout, quant != ops::InputQuant::kNone);
    HADAL_CHECK(!packs[variant].needed || packs[variant].quant == quant);
    packs[variant] = {true, quant, {layout, x.rows, x.cols, GroupSize(layout, x.rows), scratch_.packed[variant]}};
    const int64_t rows_per_task = RowsPerTask(*target.weight, target.weight->n, pool_.threads());
    jobs[i] = {&target, variant, tasks, rows_per_task};
    tasks += (target.weight->n + rows_per_task - 1) / rows_per_task;
  }

  const int64_t pack_tasks = (x.rows + kPackRows - 1) / kPackRows;
  pool_.ParallelFor(pack_tasks, [&](int64_t task, int worker) {
    const int64_t first = task * kPackRows;
    const int64_t count = std::min(kPackRows, x.rows - first);
    for (const Pack& pack : packs) {
      if (!pack.needed) continue;
      const size_t bytes = PackedOffset(pack.input.layout, x.rows, x.cols, first);
      PackGroup(x, nullptr, first, count, 0, x.cols, pack.quant, pack.input.layout, pack.input.group,
                static_cast<std::byte*>(const_cast<void*>(pack.input.data)) + bytes, scratch_.workers[worker]);
    }
  });

  pool_.ParallelFor(tasks, [&](int64_t task, int worker) {
    size_t j = targets.size() - 1;
    while (jobs[j].first_task > task) --j;
    const Job& job = jobs[j];
    const ops::LinearWeight& w = *job.target->weight;
    const PackedInput& input = packs[job.variant].input;
    const int64_t begin = (task - job.first_task) * job.rows_per_task;
    const int64_t end = std::min(w.n, begin + job.rows_per_task);
    WorkerScratch& scratch = scratch_.workers[worker];
    for (int64_t n = begin; n < end; n += kRowBlock) {
      const int64_t rows = std::min(kRowBlock, end - n);
      NextRows next = {&w, n + rows};
      if (next.row == w.n) next = {j + 1 < targets.size() ? targets[j + 1].weight : nullptr, 0};
      BackendFor(input.layout).block(input, w, n, n + rows, next, scratch.block, scratch.linear);
      if (const ops::Vector& bias = job.target->bias; !bias.empty()) {
        std::array<float, kRowBlock> values;
        kernels_.load(static_cast<const std::byte*>(bias.data) + n * DTypeBytes(bias.dtype, 1), bias.dtype, rows,
                      values.data());
        AddBias(values.data(), input.m, rows, scratch.block);
      }
      StoreBlock(input, rows, scratch.block, job.target->out, 0, n);
    }
  });
}

void CpuOps::GroupedLinear(const ops::GroupedLinearArgs& args) {
  const ops::LinearWeight& w = *args.weight;
  const int64_t rows_per_group = w.n / args.groups;
  const int64_t x_group = args.x_group > 0 ? args.x_group : w.k;
  const int64_t out_group = args.out_group > 0 ? args.out_group : rows_per_group;
  const InputLayout layout = LayoutFor(amx_, w, ops::InputQuant::kNone);
  const int64_t m = args.x.rows;
  const int64_t group = GroupSize(layout, m);
  const int64_t pack_tasks = (m + kPackRows - 1) / kPackRows;
  // One packed input per group of columns, one behind the other.
  const size_t stride = PackedBytes(layout, m, w.k);
  auto* packed = static_cast<std::byte*>(scratch_.packed_groups);
  pool_.ParallelFor(pack_tasks * args.groups, [&](int64_t task, int worker) {
    const int64_t g = task / pack_tasks;
    const int64_t first = task % pack_tasks * kPackRows;
    const int64_t count = std::min(kPackRows, m - first);
    const size_t bytes = PackedOffset(layout, m, w.k, first);
    PackGroup(args.x, nullptr, first, count, g * x_group, w.k, ops::InputQuant::kNone, layout, group,
              packed + g * stride + bytes, scratch_.workers[worker]);
  });
  const int64_t rows_per_task = RowsPerTask(w, rows_per_group, pool_.threads());
  const int64_t tasks_per_group = (rows_per_group + rows_per_task - 1) / rows_per_task;
  pool_.ParallelFor(tasks_per_group * args.groups, [&](int64_t task, int worker) {
    const int64_t g = task / tasks_per_group;
    const PackedInput input = {layout, m, w.k, group, packed + g * stride};
    const int64_t begin = g * rows_per_group + task % tasks_per_group * rows_per_task;
    const int64_t end = std::min((g + 1) * rows_per_group, begin + rows_per_task);
    WorkerScratch& scratch = scratch_.workers[worker];
    for (int64_t n = begin; n < end; n += kRowBlock) {
      const int64_t rows = std::min(kRowBlock, end - n);
      const NextRows next = {n + rows < w.n ? &w : nullptr, n + rows};
      BackendFor(layout).block(input, w, n, n + rows, next, scratch.block, scratch.linear);
      StoreBlock(input, rows, scratch.block, args.out, 0, g * out_group + n - g * rows_per_group);
    }
  });
}

}  // namespace hadal::cpu
