// Estimates of weights, caches and scratch.
#include "checkpoint/memory_plan.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace hadal::checkpoint {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Row bytes of the latent KV of V4: fp8 nope + bf16 rope + one E8M0 byte per 64 and a pad (spec vision-and-cache 6.2).
int64_t V4RowBytes(const ModelConfig& c, KvFormat kv) {
  if (kv == KvFormat::kBf16) return 2 * c.head_dim;
  const int64_t nope = c.head_dim - c.qk_rope_head_dim;
  return nope + 2 * c.qk_rope_head_dim + RoundUp(nope / 64, 8);
}

// Stride of a page of n rows; the packed layout pads to 576 bytes, which is a row without its scales (6.5).
int64_t V4PageBytes(const ModelConfig& c, KvFormat kv, int64_t rows) {
  const int64_t payload = rows * V4RowBytes(c, kv);
  if (kv == KvFormat::kBf16) return payload;
  return RoundUp(payload, c.head_dim + c.qk_rope_head_dim);
}

int64_t V4IndexPageBytes(const ModelConfig& c, IndexFormat index, int64_t rows) {
  const int64_t row = index == IndexFormat::kFp8 ? c.index_head_dim + 4 : c.index_head_dim / 2 + c.index_head_dim / 32;
  return RoundUp(rows * row, c.head_dim + c.qk_rope_head_dim);
}

// 6.4: fp32 rows [kv | score] of coff * width each.
int64_t V4StatePageBytes(const ModelConfig& c, int64_t rows, int64_t coff, int64_t width) {
  return RoundUp(rows * 2 * coff * width * 4, c.head_dim + c.qk_rope_head_dim);
}

double V4BytesPerToken(const ModelConfig& c, KvFormat kv, IndexFormat index) {
  double bytes = 0;
  for (int ratio : c.compress_ratios) {
    // A block of 256 tokens holds 64 rows at ratio 4 and 2 at ratio 128 (6.1).
    if (ratio == 4) bytes += static_cast<double>(V4PageBytes(c, kv, 64) + V4IndexPageBytes(c, index, 64)) / 256;
    if (ratio == 128) bytes += static_cast<double>(V4PageBytes(c, kv, 2)) / 256;
  }
  return bytes;
}

int64_t V4FixedBytes(const ModelConfig& c, KvFormat kv, bool draft) {
  int64_t bytes = 0;
  const int64_t window_blocks = (c.sliding_window + 63) / 64 + 1;
  const size_t layers = draft ? c.compress_ratios.size() : static_cast<size_t>(c.num_hidden_layers);
  for (size_t i = 0; i < layers; ++i) {
    bytes += window_blocks * V4PageBytes(c, kv, 64);
    if (c.compress_ratios[i] == 4) {
      bytes += 3 * (V4StatePageBytes(c, 4, 2, c.head_dim) + V4StatePageBytes(c, 4, 2, c.index_head_dim));
    } else if (c.compress_ratios[i] == 128) {
      bytes += 17 * V4StatePageBytes(c, 8, 1, c.head_dim);
    }
  }
  if (draft && c.dspark.has_value()) bytes += c.dspark->stages * window_blocks * V4PageBytes(c, kv, 64);
  return bytes;
}

// Spec deepseek-v32 6: fp8_ds_mla is e4m3 latent + fp32 scale per 128 + bf16 rope; index keys are e4m3 + fp32 scale.
int64_t V3BytesPerToken(const ModelConfig& c, KvFormat kv, bool draft) {
  const int64_t row = kv == KvFormat::kBf16
                          ? 2 * (c.kv_lora_rank + c.qk_rope_head_dim)
                          : c.kv_lora_rank + (c.kv_lora_rank + 127) / 128 * 4 + 2 * c.qk_rope_head_dim;
  const int64_t layers = c.num_hidden_layers + (draft ? c.num_mtp_layers : 0);
  int64_t bytes = 0;
  for (int64_t i = 0; i < layers; ++i) bytes += row + (c.has_indexer(i) ? c.index_head_dim + 4 : 0);
  return bytes;
}

// Buffers of one step, rough: streams, queries and attention output, expert activations, all in fp32 to be safe, and
// the logits of every sequence.
int64_t EstimateScratch(const ModelConfig& c, const MemoryRequest& request) {
  const bool v4 = c.family == ModelFamily::kV4;
  const int64_t head = v4 ? c.head_dim : c.kv_lora_rank + c.qk_rope_head_dim;
  const int64_t wide = std::max(c.moe_intermediate_size * (c.num_experts_per_tok + 1), c.intermediate_size);
  const int64_t row = 2 * c.hidden_size * (v4 ? c.hc_mult + 2 : 4) + 2 * c.num_attention_heads * head + 3 * wide +
                      c.index_n_heads * c.index_head_dim;
  // Clamped so that absurd requests give an absurd but defined number.
  constexpr int64_t kMaxRows = 1 << 24;
  const int64_t seqs = std::clamp<int64_t>(request.max_seqs, 0, kMaxRows);
  const int64_t rows = std::clamp<int64_t>(std::max(request.chunk_tokens, seqs), 0, kMaxRows);
  const int64_t context = std::clamp<int64_t>(request.context_length, 0, int64_t{1} << 31);
  const int64_t index_scores = c.index_n_heads > 0 ? 4 * (v4 ? context / 4 + 1 : context) : 0;
  return 4 * rows * row + 4 * seqs * c.vocab_size + index_scores * std::min<int64_t>(rows, 64);
}

