// The contract between models and platforms: every operator the models need, at the granularity of one fused kernel.
//
// Conventions that hold for all of them:
//  - Shapes are written [rows, cols]; T is the number of rows of the step. Inputs are never modified unless said so,
//  and
//    inputs and outputs do not alias unless said so.
//  - "act" is the activation dtype: kBF16 in published numerics, kF32 in f32 numerics. Arithmetic is fp32; a value is
//    rounded once, when it is written to a buffer of its dtype (cast list: spec deepseek-v4-text 3.9).
//  - Row independence: what is written for a row depends only on that row's inputs and the rows of its own sequence
//  that
//    it may see; the order of every reduction depends on the shape of one row, never on T, on the split of work over
//    threads or on free memory. A row therefore has the same bits alone, in a batch and in any chunking.
//  - A pool may be packed (RowFormat) in published numerics; results are to the bit those with a plain pool that holds
//    the same values. What is written to a packed pool is quantised by the write itself, in place of the simulation.
//  - Work is enqueued in call order; on a GPU the host does not wait. Synchronize() waits.
//  - All scratch is reserved ahead by Reserve(); an operator call allocates nothing.
//  - Arguments are checked when weights and caches are bound, not per call: a wrong shape here is a bug of ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "ops/memory.h"
#include "ops/tensor.h"

