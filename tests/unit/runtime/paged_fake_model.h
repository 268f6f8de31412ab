// A model without weights but with a paged cache: a row's value is a hash of its token and of every row that it may
// read, and reads go through the block tables. A row that is lost, stale, shared wrongly or out of order changes every
// token behind it. Shaped like V4 in small: a group without a window, one with a sliding window, and two whose need
// depends on the position.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "base/status.h"
#include "models/model.h"
#include "runtime/philox.h"
#include "runtime/request.h"

namespace hadal::test {

inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15u ^ (b + 0xD1B54A32D192ED03u);
  x ^= x >> 32;
  x *= 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 29);
}

inline models::KvLayout SmallLayout(const models::ModelLimits& limits) {
  models::KvLayout layout;
  layout.resume_tokens = 16;
  layout.groups = {
      {.name = "whole", .block_tokens = 16},
      {.name = "state 4", .block_tokens = 2, .period = 4, .lookback = 4},
      {.name = "state 16", .block_tokens = 4, .period = 16, .lookback = 0},
      {.name = "window", .block_tokens = 4, .period = 1, .lookback = 7},
  };
  for (models::KvGroup& group : layout.groups) {
    group.table_blocks =
        group.windowed() ? models::KvLayout::BlocksOfWindow(group, limits.max_batch_tokens + limits.max_draft_tokens)
                         : group.EndBlock(limits.max_context);
    group.bytes = group.block_tokens * 8;
    layout.slab_bytes = std::max(layout.slab_bytes, group.bytes);
  }
  return layout;
}

class PagedFakeModel : public models::Model {
 public:
  PagedFakeModel(int64_t vocab, models::ModelLimits limits) : limits_(limits), layout_(SmallLayout(limits)) {
    config_.vocab_size = vocab;
    config_.eos_token_ids = {1};
    config_.num_mtp_layers = 1;
    rows_.assign(static_cast<size_t>(limits.cache_slabs), std::vector<uint64_t>(16, 0));
    tables_.resize(layout_.groups.size());
    for (size_t g = 0; g < tables_.size(); ++g) {
      tables_[g].assign(static_cast<size_t>(limits.max_seqs * layout_.groups[g].table_blocks), -1);
    }
  }

  const checkpoint::ModelConfig& config() const override { return config_; }
  const models::ModelLimits& limits() const override { return limits_; }
  models::ModelMemory memory() const override { return {}; }
  ops::Ops& ops() override { HADAL_CHECK(false); }
  const models::KvLayout& kv_layout() const override { return layout_; }
  std::span<int32_t> BlockTable(int64_t group, int32_t seq) override {
    const auto entries = static_cast<size_t>(layout_.groups[group].table_blocks);
    return std::span(tables_[group]).subspan(entries * static_cast<size_t>(seq), entries);
  }

  void ReadSlab(int32_t slab, std::byte* to, int64_t bytes) override {
    std::memcpy(to, rows_.at(static_cast<size_t>(slab)).data(), static_cast<size_t>(bytes));
  }
  void WriteSlab(int32_t slab, const std::byte* from, int64_t bytes) override {
    std::memcpy(rows_.at(static_cast<size_t>(slab)).data(), from, static_cast<size_t>(bytes));
  }

  absl::Status Forward(const models::StepInput& step) override {
    ++steps;
    if (!fault.ok()) return fault;
    if (step.ids.empty() || static_cast<int64_t>(step.ids.size()) > limits_.max_batch_tokens ||
        static_cast<int64_t>(step.logit_rows.size()) > limits_.max_logit_rows) {
      return InvalidArgument("a step of {} rows, {} of logits", step.ids.size(), step.logit_rows.size());
    }
    most_rows = std::max<int64_t>(most_rows, static_cast<int64_t>(step.ids.size()));
    last_.clear();
    for (size_t i = 0; i < step.ids.size(); ++i) {
      const int32_t seq = step.seqs[i];
      const int64_t position = step.positions[i];
      const uint64_t value = Value(seq, position, step.ids[i]);
      for (size_t g = 0; g < layout_.groups.size(); ++g) Row(g, seq, position) = value;
      last_.push_back(value);
    }
    for (size_t i = 0; i < step.logit_rows.size(); ++i) {
      float* logits = step.logits + i * config_.vocab_size;
      FillLogits(last_[step.logit_rows[i]], config_.vocab_size, logits);
      if (last_[step.logit_rows[i]] == poisoned) std::fill_n(logits, config_.vocab_size, kNotANumber);
    }
    return absl::OkStatus();
  }

