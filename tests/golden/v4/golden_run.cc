#include "golden/v4/golden_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "base/float_formats.h"
#include "models/registry/registry.h"
#include "support/emulated_platform.h"

namespace hadal::test {
namespace {

void Require(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

// sqrt(softplus(v)), fp32 (spec deepseek-v4-text 3.8 step 1).
float GateScore(float v) { return std::sqrt(v > 20.0f ? v : std::log1p(std::exp(v))); }

float At(const ops::Tensor& t, int64_t row, int64_t col) {
  const int64_t i = row * t.stride + col;
  return t.dtype == DType::kF32 ? static_cast<const float*>(t.data)[i]
                                : ToFloat(BFloat16{static_cast<const uint16_t*>(t.data)[i]});
}

bool Contains(std::span<const int32_t> set, int32_t value) {
  return std::find(set.begin(), set.end(), value) != set.end();
}

// See Flip::gap. 0 when the sets are equal; -1 entries are padding.
double ChoiceGap(const float* scores, std::span<const int32_t> ours, std::span<const int32_t> theirs) {
  double best = -std::numeric_limits<double>::infinity();
  double worst = std::numeric_limits<double>::infinity();
  for (const int32_t o : ours) {
    if (o >= 0 && !Contains(theirs, o)) best = std::max<double>(best, scores[o]);
  }
  for (const int32_t v : theirs) {
    if (v >= 0 && !Contains(ours, v)) worst = std::min<double>(worst, scores[v]);
  }
  return best - worst;
}

bool SameSet(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::all_of(a.begin(), a.end(), [&](int32_t v) { return Contains(b, v); });
}

std::string MtpOrLayer(const checkpoint::ModelConfig& config, int layer) {
  return layer < config.num_hidden_layers ? "layers." + std::to_string(layer) + "."
                                          : "mtp." + std::to_string(layer - config.num_hidden_layers) + ".";
}

}  // namespace

std::string WhyAbsent(const Platform& platform) {
  static const std::string kFlags = [] {
    std::ifstream in("/proc/cpuinfo");
    std::string line;
    while (std::getline(in, line)) {
      if (line.rfind("flags", 0) == 0) return line + " ";
    }
    return std::string();
  }();
  std::vector<std::string> needed;
  if (platform.isa == "avx2") needed = {"avx2", "fma", "f16c", "bmi2"};
  if (platform.isa == "avx512" || platform.isa == "amx") needed = {"avx512f", "avx512bw", "avx512vl", "avx512dq"};
  if (platform.isa == "amx") needed.insert(needed.end(), {"amx_tile", "amx_bf16"});
  for (const std::string& flag : needed) {
    if (kFlags.find(" " + flag + " ") == std::string::npos) return "this CPU has no " + flag;
  }
  return "";
}

Choices ReadChoices(const Vectors& vectors, const checkpoint::ModelConfig& config) {
  Choices out;
  out.experts.resize(config.num_hidden_layers + 1);
  out.topk.resize(config.num_hidden_layers + 1);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = std::to_string(i);
    out.experts[i] = vectors.Ints("experts." + layer);
    if (config.compress_ratios[i] == 4) out.topk[i] = vectors.Ints("index_topk." + layer);
  }
  if (vectors.Has("mtp_experts")) out.experts.back() = vectors.Ints("mtp_experts");
  return out;
}

Recorder::Recorder(const checkpoint::Checkpoint& checkpoint, std::vector<int32_t> probes, const Choices* against,
                   bool pin)
    : checkpoint_(checkpoint),
      config_(checkpoint.config()),
      probes_(std::move(probes)),
      against_(against),
      pin_(pin),
      streams_(config_.num_hidden_layers + 2),
      selection_(config_.num_hidden_layers + 1),
      weights_(config_.num_hidden_layers + 1),
      index_scores_(config_.num_hidden_layers + 1),
      experts_(config_.num_hidden_layers + 1),
      pinned_(config_.num_hidden_layers + 1),
      index_topk_(config_.num_hidden_layers + 1) {}

void Recorder::OnStreams(int layer, const ops::Tensor& streams) {
  std::vector<float>& out = streams_.at(layer + 1);
  out.clear();
  for (const int32_t probe : probes_) {
    for (int64_t c = 0; c < streams.cols; ++c) out.push_back(At(streams, probe, c));
  }
}

void Recorder::Pin(int layer, int64_t token, const float* scores, int32_t* experts, float* weights) {
  const int64_t k = config_.num_experts_per_tok;
  const int32_t* theirs = against_->experts[layer].data() + token * k;
  float sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    experts[i] = theirs[i];
    sum += weights[i] = scores[theirs[i]];
  }
  for (int64_t i = 0; i < k; ++i) weights[i] = weights[i] / sum * static_cast<float>(config_.routed_scaling_factor);
}

