#include <algorithm>

#include "platforms/gpu/device.h"
#include "platforms/gpu/formats.h"
#include "platforms/gpu/kernels/linear.h"
#include "platforms/gpu/kernels/moe.h"
#include "platforms/gpu/kernels/product.h"

namespace hadal::gpu::HADAL_GPU_NS {
namespace {

// ---- Routing: a group a token.

constexpr int kRouteThreads = 128;
static_assert(kMostExperts == 32 * kGroup);  // a lane marks those it has taken in a word

HADAL_DEVICE float LowestFloat() { return BitsFloat(0xFF800000u); }

HADAL_DEVICE float RouterScore(ops::RouterScores kind, float v) {
  if (kind == ops::RouterScores::kSigmoid) return 1.0f / (1.0f + expf(-v));
  // log1p keeps what log(1 + e^v) loses below v = -16.
  return sqrtf(v > 20.0f ? v : log1pf(expf(v)));
}

// keys of experts outside the best groups become -infinity.
HADAL_DEVICE void LimitGroups(int experts, int groups, int kept, float* keys, float* sums) {
  const int size = experts / groups;
  for (int g = Lane(); g < groups; g += kGroup) {
    float best = LowestFloat(), second = LowestFloat();
    for (int e = g * size; e < (g + 1) * size; ++e) {
      if (keys[e] > best) {
        second = best;
        best = keys[e];
      } else if (keys[e] > second) {
        second = keys[e];
      }
    }
    sums[g] = size > 1 ? best + second : best;
  }
  GroupSync();
  for (int g = Lane(); g < groups; g += kGroup) {
    int before = 0;
    for (int other = 0; other < groups; ++other) {
      before += sums[other] > sums[g] || (sums[other] == sums[g] && other < g) ? 1 : 0;
    }
    if (before >= kept) {
      for (int e = g * size; e < (g + 1) * size; ++e) keys[e] = LowestFloat();
    }
  }
  GroupSync();
}

HADAL_GLOBAL(kRouteThreads)
RouteKernel(ops::MoeRouteArgs args) {
  const int experts = static_cast<int>(args.logits.cols);
  const int k = static_cast<int>(args.experts_per_token);
  const int64_t t = static_cast<int64_t>(BlockX()) * (kRouteThreads / kGroup) + GroupX();
  if (t >= args.logits.rows) return;
  float* scores = DynamicShared<float>() + GroupX() * (2 * experts + kMostGroups);
  float* keys = scores + experts;
  const float* logits = static_cast<const float*>(args.logits.data) + t * args.logits.stride;
  const int32_t id = args.bias_vl != nullptr || args.token_to_expert != nullptr ? args.batch.ids[t] : 0;
  constexpr int32_t kImageTokenKinds = 5;
  const bool image = args.bias_vl != nullptr && args.image_first > 0 && id >= args.image_first &&
                     id < args.image_first + kImageTokenKinds;
  const float* bias = image ? args.bias_vl : args.bias;
  for (int e = Lane(); e < experts; e += kGroup) {
    scores[e] = RouterScore(args.scores, logits[e]);
    const float key = bias == nullptr ? scores[e] : scores[e] + bias[e];
    keys[e] = key == key ? key : LowestFloat();
  }
  GroupSync();
  int32_t* chosen = args.experts + t * k;
  float* weights = args.weights + t * k;
  float sum = 0;
  if (args.token_to_expert != nullptr && !image) {
    const int32_t* row = args.token_to_expert + static_cast<int64_t>(id) * k;
    for (int i = 0; i < k; ++i) sum += scores[row[i]];
    for (int i = Lane(); i < k; i += kGroup) {
      chosen[i] = row[i];
      const float score = scores[row[i]];
      weights[i] = (args.normalise && sum != 0 ? score / sum : score) * args.scale;
    }
    return;
  }
  if (args.groups > 1) {
    LimitGroups(experts, static_cast<int>(args.groups), static_cast<int>(args.topk_groups), keys, keys + experts);
  }
  uint32_t taken = 0;
  for (int i = 0; i < k; ++i) {
    // The lane's best, the lower expert of equal ones; then the group's.
    int best = experts;
    float key = LowestFloat();
    for (int e = Lane(); e < experts; e += kGroup) {
      if ((taken >> (e / kGroup) & 1u) == 0 && (best == experts || keys[e] > key)) {
        best = e;
        key = keys[e];
      }
    }
    for (int mask = kGroup / 2; mask > 0; mask /= 2) {
      const float other_key = ShuffleXor(key, mask);
      const int other = ShuffleXor(best, mask);
      if (other < experts && (best == experts || other_key > key || (other_key == key && other < best))) {
        best = other;
        key = other_key;
      }
    }
    if (best % kGroup == Lane()) taken |= 1u << (best / kGroup);
    sum += scores[best];
    if (Lane() == 0) chosen[i] = best;
    // Kept where the keys were, which no later choice looks at.
    if (best % kGroup == Lane()) keys[best] = static_cast<float>(i);
    GroupSync();
  }
  // Lanes have their own experts' ranks.
  for (int e = Lane(); e < experts; e += kGroup) {
    if ((taken >> (e / kGroup) & 1u) == 0) continue;
    const float score = scores[e];
    weights[static_cast<int>(keys[e])] = (args.normalise && sum != 0 ? score / sum : score) * args.scale;
  }
}

// ---- Grouping by expert: a block an expert. Nothing of the result depends on the order in which blocks run.

constexpr int kGroupThreads = 256;

struct Grouping {
  const int32_t* choices;  // [count] experts, -1: none
  const float* weights;
  int count;  // T*k
  int k;
  int experts;
  int tokens;
  int shared_slots;  // tokens with a shared expert, else 0
  int task_rows;
};

HADAL_GLOBAL(kGroupThreads)
GroupKernel(Grouping g, MoeScratch scratch) {
  HADAL_SHARED int mine[kGroupThreads];
  HADAL_SHARED int before[2];  // slots and tasks of lower experts
  int* histogram = DynamicShared<int>();
  const int expert = BlockX(), thread = ThreadX();
  for (int e = thread; e < g.experts; e += kGroupThreads) histogram[e] = 0;
  if (thread < 2) before[thread] = 0;
  BlockSync();
  const int share = static_cast<int>(CeilDiv(g.count, kGroupThreads));
  const int first = thread * share, last = first + share < g.count ? first + share : g.count;
  int matches = 0;
  for (int i = first; i < last; ++i) {
    const int e = g.choices[i];
    if (e >= 0) AtomicAdd(&histogram[e], 1);
    if (e < 0 && expert == 0) scratch.choice_slot[i] = -1;
    matches += e == expert ? 1 : 0;
  }
  mine[thread] = matches;
  BlockSync();
  const int shared_tasks = static_cast<int>(CeilDiv(g.shared_slots, g.task_rows));
  int slots = 0, tasks = 0;
  for (int e = thread; e < expert && e < g.experts; e += kGroupThreads) {
    slots += histogram[e];
    tasks += static_cast<int>(CeilDiv(histogram[e], g.task_rows));
  }
  if (slots > 0) {
    AtomicAdd(&before[0], slots);
    AtomicAdd(&before[1], tasks);
  }
  BlockSync();
  const int begin = g.shared_slots + before[0];
  const int first_task = shared_tasks + before[1];
  int slot = begin;
  if (matches > 0) {
    for (int i = 0; i < thread; ++i) slot += mine[i];
  }
  for (int i = first; i < last && matches > 0; ++i) {
    if (g.choices[i] != expert) continue;
    scratch.slot_row[slot] = i / g.k;
    scratch.slot_weight[slot] = g.weights[i];
    scratch.choice_slot[i] = slot++;
  }
  const int rows = expert < g.experts ? histogram[expert] : 0;
  const int own_tasks = static_cast<int>(CeilDiv(rows, g.task_rows));
  for (int i = thread; i < own_tasks; i += kGroupThreads) {
    const int done = i * g.task_rows;
    scratch.tasks[first_task + i] = {expert, begin + done, rows - done < g.task_rows ? rows - done : g.task_rows};
  }
  if (expert == 0) {
    for (int i = thread; i < g.shared_slots; i += kGroupThreads) {
      scratch.slot_row[i] = i;
      scratch.slot_weight[i] = 1.0f;
    }
    for (int i = thread; i < shared_tasks; i += kGroupThreads) {
      const int done = i * g.task_rows, left = g.shared_slots - done;
      scratch.tasks[i] = {-1, done, left < g.task_rows ? left : g.task_rows};
    }
  }
  if (expert == BlocksX() - 1 && thread == 0) *scratch.task_count = first_task + own_tasks;
}

// ---- Products.

HADAL_DEVICE float SwiGlu(float gate, float up, float limit) {
  if (limit > 0) {
    if (gate > limit) gate = limit;  // the gate has no lower clamp
    if (up > limit) up = limit;
    if (up < -limit) up = -limit;
  }
  return gate * (1.0f / (1.0f + expf(-gate))) * up;
}

enum class Stage { kGateUp, kDown };

struct Product {
  const ExpertPointers* routed;
  ExpertPointers shared;
  const ExpertTask* tasks;
  const int32_t* task_count;
  const int32_t* slot_row;
  const float* slot_weight;
  const void* x_routed;  // gate and up: rows of the step; down: hidden rows
  const void* x_shared;
  int64_t x_routed_stride, x_shared_stride;
  void* out;  // hidden rows, or output rows of slots
  int n_routed, n_shared;
  int k_routed, k_shared;
  bool float_scales_routed, float_scales_shared;
  bool do_routed, do_shared;
  float limit;
  bool weigh_hidden;
  int out_stride;
};

// Stores what a slot's row becomes.
template <typename T>
struct StoreSlots {
  T* out;
  int64_t stride;
  const float* weights;  // of the task's slots
  float limit;
  bool weigh;
  HADAL_DEVICE void operator()(int row, int output, float gate, float up) const {
    const float v = SwiGlu(Round<T>(gate), Round<T>(up), limit);
    out[row * stride + output] = FromFloat<T>((weigh ? weights[row] : 1.0f) * v);
  }
  HADAL_DEVICE void operator()(int row, int output, float value) const {
    out[row * stride + output] = FromFloat<T>(value);
  }
};

// The problem of the block's task; false: there is none.
template <Stage kStage, typename T>
HADAL_DEVICE bool FindTask(const Product& product, bool* is_shared, Problem* p, StoreSlots<T>* store) {
  if (BlockY() >= *product.task_count) return false;
  const ExpertTask task = product.tasks[BlockY()];
  const bool shared = *is_shared = task.expert < 0;
  if (!(shared ? product.do_shared : product.do_routed)) return false;
  const ExpertPointers& expert = shared ? product.shared : product.routed[task.expert];
  p->rows = task.rows;
  p->n = shared ? product.n_shared : product.n_routed;
  p->k = shared ? product.k_shared : product.k_routed;
  p->float_scales = shared ? product.float_scales_shared : product.float_scales_routed;
  p->x_stride = shared ? product.x_shared_stride : product.x_routed_stride;
  const void* x = shared ? product.x_shared : product.x_routed;
  if constexpr (kStage == Stage::kGateUp) {
    p->x = x;
    p->x_rows = product.slot_row + task.slot;
    p->weights[0] = {expert.data[0], expert.scale[0]};
    p->weights[1] = {expert.data[1], expert.scale[1]};
  } else {
    p->x = static_cast<const T*>(x) + task.slot * p->x_stride;
    p->weights[0] = {expert.data[2], expert.scale[2]};
  }
  *store = {static_cast<T*>(product.out) + static_cast<int64_t>(task.slot) * product.out_stride, product.out_stride,
            product.slot_weight + task.slot, product.limit, product.weigh_hidden};
  return true;
}

constexpr int kStripTiles = 2;

// kRouted, kShared: the experts' formats.
template <Stage kStage, WeightFormat kRouted, WeightFormat kShared, bool kAligned>
HADAL_GLOBAL(kStripWaves* kMostWaveLanes)
ExpertStripKernel(Product product, int round_chunks) {
  constexpr bool kPaired = kStage == Stage::kGateUp;
  bool shared = false;
  Problem p;
  StoreSlots<Bf16> store;
  if (!FindTask<kStage>(product, &shared, &p, &store)) return;
  const int n0 = BlockX() * Tile::kN * (kPaired ? kStripTiles / 2 : kStripTiles);
  if (n0 >= p.n) return;
  if (kRouted != kShared && shared) {
    StripProduct<kShared, kAligned, kPaired, 1, kStripTiles>(p, n0, round_chunks, DynamicShared<float>(), store);
  } else {
    StripProduct<kRouted, kAligned, kPaired, 1, kStripTiles>(p, n0, round_chunks, DynamicShared<float>(), store);
  }
}

template <Stage kStage, WeightFormat kFormat, bool kAligned, typename Shape>
HADAL_GLOBAL(Shape::kWaves* kMostWaveLanes)
ExpertTileKernel(Product product) {
  constexpr bool kPaired = kStage == Stage::kGateUp;
  bool shared = false;
  Problem p;
  StoreSlots<Bf16> store;
  if (!FindTask<kStage>(product, &shared, &p, &store)) return;
  const int n0 = BlockX() * (kPaired ? Shape::kCols / 2 : Shape::kCols);
  if (n0 >= p.n) return;
  TileProduct<kFormat, kAligned, kPaired, Shape>(p, 0, n0, DynamicShared<unsigned char>(), store);
}

template <Stage kStage, WeightFormat kFormat, typename T>
HADAL_GLOBAL(kFmaThreads)
ExpertFmaKernel(Product product) {
  bool shared = false;
  Problem p;
  StoreSlots<T> store;
  if (!FindTask<kStage>(product, &shared, &p, &store)) return;
  FmaProduct<kFormat, T, kStage == Stage::kGateUp>(p, 0, BlockX() * kFmaOutputs, store);
}

// ---- A row's outputs, added in ascending order of experts, the shared one last.

constexpr int kCombineThreads = 128;
constexpr int kCombineCols = 512;

struct Combining {
  const int32_t* choices;
  const float* weights;
  const int32_t* choice_slot;
  int k;
  bool with_shared;
  bool weigh;
  const void* from;  // [slots, d]
  ops::Tensor out;
};

template <typename T>
HADAL_GLOBAL(kCombineThreads)
CombineKernel(Combining c) {
  HADAL_SHARED int32_t slots[kMostChoices];
  HADAL_SHARED float factors[kMostChoices];
  HADAL_SHARED int count;
  const int64_t t = BlockX();
  const int32_t* choices = c.choices + t * c.k;
  const int32_t* choice_slot = c.choice_slot + t * c.k;
  if (ThreadX() == 0) count = 0;
  BlockSync();
  for (int i = ThreadX(); i < c.k; i += kCombineThreads) {
    if (choices[i] < 0) continue;
    int rank = 0;
    for (int j = 0; j < c.k; ++j) {
      rank += choices[j] >= 0 && (choices[j] < choices[i] || (choices[j] == choices[i] && j < i)) ? 1 : 0;
    }
    slots[rank] = choice_slot[i];
    factors[rank] = c.weigh ? c.weights[t * c.k + i] : 1.0f;
    AtomicAdd(&count, 1);
  }
  BlockSync();
  const int64_t d = c.out.cols;
  const auto* from = static_cast<const T*>(c.from);
  auto* out = static_cast<T*>(c.out.data) + t * c.out.stride;
  const int64_t end = (BlockY() + 1) * static_cast<int64_t>(kCombineCols);
  for (int64_t i = BlockY() * static_cast<int64_t>(kCombineCols) + ThreadX(); i < d && i < end; i += kCombineThreads) {
    float sum = 0;
    for (int s = 0; s < count; ++s) sum += factors[s] * ToFloat(from[slots[s] * d + i]);
    if (c.with_shared) sum += ToFloat(from[t * d + i]);
    out[i] = FromFloat<T>(sum);
  }
}

// ---- Launches.

bool IsQuantised(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF4E2M1; }

// Which experts a launch takes, and how far its grid goes.
struct Select {
  bool routed, shared;
  unsigned tasks;
  int most_rows;  // of a task
  bool aligned;
};

int64_t Outputs(const Product& p, const Select& s) {
  return std::max(s.routed ? p.n_routed : 0, s.shared ? p.n_shared : 0);
}

template <Stage kStage, WeightFormat kRouted, WeightFormat kShared, bool kAligned>
void LaunchStrips(Stream stream, int multiprocessors, const Product& product, const Select& select) {
  constexpr int kOutputs = Tile::kN * (kStage == Stage::kGateUp ? kStripTiles / 2 : kStripTiles);
  const auto blocks = static_cast<unsigned>(CeilDiv(Outputs(product, select), kOutputs));
  const int k = std::max(select.routed ? product.k_routed : 0, select.shared ? product.k_shared : 0);
  const StripShape strip =
      MakeStripShape(select.most_rows, Tile::kN * kStripTiles, k, blocks * select.tasks < 2u * multiprocessors);
  const LaunchShape shape = {.blocks_x = blocks,
                             .blocks_y = select.tasks,
                             .threads = static_cast<unsigned>(strip.waves * stream.wave),
                             .shared_bytes = strip.shared_bytes};
  Launch<ExpertStripKernel<kStage, kRouted, kShared, kAligned>>(shape, stream, product, strip.round_chunks);
}

template <Stage kStage, WeightFormat kFormat, bool kAligned, typename Shape>
void LaunchTiles(Stream stream, const Product& product, const Select& select) {
  constexpr int kOutputs = kStage == Stage::kGateUp ? Shape::kCols / 2 : Shape::kCols;
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(CeilDiv(Outputs(product, select), kOutputs)),
                             .blocks_y = select.tasks,
                             .threads = static_cast<unsigned>(Shape::kWaves * stream.wave),
                             .shared_bytes = Shape::template SharedBytes<kFormat>()};
  Launch<ExpertTileKernel<kStage, kFormat, kAligned, Shape>>(shape, stream, product);
}

template <Stage kStage, WeightFormat kFormat, typename T>
void LaunchFma(Stream stream, const Product& product, const Select& select) {
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(CeilDiv(Outputs(product, select), kFmaOutputs)),
                             .blocks_y = select.tasks,
                             .threads = kFmaThreads};
  Launch<ExpertFmaKernel<kStage, kFormat, T>>(shape, stream, product);
}

