#include "base/float_formats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace hadal {
namespace {

constexpr std::array<float, 8> kE2M1Magnitudes = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

// Rounds |v| <= 448 to the E4M3 grid: three mantissa bits above 2^-6, steps of 2^-9 below.
float RoundToGrid(float v, float min_normal, float step_of_exponent) {
  const uint32_t exponent_bits = std::bit_cast<uint32_t>(v) & 0x7F800000u;
  const float exponent = std::max(std::bit_cast<float>(exponent_bits), min_normal);
  const float step = exponent * step_of_exponent;
  return std::nearbyint(v / step) * step;
}

}  // namespace

float E4M3ToFloat(uint8_t code) {
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return std::numeric_limits<float>::quiet_NaN();
  const uint32_t exponent = magnitude >> 3;
  const auto mantissa = static_cast<float>(magnitude & 7u);
  const float value =
      exponent == 0 ? mantissa * 0x1p-9f : std::ldexp(1.0f + mantissa / 8.0f, static_cast<int>(exponent) - 7);
  return (code & 0x80u) != 0 ? -value : value;
}

float RoundE4M3(float v) { return RoundToGrid(std::clamp(v, -448.0f, 448.0f), 0x1p-6f, 0.125f); }

uint8_t FloatToE4M3(float v) {
  if (std::isnan(v)) return 0x7F;
  const float rounded = RoundE4M3(v);
  const uint8_t sign = std::signbit(rounded) ? 0x80 : 0;
  const float a = std::fabs(rounded);
  if (a < 0x1p-6f) return sign | static_cast<uint8_t>(a * 512.0f);
  int exponent = 0;
  const float fraction = std::frexp(a, &exponent);  // a = fraction * 2^exponent, fraction in [0.5, 1)
  const auto mantissa = static_cast<uint8_t>((fraction * 2.0f - 1.0f) * 8.0f);
  return sign | static_cast<uint8_t>(((exponent - 1 + 7) << 3) | mantissa);
}

float E2M1ToFloat(uint8_t code) {
  const float value = kE2M1Magnitudes[code & 7u];
  return (code & 8u) != 0 ? -value : value;
}

float RoundE2M1(float v) {
  const float a = std::min(std::fabs(v), 6.0f);
  const float step = a < 2.0f ? 0.5f : a < 4.0f ? 1.0f : 2.0f;
  return std::copysign(std::nearbyint(a / step) * step, v);
}

uint8_t FloatToE2M1(float v) {
  const float rounded = RoundE2M1(v);
  const float a = std::fabs(rounded);
  uint8_t code = 0;
  while (code < 7 && kE2M1Magnitudes[code] < a) ++code;
  return code | (std::signbit(rounded) ? 8 : 0);
}

float F16ToFloat(uint16_t bits) {
  const uint32_t exponent = (bits >> 10) & 31u;
  const uint32_t mantissa = bits & 1023u;
  float value = 0;
  if (exponent == 31) {
    value = mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    value = static_cast<float>(mantissa) * 0x1p-24f;
  } else {
    value = std::ldexp(1.0f + static_cast<float>(mantissa) / 1024.0f, static_cast<int>(exponent) - 15);
  }
  return (bits & 0x8000u) != 0 ? -value : value;
}

}  // namespace hadal