namespace hadal::ops {

// Which arithmetic a model runs with (docs/numerics.md).
enum class Numerics {
  kPublished,  // bf16 activations, FP8 activation quantisation, FP8/FP4 simulation of the caches
  kF32,        // fp32 activations and caches, no activation quantisation: proves the logic, and a mode for study
};

// Upper bounds of what one step may ask for; Reserve() sizes all scratch from it.
struct WorkspaceSpec {
  int64_t max_tokens = 0;
  int64_t hidden = 0;
  int64_t hc_mult = 0;
  int64_t max_linear_k = 0;
  int64_t max_linear_n = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  int64_t moe_intermediate = 0;
  int64_t dense_intermediate = 0;   // of layers without routed experts
  int64_t max_attended_rows = 0;    // window rows + compressed rows that one query may see
  int64_t max_compressed_rows = 0;  // rows the indexer may score for one query
  int64_t index_heads = 0;
  int64_t index_head_dim = 0;
  int64_t max_expanded_rows = 0;  // latents of one ExpandedAttention, of head_dim values; 0: it is not called
  int64_t expanded_key = 0;       // values of an expanded head: nope + tail
  int64_t expanded_value = 0;
  int64_t vision_rows = 0;  // patches of the largest image
  bool any_scales = false;  // FP8 weights may have scales that are no powers of two, or kFp8AnyScale is used
};

// How a linear layer treats its input (spec 3.1 "Quantised linear", "Not activation-quantised").
enum class InputQuant {
  kNone,  // the input as it is
  kFp8,   // AQ(x, 128): e4m3 per 128 inputs, power-of-two scales; no effect in f32 numerics
  // The same under scales of amax/448 (spec deepseek-v32 3.1 without scale_fmt). A value is then fp32, code times
  // scale.
  kFp8AnyScale,
};

struct LinearTarget {
  const LinearWeight* weight;
  Tensor out;  // [T, n], act or kF32
  InputQuant quant;
  Vector bias = {};  // [n], added in fp32 before the one rounding; empty: none
};

struct HcWeights {
  const float* fn = nullptr;     // [(2+hc)*hc, hc*d] (HcHead: [hc, hc*d])
  const float* scale = nullptr;  // [3]               (HcHead: [1])
  const float* base = nullptr;   // [(2+hc)*hc]       (HcHead: [hc])
};

struct HcPreArgs {
  Tensor streams;  // X [T, hc*d] act, stream-major
  int64_t hc = 0;
  HcWeights weights;
  int sinkhorn_iters = 0;
  float hc_eps = 0;
  Vector norm;  // [d] weight of the RMS norm that follows
  float rms_eps = 0;
  Tensor out;   // [T, d] act: RMSNorm(u; norm)
  float* post;  // [T, hc]
  float* comb;  // [T, hc, hc], comb[j][k]
};

struct HcPostArgs {
  Tensor layer_out;  // o [T, d] act
  Tensor streams;    // X [T, hc*d] act, updated in place
  int64_t hc = 0;
  const float* post;  // [T, hc]
  const float* comb;  // [T, hc, hc]
};

struct HcHeadArgs {
  Tensor streams;  // X [T, hc*d] act
  int64_t hc = 0;
  HcWeights weights;
  float hc_eps = 0;
  Vector norm;  // [d]
  float rms_eps = 0;
  Tensor out;                          // [R, d] act
  std::span<const int32_t> row_index;  // [R] rows of `streams` to take
};

// cos and sin of position*frequency for every row: [T, half] each.
struct RopeAngles {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t half = 0;  // rotary dims / 2
};

struct QNormRopeArgs {
  Tensor q;  // [T, H*D] act, in place
  int64_t heads = 0;
  int64_t head_dim = 0;
  bool normalize = true;  // per-head RMS without weight, in elementwise act operations; the indexer's queries skip it
  float rms_eps = 0;
  RopeAngles rope;  // rotates the last 2*half dims of each head, adjacent pairs
};

struct KvNormRopeStoreArgs {
  Tensor kv;    // [T, D] act, as wkv gives it; unspecified afterwards
  Vector norm;  // of the row's first values; those behind it (V3.2's rotary key) are not normalised
  float rms_eps = 0;
  RopeAngles rope;  // rotates the last 2*half values
  BatchRows batch;
  PagedRows cache;       // cols D; row `position` of the sequence is written; kPlain, kFp8DsMla or kFp8DsMla656
  bool simulate = true;  // what goes to a plain pool in published numerics is quantised and dequantised first (V4)
};

// Spec deepseek-v32 4.1 without the reduction, which comes before it.
struct AddRmsNormArgs {
  Tensor x;         // [T, d] act
  Tensor residual;  // [T, d] act: x is added to it
  Vector norm;
  float rms_eps = 0;
  Tensor out;  // [T, d] act: RMSNorm of the sum before it is rounded; may be x
};

// The rotary part of V3.2's queries, beside the absorbed part (spec deepseek-v32 4.3).
struct RopeTailArgs {
  Tensor q;  // [T, heads*head_dim] act: the last 2*half values of each head are rotated, adjacent pairs
  int64_t heads = 0;
  int64_t head_dim = 0;
  RopeAngles rope;
  Tensor out;  // [T, heads*out_dim] act: the last 2*half values of each head are written
  int64_t out_dim = 0;
};

// The key of V3.2's indexer (spec deepseek-v32 3.6): LayerNorm, rotation of the first 2*half values in pairs (i, i +
// half), Hadamard; the write quantises.
struct IndexerKeyStoreArgs {
  Tensor k;  // [T, Di] act, as wk gives it
  Vector norm, bias;
  float eps = 0;
  RopeAngles rope;
  BatchRows batch;
  PagedRows keys;  // cols Di; kFp8Key, or kPlain: quantised and dequantised in published numerics
};

// Input of V3.2's MTP block (spec deepseek-v32 5.1).
struct MtpNormArgs {
  Tensor e;  // [T, d] act: embeddings; counted as zero in rows of position 0
  Tensor h;  // [T, d] act: hidden states
  Vector enorm, hnorm;
  float rms_eps = 0;
  BatchRows batch;
  Tensor out;  // [T, 2*d] act: the normalised embedding, then the normalised hidden state
};

struct CompressArgs {
  Tensor kv;                   // [T, c*Dc] f32: x*wkv^T, c = 2 when ratio is 4, else 1
  Tensor gate;                 // [T, c*Dc] f32: x*wgate^T
  const float* ape = nullptr;  // [ratio, c*Dc]
  Vector norm;                 // [Dc]
  float rms_eps = 0;
  int32_t ratio = 0;
  int64_t width = 0;                  // Dc
  std::span<const float> rope_freqs;  // [rotary/2] of this layer; the row is rotated at position window*ratio
  bool indexer_keys = false;          // false: FP8 simulation of the non-rotary dims; true: Hadamard + FP4 simulation
  BatchRows batch;
  // f32 [2*c*Dc]: kv | gate+ape of each position, a ring. All rows of the batch are written before a window is read, so
  // a ring holds the batch and, before it, the rest of an open window and (ratio 4) the window before that one.
  PagedRows state;
  // cols Dc; row w of the sequence is written when position w*ratio+ratio-1 is in the batch. kPlain, or packed as the
  // simulation goes: kFp8DsMla, indexer keys kMxfp4.
  PagedRows output;
};

// How an indexer prepares its queries and scores (spec deepseek-v4-text 3.6, deepseek-v32 3.6).
enum class IndexerStyle {
  kV4,   // rotates the last 2*half values in adjacent pairs; FP4 per 32; scores are rounded to act at each step
  kV32,  // rotates the first 2*half values in pairs (i, i + half); FP8 per head; scores in fp32
};

struct IndexerQueryArgs {
  Tensor q;  // [T, Hi*Di] act, in place: RoPE, Hadamard, quantisation simulated
  int64_t heads = 0;
  int64_t head_dim = 0;
  RopeAngles rope;
  IndexerStyle style = IndexerStyle::kV4;
};

struct IndexerTopkArgs {
  Tensor q;        // [T, Hi*Di] act, from IndexerQuery
  Tensor weights;  // [T, Hi] act, kV32 f32: weights_proj(x), not yet scaled
  int64_t heads = 0;
  int64_t head_dim = 0;
  int32_t ratio = 0;  // row j is visible to position p when j < (p+1)/ratio
  int64_t top_k = 0;
  BatchRows batch;
  PagedRows keys;           // cols Di; kPlain, kMxfp4 or kFp8Key
  int32_t* out = nullptr;   // [T, top_k] chosen rows in ascending order, -1 padded
  float* scores = nullptr;  // optional [T, scores_stride]: scores of the visible rows, for tests
  int64_t scores_stride = 0;
  IndexerStyle style = IndexerStyle::kV4;
};

struct SparseAttentionArgs {
  Tensor q;  // [T, H*D] act
  int64_t heads = 0;
  int64_t head_dim = 0;
  const float* sink = nullptr;  // [H] logit that enters the denominator only; null: none
  float softmax_scale = 0;
  BatchRows batch;
  PagedRows window;                       // cols D; rows [window_begin[t], window_end[t]) are seen; may be empty
  const int32_t* window_begin = nullptr;  // [T]
  const int32_t* window_end = nullptr;    // [T]
  PagedRows compressed;                   // cols D, may be empty
  int32_t ratio = 0;                      // rows j < (p+1)/ratio exist for position p
  const int32_t* topk = nullptr;          // [T, topk_stride] rows to see, -1 skipped; null: all that exist
  int64_t topk_stride = 0;
  RopeAngles rope;                   // the output's last 2*half dims are rotated back; half 0: they are not
  Tensor out;                        // [T, H*value_dim] act
  int64_t value_dim = 0;             // the first so many values of a row are its value; 0: all
  bool round_probabilities = false;  // to act, before they multiply values (V3.2, as its inference code does)
};

// Attention of rows of one sequence, at consecutive positions, over its latents expanded to keys and values of each
// head (spec deepseek-v32 3.5, MHA form). Casts: expanded keys and values, and the output.
struct ExpandedAttentionArgs {
  Tensor q;  // [T, H*(nope + tail)] act, the tail of each head rotated
  int64_t heads = 0;
  int64_t value_dim = 0;
  const LinearWeight* kv_b = nullptr;    // [H*(nope + value_dim), Rkv]; of each head keys first
  InputQuant quant = InputQuant::kNone;  // of the latents
  float softmax_scale = 0;
  BatchRows batch;   // of q's rows
  PagedRows latent;  // cols Rkv + tail: rows up to a query's position are seen
  Tensor out;        // [T, H*value_dim] act
  bool round_probabilities = false;
};

struct GroupedLinearArgs {
  Tensor x;                              // [T, groups*x_group] act; of each group the first k values are the input
  const LinearWeight* weight = nullptr;  // [groups*n, k]; rows of group g are g*n ... (g+1)*n-1
  int64_t groups = 0;
  Tensor out;             // [T, groups*out_group] act; of each group the first n values are written
  int64_t x_group = 0;    // 0: k
  int64_t out_group = 0;  // 0: n
};

// Scores that experts are chosen by.
enum class RouterScores { kSqrtSoftplus, kSigmoid };

struct MoeRouteArgs {
  Tensor logits;                             // [T, E] f32
  const float* bias = nullptr;               // [E], text tokens of score-routed layers; null on hash layers
  const float* bias_vl = nullptr;            // [E], image tokens; null in text checkpoints
  const int32_t* token_to_expert = nullptr;  // [V, k] on hash layers, else null
  int32_t image_first = 0;                   // ids in [image_first, image_first+5) are image tokens
  int64_t experts_per_token = 0;
  float scale = 0;
  BatchRows batch;
  int32_t* experts = nullptr;  // [T, k]; descending selection score, or the order of token_to_expert
  float* weights = nullptr;    // [T, k]
  RouterScores scores = RouterScores::kSqrtSoftplus;
  // V3.2: only experts of the topk_groups groups whose two best biased scores have the largest sums are chosen from
  // (spec deepseek-v32 3.8). One group: no limit.
  int64_t groups = 1;
  int64_t topk_groups = 1;
  bool normalise = true;  // weights of a row are divided by their sum before they are scaled
};

struct ExpertWeights {
  LinearWeight w1, w3, w2;  // gate [F, d], up [F, d], down [d, F]
};

struct MoeExpertsArgs {
  Tensor x;                          // [T, d] act
  const int32_t* experts = nullptr;  // [T, k]; -1 (padding) is skipped
  const float* weights = nullptr;    // [T, k]
  int64_t experts_per_token = 0;
  std::span<const ExpertWeights> routed;  // [E]
  const ExpertWeights* shared = nullptr;
  float swiglu_limit = 0;  // 0: no clamp
  Tensor out;              // [T, d] act
  // Where a weight multiplies: the expert's output, in fp32 behind its rounding (V3.2), or its hidden values (V4).
  bool weigh_outputs = false;
  InputQuant quant = InputQuant::kFp8;  // of the inputs and hidden values of FP8 and FP4 experts
};

struct MtpCombineArgs {
  Tensor e;  // [T, d] act: e_proj output
  Tensor h;  // [T*hc, d] act: h_proj output of every stream
  int64_t hc = 0;
  Tensor streams;  // [T, hc*d] act
};

// Attention of every patch over all patches of its image (spec vision-and-cache 3 steps 4 to 6).
struct VisionAttentionArgs {
  Tensor qkv;  // [N, 3*H*D] act: queries, keys, values; not changed
  int64_t heads = 0;
  int64_t head_dim = 0;  // D, a multiple of 4
  // Angles of patch n at [n, D/2]; dims i and i + D/2 of a head are a pair. Rotated queries and keys are rounded to
  // act.
  RopeAngles rope;
  Tensor packed;  // [3*H*N, D] act: scratch
  Tensor out;     // [N, H*D] act; softmax in fp32, scale D^-1/2
};

// Rows for attention over one flat workspace, as platforms need them that gather cache rows first (spec
// vision-and-cache 5.6; 5.5 for the workspace): for each query the workspace rows of its chosen compressed entries,
// then of its window. All pointers are to host memory.
struct CombineIndicesArgs {
  std::span<const int32_t> topk;             // [T, top_k] entries of the request, -1: none
  std::span<const int32_t> query_start_loc;  // [B+1] first query of each request; may start above 0
  std::span<const int32_t> seq_lens;         // [B] positions up to the end of this step
  std::span<const int32_t> gather_lens;      // [B] window rows in the workspace, the last of seq_lens
  int64_t window = 0;                        // W
  int64_t ratio = 1;                         // r
  int64_t top_k = 0;                         // K; 0: no compressed entries
  int64_t rows_per_request = 0;              // M
  int64_t compressed_rows = 0;               // N: window rows of a request begin at row N of its M
  // Room for the widest image span in every row of a vision model, whether or not the batch has images: the shapes of
  // buffers must not depend on the batch.
  int64_t max_image_tokens = 0;
  // [T] tokens of its image span that a query sees on its left and right; both or neither.
  std::optional<std::span<const int32_t>> left_visible;
  std::optional<std::span<const int32_t>> right_visible;
  std::span<int32_t> indices;  // [T, CombinedWidth], -1 padded
  std::span<int32_t> lens;     // [T] used columns, those of -1 among the compressed included
};

// Columns of the result: K + W + max_image_tokens, rounded up to 128.
int64_t CombinedWidth(const CombineIndicesArgs& args);

// What not every platform has; a model that needs it is refused where it is missing.
enum class Feature {
  kExpandedAttention,    // ExpandedAttention
  kAnyActivationScales,  // InputQuant::kFp8AnyScale
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual bool Supports(Feature feature) const = 0;

