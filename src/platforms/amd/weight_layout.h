// How weights lie for AMD's matrix libraries (spec deepseek-v4-vision-and-cache 7.4): FP8 weights whose tiles of 16
// outputs by 16 bytes are contiguous, and FP8 in the variant of gfx942's matrix unit. Host code that changes bytes
// before a weight is uploaded, and the rule that says which weights are changed.
//
// hadal's own kernels (platforms/gpu) read weights and caches as published: row-major, OCP E4M3 decoded by bit
// arithmetic on every architecture. Nothing here is applied to what they read.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hadal::amd {

enum class Layout { kRowMajor, kShuffled16x16 };

// A weight [n, k] and how it lies. The label travels with the bytes: it is what keeps a weight from being shuffled
// twice.
struct Weight {
  uint8_t* data = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  int element_bytes = 1;  // 1: FP8; 2: BF16
  Layout layout = Layout::kRowMajor;
};

// Where element (row, col) of a weight with k inputs lies once shuffled, in elements:
// [n/16][k/32][32/kp][16][kp] with kp = 16 / element_bytes.
int64_t ShuffledOffset(int64_t row, int64_t col, int64_t k, int element_bytes);

// Shuffles in place, and back. InvalidArgument unless n is a multiple of 16, k of 32 and an element has 1 or 2 bytes;
// FailedPrecondition for a weight that lies so already.
absl::Status Shuffle(Weight* weight);
absl::Status Unshuffle(Weight* weight);

// Which weights are shuffled.

// What a layer's kernel, chosen when the layer is loaded, says of itself. Two holders may have it: the layer's
// quantisation method and its scheme.
struct KernelHolders {
  bool has_quant_method = false;
  bool quant_method_preshuffles = false;  // quant_method.fp8_linear.preshuffles_weight
  bool has_scheme = false;
  bool scheme_preshuffles = false;  // scheme.fp8_linear.preshuffles_weight
};

enum class LayerRole {
  kMlpGateUp,  // of the dense and the shared MLP
  kMlpDown,
  kWoA,  // the grouped output projection, read as a batch of matrices
  kOther,
};

struct Layer {
  LayerRole role = LayerRole::kOther;
  KernelHolders holders;
  bool is_bmm = false;  // a batch of matrices
  bool skip_weight_relayout = false;
  int dimensions = 2;
  bool has_block_scale = false;
};

struct PreshuffleOptions {
  bool enabled = true;  // off: every weight stays row-major (the kernels' accuracy was doubted upstream)
  bool aiter = true;    // AMD's kernel library, which reads shuffled weights
};

enum class Relayout {
  kNone,      // row-major, for good
  kByKernel,  // the layer's kernel shuffles it in its own finalisation
  kByModel,   // the model's finalisation does, once all layers have had theirs
};
// Decided once, at load: a kernel chosen later reads what this said.
Relayout RelayoutOf(const Layer& layer, int64_t n, int64_t k, const PreshuffleOptions& options);

// The name of the layer's scale: weight_scale_inv with a quantisation method, weight_scale with a scheme alone.
std::string_view ScaleName(const KernelHolders& holders);

// The model's finalisation of one weight: shuffles it if that is the model's part. FailedPrecondition if the bytes are
// not where the rule has them: shuffled when the model's turn comes or nobody's ever does, or not yet by the kernel.
absl::Status FinalizeWeight(const Layer& layer, const PreshuffleOptions& options, Weight* weight);

// Scales.

// E8M0 scales of a shuffled weight as the fp32 its kernel reads.
void UpcastScales(std::span<const uint8_t> e8m0, std::span<float> out);
// Scales of activations [m][blocks] in the order of kernels that read shuffled weights, [blocks][m].
void ColumnMajorScales(std::span<const float> rows, int64_t m, std::span<float> out);

// E4M3 for gfx942's matrix unit, which has the variant FNUZ: the same seven bits mean half of what they do in OCP's,
// code 0x80 is its only NaN, and there is no negative zero. gfx950 has OCP's.

float E4M3FnuzToFloat(uint8_t code);
// Codes in place: the same bits, but for -0 (0x80, to 0) and the NaNs (to 0x80). Their scales must be doubled.
void OcpToFnuz(std::span<uint8_t> codes);
// Twice the scales, in place. OutOfRange, with nothing changed, for one that has no double in its format.
absl::Status DoubleScales(std::span<float> scales);
absl::Status DoubleE8M0Scales(std::span<uint8_t> scales);

}  // namespace hadal::amd
