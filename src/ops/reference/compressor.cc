// KV compression over time (spec deepseek-v4-text 3.5).
#include <cmath>
#include <vector>

#include "base/status.h"
#include "ops/reference/reference_ops.h"
#include "ops/reference/rows.h"

namespace hadal::ops {
namespace {

constexpr int32_t kOverlapRatio = 4;  // windows of this ratio also pool the window before them

// One slot of the pool: values and gate logits of `width` channels of one position.
struct Slot {
  std::vector<float> values;
  std::vector<float> gates;
};

// Channels [first, first+width) of the state of `position`; a state row is kv | gate, each `channels` wide.
Slot LoadSlot(const PagedRows& state, int32_t seq, int64_t position, int64_t channels, int64_t first, int64_t width) {
  std::vector<float> row(static_cast<size_t>(state.cols));
  reference::LoadRow(state, seq, position, row.data());
  const auto values = row.begin() + first;
  const auto gates = row.begin() + channels + first;
  return {{values, values + width}, {gates, gates + width}};
}

// row[ch] = sum over slots of softmax(gates[ch]) * values[ch], each channel by itself.
void PoolSlots(const std::vector<Slot>& slots, int64_t width, float* row) {
  std::vector<float> weights(slots.size());
  for (int64_t ch = 0; ch < width; ++ch) {
    float largest = slots[0].gates[ch];
    for (const Slot& slot : slots) {
      if (slot.gates[ch] > largest) largest = slot.gates[ch];
    }
    float sum = 0;
    for (size_t i = 0; i < slots.size(); ++i) sum += weights[i] = std::exp(slots[i].gates[ch] - largest);
    row[ch] = 0;
    for (size_t i = 0; i < slots.size(); ++i) row[ch] += slots[i].values[ch] * (weights[i] / sum);
  }
}

}  // namespace

void ReferenceOps::PoolWindow(const CompressArgs& args, int32_t seq, int64_t window, float* row) const {
  const bool overlap = args.ratio == kOverlapRatio;
  const int64_t width = args.width;
  const int64_t channels = args.kv.cols;
  std::vector<Slot> slots;
  const int64_t first = window * args.ratio;
  // Series A (the first half of the channels) of the window before; the first window has none.
  if (overlap && window > 0) {
    for (int64_t p = first - args.ratio; p < first; ++p) {
      slots.push_back(LoadSlot(args.state, seq, p, channels, 0, width));
    }
  }
  // Series B, or the only series, of this window.
  for (int64_t p = first; p < first + args.ratio; ++p) {
    slots.push_back(LoadSlot(args.state, seq, p, channels, overlap ? width : 0, width));
  }
  PoolSlots(slots, width, row);
}

void ReferenceOps::Compress(const CompressArgs& args) {
  const int64_t channels = args.kv.cols;
  const int64_t width = args.width;
  const auto half = static_cast<int64_t>(args.rope_freqs.size());
  HADAL_CHECK(channels == (args.ratio == kOverlapRatio ? 2 : 1) * width && args.gate.cols == channels);
  HADAL_CHECK(args.state.cols == 2 * channels && args.output.cols == width && 2 * half <= width);
  const BatchRows& batch = args.batch;

  std::vector<float> state(static_cast<size_t>(2 * channels));
  for (int64_t t = 0; t < batch.tokens; ++t) {
    reference::LoadRow(args.kv, t, state.data());
    reference::LoadRow(args.gate, t, state.data() + channels);
    const float* ape = args.ape + batch.positions[t] % args.ratio * channels;
    for (int64_t i = 0; i < channels; ++i) state[channels + i] += ape[i];
    reference::StoreRow(args.state, batch.seqs[t], batch.positions[t], state.data());
  }

  const std::vector<float> norm = reference::LoadVector(args.norm);
  std::vector<float> row(static_cast<size_t>(width));
  std::vector<float> cos(static_cast<size_t>(half));
  std::vector<float> sin(static_cast<size_t>(half));
  for (int64_t t = 0; t < batch.tokens; ++t) {
    if ((static_cast<int64_t>(batch.positions[t]) + 1) % args.ratio != 0) continue;
    const int64_t window = batch.positions[t] / args.ratio;
    PoolWindow(args, batch.seqs[t], window, row.data());
    Act(row.data(), width);
    Normalize(row.data(), norm.data(), width, args.rms_eps);
    const auto first_position = static_cast<int32_t>(window * args.ratio);
    ComputeRopeAngles({.tokens = 1, .positions = &first_position}, args.rope_freqs, cos.data(), sin.data());
    Rotate(row.data() + width - 2 * half, cos.data(), sin.data(), half, false);
    if (args.indexer_keys) HadamardAct(row.data(), width);
    // A packed pool quantises by itself.
    if (args.output.format == RowFormat::kPlain) {
      if (args.indexer_keys) {
        SimulateKey(row.data(), width);
      } else {
        SimulateKv(row.data(), width - 2 * half);
      }
    }
    reference::StoreRow(args.output, batch.seqs[t], window, row.data());
  }
}

}  // namespace hadal::ops