  virtual std::string_view name() const = 0;
  virtual Numerics numerics() const = 0;
  DType act() const { return numerics() == Numerics::kF32 ? DType::kF32 : DType::kBF16; }

  // Scratch that steps within `spec` need, and its reservation. Reserve may be called again with a larger spec.
  virtual size_t WorkspaceBytes(const WorkspaceSpec& spec) const = 0;
  virtual absl::Status Reserve(const WorkspaceSpec& spec) = 0;
  // Waits for all that was enqueued; the first error of a device since the last call.
  virtual absl::Status Synchronize() { return absl::OkStatus(); }
  // Where all that operators read and write lies, but for what a comment says is the host's.
  virtual Memory& memory() const { return HostMemory(); }
  // To be called once for the experts of every layer before MoeExperts takes them; `experts` outlives the Ops or the
  // next call with it.
  virtual absl::Status PrepareExperts(std::span<const ExpertWeights> /*experts*/) { return absl::OkStatus(); }

  // streams[t][s] = table[ids[t]] for all hc streams (spec 3.2 step 1). table: kBF16 [V, d].
  virtual void Embed(const BatchRows& batch, const LinearWeight& table, int64_t hc, Tensor streams) = 0;

  // out_i = x * W_i^T for several weights that share their input (spec 3.1). x: [T, k] act. Targets that quantise it
  // do so alike.
  virtual void Linear(Tensor x, std::span<const LinearTarget> targets) = 0;
  // One product per group of columns (the output projection wo_a; spec 3.7). Input not quantised.
  virtual void GroupedLinear(const GroupedLinearArgs& args) = 0;
  // out = RMSNorm(x; weight) per row of [R, d] (spec 3.1). May work in place.
  virtual void RmsNorm(Tensor x, Vector weight, float eps, Tensor out) = 0;

