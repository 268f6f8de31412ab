// Internals of CpuOps, shared by its translation units (cpu_ops.cc, cpu_linear.cc, cpu_attention.cc, cpu_expanded.cc,
// cpu_moe.cc, cpu_vision.cc).
#pragma once

#include <memory>
#include <vector>

#include "base/carver.h"
#include "base/memory_region.h"
#include "base/thread_pool.h"
#include "ops/row_format.h"
#include "platforms/cpu/cpu_ops.h"
#include "platforms/cpu/linear.h"

namespace hadal::cpu {

// Rows that one worker prepares together.
inline constexpr int64_t kPackRows = 16;

// Widest vision head: queries and results of a task lie in buffers that every model has (WorkerScratch::vectors).
inline constexpr int64_t kMaxVisionHead = 128;

// Most experts that can have rows in one step, the shared one included.
inline constexpr int64_t kMaxJobs = 1025;

// Keys that the indexer reads and scores together: 8 KiB of fp32 at the published width stay in L1 beside the queries.
inline constexpr int64_t kIndexKeys = 16;

// Rotates the pairs (x[i], x[i + half]).
inline void RotateHalves(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

// Scratch of one worker.
struct WorkerScratch {
  float* rows = nullptr;            // [kPackRows, max row] fp32 input rows
  float* quantized = nullptr;       // the same after AQ
  float* block = nullptr;           // two blocks of products: [2][groups][kRowBlock][group]
  float* scores = nullptr;          // attention: [8, max attended or vision rows]; indexer: [max compressed rows]
  float* vectors = nullptr;         // a handful of head-sized rows
  float* selection = nullptr;       // indexer: [max compressed rows]
  ops::RowPlace* places = nullptr;  // [max attended rows]
  const void** pointers = nullptr;  // the same, or [kIndexKeys]
  // AttendAmxScratch, AttendAllAmxScratch; the indexer's keys: fp32 [kIndexKeys, index_head_dim].
  std::byte* attention = nullptr;
  uint16_t* unpacked = nullptr;   // rows: bf16 [max attended, head_dim]
  std::byte* linear = nullptr;    // LinearScratchBytes
  std::byte* expanded = nullptr;  // ExpandedWorkerBytes: scores, a block of products, packed inputs
};

// Buffers of the mixture of experts, by slot: one slot for each (row, chosen expert), sorted by expert, then the shared
// expert's.
struct MoeScratch {
  int32_t* slot_row = nullptr;       // [slots]
  float* slot_weight = nullptr;      // [slots]
  int32_t* row_slots = nullptr;      // [T, k] slots of a row, ascending expert; -1 padded
  int32_t* row_fill = nullptr;       // [T]
  int64_t* expert_begin = nullptr;   // [E + 1] first slot
  int64_t* expert_packed = nullptr;  // [E + 1] first row of the expert's packed input
  void* hidden = nullptr;            // [slots, F] act
  void* out = nullptr;               // [slots, d] act
  void* packed_in = nullptr;         // packed inputs of the routed experts
  void* packed_hidden = nullptr;     // packed inputs of w2
};

// Latents of one sequence, and the heads that are expanded together.
struct ExpandedScratch {
  void* latents = nullptr;  // [rows, Rkv + tail] act
  void* kv = nullptr;       // [rows, heads*(nope + value)] act
  void* keys = nullptr;     // [heads][rows, nope + tail] act
  void* values = nullptr;   // [heads][value, padded rows] act
};

// What operators write to while they run: divided up once, in Reserve.
struct Scratch {
  std::vector<WorkerScratch> workers;
  // Packed inputs of Linear, one for each (layout, quantised); those of GroupedLinear, one behind the other.
  static constexpr int kPackVariants = 6;
  void* packed[kPackVariants] = {};
  void* packed_groups = nullptr;
  float* hc_rows = nullptr;     // [4, hc*d] fp32, the split path of small batches
  float* hc_mixes = nullptr;    // [4, 64]
  float* hc_squares = nullptr;  // [4]
  MoeScratch moe;
  ExpandedScratch expanded;
};

class CpuOps final : public ops::Ops {
 public:
  CpuOps(const CpuOptions& options, int threads);

  bool Supports(ops::Feature /*feature*/) const override { return true; }
  std::string_view name() const override { return "cpu"; }
  ops::Numerics numerics() const override { return options_.numerics; }
  size_t WorkspaceBytes(const ops::WorkspaceSpec& spec) const override;
  absl::Status Reserve(const ops::WorkspaceSpec& spec) override;

  void Embed(const ops::BatchRows& batch, const ops::LinearWeight& table, int64_t hc, ops::Tensor streams) override;
  void Linear(ops::Tensor x, std::span<const ops::LinearTarget> targets) override;
  void GroupedLinear(const ops::GroupedLinearArgs& args) override;
  void RmsNorm(ops::Tensor x, ops::Vector weight, float eps, ops::Tensor out) override;
  void HcPre(const ops::HcPreArgs& args) override;
  void HcPost(const ops::HcPostArgs& args) override;
  void HcHead(const ops::HcHeadArgs& args) override;
  void ComputeRopeAngles(const ops::BatchRows& batch, std::span<const float> freqs, float* cos, float* sin) override;
  void QNormRope(const ops::QNormRopeArgs& args) override;
  void KvNormRopeStore(const ops::KvNormRopeStoreArgs& args) override;
  void Compress(const ops::CompressArgs& args) override;
  void IndexerQuery(const ops::IndexerQueryArgs& args) override;
  void IndexerTopk(const ops::IndexerTopkArgs& args) override;
  void SparseAttention(const ops::SparseAttentionArgs& args) override;
  void MoeRoute(const ops::MoeRouteArgs& args) override;
  void MoeExperts(const ops::MoeExpertsArgs& args) override;
  void MtpCombine(const ops::MtpCombineArgs& args) override;
  void AddRmsNorm(const ops::AddRmsNormArgs& args) override;
  void RopeTail(const ops::RopeTailArgs& args) override;
  void IndexerKeyStore(const ops::IndexerKeyStoreArgs& args) override;
  void MtpNorm(const ops::MtpNormArgs& args) override;
  void ExpandedAttention(const ops::ExpandedAttentionArgs& args) override;
  void PlaceEmbeddings(std::span<const void* const> rows, int64_t hc, ops::Tensor streams) override;
  void NormalisePixels(const uint8_t* pixels, ops::Tensor out) override;
  void VisionAttention(const ops::VisionAttentionArgs& args) override;
  void Add(ops::Tensor x, ops::Tensor y) override;
  void SiluMul(ops::Tensor gate_up, ops::Tensor out) override;
  void Gelu(ops::Tensor x) override;
  void UnfoldGrid(ops::Tensor x, int64_t rows, int64_t cols, int64_t edge, ops::Tensor out) override;
  absl::Status CombineTopkSwaIndices(const ops::CombineIndicesArgs& args) override;

 private:
  bool published() const { return options_.numerics == ops::Numerics::kPublished; }
  const LinearBackend& BackendFor(InputLayout layout) const { return layout == InputLayout::kF32Rows ? simd_ : amx_; }
  // Carves all scratch from `base`, which may be null to count; returns the bytes used.
  size_t Carve(const ops::WorkspaceSpec& spec, std::byte* base, Scratch* to) const;

  // Loads `count` rows (row i of `x` at index[i], or first + i) from column `column` on, quantises them if asked, and
  // packs them as one group.
  void PackGroup(const ops::Tensor& x, const int32_t* index, int64_t first, int64_t count, int64_t column, int64_t k,
                 ops::InputQuant quant, InputLayout layout, int64_t group, void* out, WorkerScratch& scratch);
  // Writes a block of products to columns [n0, n0 + rows) of `out`, rounding once.
  void StoreBlock(const PackedInput& x, int64_t rows, const float* block, const ops::Tensor& out, int64_t row0,
                  int64_t n0);

  // VisionAttention with the row kernels. args.packed: rotated queries [H][N][D], rotated keys [H][D][N], values
  // [H][N][D].
  void PackVisionRows(const ops::VisionAttentionArgs& args, int64_t first, int64_t count, float* columns);
  void VisionAttentionRows(const ops::VisionAttentionArgs& args);
  // The same on tiles. args.packed: rotated queries [H][N][D], then keys and values of each head as in vision_amx.h.
  void PackVisionTiles(const ops::VisionAttentionArgs& args, int64_t first, int64_t count);
  void VisionAttentionTiles(const ops::VisionAttentionArgs& args);

  // The cache rows that row t of the step sees: compressed ones, then the window.
  static int64_t VisibleRows(const ops::SparseAttentionArgs& args, int64_t t, ops::RowPlace* rows);
  // scratch.pointers for the n rows at scratch.places: where they lie, or unpacked to bf16 at scratch.unpacked.
  void UnpackRows(int64_t n, ops::RowFormat format, int64_t dim, int64_t tail, WorkerScratch& scratch) const;
  // Quantise v[0, cols) as published numerics have it, but for the last `tail` values of a KV row, and store it as row
  // `position`. v is changed. A plain row is quantised and dequantised if `simulate`.
  void StoreKv(const ops::PagedRows& pool, int32_t seq, int64_t position, float* v, int64_t tail, bool simulate) const;
  void StoreKey(const ops::PagedRows& pool, int32_t seq, int64_t position, float* v) const;

  // ExpandedAttention (cpu_expanded.cc).
  static size_t ExpandedWorkerBytes(const ops::WorkspaceSpec& spec);
  void CarveExpanded(const ops::WorkspaceSpec& spec, Carver& carver, ExpandedScratch* to) const;
  void GatherLatents(const ops::PagedRows& pool, int32_t seq, int64_t rows);
  void ExpandHeads(const ops::ExpandedAttentionArgs& args, int64_t first, int64_t heads, int64_t rows);
  // One head, the `in_group`th that is expanded, of a block of queries from `first` on.
  void AttendExpanded(const ops::ExpandedAttentionArgs& args, int64_t head, int64_t in_group, int64_t rows,
                      int64_t first, WorkerScratch& scratch);

  // The mixing logits of hyper-connections for rows [first, first + count): streams in fp32 at `rows`, mixes [count,
  // n].
  void HcFinish(const ops::HcPreArgs& args, int64_t token, const float* streams, const float* mixes, float* u);

  // Fills moe_ from the routing; returns the number of routed slots.
  int64_t GroupByExpert(const ops::MoeExpertsArgs& args);

  CpuOptions options_;
  ThreadPool pool_;
  const RowKernels& kernels_;
  LinearBackend simd_;
  LinearBackend amx_;  // the simd backend again where there is no AMX
  ops::WorkspaceSpec spec_;
  MemoryRegion workspace_;
  Scratch scratch_;
  std::vector<float> no_sink_;  // [heads], so low that they have no weight
};

}  // namespace hadal::cpu
