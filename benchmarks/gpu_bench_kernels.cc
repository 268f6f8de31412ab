// The table of kernels of gpu_bench, at V4-Flash's shapes.
#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <unordered_set>
#include <utility>

#include "gpu_bench.h"
#include "ops/row_format.h"

namespace hadal::bench {
namespace {

constexpr int64_t kRotary = 64;
constexpr int64_t kWindow = 128;
constexpr int32_t kRatio = 4;
constexpr int32_t kBlockRows = 64;
// Weights and rows that calls turn over, together, so that no cache keeps them.
constexpr int64_t kTurnBytes = int64_t{384} << 20;

struct Dims {
  int64_t hidden = 4096, q_rank = 1024, heads = 64, head_dim = 512, groups = 8, o_rank = 1024, vocab = 129280;
  int64_t experts = 256, chosen = 6, inter = 2048, hc = 4;
  int64_t index_heads = 64, index_dim = 128, top_k = 512;
  int64_t prefill_context = 8192;
  std::vector<int64_t> rows = {1, 8, 64, 512, 4096};
  std::vector<int64_t> head_rows = {1, 8, 64};
  std::vector<int64_t> decode_batches = {1, 32, 128};
  std::vector<int64_t> prefill_rows = {512, 4096};
  std::vector<int64_t> index_keys = {8 << 10, 64 << 10, 512 << 10};
  std::vector<int64_t> index_queries = {1, 64};
  std::vector<int64_t> pointwise_rows = {1, 64, 4096};
};

Dims QuickDims() {
  Dims d;
  d.hidden = 512;
  d.q_rank = 128;
  d.heads = 8;
  d.groups = 2;
  d.o_rank = 128;
  d.vocab = 2048;
  d.experts = 16;
  d.inter = 256;
  d.index_heads = 8;
  d.top_k = 128;
  d.prefill_context = 1024;
  d.rows = {1, 8, 40};
  d.head_rows = {1, 8};
  d.decode_batches = {1, 4};
  d.prefill_rows = {32};
  d.index_keys = {1024};
  d.index_queries = {1, 4};
  d.pointwise_rows = {1, 16};
  return d;
}

double Product(std::initializer_list<int64_t> factors) {
  double p = 1;
  for (const int64_t f : factors) p *= static_cast<double>(f);
  return p;
}

class Kernels {
 public:
  Kernels(const GpuSettings& settings, const GpuLimits& limits, double launch_seconds, ops::Ops& ops)
      : settings_(settings), ops_(ops), report_(limits, launch_seconds) {
    if (settings.quick) d_ = QuickDims();
  }

  absl::Status Run() {
    report_.Header();
    HADAL_RETURN_IF_ERROR(Reserve(*std::max_element(d_.rows.begin(), d_.rows.end()), d_.prefill_context));
    HADAL_RETURN_IF_ERROR(Linears());
    HADAL_RETURN_IF_ERROR(Moe());
    HADAL_RETURN_IF_ERROR(Attention());
    HADAL_RETURN_IF_ERROR(HyperConnections());
    HADAL_RETURN_IF_ERROR(Reserve(d_.index_queries.back(), d_.index_keys.back() * kRatio));
    HADAL_RETURN_IF_ERROR(Indexer());
    report_.Summary();
    return absl::OkStatus();
  }

 private:
  bool Wanted(std::string_view kernel) const {
    return settings_.only.empty() || kernel.find(settings_.only) != std::string_view::npos;
  }

  absl::Status Reserve(int64_t tokens, int64_t context) {
    ops::WorkspaceSpec spec;
    spec.max_tokens = tokens;
    spec.hidden = d_.hidden;
    spec.hc_mult = d_.hc;
    spec.max_linear_k = std::max(d_.hidden, d_.groups * d_.o_rank);
    spec.max_linear_n = std::max(d_.vocab, d_.heads * d_.head_dim);
    spec.heads = d_.heads;
    spec.head_dim = d_.head_dim;
    spec.experts = d_.experts;
    spec.experts_per_token = d_.chosen;
    spec.moe_intermediate = d_.inter;
    spec.max_attended_rows = kWindow + d_.top_k;
    spec.max_compressed_rows = context / kRatio + 1;
    spec.index_heads = d_.index_heads;
    spec.index_head_dim = d_.index_dim;
    return ops_.Reserve(spec);
  }

