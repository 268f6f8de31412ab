// A model that a case of the golden vectors runs through, and what an observed step of it leaves behind.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "golden/v4/vectors.h"
#include "models/model.h"
#include "runtime/images.h"

namespace hadal::test {

// Where vectors run: a device of models::CreateModel, with an instruction set.
struct Platform {
  std::string name;
  std::string device;
  std::string isa;
};
inline void PrintTo(const Platform& p, std::ostream* os) { *os << p.name; }

inline const Platform kReference = {"reference", "reference", "auto"};
inline const Platform kCpuAmx = {"cpu_amx", "cpu", "amx"};
inline const Platform kCpuAvx512 = {"cpu_avx512", "cpu", "avx512"};
inline const Platform kCpuAvx2 = {"cpu_avx2", "cpu", "avx2"};
inline const Platform kCpuBaseline = {"cpu_baseline", "cpu", "baseline"};

// Empty when this CPU can run `platform`, else what it lacks. Asks the kernel (/proc/cpuinfo), not the code under test.
std::string WhyAbsent(const Platform& platform);

// What the vectors say was chosen, per layer; the MTP block is the layer behind the last. An empty vector means that
// nothing is pinned there.
struct Choices {
  std::vector<std::vector<int32_t>> experts;  // [T, k]
  std::vector<std::vector<int32_t>> topk;     // [P, index_topk]
};
Choices ReadChoices(const Vectors& vectors, const checkpoint::ModelConfig& config);

// A choice that differs from the vector's. `gap` is by how much our scores prefer our choice: the best of what we took
// and the vector did not, minus the worst of what it took and we did not. 0 is a tie.
struct Flip {
  int layer = 0;
  int64_t row = 0;  // token (experts) or probe (index)
  double gap = 0;
};

// Records one forward step of all T tokens of a case and, on demand, one draft step; pins choices where told to.
class Recorder final : public models::StepObserver {
 public:
  // `against`: the choices to compare with; `pin`: and to replace ours by.
  Recorder(const checkpoint::Checkpoint& checkpoint, std::vector<int32_t> probes, const Choices* against, bool pin);

  void OnStreams(int layer, const ops::Tensor& streams) override;
  void OnRoute(int layer, const ops::Tensor& logits, int32_t* experts, float* weights) override;
  void OnIndex(int layer, const float* scores, int64_t stride, int32_t* topk) override;

  // Rows of the next step that are image tokens: these are selected by bias_vl, in hash layers too.
  void SetImageRows(std::vector<bool> rows) { image_rows_ = std::move(rows); }

  // Residual streams at the probes after `layer` (-1: the embedding) [P, hc*d].
  const std::vector<float>& streams(int layer) const { return streams_.at(layer + 1); }
  // sqrt(softplus(gate logits)) + bias: what experts are selected by, [rows, E]; in hash layers of image rows only.
  const std::vector<float>& selection(int layer) const { return selection_.at(layer); }
  // Ours, before any pinning, and as used with their weights [T, k].
  const std::vector<int32_t>& experts(int layer) const { return experts_.at(layer); }
  const std::vector<int32_t>& pinned(int layer) const { return pinned_.at(layer); }
  const std::vector<float>& weights(int layer) const { return weights_.at(layer); }
  // At the probes, ours: [P, stride] and [P, index_topk]. Empty in layers without an indexer.
  const std::vector<float>& index_scores(int layer) const { return index_scores_.at(layer); }
  int64_t index_stride() const { return index_stride_; }
  const std::vector<int32_t>& index_topk(int layer) const { return index_topk_.at(layer); }

  const std::vector<Flip>& expert_flips() const { return expert_flips_; }
  const std::vector<Flip>& index_flips() const { return index_flips_; }
  // Experts that both chose, over all that were chosen; tokens on hash layers count.
  double expert_overlap() const { return chosen_ == 0 ? 1 : static_cast<double>(shared_) / chosen_; }

 private:
  void Pin(int layer, int64_t token, const float* scores, int32_t* experts, float* weights);

  const checkpoint::Checkpoint& checkpoint_;
  const checkpoint::ModelConfig& config_;
  std::vector<int32_t> probes_;
  std::vector<bool> image_rows_;
  const Choices* against_;
  bool pin_;
  std::vector<std::vector<float>> streams_, selection_, weights_, index_scores_;
  std::vector<std::vector<int32_t>> experts_, pinned_, index_topk_;
  int64_t index_stride_ = 0;
  std::vector<Flip> expert_flips_, index_flips_;
  int64_t chosen_ = 0, shared_ = 0;
};

// One sequence in one model, sized for a case. Failures of the model throw std::runtime_error, which fails the test.
class GoldenModel {
 public:
  // Images are encoded by the model's own tower, or with `pin_images` taken as the vectors have them.
  GoldenModel(const VectorCase& c, const Platform& platform, const std::string& numerics, bool pin_images = false);

  const checkpoint::Checkpoint& checkpoint() const { return *checkpoint_; }
  const checkpoint::ModelConfig& config() const { return model_->config(); }
  // All tokens of the case in one step; logits of `rows`.
  std::vector<float> Prefill(std::span<const int32_t> ids, std::span<const int32_t> rows,
                             models::StepObserver* observer);
  // Draft block 0 over the same rows.
  std::vector<float> Draft(std::span<const int32_t> next_ids, std::span<const int32_t> rows,
                           models::StepObserver* observer);
  // One more token; its logits.
  std::vector<float> Decode(int32_t id, int32_t position);
  // Whether an id is one of the five kinds of image tokens.
  bool IsImage(int32_t id) const { return images_ > 0 && id >= image_ids_.first && id < image_ids_.first + 5; }
  // The tower's embeddings of image q [tokens, hidden], in the order of the aligner's rows.
  std::vector<float> EncodeImage(int q);

 private:
  std::vector<float> Step(bool draft, std::span<const int32_t> ids, int32_t first_position,
                          std::span<const int32_t> rows, models::StepObserver* observer);
  void PlaceImages(std::span<const int32_t> prompt);

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<models::Model> model_;
  Vectors vectors_;
  int64_t images_;
  bool pin_images_;
  runtime::ImageTokenIds image_ids_;
  std::vector<runtime::PlacedImage> placed_;
  runtime::ImageContext context_;
  std::vector<std::vector<uint8_t>> pinned_;  // embeddings of each image, [tokens, hidden] act, in token order
  std::vector<const void*> rows_;             // of the prompt
};

}  // namespace hadal::test
