// Prompts with images give the same logits to the bit however they are served: chunk sizes around image spans, threads,
// company in the batch; and an image means the same at any offset.
#include "runtime/images.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <stdexcept>

#include "golden/v4/golden_run.h"
#include "invariance/v4/served_model.h"
#include "models/registry/registry.h"
#include "support/paths.h"
#include "text/tokenizer.h"
#include "vision/preprocess.h"

namespace hadal::test {
namespace {

template <typename T>
T Value(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(value.status().ToString());
  return *std::move(value);
}

constexpr int64_t kContext = 1200;

// A prompt as a server would hold it: text ids and images in their order.
struct Prompt {
  std::vector<int32_t> ids;
  std::vector<runtime::PlacedImage> images;
};

class ImageModel {
 public:
  ImageModel(const ServedParam& param, int threads, int64_t max_seqs)
      : checkpoint_(Value(checkpoint::Checkpoint::Open(param.model))),
        tokens_(Value(runtime::FindImageTokens(*Value(text::Tokenizer::Load(param.model))))) {
    models::ModelOptions options;
    options.device = param.device;
    options.isa = param.isa;
    options.threads = threads;
    options.limits.max_seqs = max_seqs;
    options.limits.max_context = kContext;
    options.limits.max_batch_tokens = kContext;
    options.limits.max_logit_rows = kContext;
    options.limits.image_first_id = tokens_.first;
    options.limits.images = true;
    model_ = Value(models::CreateModel(*checkpoint_, options));
  }

  int64_t vocab() const { return model_->config().vocab_size; }
  const runtime::ImageTokenIds& tokens() const { return tokens_; }

  std::shared_ptr<const vision::PreparedImage> Noise(int width, int height, uint32_t seed) const {
    vision::RgbImage image = vision::RgbImage::Filled(width, height, 0);
    uint32_t state = seed * 2654435761u + 1;
    for (uint8_t& v : image.pixels) v = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
    return std::make_shared<const vision::PreparedImage>(
        Value(vision::PrepareImage(image, runtime::SizeRulesOf(model_->config().vision))));
  }

  // Text of so many ids between the images: texts has one entry more than images.
  Prompt Make(const std::vector<int64_t>& texts,
              const std::vector<std::shared_ptr<const vision::PreparedImage>>& images, uint32_t seed) const {
    Prompt prompt;
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<int32_t> text = PseudoRandomIds(texts[i], seed + static_cast<uint32_t>(i));
      prompt.ids.insert(prompt.ids.end(), text.begin(), text.end());
      if (i < images.size()) prompt.ids.push_back(tokens_.placeholder);
    }
    prompt.images = Value(runtime::ExpandImages(images, tokens_, &prompt.ids));
    return prompt;
  }

  runtime::ImageContext Context(const Prompt& prompt) {
    return Value(runtime::ImageContext::Create(model_.get(), prompt.images, prompt.ids, tokens_));
  }

  // Logits of rows [begin, end), and those of a draft step behind them.
  Logits Step(const Prompt& prompt, const runtime::ImageContext& context, int64_t begin, int64_t end, int32_t seq,
              Logits* drafts) {
    const auto count = static_cast<size_t>(end - begin);
    std::vector<int32_t> positions(count), rows(count);
    const std::vector<int32_t> seqs(count, seq);
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
    std::iota(rows.begin(), rows.end(), 0);
    Logits logits(count * vocab());
    models::StepInput step;
    step.ids = std::span(prompt.ids).subspan(begin, count);
    step.positions = positions;
    step.seqs = seqs;
    step.logit_rows = rows;
    step.logits = logits.data();
    context.Fill(begin, end, &step);
    Forward(step);
    if (drafts != nullptr) {
      models::StepInput all;
      context.Fill(0, static_cast<int64_t>(prompt.ids.size()), &all);
      std::vector<int32_t> next;
      std::vector<const void*> embeddings;
      for (int64_t p = begin + 1; p <= end; ++p) {
        const bool inside = p < static_cast<int64_t>(prompt.ids.size());
        next.push_back(inside ? prompt.ids[p] : 3);
        embeddings.push_back(inside && !all.embeddings.empty() ? all.embeddings[p] : nullptr);
      }
      Logits draft(logits.size());
      step.ids = next;
      step.embeddings = embeddings;
      step.logits = draft.data();
      if (const absl::Status status = model_->Draft(0, step); !status.ok()) throw std::runtime_error(status.ToString());
      drafts->insert(drafts->end(), draft.begin(), draft.end());
    }
    return logits;
  }

