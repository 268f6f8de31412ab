// Single operations of DeepSeek V3.2 against tests/data/ops-v32.safetensors, on every implementation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/float_formats.h"
#include "checkpoint/synth.h"
#include "golden/v4/vectors.h"
#include "models/deepseek_v32/common/model.h"
#include "models/rope.h"
#include "support/ops_data.h"
#include "support/ops_implementations.h"
#include "support/paths.h"

namespace hadal::test {
namespace {

const Vectors& Golden() {
  static const Vectors* vectors = new Vectors(DataPath("ops-v32.safetensors"));
  return *vectors;
}

Matrix Of(const std::string& name, int64_t cols, DType dtype = DType::kBF16) {
  const std::vector<float> values = Golden().Floats(name);
  Matrix m(dtype, static_cast<int64_t>(values.size()) / cols, cols);
  for (int64_t r = 0; r < m.rows(); ++r) {
    m.SetRow(r, {values.begin() + r * cols, values.begin() + (r + 1) * cols});
  }
  return m;
}

// Steps of bf16 between two values on its grid.
int64_t Bf16Steps(float a, float b) {
  const auto order = [](float v) {
    const int32_t bits = ToBFloat16(v).bits;
    return bits >= 0x8000 ? 0x8000 - bits : bits;
  };
  return std::abs(order(a) - order(b));
}

// Sums in another order may round to the neighbour; near zero a step is nothing.
void ExpectNear(const Matrix& got, const std::vector<float>& want, int64_t steps = 1, double least = 1e-3) {
  ASSERT_EQ(static_cast<size_t>(got.rows() * got.cols()), want.size());
  int64_t unequal = 0;
  for (int64_t r = 0; r < got.rows(); ++r) {
    for (int64_t c = 0; c < got.cols(); ++c) {
      const float w = want[r * got.cols() + c];
      const float g = got.At(r, c);
      unequal += g != w;
      EXPECT_TRUE(Bf16Steps(g, w) <= steps || std::fabs(g - w) < least)
          << "row " << r << ", column " << c << ": " << g << " instead of " << w;
    }
  }
  EXPECT_LE(unequal, got.rows() * got.cols() / 10);
}

// A batch of rows at positions of one sequence.
struct Rows {
  std::vector<int32_t> ids, positions, seqs;
  explicit Rows(std::vector<int32_t> at) : ids(at.size(), 0), positions(std::move(at)), seqs(ids.size(), 0) {}
  ops::BatchRows view() const {
    return {static_cast<int64_t>(positions.size()), ids.data(), positions.data(), seqs.data()};
  }
};

// One page of packed rows.
struct Page {
  std::vector<int32_t> blocks = {0};
  std::vector<std::byte> bytes;
  ops::PagedRows view;

  Page(ops::RowFormat format, int64_t cols, int64_t tail, int32_t rows)
      : bytes(static_cast<size_t>(ops::PageBytes(format, DType::kBF16, cols, tail, rows)), std::byte{0}) {
    view.data = bytes.data();
    view.dtype = DType::kBF16;
    view.cols = cols;
    view.map = {blocks.data(), 1, rows, 0};
    view.format = format;
    view.tail = tail;
    view.block_stride = static_cast<int64_t>(bytes.size());
  }
  uint8_t At(size_t i) const { return static_cast<uint8_t>(bytes[i]); }
};

checkpoint::ModelConfig V32Config() { return *checkpoint::PresetConfig("v3.2"); }

class V32Operations : public ::testing::TestWithParam<OpsImplementation> {
 protected:
  void SetUp() override { ops_ = Make(ops::Numerics::kPublished); }
  // The implementation, with room for what these tests ask of it.
  static std::unique_ptr<ops::Ops> Make(ops::Numerics numerics) {
    ops::WorkspaceSpec spec;
    spec.max_tokens = 32;
    spec.hidden = 512;
    spec.hc_mult = 1;
    spec.max_linear_k = 1024;
    spec.max_linear_n = 1024;
    spec.heads = 8;
    spec.head_dim = 576;
    spec.experts = 256;
    spec.experts_per_token = 8;
    spec.moe_intermediate = 512;
    spec.max_attended_rows = 128;
    spec.max_compressed_rows = 128;
    spec.index_heads = 8;
    spec.index_head_dim = 128;
    spec.any_scales = true;
    std::unique_ptr<ops::Ops> ops = GetParam().make(numerics);
    EXPECT_TRUE(ops->Reserve(spec).ok());
    return ops;
  }
  // cos and sin of the given positions.
  ops::RopeAngles Angles(const Rows& rows, const std::vector<float>& freqs) {
    cos_.resize(rows.positions.size() * freqs.size());
    sin_.resize(cos_.size());
    ops_->ComputeRopeAngles(rows.view(), freqs, cos_.data(), sin_.data());
    return {cos_.data(), sin_.data(), static_cast<int64_t>(freqs.size())};
  }