// Rows of a task where matrices are multiplied by the way for few rows, by small and by large tiles.
constexpr int kTaskRows[] = {Tile::kM, SmallTile::kRows, LargeTile::kRows};

template <Stage kStage, WeightFormat kFormat>
void LaunchFormat(Stream stream, int multiprocessors, int task_rows, const Product& product, const Select& select) {
  if (task_rows == kTaskRows[0]) {
    return select.aligned ? LaunchStrips<kStage, kFormat, kFormat, true>(stream, multiprocessors, product, select)
                          : LaunchStrips<kStage, kFormat, kFormat, false>(stream, multiprocessors, product, select);
  }
  if (task_rows == kTaskRows[2]) return LaunchTiles<kStage, kFormat, true, LargeTile>(stream, product, select);
  return select.aligned ? LaunchTiles<kStage, kFormat, true, SmallTile>(stream, product, select)
                        : LaunchTiles<kStage, kFormat, false, SmallTile>(stream, product, select);
}

// Where the kernel of the experts' products is chosen.
template <Stage kStage>
void LaunchProduct(Stream stream, int multiprocessors, int task_rows, bool f32, DType routed, DType shared,
                   Product product, Select select) {
  if (select.routed && select.shared && routed != shared) {
    if (!f32 && task_rows == kTaskRows[0] && select.aligned && routed == DType::kF4E2M1 && shared == DType::kF8E4M3) {
      // V4's experts of a few rows: one launch.
      return LaunchStrips<kStage, WeightFormat::kFp4, WeightFormat::kFp8, true>(stream, multiprocessors, product,
                                                                                select);
    }
    for (const bool now_shared : {true, false}) {
      product.do_shared = select.shared = now_shared;
      product.do_routed = select.routed = !now_shared;
      LaunchProduct<kStage>(stream, multiprocessors, task_rows, f32, routed, shared, product, select);
    }
    return;
  }
  const DType dtype = select.routed ? routed : shared;
  if (f32) {
    switch (dtype) {
      case DType::kF8E4M3:
        return LaunchFma<kStage, WeightFormat::kFp8, float>(stream, product, select);
      case DType::kF4E2M1:
        return LaunchFma<kStage, WeightFormat::kFp4, float>(stream, product, select);
      case DType::kBF16:
        return LaunchFma<kStage, WeightFormat::kBf16, float>(stream, product, select);
      default:
        return LaunchFma<kStage, WeightFormat::kF32, float>(stream, product, select);
    }
  }
  switch (dtype) {
    case DType::kF8E4M3:
      return LaunchFormat<kStage, WeightFormat::kFp8>(stream, multiprocessors, task_rows, product, select);
    case DType::kF4E2M1:
      return LaunchFormat<kStage, WeightFormat::kFp4>(stream, multiprocessors, task_rows, product, select);
    case DType::kBF16:
      return LaunchFormat<kStage, WeightFormat::kBf16>(stream, multiprocessors, task_rows, product, select);
    default:
      return LaunchFma<kStage, WeightFormat::kF32, Bf16>(stream, product, select);
  }
}

}  // namespace