  // Hyper-connections (spec 3.3): HcPre ends with the sub-block's RMS norm, HcHead with the final one.
  virtual void HcPre(const HcPreArgs& args) = 0;
  virtual void HcPost(const HcPostArgs& args) = 0;
  virtual void HcHead(const HcHeadArgs& args) = 0;

  // cos/sin of fp32(position)*fp32(freq), each [T, freqs.size()] (spec 3.1 RoPE; trap 32: the product is fp32). freqs
  // are the host's, as are CompressArgs::rope_freqs.
  virtual void ComputeRopeAngles(const BatchRows& batch, std::span<const float> freqs, float* cos, float* sin) = 0;
  virtual void QNormRope(const QNormRopeArgs& args) = 0;              // spec 3.4 steps 2, 3
  virtual void KvNormRopeStore(const KvNormRopeStoreArgs& args) = 0;  // spec 3.4 step 4
  // Appends the batch to the compressor state, then emits every window that it completes (spec 3.5).
  virtual void Compress(const CompressArgs& args) = 0;
  virtual void IndexerQuery(const IndexerQueryArgs& args) = 0;        // spec 3.6 steps 1-3
  virtual void IndexerTopk(const IndexerTopkArgs& args) = 0;          // spec 3.6 steps 4-7
  virtual void SparseAttention(const SparseAttentionArgs& args) = 0;  // spec 3.7