  std::unique_ptr<ops::Ops> ops_;
  std::vector<float> cos_, sin_;
};
INSTANTIATE_TEST_SUITE_P(Vectors, V32Operations, ::testing::ValuesIn(OpsImplementations()),
                         [](const auto& p) { return p.param.name; });

TEST_P(V32Operations, Norms) {
  for (const auto& [name, cols] : {std::pair<std::string, int64_t>{"hidden", 256}, {"latent", 512}}) {
    Matrix x = Of("rms_norm." + name + ".x", cols), out(DType::kBF16, x.rows(), cols);
    const Matrix weight = Of("rms_norm." + name + ".weight", cols);
    ops_->RmsNorm(x.view(), weight.vector(), 1e-6f, out.view());
    ExpectNear(out, Golden().Floats("rms_norm." + name + ".y"));
  }
  Matrix x = Of("add_rms_norm.x", 256), residual = Of("add_rms_norm.residual", 256);
  const Matrix weight = Of("add_rms_norm.weight", 256);
  Matrix out(DType::kBF16, x.rows(), 256);
  ops_->AddRmsNorm({x.view(), residual.view(), weight.vector(), 1e-6f, out.view()});
  ExpectNear(out, Golden().Floats("add_rms_norm.y"));
  ExpectNear(residual, Golden().Floats("add_rms_norm.residual_out"), 0, 0);
}

TEST_P(V32Operations, InputOfTheDraftBlock) {
  const Rows rows(Golden().Ints("eh_norm.positions"));
  Matrix e = Of("eh_norm.embeds", 256), h = Of("eh_norm.prev_hidden", 256), out(DType::kBF16, e.rows(), 512);
  const Matrix before = e;
  const Matrix enorm = Of("eh_norm.enorm", 256), hnorm = Of("eh_norm.hnorm", 256);
  ops_->MtpNorm({e.view(), h.view(), enorm.vector(), hnorm.vector(), 1e-6f, rows.view(), out.view()});
  ExpectNear(out, Golden().Floats("eh_norm.y"));
  // The shared embedding stays as it is.
  for (int64_t r = 0; r < e.rows(); ++r) EXPECT_EQ(e.Row(r), before.Row(r));
}

TEST_P(V32Operations, Yarn) {
  const checkpoint::ModelConfig config = V32Config();
  const std::vector<float> freqs = models::YarnFrequencies(config.rope_theta, 64, config.rope_scaling);
  const std::vector<float> want = Golden().Floats("yarn.inv_freq");
  ASSERT_EQ(freqs.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(freqs[i], want[i], 2e-7 * want[i]) << i;
  EXPECT_NEAR(models::deepseek_v32::SoftmaxScale(config), Golden().Floats("yarn.softmax_scale")[0], 1e-8);
  EXPECT_NEAR(models::deepseek_v32::SoftmaxScale(config), 0.13523378, 1e-7);

  const Rows rows(Golden().Ints("yarn.positions"));
  const ops::RopeAngles angles = Angles(rows, want);
  const std::vector<float> cos = Golden().Floats("yarn.cos"), sin = Golden().Floats("yarn.sin");
  for (size_t i = 0; i < cos.size(); ++i) {
    EXPECT_NEAR(angles.cos[i], cos[i], 1e-6) << i;
    EXPECT_NEAR(angles.sin[i], sin[i], 1e-6) << i;
  }
}

// MLA's queries rotate adjacent pairs of the last values.
TEST_P(V32Operations, RotaryTail) {
  const Rows rows(Golden().Ints("yarn.positions"));
  const ops::RopeAngles angles = Angles(rows, Golden().Floats("yarn.inv_freq"));
  const std::vector<float> x = Golden().Floats("rope.x"), want = Golden().Floats("rope.y_interleaved");
  const auto count = static_cast<int64_t>(rows.positions.size());
  constexpr int64_t kHeads = 2, kIn = 192, kOut = 576;
  Matrix q = Matrix::Filled(DType::kBF16, count, kHeads * kIn, 3);
  Matrix out = Matrix::Filled(DType::kBF16, count, kHeads * kOut, 5);
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < 64; ++i) q.Set(t, h * kIn + 128 + i, x[(t * kHeads + h) * 64 + i]);
    }
  }
  ops_->RopeTail({q.view(), kHeads, kIn, angles, out.view(), kOut});
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < 512; ++i) ASSERT_EQ(out.At(t, h * kOut + i), 5);
      for (int64_t i = 0; i < 64; ++i) {
        EXPECT_LE(Bf16Steps(out.At(t, h * kOut + 512 + i), want[(t * kHeads + h) * 64 + i]), 1);
      }
    }
  }
}

