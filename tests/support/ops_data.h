// Owning buffers behind the views of ops/tensor.h, filled with repeatable random data: matrices, quantised weights,
// pools of paged rows and batches.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/float_formats.h"
#include "ops/row_format.h"
#include "ops/tensor.h"

namespace hadal::test {

// The same numbers everywhere: the standard's distributions differ between libraries, its engines do not.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int64_t Index(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  float Uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(static_cast<double>(engine_() >> 11) * 0x1p-53);
  }
  // Mean 0, variance 1, nearly Gaussian: the sum of four uniform numbers.
  float Normal() {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += Uniform(-1, 1);
    return sum * 0.8660254f;
  }
  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i > 1; --i) std::swap((*items)[i - 1], (*items)[Index(static_cast<int64_t>(i))]);
  }

 private:
  std::mt19937_64 engine_;
};

inline std::vector<float> RandomFloats(Random* random, int64_t n, float scale = 1.0f) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = random->Normal() * scale;
  return values;
}

// A [rows, cols] kBF16 or kF32 matrix. Rows lie cols + padding elements apart; the padding holds a pattern that
// operators must leave alone.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t cols, int64_t padding = 0)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(cols + padding),
        bytes_(static_cast<size_t>(DTypeBytes(dtype, rows * (cols + padding))), kPattern) {}

  static Matrix RandomNormal(Random* random, DType dtype, int64_t rows, int64_t cols, float scale = 1.0f,
                             int64_t padding = 0) {
    Matrix m(dtype, rows, cols, padding);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) m.Set(r, c, random->Normal() * scale);
    }
    return m;
  }
  static Matrix Filled(DType dtype, int64_t rows, int64_t cols, float value) {
    Matrix m(dtype, rows, cols);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) m.Set(r, c, value);
    }
    return m;
  }

  ops::Tensor view() { return {bytes_.data(), dtype_, rows_, cols_, stride_}; }
  ops::Vector vector() const { return {bytes_.data(), dtype_, rows_ * cols_}; }

  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  float At(int64_t r, int64_t c) const {
    const int64_t i = r * stride_ + c;
    if (dtype_ == DType::kF32) return reinterpret_cast<const float*>(bytes_.data())[i];
    return ToFloat(reinterpret_cast<const BFloat16*>(bytes_.data())[i]);
  }
  void Set(int64_t r, int64_t c, float v) {
    const int64_t i = r * stride_ + c;
    if (dtype_ == DType::kF32) {
      reinterpret_cast<float*>(bytes_.data())[i] = v;
    } else {
      reinterpret_cast<BFloat16*>(bytes_.data())[i] = ToBFloat16(v);
    }
  }
  void SetRow(int64_t r, const std::vector<float>& values) {
    for (int64_t c = 0; c < cols_; ++c) Set(r, c, values[c]);
  }
  std::vector<float> Row(int64_t r) const {
    std::vector<float> row(static_cast<size_t>(cols_));
    for (int64_t c = 0; c < cols_; ++c) row[c] = At(r, c);
    return row;
  }
  // The rows named by `index`, in that order.
  Matrix Take(const std::vector<int64_t>& index) const {
    Matrix m(dtype_, static_cast<int64_t>(index.size()), cols_);
    for (size_t i = 0; i < index.size(); ++i) m.SetRow(static_cast<int64_t>(i), Row(index[i]));
    return m;
  }
  bool PaddingIntact() const {
    const size_t row = static_cast<size_t>(DTypeBytes(dtype_, stride_));
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (i % row >= static_cast<size_t>(DTypeBytes(dtype_, cols_)) && bytes_[i] != kPattern) return false;
    }
    return true;
  }

 private:
  static constexpr uint8_t kPattern = 0xA5;

  DType dtype_;
  int64_t rows_, cols_, stride_;
  std::vector<uint8_t> bytes_;
};

