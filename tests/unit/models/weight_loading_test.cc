// The loading contract of the vision wrapper (spec deepseek-v4-vision-and-cache 7.2; traps 31 and 32 of section 8).
#include "models/weight_loading.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace hadal::models {
namespace {

using checkpoint::TensorEntry;
using ::testing::ElementsAre;

std::vector<TensorEntry> Entries(const std::vector<std::string>& names) {
  std::vector<TensorEntry> entries;
  for (const std::string& name : names) {
    TensorEntry entry;
    entry.name = name;
    entries.push_back(entry);
  }
  return entries;
}

// Notes what happens to it in the journal that both parts share.
class FakeTarget : public WeightTarget {
 public:
  FakeTarget(const char* name, bool finalizes_during_load, std::vector<std::string>* journal)
      : name_(name), finalizes_during_load_(finalizes_during_load), journal_(journal) {}

  bool finalizes_during_load() const override { return finalizes_during_load_; }
  absl::Status LoadWeights(TensorStream next) override {
    journal_->push_back(name_ + " load");
    while (true) {
      HADAL_ASSIGN_OR_RETURN(const MappedTensor* tensor, next());
      if (tensor == nullptr) break;
      journal_->push_back(tensor->shard < 0 ? tensor->name : fmt::format("{}#{}", tensor->name, tensor->shard));
      if (stop_early) return absl::OkStatus();
    }
    if (finalizes_during_load_) ++finalized;
    return absl::OkStatus();
  }
  absl::Status ProcessWeightsAfterLoading() override {
    ++finalized;
    return absl::OkStatus();
  }

  int finalized = 0;
  bool stop_early = false;

 private:
  std::string name_;
  bool finalizes_during_load_;
  std::vector<std::string>* journal_;
};

class PartLoaderTest : public ::testing::Test {
 protected:
  PartLoader Make(WeightTarget* language, WeightTarget* vision, bool images = true) {
    auto loader = PartLoader::Create(checkpoint::V4VisionRules(checkpoint::V4TextRules({}), images), language, vision);
    EXPECT_TRUE(loader.ok()) << loader.status();
    return *std::move(loader);
  }

  const std::vector<TensorEntry> entries_ =
      Entries({"aligner.w1.weight", "embed.weight", "head.weight", "image_pad", "layers.3.attn.wkv.weight",
               "layers.3.attn.wq_a.weight", "mtp.0.ffn.gate.bias_vl", "vision.blocks.0.mlp.w1.weight"});
  std::vector<std::string> journal_;
};

TEST_F(PartLoaderTest, AChildThatFinalizesWhileLoadingGetsOneGroup) {
  FakeTarget language("language", true, &journal_), vision("vision", false, &journal_);
  PartLoader loader = Make(&language, &vision);
  ASSERT_TRUE(loader.Load(entries_).ok());
  ASSERT_TRUE(loader.ProcessWeightsAfterLoading().ok());
  ASSERT_TRUE(loader.ProcessWeightsAfterLoading().ok());
  EXPECT_EQ(language.finalized, 1);
  EXPECT_THAT(journal_,
              ElementsAre("vision load", "aligner.w1.weight", "image_pad", "vision.blocks.0.mlp.w1.weight",
                          "language load", "model.embed_tokens.weight", "lm_head.weight",
                          "model.layers.3.attn.fused_wqa_wkv.weight#1", "model.layers.3.attn.fused_wqa_wkv.weight#0"));
}

TEST_F(PartLoaderTest, ADeferredChildMayBeCalledOftenAndIsFinalizedOnce) {
  FakeTarget language("language", false, &journal_), vision("vision", false, &journal_);
  PartLoader loader = Make(&language, &vision);
  ASSERT_TRUE(loader.Load(entries_).ok());
  EXPECT_EQ(language.finalized, 0);
  ASSERT_TRUE(loader.ProcessWeightsAfterLoading().ok());
  ASSERT_TRUE(loader.ProcessWeightsAfterLoading().ok());
  EXPECT_EQ(language.finalized, 1);
  EXPECT_THAT(
      journal_,
      ElementsAre("vision load", "aligner.w1.weight", "language load", "model.embed_tokens.weight", "lm_head.weight",
                  "vision load", "image_pad", "language load", "model.layers.3.attn.fused_wqa_wkv.weight#1",
                  "model.layers.3.attn.fused_wqa_wkv.weight#0", "vision load", "vision.blocks.0.mlp.w1.weight"));
}

// Dummy weights never come through Load.
TEST_F(PartLoaderTest, WithoutALoadEveryChildIsFinalizedOnce) {
  for (const bool during_load : {true, false}) {
    FakeTarget language("language", during_load, &journal_), vision("vision", false, &journal_);
    PartLoader loader = Make(&language, &vision);
    ASSERT_TRUE(loader.ProcessWeightsAfterLoading().ok());
    ASSERT_TRUE(loader.ProcessWeightsAfterLoading().ok());
    EXPECT_EQ(language.finalized, 1);
  }
}

TEST_F(PartLoaderTest, WithoutImagesTheVisionPartGetsNothing) {
  FakeTarget language("language", true, &journal_), vision("vision", false, &journal_);
  PartLoader loader = Make(&language, &vision, false);
  ASSERT_TRUE(loader.Load(entries_).ok());
  EXPECT_THAT(journal_,
              ElementsAre("vision load", "language load", "model.embed_tokens.weight", "lm_head.weight",
                          "model.layers.3.attn.fused_wqa_wkv.weight#1", "model.layers.3.attn.fused_wqa_wkv.weight#0"));
}

TEST_F(PartLoaderTest, MappedNamesAreRefused) {
  FakeTarget language("language", true, &journal_), vision("vision", false, &journal_);
  PartLoader loader = Make(&language, &vision);
  EXPECT_EQ(loader.Load(Entries({"language_model.lm_head.weight"})).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PartLoaderTest, TensorsThatAreLeftUnreadAreAnError) {
  FakeTarget language("language", false, &journal_), vision("vision", false, &journal_);
  language.stop_early = true;
  PartLoader loader = Make(&language, &vision);
  EXPECT_EQ(loader.Load(entries_).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace hadal::models