// One value at dimension 0 of position 1 turns into dimension 32 of a key, not into dimension 1; what is at dimension
// 64 stays (spec 9, traps 1 and 2).
TEST_P(V32Operations, TheIndexerRotatesHalves) {
  const Rows rows({1});
  const ops::RopeAngles angles = Angles(rows, Golden().Floats("yarn.inv_freq"));
  const auto rotated = [&](int64_t at) {
    Matrix q = Matrix::Filled(DType::kBF16, 1, 128, 0);
    q.Set(0, at, 1);
    ops_->IndexerQuery({q.view(), 1, 128, angles, ops::IndexerStyle::kV32});
    // The Hadamard transform is its own inverse.
    std::vector<float> x = q.Row(0), back(128, 0.0f);
    for (int64_t i = 0; i < 128; ++i) {
      for (int64_t j = 0; j < 128; ++j) {
        back[i] += (__builtin_popcountll(static_cast<uint64_t>(i & j)) % 2 == 0 ? x[j] : -x[j]) / std::sqrt(128.0f);
      }
    }
    return back;
  };
  const std::vector<float> first = rotated(0);
  EXPECT_NEAR(first[0], std::cos(1.0f), 0.05);
  EXPECT_NEAR(first[32], std::sin(1.0f), 0.05);
  EXPECT_NEAR(first[1], 0, 0.05);
  const std::vector<float> behind = rotated(64);
  EXPECT_NEAR(behind[64], 1, 0.05);
  EXPECT_NEAR(behind[96], 0, 0.05);
}

TEST_P(V32Operations, Fp8Linear) {
  const std::vector<uint8_t> codes = Golden().Bytes("fp8_linear.weight");
  const std::vector<float> scales = Golden().Floats("fp8_linear.weight_scale_inv");
  ops::LinearWeight weight = {320, 256, DType::kF8E4M3, codes.data(), DType::kF32, scales.data()};
  Matrix x = Of("fp8_linear.x", 256), out(DType::kBF16, x.rows(), 320);
  for (const bool exponents : {true, false}) {
    weight.exponent_scales = exponents;
    ops_->Linear(x.view(), std::array{ops::LinearTarget{&weight, out.view(), ops::InputQuant::kFp8}});
    ExpectNear(out, Golden().Floats("fp8_linear.y"), 1, 2e-3);
    ops_->Linear(x.view(), std::array{ops::LinearTarget{&weight, out.view(), ops::InputQuant::kNone}});
    ExpectNear(out, Golden().Floats("fp8_linear.y_w8a16"), 1, 2e-3);
  }
}

