// Tiles of random values and how tensors choose among them.
#include "checkpoint/random_weights.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/float_formats.h"
#include "base/status.h"

namespace hadal::checkpoint {
namespace {

constexpr int64_t kMinTileBytes = 64 << 10;
constexpr int64_t kCodeTileBytes = 16 << 20;  // weights: larger than most caches a kernel could keep them in
constexpr int64_t kValueTileBytes = 2 << 20;  // everything else
constexpr int64_t kOffsetUnit = 64;

// Standard deviations of the codes below, as exponents of two: what scales have to undo.
constexpr int kE4M3Exponent = 5;  // normal with deviation 32
constexpr int kE2M1Exponent = 2;  // uniform codes: 2.93

class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // In [0, bound): multiply-shift, bias of 2^-32 is of no interest here.
  uint64_t Below(uint64_t bound) { return ((Next() >> 32) * bound) >> 32; }

 private:
  uint64_t state_;
};

uint64_t Hash(std::string_view text, uint64_t seed) {
  uint64_t h = seed ^ 0xCBF29CE484222325ull;
  for (char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  return SplitMix(h).Next();
}

// Near-normal, deviation 1: the sum of eight bytes (Irwin-Hall), exact in fp32.
float Normal(SplitMix* random) {
  uint64_t bits = random->Next();
  int sum = 0;
  for (int i = 0; i < 8; ++i, bits >>= 8) sum += static_cast<int>(bits & 0xFF);
  return static_cast<float>(sum - 1020) * (1.0f / 209.0f);  // deviation of the sum: sqrt(8 * 256^2 / 12)
}

float Pow2(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23); }

// Exponent of 1/sqrt(n), rounded.
int InverseRoot(int64_t n) { return -(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(n, 1))) / 2); }

bool EndsWith(std::string_view text, std::string_view tail) { return text.ends_with(tail); }
bool Contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

void StoreFloat(DType dtype, float value, std::byte* at) {
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, 4);
  } else {
    const uint16_t bits = ToBFloat16(value).bits;
    std::memcpy(at, &bits, 2);
  }
}

bool IsTokenTable(const TensorSpec& spec) { return spec.preferred == DType::kI64 || spec.preferred == DType::kI32; }

}  // namespace

RandomWeights::RandomWeights(const ModelConfig& config, const std::vector<TensorSpec>& specs, uint64_t seed)
    : experts_(config.n_routed_experts), seed_(seed) {
  int64_t largest = kMinTileBytes;
  for (const TensorSpec& spec : specs) largest = std::max(largest, DTypeBytes(spec.preferred, spec.elements()));
  const int64_t wanted = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(largest)));
  for (const TensorSpec& spec : specs) {
    if (IsTokenTable(spec)) continue;
    const TileKey key = KeyFor(spec);
    if (tiles_.contains(key)) continue;
    const bool codes = key.kind == Kind::kE4M3 || key.kind == Kind::kE2M1;
    tiles_.emplace(key, MakeTile(key, std::min(wanted, codes ? kCodeTileBytes : kValueTileBytes)));
  }
}

RandomWeights::TileKey RandomWeights::KeyFor(const TensorSpec& spec) const {
  const std::string_view name = spec.name;
  const DType dtype = spec.preferred;
  const int64_t inputs = spec.shape.back();
  if (spec.is_scale()) {
    const int codes = spec.scale_block == 32 ? kE2M1Exponent : kE4M3Exponent;
    return {Kind::kScale, dtype, InverseRoot(inputs * spec.scale_block) - codes};
  }
  if (dtype == DType::kF8E4M3) return {Kind::kE4M3, dtype, 0};
  if (dtype == DType::kF4E2M1) return {Kind::kE2M1, dtype, 0};
  if (Contains(name, "norm") && EndsWith(name, ".weight") && spec.shape.size() == 1)
    return {Kind::kAroundOne, dtype, -3};
  if (Contains(name, "hc_") && EndsWith(name, "_scale")) return {Kind::kHalfToOne, dtype, 0};
  if (Contains(name, "hc_") && EndsWith(name, "_base")) return {Kind::kNormal, dtype, -1};
  if (EndsWith(name, ".ape")) return {Kind::kNormal, dtype, -1};
  // Router biases only break ties between experts; other biases are small beside what they are added to.
  if (Contains(name, "bias")) return {Kind::kNormal, dtype, -5};
  if (spec.shape.size() == 1 || Contains(name, "embed")) return {Kind::kNormal, dtype, 0};
  return {Kind::kNormal, dtype, InverseRoot(inputs)};
}