// A linear layer's weight in a published format, with the values it stands for. The values are computed here from the
// formats' definitions and not by the decoder of any implementation.
class Weight {
 public:
  static Weight RandomFp8(Random* random, int64_t n, int64_t k, DType scale_dtype = DType::kF8E8M0) {
    Weight w(n, k, DType::kF8E4M3, scale_dtype);
    const int64_t blocks = (k + 127) / 128;
    const std::vector<float> scales = w.RandomScales(random, (n + 127) / 128 * blocks);
    w.data_.resize(static_cast<size_t>(n * k));
    for (int64_t o = 0; o < n; ++o) {
      for (int64_t i = 0; i < k; ++i) {
        const uint8_t code = FloatToE4M3(random->Normal() * 100.0f);
        w.data_[o * k + i] = code;
        w.values_[o * k + i] = E4M3Definition(code) * scales[o / 128 * blocks + i / 128];
      }
    }
    return w;
  }

  static Weight RandomFp4(Random* random, int64_t n, int64_t k, DType scale_dtype = DType::kF8E8M0) {
    Weight w(n, k, DType::kF4E2M1, scale_dtype);
    const std::vector<float> scales = w.RandomScales(random, n * (k / 32));
    w.data_.assign(static_cast<size_t>(n * k / 2), 0);
    for (int64_t o = 0; o < n; ++o) {
      for (int64_t i = 0; i < k; ++i) {
        const auto code = static_cast<uint8_t>(random->Index(16));
        w.data_[(o * k + i) / 2] |= static_cast<uint8_t>(i % 2 == 0 ? code : code << 4);
        w.values_[o * k + i] = E2M1Definition(code) * scales[o * (k / 32) + i / 32];
      }
    }
    return w;
  }

  // Plain kBF16 or kF32 values, rounded to that format.
  static Weight FromValues(DType dtype, int64_t n, int64_t k, const std::vector<float>& values) {
    Weight w(n, k, dtype, DType::kF8E8M0);
    w.data_.resize(static_cast<size_t>(DTypeBytes(dtype, n * k)));
    for (int64_t i = 0; i < n * k; ++i) {
      w.values_[i] = dtype == DType::kBF16 ? RoundBF16(values[i]) : values[i];
      if (dtype == DType::kBF16) {
        const BFloat16 v = ToBFloat16(values[i]);
        std::memcpy(w.data_.data() + 2 * i, &v, sizeof(v));
      } else {
        std::memcpy(w.data_.data() + 4 * i, &values[i], sizeof(float));
      }
    }
    return w;
  }

  // Values on the E2M1 or E4M3 grid, all scales 1.
  static Weight FromGrid(DType dtype, int64_t n, int64_t k, const std::vector<float>& values) {
    Weight w(n, k, dtype, DType::kF8E8M0);
    const bool fp4 = dtype == DType::kF4E2M1;
    w.data_.assign(static_cast<size_t>(DTypeBytes(dtype, n * k)), 0);
    w.scale_.assign(static_cast<size_t>(fp4 ? n * (k / 32) : (n + 127) / 128 * ((k + 127) / 128)), 127);
    for (int64_t i = 0; i < n * k; ++i) {
      if (fp4) {
        w.data_[i / 2] |= static_cast<uint8_t>(FloatToE2M1(values[i]) << (i % 2 * 4));
      } else {
        w.data_[i] = FloatToE4M3(values[i]);
      }
    }
    w.values_ = values;
    return w;
  }

  static Weight RandomOf(Random* random, DType dtype, int64_t n, int64_t k) {
    if (dtype == DType::kF8E4M3) return RandomFp8(random, n, k);
    if (dtype == DType::kF4E2M1) return RandomFp4(random, n, k);
    return FromValues(dtype, n, k, RandomFloats(random, n * k, 1.0f / std::sqrt(static_cast<float>(k))));
  }

  ops::LinearWeight view() const {
    return {n_, k_, dtype_, data_.data(), scale_dtype_, scale_.empty() ? nullptr : scale_.data()};
  }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  float At(int64_t o, int64_t i) const { return values_[o * k_ + i]; }

 private:
  Weight(int64_t n, int64_t k, DType dtype, DType scale_dtype)
      : n_(n), k_(k), dtype_(dtype), scale_dtype_(scale_dtype), values_(static_cast<size_t>(n * k)) {}