ExpertPointers PointersOf(const ops::ExpertWeights& expert) {
  return {{expert.w1.data, expert.w3.data, expert.w2.data}, {expert.w1.scale, expert.w3.scale, expert.w2.scale}};
}

bool AreAligned(const ops::ExpertWeights& expert) {
  for (const ops::LinearWeight* w : {&expert.w1, &expert.w3, &expert.w2}) {
    if (reinterpret_cast<uintptr_t>(w->data) % 16 != 0 || w->row_bytes() % 16 != 0 || w->k % 8 != 0) return false;
  }
  return true;
}

ExpertTable ExpertTable::Of(const ops::ExpertWeights& expert) {
  ExpertTable table;
  table.dtype = expert.w1.dtype;
  table.float_scales = expert.w1.scale_dtype == DType::kF32;
  table.aligned = AreAligned(expert);
  table.width = expert.w1.n;
  return table;
}

bool ExpertTable::CanJoin(const ops::ExpertWeights& w, int64_t hidden) const {
  for (const ops::LinearWeight* m : {&w.w1, &w.w3, &w.w2}) {
    const bool down = m == &w.w2;
    if (m->dtype != dtype || (dtype == DType::kF8E4M3 && (m->scale_dtype == DType::kF32) != float_scales)) return false;
    if (m->n != (down ? hidden : width) || m->k != (down ? width : hidden)) return false;
  }
  return true;
}

