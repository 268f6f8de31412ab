// What the vision-language wrapper and the text model behind it refuse, and the learned vectors of image tokens (spec
// deepseek-v4-vision-and-cache 4.1 to 4.3, 5.6).
#include "models/deepseek_v4/common/vl/vl_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>

#include "base/float_formats.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "models/deepseek_v4/amd/vl_shim.h"
#include "models/deepseek_v4/nvidia/vl_shim.h"
#include "models/registry/registry.h"
#include "platforms/cpu/cpu_ops.h"
#include "runtime/images.h"
#include "support/paths.h"
#include "text/tokenizer.h"

namespace hadal::models {
namespace {

using ::testing::HasSubstr;

class VlModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = checkpoint::Checkpoint::Open(test::BundledModel());
    ASSERT_TRUE(opened.ok());
    checkpoint_ = *std::move(opened);
    const auto tokenizer = text::Tokenizer::Load(test::BundledModel());
    ASSERT_TRUE(tokenizer.ok());
    const auto tokens = runtime::FindImageTokens(**tokenizer);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    tokens_ = *tokens;
    for (size_t i = 0; i < kRows; ++i) positions_[i] = static_cast<int32_t>(i);
  }

  std::unique_ptr<Model> Make(bool images) {
    ModelOptions options;
    options.threads = 1;
    options.limits.max_context = 64;
    options.limits.max_batch_tokens = 64;
    options.limits.image_first_id = tokens_.first;
    options.limits.images = images;
    auto model = CreateModel(*checkpoint_, options);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  StepInput Step() {
    StepInput step;
    step.ids = ids_;
    step.positions = positions_;
    step.seqs = seqs_;
    return step;
  }

  static constexpr size_t kRows = 8;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  runtime::ImageTokenIds tokens_;
  std::array<int32_t, kRows> ids_ = {5, 6, 7, 8, 9, 10, 11, 12}, positions_ = {}, seqs_ = {};
};

// Embeddings of the step, stream 0.
class EmbeddingObserver : public StepObserver {
 public:
  void OnStreams(int layer, const ops::Tensor& streams) override {
    if (layer != -1) return;
    const auto* data = static_cast<const uint16_t*>(streams.data);
    rows.assign(data, data + streams.rows * streams.stride);
    stride = streams.stride;
  }
  std::vector<uint16_t> rows;
  int64_t stride = 0;
};

TEST_F(VlModelTest, EmbeddingsDoNotReplaceIds) {
  const std::unique_ptr<Model> model = Make(true);
  StepInput step = Step();
  step.ids = {};
  EXPECT_EQ(std::string(Message(model->Forward(step))), "DeepSeek V4 hash MoE routing requires input_ids.");
  EXPECT_EQ(model->Forward(step).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(model->Forward(Step()).ok());
  EXPECT_FALSE(model->Draft(0, step).ok());
}

TEST_F(VlModelTest, VisibilityComesInPairs) {
  const std::unique_ptr<Model> model = Make(true);
  const std::array<int32_t, kRows> zeros = {};
  StepInput step = Step();
  step.left_visible = zeros;
  EXPECT_EQ(std::string(Message(model->Forward(step))), "left_visible and right_visible must be provided together");
  step.right_visible = std::span(zeros).first(3);
  EXPECT_FALSE(model->Forward(step).ok());
  step.right_visible = zeros;
  EXPECT_TRUE(model->Forward(step).ok());
}

// A span that its caller cut is seen as far as it is there, never beyond.
TEST_F(VlModelTest, SpansAreClampedToWhatIsThere) {
  const std::unique_ptr<Model> model = Make(true);
  std::array<int32_t, kRows> left, right;
  left.fill(63);
  right.fill(64);
  std::vector<float> clamped(model->config().vocab_size), whole(clamped.size());
  const std::array<int32_t, 1> last = {0};
  StepInput step = Step();
  step.logit_rows = last;
  step.left_visible = left;
  step.right_visible = right;
  step.logits = clamped.data();
  ASSERT_TRUE(model->Forward(step).ok());
  for (size_t i = 0; i < kRows; ++i) {
    left[i] = static_cast<int32_t>(i);
    right[i] = static_cast<int32_t>(kRows - 1 - i);
  }
  step.logits = whole.data();
  ASSERT_TRUE(model->Forward(step).ok());
  EXPECT_EQ(clamped, whole);
}

TEST_F(VlModelTest, ImageTokensTakeTheLearnedVectors) {
  const std::unique_ptr<Model> model = Make(true);
  for (int32_t kind = 0; kind < 5; ++kind) ids_[kind] = tokens_.first + kind;
  ids_[5] = tokens_.first + 5;  // text again
  EmbeddingObserver observer;
  StepInput step = Step();
  step.observer = &observer;
  ASSERT_TRUE(model->Forward(step).ok());
  const char* names[] = {"image_start", "image_pad", "image_pad", "image_newline", "image_end"};
  const int64_t d = model->config().hidden_size;
  for (int kind = 0; kind < 5; ++kind) {
    const auto values = checkpoint::ReadFloats(**checkpoint_->Get(names[kind]));
    ASSERT_TRUE(values.ok());
    for (int64_t i = 0; i < d; ++i) {
      ASSERT_EQ(observer.rows[kind * observer.stride + i], ToBFloat16((*values)[i]).bits) << names[kind] << " " << i;
    }
  }
  const auto* table = (*checkpoint_->Get("embed.weight"))->as<uint16_t>();
  EXPECT_EQ(std::memcmp(observer.rows.data() + 5 * observer.stride, table + ids_[5] * d, d * 2), 0);
}

TEST_F(VlModelTest, WithoutATowerThereAreNoImages) {
  const std::unique_ptr<Model> model = Make(false);
  ASSERT_TRUE(model->Forward(Step()).ok());
  const absl::Status status = model->EncodeImage({}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("images are disabled"));
}

// Every platform's names and order of loading give the same weights.
TEST_F(VlModelTest, ShimsLoadTheSameModel) {
  std::vector<std::vector<float>> logits;
  for (const deepseek_v4::VlShim& shim :
       {deepseek_v4::kPlainShim, deepseek_v4::nvidia::kVlShim, deepseek_v4::amd::kVlShim}) {
    auto ops = cpu::MakeCpuOps({.threads = 1});
    ASSERT_TRUE(ops.ok());
    ModelLimits limits;
    limits.max_context = limits.max_batch_tokens = 64;
    limits.image_first_id = tokens_.first;
    limits.images = true;
    auto model = deepseek_v4::VlModel::Create(*checkpoint_, *std::move(ops), limits, shim);
    ASSERT_TRUE(model.ok()) << model.status();
    const std::array<int32_t, 1> last = {kRows - 1};
    StepInput step = Step();
    step.logit_rows = last;
    std::vector<float>& out = logits.emplace_back((*model)->config().vocab_size);
    step.logits = out.data();
    ASSERT_TRUE((*model)->Forward(step).ok());
    EXPECT_EQ(out, logits.front());
  }
}

TEST(AmdNames, ScalesOfThirdPartyExports) {
  const auto map = checkpoint::WeightMap::Create(deepseek_v4::amd::TextRules(checkpoint::ExpertDType::kFp4));
  ASSERT_TRUE(map.ok()) << map.status();
  const auto name = [&](const char* from) { return (*map->Apply(from))->name; };
  EXPECT_EQ(name("layers.3.attn.wq_b.weight_scale"), "model.layers.3.attn.wq_b.weight_scale_inv");
  EXPECT_EQ(name("layers.3.attn.wq_b.scale"), "model.layers.3.attn.wq_b.weight_scale_inv");
  EXPECT_EQ(name("layers.3.ffn.experts.5.w1.weight_scale"), "model.layers.3.ffn.experts.5.w1.weight_scale");
  EXPECT_EQ(name("layers.3.ffn.experts.5.w1.scale"), "model.layers.3.ffn.experts.5.w1.weight_scale");
  EXPECT_EQ(name("layers.3.ffn.shared_experts.w2.weight"), "model.layers.3.ffn.shared_experts.w2.weight");
}

// Counts what the tower has to do.
class CountingModel : public Model {
 public:
  explicit CountingModel(Model* model) : model_(model) {}
  const checkpoint::ModelConfig& config() const override { return model_->config(); }
  const ModelLimits& limits() const override { return model_->limits(); }
  ModelMemory memory() const override { return model_->memory(); }
  ops::Ops& ops() override { return model_->ops(); }
  absl::Status Forward(const StepInput& step) override { return model_->Forward(step); }
  absl::Status Draft(int block, const StepInput& step) override { return model_->Draft(block, step); }
  absl::Status EncodeImage(const ImagePatches& image, ops::Tensor out) override {
    ++encoded;
    return model_->EncodeImage(image, out);
  }
  int encoded = 0;

 private:
  Model* model_;
};

TEST_F(VlModelTest, ImagesAreEncodedOnceByContent) {
  const std::unique_ptr<Model> model = Make(true);
  CountingModel counting(model.get());
  const vision::SizeRules rules = runtime::SizeRulesOf(model->config().vision);
  std::vector<std::shared_ptr<const vision::PreparedImage>> images;
  for (const uint8_t level : {10, 200, 10}) {
    auto image = vision::PrepareImage(vision::RgbImage::Filled(90, 60, level), rules);
    ASSERT_TRUE(image.ok());
    images.push_back(std::make_shared<const vision::PreparedImage>(*std::move(image)));
  }
  runtime::EmbeddingCache cache;
  const auto embeddings = [&](size_t first, size_t count, runtime::EmbeddingCache* with) {
    std::vector<int32_t> ids(count, tokens_.placeholder);
    auto placed = runtime::ExpandImages(std::span(images).subspan(first, count), tokens_, &ids);
    EXPECT_TRUE(placed.ok());
    auto context = runtime::ImageContext::Create(&counting, *placed, ids, tokens_, with);
    EXPECT_TRUE(context.ok()) << context.status();
    StepInput step;
    context->Fill(0, static_cast<int64_t>(ids.size()), &step);
    std::vector<std::vector<std::byte>> rows;
    for (const void* row : step.embeddings) {
      if (row == nullptr) continue;
      const auto* bytes = static_cast<const std::byte*>(row);
      rows.emplace_back(bytes, bytes + 2 * model->config().hidden_size);
    }
    return rows;
  };
  const auto want = embeddings(0, 3, nullptr);
  EXPECT_EQ(counting.encoded, 3);
  EXPECT_EQ(embeddings(0, 3, &cache), want);
  EXPECT_EQ(counting.encoded, 5);  // the first and the third are the same
  EXPECT_EQ(embeddings(0, 3, &cache), want);
  EXPECT_EQ(counting.encoded, 5);

  const size_t one = cache.bytes() / 2;
  runtime::EmbeddingCache small(one);  // has room for one
  embeddings(0, 1, &small);
  embeddings(1, 1, &small);
  EXPECT_EQ(small.bytes(), one);
  embeddings(1, 1, &small);
  EXPECT_EQ(counting.encoded, 7);
  embeddings(0, 1, &small);
  EXPECT_EQ(counting.encoded, 8);
  runtime::EmbeddingCache none(one - 1);
  embeddings(0, 1, &none);
  EXPECT_EQ(none.bytes(), 0u);
}

TEST_F(VlModelTest, PatchesThatDoNotFitAreRefused) {
  const std::unique_ptr<Model> model = Make(true);
  const std::vector<uint8_t> pixels(4 * 3 * 14 * 14, 128);
  std::vector<uint16_t> out(model->config().hidden_size);
  const ops::Tensor row = ops::MakeTensor(out.data(), DType::kBF16, 1, model->config().hidden_size);
  const std::vector<int32_t> order = {0}, wrong = {1};
  EXPECT_TRUE(model->EncodeImage({pixels, 2, 2, order}, row).ok());
  EXPECT_THAT(std::string(Message(model->EncodeImage({pixels, 2, 3, order}, row))), HasSubstr("bytes of patches"));
  EXPECT_THAT(std::string(Message(model->EncodeImage({pixels, 0, 2, order}, row))), HasSubstr("0 patches"));
  EXPECT_THAT(std::string(Message(model->EncodeImage({pixels, 1 << 20, 1 << 20, order}, row))), HasSubstr("patches"));
  EXPECT_THAT(std::string(Message(model->EncodeImage({pixels, 2, 2, wrong}, row))), HasSubstr("aligner row 1"));
  EXPECT_THAT(std::string(Message(model->EncodeImage({pixels, 2, 2, {}}, row))), HasSubstr("embeddings"));
}

}  // namespace
}  // namespace hadal::models