// Scales as V3 and R1 have them: any number above zero.
TEST_P(V32Operations, Fp8LinearWithAnyScales) {
  const std::vector<uint8_t> codes = Golden().Bytes("fp8_linear.weight");
  std::vector<float> scales = Golden().Floats("fp8_linear.weight_scale_inv");
  for (size_t i = 0; i < scales.size(); ++i) scales[i] *= 1.0f + 0.37f * static_cast<float>(i + 1) / 7;
  ops::LinearWeight weight = {320, 256, DType::kF8E4M3, codes.data(), DType::kF32, scales.data()};
  weight.exponent_scales = false;
  Matrix x = Of("fp8_linear.x", 256), out(DType::kBF16, x.rows(), 320);
  ops_->Linear(x.view(), std::array{ops::LinearTarget{&weight, out.view(), ops::InputQuant::kNone}});
  std::vector<float> want(static_cast<size_t>(out.rows() * 320));
  for (int64_t t = 0; t < out.rows(); ++t) {
    for (int64_t o = 0; o < 320; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < 256; ++i) {
        sum += static_cast<double>(x.At(t, i)) * E4M3ToFloat(codes[o * 256 + i]) * scales[o / 128 * 2 + i / 128];
      }
      want[t * 320 + o] = RoundBF16(static_cast<float>(sum));
    }
  }
  ExpectNear(out, want, 1, 2e-3);
}

// Quantised inputs, read through rows of an identity: codes times scales, to the bit, under scales of both kinds.
TEST_P(V32Operations, InputQuantisation) {
  constexpr int64_t kCols = 384;
  std::vector<float> identity(static_cast<size_t>(kCols * kCols), 0.0f);
  for (int64_t i = 0; i < kCols; ++i) identity[i * kCols + i] = 1;
  const Weight weight = Weight::FromGrid(DType::kF8E4M3, kCols, kCols, identity);
  const ops::LinearWeight view = weight.view();
  for (const auto& [name, quant] : {std::pair<std::string, ops::InputQuant>{"ue8m0", ops::InputQuant::kFp8},
                                    {"float", ops::InputQuant::kFp8AnyScale}}) {
    Matrix x = Of("act_quant.x", kCols), out(DType::kF32, x.rows(), kCols);
    const std::vector<uint8_t> codes = Golden().Bytes("act_quant." + name + ".codes");
    const std::vector<float> scales = Golden().Floats("act_quant." + name + ".scales");
    ops_->Linear(x.view(), std::array{ops::LinearTarget{&view, out.view(), quant}});
    for (int64_t i = 0; i < x.rows() * kCols; ++i) {
      ASSERT_EQ(out.At(i / kCols, i % kCols), E4M3ToFloat(codes[i]) * scales[i / 128]) << name << " value " << i;
    }
  }
}

TEST_P(V32Operations, Router) {
  for (const std::string name : {"gate.small", "gate.full"}) {
    const std::vector<int32_t> config = Golden().Ints(name + ".config");  // experts, groups, kept groups, k
    const std::vector<float> bias = Golden().Floats(name + ".bias");
    Matrix logits = Of(name + ".logits", config[0], DType::kF32);
    std::vector<int32_t> experts(static_cast<size_t>(logits.rows() * config[3]));
    std::vector<float> weights(experts.size());
    std::vector<int32_t> at(static_cast<size_t>(logits.rows()));
    std::iota(at.begin(), at.end(), 0);
    const Rows rows(at);
    ops::MoeRouteArgs args;
    args.logits = logits.view();
    args.bias = bias.data();
    args.experts_per_token = config[3];
    args.scale = 2.5f;
    args.scores = ops::RouterScores::kSigmoid;
    args.groups = config[1];
    args.topk_groups = config[2];
    args.batch = rows.view();
    args.experts = experts.data();
    args.weights = weights.data();
    ops_->MoeRoute(args);
    EXPECT_EQ(experts, Golden().Ints(name + ".ids"));
    const std::vector<float> want = Golden().Floats(name + ".weights");
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(weights[i], want[i], 2e-6) << name << " " << i;
  }
}

