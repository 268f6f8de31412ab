#include "models/deepseek_v4/common/cache.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/status.h"
#include "ops/row_format.h"

namespace hadal::models::deepseek_v4 {
namespace {

// Positions of a block by kind (spec 6.1). Blocks of compressed rows have ModelLimits::block_size.
constexpr int64_t kWindowBlock = 64;
constexpr int64_t kState4Block = 4;
constexpr int64_t kState128Block = 8;
constexpr int64_t kLeastBlock = 128;
// Pages begin at multiples of it, as the packed layout asks for (6.5).
constexpr int64_t kPageAlignment = 576;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// One kind of rows of one layer.
struct Member {
  ops::PagedRows LayerCache::*field = nullptr;
  int64_t layer = 0;
  int64_t rows = 0;  // of a block
  ops::PagedRows shape;
  int64_t page_bytes = 0;
  int64_t offset = 0;  // in the slab
};

struct PlannedGroup {
  KvGroup group;
  std::vector<Member> members;
};

class Planner {
 public:
  Planner(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act)
      : config_(config), limits_(limits), act_(act) {}

  std::vector<PlannedGroup> Groups() {
    PlannedGroup compressed = {{.name = "compressed", .block_tokens = limits_.block_size}, {}};
    PlannedGroup window = {{.name = "window", .block_tokens = kWindowBlock, .lookback = config_.sliding_window - 1},
                           {}};
    PlannedGroup state4 = {{.name = "state 4", .block_tokens = kState4Block, .period = 4, .lookback = 4}, {}};
    PlannedGroup state128 = {{.name = "state 128", .block_tokens = kState128Block, .period = 128, .lookback = 0}, {}};
    for (size_t i = 0; i < config_.compress_ratios.size(); ++i) {
      const auto layer = static_cast<int64_t>(i);
      const int64_t ratio = config_.compress_ratios[i];
      Add(&window, &LayerCache::window, layer, kWindowBlock, Latent());
      if (ratio == 0) continue;
      const int64_t series = ratio == 4 ? 2 : 1;
      Add(&compressed, &LayerCache::compressed, layer, limits_.block_size / ratio, Latent());
      Add(ratio == 4 ? &state4 : &state128, &LayerCache::state, layer, ratio == 4 ? kState4Block : kState128Block,
          State(2 * series * config_.head_dim));
      if (ratio != 4) continue;
      Add(&compressed, &LayerCache::index_keys, layer, limits_.block_size / ratio, IndexKey());
      Add(&state4, &LayerCache::index_state, layer, kState4Block, State(2 * series * config_.index_head_dim));
    }
    std::vector<PlannedGroup> groups;
    for (PlannedGroup* group : {&compressed, &state4, &state128}) {
      if (!group->members.empty()) groups.push_back(std::move(*group));
    }
    SplitWindows(std::move(window), &groups);
    for (PlannedGroup& group : groups) Place(&group);
    return groups;
  }

 private:
  ops::PagedRows Latent() const {
    ops::PagedRows rows;
    rows.dtype = act_;
    rows.cols = config_.head_dim;
    if (act_ == DType::kBF16 && limits_.kv_cache_dtype != KvCacheDtype::kBf16) {
      rows.format = ops::RowFormat::kFp8DsMla;
      rows.tail = config_.qk_rope_head_dim;
    }
    return rows;
  }
  // Keys and states do not depend on the dtype that was asked for (6.5).
  ops::PagedRows IndexKey() const {
    ops::PagedRows rows;
    rows.dtype = act_;
    rows.cols = config_.index_head_dim;
    if (act_ == DType::kBF16) rows.format = ops::RowFormat::kMxfp4;
    return rows;
  }
  static ops::PagedRows State(int64_t cols) {
    ops::PagedRows rows;
    rows.dtype = DType::kF32;
    rows.cols = cols;
    return rows;
  }

  static void Add(PlannedGroup* group, ops::PagedRows LayerCache::*field, int64_t layer, int64_t rows,
                  const ops::PagedRows& shape) {
    Member member = {field, layer, rows, shape, 0, 0};
    member.page_bytes =
        RoundUp(ops::PageBytes(shape.format, shape.dtype, shape.cols, shape.tail, rows), kPageAlignment);
    group->members.push_back(member);
  }

  static int64_t Bytes(const PlannedGroup& group) {
    int64_t bytes = 0;
    for (const Member& member : group.members) bytes += member.page_bytes;
    return bytes;
  }

  // Every layer has a window: their pages together are larger than a block of any other group, so they are dealt out to
  // as many groups as keep slabs about as large as those.
  static void SplitWindows(PlannedGroup window, std::vector<PlannedGroup>* groups) {
    int64_t target = window.members.front().page_bytes;
    for (const PlannedGroup& group : *groups) target = std::max(target, Bytes(group));
    const auto layers = static_cast<int64_t>(window.members.size());
    const int64_t parts = (Bytes(window) + target - 1) / target;
    for (int64_t part = 0; part < parts; ++part) {
      PlannedGroup some = {window.group, {}};
      if (parts > 1) some.group.name = fmt::format("window {}", part);
      some.members.assign(window.members.begin() + layers * part / parts,
                          window.members.begin() + layers * (part + 1) / parts);
      groups->push_back(std::move(some));
    }
  }

