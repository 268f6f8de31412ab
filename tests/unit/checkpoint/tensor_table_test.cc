// Known totals of the published checkpoints, and what a check reports.
#include "checkpoint/tensor_table.h"

#include <set>

#include "checkpoint/synth.h"
#include "test_util.h"

namespace hadal::checkpoint {
namespace {

size_t Count(std::string_view preset, bool draft) {
  return TensorTable::For(*PresetConfig(preset), draft).specs().size();
}

// Spec deepseek-v4-text 2.2.
TEST(TensorTable, TotalsOfV4) {
  EXPECT_EQ(Count("v4-flash", false), 67612u);
  EXPECT_EQ(Count("v4-flash", true), 69187u);
  EXPECT_EQ(Count("v4-pro", false), 142773u);
  EXPECT_EQ(Count("v4-pro", true), 145116u);
  EXPECT_EQ(Count("v4-flash-base", true), 69187u);
}

// Spec vision-and-cache 1.3: 72,633 tensors in the whole checkpoint, whose drafter is DSpark; 316 names beyond text, of
// which 43 + 3 gate tensors and 267 of tower and aligner belong to the main model.
TEST(TensorTable, TotalsOfVision) {
  EXPECT_EQ(Count("v4-flash-vision", true), 72633u);
  EXPECT_EQ(Count("v4-flash-vision", false), 67612u + 267u + 43u + 3u);
}

// Spec deepseek-v32 2: 671.9 G parameters, 11.6 G more in layer 61 without its copies of embedding and head.
TEST(TensorTable, SizesOfV32) {
  const ModelConfig config = *PresetConfig("v3.2");
  int64_t main = 0, draft = 0;
  for (const TensorSpec& spec : TensorTable::For(config, true).specs()) {
    if (spec.is_scale() || spec.name.find("layers.61.embed_tokens") == 0 ||
        spec.name.find("layers.61.shared_head.head") == 0) {
      continue;
    }
    (spec.category == TensorCategory::kDraft ? draft : main) += spec.elements();
  }
  EXPECT_NEAR(static_cast<double>(main), 671.9e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(draft), 11.6e9, 0.05e9);
  const TensorTable table = TensorTable::For(config, false);
  EXPECT_EQ(table.Find("layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv")->shape, (std::vector<int64_t>{5, 56}));
  EXPECT_EQ(table.Find("layers.61.enorm.weight"), nullptr);
  EXPECT_NE(table.Find("layers.2.mlp.gate_proj.weight"), nullptr);
  EXPECT_EQ(table.Find("layers.3.mlp.gate_proj.weight"), nullptr);
}

TEST(TensorTable, ShapesOfFlash) {
  const TensorTable table = TensorTable::For(*PresetConfig("v4-flash"), true);
  const auto shape = [&table](const char* name) { return ShapeText(table.Find(name)->shape); };
  EXPECT_EQ(shape("layers.0.attn.wo_a.weight"), "[8192, 4096]");
  EXPECT_EQ(shape("layers.0.attn.wo_a.scale"), "[64, 32]");
  EXPECT_EQ(shape("layers.2.attn.compressor.ape"), "[4, 1024]");
  EXPECT_EQ(shape("layers.3.attn.compressor.ape"), "[128, 512]");
  EXPECT_EQ(shape("layers.2.attn.indexer.wq_b.weight"), "[8192, 1024]");
  EXPECT_EQ(shape("layers.0.ffn.gate.tid2eid"), "[129280, 6]");
  EXPECT_EQ(shape("layers.5.ffn.experts.255.w1.weight"), "[2048, 4096]");
  EXPECT_EQ(shape("layers.5.ffn.experts.255.w2.scale"), "[4096, 64]");
  EXPECT_EQ(shape("mtp.0.hc_head_fn"), "[4, 16384]");
  EXPECT_EQ(table.Find("layers.0.ffn.gate.bias"), nullptr);
  EXPECT_EQ(table.Find("layers.3.ffn.gate.tid2eid"), nullptr);
  EXPECT_EQ(table.Find("mtp.0.attn.compressor.ape"), nullptr);
}

TEST(TensorTable, NamesAreUnique) {
  for (std::string_view preset : PresetNames()) {
    const TensorTable table = TensorTable::For(*PresetConfig(preset), true);
    std::set<std::string_view> names;
    for (const TensorSpec& spec : table.specs()) EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
  }
}

TEST(NormaliseEntry, PackedFp4AndScaleBytes) {
  const TensorTable table = TensorTable::For(*PresetConfig("v4-flash"), false);
  for (DType stored : {DType::kI8, DType::kU8}) {
    TensorEntry entry{.name = "x", .dtype = stored, .shape = {2048, 2048}};
    NormaliseEntry(*table.Find("layers.0.ffn.experts.0.w1.weight"), &entry);
    EXPECT_EQ(entry.dtype, DType::kF4E2M1);
    EXPECT_EQ(entry.shape, (std::vector<int64_t>{2048, 4096}));
  }
  TensorEntry logical{.name = "x", .dtype = DType::kF4E2M1, .shape = {2048, 4096}};
  NormaliseEntry(*table.Find("layers.0.ffn.experts.0.w1.weight"), &logical);
  EXPECT_EQ(logical.shape, (std::vector<int64_t>{2048, 4096}));
  TensorEntry scale{.name = "x", .dtype = DType::kU8, .shape = {2048, 128}};
  NormaliseEntry(*table.Find("layers.0.ffn.experts.0.w1.scale"), &scale);
  EXPECT_EQ(scale.dtype, DType::kF8E8M0);
  TensorEntry other{.name = "x", .dtype = DType::kU8, .shape = {4}};
  NormaliseEntry(*table.Find("layers.0.hc_attn_base"), &other);
  EXPECT_EQ(other.dtype, DType::kU8);
}

TEST(LayerOf, ReadsNumbers) {
  EXPECT_EQ(LayerOf("layers.12.attn", "layers"), 12);
  EXPECT_EQ(LayerOf("mtp.0.x", "mtp"), 0);
  EXPECT_EQ(LayerOf("layers.x.attn", "layers"), -1);
  EXPECT_EQ(LayerOf("layers.12", "layers"), -1);
  EXPECT_EQ(LayerOf("layers.99999999999999999999.a", "layers"), -1);
  EXPECT_EQ(LayerOf("vision.blocks.1.a", "layers"), -1);
  EXPECT_EQ(LayerOf("layers", "layers"), -1);
}

}  // namespace
}  // namespace hadal::checkpoint
