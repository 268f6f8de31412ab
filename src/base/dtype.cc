#include "base/dtype.h"

#include <array>
#include <utility>

#include "base/status.h"

namespace hadal {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 13> kNames = {{
    {"F32", DType::kF32},
    {"BF16", DType::kBF16},
    {"F16", DType::kF16},
    {"F8_E4M3", DType::kF8E4M3},
    {"F8_E8M0", DType::kF8E8M0},
    {"F4", DType::kF4E2M1},
    {"I8", DType::kI8},
    {"U8", DType::kU8},
    {"I32", DType::kI32},
    {"I64", DType::kI64},
    {"F8_E4M3FN", DType::kF8E4M3},
    {"F8_E8M0FNU", DType::kF8E8M0},
    {"F4_E2M1", DType::kF4E2M1},
}};

}  // namespace

std::string_view DTypeName(DType dtype) {
  for (const auto& [name, value] : kNames) {
    if (value == dtype) return name;
  }
  return "?";
}

absl::StatusOr<DType> ParseDType(std::string_view name) {
  for (const auto& [known, value] : kNames) {
    if (known == name) return value;
  }
  return InvalidArgument("unknown dtype \"{}\"; expected one of F32, BF16, F16, F8_E4M3, F8_E8M0, F4, I8, U8, I32, I64",
                         name);
}

int DTypeBits(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 32;
    case DType::kBF16:
    case DType::kF16:
      return 16;
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kI8:
    case DType::kU8:
      return 8;
    case DType::kF4E2M1:
      return 4;
    case DType::kI64:
      return 64;
  }
  return 0;
}

}  // namespace hadal