void Recorder::OnRoute(int layer, const ops::Tensor& logits, int32_t* experts, float* weights) {
  const int64_t k = config_.num_experts_per_tok;
  const int64_t count = logits.cols;
  experts_.at(layer).assign(experts, experts + logits.rows * k);
  const auto bias_of = [&](const char* name) {
    const auto entry = checkpoint_.Get(MtpOrLayer(config_, layer) + name);
    Require(entry.status());
    return (*entry)->as<float>();
  };
  const bool hash = config_.is_hash_layer(layer);
  const float* text_bias = hash ? nullptr : bias_of("ffn.gate.bias");
  const float* image_bias = config_.has_vision() ? bias_of("ffn.gate.bias_vl") : nullptr;
  selection_.at(layer).clear();
  const bool compare = against_ != nullptr && !against_->experts[layer].empty();
  std::vector<float> scores(count), selection(count);
  for (int64_t t = 0; t < logits.rows; ++t) {
    const bool image = t < static_cast<int64_t>(image_rows_.size()) && image_rows_[t];
    const float* bias = image ? image_bias : text_bias;
    for (int64_t e = 0; e < count; ++e) scores[e] = GateScore(At(logits, t, e));
    for (int64_t e = 0; e < count; ++e) selection[e] = bias == nullptr ? scores[e] : scores[e] + bias[e];
    if (bias != nullptr) selection_[layer].insert(selection_[layer].end(), selection.begin(), selection.end());
    if (!compare) continue;
    const std::span<const int32_t> ours(experts + t * k, k);
    const std::span<const int32_t> theirs(against_->experts[layer].data() + t * k, k);
    chosen_ += k;
    for (const int32_t e : ours) shared_ += Contains(theirs, e) ? 1 : 0;
    if (SameSet(ours, theirs)) continue;
    expert_flips_.push_back({layer, t, ChoiceGap(selection.data(), ours, theirs)});
    if (pin_) Pin(layer, t, scores.data(), experts + t * k, weights + t * k);
  }
  pinned_.at(layer).assign(experts, experts + logits.rows * k);
  weights_.at(layer).assign(weights, weights + logits.rows * k);
}

void Recorder::OnIndex(int layer, const float* scores, int64_t stride, int32_t* topk) {
  const int64_t k = config_.index_topk;
  index_stride_ = stride;
  index_scores_.at(layer).clear();
  index_topk_.at(layer).clear();
  for (size_t p = 0; p < probes_.size(); ++p) {
    const float* row = scores + probes_[p] * stride;
    int32_t* ours = topk + probes_[p] * k;
    index_scores_[layer].insert(index_scores_[layer].end(), row, row + stride);
    index_topk_[layer].insert(index_topk_[layer].end(), ours, ours + k);
    if (against_ == nullptr || against_->topk[layer].empty()) continue;
    const int32_t* theirs = against_->topk[layer].data() + p * k;
    if (std::equal(ours, ours + k, theirs)) continue;
    index_flips_.push_back({layer, static_cast<int64_t>(p), ChoiceGap(row, {ours, ours + k}, {theirs, theirs + k})});
    if (pin_) std::copy(theirs, theirs + k, ours);
  }
}

GoldenModel::GoldenModel(const VectorCase& c, const Platform& platform, const std::string& numerics, bool pin_images)
    : vectors_(c.file), images_(c.images), pin_images_(pin_images) {
  auto opened = checkpoint::Checkpoint::Open(c.model);
  Require(opened.status());
  checkpoint_ = *std::move(opened);
  AddEmulatedPlatforms();
  models::ModelOptions options;
  options.device = platform.device;
  options.isa = platform.isa;
  options.numerics = numerics;
  options.limits.max_context = c.tokens + 80;
  options.limits.max_batch_tokens = c.tokens;
  options.limits.max_logit_rows = c.tokens;
  if (images_ > 0) {
    const auto tokenizer = text::Tokenizer::Load(c.model);
    Require(tokenizer.status());
    const auto ids = runtime::FindImageTokens(**tokenizer);
    Require(ids.status());
    image_ids_ = *ids;
    options.limits.image_first_id = image_ids_.first;
    options.limits.images = true;
  }
  auto created = models::CreateModel(*checkpoint_, options);
  Require(created.status());
  model_ = *std::move(created);
}