  // -- Linear layers ---------------------------------------------------------------------------------------------

  struct Copies {
    ops::Buffer memory;
    std::vector<ops::LinearWeight> weights;
    int64_t bytes = 0;  // of one
  };
  absl::StatusOr<Copies> MakeWeights(DType dtype, int64_t n, int64_t k) {
    Copies out;
    const int64_t data = DTypeBytes(dtype, n * k);
    const int64_t scale = dtype == DType::kF8E4M3   ? (n + 127) / 128 * ((k + 127) / 128)
                          : dtype == DType::kF4E2M1 ? n * k / 32
                                                    : 0;
    out.bytes = data + scale;
    const int64_t stride = (data + 255) / 256 * 256 + (scale + 255) / 256 * 256;
    const int64_t copies = settings_.quick ? 2 : kTurnBytes / stride + 1;
    HADAL_ASSIGN_OR_RETURN(out.memory, ops_.memory().Allocate(copies * stride, "weights"));
    for (int64_t c = 0; c < copies; ++c) {
      std::byte* at = out.memory.data() + c * stride;
      HADAL_RETURN_IF_ERROR(FillRandom(ops_, ContentsOf(dtype), at, data));
      if (scale > 0) HADAL_RETURN_IF_ERROR(FillRandom(ops_, Contents::kScale, at + stride - Padded(scale), scale));
      out.weights.push_back({.n = n, .k = k, .dtype = dtype, .data = at, .scale = at + stride - Padded(scale)});
    }
    return out;
  }
  static int64_t Padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }
  static Contents ContentsOf(DType dtype) {
    return dtype == DType::kBF16 ? Contents::kBf16 : dtype == DType::kF8E4M3 ? Contents::kFp8 : Contents::kBytes;
  }

  absl::Status Linears() {
    const int64_t width = d_.heads * d_.head_dim;
    HADAL_RETURN_IF_ERROR(Linear("linear wq_a", DType::kF8E4M3, {d_.q_rank}, d_.hidden, d_.rows));
    HADAL_RETURN_IF_ERROR(Linear("linear wkv", DType::kF8E4M3, {d_.head_dim}, d_.hidden, d_.rows));
    HADAL_RETURN_IF_ERROR(Linear("linear wq_a + wkv", DType::kF8E4M3, {d_.q_rank, d_.head_dim}, d_.hidden, d_.rows));
    HADAL_RETURN_IF_ERROR(Linear("linear wq_b", DType::kF8E4M3, {width}, d_.q_rank, d_.rows));
    HADAL_RETURN_IF_ERROR(Linear("linear wo_b", DType::kF8E4M3, {d_.hidden}, d_.groups * d_.o_rank, d_.rows));
    HADAL_RETURN_IF_ERROR(Grouped());
    return Linear("linear head", DType::kBF16, {d_.vocab}, d_.hidden, d_.head_rows);
  }

