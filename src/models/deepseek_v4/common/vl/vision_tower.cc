#include "models/deepseek_v4/common/vl/vision_tower.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/carver.h"
#include "base/status.h"

namespace hadal::models::deepseek_v4 {
namespace {

constexpr float kNormEps = 1e-6f;  // of the tower, whatever the language model's is (spec 3 step 3)

constexpr int64_t kMaxHeadDim = 128;  // VisionAttention keeps the queries of a block in registers

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

ops::Tensor Rows(const ops::Tensor& t, int64_t first, int64_t count) {
  ops::Tensor out = t;
  out.data = static_cast<std::byte*>(t.data) + DTypeBytes(t.dtype, first * t.stride);
  out.rows = count;
  return out;
}

}  // namespace

int64_t MaxPatches(const checkpoint::VisionConfig& vision) {
  return vision.max_n_token * vision.downsample_ratio * vision.downsample_ratio;
}

size_t VisionTower::Carve(const checkpoint::ModelConfig& config, DType act, int64_t n, int64_t l, std::byte* base,
                          Buffers* out) {
  const checkpoint::VisionConfig& v = config.vision;
  Carver carver(base);
  const auto tensor = [&](int64_t rows, int64_t cols) {
    return ops::MakeTensor(carver.Take<std::byte>(DTypeBytes(act, rows * cols)), act, rows, cols);
  };
  const auto floats = [&](int64_t count) { return carver.Take<float>(count); };
  out->pixels = tensor(n, 3 * v.patch_size * v.patch_size);
  for (ops::Tensor* t : {&out->x, &out->y, &out->z}) *t = tensor(n, v.dim);
  out->qkv = tensor(n, 3 * v.dim);
  out->packed = tensor(3 * v.n_heads * n, v.dim / v.n_heads);
  out->gate_up = tensor(n, 2 * v.inter_dim);
  out->hidden = tensor(n, v.inter_dim);
  out->unfolded = tensor(l, v.dim * v.downsample_ratio * v.downsample_ratio);
  out->projected = tensor(l, config.hidden_size);
  out->aligned = tensor(l, config.hidden_size);
  out->cos = floats(n * (v.dim / v.n_heads) / 2);
  out->sin = floats(n * (v.dim / v.n_heads) / 2);
  out->patches = carver.Take<uint8_t>(n * 3 * v.patch_size * v.patch_size);
  out->embeddings = tensor(l, config.hidden_size);
  out->order = carver.Take<const void*>(l);
  return carver.used();
}

size_t VisionTower::Bytes(const checkpoint::ModelConfig& config, DType act) {
  Buffers unused;
  return Carve(config, act, MaxPatches(config.vision), config.vision.max_n_token, nullptr, &unused);
}

absl::StatusOr<std::unique_ptr<VisionTower>> VisionTower::Create(const checkpoint::ModelConfig& config,
                                                                 VisionWeights weights, ops::Ops* ops,
                                                                 int64_t max_rows) {
  const checkpoint::VisionConfig& v = config.vision;
  if (v.dim % 16 != 0) return Unimplemented("vision_dim is {}; multiples of 16 are implemented", v.dim);
  if (v.dim / v.n_heads > kMaxHeadDim) {
    return Unimplemented("vision_dim / vision_n_heads is {}; up to {} are implemented", v.dim / v.n_heads, kMaxHeadDim);
  }
  std::unique_ptr<VisionTower> tower(new VisionTower(config, std::move(weights), ops, max_rows));
  HADAL_ASSIGN_OR_RETURN(tower->memory_, ops->memory().Allocate(Bytes(config, ops->act()), "the vision tower"));
  tower->row_pointers_.reserve(config.vision.max_n_token);
  const auto angles = static_cast<size_t>(MaxPatches(v) * (v.dim / v.n_heads / 2));
  tower->cos_.resize(angles);
  tower->sin_.resize(angles);
  return tower;
}

absl::Status VisionTower::Check(const ImagePatches& image, const ops::Tensor& out) const {
  const checkpoint::VisionConfig& v = config_.vision;
  if (image.rows < 1 || image.cols < 1 || image.rows > MaxPatches(v) || image.cols > MaxPatches(v) / image.rows) {
    return InvalidArgument("an image of {} x {} patches; expected 1 to {} patches", image.cols, image.rows,
                           MaxPatches(v));
  }
  const int64_t n = image.rows * image.cols;
  const int64_t squares = CeilDiv(image.rows, v.downsample_ratio) * CeilDiv(image.cols, v.downsample_ratio);
  if (static_cast<int64_t>(image.pixels.size()) != n * 3 * v.patch_size * v.patch_size) {
    return InvalidArgument("{} bytes of patches; expected {} for {} x {} patches", image.pixels.size(),
                           n * 3 * v.patch_size * v.patch_size, image.cols, image.rows);
  }
  if (squares > v.max_n_token || static_cast<int64_t>(image.order.size()) != squares || out.rows != squares ||
      out.cols != config_.hidden_size || out.dtype != ops_->act()) {
    return InvalidArgument("embeddings [{}, {}] {} of {} image tokens; expected [{}, {}] {}", out.rows, out.cols,
                           DTypeName(out.dtype), image.order.size(), squares, config_.hidden_size,
                           DTypeName(ops_->act()));
  }
  for (const int32_t row : image.order) {
    if (row < 0 || row >= squares) return InvalidArgument("aligner row {}; expected 0 to {}", row, squares - 1);
  }
  return absl::OkStatus();
}

// The workspace is made for the rows of a step; an image may have more.
void VisionTower::Linear(const ops::Tensor& x, const ops::LinearWeight& weight, const ops::Vector& bias,
                         const ops::Tensor& out) {
  for (int64_t first = 0; first < x.rows; first += max_rows_) {
    const int64_t count = std::min(max_rows_, x.rows - first);
    ops_->Linear(Rows(x, first, count),
                 std::array{ops::LinearTarget{&weight, Rows(out, first, count), ops::InputQuant::kNone, bias}});
  }
}

// Rows turn the first half of a head's pairs, columns the second (spec 3 step 5).
void VisionTower::UploadAngles(int64_t rows, int64_t cols, const Buffers& b) {
  const int64_t half = config_.vision.dim / config_.vision.n_heads / 2;
  std::vector<float> inverse(half / 2);
  for (int64_t i = 0; i < half / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(half);
    inverse[i] = 1.0f / std::pow(static_cast<float>(config_.vision.rope_theta), exponent);
  }
  for (int64_t n = 0; n < rows * cols; ++n) {
    for (int64_t i = 0; i < half; ++i) {
      const bool by_row = i < half / 2;
      const auto position = static_cast<float>(by_row ? n / cols : n % cols);
      const float angle = position * inverse[by_row ? i : i - half / 2];
      cos_[n * half + i] = std::cos(angle);
      sin_[n * half + i] = std::sin(angle);
    }
  }
  const auto bytes = static_cast<size_t>(rows * cols * half) * sizeof(float);
  ops_->memory().Upload(b.cos, cos_.data(), bytes);
  ops_->memory().Upload(b.sin, sin_.data(), bytes);
}

void VisionTower::Block(const VisionBlockWeights& weights, const Buffers& b) {
  const checkpoint::VisionConfig& v = config_.vision;
  const int64_t head_dim = v.dim / v.n_heads;
  ops_->RmsNorm(b.x, weights.norm1, kNormEps, b.y);
  Linear(b.y, weights.wqkv, weights.wqkv_bias, b.qkv);
  ops_->VisionAttention({b.qkv, v.n_heads, head_dim, {b.cos, b.sin, head_dim / 2}, b.packed, b.y});
  Linear(b.y, weights.wo, weights.wo_bias, b.z);
  ops_->Add(b.x, b.z);
  ops_->RmsNorm(b.x, weights.norm2, kNormEps, b.y);
  Linear(b.y, weights.w1, {}, b.gate_up);
  ops_->SiluMul(b.gate_up, b.hidden);
  Linear(b.hidden, weights.w2, {}, b.z);
  ops_->Add(b.x, b.z);
}

absl::Status VisionTower::Encode(const ImagePatches& image, ops::Tensor out) {
  HADAL_RETURN_IF_ERROR(Check(image, out));
  Buffers b;
  Carve(config_, ops_->act(), image.rows * image.cols, out.rows, memory_.data(), &b);
  ops::Memory& memory = ops_->memory();
  memory.Upload(b.patches, image.pixels.data(), image.pixels.size());
  ops_->NormalisePixels(b.patches, b.pixels);
  Linear(b.pixels, weights_.patch_embed, weights_.patch_embed_bias, b.x);
  UploadAngles(image.rows, image.cols, b);
  for (const VisionBlockWeights& block : weights_.blocks) Block(block, b);
  ops_->RmsNorm(b.x, weights_.norm, kNormEps, b.x);
  ops_->UnfoldGrid(b.x, image.rows, image.cols, config_.vision.downsample_ratio, b.unfolded);
  Linear(b.unfolded, weights_.aligner_w1, weights_.aligner_w1_bias, b.projected);
  ops_->Gelu(b.projected);
  Linear(b.projected, weights_.aligner_w2, weights_.aligner_w2_bias, b.aligned);
  row_pointers_.clear();
  for (const int32_t row : image.order) row_pointers_.push_back(Rows(b.aligned, row, 1).data);
  memory.Upload(static_cast<void*>(b.order), static_cast<const void*>(row_pointers_.data()),
                row_pointers_.size() * sizeof(const void*));
  ops_->PlaceEmbeddings({b.order, row_pointers_.size()}, 1, b.embeddings);
  const auto row_bytes = static_cast<size_t>(DTypeBytes(out.dtype, out.cols));
  if (out.stride == out.cols) {
    memory.Download(out.data, b.embeddings.data, static_cast<size_t>(out.rows) * row_bytes);
  } else {
    for (int64_t i = 0; i < out.rows; ++i) {
      memory.Download(Rows(out, i, 1).data, Rows(b.embeddings, i, 1).data, row_bytes);
    }
  }
  return ops_->Synchronize();
}

}  // namespace hadal::models::deepseek_v4