  virtual void MoeRoute(const MoeRouteArgs& args) = 0;      // spec 3.8 steps 1-3; vision spec 4.2
  virtual void MoeExperts(const MoeExpertsArgs& args) = 0;  // spec 3.8 steps 4, 5

  // out[i] = from[rows[i]]; rows ascend if out is from.
  virtual void GatherRows(Tensor from, std::span<const int32_t> rows, Tensor out);

  // streams[t][s] = act(e[t] + h[t][s]) (spec 4).
  virtual void MtpCombine(const MtpCombineArgs& args) = 0;

  // V3.2 (spec deepseek-v32).
  virtual void AddRmsNorm(const AddRmsNormArgs& args) = 0;            // 3.1 RMSNorm, 4.1
  virtual void RopeTail(const RopeTailArgs& args) = 0;                // 3.4, 4.3
  virtual void IndexerKeyStore(const IndexerKeyStoreArgs& args) = 0;  // 3.6, 4.2 job 0
  virtual void MtpNorm(const MtpNormArgs& args) = 0;                  // 5.1
  // Feature::kExpandedAttention.
  virtual void ExpandedAttention(const ExpandedAttentionArgs& args);

  // Vision (spec deepseek-v4-vision-and-cache).
  // streams[t][s] = rows[t], [d] act, for all hc streams where rows[t] is not null (4.1).
  virtual void PlaceEmbeddings(std::span<const void* const> rows, int64_t hc, Tensor streams) = 0;
  // out = act((u8/255 - 0.5) / 0.5) (2.4). pixels: [out.rows, out.cols].
  virtual void NormalisePixels(const uint8_t* pixels, Tensor out) = 0;
  virtual void VisionAttention(const VisionAttentionArgs& args) = 0;
  // x = act(x + y).
  virtual void Add(Tensor x, Tensor y) = 0;
  // out = act(act(silu(g)) * u) with g the left and u the right half of gate_up [N, 2F] (3 step 7).
  virtual void SiluMul(Tensor gate_up, Tensor out) = 0;
  // x = act(x/2 * (1 + erf(x/sqrt(2)))) (3, aligner).
  virtual void Gelu(Tensor x) = 0;
  // The aligner's input: of x [rows*cols, C], in raster order, squares of `edge` x `edge` become rows of out
  // [ceil(rows/edge)*ceil(cols/edge), C*edge*edge], feature c*edge*edge + y*edge + x, zero beyond the border (3).
  virtual void UnfoldGrid(Tensor x, int64_t rows, int64_t cols, int64_t edge, Tensor out) = 0;
  // InvalidArgument if only one of left_visible and right_visible is given, or a size does not fit.
  virtual absl::Status CombineTopkSwaIndices(const CombineIndicesArgs& args) = 0;
};

}  // namespace hadal::ops