TEST_P(V32Operations, LayerNormRotationAndHadamardOfAKey) {
  // Position 0 does not rotate: what is stored is the transform of the norm.
  const Rows rows({0, 1, 2, 3});
  Matrix k = Of("layer_norm.x", 128);
  const Matrix weight = Of("layer_norm.weight", 128, DType::kF32), bias = Of("layer_norm.bias", 128, DType::kF32);
  const std::vector<float> zero(32, 0.0f);
  Random random(1);
  Pool pool(&random, DType::kF32, 128, 1, 4, 4);
  const std::unique_ptr<ops::Ops> f32 = Make(ops::Numerics::kF32);
  Matrix wide(DType::kF32, 4, 128);
  for (int64_t r = 0; r < 4; ++r) wide.SetRow(r, k.Row(r));
  f32->IndexerKeyStore(
      {wide.view(), weight.vector(), bias.vector(), 1e-6f, Angles(rows, zero), rows.view(), pool.view()});
  const std::vector<float> norm = Golden().Floats("layer_norm.y");
  for (int64_t r = 0; r < 4; ++r) {
    const std::vector<float> stored = pool.Row(0, r);
    for (int64_t i = 0; i < 128; ++i) {
      double want = 0;
      for (int64_t j = 0; j < 128; ++j) {
        want += (__builtin_popcountll(static_cast<uint64_t>(i & j)) % 2 == 0 ? 1 : -1) * norm[r * 128 + j];
      }
      // The vectors' norm is rounded to bf16.
      EXPECT_NEAR(stored[i], want / std::sqrt(128.0), 0.02) << r << " " << i;
    }
  }
}

TEST_P(V32Operations, LatentRows) {
  const Matrix kv = Of("kv656.kv", 512), pe = Of("kv656.k_pe", 64);
  const std::vector<uint8_t> want = Golden().Bytes("kv656.float.bytes");
  Page page(ops::RowFormat::kFp8DsMla656, 576, 64, 4);
  EXPECT_EQ(page.bytes.size(), 4u * 656);
  for (int64_t r = 0; r < 4; ++r) {
    std::vector<float> row = kv.Row(r);
    const std::vector<float> tail = pe.Row(r);
    row.insert(row.end(), tail.begin(), tail.end());
    ops::EncodeRow(page.view, 0, r, row.data());
  }
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_EQ(page.At(i), want[i]) << "byte " << i % 656 << " of row " << i / 656;
  const std::vector<float> back = Golden().Floats("kv656.float.read_back");
  std::vector<float> read(576);
  for (int64_t r = 0; r < 4; ++r) {
    ops::DecodeRow(page.view, 0, r, read.data());
    for (int64_t i = 0; i < 512; ++i) ASSERT_EQ(read[i], back[r * 512 + i]) << r << " " << i;
  }
}

// A row that the operator stores has the bytes of the scalar encoding of what it stores in a plain pool.
TEST_P(V32Operations, StoredRowsAreTheScalarEncoding) {
  Random random(3);
  const Rows rows({0, 1, 2, 3, 4});
  const ops::RopeAngles angles = Angles(rows, Golden().Floats("yarn.inv_freq"));
  const Matrix norm = Matrix::RandomNormal(&random, DType::kBF16, 1, 512);
  Page packed(ops::RowFormat::kFp8DsMla656, 576, 64, 8), want(ops::RowFormat::kFp8DsMla656, 576, 64, 8);
  Pool plain(&random, DType::kBF16, 576, 1, 8, 8);
  for (const bool to_plain : {true, false}) {
    Random same(4);
    Matrix kv = Matrix::RandomNormal(&same, DType::kBF16, 5, 576, 2);
    ops_->KvNormRopeStore(
        {kv.view(), norm.vector(), 1e-6f, angles, rows.view(), to_plain ? plain.view() : packed.view, false});
  }
  for (int64_t r = 0; r < 5; ++r) ops::EncodeRow(want.view, 0, r, plain.Row(0, r).data());
  EXPECT_EQ(packed.bytes, want.bytes);
}