  static float E4M3Definition(uint8_t code) {
    const int exponent = (code >> 3) & 15;
    const auto mantissa = static_cast<float>(code & 7);
    const float value =
        exponent == 0 ? mantissa * std::exp2(-9.0f) : (1.0f + mantissa / 8.0f) * std::exp2(float(exponent - 7));
    return code >= 128 ? -value : value;
  }
  static float E2M1Definition(uint8_t code) {
    constexpr float kMagnitudes[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    return code >= 8 ? -kMagnitudes[code - 8] : kMagnitudes[code];
  }
  // Powers of two of the size that published weights have.
  std::vector<float> RandomScales(Random* random, int64_t count) {
    std::vector<float> scales(static_cast<size_t>(count));
    scale_.resize(static_cast<size_t>(scale_dtype_ == DType::kF32 ? 4 * count : count));
    for (int64_t i = 0; i < count; ++i) {
      const int exponent = -12 + static_cast<int>(random->Index(5));
      scales[i] = std::exp2(static_cast<float>(exponent));
      if (scale_dtype_ == DType::kF32) {
        std::memcpy(scale_.data() + 4 * i, &scales[i], sizeof(float));
      } else {
        scale_[i] = static_cast<uint8_t>(127 + exponent);
      }
    }
    return scales;
  }

  int64_t n_, k_;
  DType dtype_, scale_dtype_;
  std::vector<uint8_t> data_, scale_;
  std::vector<float> values_;
};

// Rows of several sequences in one pool, in blocks that are dealt out at random. With `ring` a position is found at
// position modulo `rows_per_sequence`.
class Pool {
 public:
  Pool(Random* random, DType dtype, int64_t cols, int32_t sequences, int64_t rows_per_sequence, int32_t block_rows,
       bool ring = false)
      : block_rows_(block_rows),
        blocks_per_seq_((rows_per_sequence + block_rows - 1) / block_rows),
        ring_(ring),
        blocks_(static_cast<size_t>(sequences * blocks_per_seq_)),
        rows_(dtype, sequences * blocks_per_seq_ * block_rows, cols) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    random->Shuffle(&blocks_);
  }

  ops::PagedRows view() {
    return {rows_.view().data,
            rows_.dtype(),
            rows_.cols(),
            {blocks_.data(), blocks_per_seq_, block_rows_, ring_ ? static_cast<int32_t>(blocks_per_seq_) : 0},
            ops::RowFormat::kPlain,
            0,
            block_rows_ * DTypeBytes(rows_.dtype(), rows_.cols())};
  }
  void FillRandom(Random* random, float scale = 1.0f) {
    for (int64_t r = 0; r < rows_.rows(); ++r) rows_.SetRow(r, RandomFloats(random, rows_.cols(), scale));
  }
  void Fill(float value) {
    for (int64_t r = 0; r < rows_.rows(); ++r)
      rows_.SetRow(r, std::vector<float>(static_cast<size_t>(rows_.cols()), value));
  }
  std::vector<float> Row(int32_t seq, int64_t position) const { return rows_.Row(SlotOf(seq, position)); }
  void SetRow(int32_t seq, int64_t position, const std::vector<float>& v) { rows_.SetRow(SlotOf(seq, position), v); }
  const Matrix& storage() const { return rows_; }
  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int32_t block_rows() const { return block_rows_; }

 private:
  // Written out again on purpose: what SlotMap has to give.
  int64_t SlotOf(int32_t seq, int64_t position) const {
    const int64_t local = ring_ ? position % (blocks_per_seq_ * block_rows_) : position;
    return blocks_[seq * blocks_per_seq_ + local / block_rows_] * int64_t{block_rows_} + local % block_rows_;
  }

  int32_t block_rows_;
  int64_t blocks_per_seq_;
  bool ring_;
  std::vector<int32_t> blocks_;
  Matrix rows_;
};

// The rows of a plain pool once more in packed pages, at the same places. Pages lie apart; the bytes between them hold
// a pattern that operators must leave alone. The plain pool outlives this one, whose view uses its block table.
class PackedPool {
 public:
  // Every row is quantised, and `plain` takes the values that are left of it.
  PackedPool(Pool* plain, ops::RowFormat format, int64_t tail)
      : view_(plain->view()),
        payload_(ops::PageBytes(format, DType::kBF16, view_.cols, tail, plain->block_rows())),
        bytes_(static_cast<size_t>(plain->blocks() * (payload_ + kGap)), kPattern) {
    view_.data = bytes_.data();
    view_.format = format;
    view_.tail = tail;
    view_.block_stride = payload_ + kGap;
    ForEachRow(plain, [](const ops::PagedRows& from, const ops::PagedRows& to, int64_t row, float* values) {
      ops::DecodeRow(from, 0, row, values);
      ops::EncodeRow(to, 0, row, values);
    });
    Unpack(plain);
  }

