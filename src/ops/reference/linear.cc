// Linear layers: dense and grouped by columns (spec deepseek-v4-text 3.1, 3.7).
#include <vector>

#include "base/status.h"
#include "ops/reference/reference_ops.h"
#include "ops/reference/rows.h"

namespace hadal::ops {
namespace {

// All rows of x as fp32, [rows, cols].
std::vector<float> LoadMatrix(const Tensor& x) {
  std::vector<float> values(static_cast<size_t>(x.rows * x.cols));
  for (int64_t r = 0; r < x.rows; ++r) reference::LoadRow(x, r, values.data() + r * x.cols);
  return values;
}

// `result` [rows, n] = x [rows, k] * w^T.
void Multiply(const std::vector<float>& x, int64_t rows, const LinearWeight& w, std::vector<float>* result) {
  std::vector<float> weight_row(static_cast<size_t>(w.k));
  for (int64_t o = 0; o < w.n; ++o) {
    reference::DecodeWeightRow(w, o, weight_row.data());
    for (int64_t t = 0; t < rows; ++t) {
      (*result)[t * w.n + o] = reference::Dot(x.data() + t * w.k, weight_row.data(), w.k);
    }
  }
}

void AddBias(const Vector& bias, int64_t n, std::vector<float>* result) {
  if (bias.empty()) return;
  HADAL_CHECK(bias.size == n);
  const std::vector<float> values = reference::LoadVector(bias);
  for (size_t i = 0; i < result->size(); ++i) (*result)[i] += values[i % values.size()];
}

void StoreMatrix(const std::vector<float>& values, const Tensor& out) {
  for (int64_t r = 0; r < out.rows; ++r) reference::StoreRow(out, r, values.data() + r * out.cols);
}

}  // namespace

void ReferenceOps::Linear(Tensor x, std::span<const LinearTarget> targets) {
  const std::vector<float> plain = LoadMatrix(x);
  std::vector<float> quantised;
  InputQuant mode = InputQuant::kNone;  // of `quantised`
  for (const LinearTarget& target : targets) {
    const LinearWeight& w = *target.weight;
    HADAL_CHECK(w.k == x.cols && target.out.cols == w.n && target.out.rows == x.rows);
    const bool quantise = target.quant != InputQuant::kNone && published();
    if (quantise && quantised.empty()) {
      mode = target.quant;
      quantised = plain;
      for (int64_t t = 0; t < x.rows; ++t) reference::QuantiseInput(mode, quantised.data() + t * x.cols, x.cols);
    }
    HADAL_CHECK(!quantise || target.quant == mode);
    std::vector<float> result(static_cast<size_t>(x.rows * w.n));
    Multiply(quantise ? quantised : plain, x.rows, w, &result);
    AddBias(target.bias, w.n, &result);
    StoreMatrix(result, target.out);
  }
}

void ReferenceOps::GroupedLinear(const GroupedLinearArgs& args) {
  const LinearWeight& w = *args.weight;
  const int64_t n = w.n / args.groups;
  const int64_t x_group = args.x_group > 0 ? args.x_group : w.k;
  const int64_t out_group = args.out_group > 0 ? args.out_group : n;
  HADAL_CHECK(args.x.cols == args.groups * x_group && args.out.cols == args.groups * out_group);
  HADAL_CHECK(args.out.rows == args.x.rows && w.k <= x_group && n <= out_group);
  const std::vector<float> x = LoadMatrix(args.x);
  std::vector<float> result = LoadMatrix(args.out);
  std::vector<float> weight_row(static_cast<size_t>(w.k));
  for (int64_t o = 0; o < w.n; ++o) {
    reference::DecodeWeightRow(w, o, weight_row.data());
    const int64_t g = o / n;
    for (int64_t t = 0; t < args.out.rows; ++t) {
      result[t * args.out.cols + g * out_group + o % n] =
          reference::Dot(x.data() + t * args.x.cols + g * x_group, weight_row.data(), w.k);
    }
  }
  StoreMatrix(result, args.out);
}

}  // namespace hadal::ops