  // Layers of `widths` outputs in one call.
  absl::Status Linear(std::string_view name, DType dtype, const std::vector<int64_t>& widths, int64_t k,
                      const std::vector<int64_t>& row_counts) {
    if (!Wanted(name)) return absl::OkStatus();
    const bool fp8 = dtype == DType::kF8E4M3;
    const DType out_dtype = fp8 ? DType::kBF16 : DType::kF32;
    const int64_t most = *std::max_element(row_counts.begin(), row_counts.end());
    std::vector<Copies> layers;
    std::vector<ops::Buffer> outputs;
    std::string shape;
    for (const int64_t n : widths) {
      HADAL_ASSIGN_OR_RETURN(Copies copies, MakeWeights(dtype, n, k));
      layers.push_back(std::move(copies));
      HADAL_ASSIGN_OR_RETURN(ops::Buffer out, ops_.memory().Allocate(DTypeBytes(out_dtype, most * n), "outputs"));
      outputs.push_back(std::move(out));
      shape += fmt::format("{}{}", shape.empty() ? "" : "+", n);
    }
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer x, RandomBuffer(ops_, Contents::kBf16, 2 * most * k));
    for (const int64_t rows : row_counts) {
      const ops::Tensor in = ops::MakeTensor(x.data(), DType::kBF16, rows, k);
      std::vector<ops::LinearTarget> targets(widths.size());
      Cost cost;
      cost.bytes = Product({2, rows, k});
      for (size_t i = 0; i < widths.size(); ++i) {
        targets[i].out = ops::MakeTensor(outputs[i].data(), out_dtype, rows, widths[i]);
        targets[i].quant = fp8 ? ops::InputQuant::kFp8 : ops::InputQuant::kNone;
        cost.bytes += static_cast<double>(layers[i].bytes + DTypeBytes(out_dtype, rows * widths[i]));
        (fp8 ? cost.fp8_flop : cost.bf16_flop) += 2 * Product({rows, widths[i], k});
      }
      HADAL_ASSIGN_OR_RETURN(const double seconds, TimeCalls(ops_, settings_.quick, [&](int64_t call) {
                               for (size_t i = 0; i < targets.size(); ++i) {
                                 targets[i].weight = &layers[i].weights[call % layers[i].weights.size()];
                               }
                               ops_.Linear(in, targets);
                             }));
      report_.Add(name, fmt::format("{} x {} {}, M {}", shape, k, DTypeName(dtype), rows), seconds, cost, {});
    }
    return absl::OkStatus();
  }