  Logits Run(const Prompt& prompt, int64_t chunk, int32_t seq = 0, Logits* drafts = nullptr) {
    const runtime::ImageContext context = Context(prompt);
    const auto size = static_cast<int64_t>(prompt.ids.size());
    Logits out;
    for (int64_t begin = 0, end = 0; begin < size; begin = end) {
      end = runtime::ChunkEnd(prompt.images, begin, chunk, size);
      const Logits logits = Step(prompt, context, begin, end, seq, drafts);
      out.insert(out.end(), logits.begin(), logits.end());
    }
    return out;
  }

  void Forward(const models::StepInput& step) {
    if (const absl::Status status = model_->Forward(step); !status.ok()) throw std::runtime_error(status.ToString());
  }

 private:
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  runtime::ImageTokenIds tokens_;
  std::unique_ptr<models::Model> model_;
};

class InvarianceImages : public ::testing::TestWithParam<ServedParam> {
 protected:
  void SetUp() override {
    const std::string absent = WhyAbsent({GetParam().name, GetParam().device, GetParam().isa});
    if (!absent.empty()) GTEST_SKIP() << absent;
  }
};

TEST_P(InvarianceImages, ChunksAroundSpans) {
  ImageModel model(GetParam(), 1, 1);
  const auto wide = model.Noise(300, 120, 1), tall = model.Noise(90, 260, 2);
  const std::vector<std::pair<const char*, Prompt>> prompts = {
      {"between text", model.Make({5, 130, 9}, {wide, tall}, 1)},
      {"first", model.Make({0, 12}, {wide}, 2)},
      {"last", model.Make({140, 0}, {tall}, 3)},
      {"alone", model.Make({0, 0}, {wide}, 4)},
      {"side by side", model.Make({126, 0, 1}, {tall, wide}, 5)}};
  for (const auto& [name, prompt] : prompts) {
    const auto size = static_cast<int64_t>(prompt.ids.size());
    Logits want_draft;
    const Logits want = model.Run(prompt, size, 0, &want_draft);
    for (const int64_t chunk : {1, 3, 7, 64, 128, 512}) {
      Logits got_draft;
      const Logits got = model.Run(prompt, chunk, 0, &got_draft);
      EXPECT_EQ(got.size(), want.size());
      EXPECT_EQ(FirstDifference(got, want, model.vocab()), -1) << name << ", " << chunk << " a step";
      EXPECT_EQ(FirstDifference(got_draft, want_draft, model.vocab()), -1) << name << ", " << chunk << ", drafts";
    }
    // A chunk that ends one token before, at and one token behind the span.
    const vision::SpanRecord& record = prompt.images.front().record;
    for (const int64_t cut : {record.offset, record.offset + record.length, record.offset + record.length + 1}) {
      if (cut <= 0 || cut >= size) continue;
      const runtime::ImageContext context = model.Context(prompt);
      Logits got = model.Step(prompt, context, 0, cut, 0, nullptr);
      const Logits rest = model.Step(prompt, context, cut, size, 0, nullptr);
      got.insert(got.end(), rest.begin(), rest.end());
      EXPECT_EQ(FirstDifference(got, want, model.vocab()), -1) << name << ", cut at " << cut;
    }
  }
}

TEST_P(InvarianceImages, ThreadsAndSlotsUsedBefore) {
  ImageModel one(GetParam(), 1, 2);
  const auto image = one.Noise(200, 200, 3);
  const Prompt prompt = one.Make({20, 30}, {image}, 6);
  const Prompt other = one.Make({150, 0, 60}, {one.Noise(250, 90, 4), image}, 7);
  const Logits want = one.Run(prompt, 512, 0);
  one.Run(other, 512, 1);
  EXPECT_EQ(FirstDifference(one.Run(prompt, 512, 1), want, one.vocab()), -1) << "slot used before";
  if (GetParam().device == "reference") return;
  for (const int threads : {2, 3}) {
    ImageModel more(GetParam(), threads, 1);
    EXPECT_EQ(FirstDifference(more.Run(prompt, 512), want, more.vocab()), -1) << threads << " threads";
  }
}

// One step with the decode row of a text sequence and the whole prompt of another, image included.
TEST_P(InvarianceImages, CompanyInTheBatch) {
  ImageModel model(GetParam(), 1, 2);
  const Prompt text = model.Make({131}, {}, 8);
  const Prompt prompt = model.Make({10, 6}, {model.Noise(300, 200, 5)}, 9);
  const auto size = static_cast<int64_t>(prompt.ids.size());
  const Logits want_text = model.Run(text, 512, 0);
  const Logits want = model.Run(prompt, 512, 1);

  const runtime::ImageContext context = model.Context(prompt);
  model.Step(text, {}, 0, 130, 0, nullptr);
  models::StepInput alone;
  context.Fill(0, size, &alone);
  std::vector<int32_t> ids = {text.ids[130]}, positions = {130}, seqs = {0}, rows = {0}, left = {0}, right = {0};
  std::vector<const void*> embeddings = {nullptr};
  for (int64_t p = 0; p < size; ++p) {
    ids.push_back(prompt.ids[p]);
    positions.push_back(static_cast<int32_t>(p));
    seqs.push_back(1);
    rows.push_back(static_cast<int32_t>(p) + 1);
    embeddings.push_back(alone.embeddings[p]);
    left.push_back(alone.left_visible[p]);
    right.push_back(alone.right_visible[p]);
  }
  Logits got(ids.size() * model.vocab());
  models::StepInput step = {ids, positions, seqs, rows, got.data(), nullptr};
  step.embeddings = embeddings;
  step.left_visible = left;
  step.right_visible = right;
  model.Forward(step);
  const auto row = [&](const Logits& logits, int64_t r) {
    return Logits(logits.begin() + r * model.vocab(), logits.begin() + (r + 1) * model.vocab());
  };
  EXPECT_EQ(row(got, 0), row(want_text, 130));
  EXPECT_EQ(FirstDifference(Logits(got.begin() + model.vocab(), got.end()), want, model.vocab()), -1);
}

// Rows of a span see the whole span: what comes late in an image changes its early rows, and nothing before them.
TEST_P(InvarianceImages, SpansSeeBothWays) {
  ImageModel model(GetParam(), 1, 1);
  vision::RgbImage upper = vision::RgbImage::Filled(200, 200, 200);
  vision::RgbImage lower = upper;
  for (int x = 0; x < 3 * 200; ++x) lower.row(199)[x] = static_cast<uint8_t>(x);
  const auto rules = vision::SizeRules{.patch = 14, .downsample = 3, .max_tokens = 64, .min_pixels = 7056};
  const auto prepare = [&](const vision::RgbImage& image) {
    return std::make_shared<const vision::PreparedImage>(Value(vision::PrepareImage(image, rules)));
  };
  const Prompt a = model.Make({9, 4}, {prepare(upper)}, 10), b = model.Make({9, 4}, {prepare(lower)}, 10);
  const vision::Span span = vision::SpanOf(a.images.front().record);
  EXPECT_EQ(FirstDifference(model.Run(a, 512), model.Run(b, 512), model.vocab()), span.start);
}

// The pads in front of START depend on the offset and are text: START stands at 3 modulo 4 wherever the image is.
TEST_P(InvarianceImages, TheSameImageAtEveryOffset) {
  ImageModel model(GetParam(), 1, 1);
  const auto image = model.Noise(120, 120, 6);
  for (int64_t offset = 0; offset < 4; ++offset) {
    const Prompt prompt = model.Make({offset, 3}, {image}, 11);
    const vision::SpanRecord& record = prompt.images.front().record;
    EXPECT_EQ(vision::SpanOf(record).start % 4, 3);
    EXPECT_EQ(record.length, image->grid.block_length + 3 - offset);
    EXPECT_EQ(prompt.ids[vision::SpanOf(record).start], model.tokens().first);
    const Logits want = model.Run(prompt, 512);
    EXPECT_EQ(FirstDifference(model.Run(prompt, 1), want, model.vocab()), -1) << "offset " << offset;
  }
}

std::vector<ServedParam> Params() {
  std::vector<ServedParam> params;
  const std::pair<const char*, std::string> models[] = {{"tiny", BundledModel()},
                                                        {"random", DataPath("models/random-v4")}};
  for (const auto& [name, dir] : models) {
    const std::string prefix(name);
    params.push_back({prefix + "_cpu_auto", dir, "cpu", "auto"});
    params.push_back({prefix + "_cpu_avx2", dir, "cpu", "avx2"});
  }
  params.push_back({"tiny_cpu_avx512", BundledModel(), "cpu", "avx512"});
  params.push_back({"tiny_reference", BundledModel(), "reference", "auto"});
  return params;
}

INSTANTIATE_TEST_SUITE_P(Served, InvarianceImages, ::testing::ValuesIn(Params()),
                         [](const auto& served) { return served.param.name; });

}  // namespace
}  // namespace hadal::test