void AddWeights(const ModelConfig& config, const Checkpoint* checkpoint, const MemoryRequest& request,
                MemoryPlan* plan) {
  const TensorTable table = TensorTable::For(config, request.draft);
  for (const TensorSpec& spec : table.specs()) {
    if (spec.category == TensorCategory::kVision && !request.images) continue;
    const TensorEntry* entry = checkpoint != nullptr ? checkpoint->Find(spec.name) : nullptr;
    const int64_t bytes = entry != nullptr ? entry->bytes : DTypeBytes(spec.preferred, spec.elements());
    plan->weight_bytes[static_cast<int>(spec.category)] += bytes;
  }
}

}  // namespace

std::string BytesText(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / 0x1p30);
  if (bytes >= int64_t{1} << 20) return fmt::format("{:.1f} MiB", value / 0x1p20);
  return fmt::format("{} bytes", bytes);
}

double CacheBytesPerToken(const ModelConfig& config, KvFormat kv, IndexFormat index, bool draft) {
  if (config.family == ModelFamily::kV4) return V4BytesPerToken(config, kv, index);  // draft blocks only have windows
  return static_cast<double>(V3BytesPerToken(config, kv, draft));
}

int64_t CacheBytesFixed(const ModelConfig& config, KvFormat kv, bool draft) {
  return config.family == ModelFamily::kV4 ? V4FixedBytes(config, kv, draft) : 0;
}

MemoryPlan PlanMemory(const ModelConfig& config, const Checkpoint* checkpoint, const MemoryRequest& request) {
  MemoryPlan plan;
  AddWeights(config, checkpoint, request, &plan);
  plan.extra_weight_bytes = request.extra_weight_bytes;
  const double per_token = CacheBytesPerToken(config, request.kv_format, request.index_format, request.draft);
  plan.cache_bytes_per_token = static_cast<int64_t>(std::ceil(per_token));
  plan.cache_bytes_fixed = CacheBytesFixed(config, request.kv_format, request.draft);
  plan.cache_bytes_per_sequence = request.cache_bytes_per_sequence.value_or(
      plan.cache_bytes_fixed +
      static_cast<int64_t>(std::ceil(per_token * static_cast<double>(request.context_length))));
  if (__builtin_mul_overflow(plan.cache_bytes_per_sequence, request.max_seqs, &plan.cache_bytes)) {
    plan.cache_bytes = INT64_MAX / 4;
  }
  if (request.cache_bytes.has_value()) plan.cache_bytes = *request.cache_bytes;
  plan.scratch_bytes = request.scratch_bytes.value_or(EstimateScratch(config, request));
  return plan;
}

int64_t MemoryPlan::weights() const {
  int64_t sum = extra_weight_bytes;
  for (int64_t bytes : weight_bytes) sum += bytes;
  return sum;
}

int64_t MemoryPlan::total() const { return weights() + cache_bytes + scratch_bytes; }

std::string MemoryPlan::ToString() const {
  std::string text = fmt::format("weights {}", BytesText(weights()));
  std::string parts;
  for (int i = 0; i < kTensorCategories; ++i) {
    if (weight_bytes[i] == 0) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", CategoryName(static_cast<TensorCategory>(i)),
                         BytesText(weight_bytes[i]));
  }
  if (extra_weight_bytes > 0) parts += fmt::format(", packed copies {}", BytesText(extra_weight_bytes));
  text += fmt::format(" ({})\n", parts);
  const int64_t seqs = cache_bytes_per_sequence > 0 ? cache_bytes / cache_bytes_per_sequence : 0;
  text +=
      fmt::format("cache {} ({} sequences of {})\n", BytesText(cache_bytes), seqs, BytesText(cache_bytes_per_sequence));
  text += fmt::format("scratch {}\ntotal {}", BytesText(scratch_bytes), BytesText(total()));
  return text;
}

absl::Status CheckFits(const MemoryPlan& plan, const AvailableMemory& available) {
  if (plan.total() <= available.bytes) return absl::OkStatus();
  return ResourceExhausted("the model does not fit: {} needed, {} available ({}), {} short\n{}",
                           BytesText(plan.total()), BytesText(available.bytes), available.source,
                           BytesText(plan.total() - available.bytes), plan.ToString());
}

}  // namespace hadal::checkpoint
