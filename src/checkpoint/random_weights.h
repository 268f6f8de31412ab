// Random weights of a tensor table: deterministic by seed, made at the speed of memory, and of a magnitude that keeps
// activations near one, so that a model made of them runs without infinities and its kernels see realistic data.
//
// Values come from random tiles, one per kind and magnitude, that are repeated from an offset that depends on the
// tensor's name. Quantised weights get random codes and random valid scales; rows of tid2eid hold distinct experts
// (spec deepseek-v4-text, trap 22). No libm is involved: the bytes are the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_table.h"

namespace hadal::checkpoint {

class RandomWeights {
 public:
  // Makes the tiles that `specs` need: at most about 100 MiB.
  RandomWeights(const ModelConfig& config, const std::vector<TensorSpec>& specs, uint64_t seed);

  // The bytes of one of the specs, in its preferred dtype, in pieces and in order. `sink` gets each piece, valid during
  // the call, and returns false to stop. Thread-safe.
  void Generate(const TensorSpec& spec, absl::FunctionRef<bool(std::span<const std::byte>)> sink) const;

 private:
  enum class Kind { kNormal, kAroundOne, kHalfToOne, kE4M3, kE2M1, kScale };
  struct TileKey {
    Kind kind;
    DType dtype;
    int exponent;  // the standard deviation, or for scales the centre, is about 2^exponent
    auto operator<=>(const TileKey&) const = default;  // NOLINT(modernize-use-nullptr): the check misreads <=>
  };

  TileKey KeyFor(const TensorSpec& spec) const;
  std::vector<std::byte> MakeTile(const TileKey& key, int64_t bytes) const;
  std::vector<std::byte> TokenTable(const TensorSpec& spec) const;

  int64_t experts_;
  uint64_t seed_;
  std::map<TileKey, std::vector<std::byte>> tiles_;
};

}  // namespace hadal::checkpoint