  void Place(PlannedGroup* planned) const {
    KvGroup& group = planned->group;
    for (Member& member : planned->members) {
      member.offset = group.bytes;
      group.bytes += member.page_bytes;
    }
    const int64_t step = limits_.max_batch_tokens + limits_.max_draft_tokens;
    group.table_blocks = group.windowed() ? KvLayout::BlocksOfWindow(group, step) : group.EndBlock(limits_.max_context);
  }

  const checkpoint::ModelConfig& config_;
  const ModelLimits& limits_;
  DType act_;
};

KvLayout LayoutOf(const std::vector<PlannedGroup>& groups, const ModelLimits& limits) {
  KvLayout layout;
  for (const PlannedGroup& planned : groups) {
    layout.groups.push_back(planned.group);
    layout.slab_bytes = std::max(layout.slab_bytes, planned.group.bytes);
  }
  layout.resume_tokens = limits.block_size;
  return layout;
}

int64_t SlabsOfSequence(const KvLayout& layout) {
  int64_t slabs = 0;
  for (const KvGroup& group : layout.groups) slabs += group.table_blocks;
  return slabs;
}

int64_t Slabs(const KvLayout& layout, const ModelLimits& limits) {
  return limits.cache_slabs > 0 ? limits.cache_slabs : limits.max_seqs * SlabsOfSequence(layout);
}

}  // namespace

absl::Status Cache::Check(const ModelLimits& limits, DType act) {
  if (act == DType::kF32 && limits.kv_cache_dtype != KvCacheDtype::kAuto) {
    return InvalidArgument("kv_cache_dtype: f32 numerics keep fp32 rows, expected auto");
  }
  if (limits.block_size < kLeastBlock || limits.block_size % kLeastBlock != 0) {
    return InvalidArgument("block_size: expected a multiple of {}, found {}", kLeastBlock, limits.block_size);
  }
  return absl::OkStatus();
}

KvLayout Cache::Layout(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act) {
  return LayoutOf(Planner(config, limits, act).Groups(), limits);
}

size_t Cache::Bytes(const checkpoint::ModelConfig& config, const ModelLimits& limits, DType act) {
  const KvLayout layout = Layout(config, limits, act);
  return static_cast<size_t>(Slabs(layout, limits) * layout.slab_bytes);
}

absl::StatusOr<std::unique_ptr<Cache>> Cache::Create(const checkpoint::ModelConfig& config, const ModelLimits& limits,
                                                     DType act, ops::Memory& memory) {
  HADAL_RETURN_IF_ERROR(Check(limits, act));
  const std::vector<PlannedGroup> groups = Planner(config, limits, act).Groups();
  std::unique_ptr<Cache> cache(new Cache());
  cache->layout_ = LayoutOf(groups, limits);
  const int64_t slabs = Slabs(cache->layout_, limits);
  HADAL_ASSIGN_OR_RETURN(cache->memory_,
                         memory.Allocate(static_cast<size_t>(slabs * cache->layout_.slab_bytes), "the cache"));
  HADAL_ASSIGN_OR_RETURN(cache->tables_, BlockTables::Create(memory, cache->layout_, limits.max_seqs));
  cache->layers_.resize(config.compress_ratios.size());
  int64_t first_slab = 0;
  const int64_t per_seq = SlabsOfSequence(cache->layout_);
  for (size_t g = 0; g < groups.size(); ++g) {
    const PlannedGroup& planned = groups[g];
    const auto group = static_cast<int64_t>(g);
    const int64_t entries = planned.group.table_blocks;
    for (int64_t seq = 0; limits.cache_slabs == 0 && seq < limits.max_seqs; ++seq) {
      const std::span<int32_t> table = cache->tables_.Table(group, seq);
      std::iota(table.begin(), table.end(), static_cast<int32_t>(seq * per_seq + first_slab));
    }
    first_slab += entries;
    for (const Member& member : planned.members) {
      ops::PagedRows rows = member.shape;
      rows.data = cache->memory_.data() + member.offset;
      rows.block_stride = cache->layout_.slab_bytes;
      rows.map.blocks = cache->tables_.device(group);
      rows.map.blocks_per_seq = entries;
      rows.map.block_rows = static_cast<int32_t>(member.rows);
      rows.map.ring_blocks = planned.group.windowed() ? static_cast<int32_t>(entries) : 0;
      cache->layers_[member.layer].*member.field = rows;
    }
  }
  return cache;
}

}  // namespace hadal::models::deepseek_v4