  absl::Status Grouped() {
    if (!Wanted("linear wo_a")) return absl::OkStatus();
    const int64_t k = d_.heads * d_.head_dim / d_.groups;
    const int64_t n = d_.groups * d_.o_rank;
    HADAL_ASSIGN_OR_RETURN(const Copies copies, MakeWeights(DType::kF8E4M3, n, k));
    const int64_t most = *std::max_element(d_.rows.begin(), d_.rows.end());
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer x, RandomBuffer(ops_, Contents::kBf16, 2 * most * d_.groups * k));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer y, ops_.memory().Allocate(2 * most * n, "outputs"));
    for (const int64_t rows : d_.rows) {
      ops::GroupedLinearArgs args;
      args.x = ops::MakeTensor(x.data(), DType::kBF16, rows, d_.groups * k);
      args.groups = d_.groups;
      args.out = ops::MakeTensor(y.data(), DType::kBF16, rows, n);
      HADAL_ASSIGN_OR_RETURN(const double seconds, TimeCalls(ops_, settings_.quick, [&](int64_t call) {
                               args.weight = &copies.weights[call % copies.weights.size()];
                               ops_.GroupedLinear(args);
                             }));
      // Its inputs are not quantised: a product of bf16.
      const Cost cost = {
          .bytes = static_cast<double>(copies.bytes) + Product({2, rows, d_.groups, k}) + Product({2, rows, n}),
          .bf16_flop = 2 * Product({rows, n, k})};
      report_.Add("linear wo_a", fmt::format("{} groups of {} x {} F8_E4M3, M {}", d_.groups, d_.o_rank, k, rows),
                  seconds, cost, {});
    }
    return absl::OkStatus();
  }

  // -- Experts ---------------------------------------------------------------------------------------------------

  absl::Status Moe() {
    if (!Wanted("moe")) return absl::OkStatus();
    const int64_t matrix = Padded(d_.hidden * d_.inter / 2);
    const int64_t scale = Padded(d_.hidden * d_.inter / 32);
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer codes, RandomBuffer(ops_, Contents::kBytes, 3 * matrix * d_.experts));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer scales, RandomBuffer(ops_, Contents::kScale, 3 * scale * d_.experts));
    std::vector<ops::ExpertWeights> routed(d_.experts);
    for (int64_t e = 0; e < d_.experts; ++e) {
      const auto make = [&](int64_t i, int64_t n, int64_t k) {
        return ops::LinearWeight{.n = n,
                                 .k = k,
                                 .dtype = DType::kF4E2M1,
                                 .data = codes.data() + (3 * e + i) * matrix,
                                 .scale = scales.data() + (3 * e + i) * scale};
      };
      routed[e] = {make(0, d_.inter, d_.hidden), make(1, d_.inter, d_.hidden), make(2, d_.hidden, d_.inter)};
    }
    HADAL_ASSIGN_OR_RETURN(const Copies up, MakeWeights(DType::kF8E4M3, d_.inter, d_.hidden));
    HADAL_ASSIGN_OR_RETURN(const Copies down, MakeWeights(DType::kF8E4M3, d_.hidden, d_.inter));
    std::vector<ops::ExpertWeights> shared;
    for (size_t i = 0; i + 1 < up.weights.size(); i += 2) {
      shared.push_back({up.weights[i], up.weights[i + 1], down.weights[i]});
    }
    HADAL_RETURN_IF_ERROR(ops_.PrepareExperts(routed));

    const int64_t most = *std::max_element(d_.rows.begin(), d_.rows.end());
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer x, RandomBuffer(ops_, Contents::kBf16, 2 * most * d_.hidden));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer y, ops_.memory().Allocate(2 * most * d_.hidden, "outputs"));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer weights, Put(ops_, std::vector<float>(most * d_.chosen, 0.25f)));
    std::mt19937_64 engine(11);
    for (const int64_t rows : d_.rows) {
      const int64_t routings = rows <= 64 ? 8 : 2;
      std::vector<ops::Buffer> choices;
      double touched = 0;
      for (int64_t r = 0; r < routings; ++r) {
        std::vector<int32_t> all(d_.experts);
        std::iota(all.begin(), all.end(), 0);
        std::vector<int32_t> chosen;
        std::unordered_set<int32_t> seen;
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t i = 0; i < d_.chosen; ++i) {
            std::swap(all[i], all[std::uniform_int_distribution<int64_t>(i, d_.experts - 1)(engine)]);
            chosen.push_back(all[i]);
            seen.insert(all[i]);
          }
        }
        touched += static_cast<double>(seen.size()) / static_cast<double>(routings);
        HADAL_ASSIGN_OR_RETURN(ops::Buffer buffer, Put(ops_, chosen));
        choices.push_back(std::move(buffer));
      }
      ops::MoeExpertsArgs args;
      args.x = ops::MakeTensor(x.data(), DType::kBF16, rows, d_.hidden);
      args.weights = As<float>(weights);
      args.experts_per_token = d_.chosen;
      args.routed = routed;
      args.swiglu_limit = 10;
      args.out = ops::MakeTensor(y.data(), DType::kBF16, rows, d_.hidden);
      HADAL_ASSIGN_OR_RETURN(const double seconds, TimeCalls(ops_, settings_.quick, [&](int64_t call) {
                               args.experts = As<int32_t>(choices[call % routings]);
                               args.shared = &shared[call % shared.size()];
                               ops_.MoeExperts(args);
                             }));
      const double expert_bytes = 3 * (Product({d_.hidden, d_.inter}) / 2 + Product({d_.hidden, d_.inter}) / 32);
      const Cost cost = {.bytes = touched * expert_bytes + static_cast<double>(2 * up.bytes + down.bytes) +
                                  Product({2, 2, rows, d_.hidden}),
                         .fp8_flop = 6 * Product({rows, d_.chosen + 1, d_.hidden, d_.inter})};
      Bar bar;
      if (rows >= 4096) bar = {.memory = 50, .compute = 50};
      report_.Add("moe", fmt::format("{} tokens, {:.0f} of {} experts", rows, touched, d_.experts), seconds, cost, bar);
    }
    return absl::OkStatus();
  }

  // -- Attention -------------------------------------------------------------------------------------------------

  // Pools of `seqs` sequences of `rows` rows; blocks lie in disorder, as after some use.
  struct Pool {
    ops::Buffer memory, tables;
    ops::PagedRows view;
    int64_t row_bytes = 0;
  };
  absl::StatusOr<Pool> MakePool(ops::RowFormat format, int64_t cols, int64_t tail, int64_t seqs, int64_t rows,
                                bool ring) {
    Pool pool;
    const int64_t per_seq = (rows + kBlockRows - 1) / kBlockRows;
    const int64_t blocks = seqs * per_seq;
    const int64_t values = ops::RowValueBytes(format, DType::kBF16, cols, tail);
    pool.row_bytes = values + ops::RowScaleBytes(format, cols, tail);
    const int64_t stride = (ops::PageBytes(format, DType::kBF16, cols, tail, kBlockRows) + 575) / 576 * 576;
    HADAL_ASSIGN_OR_RETURN(pool.memory, ops_.memory().Allocate(blocks * stride, "a pool"));
    // Some blocks' contents, repeated.
    const int64_t batch = std::min<int64_t>(blocks, std::max<int64_t>(1, (int64_t{32} << 20) / stride));
    std::vector<uint8_t> contents(batch * stride, 0);
    std::mt19937_64 engine(3);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t r = 0; r < kBlockRows; ++r) {
        uint8_t* row = &contents[b * stride + r * values];
        const int64_t codes = values - 2 * tail;
        uint64_t bits = 0;
        for (int64_t i = 0; i < values; ++i, bits >>= 8) {
          if (i % 8 == 0) bits = engine();
          row[i] = static_cast<uint8_t>(bits);
          if (format == ops::RowFormat::kFp8DsMla && i < codes && (row[i] & 0x7F) == 0x7F) row[i] ^= 1;
          if (i >= codes && (i - codes) % 2 == 1) row[i] = static_cast<uint8_t>((row[i] & 0x80) | 0x3E);
        }
      }
      std::fill_n(&contents[b * stride + kBlockRows * values], kBlockRows * (pool.row_bytes - values),
                  static_cast<uint8_t>(120));
    }
    for (int64_t b = 0; b < blocks; b += batch) {
      ops_.memory().Upload(pool.memory.data() + b * stride, contents.data(), std::min(batch, blocks - b) * stride);
    }
    std::vector<int32_t> table(blocks);
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), engine);
    HADAL_ASSIGN_OR_RETURN(pool.tables, Put(ops_, table));
    HADAL_RETURN_IF_ERROR(ops_.Synchronize());
    pool.view.data = pool.memory.data();
    pool.view.cols = cols;
    pool.view.map = {As<int32_t>(pool.tables), per_seq, kBlockRows, ring ? static_cast<int32_t>(per_seq) : 0};
    pool.view.format = format;
    pool.view.tail = tail;
    pool.view.block_stride = stride;
    return pool;
  }

  // The rows of a step in device memory.
  struct Step {
    int64_t rows = 0;
    ops::Buffer positions, seqs, window_begin, window_end, topk;
    ops::BatchRows batch() const { return {rows, As<int32_t>(positions), As<int32_t>(positions), As<int32_t>(seqs)}; }
  };
  absl::StatusOr<Step> MakeStep(const std::vector<int32_t>& positions, const std::vector<int32_t>& seqs,
                                bool with_topk) {
    Step step;
    step.rows = static_cast<int64_t>(positions.size());
    HADAL_ASSIGN_OR_RETURN(step.positions, Put(ops_, positions));
    HADAL_ASSIGN_OR_RETURN(step.seqs, Put(ops_, seqs));
    if (!with_topk) return step;
    std::vector<int32_t> begin, end, topk;
    std::mt19937_64 engine(5);
    for (const int32_t p : positions) {
      begin.push_back(static_cast<int32_t>(std::max<int64_t>(0, p + 1 - kWindow)));
      end.push_back(p + 1);
      std::vector<int32_t> all((p + 1) / kRatio);
      std::iota(all.begin(), all.end(), 0);
      std::sample(all.begin(), all.end(), std::back_inserter(topk), d_.top_k, engine);
      HADAL_CHECK(static_cast<int64_t>(all.size()) >= d_.top_k);
    }
    HADAL_ASSIGN_OR_RETURN(step.window_begin, Put(ops_, begin));
    HADAL_ASSIGN_OR_RETURN(step.window_end, Put(ops_, end));
    HADAL_ASSIGN_OR_RETURN(step.topk, Put(ops_, topk));
    return step;
  }

  absl::Status Attention() {
    if (Wanted("attention decode")) {
      const int64_t context = d_.prefill_context;
      const int64_t seqs = settings_.quick ? 8 : 384;
      HADAL_ASSIGN_OR_RETURN(const Pool window, MakePool(ops::RowFormat::kFp8DsMla, d_.head_dim, kRotary, seqs,
                                                         kWindow + kBlockRows, true));
      HADAL_ASSIGN_OR_RETURN(const Pool compressed,
                             MakePool(ops::RowFormat::kFp8DsMla, d_.head_dim, kRotary, seqs, context / kRatio, false));
      for (const int64_t batch : d_.decode_batches) {
        std::vector<Step> steps;
        for (int64_t first = 0; first + batch <= seqs && steps.size() < 64; first += batch) {
          std::vector<int32_t> numbers(batch);
          std::iota(numbers.begin(), numbers.end(), static_cast<int32_t>(first));
          HADAL_ASSIGN_OR_RETURN(
              Step step, MakeStep(std::vector<int32_t>(batch, static_cast<int32_t>(context - 1)), numbers, true));
          steps.push_back(std::move(step));
        }
        HADAL_RETURN_IF_ERROR(AttentionRow("attention decode", fmt::format("batch {}", batch), steps, window,
                                           compressed, static_cast<double>(batch * (kWindow + d_.top_k))));
      }
    }
    if (Wanted("attention prefill")) {
      HADAL_ASSIGN_OR_RETURN(const Pool window,
                             MakePool(ops::RowFormat::kFp8DsMla, d_.head_dim, kRotary, 1, d_.prefill_context, false));
      HADAL_ASSIGN_OR_RETURN(const Pool compressed, MakePool(ops::RowFormat::kFp8DsMla, d_.head_dim, kRotary, 1,
                                                             d_.prefill_context / kRatio, false));
      for (const int64_t rows : d_.prefill_rows) {
        std::vector<int32_t> positions(rows);
        std::iota(positions.begin(), positions.end(), static_cast<int32_t>(d_.prefill_context - rows));
        std::vector<Step> steps(1);
        HADAL_ASSIGN_OR_RETURN(steps[0], MakeStep(positions, std::vector<int32_t>(rows, 0), true));
        // Every row of the sequence has to be read once.
        HADAL_RETURN_IF_ERROR(AttentionRow("attention prefill", fmt::format("{} tokens", rows), steps, window,
                                           compressed,
                                           static_cast<double>(rows + kWindow + d_.prefill_context / kRatio)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AttentionRow(std::string_view name, const std::string& shape, const std::vector<Step>& steps,
                            const Pool& window, const Pool& compressed, double rows_read) {
    const int64_t rows = steps[0].rows;
    const int64_t width = d_.heads * d_.head_dim;
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer q, RandomBuffer(ops_, Contents::kBf16, 2 * rows * width));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer out, ops_.memory().Allocate(2 * rows * width, "outputs"));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer sink, Put(ops_, std::vector<float>(d_.heads, 0.5f)));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer cos, Put(ops_, std::vector<float>(rows * kRotary / 2, 0.8f)));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer sin, Put(ops_, std::vector<float>(rows * kRotary / 2, 0.6f)));
    ops::SparseAttentionArgs args;
    args.q = ops::MakeTensor(q.data(), DType::kBF16, rows, width);
    args.heads = d_.heads;
    args.head_dim = d_.head_dim;
    args.sink = As<float>(sink);
    args.softmax_scale = 1.0f / std::sqrt(static_cast<float>(d_.head_dim));
    args.window = window.view;
    args.compressed = compressed.view;
    args.ratio = kRatio;
    args.topk_stride = d_.top_k;
    args.rope = {As<float>(cos), As<float>(sin), kRotary / 2};
    args.out = ops::MakeTensor(out.data(), DType::kBF16, rows, width);
    HADAL_ASSIGN_OR_RETURN(const double seconds, TimeCalls(ops_, settings_.quick, [&](int64_t call) {
                             const Step& step = steps[call % steps.size()];
                             args.batch = step.batch();
                             args.window_begin = As<int32_t>(step.window_begin);
                             args.window_end = As<int32_t>(step.window_end);
                             args.topk = As<int32_t>(step.topk);
                             ops_.SparseAttention(args);
                           }));
    const Cost cost = {.bytes = rows_read * static_cast<double>(window.row_bytes) + Product({2, 2, rows, width}) +
                                Product({4, rows, d_.top_k}),
                       .bf16_flop = 4 * Product({rows, d_.heads, d_.head_dim, kWindow + d_.top_k})};
    report_.Add(name, fmt::format("{}, {} + {} rows, {} heads of {}", shape, d_.top_k, kWindow, d_.heads, d_.head_dim),
                seconds, cost, {.memory = 75, .compute = 45});
    return absl::OkStatus();
  }

  absl::Status Indexer() {
    if (!Wanted("indexer topk")) return absl::OkStatus();
    const int64_t width = d_.index_heads * d_.index_dim;
    const int64_t most = *std::max_element(d_.index_queries.begin(), d_.index_queries.end());
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer q, RandomBuffer(ops_, Contents::kBf16, 2 * most * width));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer weights, RandomBuffer(ops_, Contents::kBf16, 2 * most * d_.index_heads));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer out, ops_.memory().Allocate(4 * most * d_.top_k, "outputs"));
    for (const int64_t keys : d_.index_keys) {
      const int64_t key_bytes = d_.index_dim / 2 + d_.index_dim / ops::kFp4RowGroup;
      const int64_t seqs = std::max<int64_t>(most, settings_.quick ? 1 : kTurnBytes / (keys * key_bytes) + 1);
      HADAL_ASSIGN_OR_RETURN(const Pool pool, MakePool(ops::RowFormat::kMxfp4, d_.index_dim, 0, seqs, keys, false));
      const auto measure = [&](int64_t queries, bool one_sequence) -> absl::Status {
        std::vector<Step> steps;
        const int64_t each = one_sequence ? 1 : queries;
        for (int64_t first = 0; first + each <= seqs && steps.size() < 64; first += each) {
          std::vector<int32_t> positions, numbers;
          for (int64_t i = 0; i < queries; ++i) {
            positions.push_back(static_cast<int32_t>(keys * kRatio - (one_sequence ? queries - i : 1)));
            numbers.push_back(static_cast<int32_t>(first + (one_sequence ? 0 : i)));
          }
          HADAL_ASSIGN_OR_RETURN(Step step, MakeStep(positions, numbers, false));
          steps.push_back(std::move(step));
        }
        ops::IndexerTopkArgs args;
        args.q = ops::MakeTensor(q.data(), DType::kBF16, queries, width);
        args.weights = ops::MakeTensor(weights.data(), DType::kBF16, queries, d_.index_heads);
        args.heads = d_.index_heads;
        args.head_dim = d_.index_dim;
        args.ratio = kRatio;
        args.top_k = d_.top_k;
        args.keys = pool.view;
        args.out = As<int32_t>(out);
        HADAL_ASSIGN_OR_RETURN(const double seconds, TimeCalls(ops_, settings_.quick, [&](int64_t call) {
                                 args.batch = steps[call % steps.size()].batch();
                                 ops_.IndexerTopk(args);
                               }));
        const Cost cost = {
            .bytes = Product({each, keys, key_bytes}) + Product({2, queries, width}) + Product({4, queries, d_.top_k}),
            .bf16_flop = 2 * Product({queries, keys, d_.index_heads, d_.index_dim})};
        report_.Add("indexer topk",
                    fmt::format("{} of {}{} MXFP4 keys, {} {}, {} heads of {}", d_.top_k,
                                keys >= 1024 ? keys >> 10 : keys, keys >= 1024 ? "k" : "", queries,
                                queries == 1   ? "query"
                                : one_sequence ? "queries of one sequence"
                                               : "sequences",
                                d_.index_heads, d_.index_dim),
                    seconds, cost, {.memory = 75, .compute = 0});
        return absl::OkStatus();
      };
      for (const int64_t queries : d_.index_queries) {
        HADAL_RETURN_IF_ERROR(measure(queries, false));
        if (queries > 1) HADAL_RETURN_IF_ERROR(measure(queries, true));
      }
    }
    return absl::OkStatus();
  }

  // -- Hyper-connections and norms -------------------------------------------------------------------------------

  absl::Status HyperConnections() {
    const int64_t d = d_.hidden;
    const int64_t hc = d_.hc;
    const int64_t mixes = (2 + hc) * hc;
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer norm, RandomBuffer(ops_, Contents::kBf16, 2 * d));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer fn, RandomBuffer(ops_, Contents::kF32, 4 * mixes * hc * d));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer scale, Put(ops_, std::vector<float>(3, 0.01f)));
    HADAL_ASSIGN_OR_RETURN(const ops::Buffer base, RandomBuffer(ops_, Contents::kF32, 4 * mixes));
    const ops::Vector norm_weight = {norm.data(), DType::kBF16, d};
    for (const int64_t rows : d_.pointwise_rows) {
      const int64_t bytes = 2 * rows * hc * d;
      const int64_t copies = settings_.quick ? 1 : std::clamp<int64_t>(kTurnBytes / bytes + 1, 1, 512);
      HADAL_ASSIGN_OR_RETURN(const ops::Buffer streams, RandomBuffer(ops_, Contents::kBf16, copies * bytes));
      HADAL_ASSIGN_OR_RETURN(const ops::Buffer out, RandomBuffer(ops_, Contents::kBf16, copies * 2 * rows * d));
      HADAL_ASSIGN_OR_RETURN(const ops::Buffer post, Put(ops_, std::vector<float>(rows * hc, 0.5f)));
      HADAL_ASSIGN_OR_RETURN(const ops::Buffer comb, Put(ops_, std::vector<float>(rows * hc * hc, 0.25f)));
      const auto streams_of = [&](int64_t call) {
        return ops::MakeTensor(streams.data() + call % copies * bytes, DType::kBF16, rows, hc * d);
      };
      const auto out_of = [&](int64_t call) {
        return ops::MakeTensor(out.data() + call % copies * 2 * rows * d, DType::kBF16, rows, d);
      };
      const std::string shape = fmt::format("{} rows, {} streams of {}", rows, hc, d);
      const auto row = [&](std::string_view name, const Cost& cost, const auto& call) -> absl::Status {
        if (!Wanted(name)) return absl::OkStatus();
        HADAL_ASSIGN_OR_RETURN(const double seconds, TimeCalls(ops_, settings_.quick, call));
        report_.Add(name, name.starts_with("hc") ? shape : fmt::format("{} rows of {}", rows, d), seconds, cost, {});
        return absl::OkStatus();
      };
      HADAL_RETURN_IF_ERROR(row("hc_post", {.bytes = Product({2, rows, d, 2 * hc + 1})}, [&](int64_t call) {
        ops_.HcPost({.layer_out = out_of(call),
                     .streams = streams_of(call),
                     .hc = hc,
                     .post = As<float>(post),
                     .comb = As<float>(comb)});
      }));
      HADAL_RETURN_IF_ERROR(
          row("hc_pre", {.bytes = Product({2, rows, d, hc + 1}) + Product({4, mixes, hc, d})}, [&](int64_t call) {
            ops::HcPreArgs args;
            args.streams = streams_of(call);
            args.hc = hc;
            args.weights = {As<float>(fn), As<float>(scale), As<float>(base)};
            args.sinkhorn_iters = 20;
            args.hc_eps = 1e-6f;
            args.norm = norm_weight;
            args.rms_eps = 1e-6f;
            args.out = out_of(call);
            args.post = As<float>(post);
            args.comb = As<float>(comb);
            ops_.HcPre(args);
          }));
      HADAL_RETURN_IF_ERROR(row("rms_norm", {.bytes = Product({2, 2, rows, d})},
                                [&](int64_t call) { ops_.RmsNorm(out_of(call), norm_weight, 1e-6f, out_of(call)); }));
    }
    return absl::OkStatus();
  }

  GpuSettings settings_;
  ops::Ops& ops_;
  GpuReport report_;
  Dims d_;
};

}  // namespace

absl::Status RunGpuKernels(const GpuSettings& settings, const GpuLimits& limits, double launch_seconds, ops::Ops& ops) {
  return Kernels(settings, limits, launch_seconds, ops).Run();
}

}  // namespace hadal::bench