  // Right two times of three on the first draft, otherwise something else.
  absl::Status Draft(int, const models::StepInput& step) override {
    ++draft_steps;
    if (!draft_fault.ok()) return draft_fault;
    draft_rows += static_cast<int64_t>(step.logit_rows.size());
    std::vector<uint64_t> values;
    for (size_t i = 0; i < step.ids.size(); ++i) {
      const uint64_t source = last_.at(step.source_rows.empty() ? i : step.source_rows[i]);
      values.push_back(Value(step.seqs[i], step.positions[i] + int64_t{1}, step.ids[i]));
      if (source % 3 == 0) values.back() = source;
    }
    for (size_t i = 0; i < step.logit_rows.size(); ++i) {
      float* logits = step.logits + i * config_.vocab_size;
      FillLogits(values[step.logit_rows[i]], config_.vocab_size, logits);
      if (poison_drafts) logits[5] = kNotANumber;
    }
    last_ = values;
    return absl::OkStatus();
  }

  static void FillLogits(uint64_t value, int64_t vocab, float* logits) {
    for (int64_t i = 0; i < vocab; ++i) {
      const runtime::PhiloxBlock bits = runtime::Philox4x32(value, {static_cast<uint32_t>(i), 7, 0, 0});
      logits[i] = static_cast<float>(bits[0]) * 0x1p-30f;  // [0, 4)
    }
    logits[1] -= 2;  // the end comes now and then
  }

  // What Forward computes for the last of `tokens`, without a cache.
  static uint64_t PlainValue(std::span<const int32_t> tokens, std::vector<uint64_t>* values) {
    for (size_t p = values->size(); p < tokens.size(); ++p) {
      const auto position = static_cast<int64_t>(p);
      values->push_back(Combine(position, tokens[p], [&](size_t, int64_t q) { return (*values)[q]; }));
    }
    return values->back();
  }

  int steps = 0, draft_steps = 0;
  int64_t most_rows = 0, draft_rows = 0;  // of a step; of all drafts, with logits
  uint64_t poisoned = 0;                  // the row of this value (PlainValue) has logits that are no numbers
  bool poison_drafts = false;             // all rows of the draft block have
  absl::Status fault, draft_fault;        // of every step, of every draft step

 private:
  static constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

  template <typename Read>
  static uint64_t Combine(int64_t position, int32_t id, Read&& read) {
    uint64_t value = Mix(static_cast<uint64_t>(id), static_cast<uint64_t>(position));
    for (int64_t p = 0; p < position; ++p) value = Mix(value, read(0, p));
    for (int64_t p = std::max<int64_t>(0, position / 4 * 4 - 4); p < position; ++p) value = Mix(value, read(1, p) + 1);
    for (int64_t p = position / 16 * 16; p < position; ++p) value = Mix(value, read(2, p) + 2);
    for (int64_t p = std::max<int64_t>(0, position - 7); p < position; ++p) value = Mix(value, read(3, p) + 3);
    return value;
  }
  uint64_t Value(int32_t seq, int64_t position, int32_t id) {
    return Combine(position, id, [&](size_t g, int64_t p) { return Row(g, seq, p); });
  }
  uint64_t& Row(size_t g, int32_t seq, int64_t position) {
    const models::KvGroup& group = layout_.groups[g];
    const int32_t slab = BlockTable(static_cast<int64_t>(g), seq)[position / group.block_tokens % group.table_blocks];
    return rows_.at(static_cast<size_t>(slab)).at(static_cast<size_t>(position % group.block_tokens));
  }

  checkpoint::ModelConfig config_;
  models::ModelLimits limits_;
  models::KvLayout layout_;
  std::vector<std::vector<uint64_t>> rows_;  // by slab
  std::vector<std::vector<int32_t>> tables_;
  std::vector<uint64_t> last_;
};

// What a request has to give on that model, computed without executor, cache or batch.
inline std::vector<int32_t> AloneOnPagedFake(const runtime::GenerateRequest& request, int64_t vocab, int64_t context) {
  runtime::Sampler sampler = *runtime::Sampler::Create(vocab, request.sampling, request.prompt, {}, request.end_tokens);
  std::vector<int32_t> tokens = request.prompt;
  std::vector<uint64_t> values;
  std::vector<float> logits(static_cast<size_t>(vocab));
  std::vector<int32_t> out;
  while (static_cast<int64_t>(out.size()) < request.max_tokens && static_cast<int64_t>(tokens.size()) < context) {
    PagedFakeModel::FillLogits(PagedFakeModel::PlainValue(tokens, &values), vocab, logits.data());
    out.push_back(sampler.Next(logits, static_cast<int64_t>(tokens.size()))->id);
    sampler.Accept(out.back());
    tokens.push_back(out.back());
    if (out.back() == 1) break;
  }
  return out;
}

}  // namespace hadal::test
