// Linear layers on a GPU (spec deepseek-v4-text 3.1, 3.7).
#include <algorithm>
#include <array>

#include "base/status.h"
#include "platforms/gpu/fast_paths.h"
#include "platforms/gpu/gpu_ops_impl.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

ops::Tensor Rows(const ops::Tensor& t, int64_t first, int64_t rows) {
  ops::Tensor part = t;
  part.data = static_cast<std::byte*>(t.data) + DTypeBytes(t.dtype, first * t.stride);
  part.rows = rows;
  return part;
}

// Collects jobs and launches those of one format together.
class Jobs {
 public:
  Jobs(const Device& device, const ops::Tensor& x) : device_(device), x_(x) {}
  void Add(const LinearJob& job) {
    if (job.n == 0 || x_.rows == 0) return;
    if (count_ == kLinearJobs || (count_ > 0 && jobs_[0].weight->dtype != job.weight->dtype)) Launch();
    jobs_[count_++] = job;
  }
  void Launch() {
    if (count_ > 0) LaunchLinear(device_.stream(), device_.info().multiprocessors, x_, {jobs_.data(), count_});
    count_ = 0;
  }

 private:
  const Device& device_;
  ops::Tensor x_;
  std::array<LinearJob, kLinearJobs> jobs_;
  size_t count_ = 0;
};

}  // namespace

void GpuOps::Linear(ops::Tensor x, std::span<const ops::LinearTarget> targets) {
  const auto quantised = [&](const ops::LinearTarget& t) { return t.quant == ops::InputQuant::kFp8 && published(); };
  constexpr std::array kDTypes = {DType::kF8E4M3, DType::kF4E2M1, DType::kBF16, DType::kF32};
  const auto launch = [&](const ops::Tensor& input, int64_t first, bool with_quant) {
    Jobs jobs(*device_, input);
    for (const DType dtype : kDTypes) {
      for (const ops::LinearTarget& target : targets) {
        const ops::LinearWeight& w = *target.weight;
        if (w.dtype != dtype || quantised(target) != with_quant) continue;
        HADAL_CHECK(w.k == x.cols && target.out.cols == w.n && target.out.rows == x.rows);
        jobs.Add({.weight = &w, .n = w.n, .out = Rows(target.out, first, input.rows), .bias = target.bias});
      }
    }
    jobs.Launch();
  };
  launch(x, 0, false);
  if (std::none_of(targets.begin(), targets.end(), quantised)) return;
  if (options_.fp8_products && !options_.deterministic && x.rows >= kFastLinearRows && published()) {
    const auto fast = [&](const ops::LinearTarget& t) { return FastLinearTakes(device_->info(), x, t); };
    std::array<const ops::LinearTarget*, kLinearJobs> taken;
    size_t count = 0;
    const bool all = targets.size() <= taken.size() && std::all_of(targets.begin(), targets.end(), [&](const auto& t) {
                       return !quantised(t) || fast(t);
                     });
    for (const ops::LinearTarget& target : targets) {
      if (all && quantised(target)) taken[count++] = &target;
    }
    if (all) return FastLinear(device_->stream(), x, {taken.data(), count}, linear_.fast, linear_.fast_bytes);
  }
  ops::Tensor to = {linear_.quantised, DType::kBF16, 0, x.cols, (x.cols + 7) / 8 * 8};
  const int64_t most = linear_.quantised_bytes / DTypeBytes(DType::kBF16, to.stride);
  HADAL_CHECK(most > 0);
  for (int64_t first = 0; first < x.rows; first += most) {
    to.rows = std::min(most, x.rows - first);
    LaunchQuantise(device_->stream(), Rows(x, first, to.rows), to);
    launch(to, first, true);
  }
}

void GpuOps::GroupedLinear(const ops::GroupedLinearArgs& args) {
  const ops::LinearWeight& w = *args.weight;
  const int64_t n = w.n / args.groups;
  const int64_t x_group = args.x_group > 0 ? args.x_group : w.k;
  const int64_t out_group = args.out_group > 0 ? args.out_group : n;
  HADAL_CHECK(args.x.cols == args.groups * x_group && args.out.cols == args.groups * out_group);
  HADAL_CHECK(args.out.rows == args.x.rows && w.k <= x_group && n <= out_group);
  Jobs jobs(*device_, args.x);
  for (int64_t g = 0; g < args.groups; ++g) {
    ops::Tensor out = args.out;
    out.data = static_cast<std::byte*>(out.data) + DTypeBytes(out.dtype, g * out_group);
    jobs.Add({.weight = &w, .first = g * n, .n = n, .x_column = g * x_group, .out = out});
  }
  jobs.Launch();
}

}  // namespace hadal::gpu::HADAL_GPU_NS