TEST_P(V32Operations, IndexerKeys) {
  const Matrix k = Of("index132.k", 128);
  const std::vector<int32_t> slots = Golden().Ints("index132.slots");
  const std::vector<uint8_t> want = Golden().Bytes("index132.ue8m0.page64");
  Page page(ops::RowFormat::kFp8Key, 128, 0, 64);
  ASSERT_EQ(page.bytes.size(), want.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    ops::EncodeRow(page.view, 0, slots[i], k.Row(static_cast<int64_t>(i)).data());
  }
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(page.At(i), want[i]) << "byte " << i;

  // A packed row that the operator writes has the values of its plain row.
  Random random(5);
  const Rows rows({0, 1, 2, 3, 4});
  const ops::RopeAngles angles = Angles(rows, Golden().Floats("yarn.inv_freq"));
  const Matrix norm = Matrix::RandomNormal(&random, DType::kF32, 1, 128);
  const Matrix bias = Matrix::RandomNormal(&random, DType::kF32, 1, 128);
  Matrix x = Matrix::RandomNormal(&random, DType::kBF16, 5, 128);
  Page packed(ops::RowFormat::kFp8Key, 128, 0, 8);
  Pool plain(&random, DType::kBF16, 128, 1, 8, 8);
  ops_->IndexerKeyStore({x.view(), norm.vector(), bias.vector(), 1e-6f, angles, rows.view(), packed.view});
  ops_->IndexerKeyStore({x.view(), norm.vector(), bias.vector(), 1e-6f, angles, rows.view(), plain.view()});
  std::vector<float> read(128);
  for (int64_t r = 0; r < 5; ++r) {
    ops::DecodeRow(packed.view, 0, r, read.data());
    EXPECT_EQ(read, plain.Row(0, r)) << r;
  }
}

TEST_P(V32Operations, IndexScores) {
  const std::vector<uint8_t> codes = Golden().Bytes("index_score.k"), query = Golden().Bytes("index_score.q");
  const std::vector<float> k_scale = Golden().Floats("index_score.k_scale");
  const std::vector<float> weights = Golden().Floats("index_score.weights");
  const std::vector<float> want = Golden().Floats("index_score.scores");
  const std::vector<int32_t> sets = Golden().Ints("index_score.sets");
  const Rows rows(Golden().Ints("index_score.query_positions"));
  constexpr int64_t kKeys = 70, kHeads = 4, kTop = 64;
  Page page(ops::RowFormat::kFp8Key, 128, 0, 96);
  std::memcpy(page.bytes.data(), codes.data(), codes.size());
  std::memcpy(page.bytes.data() + 96 * 128, k_scale.data(), k_scale.size() * sizeof(float));
  const auto tokens = static_cast<int64_t>(rows.positions.size());
  Matrix q(DType::kBF16, tokens, kHeads * 128), w(DType::kF32, tokens, kHeads);
  // The vectors' weights are scaled already; the operator scales its own.
  const float scale = 1.0f / (std::sqrt(128.0f) * std::sqrt(4.0f));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < kHeads * 128; ++i) q.Set(t, i, E4M3ToFloat(query[t * kHeads * 128 + i]));
    for (int64_t h = 0; h < kHeads; ++h) w.Set(t, h, weights[t * kHeads + h] / scale);
  }
  std::vector<int32_t> topk(static_cast<size_t>(tokens * kTop));
  std::vector<float> scores(static_cast<size_t>(tokens * kKeys));
  ops::IndexerTopkArgs args;
  args.q = q.view();
  args.weights = w.view();
  args.heads = kHeads;
  args.head_dim = 128;
  args.ratio = 1;
  args.top_k = kTop;
  args.batch = rows.view();
  args.keys = page.view;
  args.out = topk.data();
  args.scores = scores.data();
  args.scores_stride = kKeys;
  args.style = ops::IndexerStyle::kV32;
  ops_->IndexerTopk(args);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j <= rows.positions[t]; ++j) {
      EXPECT_NEAR(scores[t * kKeys + j], want[t * kKeys + j], 1e-4 * (1 + std::fabs(want[t * kKeys + j])));
    }
    std::vector<int32_t> got(topk.begin() + t * kTop, topk.begin() + (t + 1) * kTop);
    EXPECT_EQ(got, std::vector<int32_t>(sets.begin() + t * kTop, sets.begin() + (t + 1) * kTop)) << t;
  }
}

