// The vision tower, the merge of its rows into the streams, and the indices of image spans (spec
// deepseek-v4-vision-and-cache 2.4, 3, 4.1, 5.6).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/status.h"
#include "ops/combine_indices.h"
#include "ops/reference/reference_ops.h"
#include "ops/reference/rows.h"

namespace hadal::ops {
namespace {

using reference::LoadRow;
using reference::StoreRow;

// One query over the n rows of its head.
void AttendAll(const float* q, const std::vector<float>& keys, const std::vector<float>& values, int64_t d,
               float* out) {
  const int64_t n = static_cast<int64_t>(keys.size()) / d;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  std::vector<float> p(static_cast<size_t>(n));
  for (int64_t j = 0; j < n; ++j) p[j] = reference::Dot(q, keys.data() + j * d, d) * scale;
  const float largest = *std::max_element(p.begin(), p.end());
  float sum = 0;
  for (float& v : p) sum += v = std::exp(v - largest);
  std::fill(out, out + d, 0.0f);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t c = 0; c < d; ++c) out[c] += p[j] / sum * values[j * d + c];
  }
}

}  // namespace

void ReferenceOps::PlaceEmbeddings(std::span<const void* const> rows, int64_t hc, Tensor streams) {
  HADAL_CHECK(static_cast<int64_t>(rows.size()) == streams.rows && streams.cols % hc == 0);
  const int64_t d = streams.cols / hc;
  std::vector<float> row(static_cast<size_t>(streams.cols));
  for (int64_t t = 0; t < streams.rows; ++t) {
    if (rows[t] == nullptr) continue;
    const Tensor source = MakeTensor(const_cast<void*>(rows[t]), streams.dtype, 1, d);
    for (int64_t s = 0; s < hc; ++s) LoadRow(source, 0, row.data() + s * d);
    StoreRow(streams, t, row.data());
  }
}

void ReferenceOps::NormalisePixels(const uint8_t* pixels, Tensor out) {
  std::vector<float> row(static_cast<size_t>(out.cols));
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.cols; ++c) {
      row[c] = (static_cast<float>(pixels[r * out.cols + c]) / 255.0f - 0.5f) / 0.5f;
    }
    StoreRow(out, r, row.data());
  }
}

void ReferenceOps::RotateHalves(float* x, const float* cos, const float* sin, int64_t half) const {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = Act(a * cos[i] - b * sin[i]);
    x[i + half] = Act(b * cos[i] + a * sin[i]);
  }
}

void ReferenceOps::VisionAttention(const VisionAttentionArgs& args) {
  const int64_t n = args.qkv.rows;
  const int64_t d = args.head_dim;
  const int64_t width = args.heads * d;
  HADAL_CHECK(args.qkv.cols == 3 * width && args.out.cols == width && args.out.rows == n && 2 * args.rope.half == d);
  std::vector<float> out(static_cast<size_t>(n * width));
  for (int64_t h = 0; h < args.heads; ++h) {
    std::vector<float> q(static_cast<size_t>(n * d));
    std::vector<float> k(q.size());
    std::vector<float> v(q.size());
    for (int64_t t = 0; t < n; ++t) {
      const std::vector<float> row = LoadRow(args.qkv, t);
      std::copy_n(row.data() + h * d, d, q.data() + t * d);
      std::copy_n(row.data() + width + h * d, d, k.data() + t * d);
      std::copy_n(row.data() + 2 * width + h * d, d, v.data() + t * d);
      const float* cos = args.rope.cos + t * args.rope.half;
      const float* sin = args.rope.sin + t * args.rope.half;
      RotateHalves(q.data() + t * d, cos, sin, args.rope.half);
      RotateHalves(k.data() + t * d, cos, sin, args.rope.half);
    }
    for (int64_t t = 0; t < n; ++t) AttendAll(q.data() + t * d, k, v, d, out.data() + t * width + h * d);
  }
  for (int64_t t = 0; t < n; ++t) StoreRow(args.out, t, out.data() + t * width);
}

void ReferenceOps::Add(Tensor x, Tensor y) {
  HADAL_CHECK(x.rows == y.rows && x.cols == y.cols);
  for (int64_t r = 0; r < x.rows; ++r) {
    std::vector<float> row = LoadRow(x, r);
    const std::vector<float> other = LoadRow(y, r);
    for (int64_t c = 0; c < x.cols; ++c) row[c] += other[c];
    StoreRow(x, r, row.data());
  }
}

void ReferenceOps::SiluMul(Tensor gate_up, Tensor out) {
  const int64_t f = out.cols;
  HADAL_CHECK(gate_up.cols == 2 * f && gate_up.rows == out.rows);
  std::vector<float> result(static_cast<size_t>(f));
  for (int64_t r = 0; r < out.rows; ++r) {
    const std::vector<float> row = LoadRow(gate_up, r);
    for (int64_t c = 0; c < f; ++c) result[c] = Act(row[c] / (1.0f + std::exp(-row[c]))) * row[f + c];
    StoreRow(out, r, result.data());
  }
}

void ReferenceOps::Gelu(Tensor x) {
  constexpr float kRootHalf = 0.70710678118654752f;
  for (int64_t r = 0; r < x.rows; ++r) {
    std::vector<float> row = LoadRow(x, r);
    for (float& v : row) v = v / 2 * (1.0f + std::erf(v * kRootHalf));
    StoreRow(x, r, row.data());
  }
}

void ReferenceOps::UnfoldGrid(Tensor x, int64_t rows, int64_t cols, int64_t edge, Tensor out) {
  const int64_t grid_rows = (rows + edge - 1) / edge;
  const int64_t grid_cols = (cols + edge - 1) / edge;
  HADAL_CHECK(x.rows == rows * cols && out.rows == grid_rows * grid_cols && out.cols == x.cols * edge * edge);
  for (int64_t cell = 0; cell < out.rows; ++cell) {
    std::vector<float> result(static_cast<size_t>(out.cols), 0.0f);
    for (int64_t y = 0; y < edge; ++y) {
      for (int64_t z = 0; z < edge; ++z) {
        const int64_t row = cell / grid_cols * edge + y;
        const int64_t col = cell % grid_cols * edge + z;
        if (row >= rows || col >= cols) continue;
        const std::vector<float> source = LoadRow(x, row * cols + col);
        for (int64_t c = 0; c < x.cols; ++c) result[c * edge * edge + y * edge + z] = source[c];
      }
    }
    StoreRow(out, cell, result.data());
  }
}

absl::Status ReferenceOps::CombineTopkSwaIndices(const CombineIndicesArgs& args) {
  HADAL_RETURN_IF_ERROR(CheckCombineIndices(args));
  for (int64_t t = 0; t < CombinedQueries(args); ++t) CombineIndicesOfQuery(args, t);
  return absl::OkStatus();
}

}  // namespace hadal::ops