void MoeScratch::Carve(const ops::WorkspaceSpec& spec, ops::Numerics numerics, Carver& carver) {
  const int64_t element = DTypeBytes(numerics == ops::Numerics::kF32 ? DType::kF32 : DType::kBF16, 1);
  const int64_t t = spec.max_tokens;
  const int64_t choices = t * spec.experts_per_token;
  const int64_t slots = choices + t;
  slot_row = carver.Take<int32_t>(slots);
  slot_weight = carver.Take<float>(slots);
  choice_slot = carver.Take<int32_t>(choices);
  tasks = carver.Take<ExpertTask>(slots + 1);  // of one row each, at most
  task_count = carver.Take<int32_t>(1);
  if (numerics != ops::Numerics::kF32) quantised = carver.Take<std::byte>(t * (spec.hidden + 8) * element);
  hidden = carver.Take<std::byte>(std::max(slots * (spec.moe_intermediate + 8), t * (spec.dense_intermediate + 8)) *
                                  element);
  out = carver.Take<std::byte>(slots * spec.hidden * element);
}

void LaunchMoeRoute(Stream stream, const ops::MoeRouteArgs& args) {
  constexpr int kTokens = kRouteThreads / kGroup;
  const LaunchShape shape = {.blocks_x = static_cast<unsigned>(CeilDiv(args.logits.rows, kTokens)),
                             .threads = kRouteThreads,
                             .shared_bytes = kTokens * (2 * args.logits.cols + kMostGroups) * sizeof(float)};
  Launch<RouteKernel>(shape, stream, args);
}

