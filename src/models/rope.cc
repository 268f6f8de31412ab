#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hadal::models {

std::vector<float> RopeFrequencies(double base, int64_t dims) {
  std::vector<float> freqs(dims / 2);
  for (int64_t j = 0; j < dims / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(dims);
    freqs[j] = 1.0f / std::pow(static_cast<float>(base), exponent);
  }
  return freqs;
}

std::vector<float> YarnFrequencies(double base, int64_t dims, const checkpoint::RopeScaling& scaling) {
  std::vector<float> freqs = RopeFrequencies(base, dims);
  if (!scaling.yarn) return freqs;
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  // The pair whose wavelength makes `rotations` turns over the original context.
  const auto pair_of = [&](double rotations) {
    return static_cast<double>(dims) * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  const double low = std::max(std::floor(pair_of(scaling.beta_fast)), 0.0);
  const double high = std::min(std::ceil(pair_of(scaling.beta_slow)), static_cast<double>(dims - 1));
  const auto span = static_cast<float>(high == low ? 0.001 : high - low);
  const auto factor = static_cast<float>(scaling.factor);
  for (int64_t j = 0; j < dims / 2; ++j) {
    const float ramp = std::clamp((static_cast<float>(j) - static_cast<float>(low)) / span, 0.0f, 1.0f);
    freqs[j] = freqs[j] / factor * ramp + freqs[j] * (1.0f - ramp);
  }
  return freqs;
}

}  // namespace hadal::models
