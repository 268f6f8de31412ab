// Whole files to patches, against the recorded results of the reference (Pillow), byte for byte.
#include "vision/preprocess.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "support/paths.h"
#include "unit/vision/images.h"
#include "vision/image_block.h"

namespace hadal::vision {
namespace {

using nlohmann::json;

std::string Folder() { return test::FullVectors("preprocess").value_or(test::DataPath("vision/preprocess")); }

json Manifest() {
  std::ifstream in(Folder() + "/manifest.json");
  return json::parse(in);
}

SizeRules Rules(const json& config) {
  SizeRules rules;
  rules.patch = config.at("vision_patch_size");
  rules.downsample = config.at("vision_downsample_ratio");
  rules.max_tokens = config.at("vision_max_n_token");
  rules.min_pixels = config.at("vision_min_pixels");
  rules.max_wh_ratio = config.at("vision_max_wh_ratio");
  return rules;
}

// The tensors of a vector file.
class Tensors {
 public:
  explicit Tensors(const std::string& path) {
    auto file = checkpoint::SafetensorsFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) return;
    file_ = *std::move(file);
    for (const checkpoint::TensorEntry& entry : file_->entries()) entries_[entry.name] = &entry;
  }
  bool Has(const std::string& name) const { return entries_.count(name) != 0; }
  std::span<const uint8_t> Data(const std::string& name) const {
    const checkpoint::TensorEntry& entry = *entries_.at(name);
    return {reinterpret_cast<const uint8_t*>(entry.data), static_cast<size_t>(entry.bytes)};
  }

 private:
  std::unique_ptr<checkpoint::SafetensorsFile> file_;
  std::map<std::string, const checkpoint::TensorEntry*> entries_;
};

void ExpectSameBytes(std::span<const uint8_t> actual, std::span<const uint8_t> expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  const auto [a, b] = std::mismatch(actual.begin(), actual.end(), expected.begin());
  EXPECT_TRUE(a == actual.end()) << what << " differs first at byte " << a - actual.begin() << ": " << int{*a}
                                 << ", expected " << int{*b};
}

void CheckGrid(const PreparedImage& prepared, const json& expected) {
  const ImageGrid& grid = prepared.grid;
  EXPECT_EQ(json({grid.width, grid.height}), expected.at("resized"));
  EXPECT_EQ(json({grid.vit_rows, grid.vit_cols}), expected.at("patch_grid"));
  EXPECT_EQ(json({grid.llm_rows, grid.llm_cols}), expected.at("token_grid"));
  EXPECT_EQ(json(prepared.order), expected.at("aligner_order"));
  std::vector<int> types;
  for (const SpanToken type : BuildImageBlock(grid.llm_rows, grid.llm_cols, 5)) types.push_back(static_cast<int>(type));
  EXPECT_EQ(json(types), expected.at("block_types_at_5"));
}

void CheckImage(const json& image, const SizeRules& tiny, const SizeRules& flash, int* compared) {
  const std::string file = image.at("file");
  SCOPED_TRACE(file);
  const Bytes bytes = ReadBytes(Folder() + "/" + file);
  const auto decoded = DecodeImage(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(json({decoded->width, decoded->height}), image.at("size"));
  const auto small = PrepareImage(bytes, {}, tiny);
  ASSERT_TRUE(small.ok()) << small.status();
  CheckGrid(*small, image.at("tiny"));
  const auto large = PrepareImage(bytes, {}, flash);
  ASSERT_TRUE(large.ok()) << large.status();
  CheckGrid(*large, image.at("flash"));

  const std::string path = Folder() + "/" + std::filesystem::path(file).stem().string() + ".safetensors";
  if (!std::filesystem::exists(path)) return;
  const Tensors tensors(path);
  if (tensors.Has("rgb")) ExpectSameBytes(decoded->pixels, tensors.Data("rgb"), "decoded image");
  ExpectSameBytes(small->patches_u8, tensors.Data("patches_u8"), "patches");
  const std::span<const uint8_t> rows = tensors.Data("flash_patch_rows");
  const size_t patch_bytes = 3 * flash.patch * flash.patch;
  Bytes chosen;
  for (size_t i = 0; i < rows.size(); i += sizeof(int64_t)) {
    int64_t row = 0;
    std::memcpy(&row, rows.data() + i, sizeof row);
    const auto begin = large->patches_u8.begin() + static_cast<int64_t>(row * patch_bytes);
    chosen.insert(chosen.end(), begin, begin + static_cast<int64_t>(patch_bytes));
  }
  ExpectSameBytes(chosen, tensors.Data("flash_patches_u8"), "patches of the large configuration");
  ++*compared;
}

TEST(Preprocess, Vectors) {
  const json manifest = Manifest();
  const SizeRules tiny = Rules(manifest.at("configs").at("tiny"));
  const SizeRules flash = Rules(manifest.at("configs").at("flash"));
  int compared = 0;
  for (const json& image : manifest.at("images")) CheckImage(image, tiny, flash, &compared);
  EXPECT_EQ(manifest.at("images").size(), 16u);
  EXPECT_EQ(compared, test::FullVectors("preprocess").has_value() ? 16 : 12);
}

TEST(Preprocess, HashFollowsTheContentOnly) {
  const RgbImage image = SyntheticImage(100, 80);
  const auto first = PrepareImage(image);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(PrepareImage(EncodePng(image))->content_hash, first->content_hash);
  RgbImage other = image;
  other.row(40)[120] ^= 64;
  EXPECT_NE(PrepareImage(other)->content_hash, first->content_hash);
  // The same grey levels on canvases of other proportions.
  const auto wide = PrepareImage(RgbImage::Filled(800, 400, 127));
  const auto tall = PrepareImage(RgbImage::Filled(400, 800, 127));
  EXPECT_EQ(wide->patches_u8, tall->patches_u8);
  EXPECT_NE(wide->content_hash, tall->content_hash);
}

TEST(Preprocess, ExtremeProportions) {
  const auto tall = PrepareImage(EncodePng(SyntheticImage(1, 4000)));
  ASSERT_TRUE(tall.ok()) << tall.status();
  EXPECT_EQ(tall->grid.height, 7896);
  EXPECT_EQ(tall->original_height, 4000);
  const auto wide = PrepareImage(EncodePng(SyntheticImage(4000, 1)));
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_TRUE(wide->grid.stretch);
  const auto thread = PrepareImage(EncodePng(SyntheticImage(1, 20'000)));
  EXPECT_TRUE(absl::IsInvalidArgument(thread.status()));
}

}  // namespace
}  // namespace hadal::vision
