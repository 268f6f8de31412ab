// A model without weights: its logits are a function of all tokens of the sequence so far, so that a row that is lost,
// doubled or out of order changes the answer.
#pragma once

#include <functional>
#include <limits>
#include <vector>

#include "base/status.h"
#include "models/model.h"
#include "runtime/philox.h"

namespace hadal::test {

class FakeModel : public models::Model {
 public:
  // The token wanted after `tokens`; -1 leaves the logits pseudo-random.
  using Script = std::function<int32_t(const std::vector<int32_t>& tokens)>;

  FakeModel(int64_t vocab, models::ModelLimits limits, Script script = nullptr)
      : limits_(limits), script_(std::move(script)) {
    config_.vocab_size = vocab;
    config_.eos_token_ids = {1};
  }

  const checkpoint::ModelConfig& config() const override { return config_; }
  const models::ModelLimits& limits() const override { return limits_; }
  models::ModelMemory memory() const override { return {}; }
  ops::Ops& ops() override { HADAL_CHECK(false); }

  absl::Status Forward(const models::StepInput& step) override {
    ++steps;
    if (step.ids.empty() || static_cast<int64_t>(step.ids.size()) > limits_.max_batch_tokens) {
      return InvalidArgument("a step of {} rows", step.ids.size());
    }
    for (size_t i = 0; i < step.ids.size(); ++i) {
      if (step.positions[i] == 0) tokens_.clear();
      if (step.positions[i] != static_cast<int32_t>(tokens_.size())) {
        return InvalidArgument("position {} after {} tokens", step.positions[i], tokens_.size());
      }
      if (step.positions[i] >= limits_.max_context) return InvalidArgument("position {}", step.positions[i]);
      tokens_.push_back(step.ids[i]);
    }
    if (step.logit_rows.empty()) return absl::OkStatus();
    if (step.logit_rows.size() != 1 || step.logit_rows[0] != static_cast<int32_t>(step.ids.size()) - 1) {
      return InvalidArgument("expected the last row's logits to be asked for");
    }
    FillLogits(step.logits);
    return absl::OkStatus();
  }
  absl::Status Draft(int, const models::StepInput&) override { return Unimplemented("no draft"); }

  const std::vector<int32_t>& tokens() const { return tokens_; }

  int steps = 0;
  float wanted_logit = 1000;
  float poison = 0;            // what logit 0 becomes
  int poison_after = 1 << 30;  // from this number of tokens on

 private:
  void FillLogits(float* logits) {
    uint64_t hash = 1469598103934665603u;
    for (const int32_t id : tokens_) hash = (hash ^ static_cast<uint64_t>(id)) * 1099511628211u;
    for (int64_t i = 0; i < config_.vocab_size; ++i) {
      const runtime::PhiloxBlock bits = runtime::Philox4x32(hash, {static_cast<uint32_t>(i), 0, 0, 0});
      logits[i] = static_cast<float>(bits[0]) * 0x1p-30f;  // [0, 4)
    }
    const int32_t wanted = script_ ? script_(tokens_) : -1;
    if (wanted >= 0) logits[wanted] = wanted_logit;
    if (static_cast<int>(tokens_.size()) >= poison_after) logits[0] = poison;
  }

  checkpoint::ModelConfig config_;
  models::ModelLimits limits_;
  Script script_;
  std::vector<int32_t> tokens_;
};

}  // namespace hadal::test