std::vector<std::byte> RandomWeights::MakeTile(const TileKey& key, int64_t bytes) const {
  SplitMix random(
      Hash(fmt::format("{}/{}/{}", static_cast<int>(key.kind), static_cast<int>(key.dtype), key.exponent), seed_));
  std::vector<std::byte> tile(static_cast<size_t>(bytes));
  if (key.kind == Kind::kE2M1) {
    for (int64_t i = 0; i < bytes; i += 8) {
      const uint64_t word = random.Next();
      std::memcpy(&tile[i], &word, 8);
    }
    return tile;
  }
  // One value is drawn per entry of a table, one entry per element: a table of 64 Ki values costs nothing to make.
  const int64_t element = DTypeBits(key.dtype) / 8;
  std::vector<std::byte> table(static_cast<size_t>(65536 * element));
  for (int64_t i = 0; i < 65536; ++i) {
    std::byte* at = &table[static_cast<size_t>(i * element)];
    switch (key.kind) {
      case Kind::kE4M3:
        *at = static_cast<std::byte>(FloatToE4M3(Normal(&random) * Pow2(kE4M3Exponent)));
        break;
      case Kind::kScale: {
        const int exponent = key.exponent + static_cast<int>(random.Below(3)) - 1;
        if (key.dtype == DType::kF8E8M0) {
          *at = static_cast<std::byte>(exponent + 127);
        } else {
          StoreFloat(key.dtype, Pow2(exponent), at);
        }
        break;
      }
      case Kind::kAroundOne:
        StoreFloat(key.dtype, 1.0f + Normal(&random) * Pow2(key.exponent), at);
        break;
      case Kind::kHalfToOne:
        StoreFloat(key.dtype, 0.5f + static_cast<float>(random.Below(256)) * (1.0f / 512.0f), at);
        break;
      default:
        StoreFloat(key.dtype, Normal(&random) * Pow2(key.exponent), at);
    }
  }
  uint64_t word = 0;
  for (int64_t i = 0, drawn = 0; i < bytes; i += element, ++drawn) {
    word = drawn % 4 == 0 ? random.Next() : word >> 16;
    std::memcpy(&tile[static_cast<size_t>(i)], &table[static_cast<size_t>((word & 0xFFFF)) * element],
                static_cast<size_t>(element));
  }
  return tile;
}

// Row t: k distinct experts, the first k of a partial shuffle.
std::vector<std::byte> RandomWeights::TokenTable(const TensorSpec& spec) const {
  const int64_t rows = spec.shape[0], k = spec.shape[1];
  const int64_t size = DTypeBits(spec.preferred) / 8;
  std::vector<std::byte> bytes(static_cast<size_t>(rows * k * size));
  std::vector<int64_t> order(static_cast<size_t>(experts_));
  for (int64_t e = 0; e < experts_; ++e) order[e] = e;
  SplitMix random(Hash(spec.name, seed_));
  for (int64_t i = 0; i < rows * k; ++i) {
    const int64_t slot = i % k;
    std::swap(order[slot], order[slot + static_cast<int64_t>(random.Below(static_cast<uint64_t>(experts_ - slot)))]);
    std::memcpy(&bytes[static_cast<size_t>(i * size)], &order[slot], static_cast<size_t>(size));  // little-endian
  }
  return bytes;
}

void RandomWeights::Generate(const TensorSpec& spec, absl::FunctionRef<bool(std::span<const std::byte>)> sink) const {
  if (IsTokenTable(spec)) {
    sink(TokenTable(spec));
    return;
  }
  const auto found = tiles_.find(KeyFor(spec));
  HADAL_CHECK(found != tiles_.end());  // the spec was given to the constructor
  const std::span<const std::byte> tile = found->second;
  const uint64_t units = tile.size() / kOffsetUnit;
  size_t at = Hash(spec.name, seed_) % units * kOffsetUnit;
  int64_t left = DTypeBytes(spec.preferred, spec.elements());
  while (left > 0) {
    const size_t n = std::min(static_cast<size_t>(left), tile.size() - at);
    if (!sink(tile.subspan(at, n))) return;
    left -= static_cast<int64_t>(n);
    at = 0;
  }
}

}  // namespace hadal::checkpoint