void LaunchMoeExperts(Stream stream, int multiprocessors, const ops::MoeExpertsArgs& args, const ExpertTable& routed,
                      const ExpertTable& shared, const MoeScratch& scratch) {
  const int64_t tokens = args.x.rows, d = args.x.cols;
  if (tokens == 0) return;
  const bool f32 = args.x.dtype == DType::kF32;
  const bool with_shared = args.shared != nullptr;
  const int64_t k = routed.count > 0 ? args.experts_per_token : 0;
  const int64_t choices = tokens * k;
  const bool quantise_routed = !f32 && routed.count > 0 && IsQuantised(routed.dtype);
  const bool quantise_shared = !f32 && with_shared && IsQuantised(shared.dtype);
  const bool plain_used = (routed.count > 0 && !quantise_routed) || (with_shared && !quantise_shared);
  const bool plain_aligned = reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 && args.x.stride % 8 == 0;
  const bool aligned =
      (routed.count == 0 || routed.aligned) && (!with_shared || shared.aligned) && (!plain_used || plain_aligned);

  // Rows of a task: as many as an expert has on average, so that its weights are not read often.
  const bool fma =
      f32 || (routed.count > 0 && routed.dtype == DType::kF32) || (with_shared && shared.dtype == DType::kF32);
  const int64_t average = routed.count > 0 ? choices / routed.count : tokens;
  int task_rows = average < 12 ? kTaskRows[0] : average < 96 || !aligned ? kTaskRows[1] : kTaskRows[2];
  if (tokens <= kTaskRows[0]) task_rows = kTaskRows[0];
  if (fma) task_rows = kFmaRows;

  const Grouping grouping = {.choices = args.experts,
                             .weights = args.weights,
                             .count = static_cast<int>(choices),
                             .k = static_cast<int>(k),
                             .experts = static_cast<int>(routed.count),
                             .tokens = static_cast<int>(tokens),
                             .shared_slots = static_cast<int>(with_shared ? tokens : 0),
                             .task_rows = task_rows};
  const LaunchShape group_shape = {.blocks_x = static_cast<unsigned>(std::max<int64_t>(routed.count, 1)),
                                   .threads = kGroupThreads,
                                   .shared_bytes = (routed.count + 1) * sizeof(int)};
  Launch<GroupKernel>(group_shape, stream, grouping, scratch);

  // An upper bound: what there is, the device finds out.
  const int64_t routed_tasks = std::min(choices, routed.count + choices / task_rows);
  const int64_t shared_tasks = with_shared ? CeilDiv(tokens, task_rows) : 0;
  const Select select = {routed.count > 0, with_shared, static_cast<unsigned>(routed_tasks + shared_tasks),
                         static_cast<int>(std::min<int64_t>(task_rows, std::max(choices, tokens))), aligned};

  const ops::Tensor quantised = {scratch.quantised, DType::kBF16, tokens, d, (d + 7) / 8 * 8};
  if (quantise_routed || quantise_shared) LaunchQuantise(stream, args.x, quantised);

  const int64_t widest = std::max(routed.count > 0 ? routed.width : 0, with_shared ? shared.width : 0);
  const int64_t hidden_stride = (widest + 7) / 8 * 8;
  const int64_t slots = grouping.shared_slots + choices;
  const int64_t element = DTypeBytes(args.x.dtype, 1);
  Product product = {.routed = routed.experts,
                     .shared = with_shared ? PointersOf(*args.shared) : ExpertPointers{},
                     .tasks = scratch.tasks,
                     .task_count = scratch.task_count,
                     .slot_row = scratch.slot_row,
                     .slot_weight = scratch.slot_weight,
                     .x_routed = quantise_routed ? quantised.data : args.x.data,
                     .x_shared = quantise_shared ? quantised.data : args.x.data,
                     .x_routed_stride = quantise_routed ? quantised.stride : args.x.stride,
                     .x_shared_stride = quantise_shared ? quantised.stride : args.x.stride,
                     .out = scratch.hidden,
                     .n_routed = static_cast<int>(routed.width),
                     .n_shared = static_cast<int>(shared.width),
                     .k_routed = static_cast<int>(d),
                     .k_shared = static_cast<int>(d),
                     .float_scales_routed = routed.float_scales,
                     .float_scales_shared = shared.float_scales,
                     .do_routed = routed.count > 0,
                     .do_shared = with_shared,
                     .limit = args.swiglu_limit,
                     .weigh_hidden = !args.weigh_outputs,
                     .out_stride = static_cast<int>(hidden_stride)};
  LaunchProduct<Stage::kGateUp>(stream, multiprocessors, task_rows, f32, routed.dtype, shared.dtype, product, select);

  // Hidden rows of FP8 and FP4 experts are quantised in place; slots without a row hold whatever they held.
  const auto hidden_rows = [&](int64_t first, int64_t rows, int64_t width) {
    return ops::Tensor{static_cast<std::byte*>(scratch.hidden) + first * hidden_stride * element, args.x.dtype, rows,
                       width, hidden_stride};
  };
  if (quantise_routed && quantise_shared && routed.width == shared.width) {
    const ops::Tensor all = hidden_rows(0, slots, widest);
    LaunchQuantise(stream, all, all);
  } else {
    const ops::Tensor of_shared = hidden_rows(0, grouping.shared_slots, shared.width);
    const ops::Tensor of_routed = hidden_rows(grouping.shared_slots, choices, routed.width);
    if (quantise_shared) LaunchQuantise(stream, of_shared, of_shared);
    if (quantise_routed) LaunchQuantise(stream, of_routed, of_routed);
  }

  product.x_routed = product.x_shared = scratch.hidden;
  product.x_routed_stride = product.x_shared_stride = hidden_stride;
  product.out = scratch.out;
  product.out_stride = static_cast<int>(d);
  product.n_routed = product.n_shared = static_cast<int>(d);
  product.k_routed = static_cast<int>(routed.width);
  product.k_shared = static_cast<int>(shared.width);
  LaunchProduct<Stage::kDown>(stream, multiprocessors, task_rows, f32, routed.dtype, shared.dtype, product, select);

  const Combining combining = {.choices = args.experts,
                               .weights = args.weights,
                               .choice_slot = scratch.choice_slot,
                               .k = static_cast<int>(k),
                               .with_shared = with_shared,
                               .weigh = args.weigh_outputs,
                               .from = scratch.out,
                               .out = args.out};
  const LaunchShape combine_shape = {.blocks_x = static_cast<unsigned>(tokens),
                                     .blocks_y = static_cast<unsigned>(CeilDiv(d, kCombineCols)),
                                     .threads = kCombineThreads};
  if (f32) {
    Launch<CombineKernel<float>>(combine_shape, stream, combining);
  } else {
    Launch<CombineKernel<Bf16>>(combine_shape, stream, combining);
  }
}

}  // namespace hadal::gpu::HADAL_GPU_NS