// Equal scores keep the lower position. One head, one channel: the score of key j is its own value.
TEST_P(V32Operations, TiesKeepTheLowerPosition) {
  const std::vector<float> scores = Golden().Floats("topk_ties.scores");
  const std::vector<int32_t> sets = Golden().Ints("topk_ties.sets");
  constexpr int64_t kKeys = 90, kTop = 64;
  for (int64_t row = 0; row < 4; ++row) {
    Random random(1);
    Pool keys(&random, DType::kF32, 128, 1, kKeys, 16);
    keys.Fill(0);
    // A positive part through head 0 and a negative one through head 1, whose weight is -1.
    for (int64_t j = 0; j < kKeys; ++j) {
      std::vector<float> key(128, 0.0f);
      key[0] = std::max(scores[row * kKeys + j], 0.0f);
      key[1] = std::max(-scores[row * kKeys + j], 0.0f);
      keys.SetRow(0, j, key);
    }
    const std::unique_ptr<ops::Ops> f32 = Make(ops::Numerics::kF32);
    Matrix q = Matrix::Filled(DType::kF32, 1, 256, 0), w(DType::kF32, 1, 2);
    q.Set(0, 0, 1);
    q.Set(0, 128 + 1, 1);
    w.Set(0, 0, 16);
    w.Set(0, 1, -16);
    const Rows at({static_cast<int32_t>(kKeys - 1)});
    std::vector<int32_t> topk(kTop);
    ops::IndexerTopkArgs args;
    args.q = q.view();
    args.weights = w.view();
    args.heads = 2;
    args.head_dim = 128;
    args.ratio = 1;
    args.top_k = kTop;
    args.batch = at.view();
    args.keys = keys.view();
    args.out = topk.data();
    args.style = ops::IndexerStyle::kV32;
    f32->IndexerTopk(args);
    EXPECT_EQ(topk, std::vector<int32_t>(sets.begin() + row * kTop, sets.begin() + (row + 1) * kTop)) << row;
  }
}

TEST_P(V32Operations, SparseAttention) {
  constexpr int64_t kHeads = 4, kKeys = 70, kTop = 64;
  const Matrix cache = Of("sparse_mla.cache", 576);
  const std::vector<float> query = Golden().Floats("sparse_mla.q");
  const std::vector<int32_t> indices = Golden().Ints("sparse_mla.indices");
  Random random(2);
  Pool pool(&random, DType::kBF16, 576, 1, kKeys, 16);
  for (int64_t j = 0; j < kKeys; ++j) pool.SetRow(0, j, cache.Row(j));
  const Rows rows({kKeys - 1, kKeys - 1, kKeys - 1});
  Matrix q(DType::kBF16, 3, kHeads * 576), out(DType::kBF16, 3, kHeads * 512);
  for (int64_t t = 0; t < 3; ++t) {
    q.SetRow(t, {query.begin() + t * kHeads * 576, query.begin() + (t + 1) * kHeads * 576});
  }
  ops::SparseAttentionArgs args;
  args.q = q.view();
  args.heads = kHeads;
  args.head_dim = 576;
  args.value_dim = 512;
  args.softmax_scale = models::deepseek_v32::SoftmaxScale(V32Config());
  args.round_probabilities = true;
  args.batch = rows.view();
  args.compressed = pool.view();
  args.ratio = 1;
  args.topk = indices.data();
  args.topk_stride = kTop;
  args.out = out.view();
  ops_->SparseAttention(args);
  const std::vector<float> want = Golden().Floats("sparse_mla.out");
  ExpectNear(out, want);

  // A row that sees nothing gives zeros, and packed rows give what the same values in plain rows give.
  std::vector<int32_t> none(indices.size(), -1);
  args.topk = none.data();
  ops_->SparseAttention(args);
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < kHeads * 512; ++i) ASSERT_EQ(out.At(t, i), 0);
  }
  args.topk = indices.data();
  Page packed(ops::RowFormat::kFp8DsMla656, 576, 64, 80);
  Pool same(&random, DType::kBF16, 576, 1, 80, 80);
  std::vector<float> row(576);
  for (int64_t j = 0; j < kKeys; ++j) {
    ops::EncodeRow(packed.view, 0, j, cache.Row(j).data());
    ops::DecodeRow(packed.view, 0, j, row.data());
    same.SetRow(0, j, row);
  }
  Matrix from_packed(DType::kBF16, 3, kHeads * 512);
  args.compressed = same.view();
  ops_->SparseAttention(args);
  args.compressed = packed.view;
  args.out = from_packed.view();
  ops_->SparseAttention(args);
  for (int64_t t = 0; t < 3; ++t) EXPECT_EQ(from_packed.Row(t), out.Row(t));
}