  const ops::PagedRows& view() const { return view_; }
  std::vector<float> Row(int32_t seq, int64_t position) const {
    std::vector<float> row(static_cast<size_t>(view_.cols));
    ops::DecodeRow(view_, seq, position, row.data());
    return row;
  }
  // Arbitrary codes, those of zero, subnormal and largest numbers among them, but no NaN; scales around 1. `plain`
  // takes the values.
  void FillCodes(Random* random, Pool* plain) {
    const int64_t values = plain->block_rows() * ops::RowValueBytes(view_.format, view_.dtype, view_.cols, view_.tail);
    const bool fp8 = view_.format == ops::RowFormat::kFp8DsMla;
    for (int64_t b = 0; b < plain->blocks(); ++b) {
      uint8_t* page = bytes_.data() + b * view_.block_stride;
      for (int64_t i = 0; i < payload_; ++i) {
        const bool scale = i >= values;
        page[i] = static_cast<uint8_t>(scale ? 120 + random->Index(6) : random->Index(256));
        if (!scale && fp8 && (page[i] & 0x7F) == 0x7F) page[i] ^= 1;
      }
    }
    // The tails as numbers: arbitrary bytes would be huge ones and NaN.
    if (view_.tail > 0) {
      ForEachRow(plain, [&](const ops::PagedRows&, const ops::PagedRows& to, int64_t row, float*) {
        const ops::RowPlace place = ops::RowPlaces(to).At(0, row);
        auto* tail = reinterpret_cast<BFloat16*>(place.values + view_.cols - view_.tail);
        for (int64_t i = 0; i < view_.tail; ++i) tail[i] = ToBFloat16(random->Normal());
      });
    }
    Unpack(plain);
  }
  bool GapsIntact() const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (static_cast<int64_t>(i) % view_.block_stride >= payload_ && bytes_[i] != kPattern) return false;
    }
    return true;
  }

 private:
  static constexpr uint8_t kPattern = 0xA5;
  static constexpr int64_t kGap = 64 + 6;  // pages at any even address

  // Calls f with every row of the plain and of this pool, by its place and not by its position.
  template <typename F>
  void ForEachRow(Pool* plain, const F& f) {
    std::vector<int32_t> identity(static_cast<size_t>(plain->blocks()));
    std::iota(identity.begin(), identity.end(), 0);
    ops::PagedRows from = plain->view(), to = view_;
    from.map = to.map = {identity.data(), plain->blocks(), plain->block_rows(), 0};
    std::vector<float> values(static_cast<size_t>(view_.cols));
    for (int64_t row = 0; row < plain->blocks() * plain->block_rows(); ++row) f(from, to, row, values.data());
  }
  void Unpack(Pool* plain) {
    ForEachRow(plain, [](const ops::PagedRows& from, const ops::PagedRows& to, int64_t row, float* values) {
      ops::DecodeRow(to, 0, row, values);
      ops::EncodeRow(from, 0, row, values);
    });
  }

  ops::PagedRows view_;
  int64_t payload_;
  std::vector<uint8_t> bytes_;
};

struct Batch {
  std::vector<int32_t> ids, positions, seqs;

  void Add(int32_t seq, int32_t position, int32_t id = 0) {
    seqs.push_back(seq);
    positions.push_back(position);
    ids.push_back(id);
  }
  // `count` tokens of one sequence from position `first`.
  static Batch Run(int64_t count, int32_t first = 0, int32_t seq = 0) {
    Batch batch;
    for (int64_t i = 0; i < count; ++i) batch.Add(seq, first + static_cast<int32_t>(i), static_cast<int32_t>(i));
    return batch;
  }
  Batch Take(const std::vector<int64_t>& index) const {
    Batch batch;
    for (int64_t i : index) batch.Add(seqs[i], positions[i], ids[i]);
    return batch;
  }
  int64_t size() const { return static_cast<int64_t>(seqs.size()); }
  ops::BatchRows view() const { return {size(), ids.data(), positions.data(), seqs.data()}; }
};

}  // namespace hadal::test