// The images of the vectors at their places in the prompt, whose blocks have to be those that we would make.
void GoldenModel::PlaceImages(std::span<const int32_t> prompt) {
  const auto at = [&](int64_t p, vision::SpanToken kind) {
    return prompt[p] == image_ids_.first + static_cast<int32_t>(kind);
  };
  placed_.clear();
  const auto size = static_cast<int64_t>(prompt.size());
  for (int64_t p = 0; p < size; ++p) {
    if (!at(p, vision::SpanToken::kStart)) continue;
    const std::string name = "image." + std::to_string(placed_.size()) + ".";
    vision::PreparedImage image;
    image.patches_u8 = vectors_.Bytes(name + "patches_u8");
    const std::vector<int32_t> grid = vectors_.Ints(name + "grid");
    image.grid.vit_rows = grid[0];
    image.grid.vit_cols = grid[1];
    image.grid.llm_rows = grid[2];
    image.grid.llm_cols = grid[3];
    image.order = vectors_.Ints(name + "aligner_order");
    int64_t offset = p;
    while (offset > 0 && at(offset - 1, vision::SpanToken::kPad)) --offset;
    const std::vector<vision::SpanToken> block = vision::BuildImageBlock(grid[2], grid[3], offset);
    for (size_t i = 0; i < block.size(); ++i) {
      if (!at(offset + static_cast<int64_t>(i), block[i])) throw std::runtime_error(name + ": another block");
    }
    placed_.push_back(
        {std::make_shared<const vision::PreparedImage>(image), {offset, static_cast<int64_t>(block.size())}});
  }
  if (static_cast<int64_t>(placed_.size()) != images_) throw std::runtime_error("images without a block");
  auto context = runtime::ImageContext::Create(model_.get(), placed_, prompt, image_ids_);
  Require(context.status());
  context_ = *std::move(context);
  models::StepInput all;
  context_.Fill(0, size, &all);
  rows_.assign(all.embeddings.begin(), all.embeddings.end());
  if (!pin_images_) return;
  pinned_.clear();
  for (size_t q = 0; q < placed_.size(); ++q) {
    const std::vector<float> aligned = vectors_.Floats("image." + std::to_string(q) + ".aligner");
    const int64_t d = config().hidden_size;
    const DType act = model_->ops().act();
    std::vector<uint8_t>& bytes = pinned_.emplace_back(placed_[q].image->order.size() * DTypeBytes(act, d));
    size_t token = 0;
    const vision::SpanRecord& record = placed_[q].record;
    for (int64_t p = record.offset; p < record.offset + record.length; ++p) {
      if (rows_[p] == nullptr) continue;
      uint8_t* row = bytes.data() + token * DTypeBytes(act, d);
      const float* from = aligned.data() + placed_[q].image->order[token++] * d;
      for (int64_t i = 0; i < d; ++i) {
        const uint16_t bits = ToBFloat16(from[i]).bits;
        std::memcpy(row + i * DTypeBytes(act, 1), act == DType::kF32 ? static_cast<const void*>(from + i) : &bits,
                    DTypeBytes(act, 1));
      }
      rows_[p] = row;
    }
  }
}

std::vector<float> GoldenModel::EncodeImage(int q) {
  const std::string name = "image." + std::to_string(q) + ".";
  const std::vector<uint8_t> pixels = vectors_.Bytes(name + "patches_u8");
  const std::vector<int32_t> grid = vectors_.Ints(name + "grid");
  std::vector<int32_t> order(static_cast<int64_t>(grid[2]) * grid[3]);
  std::iota(order.begin(), order.end(), 0);
  const auto rows = static_cast<int64_t>(order.size());
  std::vector<float> storage(rows * config().hidden_size);
  const ops::Tensor out = ops::MakeTensor(storage.data(), model_->ops().act(), rows, config().hidden_size);
  Require(model_->EncodeImage({pixels, grid[0], grid[1], order}, out));
  std::vector<float> values(storage.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < out.cols; ++i) values[r * out.cols + i] = At(out, r, i);
  }
  return values;
}

std::vector<float> GoldenModel::Step(bool draft, std::span<const int32_t> ids, int32_t first_position,
                                     std::span<const int32_t> rows, models::StepObserver* observer) {
  std::vector<float> logits(rows.size() * config().vocab_size);
  std::vector<int32_t> positions(ids.size());
  const std::vector<int32_t> seqs(ids.size(), 0);
  std::iota(positions.begin(), positions.end(), first_position);
  models::StepInput step = {ids, positions, seqs, rows, logits.data(), observer};
  std::vector<const void*> next_rows;
  if (images_ > 0 && ids.size() > 1) {
    if (!draft) {
      PlaceImages(ids);
      context_.Fill(0, static_cast<int64_t>(ids.size()), &step);
      step.embeddings = rows_;
    } else {
      // Row t takes the token behind it, and that token's embedding.
      next_rows.assign(rows_.begin() + 1, rows_.end());
      next_rows.push_back(nullptr);
      step.embeddings = next_rows;
    }
    if (auto* recorder = dynamic_cast<Recorder*>(observer)) {
      std::vector<bool> image_rows;
      for (const int32_t id : ids) image_rows.push_back(IsImage(id));
      recorder->SetImageRows(std::move(image_rows));
    }
  }
  Require(draft ? model_->Draft(0, step) : model_->Forward(step));
  return logits;
}

std::vector<float> GoldenModel::Prefill(std::span<const int32_t> ids, std::span<const int32_t> rows,
                                        models::StepObserver* observer) {
  return Step(false, ids, 0, rows, observer);
}

std::vector<float> GoldenModel::Draft(std::span<const int32_t> next_ids, std::span<const int32_t> rows,
                                      models::StepObserver* observer) {
  return Step(true, next_ids, 0, rows, observer);
}

std::vector<float> GoldenModel::Decode(int32_t id, int32_t position) {
  const std::vector<int32_t> rows = {0};
  return Step(false, std::span(&id, 1), position, rows, nullptr);
}

}  // namespace hadal::test
