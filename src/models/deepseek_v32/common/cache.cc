#include "models/deepseek_v32/common/cache.h"

#include <numeric>
#include <span>
#include <utility>

#include "base/status.h"
#include "ops/row_format.h"

namespace hadal::models::deepseek_v32 {
namespace {

constexpr int64_t kPageAlignment = 64;
// The packed row is made for these (spec 6.1).
constexpr int64_t kPackedLatent = 512, kPackedRope = 64;

ops::PagedRows LatentShape(const checkpoint::ModelConfig& c, const ModelLimits& limits, DType act) {
  ops::PagedRows rows;
  rows.dtype = act;
  rows.cols = c.kv_lora_rank + c.qk_rope_head_dim;
  if (act == DType::kBF16 && limits.kv_cache_dtype == KvCacheDtype::kFp8DsMla) {
    rows.format = ops::RowFormat::kFp8DsMla656;
    rows.tail = c.qk_rope_head_dim;
  }
  return rows;
}

ops::PagedRows KeyShape(const checkpoint::ModelConfig& c, DType act) {
  ops::PagedRows rows;
  rows.dtype = act;
  rows.cols = c.index_head_dim;
  if (act == DType::kBF16) rows.format = ops::RowFormat::kFp8Key;
  return rows;
}

int64_t PageOf(const ops::PagedRows& shape, int64_t rows) {
  const int64_t bytes = ops::PageBytes(shape.format, shape.dtype, shape.cols, shape.tail, rows);
  return (bytes + kPageAlignment - 1) / kPageAlignment * kPageAlignment;
}

int64_t Slabs(const KvLayout& layout, const ModelLimits& limits) {
  return limits.cache_slabs > 0 ? limits.cache_slabs : limits.max_seqs * layout.groups[0].table_blocks;
}

}  // namespace

ModelLimits Cache::Resolve(ModelLimits limits, DType act, const Traits& traits) {
  if (act == DType::kBF16 && limits.kv_cache_dtype == KvCacheDtype::kAuto && traits.fp8_rows_by_default) {
    limits.kv_cache_dtype = KvCacheDtype::kFp8DsMla;
  }
  return limits;
}

absl::Status Cache::Check(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act,
                          const Traits& traits) {
  if (act == DType::kF32 && limits.kv_cache_dtype != KvCacheDtype::kAuto) {
    return InvalidArgument("kv_cache_dtype: f32 numerics keep fp32 rows, expected auto");
  }
  if (limits.block_size < 1 || limits.block_size % traits.kernel_block != 0) {
    return InvalidArgument("block_size: expected a multiple of {}, found {}", traits.kernel_block, limits.block_size);
  }
  if (limits.kv_cache_dtype == KvCacheDtype::kFp8DsMla &&
      (config.kv_lora_rank != kPackedLatent || config.qk_rope_head_dim != kPackedRope)) {
    return InvalidArgument(
        "kv_cache_dtype: fp8_ds_mla rows hold {} latent and {} rotary values, this model has {} and {}: expected auto "
        "or bfloat16",
        kPackedLatent, kPackedRope, config.kv_lora_rank, config.qk_rope_head_dim);
  }
  return absl::OkStatus();
}

KvLayout Cache::Layout(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act) {
  KvGroup group = {.name = "latent", .block_tokens = limits.block_size};
  for (int64_t i = 0; i < config.num_hidden_layers + config.num_mtp_layers; ++i) {
    group.bytes += PageOf(LatentShape(config, limits, act), limits.block_size);
    if (config.has_indexer(i)) group.bytes += PageOf(KeyShape(config, act), limits.block_size);
  }
  group.table_blocks = group.EndBlock(limits.max_context);
  KvLayout layout;
  layout.slab_bytes = group.bytes;
  layout.resume_tokens = limits.block_size;
  layout.groups.push_back(std::move(group));
  return layout;
}

size_t Cache::Bytes(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act) {
  const KvLayout layout = Layout(config, limits, act);
  return static_cast<size_t>(Slabs(layout, limits) * layout.slab_bytes);
}

absl::StatusOr<std::unique_ptr<Cache>> Cache::Create(const checkpoint::ModelConfig& config, const ModelLimits& limits,
                                                     DType act, ops::Memory& memory) {
  std::unique_ptr<Cache> cache(new Cache());
  cache->layout_ = Layout(config, limits, act);
  const int64_t slabs = Slabs(cache->layout_, limits);
  HADAL_ASSIGN_OR_RETURN(cache->memory_,
                         memory.Allocate(static_cast<size_t>(slabs * cache->layout_.slab_bytes), "the cache"));
  HADAL_ASSIGN_OR_RETURN(cache->tables_, BlockTables::Create(memory, cache->layout_, limits.max_seqs));
  const int64_t entries = cache->layout_.groups[0].table_blocks;
  for (int64_t seq = 0; limits.cache_slabs == 0 && seq < limits.max_seqs; ++seq) {
    const std::span<int32_t> table = cache->tables_.Table(0, seq);
    std::iota(table.begin(), table.end(), static_cast<int32_t>(seq * entries));
  }
  int64_t offset = 0;
  const auto place = [&](ops::PagedRows shape) {
    shape.data = cache->memory_.data() + offset;
    shape.block_stride = cache->layout_.slab_bytes;
    shape.map.blocks = cache->tables_.device(0);
    shape.map.blocks_per_seq = entries;
    shape.map.block_rows = static_cast<int32_t>(limits.block_size);
    offset += PageOf(shape, limits.block_size);
    return shape;
  };
  for (int64_t i = 0; i < config.num_hidden_layers + config.num_mtp_layers; ++i) {
    LayerCache& layer = cache->layers_.emplace_back();
    layer.latent = place(LatentShape(config, limits, act));
    if (config.has_indexer(i)) layer.index_keys = place(KeyShape(config, act));
  }
  return cache;
}

}  // namespace hadal::models::deepseek_v32
