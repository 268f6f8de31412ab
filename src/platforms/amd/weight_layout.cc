#include "platforms/amd/weight_layout.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/float_formats.h"
#include "base/status.h"

namespace hadal::amd {
namespace {

constexpr int64_t kRows = 16;       // of a tile
constexpr int64_t kTileBytes = 16;  // of a row of a tile
constexpr int64_t kCols = 32;       // inputs whose tiles stand together

absl::Status CheckShape(const Weight& weight) {
  if (weight.element_bytes != 1 && weight.element_bytes != 2) {
    return InvalidArgument("weight with elements of {} bytes; expected 1 (FP8) or 2 (BF16)", weight.element_bytes);
  }
  if (weight.n % kRows != 0 || weight.k % kCols != 0) {
    return InvalidArgument("weight [{}, {}] cannot be shuffled; expected multiples of {} and {}", weight.n, weight.k,
                           kRows, kCols);
  }
  return absl::OkStatus();
}

// Moves the rows of each strip of 16 into its tiles, or back. A strip stays where it is, so one buffer of a strip will
// do.
void Move(const Weight& weight, bool to_tiles) {
  const int64_t row_bytes = weight.k * weight.element_bytes;
  std::vector<uint8_t> strip(static_cast<size_t>(kRows * row_bytes));
  for (int64_t n = 0; n < weight.n; n += kRows) {
    uint8_t* at = weight.data + n * row_bytes;
    std::memcpy(strip.data(), at, strip.size());
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t byte = 0; byte < row_bytes; byte += kTileBytes) {
        const int64_t in_rows = row * row_bytes + byte;
        const int64_t in_tiles = byte * kRows + row * kTileBytes;
        std::memcpy(at + (to_tiles ? in_tiles : in_rows), strip.data() + (to_tiles ? in_rows : in_tiles), kTileBytes);
      }
    }
  }
}

bool KernelPreshuffles(const Layer& layer) {
  const KernelHolders& holders = layer.holders;
  return (holders.has_quant_method && holders.quant_method_preshuffles) ||
         (holders.has_scheme && holders.scheme_preshuffles);
}

}  // namespace

int64_t ShuffledOffset(int64_t row, int64_t col, int64_t k, int element_bytes) {
  const int64_t kp = kTileBytes / element_bytes;
  const int64_t tile = (row / kRows * (k / kCols) + col / kCols) * (kCols / kp) + col % kCols / kp;
  return (tile * kRows + row % kRows) * kp + col % kp;
}

absl::Status Shuffle(Weight* weight) {
  HADAL_RETURN_IF_ERROR(CheckShape(*weight));
  if (weight->layout != Layout::kRowMajor) {
    return FailedPrecondition("weight [{}, {}] is shuffled already", weight->n, weight->k);
  }
  Move(*weight, true);
  weight->layout = Layout::kShuffled16x16;
  return absl::OkStatus();
}

absl::Status Unshuffle(Weight* weight) {
  HADAL_RETURN_IF_ERROR(CheckShape(*weight));
  if (weight->layout != Layout::kShuffled16x16) {
    return FailedPrecondition("weight [{}, {}] is not shuffled", weight->n, weight->k);
  }
  Move(*weight, false);
  weight->layout = Layout::kRowMajor;
  return absl::OkStatus();
}

Relayout RelayoutOf(const Layer& layer, int64_t n, int64_t k, const PreshuffleOptions& options) {
  if (!options.enabled || layer.role == LayerRole::kWoA || layer.is_bmm || layer.skip_weight_relayout) {
    return Relayout::kNone;
  }
  if (KernelPreshuffles(layer)) return Relayout::kByKernel;
  const bool of_mlp = layer.role == LayerRole::kMlpGateUp || layer.role == LayerRole::kMlpDown;
  const bool can = layer.dimensions == 2 && layer.has_block_scale && k % 128 == 0 && n % kRows == 0;
  return options.aiter && of_mlp && can ? Relayout::kByModel : Relayout::kNone;
}

std::string_view ScaleName(const KernelHolders& holders) {
  return holders.has_quant_method ? "weight_scale_inv" : "weight_scale";
}

absl::Status FinalizeWeight(const Layer& layer, const PreshuffleOptions& options, Weight* weight) {
  switch (RelayoutOf(layer, weight->n, weight->k, options)) {
    case Relayout::kByModel:
      return Shuffle(weight);
    case Relayout::kByKernel:
      if (weight->layout == Layout::kShuffled16x16) return absl::OkStatus();
      return FailedPrecondition("weight [{}, {}] is still row-major; its kernel declares that it shuffles it first",
                                weight->n, weight->k);
    case Relayout::kNone:
      if (weight->layout == Layout::kRowMajor) return absl::OkStatus();
      return FailedPrecondition("weight [{}, {}] is shuffled; its kernel reads rows", weight->n, weight->k);
  }
  return absl::OkStatus();
}

void UpcastScales(std::span<const uint8_t> e8m0, std::span<float> out) {
  HADAL_CHECK(e8m0.size() == out.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = E8M0ToFloat(e8m0[i]);
}

void ColumnMajorScales(std::span<const float> rows, int64_t m, std::span<float> out) {
  HADAL_CHECK(rows.size() == out.size() && m > 0 && static_cast<int64_t>(rows.size()) % m == 0);
  const int64_t blocks = static_cast<int64_t>(rows.size()) / m;
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t block = 0; block < blocks; ++block) out[block * m + row] = rows[row * blocks + block];
  }
}

float E4M3FnuzToFloat(uint8_t code) {
  if (code == 0x80) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -10)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 8 - 3);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

void OcpToFnuz(std::span<uint8_t> codes) {
  for (uint8_t& code : codes) {
    if ((code & 0x7F) == 0x7F) {
      code = 0x80;
    } else if (code == 0x80) {
      code = 0;
    }
  }
}

absl::Status DoubleScales(std::span<float> scales) {
  for (size_t i = 0; i < scales.size(); ++i) {
    if (std::isfinite(scales[i]) && !std::isfinite(2 * scales[i])) {
      return absl::OutOfRangeError(fmt::format("scale {} is {}; its double is beyond fp32", i, scales[i]));
    }
  }
  for (float& scale : scales) scale *= 2;
  return absl::OkStatus();
}

absl::Status DoubleE8M0Scales(std::span<uint8_t> scales) {
  constexpr uint8_t kLargest = 254;  // 2^127; 255 is NaN, and stays it
  for (size_t i = 0; i < scales.size(); ++i) {
    if (scales[i] == kLargest)
      return absl::OutOfRangeError(fmt::format("scale {} is 2^127; its double is beyond E8M0", i));
  }
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(scale + (scale < kLargest ? 1 : 0));
  return absl::OkStatus();
}

}  // namespace hadal::amd