// Experts whose weights multiply their outputs, and a dense layer as a shared expert alone.
TEST_P(V32Operations, DenseLayer) {
  Random random(9);
  const Weight gate = Weight::RandomFp8(&random, 512, 256), up = Weight::RandomFp8(&random, 512, 256);
  const Weight down = Weight::RandomFp8(&random, 256, 512);
  const ops::ExpertWeights dense = {gate.view(), up.view(), down.view()};
  Matrix x = Matrix::RandomNormal(&random, DType::kBF16, 3, 256), out(DType::kBF16, 3, 256),
         twice(DType::kBF16, 3, 256);
  ops::MoeExpertsArgs args;
  args.x = x.view();
  args.shared = &dense;
  args.weigh_outputs = true;
  args.out = out.view();
  ops_->MoeExperts(args);
  // The same weights as the only routed expert, with weight 2.
  const std::vector<int32_t> experts = {0, 0, 0};
  const std::vector<float> weights = {2, 2, 2};
  args.shared = nullptr;
  args.routed = std::span(&dense, 1);
  args.experts = experts.data();
  args.weights = weights.data();
  args.experts_per_token = 1;
  args.out = twice.view();
  ops_->MoeExperts(args);
  bool any = false;
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < 256; ++i) {
      EXPECT_EQ(twice.At(t, i), 2 * out.At(t, i));
      any = any || out.At(t, i) != 0;
    }
  }
  EXPECT_TRUE(any);
}

// Experts under scales that are no powers of two, with as many rows as there is room for.
TEST_P(V32Operations, ExpertsWithAnyScales) {
  constexpr int64_t kRows = 32, kExperts = 16, kChosen = 8, kHidden = 512, kWidth = 512;
  Random random(10);
  std::vector<Weight> weights;
  std::vector<ops::ExpertWeights> plain, any;
  for (int64_t e = 0; e < 3 * kExperts; ++e) {
    weights.push_back(Weight::RandomFp8(&random, kWidth, kHidden, DType::kF32));
  }
  for (int64_t e = 0; e < kExperts; ++e) {
    plain.push_back({weights[3 * e].view(), weights[3 * e + 1].view(), weights[3 * e + 2].view()});
    any.push_back(plain.back());
    any.back().w1.exponent_scales = any.back().w3.exponent_scales = any.back().w2.exponent_scales = false;
  }
  Matrix x = Matrix::RandomNormal(&random, DType::kBF16, kRows, kHidden);
  std::vector<int32_t> experts(kRows * kChosen);
  const std::vector<float> shares(experts.size(), 0.3f);
  for (int64_t i = 0; i < kRows * kChosen; ++i)
    experts[i] = static_cast<int32_t>((i / kChosen + i % kChosen * 2) % kExperts);
  Matrix want(DType::kBF16, kRows, kHidden), got(DType::kBF16, kRows, kHidden);
  ops::MoeExpertsArgs args;
  args.x = x.view();
  args.experts = experts.data();
  args.weights = shares.data();
  args.experts_per_token = kChosen;
  args.weigh_outputs = true;
  args.routed = plain;
  args.out = want.view();
  ops_->MoeExperts(args);
  args.routed = any;
  args.out = got.view();
  ops_->MoeExperts(args);
  // The scales are powers of two after all: another kernel, the same products.
  double difference = 0, size = 0;
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t i = 0; i < kHidden; ++i) {
      difference += std::pow(static_cast<double>(got.At(t, i)) - want.At(t, i), 2);
      size += std::pow(static_cast<double>(want.At(t, i)), 2);
    }
  }
  EXPECT_GT(size, 0);
  EXPECT_LT(std::sqrt(difference / size), 5e-3);
}

}  // namespace
}  // namespace hadal::test
